// Attention of many rows by tiles of queries and keys in workgroup memory (FlashAttention-2, arXiv:2307.08691).
//
// Bindings: common.wgsl; output (T, NUM_HEADS * HEAD_DIM) ${X_TYPE} at 1.
// Grid: (ceil(T * GROUP_HEADS / TILE_QUERIES), NUM_KV_HEADS). Tiles wholly past state.rows leave early.
// The query heads of a KV head are rows of one product: query n of a KV head is row n / GROUP_HEADS,
// head n % GROUP_HEADS. Invocations form THREAD_ROWS x THREAD_COLUMNS; each takes QUERIES queries, and of these
// KEYS scores a tile and a THREAD_COLUMNS-th of the output columns. Keys, then values, use the same memory.
// With STAGE_QUERIES the queries lie in workgroup memory too, else each use reads them from the buffer.

//% set score_type = "f32"
//% include "attention/common.wgsl"

//% set quads = HEAD_DIM // 4
//% set thread_quads = (quads + THREAD_COLUMNS - 1) // THREAD_COLUMNS
const THREAD_ROWS: u32 = ${THREAD_ROWS}u;
const THREAD_COLUMNS: u32 = ${THREAD_COLUMNS}u;
const THREADS: u32 = THREAD_ROWS * THREAD_COLUMNS;
const TILE_QUERIES: u32 = ${THREAD_ROWS * QUERIES}u;
const TILE_KEYS: u32 = ${THREAD_COLUMNS * KEYS}u;
const STRIDE: u32 = QUADS | 1u;  // odd, so that columns of threads read from different banks

@group(0) @binding(1) var<storage, read_write> output: array<vec4<${X_TYPE}>>;

//% if STAGE_QUERIES
var<workgroup> query_tile: array<vec4<f32>, TILE_QUERIES * STRIDE>;
//% endif
var<workgroup> cache_tile: array<vec4<f32>, TILE_KEYS * STRIDE>;
var<workgroup> weight_tile: array<f32, TILE_QUERIES * TILE_KEYS>;
var<workgroup> row_parts: array<f32, TILE_QUERIES * THREAD_COLUMNS>;

@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) index: u32) {
  let kv_head = workgroup.y;
  let first_query = workgroup.x * TILE_QUERIES;
  let num_queries = state[1] * GROUP_HEADS;
  if (first_query >= num_queries) { return; }
  let thread_row = index / THREAD_COLUMNS;
  let thread_column = index % THREAD_COLUMNS;
  let last_query = min(first_query + TILE_QUERIES, num_queries) - 1u;
  let end = state[0] + last_query / GROUP_HEADS + 1u;

//% for r in range(QUERIES)
  // Queries past the end repeat the last one and are not written.
  let query${r} = min(first_query + thread_row + ${r}u * THREAD_ROWS, last_query);
  let row${r} = query${r} / GROUP_HEADS;
  let head${r} = kv_head * GROUP_HEADS + query${r} % GROUP_HEADS;
  let position${r} = state[0] + row${r};
  var largest${r} = LOWEST;
  var sum${r} = 0.0;  // of this invocation's own keys
//% endfor
  var values: array<vec4<f32>, ${QUERIES * thread_quads}>;

//% if STAGE_QUERIES
  for (var i = index; i < TILE_QUERIES * QUADS; i += THREADS) {
    let query = min(first_query + i / QUADS, last_query);
    let head = kv_head * GROUP_HEADS + query % GROUP_HEADS;
    query_tile[i / QUADS * STRIDE + i % QUADS] = query_at(query / GROUP_HEADS, head, i % QUADS);
  }
//% endif

  for (var base = first_visible(state[0] + first_query / GROUP_HEADS); base < end; base += TILE_KEYS) {
    for (var i = index; i < TILE_KEYS * QUADS; i += THREADS) {
      let key = min(base + i / QUADS, end - 1u);
      cache_tile[i / QUADS * STRIDE + i % QUADS] = key_at(key, kv_head, i % QUADS);
    }
    workgroupBarrier();

    var scores = array<f32, ${QUERIES * KEYS}>();
    for (var quad = 0u; quad < QUADS; quad++) {
//% for k in range(KEYS)
      let key${k} = cache_tile[(thread_column + ${k}u * THREAD_COLUMNS) * STRIDE + quad];
//% endfor
//% for r in range(QUERIES)
//% if STAGE_QUERIES
      let columns${r} = query_tile[(thread_row + ${r}u * THREAD_ROWS) * STRIDE + quad];
//% else
      let columns${r} = query_at(row${r}, head${r}, quad);
//% endif
//% for k in range(KEYS)
      scores[${r * KEYS + k}] += dot(columns${r}, key${k});
//% endfor
//% endfor
    }
//% for k in range(KEYS)
    let at${k} = base + thread_column + ${k}u * THREAD_COLUMNS;
//% endfor
//% for r in range(QUERIES)
    let first${r} = first_visible(position${r});
    var most${r} = LOWEST;
//% for k in range(KEYS)
    let visible${r}_${k} = at${k} >= first${r} && at${k} <= position${r};
    scores[${r * KEYS + k}] = select(LOWEST, softcap(scores[${r * KEYS + k}]), visible${r}_${k});
    most${r} = max(most${r}, scores[${r * KEYS + k}]);
//% endfor
    row_parts[(thread_row + ${r}u * THREAD_ROWS) * THREAD_COLUMNS + thread_column] = most${r};
//% endfor
    workgroupBarrier();

    // The keys are used up: values take their place. A weight of 0 does not silence a NaN, so repeat the last.
    for (var i = index; i < TILE_KEYS * QUADS; i += THREADS) {
      let key = min(base + i / QUADS, end - 1u);
      cache_tile[i / QUADS * STRIDE + i % QUADS] = value_at(key, kv_head, i % QUADS);
    }
//% for r in range(QUERIES)
    var new_largest${r} = largest${r};
    for (var c = 0u; c < THREAD_COLUMNS; c++) {
      new_largest${r} = max(new_largest${r}, row_parts[(thread_row + ${r}u * THREAD_ROWS) * THREAD_COLUMNS + c]);
    }
    let shrink${r} = exp(largest${r} - new_largest${r});
    largest${r} = new_largest${r};
    sum${r} *= shrink${r};
//% for k in range(KEYS)
    let weight${r}_${k} = select(0.0, exp(scores[${r * KEYS + k}] - largest${r}), visible${r}_${k});
    sum${r} += weight${r}_${k};
    weight_tile[(thread_row + ${r}u * THREAD_ROWS) * TILE_KEYS + thread_column + ${k}u * THREAD_COLUMNS] =
        weight${r}_${k};
//% endfor
//% for j in range(thread_quads)
    values[${r * thread_quads + j}] *= shrink${r};
//% endfor
//% endfor
    workgroupBarrier();

    for (var key = 0u; key < TILE_KEYS; key++) {
//% for r in range(QUERIES)
      let weight${r} = weight_tile[(thread_row + ${r}u * THREAD_ROWS) * TILE_KEYS + key];
//% endfor
//% for j in range(thread_quads)
//% if (j + 1) * THREAD_COLUMNS > quads
      // The columns do not divide among the invocations: the last repeat theirs.
      let value${j} = cache_tile[key * STRIDE + min(thread_column + ${j * THREAD_COLUMNS}u, QUADS - 1u)];
//% else
      let value${j} = cache_tile[key * STRIDE + thread_column + ${j * THREAD_COLUMNS}u];
//% endif
//% for r in range(QUERIES)
      values[${r * thread_quads + j}] += weight${r} * value${j};
//% endfor
//% endfor
    }
    workgroupBarrier();
  }

//% for r in range(QUERIES)
  row_parts[(thread_row + ${r}u * THREAD_ROWS) * THREAD_COLUMNS + thread_column] = sum${r};
//% endfor
  workgroupBarrier();
//% for r in range(QUERIES)
  if (first_query + thread_row + ${r}u * THREAD_ROWS <= last_query) {
    var total = 0.0;
    for (var c = 0u; c < THREAD_COLUMNS; c++) {
      total += row_parts[(thread_row + ${r}u * THREAD_ROWS) * THREAD_COLUMNS + c];
    }
//% for j in range(thread_quads)
    if (thread_column + ${j * THREAD_COLUMNS}u < QUADS) {
      output[row${r} * OUT_QUADS + head${r} * QUADS + thread_column + ${j * THREAD_COLUMNS}u] =
          vec4<${X_TYPE}>(values[${r * thread_quads + j}] / total);
    }
//% endfor
  }
//% endfor
}
