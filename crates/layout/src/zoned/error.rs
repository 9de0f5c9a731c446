//! Why bytes of a zoned member cannot be believed.

use std::fmt;

use crate::uuid::display_uuid;

/// The structures of the format, by the names that people read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Structure {
    /// A block of the superblock log.
    Superblock,
    /// Block 0 of a zone of a segment.
    SegmentHeader,
    /// The in-band descriptor of a record.
    Descriptor,
    /// The out-of-band metadata of a block.
    Oob,
    /// A block of a footer.
    Footer,
    /// A block of a fence.
    Fence,
    /// A block of map entries.
    Mapping,
    /// A block of the map's root.
    Root,
    /// A block of the segment table.
    SegmentTable,
    /// A block of ranges that read as zeroes.
    Zeroes,
    /// A block of segments that are to be reset.
    Emptied,
    /// A block of a record's contents.
    Contents,
}

impl fmt::Display for Structure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Structure::Superblock => "superblock",
            Structure::SegmentHeader => "segment header",
            Structure::Descriptor => "record descriptor",
            Structure::Oob => "out-of-band metadata",
            Structure::Footer => "footer",
            Structure::Fence => "fence",
            Structure::Mapping => "mapping block",
            Structure::Root => "map root",
            Structure::SegmentTable => "segment table",
            Structure::Zeroes => "zeroes block",
            Structure::Emptied => "emptied block",
            Structure::Contents => "block contents",
        })
    }
}

/// What is wrong with a structure.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ZonedError {
    /// Fewer bytes than the structure has.
    #[error("{structure}: {found} bytes of {needed}")]
    Truncated {
        /// What was to be read.
        structure: Structure,
        /// Bytes there are.
        found: usize,
        /// Bytes there should be.
        needed: usize,
    },
    /// There is no such structure here: the magic is another.
    #[error("no {structure} here")]
    Absent {
        /// What was looked for.
        structure: Structure,
    },
    /// Torn or damaged.
    #[error("{structure}: checksum {found:#010x}, expected {expected:#010x}")]
    Checksum {
        /// What was read.
        structure: Structure,
        /// The checksum that goes with the bytes.
        found: u32,
        /// The checksum of the bytes.
        expected: u32,
    },
    /// A version that this program does not know.
    #[error("{structure}: version {found}, this program knows {known}")]
    Version {
        /// What was read.
        structure: Structure,
        /// Its version.
        found: u32,
        /// The version that is written.
        known: u32,
    },
    /// The array needs a feature that this program does not have.
    #[error(
        "superblock: the array needs feature {bit} (bit {bit} of incompat), which this program does not know"
    )]
    UnknownFeature {
        /// The bit's number.
        bit: u32,
    },
    /// Whole, but of another array, member, segment or place.
    #[error("{structure}: {field} is {found}, expected {expected}: it belongs elsewhere")]
    Foreign {
        /// What was read.
        structure: Structure,
        /// The field's name in `docs/formats.md`.
        field: &'static str,
        /// Its value, with its unit.
        found: String,
        /// The value that belongs here.
        expected: String,
    },
    /// The checksum is right but a value makes no sense: the program that wrote it is wrong.
    #[error("{structure}: {field} is {found}, expected {expected}")]
    Field {
        /// What was read.
        structure: Structure,
        /// The field's name in `docs/formats.md`.
        field: &'static str,
        /// Its value, with its unit.
        found: String,
        /// What it may be, in words.
        expected: String,
    },
}

impl Structure {
    /// [`ZonedError::Field`] unless `holds`. Both texts are made only then.
    pub(super) fn require(
        self,
        holds: bool,
        field: &'static str,
        found: impl FnOnce() -> String,
        expected: impl FnOnce() -> String,
    ) -> Result<(), ZonedError> {
        if holds {
            return Ok(());
        }
        Err(ZonedError::Field { structure: self, field, found: found(), expected: expected() })
    }

    /// The value that a field stands for; [`ZonedError::Field`] if it stands for none.
    pub(super) fn known<T>(
        self,
        value: Option<T>,
        field: &'static str,
        found: impl FnOnce() -> String,
        expected: impl FnOnce() -> String,
    ) -> Result<T, ZonedError> {
        self.require(value.is_some(), field, found, expected)?;
        Ok(value.expect("checked"))
    }

    /// [`ZonedError::Foreign`] unless both are equal.
    pub(super) fn belongs<T: PartialEq + fmt::Display + Copy>(
        self,
        field: &'static str,
        found: T,
        expected: T,
    ) -> Result<(), ZonedError> {
        if found == expected {
            return Ok(());
        }
        let (found, expected) = (found.to_string(), expected.to_string());
        Err(ZonedError::Foreign { structure: self, field, found, expected })
    }

    /// [`ZonedError::Foreign`] unless both are the same array or device.
    pub(super) fn belongs_to(
        self,
        field: &'static str,
        found: &[u8; 16],
        expected: &[u8; 16],
    ) -> Result<(), ZonedError> {
        if found == expected {
            return Ok(());
        }
        let (found, expected) = (display_uuid(found), display_uuid(expected));
        Err(ZonedError::Foreign { structure: self, field, found, expected })
    }

    /// [`ZonedError::Field`] unless all of `reserve`, which begins at `offset`, is zero.
    pub(super) fn reserved(self, reserve: &[u8], offset: usize) -> Result<(), ZonedError> {
        // Without a branch for each byte: every descriptor that is read has kilobytes of it.
        if reserve.iter().fold(0, |any, byte| any | byte) == 0 {
            return Ok(());
        }
        match reserve.iter().position(|byte| *byte != 0) {
            None => Ok(()),
            Some(at) => Err(ZonedError::Field {
                structure: self,
                field: "reserve",
                found: format!("{:#04x} at byte {}", reserve[at], offset + at),
                expected: "zeroes".into(),
            }),
        }
    }
}
