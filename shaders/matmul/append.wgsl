// What a GEMV of q, k and v does with its outputs: two columns of a head at a time are rotated together, those of q go to
// y, those of k and v to the cache. Heads are numbered through: NUM_HEADS of q, then NUM_KV_HEADS of k, as many of v.
//
// Bindings: rope (positions, HALF) vec2 f32 of cos and sin at APPEND_AT; state u32; then the cache's own, which WRITE, the
//           file of its layout, declares beside store_key and store_value.
// INTERLEAVED rotates pairs (2i, 2i + 1), else halves (i, i + HALF); columns from 2 * HALF on pass unrotated.

@group(0) @binding(${APPEND_AT}) var<storage, read> rope: array<vec2<f32>>;
@group(0) @binding(${APPEND_AT + 1}) var<storage, read> state: array<u32>;

const NUM_HEADS: u32 = ${NUM_HEADS}u;
const NUM_KV_HEADS: u32 = ${NUM_KV_HEADS}u;
const HEAD_DIM: u32 = ${HEAD_DIM}u;
const HALF: u32 = ${HALF}u;

//% set CACHE_AT = APPEND_AT + 2
//% include WRITE

// The two columns within its head.
fn pair_columns(pair: u32) -> vec2<u32> {
  let within = pair % (HEAD_DIM / 2u);
//% if not INTERLEAVED
  if (within < HALF) { return vec2<u32>(within, within + HALF); }
//% endif
  return vec2<u32>(2u * within, 2u * within + 1u);
}

// The two rows of W that make them.
fn pair_rows(pair: u32) -> vec2<u32> {
  return pair / (HEAD_DIM / 2u) * HEAD_DIM + pair_columns(pair);
}

// Rotates the two outputs of a pair where they are of q or k, and puts them where they belong.
fn store_pair(pair: u32, values: vec2<f32>) {
  let position = state[0];
  let head = pair / (HEAD_DIM / 2u);
  let within = pair % (HEAD_DIM / 2u);
  let columns = pair_columns(pair);
  if (head >= NUM_HEADS + NUM_KV_HEADS) {
    store_value(position, head - NUM_HEADS - NUM_KV_HEADS, columns.x, values.x);
    store_value(position, head - NUM_HEADS - NUM_KV_HEADS, columns.y, values.y);
    return;
  }
  var rotated = values;
  if (within < HALF) {
    let cos_sin = rope[position * HALF + within];
    rotated = values * cos_sin.x + vec2<f32>(-values.y, values.x) * cos_sin.y;
  }
  if (head >= NUM_HEADS) {
    store_key(position, head - NUM_HEADS, columns.x, rotated.x);
    store_key(position, head - NUM_HEADS, columns.y, rotated.y);
    return;
  }
  y[head * HEAD_DIM + columns.x] = ${Y_TYPE}(rotated.x);
  y[head * HEAD_DIM + columns.y] = ${Y_TYPE}(rotated.y);
}
