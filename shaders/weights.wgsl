// Reading planar weights (inference/formats/planar.py) of format ${FORMAT}, ${COLUMNS} columns.
//
// Bindings 0 ..: the planes low [, high] [, scales] [, supers], u32, row-major with the strides below.
// A unit is 8 consecutive weights of a row. The quant's zero is folded into the offset, so that a weight is
// quant * scale + offset, with one scale and offset a unit.

const COLUMNS: u32 = ${COLUMNS}u;
const UNITS: u32 = ${COLUMNS // 8}u;

//% set planes = namespace(next=0)
@group(0) @binding(0) var<storage, read> low: array<u32>;
//% set planes.next = 1
//% if HIGH_BITS
@group(0) @binding(${planes.next}) var<storage, read> high: array<u32>;
//% set planes.next = planes.next + 1
//% endif
//% if SCALE_FORM != "none"
@group(0) @binding(${planes.next}) var<storage, read> scales: array<u32>;
//% set planes.next = planes.next + 1
//% endif
//% if SCALE_FORM in ("super_scale", "super_scale_min")
@group(0) @binding(${planes.next}) var<storage, read> supers: array<u32>;
//% endif

struct Unit { first: vec4<f32>, second: vec4<f32> }

// The quants (or, of dense formats, the weights) 8 * unit .. 8 * unit + 7 of a row.
fn quants(row: u32, unit: u32) -> Unit {
//% if FORMAT == "f32"
  let at = row * ${LOW_STRIDE}u + unit * 8u;
  return Unit(
    bitcast<vec4<f32>>(vec4<u32>(low[at], low[at + 1u], low[at + 2u], low[at + 3u])),
    bitcast<vec4<f32>>(vec4<u32>(low[at + 4u], low[at + 5u], low[at + 6u], low[at + 7u])));
//% elif FORMAT == "f16"
  let at = row * ${LOW_STRIDE}u + unit * 4u;
  return Unit(
    vec4<f32>(unpack2x16float(low[at]), unpack2x16float(low[at + 1u])),
    vec4<f32>(unpack2x16float(low[at + 2u]), unpack2x16float(low[at + 3u])));
//% elif FORMAT == "bf16"
  let at = row * ${LOW_STRIDE}u + unit * 4u;
  let a = vec2<u32>(low[at], low[at + 1u]);
  let b = vec2<u32>(low[at + 2u], low[at + 3u]);
  return Unit(
    bitcast<vec4<f32>>(vec4<u32>(a.x << 16u, a.x & 0xffff0000u, a.y << 16u, a.y & 0xffff0000u)),
    bitcast<vec4<f32>>(vec4<u32>(b.x << 16u, b.x & 0xffff0000u, b.y << 16u, b.y & 0xffff0000u)));
//% elif LOW_BITS == 8
  let at = row * ${LOW_STRIDE}u + unit * 2u;
  return Unit(vec4<f32>(unpack4xI8(low[at])), vec4<f32>(unpack4xI8(low[at + 1u])));
//% else
  let word = low[row * ${LOW_STRIDE}u + unit];
  var a = word & 0x0f0f0f0fu;
  var b = (word >> 4u) & 0x0f0f0f0fu;
//% if HIGH_BITS == 1
  let bits = high[row * ${HIGH_STRIDE}u + unit / 4u] >> (2u * (unit % 4u));
  a |= (bits & 0x01010101u) << 4u;
  b |= ((bits >> 1u) & 0x01010101u) << 4u;
//% elif HIGH_BITS == 2
  let bits = high[row * ${HIGH_STRIDE}u + unit / 2u] >> (4u * (unit % 2u));
  a |= (bits & 0x03030303u) << 4u;
  b |= ((bits >> 2u) & 0x03030303u) << 4u;
//% endif
  return Unit(vec4<f32>(unpack4xU8(a)), vec4<f32>(unpack4xU8(b)));
//% endif
}

//% if SCALE_FORM != "none"
// (scale, offset) of a unit.
fn scale_of(row: u32, unit: u32) -> vec2<f32> {
  let group = unit / ${GROUP_SIZE // 8}u;
//% if SCALE_FORM == "scale"
  let scale = unpack2x16float(scales[row * ${SCALE_STRIDE}u + group / 2u] >> (16u * (group % 2u))).x;
  return vec2<f32>(scale, -${ZERO}.0 * scale);
//% elif SCALE_FORM == "scale_min"
  return unpack2x16float(scales[row * ${SCALE_STRIDE}u + group]);
//% elif SCALE_FORM == "super_scale"
  let code = f32(extractBits(bitcast<i32>(scales[row * ${SCALE_STRIDE}u + group / 4u]), 8u * (group % 4u), 8u));
  let block = unit / 32u;
  let scale = unpack2x16float(supers[row * ${SUPER_STRIDE}u + block / 2u] >> (16u * (block % 2u))).x * code;
  return vec2<f32>(scale, -${ZERO}.0 * scale);
//% else
  let codes = scales[row * ${SCALE_STRIDE}u + group / 2u] >> (16u * (group % 2u));
  let super_pair = unpack2x16float(supers[row * ${SUPER_STRIDE}u + unit / 32u]);
  return vec2<f32>(super_pair.x * f32(codes & 0xffu), -super_pair.y * f32((codes >> 8u) & 0xffu));
//% endif
}
//% endif

// The weights of a unit.
fn weights(row: u32, unit: u32) -> Unit {
  let q = quants(row, unit);
//% if SCALE_FORM == "none"
  return q;
//% else
  let s = scale_of(row, unit);
  return Unit(q.first * s.x + s.y, q.second * s.x + s.y);
//% endif
}

// Dot product of a unit with 8 inputs whose sum is `total`: the offset is applied once, not 8 times.
fn weights_dot(row: u32, unit: u32, first: vec4<f32>, second: vec4<f32>, total: f32) -> f32 {
  let q = quants(row, unit);
  let product = dot(q.first, first) + dot(q.second, second);
//% if SCALE_FORM == "none"
  return product;
//% else
  let s = scale_of(row, unit);
  return product * s.x + total * s.y;
//% endif
}
