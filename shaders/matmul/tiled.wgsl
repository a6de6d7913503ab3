// Many-row matmul: Y = SCALE * (f(X) @ W.T + bias + low_rank @ B.T), with an optional RMS norm of X, gated activation,
// and residual add.
//
// Bindings: planes of W (weights.wgsl); operands.wgsl; state u32.
// Grid: (ceil(OUT_ROWS / TILE_COLUMNS), T / TILE_ROWS). Tiles past state.rows leave early.
// A workgroup makes TILE_ROWS x TILE_COLUMNS outputs, each invocation THREAD_ROWS x THREAD_COLUMNS of them, over
// slices of TILE_K columns held in workgroup memory; with BUFFERS 2 the next slice is asked for before one is used.
// With GATED, W holds OUT_ROWS gate rows, then as many up rows; bias and B of up begin at row UP_FIRST.
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
//% include "matmul/operands.wgsl"
@group(0) @binding(${at.next}) var<storage, read> state: array<u32>;

//% set invocations = (TILE_ROWS // THREAD_ROWS) * (TILE_COLUMNS // THREAD_COLUMNS)
//% set x_quads = TILE_ROWS * TILE_K // 4
//% set w_units = TILE_COLUMNS * TILE_K // 8
//% set x_loads = (x_quads + invocations - 1) // invocations
//% set w_loads = (w_units + invocations - 1) // invocations
//% set ups = ["", "up"] if GATED else [""]
const OUT_ROWS: u32 = ${OUT_ROWS}u;
const FIRST_ROW: u32 = ${FIRST_ROW}u;
const Y_COLUMNS: u32 = ${Y_COLUMNS}u;
const QUADS: u32 = ${TILE_K // 4}u;
// One quad of padding a row keeps rows out of each other's memory banks.
const STRIDE: u32 = QUADS + 1u;
const X_SIZE: u32 = ${TILE_ROWS * (TILE_K // 4 + 1)}u;
const W_SIZE: u32 = ${TILE_COLUMNS * (TILE_K // 4 + 1)}u;

var<workgroup> x_tile: array<vec4<f32>, ${BUFFERS * TILE_ROWS * (TILE_K // 4 + 1)}>;
//% for up in ups
var<workgroup> w${up}_tile: array<vec4<f32>, ${BUFFERS * TILE_COLUMNS * (TILE_K // 4 + 1)}>;
//% endfor
//% if NORM
var<workgroup> squares: array<f32, ${x_quads}>;
//% endif

//% if LORA_RANK
// What the adapters add to an output.
fn adapted(row: u32, out: u32) -> f32 {
  var sum = 0.0;
  for (var r = 0u; r < ${LORA_RANK}u; r++) { sum += low_rank[row * ${LORA_RANK}u + r] * lora_b[out * ${LORA_RANK}u + r]; }
  return sum;
}
//% endif

// What an invocation brings of the slice at column k.
//% macro fetch()
//% for load in range(x_loads)
    var x_next${load} = vec4<f32>(0.0);
    {
      let at = index + ${load * invocations}u;
      let column = k / 4u + at % QUADS;
      if (column < COLUMNS / 4u${" && at < %du" % x_quads if x_loads * invocations > x_quads else ""}) {
        x_next${load} = vec4<f32>(x[(tile_row + at / QUADS) * (COLUMNS / 4u) + column]);
//% if NORM
        square_sum${load} += dot(x_next${load}, x_next${load});
        x_next${load} *= norm[column];
//% endif
      }
    }
//% endfor
//% for load in range(w_loads)
//% for up in ups
    var w${up}_next${load} = Unit(vec4<f32>(0.0), vec4<f32>(0.0));
//% endfor
    {
      let at = index + ${load * invocations}u;
      let unit = k / 8u + at % (QUADS / 2u);
      let row = min(tile_column + at / (QUADS / 2u), OUT_ROWS - 1u);
      if (unit < UNITS${" && at < %du" % w_units if w_loads * invocations > w_units else ""}) {
//% for up in ups
        w${up}_next${load} = weights(row${" + OUT_ROWS" if up else ""}, unit);
//% endfor
      }
    }
//% endfor
//% endmacro
//% macro put(buffer)
//% for load in range(x_loads)
    {
      let at = index + ${load * invocations}u;
//% if x_loads * invocations > x_quads
      if (at < ${x_quads}u)
//% endif
      { x_tile[${buffer} * X_SIZE + (at / QUADS) * STRIDE + at % QUADS] = x_next${load}; }
    }
//% endfor
//% for load in range(w_loads)
    {
      let at = index + ${load * invocations}u;
      let to = ${buffer} * W_SIZE + (at / (QUADS / 2u)) * STRIDE + 2u * (at % (QUADS / 2u));
//% if w_loads * invocations > w_units
      if (at < ${w_units}u)
//% endif
      {
//% for up in ups
        w${up}_tile[to] = w${up}_next${load}.first;
        w${up}_tile[to + 1u] = w${up}_next${load}.second;
//% endfor
      }
    }
//% endfor
//% endmacro
// Written out, so that what the next quads need is read while these are multiplied.
//% macro multiply(buffer)
    if (has_rows) {
//% for quad in range(TILE_K // 4)
      {
//% for up in ups
//% for c in range(THREAD_COLUMNS)
        let w${up}${c} = w${up}_tile[${buffer} * W_SIZE + (thread_column + ${c * (TILE_COLUMNS // THREAD_COLUMNS)}u) * STRIDE + ${quad}u];
//% endfor
//% endfor
//% for r in range(THREAD_ROWS)
        let x${r} = x_tile[${buffer} * X_SIZE + (thread_row * ${THREAD_ROWS}u + ${r}u) * STRIDE + ${quad}u];
//% for part in "xyzw"
//% for up in ups
//% for c in range(THREAD_COLUMNS)
        sum${up}${r}_${c} = fma(x${r}.${part}, w${up}${c}.${part}, sum${up}${r}_${c});
//% endfor
//% endfor
//% endfor
//% endfor
      }
//% endfor
    }
//% endmacro
@compute @workgroup_size(${invocations})
fn main(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) index: u32) {
  let tile_row = workgroup.y * ${TILE_ROWS}u;
  let tile_column = workgroup.x * ${TILE_COLUMNS}u;
  if (tile_row >= state[1]) { return; }
  let thread_row = index / ${TILE_COLUMNS // THREAD_COLUMNS}u;
  let thread_column = index % ${TILE_COLUMNS // THREAD_COLUMNS}u;
  let has_rows = tile_row + thread_row * ${THREAD_ROWS}u < state[1];
//% for up in ups
//% for r in range(THREAD_ROWS)
//% for c in range(THREAD_COLUMNS)
  var sum${up}${r}_${c} = 0.0;
//% endfor
//% endfor
//% endfor
//% for load in range(x_loads) if NORM
  var square_sum${load} = 0.0;
//% endfor

//% if BUFFERS == 2
  {
    let k = 0u;
${fetch()}
${put("0u")}
  }
  workgroupBarrier();
  var buffer = 0u;
  for (var k = ${TILE_K}u; k < ${(COLUMNS + TILE_K - 1) // TILE_K * TILE_K + TILE_K}u; k += ${TILE_K}u) {
${fetch()}
${multiply("buffer")}
${put("(1u - buffer)")}
    workgroupBarrier();
    buffer = 1u - buffer;
  }
//% else
  for (var k = 0u; k < COLUMNS; k += ${TILE_K}u) {
${fetch()}
    workgroupBarrier();
${put("0u")}
    workgroupBarrier();
${multiply("0u")}
  }
//% endif

//% if NORM
//% for load in range(x_loads)
  if (index + ${load * invocations}u < ${x_quads}u) { squares[index + ${load * invocations}u] = square_sum${load}; }
//% endfor
  workgroupBarrier();
//% endif
//% for r in range(THREAD_ROWS)
  {
    let row = thread_row * ${THREAD_ROWS}u + ${r}u;
//% if NORM
    var square_sum = 0.0;
    for (var quad = 0u; quad < QUADS; quad++) { square_sum += squares[row * QUADS + quad]; }
    let scale = inverseSqrt(square_sum / f32(COLUMNS) + ${NORM_EPS});
//% endif
//% for c in range(THREAD_COLUMNS)
    {
      let column = tile_column + thread_column + ${c * (TILE_COLUMNS // THREAD_COLUMNS)}u;
      if (column < OUT_ROWS && tile_row + row < state[1]) {
        let out = FIRST_ROW + column;
        let at = (tile_row + row) * Y_COLUMNS + out;
//% for up in ups
        var value${up} = sum${up}${r}_${c}${" * scale" if NORM else ""};
//% if BIAS
        value${up} += bias[${UP_FIRST if up else 0}u + out];
//% endif
//% if LORA_RANK
        value${up} += adapted(tile_row + row, ${UP_FIRST if up else 0}u + out);
//% endif
//% endfor
//% if GATED
        value = gated(value, valueup);
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
