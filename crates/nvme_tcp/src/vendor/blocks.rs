//! Ranges of blocks, checked against a namespace.

use super::ORDER_BYTES_MAX;
use crate::host_command::BLOCKS_MAX;
use crate::status::Status;
use crate::target::io::Shape;

/// A range of a namespace's blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Blocks {
    /// The first.
    pub slba: u64,
    /// How many, 1 to 65536.
    pub blocks: u32,
}

impl Blocks {
    /// If all of another range is in this one.
    #[must_use]
    pub fn contains(&self, other: &Blocks) -> bool {
        let end = |range: &Blocks| u128::from(range.slba) + u128::from(range.blocks);
        self.slba <= other.slba && end(other) <= end(self)
    }

    /// The range's length in bytes, if it lies inside the namespace and is no longer than an order's may be.
    pub(super) fn bytes_in(&self, shape: &Shape) -> Result<u32, Status> {
        let end = self.slba.checked_add(self.blocks.into());
        if end.is_none_or(|end| end > shape.blocks) {
            return Err(Status::LBA_OUT_OF_RANGE);
        }
        let bytes = u64::from(self.blocks) << shape.block_shift;
        u32::try_from(bytes).ok().filter(|bytes| *bytes <= ORDER_BYTES_MAX).ok_or(Status::INVALID_FIELD)
    }
}

/// A number of blocks as fields have it, less one.
pub(super) fn to_field(blocks: u32) -> u16 {
    assert!((1..=BLOCKS_MAX).contains(&blocks), "{blocks} blocks are none that a command names");
    (blocks - 1) as u16
}

pub(super) fn from_field(field: u16) -> u32 {
    u32::from(field) + 1
}
