//! Where the time of a stripe write goes, for whoever has a clock: the engine has none. Without an [`Observer`] a
//! stripe write pays one load, and a branch where a stage or a [`Lock`] ends.

use crate::sync::sequential::Mutex;

/// What a stripe write is doing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Stage {
    /// Marks its intent and becomes the owner of the stripe, or joins the owner.
    Claim,
    /// Lets others join, or waits for the owner it joined.
    Wait,
    /// Plans, and reads old data and parity.
    PreRead,
    /// Makes new parity.
    Parity,
    /// Writes data and parity.
    Write,
    /// Keeps the parity, gives the stripe up and tells those who joined.
    Complete,
}

impl Stage {
    /// Every stage, in order.
    pub const ALL: [Stage; 6] =
        [Stage::Claim, Stage::Wait, Stage::PreRead, Stage::Parity, Stage::Write, Stage::Complete];
}

/// What the writes of all shards meet at: a lock, or the words in its place that are changed by themselves (ScalaRAID
/// figure 6d).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Lock {
    /// Over the counters of the bitmap: a write comes and goes.
    Counters,
    /// Over the table of stripes in work: a write becomes the owner of its stripe, or finds it, and gives it up.
    Stripes,
}

impl Lock {
    /// Every one.
    pub const ALL: [Lock; 2] = [Lock::Counters, Lock::Stripes];
}

/// Someone with a clock.
pub trait Observer: Send + Sync {
    /// A stripe write begins on `shard`: whether to tell its stages.
    fn wants(&self, shard: usize) -> bool;

    /// Nanoseconds since some fixed moment.
    fn now_ns(&self) -> u64;

    /// A write on `shard` was in `stage` for `ns` nanoseconds, other tasks' turns included.
    fn spent(&self, shard: usize, stage: Stage, ns: u64);

    /// A write on `shard` waited `wait_ns` nanoseconds for `lock` and had it for `held_ns`; without a lock the second is
    /// what its work takes.
    fn locked(&self, shard: usize, lock: Lock, wait_ns: u64, held_ns: u64);
}

/// The stage a write is in, and since when.
pub(crate) struct Watch<'a> {
    observer: Option<&'a dyn Observer>,
    shard: usize,
    stage: Stage,
    since_ns: u64,
}

impl<'a> Watch<'a> {
    pub(crate) fn begin(observer: Option<&'a dyn Observer>, shard: usize) -> Self {
        let observer = observer.filter(|observer| observer.wants(shard));
        let since_ns = observer.map_or(0, Observer::now_ns);
        Watch { observer, shard, stage: Stage::Claim, since_ns }
    }

    /// Nobody is told anything.
    pub(crate) fn off(shard: usize) -> Watch<'static> {
        Watch { observer: None, shard, stage: Stage::Claim, since_ns: 0 }
    }

    /// The shard of the write.
    #[inline]
    pub(crate) fn shard(&self) -> usize {
        self.shard
    }

    /// Does what has to be done under a lock.
    pub(crate) fn hold<T, R>(&self, lock: Lock, mutex: &Mutex<T>, work: impl FnOnce(&mut T) -> R) -> R {
        let Some(observer) = self.observer else { return work(&mut mutex.lock()) };
        let asked_ns = observer.now_ns();
        let mut guard = mutex.lock();
        let got_ns = observer.now_ns();
        let result = work(&mut guard);
        drop(guard);
        observer.locked(self.shard, lock, got_ns - asked_ns, observer.now_ns() - got_ns);
        result
    }

    /// Does the same work where no lock is needed for it.
    #[inline]
    pub(crate) fn without<R>(&self, lock: Lock, work: impl FnOnce() -> R) -> R {
        let Some(observer) = self.observer else { return work() };
        let since_ns = observer.now_ns();
        let result = work();
        observer.locked(self.shard, lock, 0, observer.now_ns() - since_ns);
        result
    }

    /// The stage so far is over.
    #[inline]
    pub(crate) fn enter(&mut self, stage: Stage) {
        if let Some(observer) = self.observer {
            let now_ns = observer.now_ns();
            observer.spent(self.shard, self.stage, now_ns - self.since_ns);
            (self.stage, self.since_ns) = (stage, now_ns);
        }
    }
}

impl Drop for Watch<'_> {
    fn drop(&mut self) {
        self.enter(self.stage);
    }
}
