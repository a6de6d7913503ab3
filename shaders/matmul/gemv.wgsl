// Matmul of few rows: Y = SCALE * (f(X) @ W.T + bias + low_rank @ B.T), with an optional RMS norm of X, gated
// activation, and residual add. Weights are read and decoded once for X_ROWS rows of X.
//
// Bindings: planes of W (units.wgsl); operands.wgsl; with X_ROWS > 1 state u32; with APPEND those of append.wgsl.
// Grid: ceil(OUT_ROWS / (ROWS * LANE_GROUPS / SPLIT)) workgroups folded over x and y; ceil(T / X_ROWS) over z, of which
// those past state.rows leave early.
// LANES invocations, a lane group, share ROWS rows of W, and SPLIT such groups share these again: each lane reads every
// (LANES * SPLIT)-th unit of UNIT columns, UNROLL of them at a time. Groups that share x are in one subgroup, where they
// read it at once. With STAGED, x is first brought into workgroup memory, STAGED columns at a time. How x and a unit are
// multiplied is float_product.wgsl's or, with DECODE "packed", packed_product.wgsl's.
// With GATED, W holds OUT_ROWS gate rows, then as many up rows; bias and B of up begin at row UP_FIRST. REDUCE is
// "subgroup" (shuffles) or "workgroup" (shared memory).
// With APPEND, W makes q, k and v, and two outputs at a time are rotated and stored: Y is q, k and v go to the cache.
// Accumulates in f32.

//% if "f16" in (X_TYPE, Y_TYPE, KV_TYPE)
enable f16;
//% endif
//% set quantised = SCALE_FORM != "none"
//% set groups = [UNIT // GROUP_SIZE, 1] | max if quantised else 1
//% set with_offset = SCALE_FORM in ("scale_min", "super_scale_min")
//% set mantissa = quantised and not TABLE and DECODE == "mantissa"
//% include "matmul/units.wgsl"
//% if GATED
//% include "activation.wgsl"
//% endif

//% set at = namespace(next=PLANES)
//% include "matmul/operands.wgsl"
//% if X_ROWS > 1
@group(0) @binding(${at.next}) var<storage, read> state: array<u32>;
//% endif

//% if APPEND
//% set APPEND_AT = at.next
//% include "matmul/append.wgsl"
//% endif

const LANES: u32 = ${LANES}u;
const ROWS: u32 = ${ROWS}u;
const OUT_ROWS: u32 = ${OUT_ROWS}u;
const FIRST_ROW: u32 = ${FIRST_ROW}u;
const QUADS: u32 = ${COLUMNS // 4}u;
//% set row_groups = LANE_GROUPS // SPLIT
//% set invocations = LANES * LANE_GROUPS
//% set stride = LANES * SPLIT
//% set units = COLUMNS // UNIT
//% set quads = UNIT // 4
//% set ups = ["", "up"] if GATED else [""]
// Rows of W by name: (suffix, row within ROWS, whether of up).
//% set weight_rows = []
//% for up in ups
//% for r in range(ROWS)
//% set _ = weight_rows.append(up ~ r)
//% endfor
//% endfor
//% set sum_names = []
//% for m in range(X_ROWS)
//% for w in weight_rows
//% set _ = sum_names.append("sum" ~ w ~ "_" ~ m)
//% endfor
//% endfor
//% if LORA_RANK
//% for m in range(X_ROWS)
//% for w in weight_rows
//% set _ = sum_names.append("adapted" ~ w ~ "_" ~ m)
//% endfor
//% endfor
//% endif
//% if NORM
//% for m in range(X_ROWS)
//% set _ = sum_names.append("squares_" ~ m)
//% endfor
//% endif
//% include "matmul/reduce.wgsl"

//% if SPLIT > 1
var<workgroup> partial_sums: array<f32, ${LANE_GROUPS * sum_names | length}>;
//% endif
//% set units_a_turn = stride * UNROLL
//% set block = STAGED // UNIT if STAGED else units
//% set turns = (block + units_a_turn - 1) // units_a_turn
//% set whole = block % units_a_turn == 0 and units % block == 0
//% set product = "packed" if DECODE == "packed" else "float"
//% from "matmul/" ~ product ~ "_product.wgsl" import declare, stage, multiply with context
//% if STAGED
${declare()}
//% if NORM
var<workgroup> staged_squares: array<f32, ${X_ROWS * invocations}>;
//% endif
//% endif

@compute @workgroup_size(${invocations})
fn main(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(num_workgroups) count: vec3<u32>,
        @builtin(local_invocation_index) index: u32) {
//% if X_ROWS > 1
  let x_row = workgroup.z * ${X_ROWS}u;
  if (x_row >= state[1]) { return; }
//% else
  let x_row = 0u;
//% endif
//% if TABLE
  fill_levels(index);
//% endif
  let lane = index % LANES;
  let lane_group = index / LANES;
  let part = lane_group / ${row_groups}u;  // of SPLIT
  let stripe = part * LANES + lane;
  let first = ((workgroup.x + workgroup.y * count.x) * ${row_groups}u + lane_group % ${row_groups}u) * ROWS;
//% if APPEND
//% for p in range(ROWS // 2)
  let pair${p} = min(first / 2u + ${p}u, OUT_ROWS / 2u - 1u);
  let row${2 * p} = pair_rows(pair${p}).x;
  let row${2 * p + 1} = pair_rows(pair${p}).y;
//% endfor
//% else
//% for r in range(ROWS)
  let row${r} = min(first + ${r}u, OUT_ROWS - 1u);
//% if GATED
  let rowup${r} = row${r} + OUT_ROWS;
//% endif
//% endfor
//% endif
//% for name in sum_names
  var ${name} = 0.0;
//% endfor
//% if STAGED
  for (var start = 0u; start < UNITS; start += ${block}u) {
    workgroupBarrier();
//% for m in range(X_ROWS)
${stage(m)}
//% endfor
    workgroupBarrier();
//% else
  {
    let start = 0u;
//% endif
  for (var turn = 0u; turn < ${turns}u; turn++) {
    // UNROLL units at a time, without branches, so that their loads are under way together.
//% for u in range(UNROLL)
    let local${u} = (turn * ${UNROLL}u + ${u}u) * ${stride}u + stripe;
//% if whole
    let unit${u} = start + local${u};
//% else
    let has${u} = local${u} < ${block}u && start + local${u} < UNITS;
    let unit${u} = min(start + local${u}, UNITS - 1u);
//% endif
//% for w in weight_rows
    let packed${w}_${u} = load(row${w}, unit${u});
//% endfor
//% endfor
//% for u in range(UNROLL)
${multiply(u)}
//% endfor
  }
  }
//% if STAGED and NORM
  // Each invocation has the squares of what it staged: a lane group adds up those of all.
//% for m in range(X_ROWS)
  staged_squares[${m * invocations}u + index] = squares_${m};
  squares_${m} = 0.0;
//% endfor
  workgroupBarrier();
  for (var at = stripe; at < ${invocations}u; at += ${stride}u) {
//% for m in range(X_ROWS)
    squares_${m} += staged_squares[${m * invocations}u + at];
//% endfor
  }
//% endif
//% if LORA_RANK
  for (var k = stripe; k < ${LORA_RANK}u; k += ${stride}u) {
//% for m in range(X_ROWS)
    let low${m} = low_rank[(x_row + ${m}u) * ${LORA_RANK}u + k];
//% endfor
//% for up in ups
//% for r in range(ROWS)
    let b${up}${r} = lora_b[(${UP_FIRST if up else 0}u + FIRST_ROW + row${r}) * ${LORA_RANK}u + k];
//% for m in range(X_ROWS)
    adapted${up}${r}_${m} += low${m} * b${up}${r};
//% endfor
//% endfor
//% endfor
  }
//% endif
//% for name in sum_names
  ${name} = reduce(${name}, index);
//% endfor
//% if SPLIT > 1
  if (lane == 0u) {
//% for name in sum_names
    partial_sums[${loop.index0 * LANE_GROUPS}u + lane_group] = ${name};
//% endfor
  }
  workgroupBarrier();
  if (part != 0u) { return; }
//% for name in sum_names
//% set place = loop.index0 * LANE_GROUPS
//% for other in range(1, SPLIT)
  ${name} += partial_sums[${place + other * row_groups}u + lane_group];
//% endfor
//% endfor
//% endif
//% if APPEND
  // Each lane finishes pairs of its own.
//% for p in range(ROWS // 2)
  if (lane == ${p}u % LANES && first + ${2 * p}u < OUT_ROWS) {
    var values = vec2<f32>(sum${2 * p}_0, sum${2 * p + 1}_0);
//% if NORM
    values *= inverseSqrt(squares_0 / f32(COLUMNS) + ${NORM_EPS});
//% endif
//% if BIAS
    values += vec2<f32>(bias[row${2 * p}], bias[row${2 * p + 1}]);
//% endif
//% if LORA_RANK
    values += vec2<f32>(adapted${2 * p}_0, adapted${2 * p + 1}_0);
//% endif
    store_pair(pair${p}, values);
  }
//% endfor
//% else
  // All lanes have all sums: each finishes and writes outputs of its own, number o being row o % ROWS of X row o / ROWS.
//% set outputs = ROWS * X_ROWS
  for (var o = lane; o < ${outputs}u; o += LANES) {
    let r = o % ROWS;
    let y_row = x_row + o / ROWS;
    if (first + r >= OUT_ROWS${" || y_row >= state[1]" if X_ROWS > 1 else ""}) { continue; }
    let out = FIRST_ROW + first + r;
    let to = y_row * ${Y_COLUMNS}u + out;
//% for up in ups
    var value${up} = sum${up}0_0;
//% if LORA_RANK
    var adapted${up} = adapted${up}0_0;
//% endif
//% endfor
//% if NORM
    var squares = squares_0;
//% endif
//% for o in range(1, outputs)
    if (o == ${o}u) {
//% for up in ups
      value${up} = sum${up}${o % ROWS}_${o // ROWS};
//% if LORA_RANK
      adapted${up} = adapted${up}${o % ROWS}_${o // ROWS};
//% endif
//% endfor
//% if NORM
      squares = squares_${o // ROWS};
//% endif
    }
//% endfor
//% if NORM
    let scale = inverseSqrt(squares / f32(COLUMNS) + ${NORM_EPS});
//% endif
//% for up in ups
//% if NORM
    value${up} *= scale;
//% endif
//% if BIAS
    value${up} += bias[${UP_FIRST if up else 0}u + out];
//% endif
//% if LORA_RANK
    value${up} += adapted${up};
//% endif
//% endfor
//% if GATED
    value = gated(value, valueup);
//% endif
//% if SCALE != 1
    value *= ${SCALE};
//% endif
//% if RESIDUAL
    value += f32(residual[to]);
//% endif
    y[to] = ${Y_TYPE}(value);
  }
//% endif
}
