//! Why Twill refuses a superblock, a bitmap or a bad-block log.

use crate::geometry::GeometryError;
use crate::units::Sectors;

/// The unit of a field, for a person.
fn unit(field: &str) -> &'static str {
    match field {
        "size" | "chunksize" | "data_offset" | "data_size" | "super_offset" | "recovery_offset"
        | "resync_offset" | "sync_size" => " sectors",
        "logical_block_size" | "unit_bytes" => " bytes",
        _ => "",
    }
}

/// What is wrong with a superblock, its bitmap or its bad-block log.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SuperblockError {
    /// The device is too small for a superblock at this place.
    #[error("device of {device_bytes} bytes is too small for an md superblock")]
    DeviceTooSmall {
        /// Size of the device, in bytes.
        device_bytes: u64,
    },
    /// Fewer bytes than the superblock says it has.
    #[error("superblock cut short: {found} bytes, needs {needed}")]
    Truncated {
        /// Bytes there are.
        found: usize,
        /// Bytes there should be.
        needed: usize,
    },
    /// No magic number where one should be.
    #[error("no md superblock: magic is {found:#010x}, should be {expected:#010x}", expected = super::raw::MAGIC)]
    NoSuperblock {
        /// The word found there.
        found: u32,
    },
    /// md's format before version 1.
    #[error("superblock is version 0.90, which Twill does not run: move the array to 1.x with mdadm first")]
    Version090,
    /// A major version other than 1.
    #[error("superblock has major version {0}, should be 1")]
    Version(u32),
    /// More roles than fit in 4 KiB, or none.
    #[error("superblock has room for {found} roles, should be 1 to {most}", most = super::raw::MAX_DEV)]
    RoleCount {
        /// The number of roles it says it has.
        found: u32,
    },
    /// The checksum does not match: the superblock is damaged or half written.
    #[error("checksum is {found:#010x}, should be {expected:#010x}")]
    Checksum {
        /// The checksum in the superblock.
        found: u32,
        /// The checksum of its bytes.
        expected: u32,
    },
    /// The superblock was written for another place: `dd` copied the device, or its partition was changed.
    #[error("superblock was written for offset {written_for} bytes, found at {found_at}")]
    WrongPlace {
        /// Where it says it is, in bytes.
        written_for: u64,
        /// Where it was read, in bytes.
        found_at: u64,
    },
    /// Padding that md keeps zero is not zero. Like md, Twill takes that for a newer feature.
    #[error("padding {field} is not zero: written by a newer md")]
    Padding {
        /// The padding's name in `docs/formats.md`.
        field: &'static str,
    },
    /// A value that md never writes.
    #[error("{field} is {found}{unit}, should be {expected}", unit = unit(field))]
    Field {
        /// The field's name in `docs/formats.md`.
        field: &'static str,
        /// Its value.
        found: u64,
        /// What it may be, in words.
        expected: String,
    },
    /// The data area reaches beyond the end of the device, or into the superblock.
    #[error("data at {data_offset} of {data_size} does not fit below {limit}")]
    DataBeyondEnd {
        /// Start of the data area.
        data_offset: Sectors,
        /// Length of the data area.
        data_size: Sectors,
        /// Where it must end.
        limit: Sectors,
    },
    /// The bitmap or the bad-block log overlaps something else.
    #[error("{area} at {start} of {length} lies over {over}")]
    Overlap {
        /// `bitmap` or `bad-block log`.
        area: &'static str,
        /// Where it starts on the device.
        start: Sectors,
        /// Its length, as far as the superblock knows it.
        length: Sectors,
        /// What is there.
        over: &'static str,
    },
    /// Level, layout, chunk and members do not make an array.
    #[error(transparent)]
    Geometry(#[from] GeometryError),
    /// The bitmap's superblock has another magic number.
    #[error("no bitmap: magic is {found:#010x}, should be {expected:#010x}")]
    NoBitmap {
        /// The word found there.
        found: u32,
        /// The magic number of every bitmap.
        expected: u32,
    },
    /// A bitmap version that Twill does not support.
    #[error("bitmap has version {version} ({name}), which Twill does not keep: it keeps version 4")]
    BitmapVersion {
        /// The bitmap's version.
        version: u32,
        /// md's word for it.
        name: &'static str,
    },
    /// The bitmap belongs to another array.
    #[error("bitmap is of array {found}, should be {expected}")]
    BitmapUuid {
        /// The array it belongs to.
        found: String,
        /// The array it was found in.
        expected: String,
    },
    /// The bitmap is larger than its room.
    #[error("bitmap needs {needed} bytes, has room for {room}")]
    BitmapTooLarge {
        /// Bytes of the bitmap, its superblock included.
        needed: u64,
        /// Bytes up to the next thing on the device.
        room: u64,
    },
    /// The bad-block log is full. An error that cannot be recorded makes the member unusable: it must be failed.
    #[error("bad-block log is full: {entries} entries, room for {room}")]
    BadBlockLogFull {
        /// Entries to write.
        entries: usize,
        /// Entries that fit.
        room: usize,
    },
    /// A range that an entry of the bad-block log cannot express.
    #[error("bad-block entry at {start} of {length}: the log holds up to 1023 sectors below sector 2^54")]
    BadBlockRange {
        /// Its start on the device.
        start: Sectors,
        /// Its length.
        length: Sectors,
    },
}
