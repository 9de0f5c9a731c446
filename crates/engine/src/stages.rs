//! The stages of a stripe write, measured by an [`Observer`] with a clock; the engine has none. Without an observer a
//! stripe write pays one load, and a branch where a stage or a [`Lock`] ends.

use crate::sync::sequential::Mutex;

/// What a stripe write is doing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Stage {
    /// Marks its intent and becomes the owner of the stripe, or joins the owner's batch.
    Claim,
    /// Lets other writes join, or waits for the owner that it joined.
    Wait,
    /// Plans, and reads old data and parity.
    PreRead,
    /// Makes new parity.
    Parity,
    /// Writes data and parity.
    Write,
    /// Waits for metadata, releases the stripe and passes the result to the writes that joined.
    Complete,
}

impl Stage {
    /// All stages, in order.
    pub const ALL: [Stage; 6] =
        [Stage::Claim, Stage::Wait, Stage::PreRead, Stage::Parity, Stage::Write, Stage::Complete];
}

/// What the writes of all shards contend for: a lock, or the atomic words in its place (ScalaRAID figure 6d).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Lock {
    /// Over the counters of the bitmap: a write is counted when it begins and when it ends.
    Counters,
    /// Over the stripe table: a write claims its stripe, or finds its owner, and releases it.
    Stripes,
}

impl Lock {
    /// All of them.
    pub const ALL: [Lock; 2] = [Lock::Counters, Lock::Stripes];
}

/// Measures stripe writes.
pub trait Observer: Send + Sync {
    /// A stripe write begins on `shard`: whether to measure it.
    fn wants(&self, shard: usize) -> bool;

    /// Nanoseconds since some fixed moment.
    fn now_ns(&self) -> u64;

    /// A write on `shard` was in `stage` for `ns` nanoseconds, including the time in which other tasks ran.
    fn spent(&self, shard: usize, stage: Stage, ns: u64);

    /// A write on `shard` waited `wait_ns` nanoseconds for `lock` and held it for `held_ns`. Without a lock the wait is 0
    /// and `held_ns` is the time of the same work.
    fn locked(&self, shard: usize, lock: Lock, wait_ns: u64, held_ns: u64);
}

/// The stage that a write is in, and since when.
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

    /// A watch that measures nothing.
    pub(crate) fn off(shard: usize) -> Watch<'static> {
        Watch { observer: None, shard, stage: Stage::Claim, since_ns: 0 }
    }

    /// The shard of the write.
    #[inline]
    pub(crate) fn shard(&self) -> usize {
        self.shard
    }

    /// Does work under a lock.
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

    /// Does the same work where atomic words need no lock.
    #[inline]
    pub(crate) fn without<R>(&self, lock: Lock, work: impl FnOnce() -> R) -> R {
        let Some(observer) = self.observer else { return work() };
        let since_ns = observer.now_ns();
        let result = work();
        observer.locked(self.shard, lock, 0, observer.now_ns() - since_ns);
        result
    }

    /// Ends the present stage and enters the next.
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
