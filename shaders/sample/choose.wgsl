// Order the kept candidates, choose one by the settings, write the record and move the step on (included with LAST).
//
// The record: chosen id, its logprob, SHOWN ids, their logprobs; logprobs are of the penalised logits at temperature 1.

const SHOWN: u32 = ${SHOWN}u;

var<workgroup> ordered_keys: array<u32, KEEP>;
var<workgroup> ordered_ids: array<u32, KEEP>;
var<workgroup> scaled: array<f32, KEEP>;
var<workgroup> weights: array<f32, KEEP>;

// In [0, 1), by pcg3d: Jarzynski and Olano, Hash Functions for GPU Rendering, JCGT 9(3), 2020.
fn uniform_random(seed_low: u32, seed_high: u32, position: u32) -> f32 {
  var v = vec3<u32>(seed_low, seed_high, position) * 1664525u + 1013904223u;
  v.x += v.y * v.z;
  v.y += v.z * v.x;
  v.z += v.x * v.y;
  v ^= v >> vec3<u32>(16u);
  v.x += v.y * v.z;
  return f32(v.x >> 8u) / 16777216.0;
}

// Index of the candidate drawn from the best `available`, whose weights at this temperature are set.
fn draw(available: u32, random: f32) -> u32 {
  let considered = min(available, settings.top_k);
  var total = 0.0;
  for (var i = 0u; i < considered; i++) { total += weights[i]; }
  // The smallest prefix whose mass reaches top-p, as far as it stays within min-p of the best.
  var mass = 0.0;
  var count = 0u;
  while (count < considered && scaled[count] >= settings.log_min_p) {
    mass += weights[count];
    count++;
    if (mass >= settings.top_p * total) { break; }
  }
  var chosen = 0u;
  var passed = weights[0];
  while (chosen + 1u < count && passed <= random * mass) {
    chosen++;
    passed += weights[chosen];
  }
  return chosen;
}

fn choose(index: u32, top: f32, sum: f32) {
  if (index < KEEP) {
    ordered_keys[index] = 0u;
    ordered_ids[index] = NO_ID;
  }
  workgroupBarrier();
  if (index < KEEP && kept_keys[index] != 0u) {
    let key = kept_keys[index];
    let id = kept_ids[index];
    var rank = 0u;
    for (var i = 0u; i < KEEP; i++) {
      if (kept_keys[i] > key || (kept_keys[i] == key && kept_ids[i] < id)) { rank++; }
    }
    ordered_keys[rank] = key;
    ordered_ids[rank] = id;
  }
  workgroupBarrier();
  let log_sum = log(sum);
  let record = row * (2u + 2u * SHOWN);
  if (index < KEEP) {
    scaled[index] = (value_of(ordered_keys[index]) - top) / settings.temperature;
    weights[index] = exp(scaled[index]);
  }
  if (index < SHOWN) {
    result[record + 2u + index] = ordered_ids[index];
    result[record + 2u + SHOWN + index] = bitcast<u32>((value_of(ordered_keys[index]) - top) - log_sum);
  }
  workgroupBarrier();
  if (index != 0u) { return; }
//% if BATCH
  let position = state[2u + row] + 1u;
//% else
  let position = state[0] + state[1];
//% endif
  let random = uniform_random(settings.seed_low, settings.seed_high, position);
  let chosen = draw(atomicLoad(&kept), random);
  let id = ordered_ids[chosen];
  result[record] = id;
  result[record + 1u] = bitcast<u32>((value_of(ordered_keys[chosen]) - top) - log_sum);
  tokens[row] = id;
  if (settings.has_penalties != 0u) { counts[row * VOCAB + id] += 1u; }
//% if BATCH
  state[2u + row] = position;
//% else
  state[0] = position;
  state[1] = 1u;
//% endif
}
