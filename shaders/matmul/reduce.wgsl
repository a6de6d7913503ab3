// Sums over the LANES invocations of a lane group, by REDUCE: "subgroup" (shuffles) or "workgroup" (shared memory, in
// which all invocations of the workgroup must take part).

//% if REDUCE == "workgroup"
var<workgroup> shared_sums: array<f32, ${LANES * LANE_GROUPS}>;

fn reduce(value: f32, index: u32) -> f32 {
  workgroupBarrier();
  shared_sums[index] = value;
  for (var half = LANES / 2u; half > 0u; half /= 2u) {
    workgroupBarrier();
    if (index % LANES < half) { shared_sums[index] += shared_sums[index + half]; }
  }
  workgroupBarrier();
  return shared_sums[index - index % LANES];
}
//% else
fn reduce(value: f32, index: u32) -> f32 {
  var sum = value;
  for (var offset = 1u; offset < LANES; offset *= 2u) { sum += subgroupShuffleXor(sum, offset); }
  return sum;
}
//% endif
