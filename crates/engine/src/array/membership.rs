//! Devices that come to an array and leave it: spares, members that were away, and members that an operator takes out.
//!
//! An operator takes a member out of use that still works, or may. Unlike one that fails on its own there is time to log
//! writes first: no crash then leaves a stripe in doubt, not even one right after it.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;

use layout::generations::{Generations, GenerationsRecord};
use layout::md_superblock::{Superblock, SuperblockError};
use layout::redo_log::BitmapExtent;
use layout::units::{Sectors, Slot};

use super::absences::sectors_in_doubt;
use super::generation_records::GenerationRecords;
use super::managed::Managed;
use super::platform::Platform;
use super::re_add::{self, Lacks, Refused as NoReAdd};
use super::replace::Replacements;
use super::superblocks::Spare;
use super::works::Work;
use crate::bad_blocks::BadBlocks;
use crate::buffer::{Gather, Slice};
use crate::device::{Device, DeviceError};
use crate::error::MetadataLost;
use crate::limits::{ANSWER_NS, LOG_IN_FORCE_NS, LOOK_NS};
use crate::members::{Failing, MemberState};

/// Why a device was not taken.
#[derive(Debug, thiserror::Error)]
pub enum NotAdded {
    /// It may not come back so.
    #[error(transparent)]
    Refused(#[from] NoReAdd),
    /// Its superblock cannot be written.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The array has as many devices as its superblocks have roles.
    #[error("the superblock has no room for one more")]
    NoNumber,
    /// What the array needs does not fit on it.
    #[error(transparent)]
    Unfit(#[from] SuperblockError),
    /// Those of the array cannot: they may call this device a member.
    #[error("the superblocks of the array cannot be written")]
    Lost,
}

impl From<MetadataLost> for NotAdded {
    fn from(_: MetadataLost) -> Self {
        NotAdded::Lost
    }
}

/// The devices of an array.
pub struct Membership<D, P> {
    managed: Rc<Managed<D, P>>,
    replacements: Rc<Replacements<D, P>>,
}

impl<D: Device, P: Platform<D>> Membership<D, P> {
    pub(super) fn new(managed: &Rc<Managed<D, P>>, replacements: &Rc<Replacements<D, P>>) -> Self {
        Membership { managed: Rc::clone(managed), replacements: Rc::clone(replacements) }
    }

    /// Empty slots, and those whose member failed, get a spare while there is one.
    pub(super) async fn take_spares(&self) {
        let members = &self.managed.set.shared.members;
        for slot in self.managed.set.shared.geometry.slots() {
            if !self.is_free(slot) || self.managed.writer.superblocks().spares().borrow().is_empty() {
                continue;
            }
            // A spare gets one slot: no replacement takes it while it is attached.
            let _turn = self.managed.slots.seating.take().await;
            if !self.is_free(slot) {
                continue;
            }
            let next = self
                .managed
                .writer
                .superblocks()
                .spares()
                .borrow()
                .last()
                .map(|s| (s.superblock.clone(), Rc::clone(&s.device)));
            let Some((superblock, device)) = next else { return };
            self.managed.slots.begin(slot);
            members.remove(slot);
            self.managed.platform.attach(slot, Some((device, superblock.data_start()))).await;
            // A spare until it has the slot: else its number would be free meanwhile, and the next spare's.
            let number = superblock.dev_number();
            self.managed
                .writer
                .superblocks()
                .spares()
                .borrow_mut()
                .retain(|spare| spare.superblock.dev_number() != number);
            self.managed.writer.set_superblock(slot, Some(superblock));
            members.begin_recovery(slot, 0);
            self.managed.slots.end(slot);
        }
    }

    /// Whether a slot waits for a spare.
    pub(super) fn is_free(&self, slot: Slot) -> bool {
        matches!(self.managed.set.shared.members.state(slot), MemberState::Missing | MemberState::Failed)
            && self.managed.set.shared.geometry.losses_survived() > 0
            && !self.managed.works.is_running(Work::Recovery(slot))
            && !self.managed.is_changing(slot)
    }

    /// Takes a device as a spare: writes its superblock and keeps it until a slot is free. `join` makes that of one of the
    /// array's, and the number that it has from now on.
    ///
    /// # Errors
    /// Why the device was not taken.
    pub async fn add_spare(
        &self,
        device: Rc<D>,
        join: impl FnOnce(&Superblock, u32) -> Result<Superblock, SuperblockError>,
    ) -> Result<u32, NotAdded> {
        // One after the other: no two devices get one number.
        let _turn = self.managed.slots.seating.take().await;
        // It may have been a member a moment ago. While the superblocks on disk call it one, a crash may need it.
        self.managed.set.shared.members.settled().await?;
        let new = self.managed.writer.superblocks().for_new_device(&self.replacements.numbers());
        let (template, number) = new.ok_or(NotAdded::NoNumber)?;
        let superblock = join(&template, number)?;
        let bytes = superblock.encode(device.info().logical_block_bytes as usize);
        let written = device.write(superblock.offset(), Gather::from(Slice::from_bytes(&bytes)), true).await;
        if let Err(error) = written {
            // The device may have it nevertheless, and would come back with the number of another one.
            self.managed.writer.superblocks().burn_number(number);
            return Err(error.into());
        }
        self.managed.writer.superblocks().spares().borrow_mut().push(Spare { superblock, device });
        self.managed.set.shared.members.want_metadata();
        Ok(number)
    }

    /// Takes back a member that was away for a while: it gets what the bitmap marks, or where nothing is marked everything but what
    /// it holds of stripes in doubt. `record` is what goes with its superblock, `bad` what its bad-block log lists.
    ///
    /// # Errors
    /// [`NotAdded`] says why not; nothing has changed then.
    pub async fn re_add(
        &self,
        device: Rc<D>,
        mut superblock: Superblock,
        record: Option<GenerationsRecord>,
        bad: BadBlocks,
    ) -> Result<Slot, NotAdded> {
        let _turn = self.managed.slots.seating.take().await; // as for a spare
        self.managed.set.shared.members.settled().await?;
        let generations = record.as_ref().map(|record| &record.generations);
        let (mut slot, mut lacks) = self.may_re_add(&superblock, generations)?;
        // What rebuilds another device in this slot, which has failed, would call this one in sync: it ends soon.
        while self.managed.works.is_running(Work::Recovery(slot))
            || self.managed.works.is_running(Work::Replacement(slot))
        {
            self.managed.platform.sleep(LOOK_NS).await;
            (slot, lacks) = self.may_re_add(&superblock, generations)?;
        }
        if !self.managed.slots.begin(slot) {
            return Err(NoReAdd::Taken(format!("slot {slot} is just being changed")).into());
        }
        let records = self.managed.writer.superblocks().records();
        let bitmap = self.managed.writer.bitmap_extent();
        let written = write_lacking(&mut superblock, lacks, record.as_ref(), records, bitmap, &*device).await;
        if written.is_ok() {
            let corrected_reads = u64::from(superblock.corrected_reads());
            let shared = &self.managed.set.shared;
            shared.absences.returns(slot, superblock.device_uuid(), || sectors_in_doubt(shared));
            self.managed.platform.attach(slot, Some((device, superblock.data_start()))).await;
            self.managed.writer.set_superblock(slot, Some(superblock));
            let is_marked = lacks == Lacks::Marked;
            self.managed.set.shared.members.begin_catching_up(slot, corrected_reads, bad, is_marked);
        }
        self.managed.slots.end(slot);
        Ok(written.map(|()| slot)?)
    }

    /// The slot that a member with this superblock, and these generations beside it, would take again, and what it lacks.
    ///
    /// # Errors
    /// Why it would not.
    pub fn may_re_add(
        &self,
        own: &Superblock,
        generations: Option<&Generations>,
    ) -> Result<(Slot, Lacks), NoReAdd> {
        let (superblocks, members) = (self.managed.writer.superblocks(), &self.managed.set.shared.members);
        self.judge(own, generations, &superblocks.all(), &members.states())
    }

    /// As [`Membership::may_re_add`], as if this member, should it be one that failed and still has its slot, had been removed.
    ///
    /// # Errors
    /// Why it would not.
    pub fn may_return(
        &self,
        own: &Superblock,
        generations: Option<&Generations>,
    ) -> Result<(Slot, Lacks), NoReAdd> {
        let (mut superblocks, mut states) =
            (self.managed.writer.superblocks().all(), self.managed.set.shared.members.states());
        let is_own = |superblock: &Option<Superblock>| {
            superblock.as_ref().is_some_and(|superblock| superblock.device_uuid() == own.device_uuid())
        };
        let slot = superblocks.iter().position(is_own).filter(|slot| states[*slot] == MemberState::Failed);
        if let Some(slot) = slot {
            (superblocks[slot], states[slot]) = (None, MemberState::Missing);
        }
        self.judge(own, generations, &superblocks, &states)
    }

    fn judge(
        &self,
        own: &Superblock,
        generations: Option<&Generations>,
        by_slot: &[Option<Superblock>],
        states: &[MemberState],
    ) -> Result<(Slot, Lacks), NoReAdd> {
        let (writer, superblocks) = (&self.managed.writer, self.managed.writer.superblocks());
        let mut others = self.replacements.numbers();
        others.extend(superblocks.spares().borrow().iter().map(|spare| spare.superblock.dev_number()));
        let of_array = superblocks.records().and_then(GenerationRecords::now);
        let shared = &self.managed.set.shared;
        let may_hold =
            |slot, device| shared.absences.may_hold(slot, device, !sectors_in_doubt(shared).is_empty());
        let array = re_add::Array {
            superblocks: by_slot,
            states,
            others: &others,
            events: superblocks.events(),
            events_cleared: writer.bitmap().map(|bitmap| bitmap.superblock().events_cleared()),
            bitmap: writer.bitmap_extent(),
            generations: of_array.as_ref(),
            may_hold: &may_hold,
        };
        re_add::judge(own, generations, &array)
    }

    /// Lets go of the spare with this device number. False if there is none, or slots are just being filled.
    pub fn remove_spare(&self, number: u32) -> bool {
        if !self.managed.slots.is_empty() {
            return false;
        }
        let mut spares = self.managed.writer.superblocks().spares().borrow_mut();
        let before = spares.len();
        spares.retain(|spare| spare.superblock.dev_number() != number);
        let removed = spares.len() < before;
        drop(spares);
        self.managed.set.shared.members.want_metadata();
        removed
    }

    /// Takes a failed member out of its slot. False if the slot is in use, or a spare is about to take it. When it returns
    /// the superblocks do not call the device a member any more: its owner may do with it as he likes.
    pub async fn remove(&self, slot: Slot) -> bool {
        if self.managed.is_changing(slot) || !self.managed.set.shared.members.remove(slot) {
            return false;
        }
        self.managed.slots.begin(slot);
        self.managed.platform.attach(slot, None).await;
        self.managed.writer.set_superblock(slot, None);
        self.managed.slots.end(slot);
        // If they cannot be written nothing is acknowledged any more: there is nothing to wait for.
        let _ = self.managed.set.shared.members.settled().await;
        true
    }

    /// Stops using a member, unless the array would be lost without it. One that does not answer, which may be why it is to
    /// fail, fails at once: what comes before the log would wait for it, and all writes with that.
    pub async fn fail(&self, slot: Slot, reason: &str) -> Failing {
        let (members, redo) = (&self.managed.set.shared.members, &self.managed.set.shared.redo);
        let Some(member) = self.managed.set.devices().described(slot).filter(|_| redo.is_used()) else {
            return members.fail(slot, reason);
        };
        // A read, whatever comes of it: what a flush says must not be lost here.
        let block = self.managed.set.pool().take(member.device.info().logical_block_bytes as usize);
        let asked = Rc::clone(&member);
        let answer = self.managed.set.executor.spawn_with_result(async move {
            _ = asked.device.read(asked.data_offset, block).await;
        });
        if self.in_time(ANSWER_NS, answer).await.is_none() {
            return members.fail(slot, reason);
        }
        let expected = members.expect_failure();
        redo.poke();
        self.in_time(LOG_IN_FORCE_NS, redo.ready_for_failure(members)).await;
        // It may have failed by itself meanwhile, and another device has the slot.
        let failing = match self.managed.set.devices().is_in_slot(slot, &member) {
            true => members.fail(slot, reason),
            false => Failing::Failed,
        };
        drop(expected);
        redo.poke();
        failing
    }

    /// What some work comes to, unless that takes too long.
    async fn in_time<T>(&self, limit_ns: u64, work: impl Future<Output = T>) -> Option<T> {
        let mut work = pin!(work);
        let mut patience = pin!(self.managed.platform.sleep(limit_ns));
        poll_fn(|context| match work.as_mut().poll(context) {
            Poll::Ready(result) => Poll::Ready(Some(result)),
            Poll::Pending => patience.as_mut().poll(context).map(|()| None),
        })
        .await
    }
}

/// The superblock of a member that comes back: whatever happens next, it does not say any more that it has everything.
async fn write_lacking<D: Device>(
    superblock: &mut Superblock,
    lacks: Lacks,
    record: Option<&GenerationsRecord>,
    records: Option<&GenerationRecords>,
    bitmap: BitmapExtent,
    device: &D,
) -> Result<(), DeviceError> {
    superblock.set_recovery_offset(Some(Sectors(0)));
    match lacks {
        Lacks::Marked => superblock.set_recovers_by_bitmap(),
        Lacks::AllButHeld => {}
    }
    if let (Some(record), Some(records)) = (record, records) {
        records.write_own(superblock, record, bitmap, device).await;
    }
    let bytes = superblock.encode(device.info().logical_block_bytes as usize);
    device.write(superblock.offset(), Gather::from(Slice::from_bytes(&bytes)), true).await?;
    records.inspect(|records| records.superblock_written(superblock));
    Ok(())
}
