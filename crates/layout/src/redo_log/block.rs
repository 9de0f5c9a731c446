//! What every block of the log begins with: its kind, its array and member, and the place that it was written for.

use zerocopy::{FromBytes, FromZeros, IntoBytes};

use super::raw::{BLOCK_BYTES, RawStart};
use crate::Checksum;
use crate::uuid::display_uuid;

/// The version that is written. Version 1, which has no [`super::PieceKind::Missing`] and no
/// [`super::PieceKind::Unlogged`], can be read too.
pub const VERSION: u32 = 2;

/// The array, the member and the place of a block. Every block repeats it, so that a misdirected write or a leftover of
/// another array is not taken for a block of this log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The array.
    pub set_uuid: [u8; 16],
    /// The member.
    pub device_uuid: [u8; 16],
    /// Where on the device, in bytes.
    pub offset_bytes: u64,
}

/// Why a block of the log cannot be believed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RedoError {
    /// There is no log: the magic is another.
    #[error("no redo log here")]
    Absent,
    /// Fewer bytes than a block.
    #[error("{found} bytes of {needed}")]
    Truncated {
        /// Bytes there are.
        found: usize,
        /// Bytes there should be.
        needed: usize,
    },
    /// A version that this program does not know.
    #[error("version {0} of the redo log, this is {VERSION}")]
    Version(u32),
    /// Torn or damaged.
    #[error("checksum {found:#x}, expected {expected:#x}")]
    Checksum {
        /// The checksum in the block.
        found: u32,
        /// The checksum of its bytes.
        expected: u32,
    },
    /// The block belongs to another array or member, or was written for another place.
    #[error("it belongs to array {} member {}, byte {}", display_uuid(&.0.set_uuid), display_uuid(&.0.device_uuid), .0.offset_bytes)]
    Foreign(Place),
    /// The checksum is right but a value makes no sense: the program that wrote it is wrong.
    #[error("{field} is {found}, expected {expected}")]
    Field {
        /// The field's name in `docs/formats.md`.
        field: &'static str,
        /// Its value.
        found: u64,
        /// What it may be, in words.
        expected: &'static str,
    },
}

/// The start of a block for `place`; [`sealed`] fills in its checksum.
pub(super) fn start(magic: [u8; 8], place: Place) -> RawStart {
    let mut start = RawStart::new_zeroed();
    start.magic = magic;
    start.version.set(VERSION);
    start.set_uuid = place.set_uuid;
    start.device_uuid = place.device_uuid;
    start.place.set(place.offset_bytes);
    start
}

/// The block with these contents, filled up with zeroes, and with its checksum.
pub(super) fn sealed(mut block: Vec<u8>) -> Vec<u8> {
    block.resize(BLOCK_BYTES, 0);
    let sum = Checksum::of(&block);
    let (start, _) = RawStart::mut_from_prefix(&mut block).expect("a start fits in a block");
    start.checksum.set(sum);
    block
}

/// Checks what was read at `place`: magic, checksum, version, array, member and place, in this order.
pub(super) fn check(bytes: &[u8], magic: [u8; 8], place: Place) -> Result<(), RedoError> {
    let Some(bytes) = bytes.get(..BLOCK_BYTES) else {
        return Err(RedoError::Truncated { found: bytes.len(), needed: BLOCK_BYTES });
    };
    let (mut start, rest) = RawStart::read_from_prefix(bytes).expect("a start fits in a block");
    if start.magic != magic {
        return Err(RedoError::Absent);
    }
    let found = start.checksum.get();
    start.checksum.set(0);
    let mut sum = Checksum::default();
    sum.add(start.as_bytes());
    sum.add(rest);
    if found != sum.value() {
        return Err(RedoError::Checksum { found, expected: sum.value() });
    }
    let version = start.version.get();
    if !(1..=VERSION).contains(&version) {
        return Err(RedoError::Version(version));
    }
    let (set_uuid, device_uuid) = (start.set_uuid, start.device_uuid);
    let written_for = Place { set_uuid, device_uuid, offset_bytes: start.place.get() };
    if written_for == place { Ok(()) } else { Err(RedoError::Foreign(written_for)) }
}
