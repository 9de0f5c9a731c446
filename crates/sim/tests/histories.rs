//! A few hundred histories, and that a seed replays exactly.

use sim::{Options, run};

#[test]
fn nothing_is_found_in_a_few_hundred_histories() {
    for seed in 1..=300 {
        if let Err(failure) = run(seed, &Options { tail: 60, ..Options::default() }) {
            panic!(
                "seed {seed}: {}\n{}\n{}\nreplay: cargo run --release -p sim -- --seed {seed} --verbose",
                failure.what,
                failure.scenario,
                failure.tail.join("\n")
            );
        }
    }
}

#[test]
fn a_seed_replays_exactly() {
    for seed in 1000..1020 {
        let one = run(seed, &Options::default()).expect("a good seed");
        let two = run(seed, &Options::default()).expect("a good seed");
        assert_eq!(one, two, "seed {seed}");
    }
}
