// Parts of gemv.wgsl: x in f32, codes made floats. Sums of a group's products are scaled once.

//% set quads = UNIT // 4
// With few sums each is kept as four, which do not wait for each other.
//% set wide = weight_rows | length * X_ROWS <= 4

//% macro declare()
// Of each row of X, STAGED columns: a unit's quads side by side, and one of padding, which keeps lanes out of each
// other's memory banks.
var<workgroup> x_staged: array<vec4<f32>, ${X_ROWS * block * (quads + 1)}>;
//% endmacro

// Brings `block` units of row m of X into workgroup memory.
//% macro stage(m)
    for (var at = index; at < ${block * quads}u; at += ${invocations}u) {
      let quad = start * ${quads}u + at;
      var value = vec4<f32>(0.0);
      if (quad < QUADS) {
        value = vec4<f32>(x[(x_row + ${m}u) * QUADS + quad]);
//% if NORM
        squares_${m} += dot(value, value);
        value *= norm[quad];
//% endif
      }
      x_staged[${m * block * (quads + 1)}u + at + at / ${quads}u] = value;
    }
//% endmacro

// Adds what unit u of a turn contributes to the sums of all rows.
//% macro multiply(u)
//% for g in range(groups)
    {
//% for m in range(X_ROWS)
//% if with_offset
      var total_${m} = vec4<f32>(0.0);
//% endif
//% for w in weight_rows
      var part${w}_${m} = ${"vec4<f32>(0.0)" if wide else "0.0"};
//% endfor
//% endfor
//% for j in range(g * quads // groups, (g + 1) * quads // groups)
      {
//% for w in weight_rows
        let q${w} = quad${j}(packed${w}_${u});
//% endfor
//% for m in range(X_ROWS)
        {
//% if STAGED
          var value = x_staged[${m * block * (quads + 1) + j}u + ${"local%d" % u if whole else "min(local%d, %du)" % (u, block - 1)} * ${quads + 1}u];
//% else
          var value = vec4<f32>(x[(x_row + ${m}u) * QUADS + unit${u} * ${quads}u + ${j}u]);
//% endif
//% if not whole
          value = select(vec4<f32>(0.0), value, has${u});
//% endif
//% if NORM and not STAGED
          squares_${m} += dot(value, value);
          value *= norm[unit${u} * ${quads}u + ${j}u];
//% endif
//% if with_offset
          total_${m} += value;
//% endif
//% if mantissa
          value *= X_SCALE;
//% endif
//% for w in weight_rows
//% if wide
          part${w}_${m} += q${w} * value;
//% else
          part${w}_${m} = fma(q${w}.w, value.w, fma(q${w}.z, value.z, fma(q${w}.y, value.y, fma(q${w}.x, value.x, part${w}_${m}))));
//% endif
//% endfor
        }
//% endfor
      }
//% endfor
//% for m in range(X_ROWS)
//% if with_offset
      let sum_x${m} = total_${m}.x + total_${m}.y + total_${m}.z + total_${m}.w;
//% endif
//% for w in weight_rows
//% set product = "(part%s_%d.x + part%s_%d.y + part%s_%d.z + part%s_%d.w)" % (w, m, w, m, w, m, w, m) if wide else "part%s_%d" % (w, m)
      sum${w}_${m} += ${product}
//%- if quantised
 * scale${g}(packed${w}_${u})
//%- endif
//%- if with_offset
 + sum_x${m} * offset${g}(packed${w}_${u})
//%- endif
;
//% endfor
//% endfor
    }
//% endfor
//% endmacro
