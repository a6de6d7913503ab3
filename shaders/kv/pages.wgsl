// The slot of a position, among those of all pages: for the shaders that read and write pages.

@group(0) @binding(${CACHE_AT + 2}) var<storage, read> page_table: array<u32>;

fn slot_of(position: u32) -> u32 {
//% if BATCH
  let page = page_table[sequence * ${TABLE_PAGES}u + position / ${PAGE_TOKENS}u];
//% else
  let page = page_table[position / ${PAGE_TOKENS}u];
//% endif
  return page * ${PAGE_TOKENS}u + position % ${PAGE_TOKENS}u;
}
