//! The sequence of a write: the number that decides which of two writes of a block is the newer, in memory and in recovery
//! alike (Z-I3), and that never comes twice (Z-I16).
//!
//! The high 24 bits are the number of the epoch, the low 40 bits count within it. The epoch is durable on every member that
//! is present before its first sequence is handed out, so a number that was lost with a write in flight is below every
//! number of the next epoch, and never returns.

use crate::sync::sequential::atomic::{AtomicU64, Ordering::SeqCst};

/// Bits that count within an epoch: 12.7 days at a million writes a second.
const COUNTER_BITS: u32 = 40;
/// Numbers of an epoch: 16.7 million starts.
pub const EPOCHS_MAX: u32 = (1 << (64 - COUNTER_BITS)) - 1;
/// Numbers that are left when the next epoch is to be begun.
const RESERVE: u64 = 1 << 32;

/// A sequence. 0 is no write's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Sequence(pub u64);

impl Sequence {
    /// The first sequence of an epoch.
    pub fn first_of(epoch: u32) -> Sequence {
        assert!((1..=EPOCHS_MAX).contains(&epoch), "epochs count from 1 up to 24 bits");
        Sequence((u64::from(epoch) << COUNTER_BITS) + 1)
    }

    /// The number of its epoch.
    pub fn epoch(self) -> u32 {
        (self.0 >> COUNTER_BITS) as u32
    }
}

/// Hands out the sequences of an epoch, to every shard.
pub struct Sequences {
    next: AtomicU64,
}

impl Sequences {
    /// Sequences of an epoch that is durable on every member that is present.
    pub fn new(epoch: u32) -> Self {
        Sequences { next: AtomicU64::new(Sequence::first_of(epoch).0) }
    }

    /// The next one. None: the epoch has no more, and another must begin.
    pub fn take(&self) -> Option<Sequence> {
        let epoch_of = |next: u64| Sequence(next).epoch();
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
        self.next.fetch_max(Sequence::first_of(epoch).0, SeqCst);
    }
}

#[cfg(all(test, not(feature = "model")))]
mod tests {
    use super::*;

    /// Z-I16: a start begins above everything that the run before could have handed out, acknowledged or lost.
    #[test]
    fn no_sequence_comes_twice_over_starts() {
        let mut seen = std::collections::BTreeSet::new();
        for epoch in [1, 2, 3, 900, EPOCHS_MAX] {
            let sequences = Sequences::new(epoch);
            let highest = seen.last().copied();
            for _ in 0..1000 {
                let sequence = sequences.take().expect("an epoch has more");
                assert_eq!(sequence.epoch(), epoch);
                assert!(Some(sequence) > highest && seen.insert(sequence));
            }
        }
    }

    /// Z-I16: an epoch ends before its counter runs into the next one's numbers.
    #[test]
    fn an_epoch_that_is_used_up_hands_out_nothing() {
        let sequences = Sequences { next: AtomicU64::new(Sequence::first_of(8).0 - 2 - RESERVE) };
        assert_eq!(sequences.take().map(Sequence::epoch), Some(7));
        assert_eq!(sequences.take(), None);
        sequences.begin(8);
        assert_eq!(sequences.take(), Some(Sequence::first_of(8)));
        sequences.begin(7);
        assert_eq!(sequences.take().map(Sequence::epoch), Some(8), "an earlier epoch changes nothing");
    }
}
