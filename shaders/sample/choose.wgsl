// Choose one of the ordered candidates by the settings, write the record and move the step on (included with LAST).
//
// The record: chosen id, its logprob, SHOWN ids, their logprobs; logprobs are of the penalised logits at temperature 1.

const SHOWN: u32 = ${SHOWN}u;
const RECORD: u32 = 2u + 2u * SHOWN;

var<workgroup> ordered: array<vec2<u32>, KEEP>;  // (key, id)
var<workgroup> scaled: array<f32, KEEP>;
var<workgroup> weights: array<f32, KEEP>;
var<workgroup> random: f32;
var<workgroup> last: u32;
var<workgroup> drawn_mass: f32;

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

// Moves the state on to the position of the token to be chosen, whose random number this is.
fn advance() {
//% if BATCH
  let position = state[2u + row] + 1u;
  state[2u + row] = position;
//% else
  let position = state[0] + state[1];
  state[0] = position;
  state[1] = 1u;
//% endif
  random = uniform_random(settings.seed_low, settings.seed_high, position);
}

fn logprob_of(key: u32, top: f32) -> u32 { return bitcast<u32>((value_of(key) - top) - log(sum_of_slice())); }

fn order(rank: u32, candidate: vec2<u32>, top: f32) {
  ordered[rank] = candidate;
  let value = (value_of(candidate.x) - top) / settings.temperature;
  scaled[rank] = value;
  weights[rank] = exp(value);
  if (rank < SHOWN) {
    result[row * RECORD + 2u + rank] = candidate.y;
    result[row * RECORD + 2u + SHOWN + rank] = logprob_of(candidate.x, top);
  }
}

// One invocation a candidate. The mass is added up by each from the best on, in the order of the reference.
fn draw(index: u32, available: u32, top: f32) {
  let considered = min(available, settings.top_k);
  var before = 0.0;
  var reached = 0.0;
  if (index < considered) {
    var total = 0.0;
    for (var i = 0u; i < considered; i++) {
      before = select(before, total, i == index);
      total += weights[i];
      reached = select(reached, total, i == index);
    }
    // The smallest prefix whose mass reaches top-p, as far as it stays within min-p of the best.
    let enough = settings.top_p * total;
    let stays = index == 0u || (before < enough && scaled[index] >= settings.log_min_p);
    let next = min(index + 1u, KEEP - 1u);
    if (stays && !(next < considered && next > index && reached < enough && scaled[next] >= settings.log_min_p)) {
      last = index;
      drawn_mass = random * reached;
    }
  }
  workgroupBarrier();
  // The first whose share of the mass reaches what was drawn, or else the last that stays: one invocation.
  let is_first = (index == 0u || before <= drawn_mass) && (index == last || reached > drawn_mass);
  if (index > last || !is_first) { return; }
  let chosen = ordered[index];
  result[row * RECORD] = chosen.y;
  result[row * RECORD + 1u] = logprob_of(chosen.x, top);
  tokens[row] = chosen.y;
  if (settings.has_penalties != 0u) { counts[row * VOCAB + chosen.y] += 1u; }
}
