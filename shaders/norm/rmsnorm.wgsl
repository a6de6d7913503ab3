// RMS norm: y = x / sqrt(mean(x^2) + eps) * weight [+ residual], over groups of GROUP columns.
//
// Bindings: x (T, X_STRIDE) ${X_TYPE}, read from column X_FIRST; weight (GROUP) f32; [residual like y];
//           y (T, GROUPS * GROUP) ${Y_TYPE}; state u32.
// Grid: (GROUPS, T); rows past state.rows leave early. Accumulates in f32.

//% if "f16" in (X_TYPE, Y_TYPE)
enable f16;
//% endif

@group(0) @binding(0) var<storage, read> x: array<${X_TYPE}>;
@group(0) @binding(1) var<storage, read> weight: array<f32>;
//% if RESIDUAL
@group(0) @binding(2) var<storage, read> residual: array<${Y_TYPE}>;
//% endif
@group(0) @binding(${3 if RESIDUAL else 2}) var<storage, read_write> y: array<${Y_TYPE}>;
@group(0) @binding(${4 if RESIDUAL else 3}) var<storage, read> state: array<u32>;

const GROUP: u32 = ${GROUP}u;
const SIZE: u32 = 128u;
var<workgroup> squares: array<f32, SIZE>;

@compute @workgroup_size(SIZE)
fn main(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) index: u32) {
  let row = workgroup.y;
  if (row >= state[1]) { return; }
  let from_x = row * ${X_STRIDE}u + ${X_FIRST}u + workgroup.x * GROUP;
  let to = (row * ${GROUPS}u + workgroup.x) * GROUP;
  var sum = 0.0;
  for (var i = index; i < GROUP; i += SIZE) {
    let value = f32(x[from_x + i]);
    sum += value * value;
  }
  squares[index] = sum;
  for (var half = SIZE / 2u; half > 0u; half /= 2u) {
    workgroupBarrier();
    if (index < half) { squares[index] += squares[index + half]; }
  }
  workgroupBarrier();
  let scale = inverseSqrt(squares[0] / f32(GROUP) + ${EPS});
  for (var i = index; i < GROUP; i += SIZE) {
    var value = f32(x[from_x + i]) * scale * weight[i];
//% if RESIDUAL
    value += f32(residual[to + i]);
//% endif
    y[to + i] = ${Y_TYPE}(value);
  }
}
