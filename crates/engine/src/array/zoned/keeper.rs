//! Keeps the superblocks of a zoned array as new as what its members' health and segment numbers ask for, from the start to the
//! stop. One task on one shard writes them; what it says depends on how far the start has come.

use std::cell::{Cell, RefCell};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;

use layout::units::Slot;
use layout::zoned::{ArrayPlan, EPOCHS_MAX, Epoch, Member, MemberState as Row, Superblock};

use super::assemble::Newest;
use super::plan::{NUMBERS_PER_START, grown, widened};
use super::superblock_log::MemberLog;
use crate::buffer::Pool;
use crate::device::DeviceError;
use crate::events::Event;
use crate::executor::join_all;
use crate::limits::BLOCK_BYTES;
use crate::log::shared::LogShared;
use crate::members::{Failing, MemberState};
use crate::zone_device::ZoneDevice;

/// How far an array is, which decides what its superblocks say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// A start is under way: the epoch is begun, and members stand as before. No member is called failed yet (Z-I6).
    Recovering,
    /// Requests are served: the epoch is called served, and members that are not in sync are called failed.
    Serving,
    /// It is stopped with everything durable: these are the last superblocks of this run.
    Stopped,
    /// The start was given up, or the stop could not make everything durable: no more superblocks.
    Abandoned,
}

/// What the task and others share.
pub struct Said {
    phase: Cell<Phase>,
    superblock: RefCell<Superblock>,
}

impl Said {
    /// How far the array is.
    pub fn phase(&self) -> Phase {
        self.phase.get()
    }

    /// The newest superblock, as the member of the lowest slot has it.
    pub fn superblock(&self) -> Superblock {
        self.superblock.borrow().clone()
    }

    /// Says how far the array is. The superblocks follow when they are asked for.
    pub(super) fn enter(&self, phase: Phase) {
        self.phase.set(phase);
    }
}

/// A member that joins while the array serves.
pub struct Arrival<D> {
    /// Its slot.
    pub slot: usize,
    /// Its identity.
    pub uuid: [u8; 16],
    /// Its superblocks.
    pub kept: Kept<D>,
}

/// Members that join, until the next superblocks list them.
pub type Arrivals<D> = Rc<RefCell<Vec<Arrival<D>>>>;

/// A member whose superblocks are written.
pub struct Kept<D> {
    /// Its device.
    pub device: Rc<D>,
    /// Its log.
    pub log: MemberLog,
}

/// The superblocks of an array.
pub struct Keeper<D> {
    /// What the superblocks of all members have in common.
    superblock: Superblock,
    members: Vec<Option<Kept<D>>>,
    /// The plan before members are added, and whether it was growing then: until segments have columns of these they may be left
    /// out again.
    before: (ArrayPlan, bool),
    /// The size that superblocks give to an array that has grown, in blocks, until they are durable.
    new_blocks: Option<u64>,
    arrivals: Arrivals<D>,
    pool: Arc<Pool>,
    clock: Rc<dyn Fn() -> u64>,
}

impl<D: ZoneDevice> Keeper<D> {
    /// Goes on from what the array said last. `clock` tells the seconds since 1970.
    pub fn new(
        speaker: &Superblock,
        newest: Newest,
        members: Vec<Option<Kept<D>>>,
        pool: &Arc<Pool>,
        clock: Rc<dyn Fn() -> u64>,
    ) -> Self {
        let segments_below = newest.segments_below;
        let superblock = Superblock { sequence: newest.sequence, segments_below, ..speaker.clone() };
        let before = (superblock.plan.clone(), superblock.growing);
        let (arrivals, pool) = (Rc::default(), Arc::clone(pool));
        Keeper { superblock, members, before, new_blocks: None, arrivals, pool, clock }
    }

    /// The numbers of segments that the next epoch may use.
    pub fn numbers(&self) -> std::ops::Range<u64> {
        let first = self.superblock.segments_below;
        first..first + NUMBERS_PER_START
    }

    /// Begins an epoch: it is durable, with its [`Keeper::numbers`], on every member that is there and not among those returned,
    /// which could not be written.
    pub async fn begin(&mut self, epoch: Epoch) -> Vec<(usize, DeviceError)> {
        let numbers = self.numbers();
        let superblock = &mut self.superblock;
        superblock.epoch = epoch;
        superblock.epochs.insert(0, epoch);
        superblock.epochs.truncate(EPOCHS_MAX);
        superblock.segments_below = numbers.end;
        superblock.clean = false;
        self.write().await
    }

    /// Where members that join are put, before they take part.
    pub fn arrivals(&self) -> Arrivals<D> {
        Rc::clone(&self.arrivals)
    }

    /// What others see of it.
    pub fn said(&self) -> Rc<Said> {
        let superblock = RefCell::new(self.superblock.clone());
        Rc::new(Said { phase: Cell::new(Phase::Recovering), superblock })
    }

    /// Writes superblocks whenever they are asked for, until the array is stopped or they cannot be written any more.
    pub async fn keep(mut self, shared: Arc<LogShared>, said: Rc<Said>) {
        loop {
            let version = shared.members.metadata_wanted().await;
            let phase = said.phase();
            if phase == Phase::Abandoned {
                return shared.members.metadata_lost();
            }
            let added = self.welcome();
            let states = shared.members.shown();
            self.resize(&shared, states.len());
            for (slot, state) in states.iter().enumerate() {
                if !matches!(state, MemberState::InSync | MemberState::Recovering) {
                    self.members[slot] = None; // it is stale from here on
                }
            }
            let numbers = shared.table.numbers_to_reserve().max(self.superblock.segments_below);
            self.superblock.segments_below = numbers;
            self.superblock.checkpoint = shared.checkpoints.said();
            self.tell(phase, &states);
            let mut failed = self.introduce(&added).await;
            if failed.is_empty() {
                failed = self.write().await;
            }
            *said.superblock.borrow_mut() = self.superblock.clone();
            if failed.is_empty() {
                shared.table.numbers_are_reserved(numbers);
                shared.members.metadata_written(version);
                if let Some(blocks) = self.new_blocks.take() {
                    shared.members.report(Event::GrowthFinished { size_bytes: blocks * BLOCK_BYTES as u64 });
                }
                if phase == Phase::Stopped {
                    return;
                }
                continue;
            }
            // Z-I11: a member without the newest superblock is not used: the others' superblocks say so next.
            if !failed.iter().all(|(slot, error)| drop_member(&shared, *slot, error)) {
                shared.members.set_read_only();
                return shared.members.metadata_lost();
            }
        }
    }

    /// Lists the members that join, each in the place of the former one of its slot, or as one more. Returns the slots of these.
    fn welcome(&mut self) -> Vec<usize> {
        let mut added = Vec::new();
        for Arrival { slot, uuid, kept } in self.arrivals.take() {
            let is_own = |row: &&mut Member| row.slot.map(usize::from) == Some(slot);
            match self.superblock.members.iter_mut().find(is_own) {
                Some(row) if row.device_uuid != uuid => {
                    (row.device_uuid, row.retired_zones, row.epoch) = (uuid, 0, None);
                }
                Some(_) => {}
                None => {
                    added.push(slot);
                    self.superblock.members.push(Member {
                        device_uuid: uuid,
                        state: Row::InSync,
                        slot: u16::try_from(slot).ok(),
                        retired_zones: 0,
                        events: self.superblock.sequence + 1,
                        epoch: None,
                    });
                    self.members.resize_with(self.members.len().max(slot + 1), || None);
                }
            }
            self.members[slot] = Some(kept);
        }
        added
    }

    /// The superblocks list `listed` members: more than before when some are added, and as many as before when one of these
    /// failed. Once every segment is over all of them the array gets its size.
    fn resize(&mut self, shared: &LogShared, listed: usize) {
        let width = shared.members.width();
        let superblock = &mut self.superblock;
        if listed == width && usize::from(superblock.plan.columns.width()) > width {
            (superblock.plan, superblock.growing) = self.before.clone();
        }
        superblock.members.retain(|row| row.slot.is_none_or(|slot| usize::from(slot) < listed));
        self.members.truncate(listed);
        if listed > usize::from(superblock.plan.columns.width()) {
            self.before = (superblock.plan.clone(), superblock.growing);
            superblock.plan = widened(superblock, listed).expect("asked before the devices came");
            superblock.growing = true;
        }
        if superblock.growing && listed == width && !shared.members.is_growing() {
            superblock.plan = grown(superblock).expect("checked when members were added");
            superblock.growing = false;
            self.new_blocks = Some(superblock.plan.logical_blocks);
        }
    }

    /// What the next superblocks say.
    fn tell(&mut self, phase: Phase, states: &[MemberState]) {
        let superblock = &mut self.superblock;
        superblock.clean = phase == Phase::Stopped;
        if phase == Phase::Recovering {
            return;
        }
        superblock.served = Some(superblock.epoch);
        let next = superblock.sequence + 1;
        for row in &mut superblock.members {
            let Some(state) = row.slot.and_then(|slot| states.get(usize::from(slot))) else { continue };
            let before = (row.state, row.epoch);
            match state {
                MemberState::InSync => (row.state, row.epoch) = (Row::InSync, Some(superblock.epoch)),
                MemberState::Recovering => (row.state, row.epoch) = (Row::Recovering, Some(superblock.epoch)),
                MemberState::Failed | MemberState::Missing => row.state = Row::Failed,
            }
            if (row.state, row.epoch) != before {
                row.events = next;
            }
        }
    }

    /// Writes the first superblocks of members that are added, before any other member's lists these: else a crash could leave an
    /// array that lists members which do not know of it. Their sequence is the lowest, so that they do not speak for the array
    /// when only some of them were written: it is as it was, and none of its members is missing. Returns those that failed.
    async fn introduce(&mut self, added: &[usize]) -> Vec<(usize, DeviceError)> {
        self.write_each(0, &|slot| added.contains(&slot)).await
    }

    /// Writes the next superblock of every member that is there. Returns those that could not be written.
    async fn write(&mut self) -> Vec<(usize, DeviceError)> {
        self.superblock.sequence += 1;
        self.superblock.utime_s = (self.clock)();
        self.write_each(self.superblock.sequence, &|_| true).await
    }

    async fn write_each(
        &mut self,
        sequence: u64,
        wanted: &dyn Fn(usize) -> bool,
    ) -> Vec<(usize, DeviceError)> {
        let device_of = |slot: usize, of: &Superblock| {
            let is_own = |row: &&Member| row.slot.map(usize::from) == Some(slot);
            of.members.iter().find(is_own).map(|row| row.device_uuid)
        };
        let mut slots = Vec::new();
        let mut writing = Vec::new();
        for (slot, member) in self.members.iter_mut().enumerate().filter(|(slot, _)| wanted(*slot)) {
            let (Some(Kept { device, log }), Some(device_uuid)) = (member, device_of(slot, &self.superblock))
            else {
                continue;
            };
            let slot_number = u16::try_from(slot).expect("few members");
            let superblock =
                Superblock { sequence, device_uuid, slot: slot_number, ..self.superblock.clone() };
            let pool = &self.pool;
            slots.push(slot);
            writing.push(Box::pin(async move { log.write(&**device, pool, &superblock).await })
                as Pin<Box<dyn Future<Output = Result<(), DeviceError>> + '_>>);
        }
        let written = join_all(writing).await;
        let failed = |(slot, written): (usize, Result<(), DeviceError>)| Some((slot, written.err()?));
        slots.into_iter().zip(written).filter_map(failed).collect()
    }

    /// The members whose superblocks are kept.
    pub(super) fn drop_member(&mut self, slot: usize) {
        self.members[slot] = None;
    }
}

/// Takes a member out of use whose superblock cannot be written. False if the array cannot do without it.
fn drop_member(shared: &LogShared, slot: usize, error: &DeviceError) -> bool {
    let reason = error.to_string();
    let member = Slot::of_index(slot);
    shared.members.report(Event::MetadataError { member, reason: reason.clone() });
    shared.fail(slot, &format!("its superblock cannot be written: {reason}")) == Failing::Failed
}
