//! How the models are run: `cargo xtask models`.

use std::sync::Arc;

/// Schedules of each shuttle model, unless `TWILL_MODEL_SCHEDULES` says otherwise: about a second.
const SCHEDULES: usize = 2_000;
/// Changes of the running thread in a schedule of the second kind: most bugs need one to three.
const DEPTHS: [usize; 2] = [2, 4];
/// Changes of the running thread for loom, which tries all such schedules.
const PREEMPTIONS: usize = 3;

#[cfg(test)]
fn schedules() -> usize {
    let asked = std::env::var("TWILL_MODEL_SCHEDULES").ok();
    asked.map_or(SCHEDULES, |asked| asked.parse().expect("TWILL_MODEL_SCHEDULES is a number"))
}

/// Tries a model under random schedules and under schedules of few changes. A seed that fails is printed, for a replay.
pub(crate) fn check(model: impl Fn() + Send + Sync + 'static) {
    let model = Arc::new(model);
    let again = || {
        let model = Arc::clone(&model);
        move || model()
    };
    shuttle::check_random(again(), schedules() / 2);
    for depth in DEPTHS {
        shuttle::check_pct(again(), schedules() / 4, depth);
    }
}

/// Runs `body` on `count` threads, numbered from 0, and waits for all.
pub(crate) fn threads(count: usize, body: impl Fn(usize) + Send + Sync + 'static) {
    let body = Arc::new(body);
    let start = |index| {
        let body = Arc::clone(&body);
        shuttle::thread::spawn(move || body(index))
    };
    let started: Vec<_> = (0..count).map(start).collect();
    started.into_iter().for_each(|thread| thread.join().expect("no panic"));
}

/// Tries a small model under all schedules with few changes of the running thread, and with every value that a load may
/// return: see the module `sync::weak`.
pub(crate) fn explore(model: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(PREEMPTIONS);
    builder.check(model);
}
