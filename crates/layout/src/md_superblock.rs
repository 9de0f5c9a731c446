//! md's superblock, version 1.0, 1.1 and 1.2: read, checked, changed, written.
//!
//! Invariants:
//! - A [`Superblock`] comes from [`Superblock::parse`], which has checked magic, version, checksum, place and bounds,
//!   or from [`NewArray`]. Nothing else in the workspace interprets a member's superblock.
//! - Every area that the superblock names (data, bitmap, bad-block log, itself) lies within the device. No two areas
//!   overlap, as far as the superblock knows their lengths.
//! - A superblock that is parsed and not changed encodes to the same bytes.
//!
//! The rules are those of `super_1_load`, `super_1_validate` and `super_1_sync` in the kernel's `drivers/md/md.c`. A
//! superblock with features that Twill does not support still parses, so that [`Superblock::unsupported_features`] can
//! name them. `docs/formats.md` draws the bytes.

mod bad_blocks;
mod create;
mod error;
mod features;
mod grow;
mod join;
mod raw;
mod verify;

use std::fmt;

use zerocopy::{FromBytes, IntoBytes};

use crate::Checksum;
use crate::geometry::{Geometry, GeometryError, Layout, Level, Raid0Zones};
use crate::units::{DeviceOffset, SECTOR_BYTES, Sectors, Slot};
use raw::RawSuperblock;

pub use crate::uuid::display_uuid;

pub use bad_blocks::{BadRange, LogStep, bad_block_steps, decode_bad_blocks, encode_bad_blocks};
pub use create::{CreateError, Created, NewArray, NewBitmap, NewMember, default_data_offset};
pub use error::SuperblockError;
pub use features::Features;
pub use grow::{BitmapError, BitmapSpace};
pub use raw::{HEADER_BYTES, MAGIC, MAX_DEV, SUPERBLOCK_BYTES_MAX};

/// The smallest device that md considers: 24 sectors.
pub const DEVICE_BYTES_MIN: u64 = 24 * SECTOR_BYTES;

/// Name, offset and size of each field, for the check of `docs/formats.md`.
pub const FIELDS: &[(&str, usize, usize)] = RawSuperblock::FIELDS;

/// `resync_offset` of an array that is in sync, and `recovery_offset` of a member whose recovery has come to its end.
const ALL_SECTORS: u64 = u64::MAX;

/// Version 0.90 keeps its superblock in the last whole 64 KiB of the device, so that smaller devices have none.
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
    /// Where to look for a superblock, the likeliest place first. When an array of one minor version is created over an
    /// array of another, the old superblock stays and parses too. mdadm takes the one with the newest
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

/// Byte offset of a version 0.90 superblock; `None` if the device is too small for one. Callers read it to refuse such
/// a device by name: [`Superblock::parse`] returns [`SuperblockError::Version090`].
#[must_use]
pub const fn superblock_0_90_offset(device_bytes: u64) -> Option<u64> {
    (device_bytes / V090_RESERVED_BYTES * V090_RESERVED_BYTES).checked_sub(V090_RESERVED_BYTES)
}

/// What a device is to its array.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DeviceRole {
    /// The member in this slot.
    Active(Slot),
    /// A spare: it holds no data yet and can take the place of a member.
    Spare,
    /// Failed and out of use.
    Faulty,
    /// Holds the write journal.
    Journal,
}

impl DeviceRole {
    const SPARE: u16 = 0xffff;
    const FAULTY: u16 = 0xfffe;
    const JOURNAL: u16 = 0xfffd;

    fn from_md(role: u16) -> Self {
        match role {
            Self::SPARE => Self::Spare,
            Self::FAULTY => Self::Faulty,
            Self::JOURNAL => Self::Journal,
            slot => Self::Active(Slot::new(slot.into())),
        }
    }

    fn md(self) -> u16 {
        match self {
            Self::Spare => Self::SPARE,
            Self::Faulty => Self::FAULTY,
            Self::Journal => Self::JOURNAL,
            Self::Active(slot) => u16::try_from(slot.get()).expect("a slot is below 1920"),
        }
    }
}

/// A superblock that may be believed.
#[derive(Clone)]
pub struct Superblock {
    raw: RawSuperblock,
    /// One role for each of `max_dev` devices, as on disk.
    roles: Vec<u16>,
    minor: MinorVersion,
    /// The bytes after the roles, as read. md leaves them unchanged, and so does [`Superblock::encode`].
    tail: Vec<u8>,
}

impl Superblock {
    /// Checks `bytes`, which were read at the place of `minor` on a device of `device_bytes`. Callers read
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

    /// As [`Superblock::parse`], of a device whose size is no longer what the superblock says: the data area goes to the end of
    /// the device, as `mdadm --assemble --update=devicesize` has it. Writing the superblock makes it so.
    ///
    /// # Errors
    /// Those of [`Superblock::parse`]; [`SuperblockError::DataBeyondEnd`] if the device lacks what the array uses, and at RAID-0 and
    /// version 1.0 if it lacks anything: there the size decides where data or the superblock is.
    pub fn parse_resized(
        bytes: &[u8],
        minor: MinorVersion,
        device_bytes: u64,
    ) -> Result<Self, SuperblockError> {
        let mut superblock = Self::checked_bytes(bytes, minor, device_bytes)?;
        superblock.check_values()?;
        let device = Sectors::from_bytes_floor(device_bytes);
        let is_fixed = superblock.level() == Level::Raid0 || minor == MinorVersion::V1_0;
        let there = device.0.saturating_sub(superblock.data_offset().0);
        if !is_fixed && superblock.size().0 <= there {
            superblock.raw.data_size.set(there);
        }
        superblock.check_areas(device)?;
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

    /// The bytes to write at [`Superblock::offset`], checksum included, in whole logical blocks of the device
    /// (`block_bytes`, 512 to 4096). Like md, it returns as few blocks as hold the superblock: an old mdadm may have
    /// put a bitmap 1 KiB after it.
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

    /// CRC-32C of header and roles. It identifies this state of the superblock among all that were written to this
    /// member.
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

    /// Where it is on its device.
    #[must_use]
    pub fn offset(&self) -> DeviceOffset {
        DeviceOffset::of_sector(self.super_offset())
    }

    /// The feature bits.
    #[must_use]
    pub fn features(&self) -> Features {
        Features(self.raw.feature_map.get())
    }

    /// The names of all features that Twill does not support; empty if Twill can run the array. Unknown bits are named
    /// by their number.
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

    /// The layout word as it is on disk, even where md ignores it.
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

    /// The array's geometry. For RAID-0 that holds if all members are as large as this one: [`raid0_zones`] looks at all.
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

    /// The same as a place on the device.
    #[must_use]
    pub fn data_start(&self) -> DeviceOffset {
        DeviceOffset::of_sector(self.data_offset())
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

    /// A place before the start of the device wraps around to a sector beyond every end, which parse refuses.
    fn beside_superblock(&self, offset: i32) -> Sectors {
        Sectors(self.raw.super_offset.get().wrapping_add_signed(i64::from(offset)))
    }

    /// The shift that [`decode_bad_blocks`] needs.
    #[must_use]
    pub fn bad_block_shift(&self) -> u8 {
        self.raw.bblog_shift
    }

    /// This device's number: the index of its role in the table. The member's number is in the role.
    #[must_use]
    pub fn dev_number(&self) -> u32 {
        self.raw.dev_number.get()
    }

    /// This device's role, according to its own superblock.
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

    /// md's write-mostly: reads go to other members while there are any.
    #[must_use]
    pub fn is_write_mostly(&self) -> bool {
        self.raw.devflags & 1 != 0
    }

    /// md's failfast: the device reports errors without retrying.
    #[must_use]
    pub fn is_failfast(&self) -> bool {
        self.raw.devflags & 2 != 0
    }

    /// How many read errors were corrected by writing the sectors again.
    #[must_use]
    pub fn corrected_reads(&self) -> u32 {
        self.raw.cnt_corrected_read.get()
    }

    /// When the superblock was last written, in seconds since 1970.
    #[must_use]
    pub fn utime_s(&self) -> u64 {
        seconds(self.raw.utime.get())
    }

    /// md's event count, which every update of the superblock raises: a member with a lower count is stale.
    #[must_use]
    pub fn events(&self) -> u64 {
        self.raw.events.get()
    }

    /// How far parity or copies are in sync; `None` if they are everywhere, as after a clean stop.
    #[must_use]
    pub fn resync_offset(&self) -> Option<Sectors> {
        let offset = self.raw.resync_offset.get();
        (offset != ALL_SECTORS).then_some(Sectors(offset))
    }

    /// How far this member is recovered, from the start of its data area; `None` if all of it is. md writes all ones
    /// when a recovery ends and clears the feature bit only with the next superblock, so all ones mean `None` too.
    #[must_use]
    pub fn recovery_offset(&self) -> Option<Sectors> {
        let offset = self.raw.recovery_offset.get();
        let is_recovering = self.features().contains(Features::RECOVERY_OFFSET) && offset != ALL_SECTORS;
        is_recovering.then_some(Sectors(offset))
    }

    /// The array's logical block size in bytes; `None` if it is not recorded. Kernels record it from 6.19 on, and older
    /// kernels refuse a superblock that records it.
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

/// Changes: while the array runs, and when a device joins it.
impl Superblock {
    /// Sets the array's name, as `mdadm --assemble --update=name` does.
    ///
    /// # Panics
    /// If the name has more than 32 bytes, or a zero byte, at which it would end.
    pub fn rename(&mut self, name: &str) {
        let field = &mut self.raw.set_name;
        assert!(name.len() <= field.len() && !name.contains('\0'), "{name:?} does not fit");
        field.fill(0);
        field[..name.len()].copy_from_slice(name.as_bytes());
    }

    /// Sets the event count.
    pub fn set_events(&mut self, events: u64) {
        self.raw.events.set(events);
    }

    /// Sets the time of the last update, in seconds since 1970.
    pub fn set_utime_s(&mut self, utime_s: u64) {
        self.raw.utime.set(utime_s);
    }

    /// Sets how far parity or copies are in sync; `None` for everywhere.
    pub fn set_resync_offset(&mut self, offset: Option<Sectors>) {
        self.raw.resync_offset.set(offset.map_or(ALL_SECTORS, |offset| offset.0));
    }

    /// Sets how far this member is recovered; `None` for everywhere, which also clears the feature bits of a recovery.
    /// Everything beyond the offset must be recovered, unless [`Superblock::set_recovers_by_bitmap`] is called
    /// afterwards.
    pub fn set_recovery_offset(&mut self, offset: Option<Sectors>) {
        self.raw.recovery_offset.set(offset.map_or(0, |offset| offset.0));
        let features = self.features().with(Features::RECOVERY_OFFSET, offset.is_some());
        self.set_features(features.with(Features::RECOVERY_BITMAP, false));
    }

    /// Whether the member needs only what the bitmap marks, beyond its recovery offset.
    #[must_use]
    pub fn recovers_by_bitmap(&self) -> bool {
        self.features().contains(Features::RECOVERY_OFFSET.with(Features::RECOVERY_BITMAP, true))
    }

    /// Records that this recovering member needs only what the bitmap marks.
    ///
    /// # Panics
    /// If the superblock has no recovery offset, or the array no bitmap.
    pub fn set_recovers_by_bitmap(&mut self) {
        let needed = Features::RECOVERY_OFFSET.with(Features::BITMAP_OFFSET, true);
        assert!(self.features().contains(needed), "a recovery by bitmap without a recovery or a bitmap");
        self.set_features(self.features().with(Features::RECOVERY_BITMAP, true));
    }

    /// Whether the device is a replacement: it is being made a copy of a member that has the same role and is still in
    /// use.
    #[must_use]
    pub fn is_replacement(&self) -> bool {
        self.features().contains(Features::REPLACEMENT)
    }

    /// Marks the device as a replacement, or, once it has the role for itself, as an ordinary member.
    pub fn set_replacement(&mut self, is_replacement: bool) {
        self.set_features(self.features().with(Features::REPLACEMENT, is_replacement));
    }

    /// Sets the role of a device.
    ///
    /// # Panics
    /// If `dev_number` is beyond the table of roles, or the array has no such member.
    pub fn set_role(&mut self, dev_number: u32, role: DeviceRole) {
        if let DeviceRole::Active(slot) = role {
            assert!(slot.get() < self.raid_disks(), "member {slot} of {}", self.raid_disks());
        }
        self.roles[dev_number as usize] = role.md();
    }

    /// Gives this superblock the number and the identity of another device of the array.
    ///
    /// # Panics
    /// If `dev_number` is beyond the table of roles.
    pub fn set_device(&mut self, dev_number: u32, device_uuid: [u8; 16]) {
        assert!((dev_number as usize) < self.roles.len(), "device {dev_number} of {}", self.roles.len());
        self.raw.dev_number.set(dev_number);
        self.raw.device_uuid = device_uuid;
    }

    /// Removes the room for a bad-block log, as `mdadm --assemble --update=no-bbl` does.
    ///
    /// # Panics
    /// If the log has entries.
    pub fn drop_bad_block_log(&mut self) {
        assert!(!self.features().contains(Features::BAD_BLOCKS), "the bad-block log has entries");
        self.raw.bblog_offset.set(0);
        self.raw.bblog_size.set(0);
    }

    /// Records whether the bad-block log has entries; md reads the log only if it has. Entries count in single sectors,
    /// as [`encode_bad_blocks`] writes them.
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

/// A bitmap that comes or goes.
impl Superblock {
    /// The same superblock, of a device of `device_bytes`, that names a bitmap at this distance in sectors.
    ///
    /// # Errors
    /// Something else stands there.
    pub fn with_bitmap(&self, distance: i32, device_bytes: u64) -> Result<Self, SuperblockError> {
        let mut new = self.clone();
        new.raw.bitmap_offset.set(distance);
        new.set_features(new.features().with(Features::BITMAP_OFFSET, true));
        new.check_areas(Sectors::from_bytes_floor(device_bytes))?;
        Ok(new)
    }

    /// The same superblock of an array without a bitmap.
    #[must_use]
    pub fn without_bitmap(&self) -> Self {
        let mut new = self.clone();
        new.raw.bitmap_offset.set(0);
        let features = new.features().with(Features::BITMAP_OFFSET, false);
        new.set_features(features.with(Features::RECOVERY_BITMAP, false));
        new
    }

    /// The same superblock, with a bitmap where `newest` has its own, or without one if that has none. None if nothing is to be
    /// changed, or this device, of `device_bytes`, has something else there.
    #[must_use]
    pub fn with_bitmap_of(&self, newest: &Self, device_bytes: u64) -> Option<Self> {
        match (self.bitmap_start(), newest.bitmap_start()) {
            (Some(_), Some(_)) | (None, None) => None,
            (Some(_), None) => Some(self.without_bitmap()),
            (None, Some(_)) => self.with_bitmap(newest.raw.bitmap_offset.get(), device_bytes).ok(),
        }
    }
}

/// Where the chunks of a RAID-0 are: `members` are its superblocks in slot order, each of which knows its own member's size only.
///
/// # Errors
/// As [`Raid0Zones::new`]; also without members.
pub fn raid0_zones<'a>(
    members: impl IntoIterator<Item = &'a Superblock>,
) -> Result<Raid0Zones, GeometryError> {
    let (mut layout, mut chunk_bytes, mut member_bytes) = (Layout::Unset, 0, Vec::new());
    for superblock in members {
        (layout, chunk_bytes) = (superblock.layout(), superblock.chunk_bytes());
        member_bytes.push(superblock.data_size().bytes());
    }
    Raid0Zones::new(layout, chunk_bytes, &member_bytes)
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

/// The seconds of a time on disk: its low 40 bits. The upper bits hold microseconds.
fn seconds(time: u64) -> u64 {
    time & ((1 << 40) - 1)
}

/// md's checksum over header and roles, computed with the checksum field as 0: the sum of all 32-bit words, plus the
/// last 16 bits if the number of roles is odd, in 64 bits and folded once.
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
