//! md's superblock, version 1.0, 1.1 and 1.2: read, checked, changed, written.
//!
//! Invariants:
//! - A [`Superblock`] exists only after [`Superblock::parse`] found magic, version, checksum, place and bounds right,
//!   or because [`NewArray`] made it. Nothing else in the workspace interprets a member's bytes.
//! - Every area that the superblock names (data, bitmap, bad-block log, itself) is within the device, and no two of
//!   those whose length it knows overlap.
//! - What parses without change encodes to the same bytes.
//!
//! The rules are those of `super_1_load`, `super_1_validate` and `super_1_sync` in the kernel's `drivers/md/md.c`.
//! A superblock with features that Twill cannot run parses, so that they can be named:
//! see [`Superblock::unsupported_features`]. Bytes are drawn in `docs/formats.md`.

mod bad_blocks;
mod create;
mod error;
mod features;
mod join;
mod raw;
mod verify;

use std::fmt;

use zerocopy::{FromBytes, IntoBytes};

use crate::checksum::Checksum;
use crate::geometry::{Geometry, Layout, Level};
use crate::units::{SECTOR_BYTES, Sectors};
use raw::RawSuperblock;

pub use crate::uuid::display_uuid;

pub use bad_blocks::{BadRange, LogStep, bad_block_steps, decode_bad_blocks, encode_bad_blocks};
pub use create::{CreateError, Created, NewArray, NewBitmap, NewMember, default_data_offset};
pub use error::SuperblockError;
pub use features::Features;
pub use raw::{HEADER_BYTES, MAGIC, MAX_DEV, SUPERBLOCK_BYTES_MAX};

/// Least device that md considers: 24 sectors.
pub const DEVICE_BYTES_MIN: u64 = 24 * SECTOR_BYTES;

/// Name, offset and size of each field, for the check of `docs/formats.md`.
pub const FIELDS: &[(&str, usize, usize)] = RawSuperblock::FIELDS;

/// `resync_offset` of an array that is in sync, and `recovery_offset` of a member whose recovery has come to its end.
const ALL_SECTORS: u64 = u64::MAX;

/// Devices of at most this size have a version 0.90 superblock nowhere.
const V090_RESERVED_BYTES: u64 = 64 << 10;

/// Where on its device version 1 keeps the superblock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum MinorVersion {
    /// 8 to 12 KiB before the end.
    V1_0,
    /// At the start.
    V1_1,
    /// 4 KiB from the start.
    V1_2,
}

impl MinorVersion {
    /// The places to look at, likeliest first. A device may hold more than one superblock that parses, as an old one
    /// is left when another minor version is created over it: mdadm takes the one with the newest
    /// [`Superblock::ctime_s`].
    pub const PROBE_ORDER: [Self; 3] = [Self::V1_2, Self::V1_0, Self::V1_1];

    /// Byte offset of the superblock on a device of this size.
    ///
    /// # Errors
    /// [`SuperblockError::DeviceTooSmall`]
    pub const fn superblock_offset(self, device_bytes: u64) -> Result<u64, SuperblockError> {
        if device_bytes < DEVICE_BYTES_MIN {
            return Err(SuperblockError::DeviceTooSmall { device_bytes });
        }
        Ok(match self {
            Self::V1_0 => ((device_bytes / SECTOR_BYTES - 16) & !7) * SECTOR_BYTES,
            Self::V1_1 => 0,
            Self::V1_2 => 4096,
        })
    }
}

impl fmt::Display for MinorVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::V1_0 => "1.0",
            Self::V1_1 => "1.1",
            Self::V1_2 => "1.2",
        })
    }
}

/// Byte offset of a version 0.90 superblock, to recognise and refuse it; `None` if the device is too small for one.
/// [`Superblock::parse`] of what is there gives [`SuperblockError::Version090`].
#[must_use]
pub const fn superblock_0_90_offset(device_bytes: u64) -> Option<u64> {
    (device_bytes / V090_RESERVED_BYTES * V090_RESERVED_BYTES).checked_sub(V090_RESERVED_BYTES)
}

/// What a device is to its array.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DeviceRole {
    /// The member with this number, from 0.
    Active(u16),
    /// Waits to replace a member.
    Spare,
    /// Was failed.
    Faulty,
    /// Holds the write journal.
    Journal,
}

impl DeviceRole {
    const SPARE: u16 = 0xffff;
    const FAULTY: u16 = 0xfffe;
    const JOURNAL: u16 = 0xfffd;

    const fn from_md(role: u16) -> Self {
        match role {
            Self::SPARE => Self::Spare,
            Self::FAULTY => Self::Faulty,
            Self::JOURNAL => Self::Journal,
            member => Self::Active(member),
        }
    }

    const fn md(self) -> u16 {
        match self {
            Self::Spare => Self::SPARE,
            Self::Faulty => Self::FAULTY,
            Self::Journal => Self::JOURNAL,
            Self::Active(member) => member,
        }
    }
}

/// A superblock that may be believed.
#[derive(Clone)]
pub struct Superblock {
    raw: RawSuperblock,
    /// As on disk, one for each of `max_dev`.
    roles: Vec<u16>,
    minor: MinorVersion,
    /// What follows the roles up to the end of the last block that held them. md keeps it as it is.
    tail: Vec<u8>,
}

impl Superblock {
    /// Checks what was read at the place of `minor` on a device of `device_bytes`. Give it
    /// [`SUPERBLOCK_BYTES_MAX`] bytes.
    ///
    /// # Errors
    /// [`SuperblockError`] names the first thing that is wrong.
    pub fn parse(bytes: &[u8], minor: MinorVersion, device_bytes: u64) -> Result<Self, SuperblockError> {
        let superblock = Self::checked_bytes(bytes, minor, device_bytes)?;
        superblock.check_values()?;
        superblock.check_areas(Sectors::from_bytes_floor(device_bytes))?;
        Ok(superblock)
    }

    fn checked_bytes(bytes: &[u8], minor: MinorVersion, device_bytes: u64) -> Result<Self, SuperblockError> {
        let found_at = minor.superblock_offset(device_bytes)?;
        let truncated = |needed| SuperblockError::Truncated { found: bytes.len(), needed };
        let (raw, rest) = RawSuperblock::read_from_prefix(bytes).map_err(|_| truncated(HEADER_BYTES))?;
        if raw.magic.get() != MAGIC {
            return Err(SuperblockError::NoSuperblock { found: raw.magic.get() });
        }
        match raw.major_version.get() {
            1 => {}
            0 => return Err(SuperblockError::Version090),
            other => return Err(SuperblockError::Version(other)),
        }
        let max_dev = raw.max_dev.get();
        if !(1..=MAX_DEV).contains(&max_dev) {
            return Err(SuperblockError::RoleCount { found: max_dev });
        }
        let (roles, rest) = rest
            .split_at_checked(max_dev as usize * 2)
            .ok_or_else(|| truncated(HEADER_BYTES + max_dev as usize * 2))?;
        let expected = checksum(&raw, roles);
        if raw.sb_csum.get() != expected {
            return Err(SuperblockError::Checksum { found: raw.sb_csum.get(), expected });
        }
        let written_for = raw.super_offset.get().saturating_mul(SECTOR_BYTES);
        if written_for != found_at {
            return Err(SuperblockError::WrongPlace { written_for, found_at });
        }
        let roles: Vec<u16> =
            roles.chunks_exact(2).map(|role| u16::from_le_bytes([role[0], role[1]])).collect();
        let tail_bytes = (SUPERBLOCK_BYTES_MAX - HEADER_BYTES - roles.len() * 2).min(rest.len());
        Ok(Self { raw, roles, minor, tail: rest[..tail_bytes].to_vec() })
    }

    /// The bytes to write at [`Superblock::offset`], checksum included: the least whole number of logical blocks of
    /// the device (`block_bytes`, 512 or 4096). It is no more, because an old mdadm may have put a bitmap 1 KiB
    /// after the superblock; md writes as much.
    ///
    /// # Panics
    /// If `block_bytes` is not a power of two from 512 to 4096.
    #[must_use]
    pub fn encode(&self, block_bytes: usize) -> Vec<u8> {
        assert!(
            block_bytes.is_power_of_two() && (512..=4096).contains(&block_bytes),
            "logical blocks of {block_bytes} bytes"
        );
        let roles: Vec<u8> = self.roles.iter().flat_map(|role| role.to_le_bytes()).collect();
        let mut raw = self.raw;
        raw.sb_csum.set(checksum(&raw, &roles));
        let mut bytes = raw.as_bytes().to_vec();
        bytes.extend_from_slice(&roles);
        let end = bytes.len().next_multiple_of(block_bytes);
        let tail_bytes = (end - bytes.len()).min(self.tail.len());
        bytes.extend_from_slice(&self.tail[..tail_bytes]);
        bytes.resize(end, 0);
        bytes
    }

    /// What tells this superblock from every other one that was ever written on this member: CRC-32C of its header and
    /// roles.
    #[must_use]
    pub fn digest(&self) -> u32 {
        let bytes = self.encode(512);
        Checksum::of(&bytes[..HEADER_BYTES + self.roles.len() * 2])
    }

    /// Where it is.
    #[must_use]
    pub fn minor_version(&self) -> MinorVersion {
        self.minor
    }

    /// Where it is on its device, in bytes.
    #[must_use]
    pub fn offset(&self) -> u64 {
        self.super_offset().bytes()
    }

    /// The feature bits.
    #[must_use]
    pub fn features(&self) -> Features {
        Features(self.raw.feature_map.get())
    }

    /// Names of the features that Twill cannot run with, empty if it may run this array. Unknown bits are given by
    /// number.
    #[must_use]
    pub fn unsupported_features(&self) -> Vec<String> {
        self.features().unsupported()
    }

    /// The array's identity.
    #[must_use]
    pub fn set_uuid(&self) -> [u8; 16] {
        self.raw.set_uuid
    }

    /// The array's name, normally `host:name`; bytes that are not UTF-8 are replaced.
    #[must_use]
    pub fn set_name(&self) -> String {
        let name = &self.raw.set_name;
        let end = name.iter().position(|byte| *byte == 0).unwrap_or(name.len());
        String::from_utf8_lossy(&name[..end]).into_owned()
    }

    /// When the array was created, in seconds since 1970.
    #[must_use]
    pub fn ctime_s(&self) -> u64 {
        seconds(self.raw.ctime.get())
    }

    /// The level.
    #[must_use]
    pub fn level(&self) -> Level {
        Level::from_md_number(self.raw.level.get()).expect("parse checks the level")
    }

    /// The layout. For RAID-0 the superblock's word counts only with [`Features::RAID0_LAYOUT`].
    #[must_use]
    pub fn layout(&self) -> Layout {
        self.checked_layout().expect("parse checks the layout")
    }

    /// The layout word as it is on disk, also where md ignores it.
    #[must_use]
    pub fn layout_word(&self) -> u32 {
        self.raw.layout.get()
    }

    /// Sectors of each member's data area in use; 0 for RAID-0, where each member has [`Superblock::data_size`].
    #[must_use]
    pub fn size(&self) -> Sectors {
        Sectors(self.raw.size.get())
    }

    /// Bytes in a chunk; 0 for RAID-1.
    #[must_use]
    pub fn chunk_bytes(&self) -> u32 {
        self.raw.chunksize.get() * SECTOR_BYTES as u32
    }

    /// Members of the array, spares not counted.
    #[must_use]
    pub fn raid_disks(&self) -> u32 {
        self.raw.raid_disks.get()
    }

    /// The array's geometry. For RAID-0 that holds if all members are as large as this one: otherwise see
    /// [`crate::geometry::Raid0Zones`].
    ///
    /// # Errors
    /// [`SuperblockError::Geometry`] for an array that Twill does not run, such as RAID-5 with chunks over 64 MiB.
    pub fn geometry(&self) -> Result<Geometry, SuperblockError> {
        let member = if self.level() == Level::Raid0 { self.data_size() } else { self.size() };
        let chunk_bytes = self.chunk_bytes();
        Ok(Geometry::new(self.level(), self.layout(), self.raid_disks(), chunk_bytes, member.bytes())?)
    }

    /// Where the member's data area begins on its device.
    #[must_use]
    pub fn data_offset(&self) -> Sectors {
        Sectors(self.raw.data_offset.get())
    }

    /// Length of the member's data area, of which the array may use a part.
    #[must_use]
    pub fn data_size(&self) -> Sectors {
        Sectors(self.raw.data_size.get())
    }

    /// Where the superblock is on its device.
    #[must_use]
    pub fn super_offset(&self) -> Sectors {
        Sectors(self.raw.super_offset.get())
    }

    /// Where the bitmap is on the device, if there is one.
    #[must_use]
    pub fn bitmap_start(&self) -> Option<Sectors> {
        self.features()
            .contains(Features::BITMAP_OFFSET)
            .then(|| self.beside_superblock(self.raw.bitmap_offset.get()))
    }

    /// Where the bad-block log is on the device and how long it is, if there is room for one.
    #[must_use]
    pub fn bad_block_log(&self) -> Option<(Sectors, Sectors)> {
        let (offset, size) = (self.raw.bblog_offset.get(), self.raw.bblog_size.get());
        (offset != 0 && size != 0).then(|| (self.beside_superblock(offset), Sectors(u64::from(size))))
    }

    /// Before the device's start it wraps to a sector beyond any end, which parse refuses.
    fn beside_superblock(&self, offset: i32) -> Sectors {
        Sectors(self.raw.super_offset.get().wrapping_add_signed(i64::from(offset)))
    }

    /// The shift that [`decode_bad_blocks`] needs.
    #[must_use]
    pub fn bad_block_shift(&self) -> u8 {
        self.raw.bblog_shift
    }

    /// This device's number, the place of its role in the table. It is not the member's number.
    #[must_use]
    pub fn dev_number(&self) -> u32 {
        self.raw.dev_number.get()
    }

    /// This device's role, as this device knows it.
    #[must_use]
    pub fn role(&self) -> DeviceRole {
        self.role_of(self.dev_number()).expect("parse checks the device's number")
    }

    /// The role of the device with this number; `None` beyond the table.
    #[must_use]
    pub fn role_of(&self, dev_number: u32) -> Option<DeviceRole> {
        self.roles.get(dev_number as usize).map(|role| DeviceRole::from_md(*role))
    }

    /// Roles by device number.
    pub fn roles(&self) -> impl ExactSizeIterator<Item = DeviceRole> {
        self.roles.iter().map(|role| DeviceRole::from_md(*role))
    }

    /// This device's identity.
    #[must_use]
    pub fn device_uuid(&self) -> [u8; 16] {
        self.raw.device_uuid
    }

    /// Reads should go to other members first (md's write-mostly).
    #[must_use]
    pub fn is_write_mostly(&self) -> bool {
        self.raw.devflags & 1 != 0
    }

    /// The device should fail fast rather than retry.
    #[must_use]
    pub fn is_failfast(&self) -> bool {
        self.raw.devflags & 2 != 0
    }

    /// Read errors that were corrected by writing.
    #[must_use]
    pub fn corrected_reads(&self) -> u32 {
        self.raw.cnt_corrected_read.get()
    }

    /// When the superblock was last written, in seconds since 1970.
    #[must_use]
    pub fn utime_s(&self) -> u64 {
        seconds(self.raw.utime.get())
    }

    /// Count of the superblock's updates: the member with fewer is stale.
    #[must_use]
    pub fn events(&self) -> u64 {
        self.raw.events.get()
    }

    /// Up to where parity or copies agree; `None` if they do everywhere, which is the mark of a clean stop.
    #[must_use]
    pub fn resync_offset(&self) -> Option<Sectors> {
        let offset = self.raw.resync_offset.get();
        (offset != ALL_SECTORS).then_some(Sectors(offset))
    }

    /// Up to where this member is current, in its data area; `None` if it is everywhere. So it is, too, where all ones stand:
    /// md writes that when a recovery has come to its end, and only the superblocks after that do without.
    #[must_use]
    pub fn recovery_offset(&self) -> Option<Sectors> {
        let offset = self.raw.recovery_offset.get();
        let is_recovering = self.features().contains(Features::RECOVERY_OFFSET) && offset != ALL_SECTORS;
        is_recovering.then_some(Sectors(offset))
    }

    /// The array's logical block size in bytes, as kernels from 6.19 on keep it; `None` if the superblock leaves it
    /// open. Kernels before that refuse a superblock that has it.
    #[must_use]
    pub fn logical_block_bytes(&self) -> Option<u32> {
        let bytes = self.raw.logical_block_size.get();
        (bytes != 0).then_some(bytes)
    }

    /// The checksum as it was read or would be written.
    #[must_use]
    pub fn stored_checksum(&self) -> u32 {
        self.raw.sb_csum.get()
    }
}

/// What changes while the array runs, and when a device joins.
impl Superblock {
    /// Sets the count of updates.
    pub fn set_events(&mut self, events: u64) {
        self.raw.events.set(events);
    }

    /// Sets the time of the last update, in seconds since 1970.
    pub fn set_utime_s(&mut self, utime_s: u64) {
        self.raw.utime.set(utime_s);
    }

    /// Sets up to where parity or copies agree; `None` for everywhere.
    pub fn set_resync_offset(&mut self, offset: Option<Sectors>) {
        self.raw.resync_offset.set(offset.map_or(ALL_SECTORS, |offset| offset.0));
    }

    /// Sets up to where this member is current; `None` for everywhere, which takes the features of recovery away.
    /// Of what is beyond all has to be recovered, until [`Superblock::set_recovers_by_bitmap`] says otherwise.
    pub fn set_recovery_offset(&mut self, offset: Option<Sectors>) {
        self.raw.recovery_offset.set(offset.map_or(0, |offset| offset.0));
        let features = self.features().with(Features::RECOVERY_OFFSET, offset.is_some());
        self.set_features(features.with(Features::RECOVERY_BITMAP, false));
    }

    /// Whether the member lacks, beyond its recovery offset, only what the bitmap marks.
    #[must_use]
    pub fn recovers_by_bitmap(&self) -> bool {
        self.features().contains(Features::RECOVERY_OFFSET.with(Features::RECOVERY_BITMAP, true))
    }

    /// Says that the member, which is recovering, lacks only what the bitmap marks.
    ///
    /// # Panics
    /// If it has no recovery offset, or there is no bitmap.
    pub fn set_recovers_by_bitmap(&mut self) {
        let needed = Features::RECOVERY_OFFSET.with(Features::BITMAP_OFFSET, true);
        assert!(self.features().contains(needed), "a recovery by bitmap without a recovery or a bitmap");
        self.set_features(self.features().with(Features::RECOVERY_BITMAP, true));
    }

    /// Whether the device is the copy in the making of a member that has the same role and is still in use.
    #[must_use]
    pub fn is_replacement(&self) -> bool {
        self.features().contains(Features::REPLACEMENT)
    }

    /// Says whether it is such a copy. One that has its role for itself is none.
    pub fn set_replacement(&mut self, is_replacement: bool) {
        self.set_features(self.features().with(Features::REPLACEMENT, is_replacement));
    }

    /// Sets the role of a device.
    ///
    /// # Panics
    /// If the table has no place for it, or the array has no such member.
    pub fn set_role(&mut self, dev_number: u32, role: DeviceRole) {
        if let DeviceRole::Active(member) = role {
            assert!(u32::from(member) < self.raid_disks(), "member {member} of {}", self.raid_disks());
        }
        self.roles[dev_number as usize] = role.md();
    }

    /// Makes this the superblock of another device of the same array: its number and identity.
    ///
    /// # Panics
    /// If the table has no place for it.
    pub fn set_device(&mut self, dev_number: u32, device_uuid: [u8; 16]) {
        assert!((dev_number as usize) < self.roles.len(), "device {dev_number} of {}", self.roles.len());
        self.raw.dev_number.set(dev_number);
        self.raw.device_uuid = device_uuid;
    }

    /// Gives up the room for a bad-block log, as `mdadm --assemble --update=no-bbl` does.
    ///
    /// # Panics
    /// If the log has entries.
    pub fn drop_bad_block_log(&mut self) {
        assert!(!self.features().contains(Features::BAD_BLOCKS), "the bad-block log has entries");
        self.raw.bblog_offset.set(0);
        self.raw.bblog_size.set(0);
    }

    /// Says whether the bad-block log has entries. md reads the log only if it has. They count in single sectors, as
    /// [`encode_bad_blocks`] writes them.
    ///
    /// # Panics
    /// If there is no room for a log.
    pub fn set_has_bad_blocks(&mut self, has_bad_blocks: bool) {
        assert!(!has_bad_blocks || self.bad_block_log().is_some(), "no room for a bad-block log");
        if has_bad_blocks {
            self.raw.bblog_shift = 0;
        }
        self.set_features(self.features().with(Features::BAD_BLOCKS, has_bad_blocks));
    }

    /// Sets the count of corrected read errors.
    pub fn set_corrected_reads(&mut self, count: u32) {
        self.raw.cnt_corrected_read.set(count);
    }

    fn set_features(&mut self, features: Features) {
        self.raw.feature_map.set(features.0);
    }
}

impl fmt::Debug for Superblock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Superblock")
            .field("version", &format_args!("{}", self.minor))
            .field("set_uuid", &format_args!("{}", display_uuid(&self.raw.set_uuid)))
            .field("name", &self.set_name())
            .field("level", &self.raw.level.get())
            .field("layout", &self.raw.layout.get())
            .field("raid_disks", &self.raid_disks())
            .field("features", &format_args!("{}", self.features()))
            .field("dev_number", &self.dev_number())
            .field("role", &self.role_of(self.dev_number()))
            .field("events", &self.events())
            .finish_non_exhaustive()
    }
}

/// The low 40 bits are seconds, the rest microseconds or 0.
fn seconds(time: u64) -> u64 {
    time & ((1 << 40) - 1)
}

/// md's sum over header and roles, with the sum itself as 0: 32-bit words, and 16 bits that are over, added up in 64
/// bits and folded once.
fn checksum(raw: &RawSuperblock, roles: &[u8]) -> u32 {
    let mut raw = *raw;
    raw.sb_csum.set(0);
    let words = |bytes: &[u8]| -> u64 {
        bytes
            .chunks(4)
            .map(|chunk| chunk.iter().rev().fold(0u64, |word, byte| word << 8 | u64::from(*byte)))
            .sum()
    };
    let sum = words(raw.as_bytes()) + words(roles);
    ((sum & 0xffff_ffff) + (sum >> 32)) as u32
}
