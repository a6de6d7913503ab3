// Reading planar weights (inference/formats/planar.py) of format ${FORMAT}, ${COLUMNS} columns.
//
// Bindings 0 ..: the planes low [, high] [, scales] [, supers], u32, row-major with the strides below.
// LOW_BITS and HIGH_BITS a weight (HIGH_BITS 0: no such plane) make its code; TABLE, 16 signed bytes or empty, turns
// codes into quants. SCALE_FORM, GROUP_SIZE and CODE_BITS say how scales are stored.
// A unit is 8 consecutive weights of a row. The code's ZERO is folded into the offset, so that a weight is
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

//% set masks = {1: "0x01010101u", 2: "0x03030303u", 4: "0x0f0f0f0fu"}
//% for plane, bits, stride in (("low", LOW_BITS, LOW_STRIDE), ("high", HIGH_BITS, HIGH_STRIDE)) if bits in masks
// The fields of plane ${plane} that belong to a unit, one a byte: of its first four weights, then of the others.
fn ${plane}_codes(row: u32, unit: u32) -> vec2<u32> {
//% if bits == 4
  let fields = ${plane}[row * ${stride}u + unit];
//% else
  let fields = ${plane}[row * ${stride}u + unit / ${4 // bits}u] >> (${2 * bits}u * (unit % ${4 // bits}u));
//% endif
  return vec2<u32>(fields, fields >> ${bits}u) & vec2<u32>(${masks[bits]});
}

//% endfor
//% if TABLE
// The table's entries at the four indices that are the bytes of `index`: each bit of an index halves the entries in
// question, in all four bytes at once.
fn look_up(index: u32) -> vec4<f32> {
//% for value in TABLE
  let entry0_${loop.index0} = ${value % 256 * 0x01010101}u;
//% endfor
//% for bit in range(4)
  let odd${bit} = ((index >> ${bit}u) & 0x01010101u) * 255u;
//% for pair in range(8 // 2**bit)
//% set even, odd = "entry%d_%d" % (bit, 2 * pair), "entry%d_%d" % (bit, 2 * pair + 1)
  let entry${bit + 1}_${pair} = ${even} ^ ((${even} ^ ${odd}) & odd${bit});
//% endfor
//% endfor
  return vec4<f32>(unpack4xI8(entry4_0));
}

//% endif
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
  var codes = low_codes(row, unit);
//% if HIGH_BITS
  codes |= high_codes(row, unit) << vec2<u32>(${LOW_BITS}u);
//% endif
//% if TABLE
  return Unit(look_up(codes.x), look_up(codes.y));
//% else
  return Unit(vec4<f32>(unpack4xU8(codes.x)), vec4<f32>(unpack4xU8(codes.y)));
//% endif
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
//% elif SCALE_FORM == "exponent"
  let exponent = (scales[row * ${SCALE_STRIDE}u + group / 4u] >> (8u * (group % 4u))) & 0xffu;
  // 2**(exponent - 128). The two that are below f32's normal range are zero, as on devices that flush such numbers.
  return vec2<f32>(bitcast<f32>((max(exponent, 1u) - 1u) << 23u), 0.0);
//% elif SCALE_FORM == "super_scale"
  let code = f32(extractBits(bitcast<i32>(scales[row * ${SCALE_STRIDE}u + group / 4u]), 8u * (group % 4u), 8u));
  let block = unit / 32u;
  let scale = unpack2x16float(supers[row * ${SUPER_STRIDE}u + block / 2u] >> (16u * (block % 2u))).x * code;
  return vec2<f32>(scale, -${ZERO}.0 * scale);
//% else
//% set pairs = 16 // CODE_BITS
  let codes = scales[row * ${SCALE_STRIDE}u + group / ${pairs}u] >> (${2 * CODE_BITS}u * (group % ${pairs}u));
  let code = f32(extractBits(codes, 0u, ${CODE_BITS}u));
  let min_code = f32(extractBits(codes, ${CODE_BITS}u, ${CODE_BITS}u));
  let super_pair = unpack2x16float(supers[row * ${SUPER_STRIDE}u + unit / 32u]);
  return vec2<f32>(super_pair.x * code, -super_pair.y * min_code);
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
