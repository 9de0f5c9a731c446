//! md's internal bitmap: its superblock, and which bit stands for which bytes.
//!
//! Invariants:
//! - A [`BitmapSuper`] comes from [`BitmapSuper::parse`], which has checked magic, version, array and size, or from
//!   [`BitmapSuper::new`].
//! - Bit `n` stands for `chunk` bytes from `n * chunk` on: of each member's data area at RAID-1, 4, 5 and 6, of the
//!   array at RAID-10. With [`VERSION_SPREAD`] it stands for stripes that are spread over the array: see [`Mapping`].
//!
//! The rules are those of `md_bitmap_read_sb` in the kernel's `drivers/md/md-bitmap.c`. The engine decides when to set
//! and to clear bits. `docs/formats.md` draws the bytes.

mod area;
mod mapping;

use std::ops::Range;

use byte_struct::byte_struct;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

use crate::geometry::{Geometry, Level};
use crate::md_superblock::SuperblockError;
use crate::units::{SECTOR_BYTES, Sectors};
use crate::uuid::display_uuid;

pub use area::{Bitmap, PAGE_BYTES};
pub use mapping::Mapping;

/// First word of the bitmap's superblock: "bitm".
pub const MAGIC: u32 = 0x6d74_6962;

/// The version of md's bitmap that Twill supports: bits in little-endian order.
pub const VERSION: u32 = 4;

/// Twill's own version: as [`VERSION`], with the bits spread ([`Mapping::spread`]). md does not start an array whose
/// bitmap has an unknown version.
pub const VERSION_SPREAD: u32 = 0x5457_0001;

/// Bytes before the first bit.
pub const SUPER_BYTES: usize = 256;

/// Name, offset and size of each field, for the check of `docs/formats.md`.
pub const FIELDS: &[(&str, usize, usize)] = RawBitmapSuper::FIELDS;

/// Seconds between two rounds of clearing bits; mdadm's choice.
pub const DAEMON_SLEEP_S_DEFAULT: u32 = 5;

/// mdadm's choice of chunk. Where a bitmap with this chunk does not fit, mdadm takes a larger chunk.
pub const CHUNK_BYTES_DEFAULT: u32 = 64 << 20;

/// The smallest chunk that md takes.
const CHUNK_BYTES_MIN: u32 = 512;

/// The most writes that write-mostly members may lag behind: md's counter has 14 bits.
const WRITE_BEHIND_MAX: u32 = (1 << 14) - 1;

byte_struct! {
    /// The bitmap's superblock on disk.
    struct RawBitmapSuper, 256 bytes {
        0    4    magic: U32,
        4    4    version: U32,
        8    16   uuid: bytes,
        24   8    events: U64,
        32   8    events_cleared: U64,
        40   8    sync_size: U64,
        48   4    state: U32,
        52   4    chunksize: U32,
        56   4    daemon_sleep: U32,
        60   4    write_behind: U32,
        64   4    sectors_reserved: U32,
        68   4    nodes: U32,
        72   64   cluster_name: bytes,
        136  4    unit_bytes: U32,
        140  116  pad: bytes,
    }
}

/// Bits of the bitmap's state word.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BitmapState(pub u32);

impl BitmapState {
    /// The bitmap is out of date: every bit counts as set.
    pub const STALE: Self = Self(1 << 1);
    /// A write of the bitmap failed.
    pub const WRITE_ERROR: Self = Self(1 << 2);

    /// Whether all bits of `other` are set.
    #[must_use]
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

/// A bitmap's superblock, checked.
#[derive(Clone)]
pub struct BitmapSuper {
    raw: RawBitmapSuper,
}

impl BitmapSuper {
    /// The superblock of a new bitmap, with mdadm's choices. The bits that follow it on disk
    /// ([`BitmapSuper::bitmap_bytes`] in all) start as set; the first resync clears them.
    ///
    /// # Panics
    /// If `chunk_bytes` is not a power of two of at least 512. [`BitmapSuper::least_chunk_bytes`] returns a valid one.
    #[must_use]
    pub fn new(uuid: [u8; 16], sync_size: Sectors, chunk_bytes: u32) -> Self {
        assert!(
            chunk_bytes.is_power_of_two() && chunk_bytes >= CHUNK_BYTES_MIN,
            "chunk of {chunk_bytes} bytes"
        );
        let mut raw = RawBitmapSuper::new_zeroed();
        raw.magic.set(MAGIC);
        raw.version.set(VERSION);
        raw.uuid = uuid;
        raw.sync_size.set(sync_size.0);
        raw.chunksize.set(chunk_bytes);
        raw.daemon_sleep.set(DAEMON_SLEEP_S_DEFAULT);
        Self { raw }
    }

    /// The same bitmap with its bits spread over units of `unit_bytes`. Only Twill reads it.
    ///
    /// # Panics
    /// If the unit is not a power of two of at least 512, or larger than the chunk.
    #[must_use]
    pub fn spread(mut self, unit_bytes: u32) -> Self {
        assert!(unit_bytes.is_power_of_two() && (CHUNK_BYTES_MIN..=self.chunk_bytes()).contains(&unit_bytes));
        self.raw.version.set(VERSION_SPREAD);
        self.raw.unit_bytes.set(unit_bytes);
        self
    }

    /// Checks `bytes`, which were read at [`crate::md_superblock::Superblock::bitmap_start`]. `uuid` is the array's;
    /// `room_bytes` is [`crate::md_superblock::Superblock::bitmap_room`].
    ///
    /// # Errors
    /// [`SuperblockError`] names the first thing that is wrong. A bitmap has no checksum, so that a flipped bit in a
    /// count goes unnoticed. In most fields it costs a longer resync at worst. `sync_size` and `chunksize` decide what
    /// a bit stands for: callers compare them with the geometry by [`BitmapSuper::check_geometry`].
    pub fn parse(bytes: &[u8], uuid: [u8; 16], room_bytes: u64) -> Result<Self, SuperblockError> {
        let (raw, _) = RawBitmapSuper::read_from_prefix(bytes)
            .map_err(|_| SuperblockError::Truncated { found: bytes.len(), needed: SUPER_BYTES })?;
        if raw.magic.get() != MAGIC {
            return Err(SuperblockError::NoBitmap { found: raw.magic.get(), expected: MAGIC });
        }
        let version = raw.version.get();
        if ![VERSION, VERSION_SPREAD].contains(&version) {
            let name = match version {
                3 => "host byte order",
                5 => "clustered",
                6 => "lockless",
                _ => "unknown",
            };
            return Err(SuperblockError::BitmapVersion { version, name });
        }
        if raw.uuid != uuid {
            let (found, expected) = (display_uuid(&raw.uuid), display_uuid(&uuid));
            return Err(SuperblockError::BitmapUuid { found, expected });
        }
        let bitmap = Self { raw };
        bitmap.check_values()?;
        let needed = bitmap.bitmap_bytes();
        if needed > room_bytes {
            return Err(SuperblockError::BitmapTooLarge { needed, room: room_bytes });
        }
        Ok(bitmap)
    }

    fn check_values(&self) -> Result<(), SuperblockError> {
        let raw = &self.raw;
        let wrong = |field, found: u64, expected: &str| {
            Err(SuperblockError::Field { field, found, expected: expected.into() })
        };
        let chunk_bytes = raw.chunksize.get();
        if !chunk_bytes.is_power_of_two() || chunk_bytes < CHUNK_BYTES_MIN {
            return wrong("chunksize", chunk_bytes.into(), "a power of two from 512 on");
        }
        let unit_bytes = raw.unit_bytes.get();
        let may_be_unit =
            unit_bytes.is_power_of_two() && (CHUNK_BYTES_MIN..=chunk_bytes).contains(&unit_bytes);
        if raw.version.get() == VERSION_SPREAD && !may_be_unit {
            return wrong("unit_bytes", unit_bytes.into(), "a power of two from 512 to the chunk");
        }
        if raw.daemon_sleep.get() == 0 {
            return wrong("daemon_sleep", 0, "at least a second");
        }
        if raw.write_behind.get() > WRITE_BEHIND_MAX {
            return wrong("write_behind", raw.write_behind.get().into(), "at most 16383");
        }
        if raw.sync_size.get() == 0 || Sectors(raw.sync_size.get()).checked_bytes().is_none() {
            return wrong("sync_size", raw.sync_size.get(), "1 to 2^55 sectors");
        }
        if raw.nodes.get() != 0 {
            return wrong("nodes", raw.nodes.get().into(), "0: the bitmap is not a cluster's");
        }
        Ok(())
    }

    /// Checks that the bitmap covers [`sync_sectors`] of the geometry. If it does not, the array was grown without it,
    /// and every bit counts as set. It may cover more: mdadm rounds the size of a RAID-10 differently than the kernel,
    /// which corrects the size at its first update.
    ///
    /// # Errors
    /// [`SuperblockError::Field`]
    pub fn check_geometry(&self, geometry: &Geometry) -> Result<(), SuperblockError> {
        let (found, needed) = (self.sync_size(), sync_sectors(geometry));
        if self.mapping().is_spread()
            && (found != needed || !may_be_spread(geometry, self.raw.unit_bytes.get()))
        {
            let (field, found) = ("unit_bytes", u64::from(self.raw.unit_bytes.get()));
            let expected = format!("the chunk of a level with parity over {} sectors", needed.0);
            return Err(SuperblockError::Field { field, found, expected });
        }
        if found >= needed {
            return Ok(());
        }
        let expected = format!("at least {needed}, the size of what is resynced");
        Err(SuperblockError::Field { field: "sync_size", found: found.0, expected })
    }

    /// The 256 bytes before the bits.
    #[must_use]
    pub fn encode(&self) -> [u8; SUPER_BYTES] {
        let mut bytes = [0; SUPER_BYTES];
        bytes.copy_from_slice(self.raw.as_bytes());
        bytes
    }

    /// The array it belongs to.
    #[must_use]
    pub fn uuid(&self) -> [u8; 16] {
        self.raw.uuid
    }

    /// The array's event count when the bitmap was last written.
    #[must_use]
    pub fn events(&self) -> u64 {
        self.raw.events.get()
    }

    /// The array's event count when all members were last in use. A member with at least this event count needs only
    /// what the bitmap marks.
    #[must_use]
    pub fn events_cleared(&self) -> u64 {
        self.raw.events_cleared.get()
    }

    /// Sectors that the bitmap covers.
    #[must_use]
    pub fn sync_size(&self) -> Sectors {
        Sectors(self.raw.sync_size.get())
    }

    /// The state bits.
    #[must_use]
    pub fn state(&self) -> BitmapState {
        BitmapState(self.raw.state.get())
    }

    /// Bytes that a bit stands for.
    #[must_use]
    pub fn chunk_bytes(&self) -> u32 {
        self.raw.chunksize.get()
    }

    /// Seconds between two rounds of clearing bits.
    #[must_use]
    pub fn daemon_sleep_s(&self) -> u32 {
        self.raw.daemon_sleep.get()
    }

    /// Sets the seconds between two rounds of clearing bits.
    pub fn set_daemon_sleep_s(&mut self, seconds: u32) {
        self.raw.daemon_sleep.set(seconds);
    }

    /// How many writes write-mostly members may lag behind; 0 for none.
    #[must_use]
    pub fn write_behind(&self) -> u32 {
        self.raw.write_behind.get()
    }

    /// Sectors that are reserved for the bitmap; 0 if that is not recorded.
    #[must_use]
    pub fn sectors_reserved(&self) -> Sectors {
        Sectors(u64::from(self.raw.sectors_reserved.get()))
    }

    /// Whether the bitmap is older than a superblock with `events`. Then every bit counts as set.
    #[must_use]
    pub fn is_stale(&self, events: u64) -> bool {
        self.state().contains(BitmapState::STALE) || self.events() < events
    }

    /// Sets the event count of the last write.
    pub fn set_events(&mut self, events: u64) {
        self.raw.events.set(events);
    }

    /// Sets the event count at which all members were last in use.
    pub fn set_events_cleared(&mut self, events: u64) {
        self.raw.events_cleared.set(events);
    }

    /// Sets the state bits.
    pub fn set_state(&mut self, state: BitmapState) {
        self.raw.state.set(state.0);
    }

    /// Bits in use.
    #[must_use]
    pub fn bits(&self) -> u64 {
        self.sync_size().bytes().div_ceil(u64::from(self.chunk_bytes()))
    }

    /// Bytes of superblock and bits, not rounded to blocks.
    #[must_use]
    pub fn bitmap_bytes(&self) -> u64 {
        SUPER_BYTES as u64 + self.bits().div_ceil(8)
    }

    /// Which bit stands for which bytes.
    #[must_use]
    pub fn mapping(&self) -> Mapping {
        match self.raw.version.get() {
            VERSION_SPREAD => {
                Mapping::spread(self.raw.unit_bytes.get(), self.chunk_bytes(), self.sync_size().bytes())
            }
            _ => Mapping::contiguous(self.chunk_bytes()),
        }
    }

    /// The range of bytes that a bit stands for, up to [`BitmapSuper::sync_size`]. If the bits are spread, the bit
    /// stands for some units in this range, the first and the last included.
    #[must_use]
    pub fn range_of(&self, bit: u64) -> Range<u64> {
        let (mapping, end) = (self.mapping(), self.sync_size().bytes());
        let units = mapping.units_of(bit.min(self.bits()));
        let byte = |unit: u64| unit.saturating_mul(1 << mapping.unit_shift()).min(end);
        byte(units.start)..byte(units.end)
    }

    /// Where a bit is: the byte, counted from the start of the superblock, and the mask in it.
    #[must_use]
    pub fn bit_place(&self, bit: u64) -> (u64, u8) {
        (SUPER_BYTES as u64 + bit / 8, 1 << (bit % 8))
    }

    /// The smallest chunk with which a bitmap of `sync_size` fits in `room_bytes`. As in mdadm it is a power of two of
    /// at least 4 KiB. `None` if there is no room, or the chunk does not fit in its field.
    #[must_use]
    pub fn least_chunk_bytes(sync_size: Sectors, room_bytes: u64) -> Option<u32> {
        let bits_max = room_bytes.checked_sub(SUPER_BYTES as u64)?.checked_mul(8)?;
        let mut chunk = 4096u32;
        let mut bits = sync_size.checked_bytes()? / u64::from(chunk) + 1;
        while bits > bits_max {
            chunk = chunk.checked_mul(2)?;
            bits = bits.div_ceil(2);
        }
        Some(chunk)
    }
}

/// Whether an array can have a bitmap whose bits are spread over units of `unit_bytes`: the level has parity, and a
/// unit is a chunk.
#[must_use]
pub fn may_be_spread(geometry: &Geometry, unit_bytes: u32) -> bool {
    geometry.parity_chunks() > 0 && geometry.chunk_bytes() == unit_bytes
}

/// What a resync covers, and a bitmap with it: the array at RAID-10, each member's used data area at the other levels.
#[must_use]
pub fn sync_sectors(geometry: &Geometry) -> Sectors {
    let bytes =
        if geometry.level() == Level::Raid10 { geometry.array_bytes() } else { geometry.member_bytes() };
    Sectors(bytes / SECTOR_BYTES)
}

impl std::fmt::Debug for BitmapSuper {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BitmapSuper")
            .field("uuid", &format_args!("{}", display_uuid(&self.raw.uuid)))
            .field("events", &self.events())
            .field("events_cleared", &self.events_cleared())
            .field("sync_size", &self.sync_size().0)
            .field("chunk_bytes", &self.chunk_bytes())
            .finish_non_exhaustive()
    }
}
