// The KEEP best of each slice of logits, or of each slice of earlier candidates; the last slice samples from them.
//
// Bindings: with FIRST: logits (T, VOCAB) f32; else the lists come from scratch.
//           scratch (T, SCRATCH_ENTRIES) vec2<u32>, unless one slice holds all logits; settings (T) (kernels/sample.py
//           packs them) where FIRST or LAST; counts (T, VOCAB) u32 likewise, touched only with penalties on; with LAST:
//           state, tokens, result u32. T is 1 but for a BATCH.
// Grid: (one workgroup a slice of THREADS * PER_THREAD items, T). LAST has one workgroup a row.
// A list: its KEEP candidates (key, id), best first, then (key of the greatest logit below it, sum of
// exp(logit - greatest) over all logits below it). Lists lie side by side: (KEEP + 1, lists), so that the best of all
// come first.
// A key is a logit's bits made to order as u32; 0 stands for no item, below every logit.

//% set at = namespace(next=0)
//% if FIRST
@group(0) @binding(${at.next}) var<storage, read> logits: array<u32>;
//% set at.next = at.next + 1
//% endif
//% if not (FIRST and LAST)
@group(0) @binding(${at.next}) var<storage, read_write> scratch: array<vec2<u32>>;
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
const PER_THREAD: u32 = ${PER_THREAD}u;
const NO_CANDIDATE = vec2<u32>(0u, 0xffffffffu);
// Into which a round of the search divides what is left of the range.
const BIN_BITS: u32 = 5u;
const BINS: u32 = 1u << BIN_BITS;
// So few are ordered by comparing each with each.
const MOST_GATHERED: u32 = 2u * KEEP;
// Partial sums of a slice.
const PARTS: u32 = 16u;

var<private> row: u32;
//% if FIRST or LAST
var<private> settings: Settings;
//% endif
var<workgroup> group_best: array<atomic<u32>, KEEP>;
var<workgroup> greatest: atomic<u32>;
var<workgroup> least_inverted: atomic<u32>;
var<workgroup> bins: array<atomic<u32>, BINS>;
var<workgroup> found: vec3<u32>;
var<workgroup> gathered: atomic<u32>;
var<workgroup> candidates: array<vec2<u32>, MOST_GATHERED>;
var<workgroup> sums: array<f32, THREADS>;
var<workgroup> partial_sums: array<f32, PARTS>;

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

fn bounded(bits: u32) -> f32 {
  // NaN is told by its bits: a comparison with it need not be false in WGSL.
  let is_nan = (bits & 0x7fffffffu) > 0x7f800000u;
  return select(clamp(bitcast<f32>(bits), -LIMIT, LIMIT), -LIMIT, is_nan);
}

fn penalized(value: f32, count: u32) -> f32 {
  if (count == 0u) { return value; }
  let scaled = select(value * settings.repetition, value / settings.repetition, value > 0.0);
  return clamp(scaled - settings.frequency * f32(count) - settings.presence, -LIMIT, LIMIT);
}
//% else
const LISTS: u32 = ${LISTS}u;
//% endif

// Of exp(logit - greatest) over the slice, from partial_sums.
fn sum_of_slice() -> f32 {
  var sum = 0.0;
  for (var i = 0u; i < PARTS; i++) { sum += partial_sums[i]; }
  return sum;
}

//% if LAST
//% include "sample/choose.wgsl"
//% endif

// Loops over the items of an invocation are written out, which keeps these in registers.
@compute @workgroup_size(${THREADS})
fn main(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) index: u32) {
  let slice = workgroup.x;
  row = workgroup.y;
//% if FIRST or LAST
  settings = all_settings[row];
//% endif
  if (index < BINS) { atomicStore(&bins[index], 0u); }
  if (index < KEEP) { atomicStore(&group_best[index], 0u); }
  if (index == 0u) {
    atomicStore(&greatest, 0u);
    atomicStore(&least_inverted, 0u);
    atomicStore(&gathered, 0u);
  }
  let first = slice * THREADS * PER_THREAD + index;
  var items: array<vec2<u32>, PER_THREAD>;  // (key, id)
//% if FIRST
  // All are asked for before the first is waited for.
  var values: array<f32, PER_THREAD>;
//% for i in range(PER_THREAD)
  values[${i}] = bounded(logits[row * VOCAB + min(first + ${i}u * THREADS, VOCAB - 1u)]);
//% endfor
  if (settings.has_penalties != 0u) {
//% for i in range(PER_THREAD)
    values[${i}] = penalized(values[${i}], counts[row * VOCAB + min(first + ${i}u * THREADS, VOCAB - 1u)]);
//% endfor
  }
//% for i in range(PER_THREAD)
  items[${i}] = vec2<u32>(key_of(values[${i}]), first + ${i}u * THREADS);
  items[${i}] = select(items[${i}], NO_CANDIDATE, items[${i}].y >= VOCAB);
//% endfor
//% else
  let lists = row * ${SCRATCH_ENTRIES}u + ${FROM}u;
//% for i in range(PER_THREAD)
  items[${i}] = scratch[lists + min(first + ${i}u * THREADS, LISTS * KEEP - 1u)];
  items[${i}] = select(items[${i}], NO_CANDIDATE, first + ${i}u * THREADS >= LISTS * KEEP);
//% endfor
  // (key of the greatest logit, sum) of one of the slice's share of the lists.
  var below = vec2<u32>(0u);
  let list = slice * (THREADS * PER_THREAD / KEEP) + index;
  if (index < THREADS * PER_THREAD / KEEP && list < LISTS) { below = scratch[lists + LISTS * KEEP + list]; }
//% endif
//% if LAST
  if (index == 0u) { advance(); }
//% endif
  // Each of KEEP groups has an item as good as the worst of the groups' best ones: no worse item is among the KEEP best.
  var own_best = 0u;
//% for i in range(PER_THREAD)
  own_best = max(own_best, items[${i}].x);
//% endfor
  workgroupBarrier();
  atomicMax(&group_best[index % KEEP], own_best);
//% if not (FIRST or LAST)
  atomicMax(&greatest, below.x);  // another slice may have this item
//% endif
  workgroupBarrier();
  if (index < KEEP) {
    let best = atomicLoad(&group_best[index]);
    atomicMax(&greatest, best);
    atomicMax(&least_inverted, ~best);
  }
  workgroupBarrier();
  let top_key = atomicLoad(&greatest);
  let top = value_of(top_key);

  // The sum of exponentials, relative to the greatest logit of the slice; the barriers of the search serve it too.
  var own_sum = 0.0;
//% if FIRST
//% for i in range(PER_THREAD)
  if (items[${i}].x != 0u) { own_sum += exp(value_of(items[${i}].x) - top); }
//% endfor
//% else
  if (below.x != 0u) { own_sum = bitcast<f32>(below.y) * exp(value_of(below.x) - top); }
//% endif
  sums[index] = own_sum;

  // A bound that KEEP items reach and no more than MOST_GATHERED, or all items where there are fewer. It lies in low .. high,
  // which each round narrows to one bin; `above` counts the items beyond high.
  var low = max(~atomicLoad(&least_inverted), 1u);
  var high = max(top_key, low);
  var above = 0u;
  var count = 0u;
  var words: array<u32, PER_THREAD>;
//% for i in range(PER_THREAD)
  words[${i}] = items[${i}].x;
//% endfor
  loop {
    let shift = max(32u - countLeadingZeros(high - low), BIN_BITS) - BIN_BITS;
//% for i in range(PER_THREAD)
    if (words[${i}] >= low && words[${i}] <= high) { atomicAdd(&bins[(words[${i}] - low) >> shift], 1u); }
//% endfor
    workgroupBarrier();
    if (index < BINS) {
      var beyond = above;
      for (var bin = 0u; bin < BINS; bin++) { beyond += select(0u, atomicLoad(&bins[bin]), bin > index); }
      let reached = beyond + atomicLoad(&bins[index]);
      if (beyond < KEEP && (reached >= KEEP || index == 0u)) { found = vec3<u32>(index, beyond, reached); }
    }
    let narrowed = workgroupUniformLoad(&found);
    low += narrowed.x << shift;
    high = low + (1u << shift) - 1u;
    above = narrowed.y;
    count = narrowed.z;
    if (narrowed.z <= MOST_GATHERED) { break; }
    if (shift == 0u) {
      // Too many tie: of those, the lowest ids.
//% for i in range(PER_THREAD)
      if (words[${i}] > low) { words[${i}] = 0xffffffffu; }
      else { words[${i}] = select(0u, VOCAB - items[${i}].y, words[${i}] == low); }
//% endfor
      low = 1u;
      high = VOCAB;
    }
    if (index < BINS) { atomicStore(&bins[index], 0u); }
    workgroupBarrier();
  }
//% for i in range(PER_THREAD)
  if (words[${i}] >= low) { candidates[atomicAdd(&gathered, 1u)] = items[${i}]; }
//% endfor
  if (index < PARTS) {
    var sum = 0.0;
    for (var i = 0u; i < THREADS / PARTS; i++) { sum += sums[index + i * PARTS]; }
    partial_sums[index] = sum;
  }
  workgroupBarrier();

  var rank = index;
  var own = NO_CANDIDATE;
  if (index < count) {
    own = candidates[index];
    rank = 0u;
    for (var i = 0u; i < count; i++) {
      let other = candidates[i];
      rank += u32(other.x > own.x || (other.x == own.x && other.y < own.y));
    }
  }
//% if LAST
  if (rank < KEEP) { order(rank, own, top); }
  workgroupBarrier();
  draw(index, count, top);
//% else
  let list_out = row * ${SCRATCH_ENTRIES}u + ${TO}u + slice;
  if (rank < KEEP) { scratch[list_out + rank * ${LISTS_OUT}u] = own; }
  if (index == 0u) { scratch[list_out + KEEP * ${LISTS_OUT}u] = vec2<u32>(top_key, bitcast<u32>(sum_of_slice())); }
//% endif
}
