// Keys and values of a contiguous cache: each (capacity, NUM_KV_HEADS, HEAD_DIM) ${KV_TYPE}, key s at position s.
//
// Bindings: key cache at CACHE_AT, value cache after it. A layout's file gives key_at and value_at: 4 columns as f32.

@group(0) @binding(${CACHE_AT}) var<storage, read> key_cache: array<vec4<${KV_TYPE}>>;
@group(0) @binding(${CACHE_AT + 1}) var<storage, read> value_cache: array<vec4<${KV_TYPE}>>;

fn key_at(position: u32, kv_head: u32, quad: u32) -> vec4<f32> {
  return vec4<f32>(key_cache[(position * NUM_KV_HEADS + kv_head) * QUADS + quad]);
}

fn value_at(position: u32, kv_head: u32, quad: u32) -> vec4<f32> {
  return vec4<f32>(value_cache[(position * NUM_KV_HEADS + kv_head) * QUADS + quad]);
}
