//! Requests of a virtio block device and its configuration: pure (virtio 1.2, 5.2).

use engine::error::VolumeError;
use engine::volume::VolumeInfo;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, IntoBytes};

pub(super) const SECTOR_BYTES: u64 = 512;

/// Characters of the serial number.
pub(super) const SERIAL_BYTES: usize = 20;

/// Most data segments of a request: a ring of 128 entries, QEMU's default, also has a header and a status.
const SEGMENTS_MAX: u32 = 126;

/// Most ranges of one discard, and most sectors of each: 2 GiB.
const RANGES_MAX: u32 = 64;

/// Bytes of the longest list of ranges.
pub(super) const RANGES_BYTES_MAX: usize = RANGES_MAX as usize * size_of::<RangeHeader>();
const RANGE_SECTORS_MAX: u32 = 1 << 22;

/// Offset of the only field that a driver may write.
pub(super) const WRITE_CACHE_AT: u32 = 32;

/// Feature bits of the block device.
pub(super) mod feature {
    pub const SEGMENTS_MAX: u64 = 1 << 2;
    pub const READ_ONLY: u64 = 1 << 5;
    pub const BLOCK_SIZE: u64 = 1 << 6;
    pub const FLUSH: u64 = 1 << 9;
    pub const TOPOLOGY: u64 = 1 << 10;
    pub const CACHE_MODE: u64 = 1 << 11;
    pub const QUEUES: u64 = 1 << 12;
    pub const DISCARD: u64 = 1 << 13;
    pub const WRITE_ZEROES: u64 = 1 << 14;
    pub const INDIRECT: u64 = 1 << 28;
    pub const EVENT_INDEX: u64 = 1 << 29;
    pub const PROTOCOL: u64 = 1 << 30;
    pub const VERSION_1: u64 = 1 << 32;
}

/// What the device offers.
pub(super) fn features(info: &VolumeInfo) -> u64 {
    let changes = match info.read_only {
        true => feature::READ_ONLY,
        false => feature::DISCARD | feature::WRITE_ZEROES,
    };
    feature::SEGMENTS_MAX
        | feature::BLOCK_SIZE
        | feature::FLUSH
        | feature::TOPOLOGY
        | feature::CACHE_MODE
        | feature::QUEUES
        | feature::INDIRECT
        | feature::EVENT_INDEX
        | feature::PROTOCOL
        | feature::VERSION_1
        | changes
}

/// `struct virtio_blk_config`, as far as this device has it.
#[derive(Clone, Copy, Default, IntoBytes, zerocopy::Immutable, zerocopy::Unaligned)]
#[repr(C)]
struct Config {
    sectors: U64,
    size_max: U32,
    segments_max: U32,
    geometry: [u8; 4],
    block_bytes: U32,
    /// Logical blocks of a physical one, as a power of two.
    physical_exponent: u8,
    alignment: u8,
    /// In logical blocks.
    min_io: U16,
    optimal_io: U32,
    write_cache: u8,
    unused: u8,
    queues: U16,
    discard_sectors_max: U32,
    discard_ranges_max: U32,
    discard_alignment: U32,
    zero_sectors_max: U32,
    zero_ranges_max: U32,
    zero_may_unmap: u8,
    unused_end: [u8; 3],
}

const _: () = assert!(size_of::<Config>() == 60);

/// The configuration space: `bytes` from `offset` on; what is beyond its end is zero.
pub(super) fn config(info: &VolumeInfo, queues: u16, write_cache: bool, offset: u32, bytes: u32) -> Vec<u8> {
    let block = info.logical_block_bytes;
    let io_min = u16::try_from(info.io_min_bytes / block).unwrap_or(0);
    let block_sectors = u32::try_from(u64::from(block) / SECTOR_BYTES).expect("a small block");
    let config = Config {
        sectors: (info.size_bytes / SECTOR_BYTES).into(),
        segments_max: SEGMENTS_MAX.into(),
        block_bytes: block.into(),
        physical_exponent: u8::try_from((info.physical_block_bytes / block).max(1).ilog2()).unwrap_or(0),
        min_io: io_min.into(),
        optimal_io: u32::try_from(info.io_opt_bytes / u64::from(block)).unwrap_or(0).into(),
        write_cache: u8::from(write_cache),
        queues: queues.into(),
        discard_sectors_max: RANGE_SECTORS_MAX.into(),
        discard_ranges_max: RANGES_MAX.into(),
        discard_alignment: block_sectors.into(),
        zero_sectors_max: RANGE_SECTORS_MAX.into(),
        zero_ranges_max: RANGES_MAX.into(),
        zero_may_unmap: 1,
        ..Config::default()
    };
    let (all, offset) = (config.as_bytes(), offset as usize);
    let mut part = vec![0; bytes as usize];
    if let Some(from) = all.get(offset..) {
        let there = from.len().min(part.len());
        part[..there].copy_from_slice(&from[..there]);
    }
    part
}

/// The head of a request.
#[derive(Clone, Copy, Debug, FromBytes, zerocopy::KnownLayout, zerocopy::Immutable)]
#[repr(C)]
pub(super) struct Header {
    pub kind: u32,
    reserved: u32,
    pub sector: u64,
}

pub(super) const HEADER_BYTES: usize = size_of::<Header>();

impl Header {
    pub fn of(bytes: [u8; HEADER_BYTES]) -> Self {
        Header::read_from_bytes(&bytes).expect("as long as a header")
    }

    /// Where it starts in bytes; none: beyond any device.
    pub fn offset_bytes(&self) -> Option<u64> {
        self.sector.checked_mul(SECTOR_BYTES)
    }
}

/// A range of a discard or of a write of zeroes.
#[derive(Clone, Copy, Debug, FromBytes, zerocopy::KnownLayout, zerocopy::Immutable)]
#[repr(C)]
struct RangeHeader {
    sector: u64,
    sectors: u32,
    flags: u32,
}

/// What a request asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Read,
    Write,
    Flush,
    Serial,
    Discard,
    WriteZeroes,
}

/// How a request ended: the byte of status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Status {
    Done = 0,
    Failed = 1,
    Unsupported = 2,
}

impl Kind {
    pub fn of(number: u32) -> Option<Self> {
        Some(match number {
            0 => Kind::Read,
            1 => Kind::Write,
            4 => Kind::Flush,
            8 => Kind::Serial,
            11 => Kind::Discard,
            13 => Kind::WriteZeroes,
            _ => return None,
        })
    }
}

/// A range of bytes that is to be discarded or zeroed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Range {
    pub offset_bytes: u64,
    pub bytes: u64,
    pub may_unmap: bool,
}

/// The ranges of a discard or write of zeroes.
///
/// # Errors
/// The status that answers it.
pub(super) fn ranges(kind: Kind, bytes: &[u8]) -> Result<Vec<Range>, Status> {
    const UNMAP: u32 = 1;
    let size = size_of::<RangeHeader>();
    if bytes.is_empty() || !bytes.len().is_multiple_of(size) || bytes.len() / size > RANGES_MAX as usize {
        return Err(Status::Failed);
    }
    let range = |bytes: &[u8]| {
        let range = RangeHeader::read_from_bytes(bytes).expect("as long as a range");
        let allowed = if kind == Kind::WriteZeroes { UNMAP } else { 0 };
        if range.flags & !allowed != 0 {
            return Err(Status::Unsupported);
        }
        if range.sectors > RANGE_SECTORS_MAX {
            return Err(Status::Failed);
        }
        let offset_bytes = range.sector.checked_mul(SECTOR_BYTES).ok_or(Status::Failed)?;
        let bytes = u64::from(range.sectors) * SECTOR_BYTES;
        Ok(Range { offset_bytes, bytes, may_unmap: range.flags & UNMAP != 0 })
    };
    bytes.chunks_exact(size).map(range).collect()
}

/// The status of an error of the volume.
pub(super) fn status_of(error: &VolumeError) -> Status {
    match error {
        VolumeError::ReadOnly => Status::Unsupported,
        _ => Status::Failed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INFO: VolumeInfo = VolumeInfo {
        size_bytes: 1 << 30,
        logical_block_bytes: 512,
        physical_block_bytes: 4096,
        io_min_bytes: 64 << 10,
        io_opt_bytes: 192 << 10,
        read_only: false,
    };

    #[test]
    fn the_configuration_says_size_units_and_cache() {
        let config = config(&INFO, 4, true, 0, 96);
        assert_eq!(config.len(), 96, "a frontend with a longer one gets zeroes");
        assert_eq!(config[..8], (1u64 << 21).to_le_bytes());
        assert_eq!(
            (config[20..24].to_vec(), config[24], config[26]),
            (512u32.to_le_bytes().to_vec(), 3, 128)
        );
        assert_eq!((config[32], config[34], config[56]), (1, 4, 1));
        assert_eq!(super::config(&INFO, 4, false, WRITE_CACHE_AT, 1), [0]);
        assert_eq!(super::config(&INFO, 4, false, 4096, 4), [0; 4]);
    }

    #[test]
    fn a_device_that_takes_no_writes_says_so() {
        let read_only = features(&VolumeInfo { read_only: true, ..INFO });
        assert_eq!(
            read_only & (feature::READ_ONLY | feature::DISCARD | feature::WRITE_ZEROES),
            feature::READ_ONLY
        );
        assert_eq!(features(&INFO) & feature::READ_ONLY, 0);
    }

    #[test]
    fn ranges_are_checked() {
        let range = |sector: u64, sectors: u32, flags: u32| {
            [&sector.to_le_bytes()[..], &sectors.to_le_bytes(), &flags.to_le_bytes()].concat()
        };
        let two = [range(8, 16, 0), range(64, 8, 1)].concat();
        let expected = [
            Range { offset_bytes: 4096, bytes: 8192, may_unmap: false },
            Range { offset_bytes: 32768, bytes: 4096, may_unmap: true },
        ];
        assert_eq!(ranges(Kind::WriteZeroes, &two).as_deref(), Ok(&expected[..]));
        assert_eq!(ranges(Kind::Discard, &two), Err(Status::Unsupported), "a discard has no flag");
        for bad in [Vec::new(), range(0, 8, 0)[..15].to_vec(), range(u64::MAX, 8, 0), range(0, u32::MAX, 0)] {
            assert_eq!(ranges(Kind::Discard, &bad), Err(Status::Failed), "{bad:?}");
        }
        assert_eq!(ranges(Kind::Discard, &range(0, 8, 0).repeat(65)), Err(Status::Failed));
        assert_eq!(ranges(Kind::WriteZeroes, &range(0, 8, 2)), Err(Status::Unsupported));
    }
}
