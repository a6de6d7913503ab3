// The second half of split decoding: adds up the SPLITS shares of each head.
//
// Bindings: records of decode.wgsl; output (NUM_HEADS * HEAD_DIM) ${X_TYPE}; state u32.
// Grid: ceil(NUM_HEADS * HEAD_DIM / 4 / SIZE). An invocation makes 4 columns.

//% if X_TYPE == "f16"
enable f16;
//% endif

const SPLITS: u32 = ${SPLITS}u;
const QUADS: u32 = ${HEAD_DIM // 4}u;
const OUT_QUADS: u32 = ${NUM_HEADS * HEAD_DIM // 4}u;

@group(0) @binding(0) var<storage, read> partial: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read_write> output: array<vec4<${X_TYPE}>>;
@group(0) @binding(2) var<storage, read> state: array<u32>;

@compute @workgroup_size(${SIZE})
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
  if (state[1] == 0u || id.x >= OUT_QUADS) { return; }
  let first = id.x / QUADS * SPLITS * (QUADS + 1u);
  let column = 1u + id.x % QUADS;
  var most = partial[first].x;
  for (var s = 1u; s < SPLITS; s++) { most = max(most, partial[first + s * (QUADS + 1u)].x); }
  var sum = 0.0;
  var value = vec4<f32>();
  for (var s = 0u; s < SPLITS; s++) {
    let record = first + s * (QUADS + 1u);
    let shrink = exp(partial[record].x - most);
    sum += partial[record].y * shrink;
    value += partial[record + column] * shrink;
  }
  output[id.x] = vec4<${X_TYPE}>(value / sum);
}
