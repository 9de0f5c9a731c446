//! A computer that runs the engine, in virtual time.

use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;

use engine::buffer::Pool;
use engine::executor::Executor;
use engine::log::port::LogPlatform;

use crate::random::Random;
use crate::timeline::Timeline;
use crate::world::pending;

struct Clock {
    time: Rc<Timeline>,
    random: Random,
}

impl LogPlatform for Clock {
    fn now_ns(&self) -> u64 {
        self.time.now_ns()
    }

    fn sleep_until(&self, at_ns: u64) -> Pin<Box<dyn Future<Output = ()>>> {
        let (pending, filler) = pending();
        self.time.after(at_ns.saturating_sub(self.time.now_ns()), move || filler.fill(()));
        Box::pin(pending)
    }

    fn random(&self) -> u64 {
        self.random.next()
    }
}

/// A computer that runs the engine.
#[derive(Clone)]
pub(super) struct Machine {
    pub(super) time: Rc<Timeline>,
    pub(super) executor: Executor,
    pub(super) pool: Arc<Pool>,
    pub(super) platform: Rc<dyn LogPlatform>,
}

impl Machine {
    /// Runs until the work has ended; what else runs then is killed. Drives, and time, live on.
    pub(super) fn run<T: 'static, F: Future<Output = T> + 'static>(
        time: &Rc<Timeline>,
        work: impl FnOnce(Machine) -> F,
    ) -> T {
        let executor = Executor::new(Box::new(|| {}));
        // Another start draws other tags of segments.
        let random = Random::new(2 ^ time.now_ns());
        let platform: Rc<dyn LogPlatform> = Rc::new(Clock { time: Rc::clone(time), random });
        let pool = Pool::new(64 << 20);
        let machine = Machine { time: Rc::clone(time), executor: executor.clone(), pool, platform };
        let working = executor.spawn_with_result(work(machine));
        let result = loop {
            executor.run_ready(usize::MAX);
            if let Some(result) = working.try_take() {
                break result;
            }
            executor.enter(time.next().expect("something is under way"));
        };
        executor.abandon();
        result
    }

    pub(super) async fn sleep(&self, ns: u64) {
        self.platform.sleep_until(self.time.now_ns() + ns).await;
    }
}
