// The KEEP best of each slice of logits, or of each slice of earlier candidates; the last slice samples from them.
//
// Bindings: with FIRST: logits (T, VOCAB) f32; else the lists come from scratch.
//           scratch (T, SCRATCH_WORDS) u32, unless one slice holds all logits; settings (T) (kernels/sample.py packs
//           them) where FIRST or LAST; counts (T, VOCAB) u32 likewise, touched only with penalties on; with LAST: state,
//           tokens, result u32. T is 1 but for a BATCH.
// Grid: (one workgroup a slice of SLICE items, T). LAST has one workgroup a row.
// A list in scratch: KEEP keys, KEEP ids, the key of the greatest logit below it, and the sum of
// exp(logit - greatest) over all logits below it.
// A key is a logit's bits made to order as u32; 0 stands for no item, below every logit.

//% set at = namespace(next=0)
//% if FIRST
@group(0) @binding(${at.next}) var<storage, read> logits: array<u32>;
//% set at.next = at.next + 1
//% endif
//% if not (FIRST and LAST)
@group(0) @binding(${at.next}) var<storage, read_write> scratch: array<u32>;
//% set at.next = at.next + 1
//% endif
//% if FIRST or LAST
struct Settings {
  temperature: f32,
  top_k: u32,
  top_p: f32,
  log_min_p: f32,
  repetition: f32,
  frequency: f32,
  presence: f32,
  has_penalties: u32,
  seed_low: u32,
  seed_high: u32,
}
@group(0) @binding(${at.next}) var<storage, read> all_settings: array<Settings>;
@group(0) @binding(${at.next + 1}) var<storage, ${"read_write" if LAST else "read"}> counts: array<u32>;
//% set at.next = at.next + 2
//% endif
//% if LAST
@group(0) @binding(${at.next}) var<storage, read_write> state: array<u32>;
@group(0) @binding(${at.next + 1}) var<storage, read_write> tokens: array<u32>;
@group(0) @binding(${at.next + 2}) var<storage, read_write> result: array<u32>;
//% endif

const VOCAB: u32 = ${VOCAB}u;
const KEEP: u32 = ${KEEP}u;
const THREADS: u32 = ${THREADS}u;
const PER_THREAD: u32 = ${SLICE // THREADS}u;
const NO_ID: u32 = 0xffffffffu;
// Rounds of the search over key bits (two a round), then over id bits.
const KEY_ROUNDS: u32 = 16u;
const ID_ROUNDS: u32 = ${(VOCAB.bit_length() + 1) // 2}u;

var<private> row: u32;
//% if FIRST or LAST
var<private> settings: Settings;
//% endif
var<workgroup> greatest: atomic<u32>;
var<workgroup> sums: array<f32, THREADS>;
var<workgroup> reached: array<array<atomic<u32>, 3>, ${16 + (VOCAB.bit_length() + 1) // 2}>;
var<workgroup> tied: bool;
var<workgroup> kept: atomic<u32>;
var<workgroup> kept_keys: array<u32, KEEP>;
var<workgroup> kept_ids: array<u32, KEEP>;

fn value_of(key: u32) -> f32 {
  return bitcast<f32>(key ^ select(0xffffffffu, 0x80000000u, (key >> 31u) == 1u));
}

//% if FIRST
// Bounds every logit, so that differences and quotients stay within f32.
const LIMIT: f32 = ${LIMIT};

fn key_of(value: f32) -> u32 {
  let bits = bitcast<u32>(value);
  if (bits == 0x80000000u) { return bits; }  // -0 ties with +0
  return bits ^ select(0x80000000u, 0xffffffffu, (bits >> 31u) == 1u);
}

fn key_at(item: u32) -> u32 {
  if (item >= VOCAB) { return 0u; }
  let bits = logits[row * VOCAB + item];
  // NaN is told by its bits: a comparison with it need not be false in WGSL.
  let is_nan = (bits & 0x7fffffffu) > 0x7f800000u;
  var value = select(clamp(bitcast<f32>(bits), -LIMIT, LIMIT), -LIMIT, is_nan);
  if (settings.has_penalties != 0u) {
    let count = counts[row * VOCAB + item];
    if (count > 0u) {
      value = select(value * settings.repetition, value / settings.repetition, value > 0.0);
      value = clamp(value - settings.frequency * f32(count) - settings.presence, -LIMIT, LIMIT);
    }
  }
  return key_of(value);
}

fn id_at(item: u32) -> u32 { return item; }
//% else
const LISTS: u32 = ${LISTS}u;
const LIST_WORDS: u32 = 2u * KEEP + 2u;

fn word_of(list: u32) -> u32 { return row * ${SCRATCH_WORDS}u + ${FROM}u + list * LIST_WORDS; }

fn key_at(item: u32) -> u32 {
  if (item >= LISTS * KEEP) { return 0u; }
  return scratch[word_of(item / KEEP) + item % KEEP];
}

fn id_at(item: u32) -> u32 { return scratch[word_of(item / KEEP) + KEEP + item % KEEP]; }
//% endif

// Raises the three counts of a round by this invocation's items and gives the greatest digit that KEEP items reach.
fn settle(round: u32, counts_of_digits: vec3<u32>) -> vec2<u32> {
  if (counts_of_digits.x > 0u) { atomicAdd(&reached[round][0], counts_of_digits.x); }
  if (counts_of_digits.y > 0u) { atomicAdd(&reached[round][1], counts_of_digits.y); }
  if (counts_of_digits.z > 0u) { atomicAdd(&reached[round][2], counts_of_digits.z); }
  workgroupBarrier();
  for (var digit = 3u; digit > 0u; digit--) {
    let count = atomicLoad(&reached[round][digit - 1u]);
    if (count >= KEEP) { return vec2<u32>(digit, count); }
  }
  return vec2<u32>(0u, 0u);
}

//% if LAST
//% include "sample/choose.wgsl"
//% endif

@compute @workgroup_size(${THREADS})
fn main(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) index: u32) {
  let slice = workgroup.x;
  row = workgroup.y;
//% if FIRST or LAST
  settings = all_settings[row];
//% endif
  let first = slice * THREADS * PER_THREAD + index;
  for (var i = index; i < KEY_ROUNDS + ID_ROUNDS; i += THREADS) {
    for (var digit = 0u; digit < 3u; digit++) { atomicStore(&reached[i][digit], 0u); }
  }
  if (index < KEEP) {
    kept_keys[index] = 0u;
    kept_ids[index] = NO_ID;
  }
  if (index == 0u) {
    atomicStore(&greatest, 0u);
    atomicStore(&kept, 0u);
  }
  var keys: array<u32, PER_THREAD>;
  var own_greatest = 0u;
  for (var i = 0u; i < PER_THREAD; i++) {
    keys[i] = key_at(first + i * THREADS);
    own_greatest = max(own_greatest, keys[i]);
  }
  workgroupBarrier();
  atomicMax(&greatest, own_greatest);
  workgroupBarrier();

  // The sum of exponentials, relative to the greatest logit of the slice.
  let top_key = atomicLoad(&greatest);
  let top = value_of(top_key);
  var own_sum = 0.0;
//% if FIRST
  for (var i = 0u; i < PER_THREAD; i++) {
    if (keys[i] != 0u) { own_sum += exp(value_of(keys[i]) - top); }
  }
//% else
  let list = slice * (THREADS * PER_THREAD / KEEP) + index;
  if (index < THREADS * PER_THREAD / KEEP && list < LISTS) {
    let partial = word_of(list) + 2u * KEEP;
    own_sum = bitcast<f32>(scratch[partial + 1u]) * exp(value_of(scratch[partial]) - top);
  }
//% endif
  sums[index] = own_sum;
  for (var half = THREADS / 2u; half > 0u; half /= 2u) {
    workgroupBarrier();
    if (index < half) { sums[index] += sums[index + half]; }
  }

  // The greatest key that at least KEEP items reach, two bits at a time; no more counting once exactly KEEP do.
  // All rounds run: whether a barrier is met must not depend on what was counted.
  var key_bound = 0u;
  var count = 0u;
  for (var round = 0u; round < KEY_ROUNDS; round++) {
    let steps = vec3<u32>(1u, 2u, 3u) << vec3<u32>(30u - 2u * round);
    var digits = vec3<u32>(0u);
    if (count != KEEP) {
      for (var i = 0u; i < PER_THREAD; i++) {
        digits += vec3<u32>(vec3<u32>(keys[i]) >= (vec3<u32>(key_bound) | steps));
      }
    }
    let found = settle(round, digits);
    if (found.x > 0u) {
      key_bound |= found.x << (30u - 2u * round);
      count = found.y;
    }
  }
  // Too many tie at the bound: of those, the lowest ids, found likewise by VOCAB - id.
  var id_bound = 0u;
  if (index == 0u) { tied = key_bound > 0u && count > KEEP; }
  if (workgroupUniformLoad(&tied)) {
    for (var round = 0u; round < ID_ROUNDS; round++) {
      let shift = 2u * (ID_ROUNDS - 1u - round);
      let steps = vec3<u32>(1u, 2u, 3u) << vec3<u32>(shift);
      var digits = vec3<u32>(0u);
      for (var i = 0u; i < PER_THREAD; i++) {
        if (keys[i] > key_bound) { digits += 1u; }
        if (keys[i] == key_bound) {
          let rank = vec3<u32>(VOCAB - id_at(first + i * THREADS));
          digits += vec3<u32>(rank >= (vec3<u32>(id_bound) | steps));
        }
      }
      id_bound |= settle(KEY_ROUNDS + round, digits).x << shift;
    }
  }
  for (var i = 0u; i < PER_THREAD; i++) {
    if (keys[i] == 0u || keys[i] < key_bound) { continue; }
    let id = id_at(first + i * THREADS);
    if (keys[i] == key_bound && VOCAB - id < id_bound) { continue; }
    let slot = atomicAdd(&kept, 1u);
    kept_keys[slot] = keys[i];
    kept_ids[slot] = id;
  }
  workgroupBarrier();
//% if LAST
  choose(index, top, sums[0]);
//% else
  let word = row * ${SCRATCH_WORDS}u + ${TO}u + slice * (2u * KEEP + 2u);
  if (index < KEEP) {
    scratch[word + index] = kept_keys[index];
    scratch[word + KEEP + index] = kept_ids[index];
  }
  if (index == 0u) {
    scratch[word + 2u * KEEP] = top_key;
    scratch[word + 2u * KEEP + 1u] = bitcast<u32>(sums[0]);
  }
//% endif
}
