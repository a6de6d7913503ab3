// The slot of a position, among those of all rings: for the shaders that read and write rings.

@group(0) @binding(${CACHE_AT + 2}) var<storage, read> rings: array<u32>;

fn slot_of(position: u32) -> u32 {
//% if BATCH
  let ring = rings[sequence];
//% else
  let ring = rings[0];
//% endif
  return ring * ${RING_CAPACITY}u + position % ${RING_CAPACITY}u;
}
