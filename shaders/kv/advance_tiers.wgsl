// Moves the boundary between hot and cold, once a step, before its layers demote and append.
//
// Bindings: state u32 (position of the step's first row, ...); tiers: see read_tiered.wgsl.
// Grid: 1. What lies LAG or more behind the step is cold. A boundary beyond the step stems from before the sequence
// was truncated: what is kept of it stays cold.

const LAG: u32 = ${LAG}u;

@group(0) @binding(0) var<storage, read> state: array<u32>;
@group(0) @binding(1) var<storage, read_write> tiers: array<u32>;

@compute @workgroup_size(1)
fn main() {
  let position = state[0];
  let cold_before = min(tiers[1], position);
  tiers[0] = cold_before;
  tiers[1] = max(cold_before, max(position, LAG) - LAG);
}
