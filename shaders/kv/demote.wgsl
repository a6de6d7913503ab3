// Copies the rows that a step makes cold from the hot ring to cold pages, quantised with COLD_BITS.
//
// Bindings: hot rows, cold rows, tiers: see read_tiered.wgsl.
// Grid: (NUM_KV_HEADS, any): the workgroups of a head take turns at the tokens, however many a step demotes.
// SIZE invocations, half for the keys and half for the values. An integer is the value over the scale, rounded to even;
// the scale is the largest magnitude over 2^(COLD_BITS - 1) - 1.

//% if KV_TYPE == "f16"
enable f16;
//% endif

const NUM_KV_HEADS: u32 = ${NUM_KV_HEADS}u;
const QUADS: u32 = ${HEAD_DIM // 4}u;
const LANES: u32 = ${SIZE // 2}u;

@group(0) @binding(0) var<storage, read> hot: array<vec4<${KV_TYPE}>>;
//% if COLD_BITS
@group(0) @binding(1) var<storage, read_write> cold: array<u32>;
//% else
@group(0) @binding(1) var<storage, read_write> cold: array<vec4<${KV_TYPE}>>;
//% endif
@group(0) @binding(2) var<storage, read> tiers: array<u32>;
//% if COLD_BITS

const LEVELS: f32 = ${2 ** (COLD_BITS - 1) - 1}.0;
const PART_WORDS: u32 = ${HEAD_DIM * COLD_BITS // 32}u;
const MAX_F16: f32 = 65504.0;

var<workgroup> largest: array<f32, ${SIZE}>;

fn integers(quad: vec4<f32>, inverse_scale: f32) -> vec4<u32> {
  return bitcast<vec4<u32>>(vec4<i32>(clamp(round(quad * inverse_scale), vec4<f32>(-LEVELS), vec4<f32>(LEVELS))));
}
//% endif

@compute @workgroup_size(${SIZE})
fn main(
  @builtin(workgroup_id) workgroup: vec3<u32>,
  @builtin(num_workgroups) workgroups: vec3<u32>,
  @builtin(local_invocation_index) index: u32,
) {
  let kv_head = workgroup.x;
  let part = index / LANES;
  let lane = index % LANES;
  for (var position = tiers[0] + workgroup.y; position < tiers[1]; position += workgroups.y) {
    let page = tiers[2u + position / ${PAGE_TOKENS}u];
    let row = (page * ${PAGE_TOKENS}u + position % ${PAGE_TOKENS}u) * NUM_KV_HEADS + kv_head;
    let source = (2u * (position % ${RING_CAPACITY}u * NUM_KV_HEADS + kv_head) + part) * QUADS;
//% if COLD_BITS
    var most = 0.0;
    for (var quad = lane; quad < QUADS; quad += LANES) {
      let magnitudes = abs(vec4<f32>(hot[source + quad]));
      most = max(most, max(max(magnitudes.x, magnitudes.y), max(magnitudes.z, magnitudes.w)));
    }
    largest[index] = most;
    for (var half = LANES / 2u; half > 0u; half /= 2u) {
      workgroupBarrier();
      if (lane < half) { largest[index] = max(largest[index], largest[index + half]); }
    }
    workgroupBarrier();
    let scales = pack2x16float(min(vec2<f32>(largest[0], largest[LANES]) / LEVELS, vec2<f32>(MAX_F16)));
    let scale = unpack2x16float(scales >> (16u * part)).x;
    let inverse_scale = select(0.0, 1.0 / scale, scale > 0.0);
    let first = row * (2u * PART_WORDS + 1u);
    if (index == 0u) { cold[first] = scales; }
    for (var word = lane; word < PART_WORDS; word += LANES) {
//% if COLD_BITS == 8
      let bytes = (integers(vec4<f32>(hot[source + word]), inverse_scale) & vec4<u32>(0xffu))
          << vec4<u32>(0u, 8u, 16u, 24u);
      cold[first + 1u + part * PART_WORDS + word] = bytes.x | bytes.y | bytes.z | bytes.w;
//% else
      let low = (integers(vec4<f32>(hot[source + 2u * word]), inverse_scale) & vec4<u32>(0xfu))
          << vec4<u32>(0u, 4u, 8u, 12u);
      let high = (integers(vec4<f32>(hot[source + 2u * word + 1u]), inverse_scale) & vec4<u32>(0xfu))
          << vec4<u32>(16u, 20u, 24u, 28u);
      let nibbles = low | high;
      cold[first + 1u + part * PART_WORDS + word] = nibbles.x | nibbles.y | nibbles.z | nibbles.w;
//% endif
    }
    // The next token's magnitudes take the place of these.
    workgroupBarrier();
//% else
    for (var quad = lane; quad < QUADS; quad += LANES) { cold[(2u * row + part) * QUADS + quad] = hot[source + quad]; }
//% endif
  }
}
