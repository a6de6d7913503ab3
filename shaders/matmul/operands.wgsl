// What a matmul reads besides W, and Y that it writes: bindings from at.next on, which ends as the next one that is free.
//
// Bindings: X (T, COLUMNS) ${X_TYPE}; [bias (rows of W) f32]; [B of the adapters (rows of W, LORA_RANK) f32];
//           [norm weight (COLUMNS) f32]; [low_rank (T, LORA_RANK) f32]; [residual ${Y_TYPE}];
//           Y (T, Y_COLUMNS) ${Y_TYPE}, where this part of W fills OUT_ROWS columns from FIRST_ROW on.

@group(0) @binding(${at.next}) var<storage, read> x: array<vec4<${X_TYPE}>>;
//% set at.next = at.next + 1
//% if BIAS
@group(0) @binding(${at.next}) var<storage, read> bias: array<f32>;
//% set at.next = at.next + 1
//% endif
//% if LORA_RANK
@group(0) @binding(${at.next}) var<storage, read> lora_b: array<f32>;
//% set at.next = at.next + 1
//% endif
//% if NORM
@group(0) @binding(${at.next}) var<storage, read> norm: array<vec4<f32>>;
//% set at.next = at.next + 1
//% endif
//% if LORA_RANK
@group(0) @binding(${at.next}) var<storage, read> low_rank: array<f32>;
//% set at.next = at.next + 1
//% endif
//% if RESIDUAL
@group(0) @binding(${at.next}) var<storage, read> residual: array<${Y_TYPE}>;
//% set at.next = at.next + 1
//% endif
@group(0) @binding(${at.next}) var<storage, read_write> y: array<${Y_TYPE}>;
//% set at.next = at.next + 1
