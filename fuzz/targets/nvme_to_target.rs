//! What a host sends to a controller of NVMe over TCP.
#![no_main]

#[allow(dead_code)]
#[path = "../../crates/nvme_tcp/tests/streams/entries.rs"]
mod entries;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| entries::to_target(bytes));
