// Head norms, rotary embedding and the append of k and v to the cache, in one pass over the heads.
//
// Bindings: heads.wgsl; WRITE, the file of the cache's layout, gives store_key and store_value.
// Grid: (NUM_HEADS + 2 * NUM_KV_HEADS, T). Rows past state.rows leave early.

//% include "kv/heads.wgsl"
//% set CACHE_AT = 8 if QK_NORM else 6
//% include WRITE

@compute @workgroup_size(SIZE)
fn main(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) index: u32) {
  let row = workgroup.y;
  if (row >= state[1]) { return; }
  let position = position_of(row);
//% if BATCH
  sequence = row;
//% endif
  let head = workgroup.x;

  if (head >= NUM_HEADS + NUM_KV_HEADS) {
    for (var i = index; i < HEAD_DIM; i += SIZE) {
      store_value(position, head - NUM_HEADS - NUM_KV_HEADS, i, input_at(row, head, i));
    }
    return;
  }

  load_head(row, head, index);
  for (var i = index; i < HEAD_DIM; i += SIZE) {
    if (head < NUM_HEADS) {
      q_out[(row * NUM_HEADS + head) * HEAD_DIM + i] = ${X_TYPE}(rotated(position, i));
    } else {
      store_key(position, head - NUM_HEADS, i, rotated(position, i));
    }
  }
}
