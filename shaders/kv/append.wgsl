// Head norms, rotary embedding and the append of k and v to the cache, in one pass over the heads.
//
// Bindings: q, k, v (T, *_STRIDE) ${X_TYPE}, read from column *_FIRST; [q norm, k norm (HEAD_DIM) f32];
//           rope (positions, HALF) vec2 f32 of cos and sin; q out (T, NUM_HEADS * HEAD_DIM) ${X_TYPE}; state u32;
//           the cache's own from CACHE_AT on (WRITE, the file of its layout, gives store_key and store_value).
// Grid: (NUM_HEADS + 2 * NUM_KV_HEADS, T): q heads, then k heads, then v heads. Rows past state.rows leave early.
// INTERLEAVED rotates pairs (2i, 2i + 1), else halves (i, i + HALF); columns from 2 * HALF on pass unrotated.

//% if "f16" in (X_TYPE, KV_TYPE)
enable f16;
//% endif

@group(0) @binding(0) var<storage, read> q: array<${X_TYPE}>;
@group(0) @binding(1) var<storage, read> k: array<${X_TYPE}>;
@group(0) @binding(2) var<storage, read> v: array<${X_TYPE}>;
//% set at = 5 if QK_NORM else 3
//% if QK_NORM
@group(0) @binding(3) var<storage, read> q_norm: array<f32>;
@group(0) @binding(4) var<storage, read> k_norm: array<f32>;
//% endif
@group(0) @binding(${at}) var<storage, read> rope: array<vec2<f32>>;
@group(0) @binding(${at + 1}) var<storage, read_write> q_out: array<${X_TYPE}>;
@group(0) @binding(${at + 2}) var<storage, read> state: array<u32>;

const NUM_HEADS: u32 = ${NUM_HEADS}u;
const NUM_KV_HEADS: u32 = ${NUM_KV_HEADS}u;
const HEAD_DIM: u32 = ${HEAD_DIM}u;
const HALF: u32 = ${HALF}u;
const SIZE: u32 = ${SIZE}u;
//% set CACHE_AT = at + 3
//% include WRITE
var<workgroup> head_values: array<f32, HEAD_DIM>;
//% if QK_NORM
var<workgroup> squares: array<f32, SIZE>;
//% endif

@compute @workgroup_size(SIZE)
fn main(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) index: u32) {
  let row = workgroup.y;
  if (row >= state[1]) { return; }
  let position = state[0] + row;
  let head = workgroup.x;

  if (head >= NUM_HEADS + NUM_KV_HEADS) {
    let kv_head = head - NUM_HEADS - NUM_KV_HEADS;
    for (var i = index; i < HEAD_DIM; i += SIZE) {
      store_value(position, kv_head, i, f32(v[row * ${V_STRIDE}u + ${V_FIRST}u + kv_head * HEAD_DIM + i]));
    }
    return;
  }

  let is_q = head < NUM_HEADS;
  for (var i = index; i < HEAD_DIM; i += SIZE) {
    if (is_q) {
      head_values[i] = f32(q[row * ${Q_STRIDE}u + ${Q_FIRST}u + head * HEAD_DIM + i]);
    } else {
      head_values[i] = f32(k[row * ${K_STRIDE}u + ${K_FIRST}u + (head - NUM_HEADS) * HEAD_DIM + i]);
    }
  }
  workgroupBarrier();
//% if QK_NORM
  var sum = 0.0;
  for (var i = index; i < HEAD_DIM; i += SIZE) { sum += head_values[i] * head_values[i]; }
  squares[index] = sum;
  for (var half = SIZE / 2u; half > 0u; half /= 2u) {
    workgroupBarrier();
    if (index < half) { squares[index] += squares[index + half]; }
  }
  workgroupBarrier();
  let scale = inverseSqrt(squares[0] / f32(HEAD_DIM) + ${QK_NORM_EPS});
  for (var i = index; i < HEAD_DIM; i += SIZE) {
    head_values[i] = head_values[i] * scale * select(k_norm[i], q_norm[i], is_q);
  }
  workgroupBarrier();
//% endif
  for (var i = index; i < HEAD_DIM; i += SIZE) {
    var value = head_values[i];
    if (i < 2u * HALF) {
//% if INTERLEAVED
      let pair = i / 2u;
      let is_first = i % 2u == 0u;
      let other = head_values[i ^ 1u];
//% else
      let pair = i % HALF;
      let is_first = i < HALF;
      let other = head_values[select(i - HALF, i + HALF, is_first)];
//% endif
      let cos_sin = rope[position * HALF + pair];
      value = value * cos_sin.x + select(other, -other, is_first) * cos_sin.y;
    }
    if (is_q) {
      q_out[(row * NUM_HEADS + head) * HEAD_DIM + i] = ${X_TYPE}(value);
    } else {
      store_key(position, head - NUM_HEADS, i, value);
    }
  }
}
