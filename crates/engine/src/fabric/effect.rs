//! What comes to a target's state machine, and what its driver does for it.

use std::ops::Range;

use super::order::{Answer, Contribution, Ending, Op, Order, PeerIndex, Settle, Stamp};
use crate::buffer::{Buffer, Gather, Slice};

/// What comes to a target. `T` names a command to the driver.
pub enum Input<T> {
    /// An order, and the new contents that it brings.
    Order {
        /// What is to be done.
        order: Order,
        /// New contents of the order's own rows.
        data: Gather,
        /// To be answered.
        token: T,
    },
    /// A contribution of a peer.
    Contribution {
        /// What it is.
        contribution: Contribution,
        /// Its contents.
        data: Gather,
        /// To be answered.
        token: T,
    },
    /// A question of the host.
    Settle {
        /// Which op.
        stamp: Stamp,
        /// What is to become of it.
        how: Settle,
        /// To be answered.
        token: T,
    },
    /// The drive has answered a read.
    Read {
        /// Of which op.
        op: Op,
        /// What it read.
        result: Result<Buffer, ()>,
    },
    /// The drive has answered a write.
    Written {
        /// Of which op.
        op: Op,
        /// Whether it was made; else [`Ending::WriteFailed`] or [`Ending::NoSpace`].
        result: Result<(), Ending>,
    },
    /// A peer has answered a contribution, or cannot be asked.
    Forwarded {
        /// Of which op.
        op: Op,
        /// Which destination of the order.
        destination: usize,
        /// What it said.
        ending: Ending,
    },
    /// The time of a reduction is over.
    Limit {
        /// Of which op.
        op: Op,
    },
}

/// What a driver does for a target.
pub enum Effect<T> {
    /// Reads, and puts in [`Input::Read`].
    Read {
        /// For which op.
        op: Op,
        /// Where.
        rows: Range<u64>,
    },
    /// Writes, and puts in [`Input::Written`].
    Write {
        /// For which op.
        op: Op,
        /// Where.
        start: u64,
        /// What.
        data: Gather,
        /// Durable before it is answered.
        fua: bool,
    },
    /// Sends a contribution to a peer, and puts in [`Input::Forwarded`].
    Forward {
        /// Which destination of the order it is.
        destination: usize,
        /// The peer.
        to: PeerIndex,
        /// What it is. Its rows are those of this target's namespace.
        contribution: Contribution,
        /// Its contents.
        data: Slice,
    },
    /// Answers a command.
    Answer {
        /// Which.
        token: T,
        /// How.
        answer: Answer,
        /// Data for the host.
        data: Gather,
    },
    /// Puts in [`Input::Limit`] when a reduction that begins now has had its time.
    Limit {
        /// Of which op.
        op: Op,
    },
}

/// What a driver does next, in order.
pub type Effects<T> = Vec<Effect<T>>;
