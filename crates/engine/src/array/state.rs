//! What an array does by itself: resync after a crash, recovery onto spares, clean superblocks when it is quiet.
//!
//! One task looks at the members a few times a second and does what is due, one thing after another. It holds no
//! state that the members and the keeper do not have, so whatever happened meanwhile is seen at the next look.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use layout::md_superblock::Superblock;

use super::keeper::{Keeper, Spare};
use super::rebuild::{Ended, Pace, Progress, recover, resync};
use crate::buffer::{Gather, Slice};
use crate::counters::CounterTotals;
use crate::device::{Device, DeviceError};
use crate::events::Event;
use crate::members::MemberState;
use crate::stripe::StripeSet;

/// What an array needs from whoever runs it.
pub trait Platform<D>: 'static {
    /// Puts a device into a slot on every shard, or takes it out; returns when every shard has done so.
    fn attach(&self, slot: u32, device: Option<(Rc<D>, u64)>) -> impl Future<Output = ()>;

    /// Waits for the next look.
    fn pause(&self) -> impl Future<Output = ()>;

    /// Called after each batch of a resync or recovery with the member bytes it covered.
    fn pace(&self, bytes: u64) -> impl Future<Output = ()>;
}

/// Looks without a write before the superblocks say clean: with five looks a second, a second. (md: 0.2 s.)
const QUIET_LOOKS: u32 = 5;
/// A resync or recovery writes down where it is this often (as md does).
const CHECKPOINTS: u64 = 16;

/// What is being rebuilt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// Parity or copies are made to agree.
    Resync,
    /// The member in this slot is rebuilt.
    Recovery(u32),
}

/// Runs an array. Lives on one shard, beside its keeper.
pub struct Manager<D, P> {
    set: Rc<StripeSet<D>>,
    keeper: Rc<Keeper<D>>,
    platform: P,
    progress: Arc<Progress>,
    work: Cell<Option<Work>>,
    /// A resync or recovery that failed is tried again only after the members changed.
    failed_with: RefCell<Option<Vec<MemberState>>>,
    read_only: bool,
    stopping: Cell<bool>,
}

impl<D: Device, P: Platform<D>> Manager<D, P> {
    /// The manager of the array behind `set`.
    pub fn new(
        set: Rc<StripeSet<D>>,
        keeper: Rc<Keeper<D>>,
        platform: P,
        progress: Arc<Progress>,
        read_only: bool,
    ) -> Rc<Self> {
        Rc::new(Manager {
            set,
            keeper,
            platform,
            progress,
            work: Cell::new(None),
            failed_with: RefCell::new(None),
            read_only,
            stopping: Cell::new(false),
        })
    }

    /// Looks after the array until it is stopped.
    pub async fn run(&self) {
        let (mut writes, mut quiet) = (u64::MAX, 0);
        while !self.stopping.get() {
            if !self.read_only {
                self.take_spares().await;
                self.rebuild().await;
            }
            let now = CounterTotals::of(&self.set.shared.counters);
            let now = now.writes + now.zeroings;
            quiet = if now == writes { quiet + 1 } else { 0 };
            writes = now;
            let shared = &self.set.shared;
            if quiet >= QUIET_LOOKS && shared.intent.is_open() && shared.suspects() == 0 {
                self.keeper.want_close();
            }
            self.platform.pause().await;
        }
    }

    /// What is being rebuilt now.
    pub fn work(&self) -> Option<Work> {
        self.work.get()
    }

    /// The keeper beside it.
    pub fn keeper(&self) -> &Rc<Keeper<D>> {
        &self.keeper
    }

    /// Ends [`Manager::run`] after its current step.
    pub fn stop(&self) {
        self.stopping.set(true);
        self.progress.stop.store(true, Relaxed);
    }

    /// Empty slots, and those whose member failed, get a spare while there is one.
    async fn take_spares(&self) {
        let members = &self.set.shared.members;
        for slot in 0..self.set.shared.geometry.members() {
            if !matches!(members.state(slot), MemberState::Missing | MemberState::Failed)
                || self.set.shared.geometry.losses_survived() == 0
            {
                continue;
            }
            let spare = self.keeper.spares().borrow_mut().pop();
            let Some(Spare { superblock, device }) = spare else { return };
            members.remove(slot);
            self.platform.attach(slot, Some((device, superblock.data_offset().bytes()))).await;
            self.keeper.set_superblock(slot, Some(superblock));
            members.begin_recovery(slot, 0);
        }
    }

    async fn rebuild(&self) {
        if self
            .failed_with
            .borrow()
            .as_ref()
            .is_some_and(|states| *states == self.set.shared.members.states())
        {
            return;
        }
        self.failed_with.replace(None);
        let recovering = (0..self.set.shared.geometry.members())
            .find(|&slot| self.set.shared.members.state(slot) == MemberState::Recovering);
        if let Some(slot) = recovering {
            self.work_on(Work::Recovery(slot)).await;
        } else if self.keeper.resync_from_bytes().is_some() && self.set.shared.members.all_in_sync() {
            self.work_on(Work::Resync).await;
        }
    }

    async fn work_on(&self, work: Work) {
        self.work.set(Some(work));
        let pace = Checkpoints { manager: self, work, since_bytes: Cell::new(0) };
        let ended = match work {
            Work::Recovery(slot) => recover(&self.set, slot, &self.progress, &pace).await,
            Work::Resync => {
                let from_bytes = self.keeper.resync_from_bytes().unwrap_or(0);
                self.set.shared.members.report(Event::ResyncStarted { from_bytes });
                resync(&self.set, from_bytes, &self.progress, &pace).await
            }
        };
        self.work.set(None);
        match (ended, work) {
            (Ended::Finished, Work::Resync) => {
                // What the resync wrote must be durable before any superblock says that all agrees.
                if self.set.flush_volume().await.is_ok() {
                    self.keeper.set_resync(None);
                    self.set.shared.members.report(Event::ResyncFinished {});
                    self.keeper.want_close();
                }
            }
            (Ended::Finished, Work::Recovery(_)) => self.set.shared.members.want_metadata(),
            (Ended::Stopped, _) => self.checkpoint(work).await,
            (Ended::Failed(error), _) => {
                self.failed_with.replace(Some(self.set.shared.members.states()));
                self.set.shared.members.report(Event::RebuildStopped { reason: error.to_string() });
            }
        }
    }

    /// Writes down how far the work is. It is durable at the members first.
    async fn checkpoint(&self, work: Work) {
        let done_bytes = self.progress.done_bytes.load(Relaxed);
        if self.set.flush_volume().await.is_err() {
            return;
        }
        match work {
            // Copies are not made in the order of the members' bytes: no cursor can say how far they are.
            _ if self.set.shared.geometry.parity_chunks() == 0 => {}
            Work::Resync => self.keeper.set_resync(Some(done_bytes)),
            Work::Recovery(slot) => self.keeper.set_recovered(slot, done_bytes),
        }
        self.set.shared.members.want_metadata();
    }

    /// Takes a device as a spare: writes its superblock and keeps it until a slot is free.
    ///
    /// # Errors
    /// The superblock could not be written; the device was not taken.
    pub async fn add_spare(&self, device: Rc<D>, superblock: Superblock) -> Result<(), DeviceError> {
        let bytes = superblock.encode(device.info().logical_block_bytes as usize);
        device.write(superblock.offset(), Gather::from(Slice::from_bytes(&bytes)), true).await?;
        self.keeper.spares().borrow_mut().push(Spare { superblock, device });
        self.set.shared.members.want_metadata();
        Ok(())
    }

    /// Takes a failed member out of its slot.
    pub async fn remove(&self, slot: u32) -> bool {
        if !self.set.shared.members.remove(slot) {
            return false;
        }
        self.platform.attach(slot, None).await;
        self.keeper.set_superblock(slot, None);
        true
    }
}

/// Writes checkpoints on the way.
struct Checkpoints<'a, D, P> {
    manager: &'a Manager<D, P>,
    work: Work,
    since_bytes: Cell<u64>,
}

impl<D: Device, P: Platform<D>> Pace for Checkpoints<'_, D, P> {
    async fn after(&self, bytes: u64) {
        self.since_bytes.set(self.since_bytes.get() + bytes);
        let total = self.manager.progress.total_bytes.load(Relaxed);
        if self.since_bytes.get() >= (total / CHECKPOINTS).max(1) && !self.manager.progress.stop.load(Relaxed)
        {
            self.since_bytes.set(0);
            self.manager.checkpoint(self.work).await;
        }
        self.manager.platform.pace(bytes).await;
    }
}
