//! Readers pin what they read: a segment's zones are not reset while a read that found its place in the map is under way
//! (Z-I4).
//!
//! Each shard counts its readers by epoch. To reset, reclaim first takes the segment out of the map's reach, then begins a
//! new epoch and waits until no reader of an earlier one is left on any shard. A reader enters before it looks at the map,
//! so one that entered later cannot have found the segment.

use std::task::{Poll, Waker};

use crate::sync::sequential::Mutex;
use crate::sync::sequential::atomic::{AtomicU64, Ordering::SeqCst};

/// The readers of all shards.
pub struct Pins {
    epoch: AtomicU64,
    shards: Box<[ShardPins]>,
    waiting: Mutex<Vec<Waker>>,
}

/// The readers of one shard: those of even and of odd epochs. Two counts suffice: an epoch begins only when the readers
/// of the one before the current have left.
#[repr(align(128))]
#[derive(Default)]
struct ShardPins {
    readers: [AtomicU64; 2],
}

/// A reader. It pins every segment that it finds in the map until it is dropped.
pub struct Pin<'a> {
    pins: &'a Pins,
    shard: usize,
    parity: usize,
}

impl Pins {
    /// No readers, on this many shards.
    pub fn new(shards: usize) -> Self {
        let shards = (0..shards).map(|_| ShardPins::default()).collect();
        Pins { epoch: AtomicU64::new(0), shards, waiting: Mutex::new(Vec::new()) }
    }

    /// A read begins on `shard`: called before it looks at the map.
    pub fn enter(&self, shard: usize) -> Pin<'_> {
        loop {
            let epoch = self.epoch.load(SeqCst);
            let parity = (epoch & 1) as usize;
            self.shards[shard].readers[parity].fetch_add(1, SeqCst);
            if self.epoch.load(SeqCst) == epoch {
                return Pin { pins: self, shard, parity };
            }
            // An epoch began in between: its waiter may not have seen this reader.
            self.leave(shard, parity);
        }
    }

    fn leave(&self, shard: usize, parity: usize) {
        let before = self.shards[shard].readers[parity].fetch_sub(1, SeqCst);
        assert!(before > 0, "a reader leaves once");
        if before == 1 {
            let waiting = std::mem::take(&mut *self.waiting.lock());
            waiting.into_iter().for_each(Waker::wake);
        }
    }

    /// Waits until every reader that entered before this call has left. One caller at a time.
    pub async fn readers_left(&self) {
        let parity = (self.epoch.fetch_add(1, SeqCst) & 1) as usize;
        let empty = || self.shards.iter().all(|shard| shard.readers[parity].load(SeqCst) == 0);
        std::future::poll_fn(|context| {
            if empty() {
                return Poll::Ready(());
            }
            self.waiting.lock().push(context.waker().clone());
            if empty() { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }
}

impl Drop for Pin<'_> {
    fn drop(&mut self) {
        self.pins.leave(self.shard, self.parity);
    }
}

#[cfg(all(test, feature = "model"))]
mod model {
    //! Model of the pins: no segment is reset under a reader that found it in the map.

    use super::*;
    use crate::sync::models::{check, threads};
    use crate::sync::sequential::atomic::AtomicBool;
    use shuttle::future::block_on;

    #[test]
    fn no_zone_is_reset_under_a_reader() {
        check(|| {
            let (pins, mapped, reset) = (Pins::new(2), AtomicBool::new(true), AtomicBool::new(false));
            threads(3, move |thread| match thread {
                0 => {
                    block_on(pins.readers_left()); // another segment's, so that both parities are used
                    mapped.store(false, SeqCst);
                    block_on(pins.readers_left());
                    reset.store(true, SeqCst);
                }
                reader => {
                    for _ in 0..2 {
                        let pin = pins.enter(reader - 1);
                        if mapped.load(SeqCst) {
                            shuttle::thread::yield_now();
                            assert!(!reset.load(SeqCst), "reset under a reader");
                        }
                        drop(pin);
                    }
                }
            });
        });
    }
}

#[cfg(all(test, not(feature = "model")))]
mod tests {
    use super::*;
    use std::future::Future;
    use std::pin::pin;
    use std::task::Context;

    #[test]
    fn who_resets_waits_for_earlier_readers_only() {
        let pins = Pins::new(2);
        let mut context = Context::from_waker(Waker::noop());
        let early = pins.enter(1);
        let mut left = pin!(pins.readers_left());
        assert!(left.as_mut().poll(&mut context).is_pending());
        let late = pins.enter(0);
        assert!(left.as_mut().poll(&mut context).is_pending());
        drop(early);
        assert!(
            left.as_mut().poll(&mut context).is_ready(),
            "the later reader cannot have found the segment"
        );
        drop(late);
    }
}
