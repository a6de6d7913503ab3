// Attention of single rows: a workgroup takes HEADS query heads of one KV head over one of SPLITS shares of the
// visible keys (online softmax, arXiv:1805.02867; shares: flash decoding, arXiv:2311.01282).
//
// Bindings: common.wgsl; output at 1: with one share (T, NUM_HEADS * HEAD_DIM) ${X_TYPE}, else a record of
//           1 + QUADS vec4<f32> a row, head and share: (largest score, sum of weights, 0, 0), then the weighted values.
// Grid: (NUM_HEADS / HEADS, SPLITS, T). Rows past state.rows leave early.
// LANES invocations share a key, each with LANE_QUADS vec4s of it; a lane group takes 4 keys at a time.

//% set score_type = "vec4<f32>"
//% include "attention/common.wgsl"

const HEADS: u32 = ${HEADS}u;
const SPLITS: u32 = ${SPLITS}u;
const LANES: u32 = ${LANES}u;
const LANE_QUADS: u32 = ${HEAD_DIM // 4 // LANES}u;
const LANE_GROUPS: u32 = ${LANE_GROUPS}u;
const THREADS: u32 = LANES * LANE_GROUPS;
//% set quads = HEAD_DIM // 4 // LANES

//% if SPLITS > 1
@group(0) @binding(1) var<storage, read_write> partial: array<vec4<f32>>;
//% else
@group(0) @binding(1) var<storage, read_write> output: array<vec4<${X_TYPE}>>;
//% endif

// What each lane group found.
var<workgroup> group_largest: array<f32, HEADS * LANE_GROUPS>;
var<workgroup> group_total: array<f32, HEADS * LANE_GROUPS>;
var<workgroup> group_values: array<vec4<f32>, LANE_GROUPS * HEADS * QUADS>;

@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) index: u32) {
  let row = workgroup.z;
  if (row >= state[1]) { return; }
  let lane = index % LANES;
  let group = index / LANES;
  let first_head = workgroup.x * HEADS;
  let kv_head = first_head / GROUP_HEADS;
  let position = position_of(row);
//% if BATCH
  sequence = row;
//% endif
  let start = first_visible(position);
  let share = (position + SPLITS - start) / SPLITS;  // ceil(visible / SPLITS)
  let first = start + workgroup.y * share;
  let end = min(first + share, position + 1u);

  var queries: array<vec4<f32>, ${HEADS * quads}>;
  var values: array<vec4<f32>, ${HEADS * quads}>;
  var largest: array<f32, HEADS>;
  var total: array<f32, HEADS>;
//% for h in range(HEADS)
  largest[${h}] = LOWEST;
  if (group == 0u && workgroup.y == 0u) {
    let begun = begin(first_head + ${h}u);
    largest[${h}] = begun.x;
    total[${h}] = begun.y;
  }
//% for j in range(quads)
  queries[${h * quads + j}] = query_at(row, first_head + ${h}u, lane + ${j * LANES}u);
//% endfor
//% endfor

  // The same number of turns for all lanes: shuffles need their partners awake.
  for (var base = first; base < end; base += 4u * LANE_GROUPS) {
    let keys = base + group + LANE_GROUPS * vec4<u32>(0u, 1u, 2u, 3u);
    let visible = keys < vec4<u32>(end);
    let at = min(keys, vec4<u32>(end - 1u));
    // Keys and values are asked for together, so that their latencies overlap.
//% for j in range(quads)
//% for u in range(4)
    let key${j}_${u} = key_at(at[${u}], kv_head, lane + ${j * LANES}u);
//% endfor
//% endfor
//% for j in range(quads)
//% for u in range(4)
    let value${j}_${u} = value_at(at[${u}], kv_head, lane + ${j * LANES}u);
//% endfor
//% endfor
//% for h in range(HEADS)
    {
      var score = vec4<f32>();
//% for j in range(quads)
      let query${j} = queries[${h * quads + j}];
      score += vec4<f32>(dot(query${j}, key${j}_0), dot(query${j}, key${j}_1),
                         dot(query${j}, key${j}_2), dot(query${j}, key${j}_3));
//% endfor
      for (var offset = 1u; offset < LANES; offset *= 2u) { score += subgroupShuffleXor(score, offset); }
      score = select(vec4<f32>(LOWEST), softcap(score), visible);
      let most = max(largest[${h}], max(max(score.x, score.y), max(score.z, score.w)));
      let weight = select(vec4<f32>(), exp(score - most), visible);
      let shrink = exp(largest[${h}] - most);
      largest[${h}] = most;
      total[${h}] = total[${h}] * shrink + dot(weight, vec4<f32>(1.0));
//% for j in range(quads)
      values[${h * quads + j}] = values[${h * quads + j}] * shrink + weight.x * value${j}_0 + weight.y * value${j}_1
          + weight.z * value${j}_2 + weight.w * value${j}_3;
//% endfor
    }
//% endfor
  }

  // The lane groups' results, then one sum for each head and vec4.
//% for h in range(HEADS)
  if (lane == 0u) {
    group_largest[${h}u * LANE_GROUPS + group] = largest[${h}];
    group_total[${h}u * LANE_GROUPS + group] = total[${h}];
  }
//% for j in range(quads)
  group_values[(group * HEADS + ${h}u) * QUADS + lane + ${j * LANES}u] = values[${h * quads + j}];
//% endfor
//% endfor
  workgroupBarrier();
  for (var i = index; i < HEADS * QUADS; i += THREADS) {
    let h = i / QUADS;
    var most = LOWEST;
    for (var g = 0u; g < LANE_GROUPS; g++) { most = max(most, group_largest[h * LANE_GROUPS + g]); }
    var sum = 0.0;
    var value = vec4<f32>();
    for (var g = 0u; g < LANE_GROUPS; g++) {
      let shrink = exp(group_largest[h * LANE_GROUPS + g] - most);
      sum += group_total[h * LANE_GROUPS + g] * shrink;
      value += group_values[g * HEADS * QUADS + i] * shrink;
    }
//% if SPLITS > 1
    let record = ((row * NUM_HEADS + first_head + h) * SPLITS + workgroup.y) * (QUADS + 1u);
    if (i % QUADS == 0u) { partial[record] = vec4<f32>(most, sum, 0.0, 0.0); }
    partial[record + 1u + i % QUADS] = value;
//% else
    output[row * OUT_QUADS + first_head * QUADS + i] = vec4<${X_TYPE}>(value / sum);
//% endif
  }
}
