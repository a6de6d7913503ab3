// The entries of a step's tokens in a bdpa cache: a token id that is new takes the next basis row, any other the
// next difference slot. Rows and slots of n tokens add up to n, so the entry before the step tells both numbers.
//
// Bindings: tokens u32; state u32; entries (bdpa.wgsl); known u32: token id of each basis row (CONTEXT), then the basis
//           row of each token id, which holds only if that row exists and is the id's.
// Grid: one workgroup for up to CHUNK rows.

const SIZE: u32 = ${SIZE}u;
const CHUNK: u32 = ${CHUNK}u;
const CONTEXT: u32 = ${CONTEXT}u;
const INDEX_AT: u32 = ${INDEX_AT}u;
const NO_SLOT: u32 = 0xffffffffu;

@group(0) @binding(0) var<storage, read> tokens: array<u32>;
@group(0) @binding(1) var<storage, read> state: array<u32>;
@group(0) @binding(2) var<storage, read_write> entries: array<vec2<u32>>;
@group(0) @binding(3) var<storage, read_write> known: array<u32>;

var<workgroup> ids: array<u32, CHUNK>;
var<workgroup> is_new: array<u32, CHUNK>;
var<workgroup> new_before: array<u32, CHUNK>;

@compute @workgroup_size(SIZE)
fn main(@builtin(local_invocation_index) index: u32) {
  let position = state[0];
  let rows = state[1];
  var count = 0u;  // basis rows before the step
  if (position > 0u) {
    let last = entries[INDEX_AT + position - 1u];
    count = select(position - 1u - last.y, last.x + 1u, last.y == NO_SLOT);
  }
  for (var i = index; i < rows; i += SIZE) { ids[i] = tokens[i]; }
  workgroupBarrier();

  for (var i = index; i < rows; i += SIZE) {
    let row = known[CONTEXT + ids[i]];
    let held = row < count && known[row] == ids[i];
    is_new[i] = u32(!held && first_of(i) == i);
  }
  // Above, `known` is read, below it is written.
  storageBarrier();
  workgroupBarrier();

  for (var i = index; i < rows; i += SIZE) {
    var before = 0u;
    for (var j = 0u; j < i; j++) { before += is_new[j]; }
    new_before[i] = before;
  }
  workgroupBarrier();

  for (var i = index; i < rows; i += SIZE) {
    let first = first_of(i);
    var row = count + new_before[first];
    if (is_new[first] == 0u) { row = known[CONTEXT + ids[i]]; }
    if (is_new[i] == 1u) {
      entries[INDEX_AT + position + i] = vec2<u32>(row, NO_SLOT);
      known[row] = ids[i];
      known[CONTEXT + ids[i]] = row;
    } else {
      entries[INDEX_AT + position + i] = vec2<u32>(row, position + i - count - new_before[i]);
    }
  }
}

// The first row of the step with the token id of row i.
fn first_of(i: u32) -> u32 {
  var first = 0u;
  while (ids[first] != ids[i]) { first++; }
  return first;
}
