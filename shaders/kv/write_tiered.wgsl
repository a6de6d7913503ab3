// Writes to the hot ring of a tiered cache: see read_tiered.wgsl. Binding CACHE_AT.

@group(0) @binding(${CACHE_AT}) var<storage, read_write> hot: array<${KV_TYPE}>;

fn hot_row(position: u32, kv_head: u32) -> u32 {
  return position % ${RING_CAPACITY}u * NUM_KV_HEADS + kv_head;
}

fn store_key(position: u32, kv_head: u32, column: u32, value: f32) {
  hot[2u * hot_row(position, kv_head) * HEAD_DIM + column] = ${KV_TYPE}(value);
}

fn store_value(position: u32, kv_head: u32, column: u32, value: f32) {
  hot[(2u * hot_row(position, kv_head) + 1u) * HEAD_DIM + column] = ${KV_TYPE}(value);
}
