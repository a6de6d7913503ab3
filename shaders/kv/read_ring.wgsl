// Keys and values of a ring: each (RING_CAPACITY, NUM_KV_HEADS, HEAD_DIM) ${KV_TYPE}, position p in slot p mod capacity.
//
// Bindings: key ring at CACHE_AT, value ring after it. Only positions within the window are asked for.

@group(0) @binding(${CACHE_AT}) var<storage, read> key_ring: array<vec4<${KV_TYPE}>>;
@group(0) @binding(${CACHE_AT + 1}) var<storage, read> value_ring: array<vec4<${KV_TYPE}>>;

fn key_at(position: u32, kv_head: u32, quad: u32) -> vec4<f32> {
  return vec4<f32>(key_ring[(position % ${RING_CAPACITY}u * NUM_KV_HEADS + kv_head) * QUADS + quad]);
}

fn value_at(position: u32, kv_head: u32, quad: u32) -> vec4<f32> {
  return vec4<f32>(value_ring[(position % ${RING_CAPACITY}u * NUM_KV_HEADS + kv_head) * QUADS + quad]);
}
