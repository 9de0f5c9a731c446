//! What an array does by itself: resync after a crash, recovery onto spares, clean superblocks when it is quiet.
//!
//! One task looks at the members a few times a second and starts what is due ([`due`] decides), each as a task of its
//! own. It holds no state that the members and the writer do not have, but for a scrub's, so the next look sees
//! whatever happened meanwhile.

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::Poll;

use super::doubt::{NotAccepted, accept_doubt};
use super::due::{Situation, due};
use super::managed::{Managed, SlotChanges};
use super::membership::Membership;
use super::mend::{Mending, mend_suspects};
use super::platform::Platform;
use super::progress::{Ended, Pace, Progress};
use super::rebuild::{keep_rebuilt, recover, resync};
use super::replace::{Replacements, copy};
use super::retry::Retry;
use super::scrub::{Permit, Phase, Refused, ScrubReport, ScrubRequest, ScrubState, apply, scrub};
use super::superblock_writer::SuperblockWriter;
use super::works::{Work, Works};
use crate::counters::CounterTotals;
use crate::device::Device;
use crate::events::Event;
use crate::in_place::InPlace;
use crate::limits::{LOOK_NS, QUIET_NS};
use crate::members::{MemberState, Replacing};
use crate::stripe::unit_number::UnitNumber;
use layout::redo_log::StripeRange;
use layout::units::Slot;

/// A resync or recovery writes down where it is this often (as md does).
const CHECKPOINTS: u64 = 16;

/// Looks after an array. Lives on one shard, beside the superblock writer.
pub struct Manager<D, P> {
    managed: Rc<Managed<D, P>>,
    membership: Membership<D, P>,
    replacements: Rc<Replacements<D, P>>,
    /// What stopped is not tried at every look.
    retry: Retry,
    mending: Rc<Mending>,
    scrub: RefCell<Option<ScrubState>>,
}

impl<D: Device, P: Platform<D>> Manager<D, P> {
    /// The manager of the array behind `set`. `scrub` is one that an earlier run did not end.
    pub fn new(
        set: Rc<InPlace<D>>,
        writer: Rc<SuperblockWriter<D>>,
        platform: Rc<P>,
        scrub: Option<ScrubState>,
        read_only: bool,
    ) -> Rc<Self> {
        let managed = Rc::new(Managed {
            set,
            writer,
            platform,
            works: Works::default(),
            slots: SlotChanges::default(),
            read_only,
            stopping: Cell::new(false),
        });
        let replacements = Rc::new(Replacements::new(&managed));
        Rc::new(Manager {
            membership: Membership::new(&managed, &replacements),
            replacements,
            managed,
            retry: Retry::default(),
            mending: Rc::default(),
            scrub: RefCell::new(scrub),
        })
    }

    /// Looks after the array until it is stopped.
    pub async fn run(self: &Rc<Self>) {
        let (mut writes, mut quiet_since_ns) = (u64::MAX, 0);
        self.replacements.resume().await;
        if !self.managed.read_only {
            self.managed.writer.tell_what_was_made_good();
        }
        while !self.managed.stopping.get() {
            if !self.managed.read_only {
                self.replacements.clear_up().await;
                self.membership.take_spares().await;
            }
            self.start_due();
            mend_suspects(&self.managed, &self.mending);
            let (totals, now_ns) =
                (CounterTotals::of(&self.managed.set.shared.counters), self.managed.platform.now_ns());
            if writes != totals.writes + totals.zeroings {
                (writes, quiet_since_ns) = (totals.writes + totals.zeroings, now_ns);
            }
            let is_quiet = now_ns.saturating_sub(quiet_since_ns) >= QUIET_NS;
            let shared = &self.managed.set.shared;
            let may_close = shared.consistency.suspects() == 0 && shared.members.may_be_clean();
            // A write that takes long is not quiet: each attempt costs a round of superblocks, and one that waits for its bit
            // would wait for the next round too.
            let at_work = shared.intent.any_write() || shared.intent.any_waits();
            if is_quiet && shared.intent.is_open() && may_close && !at_work {
                self.managed.writer.want_close();
            }
            self.managed.platform.sleep(LOOK_NS).await;
        }
    }

    /// What is under way, and how far.
    pub fn works(&self) -> Vec<(Work, Arc<Progress>)> {
        self.managed.works.all()
    }

    /// The devices of the array: how some come and go.
    pub fn membership(&self) -> &Membership<D, P> {
        &self.membership
    }

    /// Its members that are being replaced.
    pub fn replacements(&self) -> &Replacements<D, P> {
        &self.replacements
    }

    /// Slots of the array.
    pub fn slots(&self) -> impl Iterator<Item = Slot> + use<D, P> {
        self.managed.set.shared.geometry.slots()
    }

    /// The writer beside it.
    pub fn writer(&self) -> &Rc<SuperblockWriter<D>> {
        &self.managed.writer
    }

    /// What runs the array.
    pub(super) fn platform(&self) -> &Rc<P> {
        &self.managed.platform
    }

    /// Whether a stop has begun.
    pub fn is_stopping(&self) -> bool {
        self.managed.stopping.get()
    }

    /// The last scrub, or the one under way.
    pub fn scrub(&self) -> Option<ScrubState> {
        self.scrub.borrow().clone()
    }

    /// What an operator wants of a scrub. One that is under way ends after its current batch.
    ///
    /// # Errors
    /// [`Refused`] says why nothing changes.
    pub fn request_scrub(&self, request: ScrubRequest) -> Result<(), Refused> {
        if let ScrubRequest::Start { mode, .. } = request {
            if self.managed.set.shared.geometry.losses_survived() == 0 {
                return Err(Refused::NoRedundancy);
            }
            if mode.repair && self.managed.read_only {
                return Err(Refused::ReadOnly);
            }
            self.may_ever_scrub()?;
        }
        let new = apply(self.scrub.borrow().as_ref(), request)?;
        self.put_scrub(new);
        Ok(())
    }

    /// A scrub waits for a resync or recovery that goes on or is about to, and for nothing else.
    fn may_ever_scrub(&self) -> Result<(), Refused> {
        let is_coming = !self.works().is_empty() || self.upcoming().is_some();
        let members = &self.managed.set.shared.members;
        match self.managed.writer.resync_from_bytes() {
            Some(_) if self.managed.read_only => Err(Refused::NotSynced),
            _ if !members.all_in_sync() && !is_coming => Err(Refused::Degraded),
            _ => Ok(()),
        }
    }

    fn put_scrub(&self, state: ScrubState) {
        self.managed.platform.keep_scrub(&state);
        self.scrub.replace(Some(state));
    }

    /// Ends the doubt of stripes by an operator's word. What waited for it is tried again.
    ///
    /// # Errors
    /// [`NotAccepted`].
    pub async fn accept_doubt(&self, range: StripeRange) -> Result<u64, NotAccepted> {
        let accepted = accept_doubt(&self.managed.set, range).await?;
        self.managed.works.wake();
        Ok(accepted)
    }

    /// Ends [`Manager::run`] and what is under way after its current step, and waits for that.
    pub async fn stop(&self) {
        self.managed.stopping.set(true);
        self.managed.works.stop();
        self.managed.works.none_while(|| self.mending.is_under_way()).await;
    }

    /// Stripes in doubt: no member is recovered from them until they are written.
    fn doubts(&self) -> u64 {
        self.managed.set.shared.consistency.stripes_in_doubt(self.managed.set.shared.geometry.stripes())
    }

    /// What the next look will begin, if nothing is under way. A status shows that, too.
    pub fn upcoming(&self) -> Option<Work> {
        let is_waiting =
            self.retry.is_waiting(self.managed.set.shared.members.state_changes(), || self.doubts());
        let mut slots = self.managed.set.shared.geometry.slots();
        match self.due_works().first() {
            Some(work) => Some(*work).filter(|_| !is_waiting),
            None if self.managed.writer.superblocks().spares().borrow().is_empty()
                || self.managed.read_only =>
            {
                None
            }
            None => slots.find(|slot| self.membership.is_free(*slot)).map(Work::Recovery),
        }
    }

    fn due_works(&self) -> Vec<Work> {
        let states = self.managed.set.shared.members.states();
        let running: Vec<Work> = self.works().into_iter().map(|(work, _)| work).collect();
        let scrub = self.scrub.borrow().as_ref().is_some_and(|scrub| scrub.phase == Phase::Running);
        let replacing = self.copying();
        let situation = Situation {
            states: &states,
            replacing: &replacing,
            resync: self.managed.writer.resync_from_bytes().is_some(),
            copies: self.managed.set.shared.geometry.parity_chunks() == 0,
            scrub,
            read_only: self.managed.read_only,
        };
        due(&situation, &running)
    }

    fn start_due(self: &Rc<Self>) {
        if !self.retry.is_due(
            self.managed.platform.now_ns(),
            self.managed.set.shared.members.state_changes(),
            || self.doubts(),
        ) {
            return;
        }
        for work in self.due_works() {
            let progress = self.managed.works.begin(work);
            let manager = Rc::clone(self);
            self.managed.set.executor.clone().spawn(async move {
                manager.work_on(work, &progress).await;
                manager.managed.works.end(work);
            });
        }
    }

    /// Slots whose members are being copied to their replacements.
    fn copying(&self) -> Vec<Slot> {
        let members = &self.managed.set.shared.members;
        let slots = self.managed.set.shared.geometry.slots();
        slots.filter(|&slot| members.replacing(slot) == Replacing::Copying).collect()
    }

    async fn work_on(&self, work: Work, progress: &Progress) {
        let scrub = self.scrub.borrow().as_ref().map_or(0, |scrub| scrub.number);
        let pace = Checkpoints { manager: self, work, scrub, progress, since_bytes: Cell::new(0) };
        // What changes while it is tried is a reason to try again at once.
        let (state_changes, doubts) = (self.managed.set.shared.members.state_changes(), self.doubts());
        let ended = match work {
            Work::Recovery(slot) => recover(&self.managed.set, slot, progress, &pace).await,
            Work::Replacement(slot) => {
                let ended = copy(&self.managed.set, slot, progress, &pace).await;
                if self.copied(slot, ended, progress).await.is_err() {
                    self.retry.failed(self.managed.platform.now_ns(), state_changes, doubts);
                }
                return;
            }
            Work::Resync => {
                // Invariant 2: superblocks call it due before anything changes.
                self.managed.set.shared.members.want_metadata();
                if self.managed.set.shared.members.settled().await.is_err() {
                    return; // none can be written any more: the array has stopped
                }
                let from_bytes = self.managed.writer.resync_from_bytes().unwrap_or(0);
                self.managed.set.shared.members.report(Event::ResyncStarted { from_bytes });
                resync(&self.managed.set, from_bytes, progress, &pace).await
            }
            Work::Scrub => return self.work_on_scrub(progress, &pace).await,
        };
        match (ended, work) {
            (Ended::Finished, Work::Resync) => {
                // What the resync wrote must be durable before any superblock says that all agrees.
                match self.managed.set.flush().await {
                    Ok(()) => {
                        self.managed.writer.set_resync(None);
                        self.managed.set.shared.intent.resynced_all();
                        self.managed.set.shared.members.report(Event::ResyncFinished {});
                        self.managed.writer.want_close();
                    }
                    Err(error) => {
                        self.retry.failed(self.managed.platform.now_ns(), state_changes, doubts);
                        let reason = error.to_string();
                        self.managed.set.shared.members.report(Event::RebuildStopped { reason });
                    }
                }
            }
            (Ended::Finished, _) => self.managed.set.shared.members.want_metadata(),
            (Ended::Stopped, _) => self.checkpoint(work, progress).await,
            (Ended::Failed(error), _) => {
                // A member that failed while it was rebuilt is not tried again; another one may be.
                let members = &self.managed.set.shared.members;
                let over = |slot| members.state(slot) != MemberState::Recovering;
                if !matches!(work, Work::Recovery(slot) if over(slot)) {
                    self.retry.failed(self.managed.platform.now_ns(), state_changes, doubts);
                }
                self.managed.set.shared.members.report(Event::RebuildStopped { reason: error.to_string() });
            }
        }
    }

    /// Err if it is to be tried again.
    async fn copied(&self, slot: Slot, ended: Ended, progress: &Progress) -> Result<(), ()> {
        let members = &self.managed.set.shared.members;
        match ended {
            Ended::Finished => {
                return self.replacements.hand_over(slot).await.map_err(|error| {
                    members.report(Event::RebuildStopped { reason: error.to_string() });
                });
            }
            Ended::Stopped => self.checkpoint(Work::Replacement(slot), progress).await,
            // The member failed, and its replacement has the slot; or the replacement failed, which was reported.
            Ended::Failed(_) if members.replacing(slot) != Replacing::Copying => {}
            Ended::Failed(error) => {
                members.fail_replacement(slot, &error.to_string());
            }
        }
        Ok(())
    }

    async fn work_on_scrub(&self, progress: &Progress, pace: &impl Pace) {
        let Some(state) = self.scrub() else { return };
        let members = &self.managed.set.shared.members;
        let (repair, from) = (state.mode.repair, self.managed.set.unit(UnitNumber::new(state.next_stripe)));
        members.report(Event::ScrubStarted { repair, from });
        let permit = ScrubPermit { manager: self, number: state.number, unsaved: Cell::new(0) };
        let (ended, mut state) = scrub(&self.managed.set, state, progress, &permit, pace).await;
        // What a repair wrote is durable before a report says that it is done.
        let flushed = if repair { self.managed.set.flush().await } else { Ok(()) };
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
            // A request paused or cancelled it, or began another one, and has written that down.
            (Ended::Stopped, Ok(())) => {}
        }
        self.put_scrub_back(state);
    }

    /// Whether the scrub with this number goes on: no request has ended it, and nothing is more urgent.
    fn may_scrub(&self, number: u64) -> bool {
        let wanted = |scrub: &ScrubState| scrub.phase == Phase::Running && scrub.number == number;
        self.scrub.borrow().as_ref().is_some_and(wanted)
            && self.managed.set.shared.members.all_in_sync()
            && self.copying().is_empty()
            && self.managed.writer.resync_from_bytes().is_none()
    }

    /// The scrub came as far as `done` says. What an operator asked for in the meantime stands.
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
            Work::Recovery(_) => keep_rebuilt(&self.managed.set).await,
            Work::Resync | Work::Replacement(_) => self.managed.set.flush().await,
        };
        if kept.is_err() {
            return;
        }
        match work {
            // Copies are not made in the order of the members' bytes: no cursor can say how far they are.
            _ if self.managed.set.shared.geometry.parity_chunks() == 0 => {}
            Work::Resync => self.managed.writer.set_resync(Some(done_bytes)),
            Work::Recovery(slot) => self.managed.writer.superblocks().set_recovered(slot, done_bytes),
            Work::Replacement(slot) => {
                let copied_bytes = self.managed.set.shared.members.copied_without_bad(slot, done_bytes);
                self.managed.writer.superblocks().set_copied(slot, copied_bytes);
            }
            Work::Scrub => {}
        }
        self.managed.set.shared.members.want_metadata();
    }
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
        let (manager, members) = (self.manager, &self.manager.managed.set.shared.members);
        let has_work = match self.work {
            Work::Resync => manager.managed.writer.resync_from_bytes().is_some(),
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
        let mut pause = pin!(self.manager.managed.platform.pace(bytes));
        poll_fn(|context| if self.is_wanted() { pause.as_mut().poll(context) } else { Poll::Ready(()) })
            .await;
    }
}

/// A scrub goes on until a request ends it, and is written down now and then.
struct ScrubPermit<'a, D, P> {
    manager: &'a Manager<D, P>,
    /// Which one.
    number: u64,
    unsaved: Cell<u64>,
}

/// Batches of a scrub between two times that it is written down.
const SCRUB_BATCHES_KEPT: u64 = 64;

impl<D: Device, P: Platform<D>> Permit for ScrubPermit<'_, D, P> {
    fn may_go_on(&self) -> bool {
        self.manager.may_scrub(self.number)
    }

    fn checked(&self, state: &ScrubState) {
        // A status shows it at once, and a request that pauses or cancels it keeps what was found.
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
