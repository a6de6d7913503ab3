// Attention with neither workgroup memory nor subgroups: an invocation makes CHUNK vec4s of one head of one row,
// and reads every visible key for itself (online softmax, arXiv:1805.02867).
//
// Bindings: common.wgsl; output (T, NUM_HEADS * HEAD_DIM) ${X_TYPE} at 1.
// Grid: (ceil(OUT_QUADS / CHUNK / SIZE), T). Rows past state.rows leave early.

//% set score_type = "f32"
//% include "attention/common.wgsl"

const CHUNK: u32 = ${CHUNK}u;
const SIZE: u32 = ${SIZE}u;

@group(0) @binding(1) var<storage, read_write> output: array<vec4<${X_TYPE}>>;

@compute @workgroup_size(SIZE)
fn main(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) index: u32) {
  let row = workgroup.y;
  let quad = (workgroup.x * SIZE + index) * CHUNK;
  if (row >= state[1] || quad >= OUT_QUADS) { return; }
  let head = quad / QUADS;
  let kv_head = head / GROUP_HEADS;
  let position = position_of(row);
//% if BATCH
  sequence = row;
//% endif

  var values: array<vec4<f32>, CHUNK>;
  let begun = begin(head);
  var largest = begun.x;
  var sum = begun.y;
  for (var key = first_visible(position); key <= position; key++) {
    var score = 0.0;
    for (var i = 0u; i < QUADS; i++) { score += dot(query_at(row, head, i), key_at(key, kv_head, i)); }
    score = softcap(score);
    let new_largest = max(largest, score);
    let shrink = exp(largest - new_largest);
    let weight = exp(score - new_largest);
    largest = new_largest;
    sum = sum * shrink + weight;
//% for c in range(CHUNK)
    values[${c}] = values[${c}] * shrink + weight * value_at(key, kv_head, quad % QUADS + ${c}u);
//% endfor
  }
//% for c in range(CHUNK)
  output[row * OUT_QUADS + quad + ${c}u] = vec4<${X_TYPE}>(values[${c}] / sum);
//% endfor
}
