// Where a bdpa cache keeps what: for the shaders that read and write it.
//
// basis (pages, PAGE_TOKENS, K and V, NUM_KV_HEADS, HEAD_DIM) f16, 4 of them a vec2<u32>: the first occurrence of each
// token id. differences (pages, PAGE_TOKENS, NUM_KV_HEADS, 1 + 2 * QUADS) u32: two f16 scales (keys in the low half), the
// keys' 8-bit integers, the values' integers. entries vec2<u32>: (page of basis, page of differences) by number of
// the page in the sequence; from INDEX_AT on, for each position, its basis row and its difference slot or NO_SLOT.
// The including file declares them, NUM_KV_HEADS and QUADS.

const INDEX_AT: u32 = ${INDEX_AT}u;
const PAGE_TOKENS: u32 = ${PAGE_TOKENS}u;
const NO_SLOT: u32 = 0xffffffffu;

// The places in basis and differences of an entry's row and slot.
fn placed(entry: vec2<u32>) -> vec2<u32> {
  let row = entries[entry.x / PAGE_TOKENS].x * PAGE_TOKENS + entry.x % PAGE_TOKENS;
  if (entry.y == NO_SLOT) { return vec2<u32>(row, NO_SLOT); }
  return vec2<u32>(row, entries[entry.y / PAGE_TOKENS].y * PAGE_TOKENS + entry.y % PAGE_TOKENS);
}

// The first vec2 of the keys (part 0) or values (part 1) of a head in the basis.
fn basis_at(row: u32, part: u32, kv_head: u32) -> u32 {
  return ((row * 2u + part) * NUM_KV_HEADS + kv_head) * QUADS;
}

// The word of a head's scales in the differences; its integers follow.
fn difference_at(slot: u32, kv_head: u32) -> u32 {
  return (slot * NUM_KV_HEADS + kv_head) * (1u + 2u * QUADS);
}

fn from_halves(words: vec2<u32>) -> vec4<f32> {
  return vec4<f32>(unpack2x16float(words.x), unpack2x16float(words.y));
}
