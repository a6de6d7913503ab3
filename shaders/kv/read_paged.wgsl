// Keys and values in pages: each (pages, PAGE_TOKENS, NUM_KV_HEADS, HEAD_DIM) ${KV_TYPE}.
//
// Bindings: key pages at CACHE_AT, value pages, page table u32 (page of each PAGE_TOKENS positions),
//           with BATCH one of TABLE_PAGES entries for each row of the step.

@group(0) @binding(${CACHE_AT}) var<storage, read> key_pages: array<vec4<${KV_TYPE}>>;
@group(0) @binding(${CACHE_AT + 1}) var<storage, read> value_pages: array<vec4<${KV_TYPE}>>;
//% include "kv/pages.wgsl"

fn key_at(position: u32, kv_head: u32, quad: u32) -> vec4<f32> {
  return vec4<f32>(key_pages[(slot_of(position) * NUM_KV_HEADS + kv_head) * QUADS + quad]);
}

fn value_at(position: u32, kv_head: u32, quad: u32) -> vec4<f32> {
  return vec4<f32>(value_pages[(slot_of(position) * NUM_KV_HEADS + kv_head) * QUADS + quad]);
}
