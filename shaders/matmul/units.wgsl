// Units of ${UNIT} consecutive weights of a row of planar weights (inference/formats/planar.py), format ${FORMAT},
// ${COLUMNS} columns: what one lane of a GEMV loads at once. Quantised units are read 16 bytes at a time where the
// plane has as much, and their scale once; `load` asks for all of a unit's words, codes0 .., quad0 .. and scale0 .. decode them.
//
// Bindings 0 ..: the planes low [, high] [, scales] [, supers], u32, row-major with the strides below.
// Constants as in weights.wgsl, and DECODE, how codes become floats: "convert" (integer conversions), "mantissa"
// (the code is put into the mantissa of a float and the excess subtracted, which gives quant * 1 / X_SCALE), or "packed"
// (they stay bytes: packed_product.wgsl).
// The including file sets what it needs too: `quantised`, `groups` of a unit, `with_offset`, `mantissa`.

const COLUMNS: u32 = ${COLUMNS}u;
const UNITS: u32 = ${COLUMNS // UNIT}u;

//% set low_words, high_words = UNIT * LOW_BITS / 32, UNIT * HIGH_BITS / 32
//% macro element(words)
${"vec4<u32>" if words >= 4 else "vec2<u32>" if words == 2 else "u32"}
//%- endmacro
//% macro loads(plane, words, bits, stride)
//% if words >= 4
//% for part in range(words | int // 4)
  p.${plane}${part} = ${plane}[row * ${stride // 4}u + unit * ${words | int // 4}u + ${part}u];
//% endfor
//% elif words == 2
  p.${plane}0 = ${plane}[row * ${stride // 2}u + unit];
//% elif words == 1
  p.${plane}0 = ${plane}[row * ${stride}u + unit];
//% else
//% set sharing = (1 / words) | int
  p.${plane}0 = ${plane}[row * ${stride}u + unit / ${sharing}u] >> (${UNIT // 4 * bits}u * (unit % ${sharing}u));
//% endif
//% endmacro
// A word of a unit.
//% macro word(plane, words, index)
p.${plane}${index // 4}${"." + "xyzw"[index % 4] if words >= 2 else ""}
//%- endmacro
// The fields, one a byte, of the four weights of quad j.
//% macro fields(plane, words, bits, j)
((${word(plane, words, j // (8 // bits))} >> ${j % (8 // bits) * bits}u) & ${{1: "0x01010101u", 2: "0x03030303u", 4: "0x0f0f0f0fu"}[bits]})
//%- endmacro

@group(0) @binding(0) var<storage, read> low: array<${element(low_words)}>;
//% set planes = namespace(next=1)
//% if HIGH_BITS
@group(0) @binding(${planes.next}) var<storage, read> high: array<${element(high_words)}>;
//% set planes.next = planes.next + 1
//% endif
//% if quantised
@group(0) @binding(${planes.next}) var<storage, read> scales: array<u32>;
//% set planes.next = planes.next + 1
//% endif
//% set super_scaled = SCALE_FORM in ("super_scale", "super_scale_min")
//% if super_scaled
@group(0) @binding(${planes.next}) var<storage, read> supers: array<u32>;
//% endif

// The words of a unit as they are stored; of scales, those of its groups from bit 0 on.
struct Packed {
//% for part in range([low_words | int // 4, 1] | max)
  low${part}: ${element(low_words)},
//% endfor
//% if HIGH_BITS
  high0: ${element(high_words)},
//% endif
//% if quantised
  scales: u32,
//% endif
//% if super_scaled
  supers: u32,
//% endif
}

fn load(row: u32, unit: u32) -> Packed {
  var p: Packed;
${loads("low", low_words, LOW_BITS, LOW_STRIDE)}
//% if HIGH_BITS
${loads("high", high_words, HIGH_BITS, HIGH_STRIDE)}
//% endif
//% if quantised
//% set group_bits = {"scale": 16, "scale_min": 32, "exponent": 8, "super_scale": 8, "super_scale_min": 2 * CODE_BITS}[SCALE_FORM]
//% set unit_bits = group_bits * ([UNIT // GROUP_SIZE, 1] | max)
//% set a_word = 32 // unit_bits
  let group = unit / ${[GROUP_SIZE // UNIT, 1] | max}u;
  p.scales = scales[row * ${SCALE_STRIDE}u + group / ${a_word}u] >> (${unit_bits % 32}u * (group % ${a_word}u));
//% endif
//% if super_scaled
  let block = unit / ${256 // UNIT}u;
//% if SCALE_FORM == "super_scale"
  p.supers = supers[row * ${SUPER_STRIDE}u + block / 2u] >> (16u * (block % 2u));
//% else
  p.supers = supers[row * ${SUPER_STRIDE}u + block];
//% endif
//% endif
  return p;
}

//% if mantissa
// What x is multiplied with, byte by byte, to make up for the place of each code in the mantissa.
const X_SCALE = vec4<f32>(1.0, ${2.0 ** -8}, ${2.0 ** -8 if LOW_BITS == 8 else 2.0 ** -16}, 1.0);
//% set zero = 128 if LOW_BITS == 8 else ZERO
const EXCESS = vec4<f32>(${2 ** 23 + zero}.0, ${2 ** 23 + 256 * zero}.0, ${2 ** 23 + (256 if LOW_BITS == 8 else 65536) * zero}.0, ${2 ** 23 + zero}.0);
//% endif
//% if TABLE
// In workgroup memory, where lanes may look up different entries at once.
var<workgroup> levels: array<f32, 16>;

fn fill_levels(index: u32) {
  var table = array<f32, 16>(${TABLE | join(".0, ")}.0);
  if (index < 16u) { levels[index] = table[index]; }
  workgroupBarrier();
}
//% endif

//% for j in range(UNIT // 4)
//% if quantised
// The codes of quad j, one a byte; of 8 bits with their sign.
fn codes${j}(p: Packed) -> u32 {
//% if LOW_BITS == 8
  return ${word("low", low_words, j)};
//% else
  return ${fields("low", low_words, LOW_BITS, j)}
//%- if HIGH_BITS
 | (${fields("high", high_words, HIGH_BITS, j)} << ${LOW_BITS}u)
//%- endif
;
//% endif
}

//% endif
//% if DECODE != "packed"
fn quad${j}(p: Packed) -> vec4<f32> {
//% if FORMAT == "f32"
  return bitcast<vec4<f32>>(p.low${j});
//% elif FORMAT == "f16"
  return vec4<f32>(unpack2x16float(p.low0.${"xz"[j]}), unpack2x16float(p.low0.${"yw"[j]}));
//% elif FORMAT == "bf16"
  let pair = p.low0.${("xy", "zw")[j]};
  return bitcast<vec4<f32>>(vec4<u32>(pair.x << 16u, pair.x & 0xffff0000u, pair.y << 16u, pair.y & 0xffff0000u));
//% else
  let codes = codes${j}(p)${" ^ 0x80808080u" if mantissa and LOW_BITS == 8 else ""};
//% if TABLE
  return vec4<f32>(levels[codes & 0xffu], levels[(codes >> 8u) & 0xffu], levels[(codes >> 16u) & 0xffu], levels[codes >> 24u]);
//% elif mantissa
  let bytes = vec4<u32>(codes & 0xffu, codes & 0xff00u, ${"(codes >> 8u) & 0xff00u" if LOW_BITS == 8 else "codes & 0xff0000u"}, codes >> 24u);
  return bitcast<vec4<f32>>(bytes | vec4<u32>(0x4b000000u)) - EXCESS;
//% else
  return vec4<f32>(${"unpack4xI8" if LOW_BITS == 8 else "unpack4xU8"}(codes))${" - %d.0" % ZERO if ZERO and LOW_BITS != 8 else ""};
//% endif
//% endif
}

//% endif
//% endfor
//% for g in range(groups) if quantised
fn scale${g}(p: Packed) -> f32 {
//% if SCALE_FORM in ("scale", "scale_min")
  return unpack2x16float(p.scales).x;
//% elif SCALE_FORM == "exponent"
  // 2**(exponent - 128). The two that are below f32's normal range are zero, as on devices that flush such numbers.
  return bitcast<f32>((max(p.scales & 0xffu, 1u) - 1u) << 23u);
//% elif SCALE_FORM == "super_scale"
  return unpack2x16float(p.supers).x * f32(extractBits(bitcast<i32>(p.scales), ${8 * g}u, 8u));
//% else
  return unpack2x16float(p.supers).x * f32(extractBits(p.scales, ${2 * CODE_BITS * g}u, ${CODE_BITS}u));
//% endif
}

//% if with_offset
fn offset${g}(p: Packed) -> f32 {
//% if SCALE_FORM == "scale_min"
  return unpack2x16float(p.scales).y;
//% else
  return -unpack2x16float(p.supers).y * f32(extractBits(p.scales, ${2 * CODE_BITS * g + CODE_BITS}u, ${CODE_BITS}u));
//% endif
}

//% endif
//% endfor
