// One-row matmul: y = SCALE * (f(x) @ W.T + bias + low_rank @ B.T), with an optional RMS norm of x, gated activation,
// and residual add.
//
// Bindings: planes of W (weights.wgsl); x (COLUMNS) ${X_TYPE}; [bias (rows of W) f32];
//           [B of the adapters (rows of W, LORA_RANK) f32]; [norm weight (COLUMNS) f32];
//           [low_rank (LORA_RANK) f32]; [residual ${Y_TYPE}]; y ${Y_TYPE}, where this part of W fills OUT_ROWS
//           elements from FIRST_ROW on.
// Grid: ceil(OUT_ROWS / (ROWS * LANE_GROUPS)) workgroups, folded over x and y.
// LANES invocations share ROWS rows of W; each reads every LANES-th unit of 8 columns. With GATED, W holds
// OUT_ROWS gate rows, then as many up rows; bias and B of up begin at row UP_FIRST. REDUCE is "subgroup" (shuffles) or
// "workgroup" (shared memory).
// Accumulates in f32.

//% if "f16" in (X_TYPE, Y_TYPE)
enable f16;
//% endif
//% include "weights.wgsl"
//% if GATED
//% include "activation.wgsl"
//% endif

//% set at = namespace(next=PLANES)
@group(0) @binding(${at.next}) var<storage, read> x: array<vec4<${X_TYPE}>>;
//% if BIAS
//% set at.next = at.next + 1
@group(0) @binding(${at.next}) var<storage, read> bias: array<f32>;
//% endif
//% if LORA_RANK
//% set at.next = at.next + 1
@group(0) @binding(${at.next}) var<storage, read> lora_b: array<f32>;
//% endif
//% if NORM
//% set at.next = at.next + 1
@group(0) @binding(${at.next}) var<storage, read> norm: array<vec4<f32>>;
//% endif
//% if LORA_RANK
//% set at.next = at.next + 1
@group(0) @binding(${at.next}) var<storage, read> low_rank: array<f32>;
//% endif
//% if RESIDUAL
//% set at.next = at.next + 1
@group(0) @binding(${at.next}) var<storage, read> residual: array<${Y_TYPE}>;
//% endif
@group(0) @binding(${at.next + 1}) var<storage, read_write> y: array<${Y_TYPE}>;

const LANES: u32 = ${LANES}u;
const LANE_GROUPS: u32 = ${LANE_GROUPS}u;
const ROWS: u32 = ${ROWS}u;
const OUT_ROWS: u32 = ${OUT_ROWS}u;
const FIRST_ROW: u32 = ${FIRST_ROW}u;
//% set products = ROWS * (2 if GATED else 1)
//% set sums = products * (2 if LORA_RANK else 1) + (1 if NORM else 0)
// Sums a lane keeps: one a row, then one a row of up, as many for the adapters, then the sum of squares.
const SUMS: u32 = ${sums}u;

//% include "matmul/reduce.wgsl"

@compute @workgroup_size(${LANES * LANE_GROUPS})
fn main(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(num_workgroups) count: vec3<u32>,
        @builtin(local_invocation_index) index: u32) {
  let lane = index % LANES;
  let first = ((workgroup.x + workgroup.y * count.x) * LANE_GROUPS + index / LANES) * ROWS;
  var sums: array<f32, SUMS>;
//% set turns = (COLUMNS // 8 + LANES * UNROLL - 1) // (LANES * UNROLL)
//% set whole = turns * LANES * UNROLL == COLUMNS // 8
  // UNROLL units at a time, without branches, so that their loads are under way together.
  for (var turn = 0u; turn < ${turns}u; turn++) {
//% for u in range(UNROLL)
//% if whole
    let unit${u} = (turn * ${UNROLL}u + ${u}u) * LANES + lane;
    var a${u} = vec4<f32>(x[2u * unit${u}]);
    var b${u} = vec4<f32>(x[2u * unit${u} + 1u]);
//% else
    let asked${u} = (turn * ${UNROLL}u + ${u}u) * LANES + lane;
    let unit${u} = min(asked${u}, UNITS - 1u);
    var a${u} = select(vec4<f32>(0.0), vec4<f32>(x[2u * unit${u}]), asked${u} < UNITS);
    var b${u} = select(vec4<f32>(0.0), vec4<f32>(x[2u * unit${u} + 1u]), asked${u} < UNITS);
//% endif
//% endfor
//% if NORM
//% for u in range(UNROLL)
    sums[SUMS - 1u] += dot(a${u}, a${u}) + dot(b${u}, b${u});
    a${u} *= norm[2u * unit${u}];
    b${u} *= norm[2u * unit${u} + 1u];
//% endfor
//% endif
//% for u in range(UNROLL)
    let ab${u} = a${u} + b${u};
    let total${u} = ab${u}.x + ab${u}.y + ab${u}.z + ab${u}.w;
//% for r in range(ROWS)
    sums[${r}] += weights_dot(min(first + ${r}u, OUT_ROWS - 1u), unit${u}, a${u}, b${u}, total${u});
//% if GATED
    sums[${ROWS + r}] += weights_dot(min(first + ${r}u, OUT_ROWS - 1u) + OUT_ROWS, unit${u}, a${u}, b${u}, total${u});
//% endif
//% endfor
//% endfor
  }
//% if LORA_RANK
  for (var k = lane; k < ${LORA_RANK}u; k += LANES) {
    let low = low_rank[k];
//% for r in range(ROWS)
    let row${r} = FIRST_ROW + min(first + ${r}u, OUT_ROWS - 1u);
    sums[${products + r}] += low * lora_b[row${r} * ${LORA_RANK}u + k];
//% if GATED
    sums[${products + ROWS + r}] += low * lora_b[(${UP_FIRST}u + row${r}) * ${LORA_RANK}u + k];
//% endif
//% endfor
  }
//% endif
//% for s in range(sums)
  sums[${s}] = reduce(sums[${s}], index);
//% endfor
//% if NORM
  let scale = inverseSqrt(sums[SUMS - 1u] / f32(COLUMNS) + ${NORM_EPS});
//% else
  let scale = 1.0;
//% endif
  if (lane != 0u) { return; }
//% for r in range(ROWS)
  if (first + ${r}u < OUT_ROWS) {
    let out = FIRST_ROW + first + ${r}u;
    var value = sums[${r}] * scale;
//% if BIAS
    value += bias[out];
//% endif
//% if LORA_RANK
    value += sums[${products + r}];
//% endif
//% if GATED
    var up = sums[${ROWS + r}] * scale;
//% if BIAS
    up += bias[${UP_FIRST}u + out];
//% endif
//% if LORA_RANK
    up += sums[${products + ROWS + r}];
//% endif
    value = gated(value, up);
//% endif
//% if SCALE != 1
    value *= ${SCALE};
//% endif
//% if RESIDUAL
    value += f32(residual[out]);
//% endif
    y[out] = ${Y_TYPE}(value);
  }
//% endfor
}
