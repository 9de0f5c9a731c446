//! Segment headers, and what the zones behind them hold: records, out-of-band bytes, footers, fences.
#![no_main]

#[allow(dead_code)]
#[path = "../../crates/layout/tests/readers/entries.rs"]
mod entries;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| entries::zoned_segment(bytes));
