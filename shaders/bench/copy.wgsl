// Copies one buffer to another of the same size, a multiple of 16 bytes: what a device's memory can do at best.
//
// Bindings: source, destination (words, four at a time).
// Grid: ceil(vectors / (SIZE * UNROLL)) workgroups, folded over x and y.

@group(0) @binding(0) var<storage, read> source: array<vec4<u32>>;
@group(0) @binding(1) var<storage, read_write> destination: array<vec4<u32>>;

@compute @workgroup_size(${SIZE})
fn main(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(num_workgroups) count: vec3<u32>,
        @builtin(local_invocation_index) index: u32) {
  let first = (workgroup.x + workgroup.y * count.x) * ${SIZE * UNROLL}u + index;
  let size = arrayLength(&source);
  // All are asked for before any is written; past the end the last vector is copied once more.
//% for u in range(UNROLL)
  let at${u} = min(first + ${u * SIZE}u, size - 1u);
  let value${u} = source[at${u}];
//% endfor
//% for u in range(UNROLL)
  destination[at${u}] = value${u};
//% endfor
}
