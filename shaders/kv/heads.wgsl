// The heads of a step's q, k and v, normed and rotated: what the shaders that append to a cache share.
//
// Bindings: q, k, v (T, *_STRIDE) ${X_TYPE}, read from column *_FIRST; [q norm, k norm (HEAD_DIM) f32];
//           rope (positions, HALF) vec2 f32 of cos and sin; q out (T, NUM_HEADS * HEAD_DIM) ${X_TYPE}; state
//           (position.wgsl); the including file adds the cache's own from CACHE_AT on.
// Heads are numbered through: NUM_HEADS of q, then NUM_KV_HEADS of k, then as many of v.
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

//% include "kv/position.wgsl"

const NUM_HEADS: u32 = ${NUM_HEADS}u;
const NUM_KV_HEADS: u32 = ${NUM_KV_HEADS}u;
const HEAD_DIM: u32 = ${HEAD_DIM}u;
const HALF: u32 = ${HALF}u;
const SIZE: u32 = ${SIZE}u;

var<workgroup> head_values: array<f32, HEAD_DIM>;
//% if QK_NORM
var<workgroup> squares: array<f32, SIZE>;
//% endif

fn input_at(row: u32, head: u32, column: u32) -> f32 {
  if (head < NUM_HEADS) {
    return f32(q[row * ${Q_STRIDE}u + ${Q_FIRST}u + head * HEAD_DIM + column]);
  }
  if (head < NUM_HEADS + NUM_KV_HEADS) {
    return f32(k[row * ${K_STRIDE}u + ${K_FIRST}u + (head - NUM_HEADS) * HEAD_DIM + column]);
  }
  return f32(v[row * ${V_STRIDE}u + ${V_FIRST}u + (head - NUM_HEADS - NUM_KV_HEADS) * HEAD_DIM + column]);
}

// Brings a head into head_values, that of q or k with its norm. For the whole workgroup; it ends with a barrier.
fn load_head(row: u32, head: u32, index: u32) {
  for (var i = index; i < HEAD_DIM; i += SIZE) { head_values[i] = input_at(row, head, i); }
  workgroupBarrier();
//% if QK_NORM
  if (head >= NUM_HEADS + NUM_KV_HEADS) { return; }
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
    head_values[i] = head_values[i] * scale * select(k_norm[i], q_norm[i], head < NUM_HEADS);
  }
  workgroupBarrier();
//% endif
}

// Column i of the head in head_values, rotated.
fn rotated(position: u32, i: u32) -> f32 {
  let value = head_values[i];
  if (i >= 2u * HALF) { return value; }
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
  return value * cos_sin.x + select(other, -other, is_first) * cos_sin.y;
}
