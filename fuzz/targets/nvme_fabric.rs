//! Records of the fabric, of hosts and of other targets.
#![no_main]

#[allow(dead_code)]
#[path = "../../crates/nvme_tcp/tests/readers/entries.rs"]
mod entries;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| entries::fabric(bytes));
