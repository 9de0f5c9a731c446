//! Lines at the control socket.
#![no_main]

#[path = "../../crates/twill/tests/control_lines/entries.rs"]
mod entries;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| entries::control(bytes));
