//! The reader of the control socket on mutations of good calls, without an array behind it.

mod calls;
#[path = "../../../layout/tests/readers/corpus.rs"]
mod corpus;
mod entries;

use calls::{Random, calls};

const LINES: usize = 50_000;

#[test]
fn control_lines() {
    let calls = calls();
    let seeds: Vec<Vec<u8>> = calls.iter().map(|call| call.clone().into_bytes()).collect();
    corpus::run("control", &seeds, entries::control);
    let mut random = Random(2);
    for number in 0..LINES {
        entries::control(&random.mutate(&calls[number % calls.len()]));
    }
}
