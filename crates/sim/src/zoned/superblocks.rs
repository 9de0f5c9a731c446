//! What the superblocks of a zoned array say, as values, and which of them speaks: the newest epoch that served, then the
//! highest sequence. Each member has the whole; one is written as one block with FUA, so a cut leaves the old or the new.

use engine::members::MemberState;
use layout::zoned::Checkpoint;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Superblock {
    pub(super) sequence: u64,
    /// The number of the last epoch that was begun.
    pub(super) epoch: u32,
    /// The number of the last one that served.
    pub(super) served: u32,
    /// Segment numbers below this may be in use.
    pub(super) numbers: u64,
    /// Where recovery begins.
    pub(super) checkpoint: Option<Checkpoint>,
    pub(super) states: Vec<MemberState>,
    /// The identity of the member in each slot.
    pub(super) devices: Vec<[u8; 16]>,
    /// Members were added, and older segments are narrower.
    pub(super) growing: bool,
}

/// The superblock that speaks.
pub(super) fn newest<'a>(all: impl Iterator<Item = &'a Superblock>) -> Option<&'a Superblock> {
    all.max_by_key(|superblock| (superblock.served, superblock.sequence))
}
