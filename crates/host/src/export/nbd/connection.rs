//! A connection as other threads see it: its client, its age, its counts; and how they ask it to stop.

use serde::Serialize;
use std::ops::AddAssign;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use parking_lot::Mutex;

macro_rules! counts {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// What was served, by connection or by export.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
        pub struct Totals {
            $($(#[$doc])* pub $name: u64,)*
        }

        impl AddAssign for Totals {
            fn add_assign(&mut self, other: Totals) {
                $(self.$name += other.$name;)*
            }
        }

        /// Live counts of one connection, changed by its shard.
        #[derive(Debug, Default)]
        pub struct Counts {
            $($(#[$doc])* pub $name: Count,)*
            /// Requests without a reply.
            pub in_flight: Count,
        }

        impl Counts {
            /// The present values.
            pub fn totals(&self) -> Totals {
                Totals { $($name: self.$name.get(),)* }
            }
        }
    };
}

counts! {
    /// Reads answered.
    reads,
    /// Writes answered.
    writes,
    /// Flushes answered.
    flushes,
    /// Trims answered.
    trims,
    /// Zeroed ranges answered.
    zeroes,
    /// Requests of any other kind answered, refused ones among them.
    others,
    /// Bytes read.
    read_bytes,
    /// Bytes written, zeroes not counted.
    written_bytes,
    /// Requests answered with an error.
    errors,
}

/// A count that one thread changes and any thread reads.
#[derive(Debug, Default)]
pub struct Count(AtomicU64);

impl Count {
    /// Adds; called by the owning shard only, so that no locked instruction is needed.
    pub fn add(&self, more: u64) {
        self.0.store(self.0.load(Ordering::Relaxed) + more, Ordering::Relaxed);
    }

    /// Replaces the value; called by the owning shard only.
    pub fn set(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }

    /// The value.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// A request from any thread to one task, made once and never taken back.
#[derive(Debug, Default)]
pub struct Signal {
    raised: AtomicBool,
    waker: Mutex<Option<Waker>>,
}

impl Signal {
    /// Makes the request.
    pub fn raise(&self) {
        self.raised.store(true, Ordering::Release);
        if let Some(waker) = self.waker.lock().take() {
            waker.wake();
        }
    }

    /// Whether the request was made.
    pub fn is_raised(&self) -> bool {
        self.raised.load(Ordering::Acquire)
    }

    /// Ready once the request was made. One task waits.
    pub fn poll_raised(&self, context: &mut Context<'_>) -> Poll<()> {
        *self.waker.lock() = Some(context.waker().clone());
        // After the waker is in place: a later raise finds the waker, an earlier one is seen here.
        if self.is_raised() { Poll::Ready(()) } else { Poll::Pending }
    }
}

/// A connection as other threads see it.
pub struct Connection {
    /// Unique for the life of the server.
    pub id: u64,
    /// Where the client is: an address or a process.
    pub peer: String,
    /// The shard that serves it.
    pub shard: usize,
    /// When it was accepted.
    pub opened: Instant,
    /// The client encrypts.
    pub encrypted: AtomicBool,
    /// What was served.
    pub counts: Counts,
    /// Asks the connection to take no further requests, to finish those it has, and to close.
    pub stop: Signal,
}

/// A connection for a status report.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ConnectionStatus {
    /// Unique for the life of the server.
    pub id: u64,
    /// Where the client is: an address or a process.
    pub peer: String,
    /// The export it uses; none during the handshake.
    pub export: Option<String>,
    /// The shard that serves it.
    pub shard: usize,
    /// Age in seconds.
    pub age_s: f64,
    /// The client encrypts.
    pub encrypted: bool,
    /// Requests without a reply at this moment.
    pub in_flight: u64,
    /// It was asked to stop and is finishing.
    pub stopping: bool,
    /// What was served.
    #[serde(flatten)]
    pub totals: Totals,
}

impl Connection {
    /// For a status report; `export` is the name of the export that the client has chosen.
    pub fn status(&self, export: Option<&str>) -> ConnectionStatus {
        ConnectionStatus {
            id: self.id,
            peer: self.peer.clone(),
            export: export.map(str::to_owned),
            shard: self.shard,
            age_s: self.opened.elapsed().as_secs_f64(),
            encrypted: self.encrypted.load(Ordering::Relaxed),
            in_flight: self.counts.in_flight.get(),
            stopping: self.stop.is_raised(),
            totals: self.counts.totals(),
        }
    }
}
