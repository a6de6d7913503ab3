// Keys and values of a bdpa cache: basis row plus difference, keys then rotated for their position.
//
// Bindings: basis at CACHE_AT, differences, entries (bdpa.wgsl); rope (positions, HALF) vec2 f32 of cos and sin.
// INTERLEAVED rotates pairs (2i, 2i + 1), else halves (i, i + HALF); columns from 2 * HALF on pass unrotated.

@group(0) @binding(${CACHE_AT}) var<storage, read> basis: array<vec2<u32>>;
@group(0) @binding(${CACHE_AT + 1}) var<storage, read> differences: array<u32>;
@group(0) @binding(${CACHE_AT + 2}) var<storage, read> entries: array<vec2<u32>>;
@group(0) @binding(${CACHE_AT + 3}) var<storage, read> rope: array<vec2<f32>>;

//% include "kv/bdpa.wgsl"

const HALF: u32 = ${HALF}u;
const HALF_QUADS: u32 = ${HALF // 4}u;

// 4 columns of the keys (part 0), not rotated, or of the values (part 1).
fn rebuilt(place: vec2<u32>, kv_head: u32, part: u32, quad: u32) -> vec4<f32> {
  let value = from_halves(basis[basis_at(place.x, part, kv_head) + quad]);
  if (place.y == NO_SLOT) { return value; }
  let at = difference_at(place.y, kv_head);
  let scales = unpack2x16float(differences[at]);
  // Shifts up and back extend the sign of each octet.
  let octets = vec4<u32>(differences[at + 1u + part * QUADS + quad]) << vec4<u32>(24u, 16u, 8u, 0u);
  return value + select(scales.x, scales.y, part == 1u) * vec4<f32>(bitcast<vec4<i32>>(octets) >> vec4<u32>(24u));
}

fn key_at(position: u32, kv_head: u32, quad: u32) -> vec4<f32> {
  let place = placed(entries[INDEX_AT + position]);
  let value = rebuilt(place, kv_head, 0u, quad);
//% if INTERLEAVED
  if (quad * 2u >= HALF) { return value; }
  let first = rope[position * HALF + quad * 2u];
  let second = rope[position * HALF + quad * 2u + 1u];
  let other = vec4<f32>(-value.y, value.x, -value.w, value.z);
  return value * vec4<f32>(first.xx, second.xx) + other * vec4<f32>(first.yy, second.yy);
//% else
  if (quad >= 2u * HALF_QUADS) { return value; }
  let is_first = quad < HALF_QUADS;
  let other = rebuilt(place, kv_head, 0u, select(quad - HALF_QUADS, quad + HALF_QUADS, is_first));
  let at = position * HALF + quad % HALF_QUADS * 4u;
//% for i in range(4)
  let turn${i} = rope[at + ${i}u];
//% endfor
  let cosines = vec4<f32>(turn0.x, turn1.x, turn2.x, turn3.x);
  let sines = vec4<f32>(turn0.y, turn1.y, turn2.y, turn3.y);
  return value * cosines + select(other, -other, is_first) * sines;
//% endif
}

fn value_at(position: u32, kv_head: u32, quad: u32) -> vec4<f32> {
  return rebuilt(placed(entries[INDEX_AT + position]), kv_head, 1u, quad);
}
