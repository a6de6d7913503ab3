// Many-row matmul: Y = SCALE * (f(X) @ W.T + bias + low_rank @ B.T), with an optional RMS norm of X, gated activation,
// and residual add.
//
// Bindings: planes of W (weights.wgsl); X (T, COLUMNS) ${X_TYPE}; [bias (rows of W) f32];
//           [B of the adapters (rows of W, LORA_RANK) f32]; [norm weight (COLUMNS) f32];
//           [low_rank (T, LORA_RANK) f32]; [residual ${Y_TYPE}]; Y (T, Y_COLUMNS) ${Y_TYPE}, where this part
//           of W fills OUT_ROWS columns from FIRST_ROW on; state u32.
// Grid: (ceil(OUT_ROWS / TILE_COLUMNS), T / TILE_ROWS). Tiles past state.rows leave early.
// A workgroup makes TILE_ROWS x TILE_COLUMNS outputs, each invocation THREAD_ROWS x THREAD_COLUMNS of them, over
// slices of TILE_K columns held in workgroup memory. With GATED, W holds OUT_ROWS gate rows, then as many up rows; bias
// and B of up begin at row UP_FIRST.
// The norm's scale is one factor a row: its sum of squares is gathered on the way and applied at the end.
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
@group(0) @binding(${at.next + 2}) var<storage, read> state: array<u32>;

//% set invocations = (TILE_ROWS // THREAD_ROWS) * (TILE_COLUMNS // THREAD_COLUMNS)
//% set x_loads = TILE_ROWS * TILE_K // 4
const OUT_ROWS: u32 = ${OUT_ROWS}u;
const FIRST_ROW: u32 = ${FIRST_ROW}u;
const Y_COLUMNS: u32 = ${Y_COLUMNS}u;
const INVOCATIONS: u32 = ${invocations}u;
const X_LOADS: u32 = ${x_loads}u;
const QUADS: u32 = ${TILE_K // 4}u;
// One quad of padding a row keeps rows out of each other's memory banks.
const STRIDE: u32 = QUADS + 1u;

var<workgroup> x_tile: array<vec4<f32>, ${TILE_ROWS * (TILE_K // 4 + 1)}>;
var<workgroup> w_tile: array<vec4<f32>, ${TILE_COLUMNS * (TILE_K // 4 + 1)}>;
//% if GATED
var<workgroup> up_tile: array<vec4<f32>, ${TILE_COLUMNS * (TILE_K // 4 + 1)}>;
//% endif
//% if NORM
var<workgroup> squares: array<f32, ${x_loads}>;
//% endif

//% if LORA_RANK
// What the adapters add to an output.
fn adapted(row: u32, out: u32) -> f32 {
  var sum = 0.0;
  for (var r = 0u; r < ${LORA_RANK}u; r++) { sum += low_rank[row * ${LORA_RANK}u + r] * lora_b[out * ${LORA_RANK}u + r]; }
  return sum;
}
//% endif

@compute @workgroup_size(${invocations})
fn main(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) index: u32) {
  let tile_row = workgroup.y * ${TILE_ROWS}u;
  let tile_column = workgroup.x * ${TILE_COLUMNS}u;
  if (tile_row >= state[1]) { return; }
  let thread_row = index / ${TILE_COLUMNS // THREAD_COLUMNS}u;
  let thread_column = index % ${TILE_COLUMNS // THREAD_COLUMNS}u;
  let has_rows = tile_row + thread_row * ${THREAD_ROWS}u < state[1];
  var sums: array<array<f32, ${THREAD_COLUMNS}>, ${THREAD_ROWS}>;
//% if GATED
  var up_sums: array<array<f32, ${THREAD_COLUMNS}>, ${THREAD_ROWS}>;
//% endif
//% if NORM
  var square_sums: array<f32, ${(x_loads + invocations - 1) // invocations}>;
//% endif

  for (var k = 0u; k < COLUMNS; k += ${TILE_K}u) {
//% for load in range((x_loads + invocations - 1) // invocations)
    {
      let at = index + ${load * invocations}u;
      let column = k / 4u + at % QUADS;
      if (at < X_LOADS) {
        var quad = vec4<f32>(0.0);
        if (column < COLUMNS / 4u) { quad = vec4<f32>(x[(tile_row + at / QUADS) * (COLUMNS / 4u) + column]); }
//% if NORM
        square_sums[${load}] += dot(quad, quad);
        if (column < COLUMNS / 4u) { quad *= norm[column]; }
//% endif
        x_tile[(at / QUADS) * STRIDE + at % QUADS] = quad;
      }
    }
//% endfor
    for (var at = index; at < ${TILE_COLUMNS * TILE_K // 8}u; at += INVOCATIONS) {
      let unit = k / 8u + at % (QUADS / 2u);
      let row = min(tile_column + at / (QUADS / 2u), OUT_ROWS - 1u);
      let to = (at / (QUADS / 2u)) * STRIDE + 2u * (at % (QUADS / 2u));
      var w = Unit(vec4<f32>(0.0), vec4<f32>(0.0));
      if (unit < UNITS) { w = weights(row, unit); }
      w_tile[to] = w.first;
      w_tile[to + 1u] = w.second;
//% if GATED
      if (unit < UNITS) { w = weights(row + OUT_ROWS, unit); }
      up_tile[to] = w.first;
      up_tile[to + 1u] = w.second;
//% endif
    }
    workgroupBarrier();
    for (var quad = 0u; quad < QUADS && has_rows; quad++) {
//% for c in range(THREAD_COLUMNS)
      let w${c} = w_tile[(thread_column + ${c * (TILE_COLUMNS // THREAD_COLUMNS)}u) * STRIDE + quad];
//% if GATED
      let up${c} = up_tile[(thread_column + ${c * (TILE_COLUMNS // THREAD_COLUMNS)}u) * STRIDE + quad];
//% endif
//% endfor
//% for r in range(THREAD_ROWS)
      let x${r} = x_tile[(thread_row * ${THREAD_ROWS}u + ${r}u) * STRIDE + quad];
//% for c in range(THREAD_COLUMNS)
      sums[${r}][${c}] += dot(x${r}, w${c});
//% if GATED
      up_sums[${r}][${c}] += dot(x${r}, up${c});
//% endif
//% endfor
//% endfor
    }
    workgroupBarrier();
  }

//% if NORM
//% for load in range((x_loads + invocations - 1) // invocations)
  if (index + ${load * invocations}u < X_LOADS) { squares[index + ${load * invocations}u] = square_sums[${load}]; }
//% endfor
  workgroupBarrier();
//% endif
//% for r in range(THREAD_ROWS)
  {
    let row = thread_row * ${THREAD_ROWS}u + ${r}u;
    var scale = 1.0;
//% if NORM
    var square_sum = 0.0;
    for (var quad = 0u; quad < QUADS; quad++) { square_sum += squares[row * QUADS + quad]; }
    scale = inverseSqrt(square_sum / f32(COLUMNS) + ${NORM_EPS});
//% endif
//% for c in range(THREAD_COLUMNS)
    {
      let column = tile_column + thread_column + ${c * (TILE_COLUMNS // THREAD_COLUMNS)}u;
      if (column < OUT_ROWS) {
        let out = FIRST_ROW + column;
        let at = (tile_row + row) * Y_COLUMNS + out;
        var value = sums[${r}][${c}] * scale;
//% if BIAS
        value += bias[out];
//% endif
//% if LORA_RANK
        value += adapted(tile_row + row, out);
//% endif
//% if GATED
        var up = up_sums[${r}][${c}] * scale;
//% if BIAS
        up += bias[${UP_FIRST}u + out];
//% endif
//% if LORA_RANK
        up += adapted(tile_row + row, ${UP_FIRST}u + out);
//% endif
        value = gated(value, up);
//% endif
//% if SCALE != 1
        value *= ${SCALE};
//% endif
//% if RESIDUAL
        value += f32(residual[at]);
//% endif
        y[at] = ${Y_TYPE}(value);
      }
    }
//% endfor
  }
//% endfor
}
