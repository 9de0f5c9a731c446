//! The 20 bytes that name a block of the log: what it is, when it was written, and what its contents sum to. They are the
//! same in both carriers and in footers, so that what one says the other can be held against.

use std::fmt;

use byte_struct::byte_struct;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, IntoBytes};

use super::error::{Structure, ZonedError};
use super::sequence::Sequence;
use crate::Checksum;

/// Bytes of an entry.
pub const ENTRY_BYTES: usize = size_of::<RawEntry>();

/// Name, offset and size of each field, for the check of `docs/formats.md`.
pub const ENTRY_FIELDS: &[(&str, usize, usize)] = RawEntry::FIELDS;

/// The low bits of the name that say the kind of block; the paper's address in bytes has zeroes there.
const KIND_BITS: u32 = 12;
const PADDING: u64 = u64::MAX;

byte_struct! {
    struct RawEntry, 20 bytes {
        0   8  lba: U64,
        8   8  sequence: U64,
        16  4  checksum: U32,
    }
}

/// What a block of the log is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BlockName {
    /// A block that a client wrote, at this address in blocks.
    User(u64),
    /// A mapping block (bit 0 as in the paper): the address in blocks of the first entry.
    Mapping(u64),
    /// A block of ranges that read as zeroes or are lost.
    Zeroes,
    /// A block of segments that are to be reset.
    Emptied,
    /// A block of the map's root, by its index.
    Root(u64),
    /// A block of the segment table, by its index.
    SegmentTable(u64),
    /// A block of a fence, by its index.
    Fence(u64),
    /// A descriptor, of a record of this many rows. In footers only; the checksum beside it is the descriptor's own.
    Descriptor(u64),
    /// A block at this address that recovery could not make, in footers only: reads of it are errors, never an older value.
    Lost(u64),
    /// Nothing: the rest of a stripe that was due before it was full, or what stands in for a void stripe.
    Padding,
}

impl BlockName {
    /// The highest address in blocks that a name can hold.
    pub const LBA_MAX: u64 = (1 << (64 - KIND_BITS)) - 2;

    /// The name as the number on disk.
    ///
    /// # Panics
    /// If the address or index is above [`BlockName::LBA_MAX`].
    #[must_use]
    pub fn to_word(self) -> u64 {
        let (value, kind) = match self {
            BlockName::User(lba) => (lba, 0),
            BlockName::Mapping(lba) => (lba, 1),
            BlockName::Zeroes => (0, 2),
            BlockName::Emptied => (0, 3),
            BlockName::Root(index) => (index, 4),
            BlockName::SegmentTable(index) => (index, 5),
            BlockName::Fence(index) => (index, 6),
            BlockName::Descriptor(rows) => (rows, 7),
            BlockName::Lost(lba) => (lba, 8),
            BlockName::Padding => return PADDING,
        };
        assert!(value <= Self::LBA_MAX, "block {value} of an array of at most 2^52 blocks");
        value << KIND_BITS | kind
    }

    /// The name that a number on disk stands for, if it stands for one.
    #[must_use]
    pub fn from_word(word: u64) -> Option<BlockName> {
        let value = word >> KIND_BITS;
        match word & ((1 << KIND_BITS) - 1) {
            _ if word == PADDING => Some(BlockName::Padding),
            _ if value > Self::LBA_MAX => None,
            0 => Some(BlockName::User(value)),
            1 => Some(BlockName::Mapping(value)),
            2 if value == 0 => Some(BlockName::Zeroes),
            3 if value == 0 => Some(BlockName::Emptied),
            4 => Some(BlockName::Root(value)),
            5 => Some(BlockName::SegmentTable(value)),
            6 => Some(BlockName::Fence(value)),
            7 => Some(BlockName::Descriptor(value)),
            8 => Some(BlockName::Lost(value)),
            _ => None,
        }
    }
}

impl fmt::Display for BlockName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BlockName::User(lba) => write!(f, "block {lba}"),
            BlockName::Mapping(lba) => write!(f, "map from block {lba}"),
            BlockName::Zeroes => f.write_str("zeroes"),
            BlockName::Emptied => f.write_str("emptied segments"),
            BlockName::Root(index) => write!(f, "map root {index}"),
            BlockName::SegmentTable(index) => write!(f, "segment table {index}"),
            BlockName::Fence(index) => write!(f, "fence {index}"),
            BlockName::Descriptor(rows) => write!(f, "descriptor of {rows} rows"),
            BlockName::Lost(lba) => write!(f, "lost block {lba}"),
            BlockName::Padding => f.write_str("padding"),
        }
    }
}

/// What is known of a block of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BlockEntry {
    /// What it is.
    pub name: BlockName,
    /// The write that made it; a block that was moved keeps its own (Z-I3). Of a mapping block, of the root and of the
    /// segment table: as of which write they are.
    pub sequence: Sequence,
    /// CRC-32C of its contents.
    pub checksum: u32,
}

impl BlockEntry {
    /// Padding of zeroes that goes out with the write `sequence`.
    #[must_use]
    pub fn padding(sequence: Sequence) -> BlockEntry {
        BlockEntry { name: BlockName::Padding, sequence, checksum: ZEROES_CHECKSUM }
    }

    /// The entry of `contents`.
    #[must_use]
    pub fn of(name: BlockName, sequence: Sequence, contents: &[u8]) -> BlockEntry {
        BlockEntry { name, sequence, checksum: Checksum::of(contents) }
    }

    /// Holds contents that were read against the entry (Z-I12).
    ///
    /// # Errors
    /// [`ZonedError::Checksum`] if they are not those that were written.
    pub fn check_contents(&self, contents: &[u8]) -> Result<(), ZonedError> {
        self.check(Structure::Contents, contents)
    }

    /// As [`BlockEntry::check_contents`], for contents that are a `structure`.
    pub(super) fn check(&self, structure: Structure, contents: &[u8]) -> Result<(), ZonedError> {
        let expected = Checksum::of(contents);
        if self.checksum == expected {
            return Ok(());
        }
        Err(ZonedError::Checksum { structure, found: self.checksum, expected })
    }

    /// The entry as it lies in a record or a footer.
    #[must_use]
    pub fn to_bytes(self) -> [u8; ENTRY_BYTES] {
        let raw = RawEntry {
            lba: self.name.to_word().into(),
            sequence: self.sequence.0.into(),
            checksum: self.checksum.into(),
        };
        raw.as_bytes().try_into().expect("bytes of an entry")
    }

    /// The entry in `bytes`, which stand in a `structure` whose checksum was right.
    ///
    /// # Errors
    /// [`ZonedError::Field`] if the name stands for no kind of block.
    pub(super) fn from_bytes(
        structure: Structure,
        bytes: &[u8; ENTRY_BYTES],
    ) -> Result<BlockEntry, ZonedError> {
        let raw = RawEntry::read_from_bytes(bytes).expect("bytes of an entry");
        let word = raw.lba.get();
        let Some(name) = BlockName::from_word(word) else {
            return Err(ZonedError::Field {
                structure,
                field: "lba",
                found: format!("{word:#x}"),
                expected: "an address in bytes, its low 12 bits a kind of block from 0 to 8, or all ones"
                    .into(),
            });
        };
        Ok(BlockEntry { name, sequence: Sequence(raw.sequence.get()), checksum: raw.checksum.get() })
    }
}

/// CRC-32C of a block of zeroes; a test holds it against the checksum.
pub const ZEROES_CHECKSUM: u32 = 0x98f9_4189;
