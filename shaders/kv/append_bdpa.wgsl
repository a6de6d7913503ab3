// Head norms, rotary embedding of q, and the append of k (not rotated) and v to a bdpa cache: as the basis row of a token
// id that is new, else as the difference from the basis row of its id.
//
// Bindings: heads.wgsl; from CACHE_AT on basis, differences, entries (bdpa.wgsl), where the step's entries are set.
// Grid: (NUM_HEADS + 2 * NUM_KV_HEADS, T): q heads, then k heads, which take their v with them. Rows past state.rows
// leave early.

//% include "kv/heads.wgsl"
//% set CACHE_AT = 8 if QK_NORM else 6

@group(0) @binding(${CACHE_AT}) var<storage, read_write> basis: array<vec2<u32>>;
@group(0) @binding(${CACHE_AT + 1}) var<storage, read_write> differences: array<u32>;
@group(0) @binding(${CACHE_AT + 2}) var<storage, read> entries: array<vec2<u32>>;

const QUADS: u32 = HEAD_DIM / 4u;
const MAX_F16: f32 = 65504.0;

//% include "kv/bdpa.wgsl"

var<workgroup> difference: array<vec4<f32>, QUADS>;
var<workgroup> largest: array<f32, SIZE>;
var<workgroup> source_row: u32;

fn head_quad(quad: u32) -> vec4<f32> {
  let i = 4u * quad;
  return vec4<f32>(head_values[i], head_values[i + 1u], head_values[i + 2u], head_values[i + 3u]);
}

fn to_halves(value: vec4<f32>) -> vec2<u32> {
  let held = clamp(value, vec4<f32>(-MAX_F16), vec4<f32>(MAX_F16));
  return vec2<u32>(pack2x16float(held.xy), pack2x16float(held.zw));
}

// The row before `row` of this step that made a basis row, else `row`.
fn find_source(basis_row: u32, row: u32, index: u32) -> u32 {
  if (index == 0u) { source_row = row; }
  workgroupBarrier();
  for (var i = index; i < row; i += SIZE) {
    if (all(entries[INDEX_AT + state[0] + i] == vec2<u32>(basis_row, NO_SLOT))) { source_row = i; }
  }
  return workgroupUniformLoad(&source_row);
}

// Stores the keys or values of a head as 8-bit integers; returns their scale.
fn store_difference(source: u32, row: u32, kv_head: u32, part: u32, place: vec2<u32>, index: u32) -> f32 {
  let head = NUM_HEADS + part * NUM_KV_HEADS + kv_head;
  load_head(row, head, index);
  for (var quad = index; quad < QUADS; quad += SIZE) { difference[quad] = head_quad(quad); }
  workgroupBarrier();
  // A basis row of this step is being written by another workgroup: what goes into it is made here once more.
  if (source < row) { load_head(source, head, index); }
  var most = vec4<f32>();
  for (var quad = index; quad < QUADS; quad += SIZE) {
    var words: vec2<u32>;
    if (source < row) {
      words = to_halves(head_quad(quad));
    } else {
      words = basis[basis_at(place.x, part, kv_head) + quad];
    }
    difference[quad] -= from_halves(words);
    most = max(most, abs(difference[quad]));
  }
  largest[index] = max(max(most.x, most.y), max(most.z, most.w));
  for (var half = SIZE / 2u; half > 0u; half /= 2u) {
    workgroupBarrier();
    if (index < half) { largest[index] = max(largest[index], largest[index + half]); }
  }
  workgroupBarrier();
  // Integers are of the scale as it is stored.
  let scale = unpack2x16float(pack2x16float(vec2<f32>(min(largest[0] / 127.0, MAX_F16), 0.0))).x;
  let inverse = select(0.0, 1.0 / scale, scale > 0.0);
  for (var quad = index; quad < QUADS; quad += SIZE) {
    let integers = vec4<i32>(clamp(round(difference[quad] * inverse), vec4<f32>(-127.0), vec4<f32>(127.0)));
    let octets = (bitcast<vec4<u32>>(integers) & vec4<u32>(0xffu)) << vec4<u32>(0u, 8u, 16u, 24u);
    differences[difference_at(place.y, kv_head) + 1u + part * QUADS + quad] = octets.x | octets.y | octets.z | octets.w;
  }
  return scale;
}

@compute @workgroup_size(SIZE)
fn main(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) index: u32) {
  let row = workgroup.y;
  let head = workgroup.x;
  if (row >= state[1] || head >= NUM_HEADS + NUM_KV_HEADS) { return; }
  let position = state[0] + row;

  if (head < NUM_HEADS) {
    load_head(row, head, index);
    for (var i = index; i < HEAD_DIM; i += SIZE) {
      q_out[(row * NUM_HEADS + head) * HEAD_DIM + i] = ${X_TYPE}(rotated(position, i));
    }
    return;
  }

  let kv_head = head - NUM_HEADS;
  let entry = entries[INDEX_AT + position];
  let place = placed(entry);
  if (entry.y == NO_SLOT) {
    for (var part = 0u; part < 2u; part++) {
      load_head(row, head + part * NUM_KV_HEADS, index);
      for (var quad = index; quad < QUADS; quad += SIZE) {
        basis[basis_at(place.x, part, kv_head) + quad] = to_halves(head_quad(quad));
      }
      workgroupBarrier();
    }
    return;
  }
  let source = find_source(entry.x, row, index);
  let key_scale = store_difference(source, row, kv_head, 0u, place, index);
  let value_scale = store_difference(source, row, kv_head, 1u, place, index);
  if (index == 0u) {
    differences[difference_at(place.y, kv_head)] = pack2x16float(vec2<f32>(key_scale, value_scale));
  }
}
