//! Superblocks of zoned members.
#![no_main]

#[allow(dead_code)]
#[path = "../../crates/layout/tests/readers/entries.rs"]
mod entries;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| entries::zoned_superblock(bytes));
