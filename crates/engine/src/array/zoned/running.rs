//! A zoned array at work: how members leave it, and how it ends.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use super::assemble::slot_of_returning;
use super::check::check;
use super::fit::{OtherZones, check_zones};
use super::keeper::{Arrival, Arrivals, Kept, Phase, Said};
use super::plan::{PlanRefusal, widened};
use super::superblock_log::{MemberLog, empty_log};
use crate::array::scrub::{self, Phase as ScrubPhase, Refused, ScrubRequest, ScrubState};
use crate::device::DeviceError;
use crate::error::VolumeError;
use crate::events::Event;
use crate::log::flush::flush_members;
use crate::log::join::{Joining, exchange};
use crate::log::port::{Blame, LogPort};
use crate::log::recover::found::RecoveryReport;
use crate::log::shared::LogShared;
use crate::log::zone_budget::{self, LimitTooLow, limit};
use crate::members::{Failing, MemberState};
use crate::mismatch::Unit;
use crate::zone_device::ZoneDevice;
use layout::zoned::Superblock;

/// Why a device does not join.
#[derive(Clone, Debug, thiserror::Error)]
pub enum NotJoined {
    /// It is no member that was away.
    #[error("{0}")]
    NotOurs(String),
    /// All members are in use.
    #[error("every slot has a member in use: a zoned array keeps no spares")]
    NoSlot,
    /// The member of its slot is in use.
    #[error("the member in slot {slot} is in use")]
    InUse {
        /// The slot.
        slot: usize,
    },
    /// One at a time.
    #[error("another device is on its way into the array")]
    Another,
    /// Its zones are not those of the array.
    #[error(transparent)]
    OtherZones(#[from] OtherZones),
    /// Its drive keeps too few zones open.
    #[error(transparent)]
    Limit(#[from] LimitTooLow),
    /// What its contents say is not below its write pointers.
    #[error("it has no superblock below its write pointers: it lost them, or its zones were reset")]
    NoSuperblock,
    /// Its drive takes shorter writes than the array's records.
    #[error("its drive takes at most {bytes} bytes in one write, less than a record of the array")]
    ShortRecords {
        /// Bytes.
        bytes: u32,
    },
    /// A member is out of use, or behind.
    #[error("a member is missing or still being made whole")]
    NotWhole,
    /// Members were added before, and not every segment is over them yet.
    #[error("the array is growing already")]
    Growing,
    /// The array cannot have that many members.
    #[error(transparent)]
    Plan(#[from] PlanRefusal),
    /// A device failed before it was a member.
    #[error("a device failed before it was a member; the array is as it was")]
    NotAdded,
    /// It failed.
    #[error("{0}")]
    Device(#[from] DeviceError),
    /// A ring that cannot carry what it needs.
    #[error("this system carries no NVMe commands, which it needs")]
    NoNvme,
    /// It has the slot, and not all superblocks say so: the next start may find it stale.
    #[error("{0}")]
    NotSettled(#[from] VolumeError),
}

/// An array that was started and is not stopped yet. Lives on one shard.
pub struct Running<D> {
    port: Rc<LogPort<D>>,
    said: Rc<Said>,
    arrivals: Arrivals<D>,
    /// A device is on its way into a slot.
    is_joining: Cell<bool>,
    /// Those that have their slots, and do not take part yet.
    coming: RefCell<Vec<Arrival<D>>>,
    report: RecoveryReport,
    scrub: Rc<RefCell<Option<ScrubState>>>,
    is_checking: Rc<Cell<bool>>,
}

impl<D: ZoneDevice> Running<D> {
    pub(super) fn new(
        port: Rc<LogPort<D>>,
        said: Rc<Said>,
        arrivals: Arrivals<D>,
        report: RecoveryReport,
    ) -> Self {
        let is_joining = Cell::new(false);
        let (scrub, is_checking) = (Rc::default(), Rc::default());
        Running { port, said, arrivals, is_joining, coming: RefCell::default(), report, scrub, is_checking }
    }

    /// What all shards share.
    pub fn shared(&self) -> &Arc<LogShared> {
        &self.port.shared
    }

    /// This shard's way to the members.
    pub fn port(&self) -> &Rc<LogPort<D>> {
        &self.port
    }

    /// What the superblocks say.
    pub fn said(&self) -> &Said {
        &self.said
    }

    /// What the start found and did.
    pub fn report(&self) -> &RecoveryReport {
        &self.report
    }

    /// Takes a member out of use. On return the other members' superblocks call it failed.
    ///
    /// # Errors
    /// The superblocks cannot be written.
    pub async fn fail(&self, slot: usize, reason: &str) -> Result<Failing, VolumeError> {
        let members = &self.shared().members;
        // Members that were not there from the start are failed already.
        if members.state(slot) != MemberState::InSync {
            return Ok(Failing::Failed);
        }
        match self.port.fail(slot, reason) {
            Blame::Array => Ok(Failing::Needed),
            Blame::Member | Blame::Zone => {
                members.settled().await?;
                Ok(Failing::Failed)
            }
        }
    }

    /// Reserves the slot for a device that comes: of a member that was away its own, else the first whose member is out of
    /// use. One at a time, until [`Running::join`] or [`Running::give_up`].
    ///
    /// # Errors
    /// Why it is not taken. Nothing was changed.
    pub fn may_join(&self, own: Option<&Superblock>) -> Result<usize, NotJoined> {
        let states = self.shared().members.states();
        let is_out = |slot: &usize| states[*slot] != MemberState::InSync;
        let slot = match own {
            Some(own) => slot_of_returning(&self.said.superblock(), own).map_err(NotJoined::NotOurs)?,
            None => (0..states.len()).find(is_out).ok_or(NotJoined::NoSlot)?,
        };
        if !is_out(&slot) {
            return Err(NotJoined::InUse { slot });
        }
        if self.is_joining.replace(true) {
            return Err(NotJoined::Another);
        }
        Ok(slot)
    }

    /// Reserves slots for `count` devices, by which the array grows, one after the other from the first that is returned. One
    /// change of members at a time, until [`Running::grow`] or [`Running::give_up`].
    ///
    /// # Errors
    /// Why it does not grow by that many. Nothing was changed.
    pub fn may_grow(&self, count: usize) -> Result<usize, NotJoined> {
        let members = &self.shared().members;
        let width = members.width();
        widened(&self.said.superblock(), width + count)?;
        if !members.are_all_whole() {
            return Err(NotJoined::NotWhole);
        }
        if members.is_growing() {
            return Err(NotJoined::Growing);
        }
        if self.is_joining.replace(true) {
            return Err(NotJoined::Another);
        }
        Ok(width)
    }

    /// Puts a device into a slot that [`Running::may_join`] or [`Running::may_grow`] reserved, after every shard has let go of the former one. A new
    /// one gets an empty superblock log. Returns how many columns of a member that was away count as they are.
    ///
    /// # Errors
    /// The device does not fit, or failed: it may have been changed, the array was not.
    pub async fn exchange(&self, joining: Joining<D>, is_new: bool) -> Result<usize, NotJoined> {
        let Joining { device, .. } = &joining;
        let said = self.said.superblock();
        check_zones(&**device, &said.zones)?;
        let zoned = device.zoned();
        let open = self.shared().config.open.total() * self.shared().counters.len() as u32;
        zone_budget::check(open, limit(zoned.open_max, zoned.active_max))?;
        if zoned.record_bytes_max < self.shared().config.record_bytes_max {
            return Err(NotJoined::ShortRecords { bytes: zoned.record_bytes_max });
        }
        let log = if is_new {
            empty_log(&**device, &self.port.pool, &said.zones).await?;
            MemberLog::new(&said.zones)
        } else {
            let read = MemberLog::read(&**device, &self.port.pool).await?;
            read.ok_or(NotJoined::NoSuperblock)?.1
        };
        let adopted = exchange(&self.port, &joining).await?;
        let Joining { slot, uuid, device } = joining;
        self.coming.borrow_mut().push(Arrival { slot, uuid, kept: Kept { device, log } });
        Ok(adopted)
    }

    /// The member takes part from now on: every shard has its device. On return all superblocks say so. Reclaim makes what
    /// it lacks.
    ///
    /// # Errors
    /// The superblocks cannot be written.
    ///
    /// # Panics
    /// If no device has got a slot.
    pub async fn join(&self) -> Result<(), VolumeError> {
        let arrival = self.coming.take().pop().expect("a device that has a slot");
        let (shared, slot) = (self.shared(), arrival.slot);
        self.arrivals.borrow_mut().push(arrival);
        shared.members.join(slot);
        self.is_joining.set(false);
        let settled = shared.members.settled().await;
        shared.space.want();
        Ok(settled?)
    }

    /// The array has the devices that came to the slots of [`Running::may_grow`], which every shard has: superblocks list them,
    /// durably, and then new segments are over all members. Reclaim rewrites the others; the size follows when it is done.
    ///
    /// # Errors
    /// The superblocks cannot be written, or one of the devices failed: the array is as it was.
    pub async fn grow(&self) -> Result<(), NotJoined> {
        let (shared, coming) = (self.shared(), self.coming.take());
        let width = shared.members.width() + coming.len();
        self.arrivals.borrow_mut().extend(coming);
        shared.members.list(width);
        let settled = shared.members.settled().await;
        self.is_joining.set(false);
        settled.map_err(VolumeError::from)?;
        if !shared.members.widen(width) {
            return Err(NotJoined::NotAdded);
        }
        shared.space.want();
        Ok(())
    }

    /// The devices that were to come do not.
    pub fn give_up(&self) {
        self.coming.take();
        self.is_joining.set(false);
    }

    /// Starts, pauses, resumes or cancels a check or repair.
    ///
    /// # Errors
    /// Why not.
    pub fn request_check(&self, request: ScrubRequest) -> Result<(), Refused> {
        let state = scrub::apply(self.scrub.borrow().as_ref(), request)?;
        let is_running = state.phase == ScrubPhase::Running;
        let (from, repair) = (Unit::Segment(state.next_stripe), state.mode.repair);
        *self.scrub.borrow_mut() = Some(state);
        if is_running && !self.is_checking.replace(true) {
            self.shared().members.report(Event::ScrubStarted { repair, from });
            let (port, scrub) = (Rc::clone(&self.port), Rc::clone(&self.scrub));
            let is_checking = Rc::clone(&self.is_checking);
            self.port.executor.spawn(async move {
                check(port, scrub).await;
                is_checking.set(false);
            });
        }
        Ok(())
    }

    /// The last check, with all it found.
    pub fn check_state(&self) -> Option<ScrubState> {
        self.scrub.borrow().clone()
    }

    /// The last superblocks of a run: they say clean if `closed` tells that every shard closed its segments and made them
    /// durable. No request is in flight.
    ///
    /// # Errors
    /// Something could not be made durable, or superblocks not written: the next start finds out what is there.
    pub async fn stop(&self, closed: Result<(), VolumeError>) -> Result<(), VolumeError> {
        if let Some(check) = self.scrub.borrow_mut().as_mut().filter(|check| check.is_open()) {
            check.phase = ScrubPhase::Cancelled;
        }
        let durable = match closed {
            Ok(()) => flush_members(&self.port).await,
            Err(error) => Err(error),
        };
        let members = &self.shared().members;
        self.said.enter(if durable.is_ok() { Phase::Stopped } else { Phase::Abandoned });
        members.want_metadata();
        let settled = members.settled().await;
        durable?;
        Ok(settled?)
    }
}
