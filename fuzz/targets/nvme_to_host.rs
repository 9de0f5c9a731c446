//! What a controller of NVMe over TCP sends to a host.
#![no_main]

#[allow(dead_code)]
#[path = "../../crates/nvme_tcp/tests/streams/entries.rs"]
mod entries;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| entries::to_host(bytes));
