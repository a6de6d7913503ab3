// Chooses CHOSEN of EXPERTS experts for each row: those with the largest logits, of equal ones the first.
//
// Bindings: logits (T, EXPERTS) f32; routed (T, 2 * CHOSEN) f32: the experts' numbers, largest logit first, then their
//           shares, a softmax over the chosen experts with NORMALISED, else over all; state u32.
// Grid: T; rows past state.rows leave early. An invocation keeps every SIZE-th logit of its row.

const EXPERTS: u32 = ${EXPERTS}u;
const CHOSEN: u32 = ${CHOSEN}u;
const SIZE: u32 = 64u;
// Below every logit; stands for minus infinity, which WGSL lets compilers assume away.
const LOWEST: f32 = -1e38;

@group(0) @binding(0) var<storage, read> logits: array<f32>;
@group(0) @binding(1) var<storage, read_write> routed: array<f32>;
@group(0) @binding(2) var<storage, read> state: array<u32>;

var<workgroup> left: array<f32, EXPERTS>;  // the logits of the experts not chosen yet
var<workgroup> best: array<f32, SIZE>;
var<workgroup> best_expert: array<u32, SIZE>;

@compute @workgroup_size(SIZE)
fn main(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) index: u32) {
  let row = workgroup.x;
  if (row >= state[1]) { return; }
  for (var expert = index; expert < EXPERTS; expert += SIZE) { left[expert] = logits[row * EXPERTS + expert]; }
  var chosen: array<f32, CHOSEN>;  // their logits
  for (var choice = 0u; choice < CHOSEN; choice++) {
    var most = LOWEST;
    var found = 0u;
    for (var expert = index; expert < EXPERTS; expert += SIZE) {
      if (left[expert] > most) {
        most = left[expert];
        found = expert;
      }
    }
    best[index] = most;
    best_expert[index] = found;
    for (var half = SIZE / 2u; half > 0u; half /= 2u) {
      workgroupBarrier();
      if (index < half) {
        let other = index + half;
        if (best[other] > best[index] || (best[other] == best[index] && best_expert[other] < best_expert[index])) {
          best[index] = best[other];
          best_expert[index] = best_expert[other];
        }
      }
    }
    workgroupBarrier();
    chosen[choice] = best[0];
    let expert = best_expert[0];
    if (index == expert % SIZE) { left[expert] = LOWEST; }
    if (index == 0u) { routed[row * 2u * CHOSEN + choice] = f32(expert); }
    workgroupBarrier();
  }

  var total = 0.0;
//% if NORMALISED
  for (var choice = 0u; choice < CHOSEN; choice++) { total += exp(chosen[choice] - chosen[0]); }
//% else
  for (var expert = index; expert < EXPERTS; expert += SIZE) {
    total += exp(logits[row * EXPERTS + expert] - chosen[0]);
  }
  best[index] = total;
  for (var half = SIZE / 2u; half > 0u; half /= 2u) {
    workgroupBarrier();
    if (index < half) { best[index] += best[index + half]; }
  }
  workgroupBarrier();
  total = best[0];
//% endif
  for (var choice = index; choice < CHOSEN; choice += SIZE) {
    routed[row * 2u * CHOSEN + CHOSEN + choice] = exp(chosen[choice] - chosen[0]) / total;
  }
}
