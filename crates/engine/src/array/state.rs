//! What an array does by itself: resync after a crash, recovery onto spares, clean superblocks when it is quiet.
//!
//! One task looks at the members a few times a second and starts what is due ([`due`] decides), each as a task of its
//! own. It holds no state that the members and the keeper do not have, but for a scrub's, so whatever happened meanwhile is
//! seen at the next look.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeSet, VecDeque};
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Poll, Waker};

use layout::generations::{Generations, GenerationsRecord};
use layout::md_superblock::{Superblock, SuperblockError};
use layout::units::Sectors;

use super::generation_records::GenerationRecords;
use super::keeper::{Keeper, Spare};
use super::mend::Mending;
use super::platform::Platform;
use super::progress::{Ended, Pace, Progress};
use super::re_add::{self, Refused as NoReAdd};
use super::rebuild::{keep_rebuilt, recover, resync};
use super::replace::{Resuming, copy};
use super::retry::Retry;
use super::scrub::{Permit, Phase, Refused, ScrubReport, ScrubState, Wish, grant, scrub};
use super::turn::Turn;
use crate::bad_blocks::BadBlocks;
use crate::buffer::{Gather, Slice};
use crate::counters::CounterTotals;
use crate::device::{Device, DeviceError};
use crate::events::Event;
use crate::limits::{LOOK_NS, QUIET_NS};
use crate::members::{MemberState, MetadataLost, Replacing};
use crate::stripe::StripeSet;

/// A resync or recovery writes down where it is this often (as md does).
const CHECKPOINTS: u64 = 16;

/// What an array does besides serving.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// Parity or copies are made to agree.
    Resync,
    /// The member in this slot is rebuilt.
    Recovery(u32),
    /// The member in this slot is copied to its replacement.
    Replacement(u32),
    /// Data is compared with parity, or copies with each other.
    Scrub,
}

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

/// What is under way.
struct Running {
    work: Work,
    progress: Arc<Progress>,
}

/// Runs an array. Lives on one shard, beside its keeper.
pub struct Manager<D, P> {
    pub(super) set: Rc<StripeSet<D>>,
    pub(super) keeper: Rc<Keeper<D>>,
    pub(super) platform: Rc<P>,
    running: RefCell<Vec<Running>>,
    /// Who waits until nothing is under way.
    pub(super) idle: RefCell<Vec<Waker>>,
    /// Replacements that [`Manager::run`] is to go on with.
    pub(super) resuming: RefCell<VecDeque<Resuming<D>>>,
    /// Devices come to the array, and spares to replace members, one after the other.
    pub(super) seating: Turn,
    /// One replacement at a time gets its slot.
    pub(super) handing: Turn,
    /// Slots that a device is being put into or taken out of: that takes several steps, one at a time.
    pub(super) changing: RefCell<BTreeSet<u32>>,
    /// What stopped is not tried at every look.
    retry: Retry,
    pub(super) mending: Mending,
    scrub: RefCell<Option<ScrubState>>,
    pub(super) read_only: bool,
    stopping: Cell<bool>,
}

impl<D: Device, P: Platform<D>> Manager<D, P> {
    /// The manager of the array behind `set`. `scrub` is one that an earlier run did not end.
    pub fn new(
        set: Rc<StripeSet<D>>,
        keeper: Rc<Keeper<D>>,
        platform: Rc<P>,
        scrub: Option<ScrubState>,
        read_only: bool,
    ) -> Rc<Self> {
        Rc::new(Manager {
            set,
            keeper,
            platform,
            running: RefCell::default(),
            idle: RefCell::default(),
            resuming: RefCell::default(),
            seating: Turn::default(),
            handing: Turn::default(),
            changing: RefCell::default(),
            retry: Retry::default(),
            mending: Mending::default(),
            scrub: RefCell::new(scrub),
            read_only,
            stopping: Cell::new(false),
        })
    }

    /// Looks after the array until it is stopped.
    pub async fn run(self: &Rc<Self>) {
        let (mut writes, mut quiet_since_ns) = (u64::MAX, 0);
        self.resume_replacements().await;
        if !self.read_only {
            self.keeper.tell_what_was_made_good();
        }
        while !self.stopping.get() {
            if !self.read_only {
                self.clear_up_replacements().await;
                self.take_spares().await;
            }
            self.start_due();
            self.mend_suspects();
            let (totals, now_ns) = (CounterTotals::of(&self.set.shared.counters), self.platform.now_ns());
            if writes != totals.writes + totals.zeroings {
                (writes, quiet_since_ns) = (totals.writes + totals.zeroings, now_ns);
            }
            let is_quiet = now_ns.saturating_sub(quiet_since_ns) >= QUIET_NS;
            let shared = &self.set.shared;
            let may_close = shared.consistency.suspects() == 0 && shared.members.may_be_clean();
            // A write that takes long is not quiet: each attempt costs a round of superblocks, and one that waits for its bit
            // would wait for the next round too.
            let at_work = shared.intent.any_write() || shared.intent.any_waits();
            if is_quiet && shared.intent.is_open() && may_close && !at_work {
                self.keeper.want_close();
            }
            self.platform.sleep(LOOK_NS).await;
        }
    }

    /// What is under way, and how far.
    pub fn works(&self) -> Vec<(Work, Arc<Progress>)> {
        self.running.borrow().iter().map(|running| (running.work, Arc::clone(&running.progress))).collect()
    }

    /// Slots of the array.
    pub fn slots(&self) -> u32 {
        self.set.shared.geometry.members()
    }

    /// The keeper beside it.
    pub fn keeper(&self) -> &Rc<Keeper<D>> {
        &self.keeper
    }

    /// What runs the array.
    pub(super) fn platform(&self) -> &Rc<P> {
        &self.platform
    }

    /// Whether it was told to stop.
    pub fn is_stopping(&self) -> bool {
        self.stopping.get()
    }

    /// The last scrub, or the one under way.
    pub fn scrub(&self) -> Option<ScrubState> {
        self.scrub.borrow().clone()
    }

    /// What an operator wants of a scrub. One that is under way ends after its current batch.
    ///
    /// # Errors
    /// [`Refused`] says why nothing changes.
    pub fn wish(&self, wish: Wish) -> Result<(), Refused> {
        if let Wish::Start { mode, .. } = wish {
            if self.set.shared.geometry.losses_survived() == 0 {
                return Err(Refused::NoRedundancy);
            }
            if mode.repair && self.read_only {
                return Err(Refused::ReadOnly);
            }
            self.may_ever_scrub()?;
        }
        let new = grant(self.scrub.borrow().as_ref(), wish)?;
        self.put_scrub(new);
        Ok(())
    }

    /// A scrub waits for a resync or recovery that goes on or is about to, and for nothing else.
    fn may_ever_scrub(&self) -> Result<(), Refused> {
        let is_coming = !self.running.borrow().is_empty() || self.upcoming().is_some();
        let members = &self.set.shared.members;
        match self.keeper.resync_from_bytes() {
            Some(_) if self.read_only => Err(Refused::NotSynced),
            _ if !members.all_in_sync() && !is_coming => Err(Refused::Degraded),
            _ => Ok(()),
        }
    }

    fn put_scrub(&self, state: ScrubState) {
        self.platform.keep_scrub(&state);
        self.scrub.replace(Some(state));
    }

    /// Ends [`Manager::run`] and what is under way after its current step, and waits for that.
    pub async fn stop(&self) {
        self.stopping.set(true);
        self.running.borrow().iter().for_each(|running| running.progress.stop.store(true, Relaxed));
        poll_fn(|context| {
            if self.running.borrow().is_empty() && !self.mending.is_under_way() {
                return Poll::Ready(());
            }
            self.idle.borrow_mut().push(context.waker().clone());
            Poll::Pending
        })
        .await;
    }

    /// Empty slots, and those whose member failed, get a spare while there is one.
    async fn take_spares(&self) {
        let members = &self.set.shared.members;
        for slot in 0..self.set.shared.geometry.members() {
            if !self.is_free(slot) || self.keeper.spares().borrow().is_empty() {
                continue;
            }
            // A spare gets one slot: nobody else takes it for a replacement while it is attached.
            let _turn = self.seating.take().await;
            if !self.is_free(slot) {
                continue;
            }
            let next =
                self.keeper.spares().borrow().last().map(|s| (s.superblock.clone(), Rc::clone(&s.device)));
            let Some((superblock, device)) = next else { return };
            self.changing.borrow_mut().insert(slot);
            members.remove(slot);
            self.platform.attach(slot, Some((device, superblock.data_offset().bytes()))).await;
            // A spare until it has the slot: else its number would be free meanwhile, and the next spare's.
            let number = superblock.dev_number();
            self.keeper.spares().borrow_mut().retain(|spare| spare.superblock.dev_number() != number);
            self.keeper.set_superblock(slot, Some(superblock));
            members.begin_recovery(slot, 0);
            self.changing.borrow_mut().remove(&slot);
        }
    }

    /// Whether a slot waits for a spare.
    fn is_free(&self, slot: u32) -> bool {
        matches!(self.set.shared.members.state(slot), MemberState::Missing | MemberState::Failed)
            && self.set.shared.geometry.losses_survived() > 0
            && !self.is_running(Work::Recovery(slot))
            && !self.is_changing(slot)
    }

    /// Whether the devices of a slot are just being changed.
    fn is_changing(&self, slot: u32) -> bool {
        self.changing.borrow().contains(&slot) || self.set.shared.members.replacing(slot) != Replacing::No
    }

    pub(super) fn is_running(&self, work: Work) -> bool {
        self.running.borrow().iter().any(|running| running.work == work)
    }

    /// Stripes in doubt: nobody recovers a member from them, until they are written.
    fn doubts(&self) -> u64 {
        self.set.shared.consistency.stripes_in_doubt(self.set.shared.geometry.stripes())
    }

    /// What the next look will begin, if nothing is under way: a person who asks is told of that, too.
    pub fn upcoming(&self) -> Option<Work> {
        let is_waiting = self.retry.is_waiting(self.set.shared.members.state_changes(), || self.doubts());
        let mut slots = 0..self.set.shared.geometry.members();
        match self.due_works().first() {
            Some(work) => Some(*work).filter(|_| !is_waiting),
            None if self.keeper.spares().borrow().is_empty() || self.read_only => None,
            None => slots.find(|slot| self.is_free(*slot)).map(Work::Recovery),
        }
    }

    fn due_works(&self) -> Vec<Work> {
        let states = self.set.shared.members.states();
        let running: Vec<Work> = self.running.borrow().iter().map(|running| running.work).collect();
        let scrub = self.scrub.borrow().as_ref().is_some_and(|scrub| scrub.phase == Phase::Running);
        let replacing = self.copying();
        let situation = Situation {
            states: &states,
            replacing: &replacing,
            resync: self.keeper.resync_from_bytes().is_some(),
            copies: self.set.shared.geometry.parity_chunks() == 0,
            scrub,
            read_only: self.read_only,
        };
        due(&situation, &running)
    }

    fn start_due(self: &Rc<Self>) {
        if !self
            .retry
            .is_due(self.platform.now_ns(), self.set.shared.members.state_changes(), || self.doubts())
        {
            return;
        }
        for work in self.due_works() {
            let progress = Arc::<Progress>::default();
            self.running.borrow_mut().push(Running { work, progress: Arc::clone(&progress) });
            let manager = Rc::clone(self);
            self.set.executor.clone().spawn(async move {
                manager.work_on(work, &progress).await;
                manager.running.borrow_mut().retain(|running| running.work != work);
                manager.idle.take().into_iter().for_each(Waker::wake);
            });
        }
    }

    /// Slots whose members are being copied to their replacements.
    fn copying(&self) -> Vec<u32> {
        let members = &self.set.shared.members;
        let slots = 0..self.set.shared.geometry.members();
        slots.filter(|&slot| members.replacing(slot) == Replacing::Copying).collect()
    }

    async fn work_on(&self, work: Work, progress: &Progress) {
        let scrub = self.scrub.borrow().as_ref().map_or(0, |scrub| scrub.number);
        let pace = Checkpoints { manager: self, work, scrub, progress, since_bytes: Cell::new(0) };
        // What changes while it is tried is a reason to try again at once.
        let (state_changes, doubts) = (self.set.shared.members.state_changes(), self.doubts());
        let ended = match work {
            Work::Recovery(slot) => recover(&self.set, slot, progress, &pace).await,
            Work::Replacement(slot) => {
                let ended = copy(&self.set, slot, progress, &pace).await;
                if self.copied(slot, ended, progress).await.is_err() {
                    self.retry.failed(self.platform.now_ns(), state_changes, doubts);
                }
                return;
            }
            Work::Resync => {
                let from_bytes = self.keeper.resync_from_bytes().unwrap_or(0);
                self.set.shared.members.report(Event::ResyncStarted { from_bytes });
                resync(&self.set, from_bytes, progress, &pace).await
            }
            Work::Scrub => return self.work_on_scrub(progress, &pace).await,
        };
        match (ended, work) {
            (Ended::Finished, Work::Resync) => {
                // What the resync wrote must be durable before any superblock says that all agrees.
                if self.set.flush().await.is_ok() {
                    self.keeper.set_resync(None);
                    self.set.shared.intent.resynced_all();
                    self.set.shared.members.report(Event::ResyncFinished {});
                    self.keeper.want_close();
                }
            }
            (Ended::Finished, _) => self.set.shared.members.want_metadata(),
            (Ended::Stopped, _) => self.checkpoint(work, progress).await,
            (Ended::Failed(error), _) => {
                // A member that failed while it was rebuilt is not tried again; another one may be.
                let members = &self.set.shared.members;
                let over = |slot| members.state(slot) != MemberState::Recovering;
                if !matches!(work, Work::Recovery(slot) if over(slot)) {
                    self.retry.failed(self.platform.now_ns(), state_changes, doubts);
                }
                self.set.shared.members.report(Event::RebuildStopped { reason: error.to_string() });
            }
        }
    }

    /// Err if it is to be tried again.
    async fn copied(&self, slot: u32, ended: Ended, progress: &Progress) -> Result<(), ()> {
        let members = &self.set.shared.members;
        match ended {
            Ended::Finished => {
                return self.hand_over(slot).await.map_err(|error| {
                    members.report(Event::RebuildStopped { reason: error.to_string() });
                });
            }
            Ended::Stopped => self.checkpoint(Work::Replacement(slot), progress).await,
            // The member failed, and its replacement has the slot; or the replacement did, which was told.
            Ended::Failed(_) if members.replacing(slot) != Replacing::Copying => {}
            Ended::Failed(error) => {
                members.fail_replacement(slot, &error.to_string());
            }
        }
        Ok(())
    }

    async fn work_on_scrub(&self, progress: &Progress, pace: &impl Pace) {
        let Some(state) = self.scrub() else { return };
        let members = &self.set.shared.members;
        let (repair, from_stripe) = (state.mode.repair, state.next_stripe);
        members.report(Event::ScrubStarted { repair, from_stripe });
        let permit = ScrubPermit { manager: self, number: state.number, unsaved: Cell::new(0) };
        let (ended, mut state) = scrub(&self.set, state, progress, &permit, pace).await;
        // What a repair wrote is durable before anybody is told that it is done.
        let flushed = if repair { self.set.flush().await } else { Ok(()) };
        match (ended, flushed) {
            (Ended::Failed(error), _) | (_, Err(error)) => {
                (state.phase, state.failure) = (Phase::Failed, Some(error.to_string()));
                members.report(Event::ScrubStopped { reason: error.to_string() });
            }
            (Ended::Finished, Ok(())) => {
                state.phase = Phase::Finished;
                let ScrubReport { mismatch_sectors, repaired, left, .. } = state.report;
                members.report(Event::ScrubFinished { repair, mismatch_sectors, repaired, left });
            }
            // Whoever paused or cancelled it, or began another one, has said so in the meantime.
            (Ended::Stopped, Ok(())) => {}
        }
        self.put_scrub_back(state);
    }

    /// Whether the scrub with this number goes on: nobody objects, and nothing is more urgent.
    fn may_scrub(&self, number: u64) -> bool {
        let wanted = |scrub: &ScrubState| scrub.phase == Phase::Running && scrub.number == number;
        self.scrub.borrow().as_ref().is_some_and(wanted)
            && self.set.shared.members.all_in_sync()
            && self.copying().is_empty()
            && self.keeper.resync_from_bytes().is_none()
    }

    /// The scrub came as far as `done` says. What somebody wished in the meantime stands.
    fn put_scrub_back(&self, done: ScrubState) {
        let now = self.scrub.borrow().as_ref().map(|now| (now.number, now.phase));
        match now {
            Some((number, _)) if number != done.number => {}
            Some((_, phase)) if done.phase == Phase::Running => self.put_scrub(ScrubState { phase, ..done }),
            _ => self.put_scrub(done),
        }
    }

    /// Writes down how far the work is. It is durable at the members first.
    async fn checkpoint(&self, work: Work, progress: &Progress) {
        let done_bytes = progress.done_bytes.load(Relaxed);
        let kept = match work {
            Work::Scrub => return,
            Work::Recovery(_) => keep_rebuilt(&self.set).await,
            Work::Resync | Work::Replacement(_) => self.set.flush().await,
        };
        if kept.is_err() {
            return;
        }
        match work {
            // Copies are not made in the order of the members' bytes: no cursor can say how far they are.
            _ if self.set.shared.geometry.parity_chunks() == 0 => {}
            Work::Resync => self.keeper.set_resync(Some(done_bytes)),
            Work::Recovery(slot) => self.keeper.set_recovered(slot, done_bytes),
            Work::Replacement(slot) => {
                let copied_bytes = self.set.shared.members.copied_without_bad(slot, done_bytes);
                self.keeper.set_copied(slot, copied_bytes);
            }
            Work::Scrub => {}
        }
        self.set.shared.members.want_metadata();
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
        // One after the other: a number is nobody else's.
        let _turn = self.seating.take().await;
        // It may have been a member a moment ago. While the superblocks on disk call it one, a crash may need it.
        self.set.shared.members.settled().await?;
        let new = self.keeper.for_new_device(&self.replacement_numbers());
        let (template, number) = new.ok_or(NotAdded::NoNumber)?;
        let superblock = join(&template, number)?;
        let bytes = superblock.encode(device.info().logical_block_bytes as usize);
        device.write(superblock.offset(), Gather::from(Slice::from_bytes(&bytes)), true).await?;
        self.keeper.spares().borrow_mut().push(Spare { superblock, device });
        self.set.shared.members.want_metadata();
        Ok(number)
    }

    /// Takes back a member that was away for a while: it gets only what the bitmap marks. `record` is what goes with its
    /// superblock, `bad` what its bad-block log lists.
    ///
    /// # Errors
    /// [`NotAdded`] says why not; nothing has changed then.
    pub async fn re_add(
        &self,
        device: Rc<D>,
        mut superblock: Superblock,
        record: Option<GenerationsRecord>,
        bad: BadBlocks,
    ) -> Result<u32, NotAdded> {
        let _turn = self.seating.take().await; // as for a spare
        self.set.shared.members.settled().await?;
        let generations = record.as_ref().map(|record| &record.generations);
        let mut slot = self.may_re_add(&superblock, generations)?;
        // What rebuilds another device in this slot, which has failed, would call this one in sync: it ends soon.
        while self.is_running(Work::Recovery(slot)) || self.is_running(Work::Replacement(slot)) {
            self.platform.sleep(LOOK_NS).await;
            slot = self.may_re_add(&superblock, generations)?;
        }
        if !self.changing.borrow_mut().insert(slot) {
            return Err(NoReAdd::Taken(format!("slot {slot} is just being changed")).into());
        }
        let written =
            write_lacking(&mut superblock, record.as_ref(), self.keeper.records.get(), &*device).await;
        if written.is_ok() {
            let corrected_reads = u64::from(superblock.corrected_reads());
            self.platform.attach(slot, Some((device, superblock.data_offset().bytes()))).await;
            self.keeper.set_superblock(slot, Some(superblock));
            self.set.shared.members.begin_catching_up(slot, corrected_reads, bad);
        }
        self.changing.borrow_mut().remove(&slot);
        Ok(written.map(|()| slot)?)
    }

    /// The slot that a member with this superblock, and these generations beside it, would take again.
    ///
    /// # Errors
    /// Why it would not.
    pub fn may_re_add(&self, own: &Superblock, generations: Option<&Generations>) -> Result<u32, NoReAdd> {
        let mut others = self.replacement_numbers();
        others.extend(self.keeper.spares().borrow().iter().map(|spare| spare.superblock.dev_number()));
        judge_re_add(&self.keeper, &self.set.shared.members.states(), &others, own, generations)
    }

    /// Lets go of the spare with this device number. False if there is none, or slots are just being filled.
    pub fn remove_spare(&self, number: u32) -> bool {
        if !self.changing.borrow().is_empty() {
            return false;
        }
        let mut spares = self.keeper.spares().borrow_mut();
        let before = spares.len();
        spares.retain(|spare| spare.superblock.dev_number() != number);
        let removed = spares.len() < before;
        drop(spares);
        self.set.shared.members.want_metadata();
        removed
    }

    /// Takes a failed member out of its slot. False if the slot is in use, or a spare is about to take it. When it returns
    /// the superblocks do not call the device a member any more: whoever has it may do with it as he likes.
    pub async fn remove(&self, slot: u32) -> bool {
        if self.is_changing(slot) || !self.set.shared.members.remove(slot) {
            return false;
        }
        self.changing.borrow_mut().insert(slot);
        self.platform.attach(slot, None).await;
        self.keeper.set_superblock(slot, None);
        self.changing.borrow_mut().remove(&slot);
        // If they cannot be written nothing is acknowledged any more: there is nothing to wait for.
        let _ = self.set.shared.members.settled().await;
        true
    }
}

/// The superblock of a member that comes back: whatever happens next, it does not say any more that it has everything.
async fn write_lacking<D: Device>(
    superblock: &mut Superblock,
    record: Option<&GenerationsRecord>,
    records: Option<&GenerationRecords>,
    device: &D,
) -> Result<(), DeviceError> {
    superblock.set_recovery_offset(Some(Sectors(0)));
    superblock.set_recovers_by_bitmap();
    if let (Some(record), Some(records)) = (record, records) {
        records.write_own(superblock, record, device).await;
    }
    let bytes = superblock.encode(device.info().logical_block_bytes as usize);
    device.write(superblock.offset(), Gather::from(Slice::from_bytes(&bytes)), true).await?;
    records.inspect(|records| records.superblock_written(superblock));
    Ok(())
}

fn judge_re_add<D: Device>(
    keeper: &Keeper<D>,
    states: &[MemberState],
    others: &[u32],
    superblock: &Superblock,
    generations: Option<&Generations>,
) -> Result<u32, NoReAdd> {
    let superblocks: Vec<Option<Superblock>> = (0..).map_while(|slot| keeper.try_superblock(slot)).collect();
    let now = keeper.records.get().and_then(GenerationRecords::now);
    let array = re_add::Array {
        superblocks: &superblocks,
        states,
        others,
        events: keeper.events(),
        events_cleared: keeper.bitmap().map(|bitmap| bitmap.superblock().events_cleared()),
        bitmap: keeper.bitmap_extent(),
        generations: now.as_ref(),
    };
    re_add::judge(superblock, generations, &array)
}

/// Writes checkpoints on the way.
struct Checkpoints<'a, D, P> {
    manager: &'a Manager<D, P>,
    work: Work,
    /// Which scrub, if it is one.
    scrub: u64,
    progress: &'a Progress,
    since_bytes: Cell<u64>,
}

impl<D: Device, P: Platform<D>> Checkpoints<'_, D, P> {
    /// Whether the work would go on after a pause.
    fn is_wanted(&self) -> bool {
        let (manager, members) = (self.manager, &self.manager.set.shared.members);
        let has_work = match self.work {
            Work::Resync => manager.keeper.resync_from_bytes().is_some(),
            Work::Recovery(slot) => members.state(slot) == MemberState::Recovering,
            Work::Replacement(slot) => members.replacing(slot) == Replacing::Copying,
            Work::Scrub => manager.may_scrub(self.scrub),
        };
        has_work && !self.progress.stop.load(Relaxed)
    }
}

impl<D: Device, P: Platform<D>> Pace for Checkpoints<'_, D, P> {
    async fn after(&self, bytes: u64) {
        self.since_bytes.set(self.since_bytes.get() + bytes);
        let total = self.progress.total_bytes.load(Relaxed);
        if self.since_bytes.get() >= (total / CHECKPOINTS).max(1) && !self.progress.stop.load(Relaxed) {
            self.since_bytes.set(0);
            self.manager.checkpoint(self.work, self.progress).await;
        }
        let mut pause = pin!(self.manager.platform.pace(bytes));
        poll_fn(|context| if self.is_wanted() { pause.as_mut().poll(context) } else { Poll::Ready(()) })
            .await;
    }
}

/// A scrub goes on while nobody objects, and is written down now and then.
struct ScrubPermit<'a, D, P> {
    manager: &'a Manager<D, P>,
    /// Which one.
    number: u64,
    unsaved: Cell<u64>,
}

/// A scrub is written down after so many batches.
const SCRUB_BATCHES_KEPT: u64 = 64;

impl<D: Device, P: Platform<D>> Permit for ScrubPermit<'_, D, P> {
    fn may_go_on(&self) -> bool {
        self.manager.may_scrub(self.number)
    }

    fn checked(&self, state: &ScrubState) {
        // Who asks is told at once, and who pauses or cancels it has what was found written down.
        if let Some(now) = self.manager.scrub.borrow_mut().as_mut().filter(|now| now.number == state.number) {
            now.follow(state);
        }
        self.unsaved.set(self.unsaved.get() + 1);
        if self.unsaved.get() >= SCRUB_BATCHES_KEPT {
            self.unsaved.set(0);
            self.manager.put_scrub_back(state.clone());
        }
    }
}

/// What [`due`] looks at.
struct Situation<'a> {
    states: &'a [MemberState],
    /// Slots whose members are being replaced.
    replacing: &'a [u32],
    /// Parity or copies may not agree.
    resync: bool,
    /// The array keeps copies, not parity.
    copies: bool,
    /// A check or repair is wanted.
    scrub: bool,
    /// Nothing may be written.
    read_only: bool,
}

/// What has to begin now: members first, all at once; then what makes parity agree; then what looks whether it does.
/// Copies that are there are made to agree before all else, whoever is missing: until then one that fails could change
/// what clients have read. A scrub that is under way ends by itself when something else is due.
/// A replacement goes on beside all that, but not beside a scrub, which reads what it reads.
fn due(situation: &Situation<'_>, running: &[Work]) -> Vec<Work> {
    let Situation { states, replacing, resync, copies, scrub, read_only } = *situation;
    if running.contains(&Work::Scrub) {
        return Vec::new();
    }
    let recovering = (0u32..).zip(states).filter(|(_, state)| **state == MemberState::Recovering);
    let recoveries: Vec<Work> = recovering.map(|(slot, _)| Work::Recovery(slot)).collect();
    let all_in_sync = states.iter().all(|state| *state == MemberState::InSync);
    let mut wanted = match (read_only, all_in_sync) {
        (false, _) if resync && copies => vec![Work::Resync],
        (false, _) if !recoveries.is_empty() => recoveries,
        (_, false) => Vec::new(),
        (false, true) if resync => vec![Work::Resync],
        _ if scrub && !resync && replacing.is_empty() && running.is_empty() => vec![Work::Scrub],
        _ => Vec::new(),
    };
    if !read_only {
        wanted.extend(replacing.iter().map(|slot| Work::Replacement(*slot)));
    }
    wanted.into_iter().filter(|work| !running.contains(work)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use MemberState::{Failed, InSync, Missing, Recovering};
    use Work::{Recovery, Replacement, Resync, Scrub};

    /// States, a resync is wanted, a scrub is wanted, what runs -> what begins.
    #[test]
    fn table_of_what_is_due() {
        const WHOLE: &[MemberState] = &[InSync, InSync, InSync];
        type Case = (&'static [MemberState], bool, bool, &'static [Work], &'static [Work]);
        let cases: &[Case] = &[
            (WHOLE, false, false, &[], &[]),
            (WHOLE, true, false, &[], &[Resync]),
            (WHOLE, true, true, &[], &[Resync]),
            (WHOLE, true, true, &[Resync], &[]),
            (WHOLE, false, true, &[], &[Scrub]),
            (WHOLE, false, true, &[Scrub], &[]),
            (WHOLE, true, false, &[Scrub], &[]),
            (&[Recovering, InSync, InSync], false, true, &[Scrub], &[]),
            (&[Recovering, InSync, InSync], true, true, &[], &[Recovery(0)]),
            (&[Recovering, InSync, Recovering], true, true, &[], &[Recovery(0), Recovery(2)]),
            (&[Recovering, InSync, Recovering], false, true, &[Recovery(2)], &[Recovery(0)]),
            (&[Failed, InSync, InSync], true, true, &[], &[]),
            (&[InSync, Missing, Recovering], true, true, &[Recovery(2)], &[]),
            (WHOLE, false, true, &[Recovery(1)], &[]),
        ];
        for &(states, resync, scrub, running, begins) in cases {
            let situation =
                Situation { states, replacing: &[], resync, copies: false, scrub, read_only: false };
            assert_eq!(due(&situation, running), begins, "{states:?} {resync} {scrub} {running:?}");
            let situation = Situation { read_only: true, ..situation };
            let begins: &[Work] = if begins == [Scrub] { begins } else { &[] };
            assert_eq!(
                due(&situation, running),
                begins,
                "read-only: {states:?} {resync} {scrub} {running:?}"
            );
        }
    }

    /// Replacements go on beside everything but a scrub, which waits for them.
    #[test]
    fn replacements_are_begun() {
        let states: &[MemberState] = &[InSync, InSync, Missing];
        let situation = Situation {
            states,
            replacing: &[1],
            resync: false,
            copies: false,
            scrub: true,
            read_only: false,
        };
        let whole = Situation { states: &[InSync; 3], ..situation };
        assert_eq!(due(&situation, &[]), [Replacement(1)]);
        assert_eq!(due(&whole, &[]), [Replacement(1)]);
        assert_eq!(due(&whole, &[Replacement(1)]), []);
        assert_eq!(due(&whole, &[Scrub]), []);
        assert_eq!(due(&Situation { read_only: true, ..situation }, &[]), []);
        assert_eq!(due(&Situation { resync: true, ..whole }, &[]), [Resync, Replacement(1)]);
    }

    /// A mirror that was not stopped cleanly is resynced whoever is missing, and before anybody is rebuilt from it.
    #[test]
    fn copies_agree_before_all_else() {
        for states in [&[InSync, InSync, InSync], &[Missing, InSync, InSync], &[Recovering, InSync, InSync]] {
            let situation = Situation {
                states,
                replacing: &[],
                resync: true,
                copies: true,
                scrub: true,
                read_only: false,
            };
            assert_eq!(due(&situation, &[]), [Resync], "{states:?}");
            assert_eq!(due(&situation, &[Resync]), [], "{states:?}");
            assert_eq!(due(&Situation { read_only: true, ..situation }, &[]), [], "{states:?}");
        }
    }
}
