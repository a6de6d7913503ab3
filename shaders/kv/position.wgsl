// Where a row of the step stands. state u32: position of the first row, rows; with BATCH, where each row belongs to
// another sequence: unused, rows, then the position of each row.

//% if BATCH
// The row whose sequence's keys and values are meant.
var<private> sequence: u32;

fn position_of(row: u32) -> u32 { return state[2u + row]; }
//% else
fn position_of(row: u32) -> u32 { return state[0] + row; }
//% endif
