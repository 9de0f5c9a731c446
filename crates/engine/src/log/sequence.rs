//! The sequence of a write: the number that decides which of two writes of a block is the newer, in memory and in recovery
//! alike (Z-I3), and that never comes twice (Z-I16).
//!
//! The high 24 bits are the number of the epoch, the low 40 bits count within it. The epoch is durable on every member that
//! is present before its first sequence is handed out, so a number that was lost with a write in flight is below every
//! number of the next epoch, and never returns.

use crate::sync::sequential::atomic::{AtomicU64, Ordering::SeqCst};
use layout::zoned::Epoch;

pub use layout::zoned::Sequence;

/// Numbers that are left when the next epoch is to be begun.
const RESERVE: u64 = 1 << 32;

/// The first sequence of an epoch.
fn first_of(epoch: u32) -> Sequence {
    let first = Epoch { number: epoch, random: 0 }.first_sequence();
    Sequence(first.0 + 1)
}

/// Hands out the sequences of an epoch, to every shard. On a cache line of its own: every write of every shard changes it, and
/// reads what stands beside it.
#[repr(align(128))]
pub struct Sequences {
    next: AtomicU64,
}

impl Sequences {
    /// Sequences of an epoch that is durable on every member that is present.
    pub fn new(epoch: u32) -> Self {
        Sequences { next: AtomicU64::new(first_of(epoch).0) }
    }

    /// The next one. None: the epoch has no more, and another must begin.
    pub fn take(&self) -> Option<Sequence> {
        let epoch_of = |next: u64| Sequence(next).epoch_number();
        let next = self.next.load(SeqCst);
        // Shards race past this check by one number each, which the reserve has room for.
        if epoch_of(next) != epoch_of(next + RESERVE) {
            return None;
        }
        Some(Sequence(self.next.fetch_add(1, SeqCst)))
    }

    /// What a segment's header says: above every sequence handed out before.
    pub fn peek(&self) -> Sequence {
        Sequence(self.next.load(SeqCst))
    }

    /// A later epoch begins, which is durable on every member that is present. An earlier one changes nothing.
    pub fn begin(&self, epoch: u32) {
        self.next.fetch_max(first_of(epoch).0, SeqCst);
    }
}

#[cfg(all(test, not(feature = "model")))]
mod tests {
    use super::*;

    /// Z-I16: a start begins above everything that the run before could have handed out, acknowledged or lost.
    #[test]
    fn no_sequence_comes_twice_over_starts() {
        let mut seen = std::collections::BTreeSet::new();
        for epoch in [1, 2, 3, 900, Epoch::NUMBER_MAX] {
            let sequences = Sequences::new(epoch);
            let highest = seen.last().copied();
            for _ in 0..1000 {
                let sequence = sequences.take().expect("an epoch has more");
                assert_eq!(sequence.epoch_number(), epoch);
                assert!(Some(sequence) > highest && seen.insert(sequence));
            }
        }
    }

    /// Z-I16: an epoch ends before its counter runs into the next one's numbers.
    #[test]
    fn an_epoch_that_is_used_up_hands_out_nothing() {
        let sequences = Sequences { next: AtomicU64::new(first_of(8).0 - 2 - RESERVE) };
        assert_eq!(sequences.take().map(Sequence::epoch_number), Some(7));
        assert_eq!(sequences.take(), None);
        sequences.begin(8);
        assert_eq!(sequences.take(), Some(first_of(8)));
        sequences.begin(7);
        assert_eq!(sequences.take().map(Sequence::epoch_number), Some(8), "an earlier epoch changes nothing");
    }
}
