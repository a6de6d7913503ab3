// Attention of many rows by tiles of queries and keys in workgroup memory (FlashAttention-2, arXiv:2307.08691).
//
// Bindings: common.wgsl; output (T, NUM_HEADS * HEAD_DIM) ${X_TYPE} at 1.
// Grid: (NUM_KV_HEADS, ceil(T * GROUP_HEADS / QUERIES)). Tiles wholly past state.rows leave early.
// The query heads of a KV head are rows of one product: query n of a KV head is row n / GROUP_HEADS,
// head n % GROUP_HEADS. An invocation has THREAD_QUERIES queries in registers, so that each key and value it reads is
// used as often. COLUMNS invocations share them: each takes KEYS scores of every query a tile, and every COLUMNS-th
// vec4 of the outputs. Keys, then values, use the same memory. With STAGE_QUERIES the queries lie in workgroup memory
// too, else each use reads them from the buffer.

//% set lanes = "" if THREAD_QUERIES == 1 else THREAD_QUERIES
//% set score_type = "vec%s<f32>" % lanes if lanes else "f32"
//% include "attention/common.wgsl"

//% set parts = [".x", ".y", ".z", ".w"][:THREAD_QUERIES] if lanes else [""]
//% set column_quads = (HEAD_DIM // 4 + COLUMNS - 1) // COLUMNS
//% set tile_quads = COLUMNS * KEYS * HEAD_DIM // 4
//% set threads = QUERIES // THREAD_QUERIES * COLUMNS
//% set loads = [4, (tile_quads + threads - 1) // threads] | min
// One for each query of an invocation, here and in what is made of them.
alias Floats = ${score_type};
alias Indices = ${"vec%s<u32>" % lanes if lanes else "u32"};

const QUERIES: u32 = ${QUERIES}u;
const GROUPS: u32 = ${QUERIES // THREAD_QUERIES}u;  // each of COLUMNS invocations; query g + GROUPS * i is of group g
const COLUMNS: u32 = ${COLUMNS}u;
const THREADS: u32 = ${threads}u;
const TILE_KEYS: u32 = ${COLUMNS * KEYS}u;
const TILE_QUADS: u32 = ${tile_quads}u;  // vec4s of its keys
const STRIDE: u32 = QUADS | 1u;  // odd, so that neighbours read from different banks

@group(0) @binding(1) var<storage, read_write> output: array<vec4<${X_TYPE}>>;

//% if STAGE_QUERIES
var<workgroup> query_tile: array<vec4<f32>, QUERIES * STRIDE>;
//% endif
var<workgroup> cache_tile: array<vec4<f32>, TILE_KEYS * STRIDE>;
var<workgroup> weight_tile: array<Floats, TILE_KEYS * GROUPS>;
var<workgroup> column_results: array<Floats, THREADS>;

// Fills cache_tile with keys or values, several reads under way at a time.
// Keys past the end repeat the last: a weight of 0 would not silence a NaN.
//% macro fill_tile(read)
    for (var i = index; i < TILE_QUADS; i += ${loads}u * THREADS) {
//% for n in range(loads)
      let i${n} = i + ${n}u * THREADS;
      let quad${n} = ${read}(min(base + i${n} / QUADS, end - 1u), kv_head, i${n} % QUADS);
//% endfor
//% for n in range(loads)
//% if tile_quads % (loads * threads)
      if (i${n} < TILE_QUADS) { cache_tile[i${n} / QUADS * STRIDE + i${n} % QUADS] = quad${n}; }
//% else
      cache_tile[i${n} / QUADS * STRIDE + i${n} % QUADS] = quad${n};
//% endif
//% endfor
    }
//% endmacro

@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) index: u32) {
  let kv_head = workgroup.x;
  let num_queries = state[1] * GROUP_HEADS;
  if (workgroup.y * QUERIES >= num_queries) { return; }
  // The last queries see the most keys: they begin first, so that no long tile is left at the end.
  let first_query = ((num_queries - 1u) / QUERIES - workgroup.y) * QUERIES;
  let last_query = min(first_query + QUERIES, num_queries) - 1u;
  let end = state[0] + last_query / GROUP_HEADS + 1u;

  let group = index / COLUMNS;
  let column = index % COLUMNS;
  let tile_queries = group + Indices(${range(THREAD_QUERIES) | map("string") | join("u, ")}u) * GROUPS;
  // Queries past the end repeat the last one and are not written.
  let queries = min(first_query + tile_queries, Indices(last_query));
  let rows = queries / GROUP_HEADS;
  let heads = kv_head * GROUP_HEADS + queries % GROUP_HEADS;
  let positions = state[0] + rows;

  var first_keys: Indices;
  var largest: Floats;
  var sums: Floats;  // of the weights of this invocation's own keys
//% for q in range(THREAD_QUERIES)
  first_keys${parts[q]} = first_visible(positions${parts[q]});
  largest${parts[q]} = begin(heads${parts[q]}).x;
  sums${parts[q]} = select(0.0, begin(heads${parts[q]}).y, column == 0u);
//% for j in range(column_quads)
  var values${q}_${j} = vec4<f32>();
//% endfor
//% endfor

//% if STAGE_QUERIES
  for (var quad = column; quad < QUADS; quad += COLUMNS) {
//% for part in parts
    query_tile[tile_queries${part} * STRIDE + quad] = query_at(rows${part}, heads${part}, quad);
//% endfor
  }
//% endif

  for (var base = first_visible(state[0] + first_query / GROUP_HEADS); base < end; base += TILE_KEYS) {
${fill_tile("key_at")}    workgroupBarrier();

//% for k in range(KEYS)
    var scores${k} = Floats();
//% endfor
    for (var quad = 0u; quad < QUADS; quad++) {
//% for q in range(THREAD_QUERIES)
//% if STAGE_QUERIES
      let query${q} = query_tile[tile_queries${parts[q]} * STRIDE + quad];
//% else
      let query${q} = query_at(rows${parts[q]}, heads${parts[q]}, quad);
//% endif
//% endfor
//% for k in range(KEYS)
      let key${k} = cache_tile[(column + ${k * COLUMNS}u) * STRIDE + quad];
//% endfor
//% for c in "xyzw"
//% for k in range(KEYS)
//% for q in range(THREAD_QUERIES)
      scores${k}${parts[q]} = fma(query${q}.${c}, key${k}.${c}, scores${k}${parts[q]});
//% endfor
//% endfor
//% endfor
    }
    var most = Floats(LOWEST);
//% for k in range(KEYS)
    let position${k} = Indices(base + column + ${k * COLUMNS}u);
    let visible${k} = (position${k} >= first_keys) & (position${k} <= positions);
    scores${k} = select(Floats(LOWEST), softcap(scores${k}), visible${k});
    most = max(most, scores${k});
//% endfor
    column_results[index] = most;
    workgroupBarrier();

    // The keys are used up: the values take their place.
${fill_tile("value_at")}    most = largest;
    for (var c = 0u; c < COLUMNS; c++) { most = max(most, column_results[group * COLUMNS + c]); }
    let shrink = exp(largest - most);
    largest = most;
    sums *= shrink;
//% for k in range(KEYS)
    let weights${k} = select(Floats(), exp(scores${k} - most), visible${k});
    sums += weights${k};
    weight_tile[(column + ${k * COLUMNS}u) * GROUPS + group] = weights${k};
//% endfor
//% for q in range(THREAD_QUERIES)
//% for j in range(column_quads)
    values${q}_${j} *= shrink${parts[q]};
//% endfor
//% endfor
    workgroupBarrier();

    for (var key = 0u; key < TILE_KEYS; key++) {
      let weights = weight_tile[key * GROUPS + group];
//% for j in range(column_quads)
//% if (j + 1) * COLUMNS > HEAD_DIM // 4
      // The vec4s do not divide among the invocations: the last ones repeat theirs.
      let value${j} = cache_tile[key * STRIDE + min(column + ${j * COLUMNS}u, QUADS - 1u)];
//% else
      let value${j} = cache_tile[key * STRIDE + column + ${j * COLUMNS}u];
//% endif
//% for q in range(THREAD_QUERIES)
      values${q}_${j} += weights${parts[q]} * value${j};
//% endfor
//% endfor
    }
    workgroupBarrier();
  }

  column_results[index] = sums;
  workgroupBarrier();
  var totals = Floats();
  for (var c = 0u; c < COLUMNS; c++) { totals += column_results[group * COLUMNS + c]; }
//% for q in range(THREAD_QUERIES)
  if (first_query + tile_queries${parts[q]} <= last_query) {
    let first_quad = rows${parts[q]} * OUT_QUADS + heads${parts[q]} * QUADS;
//% for j in range(column_quads)
    if (column + ${j * COLUMNS}u < QUADS) {
      output[first_quad + column + ${j * COLUMNS}u] = vec4<${X_TYPE}>(values${q}_${j} / totals${parts[q]});
    }
//% endfor
  }
//% endfor
}
