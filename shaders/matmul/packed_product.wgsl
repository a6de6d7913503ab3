// Parts of gemv.wgsl: x in fixed point, multiplied with codes that stay bytes, four products an instruction.
//
// Of 16 columns of x the largest value becomes 32639, and what is rounded away is at most half of a step of that scale,
// 1/65278 of the largest. A value is 256 * high + low, both signed bytes: each is multiplied with the codes apart, by
// dot4I8Packed. Sums of integers are exact; those of 16 columns are scaled once, in f32. A NaN in x becomes some number.
// Needs STAGED, and UNIT 32.

//% macro declare()
// A unit of x: the high bytes of its halves, then their low bytes, and one of padding, which keeps lanes out of each
// other's memory banks.
var<workgroup> x_staged: array<vec4<u32>, ${X_ROWS * block * 5}>;
// (step f32, sum of values i32) of all first halves, then of all second ones.
var<workgroup> x_scales: array<vec2<u32>, ${X_ROWS * block * 2}>;
//% endmacro

// Brings `block` units of row m of X into workgroup memory.
//% macro stage(m)
    for (var local = index; local < ${block * 2}u; local += ${invocations}u) {
      let quad = start * 8u + local * 4u;
//% for j in range(4)
      var value${j} = vec4<f32>(0.0);
//% endfor
      if (quad < QUADS) {
//% for j in range(4)
        value${j} = vec4<f32>(x[(x_row + ${m}u) * QUADS + quad + ${j}u]);
//% endfor
//% if NORM
//% for j in range(4)
        squares_${m} += dot(value${j}, value${j});
        value${j} *= norm[quad + ${j}u];
//% endfor
//% endif
      }
      let of_quad = max(max(abs(value0), abs(value1)), max(abs(value2), abs(value3)));
      // Of smaller values the inverse would be infinite.
      let largest = max(max(max(of_quad.x, of_quad.y), max(of_quad.z, of_quad.w)), 1e-30);
      let inverse = 32639.0 / largest;
//% for j in range(4)
      let fixed${j} = vec4<i32>(round(value${j} * inverse));
      let high${j} = (fixed${j} + 128) >> vec4<u32>(8u);
      let low${j} = fixed${j} - high${j} * 256;
//% endfor
      let at = (${m * block}u + local / 2u) * 5u + local % 2u;
      x_staged[at] = vec4<u32>(pack4xI8(high0), pack4xI8(high1), pack4xI8(high2), pack4xI8(high3));
      x_staged[at + 2u] = vec4<u32>(pack4xI8(low0), pack4xI8(low1), pack4xI8(low2), pack4xI8(low3));
      let sums = fixed0 + fixed1 + fixed2 + fixed3;
      let total = bitcast<u32>(sums.x + sums.y + sums.z + sums.w);
      x_scales[${m * 2 * block}u + local % 2u * ${block}u + local / 2u] = vec2<u32>(bitcast<u32>(largest / 32639.0), total);
    }
//% endmacro

// Adds what unit u of a turn contributes to the sums of all rows.
//% macro multiply(u)
    {
      let at = ${"local%d" % u if whole else "min(local%d, %du)" % (u, block - 1)};
//% for half in range(2)
//% set g = half if groups == 2 else 0
      {
//% for m in range(X_ROWS)
        let x_high${m} = x_staged[at * 5u + ${m * block * 5 + half}u];
        let x_low${m} = x_staged[at * 5u + ${m * block * 5 + 2 + half}u];
        let scale_and_total${m} = x_scales[at + ${(2 * m + half) * block}u];
        let step${m} = ${"bitcast<f32>(scale_and_total%d.x)" % m if whole else "select(0.0, bitcast<f32>(scale_and_total%d.x), has%d)" % (m, u)};
        let total${m} = bitcast<i32>(scale_and_total${m}.y);
//% endfor
//% for w in weight_rows
        {
//% for m in range(X_ROWS)
          var high${m} = 0;
          var low${m} = ${"-%d * total%d" % (ZERO, m) if ZERO else "0"};
//% endfor
//% for j in range(4)
          let codes${j} = codes${4 * half + j}(packed${w}_${u});
//% for m in range(X_ROWS)
          high${m} += dot4I8Packed(codes${j}, x_high${m}.${"xyzw"[j]});
          low${m} += dot4I8Packed(codes${j}, x_low${m}.${"xyzw"[j]});
//% endfor
//% endfor
//% for m in range(X_ROWS)
          sum${w}_${m} += step${m} * (f32(256 * high${m} + low${m}) * scale${g}(packed${w}_${u})
//%- if with_offset
 + f32(total${m}) * offset${g}(packed${w}_${u})
//%- endif
);
//% endfor
        }
//% endfor
      }
//% endfor
    }
//% endmacro
