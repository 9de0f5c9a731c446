//! One shard's way to the members of a zoned array, and what it needs from the program or simulator that runs it.

use std::cell::RefCell;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};

use super::encode::Record;
use super::shared::LogShared;
use crate::buffer::{Buffer, Pool, Slice};
use crate::counters::Counters;
use crate::device::{DeviceError, DeviceErrorKind};
use crate::error::VolumeError;
use crate::executor::Executor;
use crate::limits::BLOCK_BYTES;
use crate::members::Failing;
use crate::zone_device::{ZoneDevice, ZoneOffset};

/// Time and chance, which the engine has none of.
pub trait LogPlatform {
    /// Nanoseconds since some fixed moment.
    fn now_ns(&self) -> u64;

    /// Returns when this moment has come.
    fn sleep_until(&self, at_ns: u64) -> Pin<Box<dyn Future<Output = ()>>>;

    /// A random number.
    fn random(&self) -> u64;
}

/// What an error of a write means for its segment and its member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blame {
    /// The zone cannot go on: the segment is closed early, the member stays.
    Zone,
    /// The member is not used any more, or was not before.
    Member,
    /// The array cannot do without the member.
    Array,
}

/// One shard's port.
pub struct LogPort<D> {
    /// What all shards share.
    pub shared: Arc<LogShared>,
    /// Which shard this is.
    pub shard: usize,
    /// Where this shard's tasks run.
    pub executor: Executor,
    /// Memory of this shard.
    pub pool: Arc<Pool>,
    /// Time and chance.
    pub platform: Rc<dyn LogPlatform>,
    /// Zeroes.
    pub zeroes: Slice,
    devices: Vec<RefCell<Option<Rc<D>>>>,
}

/// A record on its way to a member.
pub enum Writing<D: ZoneDevice> {
    /// To a place that the engine chose.
    At(D::Changed),
    /// To a place that the drive chooses.
    Append(D::Append),
}

impl<D: ZoneDevice> Future for Writing<D> {
    type Output = Result<Option<u64>, DeviceError>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match self.get_mut() {
            Writing::At(write) => Pin::new(write).poll(context).map(|result| result.map(|()| None)),
            Writing::Append(append) => Pin::new(append).poll(context).map(|result| result.map(Some)),
        }
    }
}

impl<D: ZoneDevice> LogPort<D> {
    /// The port of shard `shard`; `devices` in slot order, of the members that there are.
    pub fn new(
        shared: Arc<LogShared>,
        shard: usize,
        executor: Executor,
        pool: Arc<Pool>,
        platform: Rc<dyn LogPlatform>,
        devices: Vec<Option<Rc<D>>>,
    ) -> Self {
        let zeroes = Buffer::new(BLOCK_BYTES).freeze();
        let vacant = std::iter::repeat_with(|| None);
        let slots = shared.members.slots().max(devices.len());
        let devices = devices.into_iter().chain(vacant).take(slots).map(RefCell::new).collect();
        LogPort { shared, shard, executor, pool, platform, zeroes, devices }
    }

    /// The counters of this shard.
    pub fn counters(&self) -> &Counters {
        &self.shared.counters[self.shard]
    }

    /// The device in a slot.
    pub fn device(&self, slot: usize) -> Option<Rc<D>> {
        self.devices[slot].borrow().clone()
    }

    /// The device of a member that joins.
    pub fn attach(&self, slot: usize, device: Rc<D>) {
        *self.devices[slot].borrow_mut() = Some(device);
    }

    /// Lets go of a member that is not used any more.
    pub fn detach(&self, slot: usize) {
        *self.devices[slot].borrow_mut() = None;
    }

    /// Starts a write of a record. None: the slot is empty.
    pub fn write(
        &self,
        slot: usize,
        zone: u32,
        block: Option<u32>,
        record: Record,
        fua: bool,
    ) -> Option<Writing<D>> {
        let device = self.device(slot)?;
        self.counters().member_writes.add(1);
        self.counters().member_write_bytes.add(record.data.len() as u64);
        let Record { data, metadata } = record;
        Some(match block {
            Some(block) => {
                let at = u64::from(block) * BLOCK_BYTES as u64;
                Writing::At(device.write_at(ZoneOffset::new(zone, at), data, metadata, fua))
            }
            None => Writing::Append(device.append(zone, data, metadata, fua)),
        })
    }

    /// Starts a read of `blocks` blocks of a zone. None: the slot is empty.
    pub fn read(&self, slot: usize, zone: u32, block: u32, blocks: usize) -> Option<D::Read> {
        let device = self.device(slot)?;
        let at = device.zoned().offset_bytes(zone, u64::from(block) * BLOCK_BYTES as u64);
        self.counters().member_reads.add(1);
        self.counters().member_read_bytes.add((blocks * BLOCK_BYTES) as u64);
        Some(device.read(at, self.pool.take(blocks * BLOCK_BYTES)))
    }

    /// As [`LogPort::judge`], for an operation that began when the slot's device had been exchanged `exchanges` times.
    pub fn judge_since(&self, slot: usize, exchanges: u64, error: &DeviceError) -> Blame {
        if self.shared.members.exchanges(slot) == exchanges {
            self.judge(slot, error)
        } else {
            Blame::Zone // the device is none of the array's any more
        }
    }

    /// Judges a failed write. A record is never sent again to a place that is guessed: the stripe goes to another segment.
    pub fn judge(&self, slot: usize, error: &DeviceError) -> Blame {
        let members = &self.shared.members;
        members.note_error(slot, error);
        match error.kind {
            // What a zone's state explains, and a place of the medium: the member serves on without the zone.
            DeviceErrorKind::Io
            | DeviceErrorKind::ZoneFull
            | DeviceErrorKind::ZoneState
            | DeviceErrorKind::TooManyOpen
            | DeviceErrorKind::NotAtPointer => Blame::Zone,
            DeviceErrorKind::NoSpace
            | DeviceErrorKind::Gone
            | DeviceErrorKind::Timeout
            | DeviceErrorKind::Fenced
            | DeviceErrorKind::Unsupported
            | DeviceErrorKind::Invalid => self.fail(slot, &error.to_string()),
        }
    }

    /// Takes a member out of use.
    pub fn fail(&self, slot: usize, reason: &str) -> Blame {
        match self.shared.fail(slot, reason) {
            Failing::Failed => Blame::Member,
            Failing::Needed => Blame::Array,
        }
    }
}

/// The error of a request where the array cannot do without a member that failed.
pub fn member_needed(slot: usize, what: &str) -> VolumeError {
    VolumeError::Io { reason: format!("member {slot}: {what}, and the array cannot do without it") }
}
