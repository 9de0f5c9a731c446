//! The contract between the engine and a zoned member: an extension of [`Device`], whose rules on alignment, cancellation
//! and late operations hold here, too.
//!
//! A device is a row of zones, each `zone_bytes` from the next. The first `capacity_bytes` of a zone hold data, the rest
//! does not exist. Places in a zone are bytes from its start; [`Device::read`] takes bytes from the start of the device.
//!
//! **Three kinds** ([`ZoneAccess`]). Of an `Append` device the drive chooses the place of each append, any number are in
//! flight. Of a `Sequential` one each write is at the write pointer. A `Placed` one is an ordinary device cut into zones:
//! no pointer, any place, any order.
//!
//! **The pointer** is the end of what was written since the zone's last reset: where a [`ZoneDevice::write_at`] must begin
//! and the next append goes. It moves by what was written when the write is made, not when it returns, and a write that
//! failed may have moved it, by any part of its length. Bytes at and beyond it have no contents: a read there succeeds and
//! returns anything, also what stood there before a reset. Contents are never taken for presence.
//!
//! **An append returns its place.** Appends in flight at one zone get places in any order, each as one piece; none lies
//! below the pointer that a report returned before the append was started. The device checks what the drive says: a place
//! outside of the zone's capacity, off the logical block, or such that the data does not fit behind it, is
//! [`DeviceErrorKind::NotAtPointer`] (Z-I14, first half). Whether the place is free, in the range that the caller
//! reserved and on a multiple of its record, only the caller knows (Z-I14, second half).
//!
//! **Writes in order.** Writes by [`ZoneDevice::write_at`] that one handle starts at one zone are made in the order in which
//! they were started: each may be started before the one before returned. If one fails, those after it fail as well, mostly
//! with `NotAtPointer`.
//!
//! **One path, one owner** (Z-I8). From opening to the drop of the last handle no other process, and nothing in this
//! process but this trait, writes to the device or changes its zones. Writes by `write_at` to one zone come from one
//! handle; appends may come from several at once. A change of a zone (reset, finish, open, close) is started when nothing
//! else is in flight at that zone, by any handle. The write operations of [`Device`] itself (`write`, `discard`,
//! `write_zeroes`) fail with [`DeviceErrorKind::Unsupported`] on every kind, so that no code reaches a zone around its pointer.
//!
//! **Durability.** A write, an append or a change that returned is visible to every later read and report. It is durable
//! once a [`Device::flush`] that was sent after it has returned; data with `fua` is durable when it returns. Data with `fua`
//! takes the pointer with it, but not what lies below it in the zone: after a power cut the pointer is at least the end of
//! that data, and what was written there before without `fua` and not flushed may be lost. After a power cut
//! - the pointer lies anywhere between the end of what was durable and the end of what was written;
//! - unflushed data below the pointer may read as anything: zeroes, what stood there before a reset, parts of both;
//! - a reset, finish, open or close that was not flushed is there or not there; zones that were open are closed, or open
//!   still, or the drive has finished them;
//! - on a `Placed` device each logical block that was not durable is old or new.
//!
//! **Reset** of a `Placed` zone overwrites its first block with zeroes, durably, and then discards the zone; it is free
//! when that returned. So the header is gone before any of the zone may read as anything, whenever the power goes. A reset
//! whose future is dropped goes on, as any operation, but may leave the discard out. **Finish**
//! makes a zone full wherever its pointer is. On a `Placed` device finish, open and close do nothing and succeed.
//!
//! **Metadata**, where [`ZonedInfo::metadata_bytes`] is not zero, is that many bytes for each logical block, written with the
//! data in one command: a crash leaves both or neither. It is a buffer of its own, of just that length. Data written without
//! metadata has undefined metadata.
//!
//! **Limits.** [`ZonedInfo::open_max`] zones are open and [`ZonedInfo::active_max`] are open or closed at most. The caller
//! keeps to both (Z-I9), with [`ZoneChange::Close`] where it has more zones active than may be open. A write to an empty or
//! closed zone opens it. At the open limit most drives close another implicitly opened zone by themselves, which the next write
//! there opens again; some refuse (null_blk, while as many are active as may be). At the active limit all refuse, with
//! [`DeviceErrorKind::TooManyOpen`]. A full zone is not active.
//!
//! **After [`DeviceErrorKind::Timeout`] or [`DeviceErrorKind::Gone`]** the operation may still happen, also an append, at a
//! place that no caller learns. The device sends nothing more to the medium until it has ended, as [`Device`] says, so a late
//! append never lands in a zone that was reset since. The zone's pointer is unknown: the caller asks for its report after
//! that, and sets the zone aside until it has one.
//!
//! **Errors of zones.** Where the system does not say why a write failed, the device asks for the zone's report and says what
//! that tells: `ZoneFull`, `ZoneState`, or, if the pointer is elsewhere, `NotAtPointer`. [`DeviceErrorKind::Io`] remains for a
//! medium that failed. [`DeviceErrorKind::Invalid`] is the caller's mistake: no such zone, not aligned, beyond
//! [`ZonedInfo::record_bytes_max`], metadata of a wrong length or not [whole](is_whole_metadata). With `Invalid`, `Unsupported` and `TooManyOpen` nothing was
//! written. With any other error a part may have been, and an append that answered with a wrong place was made somewhere: the
//! zone's report says where its pointer is.
//!
//! [`states`] holds the rules of states, limits and pointers as a pure type; [`memory`] is a device that keeps them, and
//! [`conformance`] holds every device to this contract.

pub mod conformance;
pub mod memory;
pub mod placed;
pub mod states;
pub mod timing;

use std::future::Future;
use std::ops::Range;

use crate::buffer::{Buffer, Gather, Slice};
use crate::device::{Device, DeviceError, DeviceErrorKind, DeviceInfo};
use crate::limits::BLOCK_BYTES;
use layout::units::DeviceOffset;

/// What the reset of a zone of a placed device overwrites with zeroes: the zone's first block.
pub const RESET_BYTES: usize = crate::limits::BLOCK_BYTES;

/// The metadata of one command is less than a sector of this many bytes, or whole sectors. QEMU, by whose drives this is tried, says
/// of any other that it was moved, and moves only what is beyond the last whole sector.
pub const METADATA_SECTOR_BYTES: usize = 512;

/// Whether or not one command may move this much metadata.
pub fn is_whole_metadata(bytes: usize) -> bool {
    bytes < METADATA_SECTOR_BYTES || bytes.is_multiple_of(METADATA_SECTOR_BYTES)
}

/// Whether the host or the drive chooses the place of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum ZoneAccess {
    /// The drive: Zone Append, any number in flight. In-order writes work as well.
    Append,
    /// The write pointer: in-order writes.
    Sequential,
    /// The caller: an ordinary device, cut into zones.
    Placed,
}

/// What all zones of a device have in common.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct ZonedInfo {
    /// Whether the host or the drive chooses the place of a record.
    pub access: ZoneAccess,
    /// How many zones there are.
    pub zones: u32,
    /// From the start of a zone to the start of the next, in bytes.
    pub zone_bytes: u64,
    /// The least capacity of a zone, in bytes: at most `zone_bytes`.
    pub capacity_bytes: u64,
    /// Most bytes of one append or of one `write_at`: the drive's own limit, so that a record is one command.
    pub record_bytes_max: u32,
    /// Bytes of metadata for each logical block; 0: none.
    pub metadata_bytes: u32,
    /// Most zones that are open at once, if there is a limit.
    pub open_max: Option<u32>,
    /// Most zones that are open or closed at once, if there is a limit.
    pub active_max: Option<u32>,
}

impl ZonedInfo {
    /// The place of a byte of a zone, from the start of the device.
    #[inline]
    pub fn offset_bytes(&self, zone: u32, in_zone_bytes: u64) -> DeviceOffset {
        DeviceOffset::new(u64::from(zone).saturating_mul(self.zone_bytes).saturating_add(in_zone_bytes))
    }

    /// Bytes of metadata that belong to `bytes` bytes of data.
    pub fn metadata_of(&self, bytes: usize, logical_block_bytes: u32) -> usize {
        bytes / logical_block_bytes as usize * self.metadata_bytes as usize
    }

    /// How many of `blocks` blocks of 4 KiB, at least one, one command moves together with their metadata.
    pub fn blocks_at_once(&self, blocks: u32, logical_block_bytes: u32) -> u32 {
        let most = blocks.min(self.record_bytes_max / BLOCK_BYTES as u32).max(1);
        let metadata = self.metadata_of(BLOCK_BYTES, logical_block_bytes);
        (1..=most).rev().find(|blocks| is_whole_metadata(*blocks as usize * metadata)).unwrap_or(1)
    }

    /// What is wrong with a record of this shape at this place of a zone (an append: its start), before anything is sent.
    ///
    /// # Errors
    /// [`DeviceErrorKind::Invalid`] where the contract says so, [`DeviceErrorKind::Unsupported`] for metadata that the device
    /// does not have.
    pub fn check_record(
        &self,
        logical_block_bytes: u32,
        to: ZoneOffset,
        data: &Gather,
        metadata: Option<&Slice>,
    ) -> Result<(), DeviceErrorKind> {
        let bytes = data.len();
        let unit = logical_block_bytes as usize;
        if to.zone >= self.zones
            || bytes == 0
            || bytes > self.record_bytes_max as usize
            || !bytes.is_multiple_of(unit)
            || !to.in_zone_bytes.is_multiple_of(unit as u64)
        {
            return Err(DeviceErrorKind::Invalid);
        }
        match metadata {
            Some(_) if self.metadata_bytes == 0 => Err(DeviceErrorKind::Unsupported),
            Some(metadata)
                if metadata.len() != self.metadata_of(bytes, logical_block_bytes)
                    || !is_whole_metadata(metadata.len()) =>
            {
                Err(DeviceErrorKind::Invalid)
            }
            _ => Ok(()),
        }
    }

    /// What is wrong with a read of this many bytes of data and of metadata, before anything is sent.
    ///
    /// # Errors
    /// [`DeviceErrorKind::Invalid`] where the contract says so, [`DeviceErrorKind::Unsupported`] where there is no metadata.
    pub fn check_read_metadata(
        &self,
        info: &DeviceInfo,
        from: ZoneOffset,
        data_bytes: usize,
        metadata_bytes: usize,
    ) -> Result<(), DeviceErrorKind> {
        if self.metadata_bytes == 0 {
            return Err(DeviceErrorKind::Unsupported);
        }
        let is_right = from.zone < self.zones
            && info.allows(self.offset_bytes(from.zone, from.in_zone_bytes), data_bytes as u64)
            && data_bytes <= self.record_bytes_max as usize
            && metadata_bytes == self.metadata_of(data_bytes, info.logical_block_bytes)
            && is_whole_metadata(metadata_bytes);
        if is_right { Ok(()) } else { Err(DeviceErrorKind::Invalid) }
    }
}

/// A place in a zone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ZoneOffset {
    /// The zone.
    pub zone: u32,
    /// Bytes from its start.
    pub in_zone_bytes: u64,
}

impl ZoneOffset {
    /// This many bytes from the zone's start.
    pub const fn new(zone: u32, in_zone_bytes: u64) -> ZoneOffset {
        ZoneOffset { zone, in_zone_bytes }
    }

    /// The zone's first byte.
    pub const fn start(zone: u32) -> ZoneOffset {
        ZoneOffset::new(zone, 0)
    }
}

/// The state of a zone: those of the NVMe Zoned Namespaces command set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum ZoneState {
    /// Nothing was written since the last reset.
    Empty,
    /// A write opened it.
    ImplicitlyOpen,
    /// [`ZoneChange::Open`] opened it.
    ExplicitlyOpen,
    /// It is active but not open: the next write opens it again.
    Closed,
    /// It takes no more writes until it is reset. It has no pointer.
    Full,
    /// It can be read, and never changes again. It has no pointer.
    ReadOnly,
    /// It can be neither read nor changed.
    Offline,
    /// No pointer is kept: a conventional zone, or any zone of a `Placed` device.
    NoPointer,
}

impl ZoneState {
    /// Whether it counts against the limit of open zones.
    pub fn is_open(self) -> bool {
        matches!(self, ZoneState::ImplicitlyOpen | ZoneState::ExplicitlyOpen)
    }

    /// Whether it counts against the limit of active zones.
    pub fn is_active(self) -> bool {
        self.is_open() || self == ZoneState::Closed
    }

    /// In words, for messages.
    pub fn words(self) -> &'static str {
        match self {
            ZoneState::Empty => "empty",
            ZoneState::ImplicitlyOpen => "implicitly open",
            ZoneState::ExplicitlyOpen => "explicitly open",
            ZoneState::Closed => "closed",
            ZoneState::Full => "full",
            ZoneState::ReadOnly => "read-only",
            ZoneState::Offline => "offline",
            ZoneState::NoPointer => "no pointer",
        }
    }
}

/// One zone in a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Zone {
    /// Its number.
    pub number: u32,
    /// Its state.
    pub state: ZoneState,
    /// Its capacity in bytes.
    pub capacity_bytes: u64,
    /// Where the next write goes, in bytes from the zone's start, in the states that have a pointer: empty, open, closed. A
    /// multiple of the logical block, which need not be a multiple of 4 KiB.
    pub pointer_bytes: Option<u64>,
}

/// What a caller makes of a zone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ZoneChange {
    /// Its contents are gone, and it is empty. An empty zone stays so.
    Reset,
    /// It is full. A full zone stays so.
    Finish,
    /// It is explicitly open; the drive does not close it by itself.
    Open,
    /// It is closed, or empty if nothing was written. A closed zone stays so; an empty or full one refuses.
    Close,
}

impl ZoneChange {
    /// Its name in errors.
    pub fn name(self) -> &'static str {
        match self {
            ZoneChange::Reset => "reset zone",
            ZoneChange::Finish => "finish zone",
            ZoneChange::Open => "open zone",
            ZoneChange::Close => "close zone",
        }
    }
}

/// One shard's way to a zoned member.
pub trait ZoneDevice: Device {
    /// An append in flight: the place of its first byte, in bytes from the zone's start.
    type Append: Future<Output = Result<u64, DeviceError>> + Unpin + 'static;
    /// A change of a zone, or a write at a place, in flight.
    type Changed: Future<Output = Result<(), DeviceError>> + Unpin + 'static;
    /// A report in flight.
    type Report: Future<Output = Result<Vec<Zone>, DeviceError>> + Unpin + 'static;
    /// A read of data and metadata in flight: both buffers come back.
    type ReadMetadata: Future<Output = (Buffer, Buffer, Result<(), DeviceError>)> + Unpin + 'static;

    /// Number, sizes and limits of the zones.
    fn zoned(&self) -> &ZonedInfo;

    /// The state of these zones, in order: what the device says now, after everything that returned before this call.
    /// Zones beyond the last are left out.
    fn report(&self, zones: Range<u32>) -> Self::Report;

    /// Appends one record to a zone. With `fua` it is durable on return. [`DeviceErrorKind::Unsupported`] on a device whose
    /// access is not [`ZoneAccess::Append`].
    fn append(&self, zone: u32, data: Gather, metadata: Option<Slice>, fua: bool) -> Self::Append;

    /// Writes one record at a place in a zone: at its pointer, if it has one. With `fua` it is durable on
    /// return.
    fn write_at(&self, to: ZoneOffset, data: Gather, metadata: Option<Slice>, fua: bool) -> Self::Changed;

    /// Fills `data` from a place in a zone on, and `metadata`, which has [`ZonedInfo::metadata_of`] its length, with
    /// the metadata of those blocks: at most [`ZonedInfo::record_bytes_max`] of data. [`DeviceErrorKind::Unsupported`] on a
    /// device without metadata.
    fn read_metadata(&self, from: ZoneOffset, data: Buffer, metadata: Buffer) -> Self::ReadMetadata;

    /// Changes the state of a zone.
    fn change(&self, zone: u32, change: ZoneChange) -> Self::Changed;

    /// Empties a zone.
    fn reset(&self, zone: u32) -> Self::Changed {
        self.change(zone, ZoneChange::Reset)
    }

    /// Makes a zone full.
    fn finish(&self, zone: u32) -> Self::Changed {
        self.change(zone, ZoneChange::Finish)
    }
}
