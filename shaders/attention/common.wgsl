// What every attention kernel that reads the cache shares: shapes, queries, the visible keys, the softcap.
//
// Bindings: q (T, Q_STRIDE) ${X_TYPE}, read from column Q_FIRST, at 0; the kernel's own output at 1;
//           state (position.wgsl) at 2; with SINKS a logit a head, f32; the cache.
// The including file sets `score_type`, the type in which it caps scores.

//% if "f16" in (X_TYPE, KV_TYPE)
enable f16;
//% endif

const NUM_HEADS: u32 = ${NUM_HEADS}u;
const NUM_KV_HEADS: u32 = ${NUM_KV_HEADS}u;
const GROUP_HEADS: u32 = ${NUM_HEADS // NUM_KV_HEADS}u;  // query heads of one KV head
const QUADS: u32 = ${HEAD_DIM // 4}u;                    // vec4s of a head
const OUT_QUADS: u32 = ${NUM_HEADS * HEAD_DIM // 4}u;    // vec4s of an output row
// Stands for minus infinity, which WGSL lets compilers assume away.
const LOWEST: f32 = -1e30;

@group(0) @binding(0) var<storage, read> q: array<vec4<${X_TYPE}>>;
@group(0) @binding(2) var<storage, read> state: array<u32>;
//% if SINKS
@group(0) @binding(3) var<storage, read> sinks: array<f32>;
//% endif
//% include "kv/position.wgsl"
//% set CACHE_AT = 4 if SINKS else 3
//% include READ

// 4 columns of a scaled query.
fn query_at(row: u32, head: u32, quad: u32) -> vec4<f32> {
  return ${SCALE} * vec4<f32>(q[row * ${Q_STRIDE // 4}u + ${Q_FIRST // 4}u + head * QUADS + quad]);
}

// What a head's softmax begins with: its largest score and the sum of its weights. A sink is a score without a value.
fn begin(head: u32) -> vec2<f32> {
//% if SINKS
  return vec2<f32>(sinks[head], 1.0);
//% else
  return vec2<f32>(LOWEST, 0.0);
//% endif
}

// The first key that a query at `position` sees; the last is `position` itself.
fn first_visible(position: u32) -> u32 {
//% if WINDOW
  return max(position, ${WINDOW - 1}u) - ${WINDOW - 1}u;
//% else
  return 0u;
//% endif
}

fn softcap(score: ${score_type}) -> ${score_type} {
//% if SOFTCAP
  // Some drivers' tanh overflows; it is 1 in f32 from 10 on.
  return ${SOFTCAP} * tanh(clamp(score * ${1.0 / SOFTCAP}, ${score_type}(-10.0), ${score_type}(10.0)));
//% else
  return score;
//% endif
}
