//! Orders, what they come to, and what passes between targets: the values that host and targets exchange.

use std::ops::Range;

use smallvec::SmallVec;

/// The number of an op within an attach; it only grows (F-I3).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Op(pub u64);

/// A member as the targets of an attach name each other.
pub type PeerIndex = u8;

/// Most members of an attach, so that a set of them is one word.
pub const PEERS_MAX: usize = 32;

/// An op, and the lowest one of the same host that is not retired: what is below has no effect any more.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stamp {
    /// The op.
    pub op: Op,
    /// Lowest op that is not retired; at most `op`.
    pub lowest: Op,
}

/// Where a contribution goes, and what it is multiplied by on the way.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Destination {
    /// The reducer.
    pub peer: PeerIndex,
    /// The factor in GF(2^8).
    pub coefficient: u8,
}

/// What a contribution is made of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum How {
    /// What is on the drive.
    Old,
    /// The difference of what is on the drive and what is written (read-modify-write).
    Delta,
    /// What will be on the drive: old contents under the new ones (reconstruct-write).
    Overlay,
}

/// What a reduction starts from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Base {
    /// Zeroes.
    Zero,
    /// What is on the drive where the result goes (read-modify-write).
    Old,
    /// What is on the drive, times a coefficient: the reducer is one of those that contribute.
    Own(u8),
}

/// Where a reduction ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sink {
    /// On the drive.
    Drive,
    /// At the host.
    Host,
    /// Nowhere: what is on the drive is compared with it.
    Compare,
}

/// What a target does in an op. Ranges are in bytes of the namespace.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Role {
    /// Contributes to other targets' reductions.
    Contribute {
        /// Made of what.
        how: How,
        /// What is written, with the data of the order. Empty: nothing.
        own: Range<u64>,
        /// What is contributed: `own` for a delta, else as much and more.
        rows: Range<u64>,
        /// Where to.
        to: SmallVec<[Destination; 2]>,
    },
    /// Adds contributions up.
    Reduce {
        /// To what.
        base: Base,
        /// Where they belong.
        rows: Range<u64>,
        /// How many targets contribute.
        contributions: u8,
        /// What becomes of the sum.
        sink: Sink,
    },
}

impl How {
    /// Whether what is on the drive is read, where `own` of these rows is written.
    pub(super) fn reads(self, own: &Range<u64>, rows: &Range<u64>) -> bool {
        self != How::Overlay || own != rows
    }
}

impl Base {
    /// Whether a reduction from here to `sink` reads what is on the drive.
    pub(super) fn reads(self, sink: Sink) -> bool {
        self != Base::Zero || sink == Sink::Compare
    }
}

impl Role {
    /// What a target reads whatever data the order brings.
    #[must_use]
    pub fn read_before_data(&self) -> Option<Range<u64>> {
        let (reads, rows) = match self {
            Role::Contribute { how, own, rows, .. } => (how.reads(own, rows), rows),
            Role::Reduce { base, rows, sink, .. } => (base.reads(*sink), rows),
        };
        reads.then(|| rows.clone())
    }
}

/// What a host tells a target to do.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Order {
    /// The op that it is a part of.
    pub stamp: Stamp,
    /// What is to be done.
    pub role: Role,
    /// What is written is durable before the answer.
    pub fua: bool,
}

/// A part of a reduction, on its way from one target to another.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Contribution {
    /// The op.
    pub stamp: Stamp,
    /// Whose it is: each member contributes once.
    pub from: PeerIndex,
    /// Where it belongs at the reducer.
    pub rows: Range<u64>,
    /// It is answered when the reduction is complete, and not when it was added: the contributor overwrites on that word.
    pub when_complete: bool,
}

/// What a host asks about an op whose answer it lacks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Settle {
    /// A step that has not begun is cancelled; one that has begun is waited for.
    Abort,
    /// Waits for the end of what was ordered.
    Ask,
    /// The difference that the op contributed goes to one of its reducers again, under another op: that reducer did not apply it.
    Resend {
        /// The reducer.
        to: PeerIndex,
        /// The op under which it counts from now on.
        under: Op,
    },
}

/// How an order, a contribution or a question ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ending {
    /// As it should.
    Done,
    /// The drive could not read.
    ReadFailed,
    /// The drive could not write.
    WriteFailed,
    /// The drive has no space for the write.
    NoSpace,
    /// A reducer did not take the contribution.
    PeerUnreachable,
    /// The op is retired.
    Retired,
    /// The op was aborted.
    Aborted,
    /// The contribution came twice, or where it does not belong.
    ContributionRefused,
    /// What was to come did not come in time.
    TimeOver,
    /// The difference that was to be sent again is gone: it was never made, or the target was restarted.
    DeltaGone,
    /// The target has never seen the op; it will refuse it from now on.
    NeverSeen,
    /// It takes more memory than the host was given: a bug of the host.
    NoCredit,
    /// The order makes no sense.
    Invalid,
}

/// What a target has done of an op.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Outcome {
    /// Old contents were read.
    pub read: bool,
    /// A write began. Without `written` its range holds old or new contents, or a mixture.
    pub write_begun: bool,
    /// Own new contents are on the drive.
    pub written: bool,
    /// The reducers took the contribution: first and second destination.
    pub forwarded: [bool; 2],
    /// The sum is on the drive, or on its way to the host.
    pub applied: bool,
    /// The sum equals what is on the drive.
    pub equal: bool,
    /// The difference of old and new contents is kept until the op is retired.
    pub retained: bool,
}

/// An answer of a target.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Answer {
    /// How it ended.
    pub ending: Ending,
    /// What was done.
    pub outcome: Outcome,
}

impl Answer {
    /// An answer to what changed nothing.
    #[must_use]
    pub fn nothing(ending: Ending) -> Self {
        Answer { ending, outcome: Outcome::default() }
    }
}

impl Order {
    /// Whether ranges and numbers fit each other. Their place in the namespace is for the caller to check.
    #[must_use]
    pub fn is_sound(&self, data_bytes: u64) -> bool {
        let holds =
            |outer: &Range<u64>, inner: &Range<u64>| outer.start <= inner.start && inner.end <= outer.end;
        let is_ordered = self.stamp.lowest <= self.stamp.op;
        let fits = match &self.role {
            Role::Contribute { how, own, rows, to } => {
                let writes = !own.is_empty();
                let shape = match how {
                    How::Old => !writes,
                    How::Delta => writes && own == rows,
                    How::Overlay => writes && holds(rows, own),
                };
                let own_bytes = own.end.saturating_sub(own.start);
                let is_apart = !matches!(&to[..], [one, other] if one.peer == other.peer);
                let known = to.iter().all(|to| usize::from(to.peer) < PEERS_MAX);
                shape && !rows.is_empty() && own_bytes == data_bytes && is_apart && known
            }
            Role::Reduce { base, rows, contributions, sink } => {
                let reads_old = !matches!((base, sink), (Base::Old, Sink::Compare | Sink::Host));
                reads_old && !rows.is_empty() && usize::from(*contributions) <= PEERS_MAX && data_bytes == 0
            }
        };
        is_ordered && fits
    }
}
