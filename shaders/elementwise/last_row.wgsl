// y = the last row of x that this step holds (state.rows - 1).
//
// Bindings: x (T, COLUMNS) ${X_TYPE}; y (COLUMNS) ${X_TYPE}; state u32. Grid: ceil(COLUMNS / 64).

//% if X_TYPE == "f16"
enable f16;
//% endif

@group(0) @binding(0) var<storage, read> x: array<${X_TYPE}>;
@group(0) @binding(1) var<storage, read_write> y: array<${X_TYPE}>;
@group(0) @binding(2) var<storage, read> state: array<u32>;

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
  if (id.x < ${COLUMNS}u) { y[id.x] = x[(state[1] - 1u) * ${COLUMNS}u + id.x]; }
}
