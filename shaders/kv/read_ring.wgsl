// Keys and values in rings: each (rings, RING_CAPACITY, NUM_KV_HEADS, HEAD_DIM) ${KV_TYPE}, position p of a sequence in slot
// p mod RING_CAPACITY of its ring.
//
// Bindings: keys at CACHE_AT, values, number of the ring u32, with BATCH one for each row of the step. Only positions
//           within the window are asked for.

@group(0) @binding(${CACHE_AT}) var<storage, read> key_rings: array<vec4<${KV_TYPE}>>;
@group(0) @binding(${CACHE_AT + 1}) var<storage, read> value_rings: array<vec4<${KV_TYPE}>>;
//% include "kv/ring.wgsl"

fn key_at(position: u32, kv_head: u32, quad: u32) -> vec4<f32> {
  return vec4<f32>(key_rings[(slot_of(position) * NUM_KV_HEADS + kv_head) * QUADS + quad]);
}

fn value_at(position: u32, kv_head: u32, quad: u32) -> vec4<f32> {
  return vec4<f32>(value_rings[(slot_of(position) * NUM_KV_HEADS + kv_head) * QUADS + quad]);
}
