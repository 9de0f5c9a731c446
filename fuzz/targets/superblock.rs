//! md superblocks, of any minor version on devices of several sizes.
#![no_main]

#[allow(dead_code)]
#[path = "../../crates/layout/tests/readers/entries.rs"]
mod entries;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| entries::superblock(bytes));
