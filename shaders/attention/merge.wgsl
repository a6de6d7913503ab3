// The second half of split decoding: adds up the SPLITS shares of each head.
//
// Bindings: records of decode.wgsl; output (T, NUM_HEADS * HEAD_DIM) ${X_TYPE}; state u32.
// Grid: (ceil(NUM_HEADS * HEAD_DIM / 4 / SIZE), T). Rows past state.rows leave early. An invocation makes 4 columns.
// AT_ONCE divides SPLITS.

//% if X_TYPE == "f16"
enable f16;
//% endif

const LOWEST: f32 = -1e30;
const SPLITS: u32 = ${SPLITS}u;
const QUADS: u32 = ${HEAD_DIM // 4}u;
const OUT_QUADS: u32 = ${NUM_HEADS * HEAD_DIM // 4}u;

@group(0) @binding(0) var<storage, read> partial: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read_write> output: array<vec4<${X_TYPE}>>;
@group(0) @binding(2) var<storage, read> state: array<u32>;

@compute @workgroup_size(${SIZE})
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
  if (id.y >= state[1] || id.x >= OUT_QUADS) { return; }
  let first = (id.y * OUT_QUADS + id.x) / QUADS * SPLITS * (QUADS + 1u);
  let column = 1u + id.x % QUADS;
  var largest = LOWEST;
  var sum = 0.0;
  var value = vec4<f32>();
  // AT_ONCE shares a turn, asked for together so that their latencies overlap.
  for (var share = 0u; share < SPLITS; share += ${AT_ONCE}u) {
    let record = first + share * (QUADS + 1u);
    var most = largest;
//% for s in range(AT_ONCE)
    let sums${s} = partial[record + ${s}u * (QUADS + 1u)];
    let value${s} = partial[record + ${s}u * (QUADS + 1u) + column];
    most = max(most, sums${s}.x);
//% endfor
    let shrink = exp(largest - most);
    sum *= shrink;
    value *= shrink;
    largest = most;
//% for s in range(AT_ONCE)
    let weight${s} = exp(sums${s}.x - most);
    sum += sums${s}.y * weight${s};
    value += value${s} * weight${s};
//% endfor
  }
  output[id.y * OUT_QUADS + id.x] = vec4<${X_TYPE}>(value / sum);
}
