// Embedding lookup: y[row] = table[tokens[row]] * SCALE, for tokens within this part of the table.
//
// Bindings: planes of the table (weights.wgsl); tokens u32 (T); y (T, COLUMNS) ${Y_TYPE}; state u32.
// Grid: T workgroups; rows past state.rows leave early.

//% if Y_TYPE == "f16"
enable f16;
//% endif
//% include "weights.wgsl"

@group(0) @binding(${PLANES}) var<storage, read> tokens: array<u32>;
@group(0) @binding(${PLANES + 1}) var<storage, read_write> y: array<vec4<${Y_TYPE}>>;
@group(0) @binding(${PLANES + 2}) var<storage, read> state: array<u32>;

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) index: u32) {
  let row = workgroup.x;
  if (row >= state[1]) { return; }
  let token = tokens[row];
  if (token < ${FIRST_ROW}u || token >= ${FIRST_ROW + OUT_ROWS}u) { return; }
  for (var unit = index; unit < UNITS; unit += 64u) {
    let w = weights(token - ${FIRST_ROW}u, unit);
    y[(row * UNITS + unit) * 2u] = vec4<${Y_TYPE}>(w.first * ${SCALE});
    y[(row * UNITS + unit) * 2u + 1u] = vec4<${Y_TYPE}>(w.second * ${SCALE});
  }
}
