// y = SCALE * a + b, or y = activation(a) * b, elementwise, by the constant OPERATION.
//
// Bindings: a (T, A_STRIDE) ${A_TYPE}, b (T, B_STRIDE) ${B_TYPE}, read from column *_FIRST;
//           y (T, COLUMNS) ${Y_TYPE}; state u32.
// Grid: (ceil(COLUMNS / 64), T); rows past state.rows leave early.

//% if "f16" in (A_TYPE, B_TYPE, Y_TYPE)
enable f16;
//% endif
//% if OPERATION == "activation_gate"
//% include "activation.wgsl"
//% endif

@group(0) @binding(0) var<storage, read> a: array<${A_TYPE}>;
@group(0) @binding(1) var<storage, read> b: array<${B_TYPE}>;
@group(0) @binding(2) var<storage, read_write> y: array<${Y_TYPE}>;
@group(0) @binding(3) var<storage, read> state: array<u32>;

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
  if (id.y >= state[1] || id.x >= ${COLUMNS}u) { return; }
  let left = f32(a[id.y * ${A_STRIDE}u + ${A_FIRST}u + id.x]);
  let right = f32(b[id.y * ${B_STRIDE}u + ${B_FIRST}u + id.x]);
//% if OPERATION == "add"
  y[id.y * ${COLUMNS}u + id.x] = ${Y_TYPE}(${SCALE} * left + right);
//% else
  y[id.y * ${COLUMNS}u + id.x] = ${Y_TYPE}(gated(left, right));
//% endif
}
