//! The stages of a stripe write, measured by an [`Observer`] with a clock; the engine has none. Stripe writes
//! that it does not want, and those of an array without one, have a [`Watch`] that is a type that does nothing.

use std::cell::Cell;

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
    /// A write begins on `shard`: whether to measure it.
    fn wants(&self, shard: usize) -> bool;

    /// Nanoseconds since some fixed moment.
    fn now_ns(&self) -> u64;

    /// A write on `shard` was in `stage` for `ns` nanoseconds, including the time in which other tasks ran.
    fn spent(&self, shard: usize, stage: Stage, ns: u64);

    /// A write on `shard` waited `wait_ns` nanoseconds for `lock` and held it for `held_ns`. Without a lock the wait is 0
    /// and `held_ns` is the time of the same work.
    fn locked(&self, shard: usize, lock: Lock, wait_ns: u64, held_ns: u64);
}

/// Follows a stripe write through its stages. The type decides whether that measures anything: a product's write has no
/// branch for it.
pub(crate) trait Watch: Copy {
    /// The shard of the write.
    fn shard(self) -> usize;

    /// Does work under a lock.
    fn hold<T, R>(self, lock: Lock, mutex: &Mutex<T>, work: impl FnOnce(&mut T) -> R) -> R;

    /// Does the same work where atomic words need no lock.
    fn without<R>(self, lock: Lock, work: impl FnOnce() -> R) -> R;

    /// Ends the present stage and enters the next.
    fn enter(self, stage: Stage);
}

/// Measures nothing. It knows the shard of the write.
#[derive(Clone, Copy)]
pub(crate) struct Unwatched(pub(crate) usize);

impl Watch for Unwatched {
    #[inline]
    fn shard(self) -> usize {
        self.0
    }

    #[inline]
    fn hold<T, R>(self, _: Lock, mutex: &Mutex<T>, work: impl FnOnce(&mut T) -> R) -> R {
        work(&mut mutex.lock())
    }

    #[inline]
    fn without<R>(self, _: Lock, work: impl FnOnce() -> R) -> R {
        work()
    }

    #[inline]
    fn enter(self, _: Stage) {}
}

/// The stage that a measured write is in, and since when.
pub(crate) struct Stopwatch<'a> {
    observer: &'a dyn Observer,
    shard: usize,
    /// The stage, and when it began in nanoseconds.
    stage: Cell<(Stage, u64)>,
}

impl<'a> Stopwatch<'a> {
    pub(crate) fn begin(observer: &'a dyn Observer, shard: usize) -> Self {
        Stopwatch { observer, shard, stage: Cell::new((Stage::Claim, observer.now_ns())) }
    }
}

impl Watch for &Stopwatch<'_> {
    fn shard(self) -> usize {
        self.shard
    }

    fn hold<T, R>(self, lock: Lock, mutex: &Mutex<T>, work: impl FnOnce(&mut T) -> R) -> R {
        let observer = self.observer;
        let asked_ns = observer.now_ns();
        let mut guard = mutex.lock();
        let got_ns = observer.now_ns();
        let result = work(&mut guard);
        drop(guard);
        observer.locked(self.shard, lock, got_ns - asked_ns, observer.now_ns() - got_ns);
        result
    }

    fn without<R>(self, lock: Lock, work: impl FnOnce() -> R) -> R {
        let since_ns = self.observer.now_ns();
        let result = work();
        self.observer.locked(self.shard, lock, 0, self.observer.now_ns() - since_ns);
        result
    }

    fn enter(self, stage: Stage) {
        let now_ns = self.observer.now_ns();
        let (ended, since_ns) = self.stage.replace((stage, now_ns));
        self.observer.spent(self.shard, ended, now_ns - since_ns);
    }
}

impl Drop for Stopwatch<'_> {
    fn drop(&mut self) {
        (&*self).enter(self.stage.get().0);
    }
}
