//! Counters of a shard, for status and benchmarks. Only the shard itself counts, so a count costs a plain load and store.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        /// Counters of one shard, on cache lines of their own.
        #[derive(Debug, Default)]
        #[repr(align(128))]
        pub struct Counters { $($(#[$doc])* pub $name: Count),* }

        /// The counters of all shards added up.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
        pub struct CounterTotals { $($(#[$doc])* pub $name: u64),* }

        impl CounterTotals {
            /// Adds up the counters of all shards.
            pub fn of(shards: &[Counters]) -> Self {
                let mut totals = CounterTotals::default();
                for counters in shards {
                    $(totals.$name += counters.$name.get();)*
                }
                totals
            }
        }
    };
}

counters! {
    /// Read requests.
    reads,
    /// Bytes of read requests.
    read_bytes,
    /// Write requests.
    writes,
    /// Bytes of write requests.
    write_bytes,
    /// Flushes.
    flushes,
    /// Discards and zeroing requests.
    zeroings,
    /// Stripe writes made (several requests may share one).
    stripe_writes,
    /// Requests that joined another's stripe write.
    joined_writes,
    /// Stripe writes that read nothing because they had all data.
    full_stripe_writes,
    /// Steps of stripe writes by read-modify-write.
    rmw,
    /// Steps of stripe writes by reconstruct-write.
    rcw,
    /// Steps of stripe writes that recovered lost data first.
    recovered_writes,
    /// Steps for which the adaptive policy overrode fewest reads.
    adjusted_updates,
    /// Reads of lost chunks that came whole from the other members' targets.
    peer_reads,
    /// Stripes of a rebuild or resync, and windows of a check, that the members' targets did among themselves.
    peer_upkeep,
    /// Steps of stripe writes whose parity the members' targets made among themselves.
    peer_steps,
    /// Times that such a step was sent again, in part, since a message was lost.
    resent_steps,
    /// Of those steps, the ones that the host made again, since a target or the way to it failed.
    mended_steps,
    /// Reads that were reconstructed from other members.
    reconstructed_reads,
    /// Reads that were reconstructed because their member was slow.
    avoided_reads,
    /// Reads at members.
    member_reads,
    /// Bytes read at members.
    member_read_bytes,
    /// Writes at members.
    member_writes,
    /// Bytes written at members.
    member_write_bytes,
    /// Records written to the redo log, each copy counted.
    redo_writes,
    /// Bytes of those records.
    redo_write_bytes,
}

/// A counter that one shard writes and any thread may read.
#[derive(Debug, Default)]
pub struct Count(AtomicU64);

impl Count {
    /// Adds `n`. Only the owning shard calls this: a load and a store, no locked instruction.
    pub fn add(&self, n: u64) {
        self.0.store(self.0.load(Relaxed).wrapping_add(n), Relaxed);
    }

    /// The count.
    pub fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}
