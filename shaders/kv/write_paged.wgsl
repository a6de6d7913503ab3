// Writes to pages: see read_paged.wgsl. Bindings from CACHE_AT on.

@group(0) @binding(${CACHE_AT}) var<storage, read_write> key_cache: array<${KV_TYPE}>;
@group(0) @binding(${CACHE_AT + 1}) var<storage, read_write> value_cache: array<${KV_TYPE}>;
//% include "kv/pages.wgsl"

fn store_key(position: u32, kv_head: u32, column: u32, value: f32) {
  key_cache[(slot_of(position) * NUM_KV_HEADS + kv_head) * HEAD_DIM + column] = ${KV_TYPE}(value);
}

fn store_value(position: u32, kv_head: u32, column: u32, value: f32) {
  value_cache[(slot_of(position) * NUM_KV_HEADS + kv_head) * HEAD_DIM + column] = ${KV_TYPE}(value);
}
