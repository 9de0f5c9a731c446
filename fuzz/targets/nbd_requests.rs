//! NBD requests after the handshake.
#![no_main]

#[allow(dead_code)]
#[path = "../../crates/host/tests/nbd_bytes/entries.rs"]
mod entries;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| entries::requests(bytes));
