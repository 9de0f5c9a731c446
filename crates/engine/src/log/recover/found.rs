//! What a start knows of each segment, what it cannot do, and what it did.

use layout::zoned::{BlockEntry, BlockPlace, Checksum, SegmentHeader};
use smallvec::SmallVec;

use super::decide::{Decision, LiveBlock, SegmentFound, StripeFound, Verdict, blocks_of};
use super::scan::ZoneFound;
use crate::buffer::Slice;
use crate::device::DeviceError;
use crate::error::VolumeError;
use crate::log::degraded::read_block;
use crate::log::port::LogPort;
use crate::zone_device::ZoneDevice;

/// Why an array cannot be started.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecoverError {
    /// A member cannot be read.
    #[error("member {slot} cannot be read: {error}")]
    Member {
        /// Its slot.
        slot: usize,
        /// Why.
        error: DeviceError,
    },
    /// Too few columns of a segment are there. Nothing was changed.
    #[error(
        "segment {segment} lacks {missing} of its {width} columns, more than the level survives; bring back the \
         members that hold them"
    )]
    TooFewColumns {
        /// Its number.
        segment: u64,
        /// Columns without a member or header.
        missing: usize,
        /// Columns in all.
        width: usize,
    },
    /// Two segments say that they are the same place of the map. Nothing was changed.
    #[error("segments {first} and {second} both have slot {slot} of the map")]
    SameSlot {
        /// One.
        first: u64,
        /// The other.
        second: u64,
        /// The slot.
        slot: u32,
    },
    /// A write of the recovery failed.
    #[error("what a crash left half done cannot be finished: {0}")]
    Write(#[from] VolumeError),
}

/// Why what was read is not enough.
pub enum Failure {
    /// The array cannot be started.
    Refused(RecoverError),
    /// The checkpoint cannot be used.
    Checkpoint(&'static str),
}

impl From<RecoverError> for Failure {
    fn from(error: RecoverError) -> Self {
        Failure::Refused(error)
    }
}

impl Failure {
    /// The error of a start that used no checkpoint.
    pub fn into_error(self) -> RecoverError {
        match self {
            Failure::Refused(error) => error,
            Failure::Checkpoint(fault) => unreachable!("no checkpoint was looked at: {fault}"),
        }
    }
}

/// What a recovery found and did, for people.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecoveryReport {
    /// Segments that hold something.
    pub segments: usize,
    /// Segments of which nothing but the headers was read, since the checkpoint's map has what they hold.
    pub left_out: usize,
    /// The map is a checkpoint's and what came after it. Else it was made from all that was ever written.
    pub from_checkpoint: bool,
    /// There is a checkpoint, and it could not be used: why not.
    pub checkpoint_fault: Option<&'static str>,
    /// Groups of the map that what came after the checkpoint belongs to.
    pub replayed_groups: usize,
    /// Segments that were sealed.
    pub sealed: usize,
    /// Stripes that were made whole elsewhere.
    pub moved_stripes: usize,
    /// Stripes that never counted.
    pub void_stripes: usize,
    /// Blocks that had been durable and cannot be made any more.
    pub lost_blocks: usize,
    /// Blocks of segments that were flushed, and of which nothing tells what they were.
    pub unknown_blocks: u32,
    /// Zones that were reset.
    pub reset_zones: usize,
}

/// Zones beside those that hold a column.
#[derive(Debug, Default)]
pub struct Loose {
    /// Zones that no segment names.
    pub unused: Vec<ZoneFound>,
    /// All zones that were active, whatever they hold: none of them may stay so (Z-I9).
    pub active: Vec<ZoneFound>,
}

/// A segment, what is known of it, and what was decided.
pub struct Judged {
    /// What its columns hold.
    pub found: SegmentFound,
    /// The zone of each column that could be read.
    pub zones: Vec<Option<ZoneFound>>,
    /// What counts.
    pub decision: Decision,
    /// Columns without the footer that others have, which lack something that those name: their members were away when it was
    /// written.
    pub lacking: SmallVec<[u8; 2]>,
    /// Nothing of it counts: no record of it was ever written, or a durable entry says that it is emptied, or the checkpoint was
    /// written after it had been.
    pub is_gone: bool,
    /// How many lists it has, if nothing but its headers was read: the rest of what it holds is in the checkpoint's map.
    pub left_out: Option<u16>,
}

/// The blocks of a segment that count, of stripes with such a verdict.
pub fn live_blocks(judged: &Judged, wanted: impl Fn(Verdict) -> bool) -> Vec<LiveBlock> {
    match &judged.decision {
        Decision::Sealed(live) if wanted(Verdict::Keep) => live.clone(),
        Decision::Sealed(_) => Vec::new(),
        Decision::Records { stripes, .. } => {
            let wanted = stripes.iter().filter(|stripe| wanted(stripe.verdict));
            wanted.flat_map(|stripe| placed(&judged.found.header, stripe)).collect()
        }
    }
}

/// The blocks of a stripe, each at a place, where a column that lacks it has the place that it would have.
pub fn placed(header: &SegmentHeader, stripe: &StripeFound) -> Vec<LiveBlock> {
    let placed = |(entry, place): (BlockEntry, Option<BlockPlace>)| Some(LiveBlock { entry, place: place? });
    blocks_of(header, stripe).into_iter().filter_map(placed).collect()
}

/// Reads a block of the log and verifies it, from the other columns where it must be (Z-I12).
pub async fn read_live<D: ZoneDevice>(port: &LogPort<D>, live: &LiveBlock) -> Option<Slice> {
    let is_right = |bytes: &[u8]| Checksum::of(bytes) == live.entry.checksum;
    read_block(port, live.place, live.entry.name, &is_right).await
}
