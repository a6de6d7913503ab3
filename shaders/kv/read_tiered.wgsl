// Keys and values in two tiers: a position below the boundary is read from cold pages, any other from the hot ring.
//
// A row is one token of one KV head: its keys, then its values. Hot rows: (RING_CAPACITY, NUM_KV_HEADS) ${KV_TYPE},
// position p in slot p mod RING_CAPACITY. Cold rows: (pages, PAGE_TOKENS, NUM_KV_HEADS), as ${KV_TYPE}, or with COLD_BITS
// as u32 words: two f16 scales (keys in the low half), the keys' integers, the values' integers, each COLD_BITS wide in
// two's complement, the first column lowest.
//
// Bindings: hot rows at CACHE_AT, cold rows, tiers u32: [first position that this step demotes, the boundary], then
//           the page of each PAGE_TOKENS positions.

@group(0) @binding(${CACHE_AT}) var<storage, read> hot: array<vec4<${KV_TYPE}>>;
//% if COLD_BITS
@group(0) @binding(${CACHE_AT + 1}) var<storage, read> cold: array<u32>;
//% else
@group(0) @binding(${CACHE_AT + 1}) var<storage, read> cold: array<vec4<${KV_TYPE}>>;
//% endif
@group(0) @binding(${CACHE_AT + 2}) var<storage, read> tiers: array<u32>;

// 4 columns of the keys (part 0) or the values (part 1).
fn quad_at(position: u32, kv_head: u32, part: u32, quad: u32) -> vec4<f32> {
  if (position >= tiers[1]) {
    let row = position % ${RING_CAPACITY}u * NUM_KV_HEADS + kv_head;
    return vec4<f32>(hot[(2u * row + part) * QUADS + quad]);
  }
  let page = tiers[2u + position / ${PAGE_TOKENS}u];
  let row = (page * ${PAGE_TOKENS}u + position % ${PAGE_TOKENS}u) * NUM_KV_HEADS + kv_head;
//% if COLD_BITS
  let first = row * ${1 + HEAD_DIM * COLD_BITS // 16}u;
  let scale = unpack2x16float(cold[first] >> (16u * part)).x;
  let word = cold[first + 1u + part * ${HEAD_DIM * COLD_BITS // 32}u + quad / ${8 // COLD_BITS}u];
//% if COLD_BITS == 8
  let high = vec4<u32>(word) << vec4<u32>(24u, 16u, 8u, 0u);
//% else
  let high = vec4<u32>(word >> (quad % 2u * 16u)) << vec4<u32>(28u, 24u, 20u, 16u);
//% endif
  return scale * vec4<f32>(bitcast<vec4<i32>>(high) >> vec4<u32>(${32 - COLD_BITS}u));
//% else
  return vec4<f32>(cold[(2u * row + part) * QUADS + quad]);
//% endif
}

fn key_at(position: u32, kv_head: u32, quad: u32) -> vec4<f32> {
  return quad_at(position, kv_head, 0u, quad);
}

fn value_at(position: u32, kv_head: u32, quad: u32) -> vec4<f32> {
  return quad_at(position, kv_head, 1u, quad);
}
