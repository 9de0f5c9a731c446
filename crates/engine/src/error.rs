//! Why a request of a client fails.

use layout::units::DeviceOffset;
use layout::units::Slot;

/// Why a request was not done.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum VolumeError {
    /// The request is outside the volume.
    #[error("{bytes} bytes at {offset_bytes} are outside the volume of {size_bytes} bytes")]
    OutOfRange {
        /// Start of the request.
        offset_bytes: u64,
        /// Length of the request.
        bytes: u64,
        /// Size of the volume.
        size_bytes: u64,
    },
    /// Offset or length is not a multiple of the logical block.
    #[error(
        "{bytes} bytes at {offset_bytes} are not multiples of the logical block of {logical_block_bytes} bytes"
    )]
    Misaligned {
        /// Start of the request.
        offset_bytes: u64,
        /// Length of the request.
        bytes: u64,
        /// The unit.
        logical_block_bytes: u32,
    },
    /// The volume is read-only.
    #[error("the volume is read-only")]
    ReadOnly,
    /// Members ran out of space (sparse files on a full file system). Nothing acknowledged is lost.
    #[error("no space left under member {member}")]
    NoSpace {
        /// Slot of the member.
        member: Slot,
    },
    /// More members failed than the level survives, or a place could be neither read nor reconstructed.
    #[error("I/O error: {reason}")]
    Io {
        /// What happened.
        reason: String,
    },
    /// A member cannot read a block, and it cannot be reconstructed: too many members are missing, or parity may not agree.
    #[error(
        "I/O error: member {member} cannot read its block at byte {offset_bytes}, and the others cannot make it"
    )]
    Unreadable {
        /// Slot of the member.
        member: Slot,
        /// Where on its device.
        offset_bytes: DeviceOffset,
    },
    /// Another host has taken the array over.
    #[error("another host has taken the array over")]
    Fenced,
    /// The volume is being stopped.
    #[error("the volume is stopping")]
    Stopping,
}

/// The superblocks of the array can no longer be written: no write is acknowledged any more.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MetadataLost;

impl From<MetadataLost> for VolumeError {
    fn from(_: MetadataLost) -> Self {
        VolumeError::Io { reason: "the superblocks cannot be written".to_string() }
    }
}
