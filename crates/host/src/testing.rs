//! For tests: a ring with an executor on this thread.

use engine::buffer::Pool;
use engine::executor::Executor;
use std::future::Future;
use std::sync::Arc;

use crate::ring::{Ring, RingBackend, RingOptions};

/// A shard without its thread.
#[derive(Clone)]
pub(crate) struct Bench {
    pub ring: Ring,
    pub executor: Executor,
    pub pool: Arc<Pool>,
}

impl Bench {
    pub fn new(backend: RingBackend) -> Self {
        Self::with(&RingOptions { backend, ..RingOptions::default() })
    }

    pub fn with(options: &RingOptions) -> Self {
        let ring = Ring::new(options).expect("a ring");
        let wake = ring.wake_up();
        let pool = crate::buffer::pool_for(&ring, &crate::buffer::BufferOptions::default());
        Bench { ring, executor: Executor::new(Box::new(move || wake.notify())), pool }
    }

    /// Runs `future` and what it starts until it returns.
    pub fn run<T: 'static>(&self, future: impl Future<Output = T> + 'static) -> T {
        let result = self.executor.spawn_with_result(future);
        loop {
            self.turn();
            if let Some(value) = result.try_take() {
                return value;
            }
        }
    }

    /// One turn of a shard's loop.
    pub fn turn(&self) {
        self.executor.run_ready(usize::MAX);
        if self.executor.enter(|| self.ring.reap()) > 0 {
            self.ring.submit();
        } else if self.executor.tasks_alive() > 0 && self.executor.prepare_to_sleep() {
            self.ring.wait(None);
            self.executor.awake();
        }
    }
}

/// The backends that this system allows: io_uring may be forbidden.
pub(crate) fn backends() -> Vec<RingBackend> {
    let options = RingOptions { backend: RingBackend::IoUring, ..RingOptions::default() };
    match Ring::new(&options) {
        Ok(_) => vec![RingBackend::IoUring, RingBackend::Threads],
        Err(error) => {
            eprintln!("skipped: io_uring is not available here ({error})");
            vec![RingBackend::Threads]
        }
    }
}

/// A pattern in which no two blocks are alike.
pub(crate) fn pattern(seed: u64, bytes: usize) -> Vec<u8> {
    let word = |at: usize| (seed ^ (at as u64 / 8)).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes()[at % 8];
    (0..bytes).map(word).collect()
}
