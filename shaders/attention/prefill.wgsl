// Attention of many rows by tiles of queries and keys in workgroup memory (FlashAttention-2, arXiv:2307.08691).
//
// Bindings: common.wgsl; output (T, NUM_HEADS * HEAD_DIM) ${X_TYPE} at 1.
// Grid: (ceil(T * GROUP_HEADS / QUERIES), NUM_KV_HEADS). Tiles wholly past state.rows leave early.
// The query heads of a KV head are rows of one product: query n of a KV head is row n / GROUP_HEADS,
// head n % GROUP_HEADS. A query has COLUMNS invocations; each takes KEYS scores a tile, and every COLUMNS-th vec4 of
// the output. Keys, then values, use the same memory. With STAGE_QUERIES the queries lie in workgroup memory too,
// else each use reads them from the buffer.

//% set score_type = "f32"
//% include "attention/common.wgsl"

//% set column_quads = (HEAD_DIM // 4 + COLUMNS - 1) // COLUMNS
const QUERIES: u32 = ${QUERIES}u;
const COLUMNS: u32 = ${COLUMNS}u;
const THREADS: u32 = QUERIES * COLUMNS;
const TILE_KEYS: u32 = ${COLUMNS * KEYS}u;
const STRIDE: u32 = QUADS | 1u;  // odd, so that the invocations of a query read from different banks

@group(0) @binding(1) var<storage, read_write> output: array<vec4<${X_TYPE}>>;

//% if STAGE_QUERIES
var<workgroup> query_tile: array<vec4<f32>, QUERIES * STRIDE>;
//% endif
var<workgroup> cache_tile: array<vec4<f32>, TILE_KEYS * STRIDE>;
var<workgroup> weight_tile: array<f32, QUERIES * TILE_KEYS>;
var<workgroup> column_results: array<f32, THREADS>;

@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) index: u32) {
  let kv_head = workgroup.y;
  let first_query = workgroup.x * QUERIES;
  let num_queries = state[1] * GROUP_HEADS;
  if (first_query >= num_queries) { return; }
  let last_query = min(first_query + QUERIES, num_queries) - 1u;
  let end = state[0] + last_query / GROUP_HEADS + 1u;

  let tile_query = index / COLUMNS;
  let column = index % COLUMNS;
  // Queries past the end repeat the last one and are not written.
  let query = min(first_query + tile_query, last_query);
  let row = query / GROUP_HEADS;
  let head = kv_head * GROUP_HEADS + query % GROUP_HEADS;
  let position = state[0] + row;
  let first_key = first_visible(position);

  let begun = begin(head);
  var largest = begun.x;
  var sum = select(0.0, begun.y, column == 0u);  // of this invocation's own keys
  var values: array<vec4<f32>, ${column_quads}>;

//% if STAGE_QUERIES
  for (var quad = column; quad < QUADS; quad += COLUMNS) {
    query_tile[tile_query * STRIDE + quad] = query_at(row, head, quad);
  }
//% endif

  for (var base = first_visible(state[0] + first_query / GROUP_HEADS); base < end; base += TILE_KEYS) {
    // Keys past the end repeat the last: a weight of 0 would not silence a NaN.
    for (var i = index; i < TILE_KEYS * QUADS; i += THREADS) {
      cache_tile[i / QUADS * STRIDE + i % QUADS] = key_at(min(base + i / QUADS, end - 1u), kv_head, i % QUADS);
    }
    workgroupBarrier();

//% for k in range(KEYS)
    var score${k} = 0.0;
//% endfor
    for (var quad = 0u; quad < QUADS; quad++) {
//% if STAGE_QUERIES
      let columns = query_tile[tile_query * STRIDE + quad];
//% else
      let columns = query_at(row, head, quad);
//% endif
//% for k in range(KEYS)
      score${k} += dot(columns, cache_tile[(column + ${k * COLUMNS}u) * STRIDE + quad]);
//% endfor
    }
    var most = LOWEST;
//% for k in range(KEYS)
    let key${k} = base + column + ${k * COLUMNS}u;
    let visible${k} = key${k} >= first_key && key${k} <= position;
    score${k} = select(LOWEST, softcap(score${k}), visible${k});
    most = max(most, score${k});
//% endfor
    column_results[index] = most;
    workgroupBarrier();

    // The keys are used up: the values take their place.
    for (var i = index; i < TILE_KEYS * QUADS; i += THREADS) {
      cache_tile[i / QUADS * STRIDE + i % QUADS] = value_at(min(base + i / QUADS, end - 1u), kv_head, i % QUADS);
    }
    most = largest;
    for (var c = 0u; c < COLUMNS; c++) { most = max(most, column_results[tile_query * COLUMNS + c]); }
    let shrink = exp(largest - most);
    largest = most;
    sum *= shrink;
//% for k in range(KEYS)
    let weight${k} = select(0.0, exp(score${k} - most), visible${k});
    sum += weight${k};
    weight_tile[tile_query * TILE_KEYS + column + ${k * COLUMNS}u] = weight${k};
//% endfor
//% for j in range(column_quads)
    values[${j}] *= shrink;
//% endfor
    workgroupBarrier();

    for (var key = 0u; key < TILE_KEYS; key++) {
      let weight = weight_tile[tile_query * TILE_KEYS + key];
//% for j in range(column_quads)
//% if (j + 1) * COLUMNS > HEAD_DIM // 4
      // The vec4s do not divide among the invocations: the last ones repeat theirs.
      values[${j}] += weight * cache_tile[key * STRIDE + min(column + ${j * COLUMNS}u, QUADS - 1u)];
//% else
      values[${j}] += weight * cache_tile[key * STRIDE + column + ${j * COLUMNS}u];
//% endif
//% endfor
    }
    workgroupBarrier();
  }

  column_results[index] = sum;
  workgroupBarrier();
  if (first_query + tile_query > last_query) { return; }
  var total = 0.0;
  for (var c = 0u; c < COLUMNS; c++) { total += column_results[tile_query * COLUMNS + c]; }
//% for j in range(column_quads)
  if (column + ${j * COLUMNS}u < QUADS) {
    output[row * OUT_QUADS + head * QUADS + column + ${j * COLUMNS}u] = vec4<${X_TYPE}>(values[${j}] / total);
  }
//% endfor
}
