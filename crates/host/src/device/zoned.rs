//! Zoned members, by the contract of [`engine::zone_device`]: a block device written [in order](block), an NVMe namespace by
//! [commands of its own](passthrough), an ordinary device cut into software zones, and zones [in memory](memory).
//!
//! A [`SharedZones`] is open for all shards, a [`HostZones`] is one shard's way to it.

/// What [`Device`] offers and a zoned member refuses: only [`ZoneDevice`] writes to it. Calls the member's own `refuse`, with
/// the error, if that wants one.
macro_rules! refuse_plain_writes {
    ($($error:expr)?) => {
        fn write(&self, offset: DeviceOffset, data: Gather, _fua: bool) -> DeviceDone {
            self.refuse("write", (offset, data.len() as u64) $(, $error)?)
        }

        fn discard(&self, offset: DeviceOffset, bytes: u64) -> DeviceDone {
            self.refuse("discard", (offset, bytes) $(, $error)?)
        }

        fn write_zeroes(&self, offset: DeviceOffset, bytes: u64, _may_unmap: bool) -> DeviceDone {
            self.refuse("write zeroes", (offset, bytes) $(, $error)?)
        }
    };
}

mod block;
pub mod memory;
mod passthrough;
mod report;
#[cfg(test)]
mod tests;
mod zoned_file;

use engine::buffer::{Buffer, Gather, Slice};
use engine::device::{Device, DeviceError, DeviceInfo};
use engine::zone_device::placed::{Placed, PlacedDone};
use engine::zone_device::{Zone, ZoneChange, ZoneDevice, ZoneOffset, ZonedInfo};
use std::future::{Future, Ready};
use std::ops::Range;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use self::block::{BlockReport, InOrderDone, InOrderZones};
use self::memory::{MemoryAppend, MemoryZones, ZonedMemory};
use self::passthrough::{Append, AppendZones, NvmeReadMetadata};
use super::host_device::{Closing, HostDevice, SharedDevice};
use super::open::{OpenError, OpenErrorKind, OpenOptions};
use crate::ring::{DeviceDone, DeviceRead, Ring, ZoneRead};
use layout::units::DeviceOffset;

pub use self::zoned_file::{AccessChoice, ZonedFile, look};

/// An open zoned member, for all shards.
#[derive(Clone, Debug)]
pub enum SharedZones {
    /// A zoned block device.
    Drive(Arc<ZonedFile>),
    /// An ordinary device, cut into zones of this size in bytes.
    Placed(SharedDevice, u64),
    /// Memory of this process.
    Memory(Arc<ZonedMemory>),
}

impl SharedZones {
    /// Opens the zoned block device at `path`.
    ///
    /// # Errors
    /// Why it cannot be a zoned member.
    pub fn open(path: &Path, options: &OpenOptions, choice: AccessChoice) -> Result<Self, OpenError> {
        ZonedFile::open(path, options, choice).map(SharedZones::Drive)
    }

    /// Cuts an ordinary device into zones.
    ///
    /// # Errors
    /// Zones of this size do not suit it.
    pub fn place(device: SharedDevice, zone_bytes: u64) -> Result<Self, OpenError> {
        let info = device.info();
        if !zone_bytes.is_multiple_of(4096) || !(8192..=info.size_bytes).contains(&zone_bytes) {
            let reason = format!(
                "zones of {zone_bytes} bytes in a device of {}: a zone is a multiple of 4 KiB, 8 KiB at least, and fits",
                info.size_bytes
            );
            return Err(OpenError::refuse(OpenErrorKind::TooSmall, info.name.as_str(), reason));
        }
        Ok(SharedZones::Placed(device, zone_bytes))
    }

    /// Tells when no shard and no operation uses the device any more.
    pub fn closing(&self) -> Closing {
        match self {
            SharedZones::Drive(drive) => Closing::of(drive),
            SharedZones::Placed(device, _) => device.closing(),
            SharedZones::Memory(memory) => Closing::of(memory),
        }
    }

    /// Size, unit and name.
    pub fn info(&self) -> &DeviceInfo {
        match self {
            SharedZones::Drive(drive) => drive.info(),
            SharedZones::Placed(device, _) => device.info(),
            SharedZones::Memory(memory) => memory.info(),
        }
    }

    /// Most zones that are open, and open or closed, at once.
    pub fn limits(&self) -> (Option<u32>, Option<u32>) {
        let of = |zoned: &ZonedInfo| (zoned.open_max, zoned.active_max);
        match self {
            SharedZones::Drive(drive) => of(drive.zoned()),
            SharedZones::Placed(..) => (None, None),
            SharedZones::Memory(memory) => of(memory.zoned()),
        }
    }

    /// The way of the shard that has `ring` to the member. None: this ring carries no NVMe commands, which the member needs.
    pub fn attach(&self, ring: &Ring) -> Option<HostZones> {
        Some(match self {
            SharedZones::Drive(drive) if drive.appends() => HostZones::Append(AppendZones::new(drive, ring)?),
            SharedZones::Drive(drive) => HostZones::InOrder(InOrderZones::new(drive, ring)),
            SharedZones::Placed(device, zone_bytes) => {
                HostZones::Placed(Placed::new(device.attach(ring), *zone_bytes)?)
            }
            SharedZones::Memory(memory) => HostZones::Memory(MemoryZones::new(memory, ring)),
        })
    }
}

/// A zoned member as one shard sees it. Clones are handles to the same.
#[derive(Clone)]
pub enum HostZones {
    /// An NVMe namespace by commands of its own.
    Append(AppendZones),
    /// A zoned block device by writes in order.
    InOrder(InOrderZones),
    /// An ordinary device, cut into zones.
    Placed(Placed<HostDevice>),
    /// Memory of this process.
    Memory(MemoryZones),
}

/// Calls the same function of whichever device it is.
macro_rules! each {
    ($zones:expr, $device:ident => $call:expr) => {
        match $zones {
            HostZones::Append($device) => $call,
            HostZones::InOrder($device) => $call,
            HostZones::Placed($device) => $call,
            HostZones::Memory($device) => $call,
        }
    };
}

impl Device for HostZones {
    type Read = DeviceRead;
    type Done = ZonesDone;

    #[inline]
    fn info(&self) -> &DeviceInfo {
        each!(self, device => device.info())
    }

    #[inline]
    fn read(&self, offset: DeviceOffset, buffer: Buffer) -> DeviceRead {
        each!(self, device => device.read(offset, buffer))
    }

    fn write(&self, offset: DeviceOffset, data: Gather, fua: bool) -> ZonesDone {
        each!(self, device => device.write(offset, data, fua).into())
    }

    fn flush(&self) -> ZonesDone {
        each!(self, device => device.flush().into())
    }

    fn discard(&self, offset: DeviceOffset, bytes: u64) -> ZonesDone {
        each!(self, device => device.discard(offset, bytes).into())
    }

    fn write_zeroes(&self, offset: DeviceOffset, bytes: u64, may_unmap: bool) -> ZonesDone {
        each!(self, device => device.write_zeroes(offset, bytes, may_unmap).into())
    }
}

impl ZoneDevice for HostZones {
    type Append = ZonesAppend;
    type Changed = ZonesDone;
    type Report = ZonesReport;
    type ReadMetadata = ZonesReadMetadata;

    #[inline]
    fn zoned(&self) -> &ZonedInfo {
        each!(self, device => device.zoned())
    }

    fn report(&self, zones: Range<u32>) -> ZonesReport {
        each!(self, device => device.report(zones).into())
    }

    #[inline]
    fn append(&self, zone: u32, data: Gather, metadata: Option<Slice>, fua: bool) -> ZonesAppend {
        each!(self, device => device.append(zone, data, metadata, fua).into())
    }

    #[inline]
    fn write_at(&self, to: ZoneOffset, data: Gather, metadata: Option<Slice>, fua: bool) -> ZonesDone {
        each!(self, device => device.write_at(to, data, metadata, fua).into())
    }

    fn read_metadata(&self, from: ZoneOffset, data: Buffer, metadata: Buffer) -> ZonesReadMetadata {
        each!(self, device => device.read_metadata(from, data, metadata).into())
    }

    fn change(&self, zone: u32, change: ZoneChange) -> ZonesDone {
        each!(self, device => device.change(zone, change).into())
    }
}

/// A future of one of several kinds, with the same output.
macro_rules! one_of {
    ($(#[$about:meta])* $name:ident -> $output:ty { $($(#[$about_kind:meta])* $kind:ident($future:ty),)* }) => {
        $(#[$about])*
        pub enum $name {
            $($(#[$about_kind])* $kind($future),)*
        }

        impl Future for $name {
            type Output = $output;

            #[inline]
            fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
                match &mut *self {
                    $($name::$kind(future) => Pin::new(future).poll(context),)*
                }
            }
        }

        $(
            impl From<$future> for $name {
                #[inline]
                fn from(future: $future) -> Self {
                    $name::$kind(future)
                }
            }
        )*
    };
}

one_of! {
    /// An operation of a zoned member in flight that returns no data.
    ZonesDone -> Result<(), DeviceError> {
        /// Of the ring.
        Ring(DeviceDone),
        /// Of software zones.
        Placed(PlacedDone<HostDevice>),
        /// A write or change at a block device, with the report that says why it failed.
        InOrder(InOrderDone),
    }
}

one_of! {
    /// An append in flight.
    ZonesAppend -> Result<u64, DeviceError> {
        /// Of an NVMe namespace.
        Nvme(Append),
        /// Of memory.
        Memory(MemoryAppend),
        /// Refused: the member has none.
        Refused(Ready<Result<u64, DeviceError>>),
    }
}

one_of! {
    /// A report in flight.
    ZonesReport -> Result<Vec<Zone>, DeviceError> {
        /// Of a block device.
        Block(BlockReport),
        /// There at once.
        There(Ready<Result<Vec<Zone>, DeviceError>>),
    }
}

one_of! {
    /// A read of data and metadata in flight.
    ZonesReadMetadata -> (Buffer, Buffer, Result<(), DeviceError>) {
        /// Of an NVMe namespace.
        Nvme(NvmeReadMetadata),
        /// Of memory.
        Memory(ZoneRead),
        /// Refused: the member has no metadata.
        Refused(Ready<(Buffer, Buffer, Result<(), DeviceError>)>),
    }
}
