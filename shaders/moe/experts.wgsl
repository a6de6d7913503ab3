// Each row through the experts chosen for it, one row at a time. For each choice, whose expert is e:
// y = x @ W_e.T + bias_e, or activation(gate) * up of two such products; WEIGHTED: the sum of them by their shares.
//
// Bindings: planes of W (weights.wgsl), of experts FIRST_EXPERT .. FIRST_EXPERT + PART_EXPERTS - 1 with OUT_ROWS rows
//           each, with GATED all gates over all ups; x (T, COLUMNS), with WEIGHTED (T, CHOSEN * COLUMNS), ${X_TYPE};
//           routed (T, 2 * CHOSEN) f32 of route.wgsl; [bias (rows of all experts) f32];
//           y (T, CHOSEN * OUT_ROWS), with WEIGHTED (T, OUT_ROWS), ${Y_TYPE}; state u32.
// Grid: (ceil(OUT_ROWS / LANE_GROUPS), CHOSEN, or 1 with WEIGHTED, T); rows past state.rows leave early.
// LANES invocations share a row of W; each reads every LANES-th unit of 8 columns. Accumulates in f32.

//% if "f16" in (X_TYPE, Y_TYPE)
enable f16;
//% endif
//% include "weights.wgsl"
//% if GATED
//% include "activation.wgsl"
//% endif

@group(0) @binding(${PLANES}) var<storage, read> x: array<vec4<${X_TYPE}>>;
@group(0) @binding(${PLANES + 1}) var<storage, read> routed: array<f32>;
//% if BIAS
@group(0) @binding(${PLANES + 2}) var<storage, read> bias: array<f32>;
//% endif
//% set at = PLANES + (3 if BIAS else 2)
@group(0) @binding(${at}) var<storage, read_write> y: array<${Y_TYPE}>;
@group(0) @binding(${at + 1}) var<storage, read> state: array<u32>;

const LANES: u32 = ${LANES}u;
const LANE_GROUPS: u32 = ${LANE_GROUPS}u;
const EXPERTS: u32 = ${EXPERTS}u;
const CHOSEN: u32 = ${CHOSEN}u;
const FIRST_EXPERT: u32 = ${FIRST_EXPERT}u;
const PART_EXPERTS: u32 = ${PART_EXPERTS}u;
const OUT_ROWS: u32 = ${OUT_ROWS}u;

//% include "matmul/reduce.wgsl"

// This lane's share of a row of W times the row of x whose vec4s begin at `first`.
fn lane_product(row: u32, first: u32, lane: u32) -> f32 {
  var sum = 0.0;
  for (var unit = lane; unit < UNITS; unit += LANES) {
    let a = vec4<f32>(x[first + 2u * unit]);
    let b = vec4<f32>(x[first + 2u * unit + 1u]);
    let ab = a + b;
    sum += weights_dot(row, unit, a, b, ab.x + ab.y + ab.z + ab.w);
  }
  return sum;
}

@compute @workgroup_size(${LANES * LANE_GROUPS})
fn main(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) index: u32) {
  let token = workgroup.z;
  if (token >= state[1]) { return; }
  let lane = index % LANES;
  let out = workgroup.x * LANE_GROUPS + index / LANES;
  // Groups past the end repeat the last row and do not write.
  let row = min(out, OUT_ROWS - 1u);
//% if WEIGHTED
  let to = token * OUT_ROWS + out;
  var value = 0.0;
  for (var choice = 0u; choice < CHOSEN; choice++) {
    let expert = u32(routed[token * 2u * CHOSEN + choice]);
    let held = expert - FIRST_EXPERT;  // wraps around for those of parts before this one
    if (held >= PART_EXPERTS) { continue; }
    let share = routed[token * 2u * CHOSEN + CHOSEN + choice];
    value += share * lane_product(held * OUT_ROWS + row, (token * CHOSEN + choice) * (COLUMNS / 4u), lane);
//% if BIAS
    if (lane == 0u) { value += share * bias[expert * OUT_ROWS + row]; }
//% endif
  }
  value = reduce(value, index);
//% if FIRST_EXPERT
  value += f32(y[to]);
//% endif
//% else
  let to = (token * CHOSEN + workgroup.y) * OUT_ROWS + out;
  let expert = u32(routed[token * 2u * CHOSEN + workgroup.y]);
  let held = expert - FIRST_EXPERT;
  if (held >= PART_EXPERTS) { return; }
  let x_first = token * (COLUMNS / 4u);
  var value = reduce(lane_product(held * OUT_ROWS + row, x_first, lane), index);
//% if BIAS
  value += bias[expert * OUT_ROWS + row];
//% endif
//% if GATED
  var up = reduce(lane_product((PART_EXPERTS + held) * OUT_ROWS + row, x_first, lane), index);
//% if BIAS
  up += bias[(EXPERTS + expert) * OUT_ROWS + row];
//% endif
  value = gated(value, up);
//% endif
//% endif
  if (lane == 0u && out < OUT_ROWS) { y[to] = ${Y_TYPE}(value); }
}
