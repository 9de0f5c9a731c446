//! The map's blocks in the log of a zoned array: mapping blocks, zeroes, emptied segments, root, segment table.
#![no_main]

#[allow(dead_code)]
#[path = "../../crates/layout/tests/readers/entries.rs"]
mod entries;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| entries::zoned_map(bytes));
