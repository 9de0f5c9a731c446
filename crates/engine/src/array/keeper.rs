//! The keeper of an array's superblocks: one task that turns changes of the members and of the intent into
//! superblocks on disk, in the order that makes them safe.
//!
//! - Superblocks are written whole, to every member in use, with FUA; a member that takes no superblock fails.
//! - Each round raises the event count by one, no more: a crash between two superblocks leaves some members one event
//!   behind, which [`super::assemble`] and md forgive. That a member failed is told by its role in the others'.
//! - Members that are an event behind at the start are brought up first: after a second crash in the next round they
//!   would be two behind.
//! - An array that starts without a member writes its first round twice. The member may have got a round that the
//!   others never saw; it must not come back as new as they are, or it would speak for the array (invariant 8). That round
//!   comes before any write is acknowledged; without one there is none, and who was forgotten is none the older for it.
//! - Only the keeper writes superblocks, one round at a time.
//! - While the redo log is in force its headers are written before the superblocks: they name those that they go with
//!   (see [`crate::stripe::redo`]). So are the records of generations ([`super::generation_records`]).

use std::cell::{Cell, OnceCell, RefCell};
use std::rc::Rc;

use layout::md_superblock::{DeviceRole, Superblock};
use layout::redo_log::BitmapExtent;
use layout::units::Sectors;

use super::bad_block_log;
use super::bitmap::Bitmaps;
use super::device_numbers::{self, Numbers};
use super::generation_records::GenerationRecords;
use super::generations::FoundGenerations;
use super::redo::{Repair, member_of};
use super::replacement::Coming;
use crate::buffer::{Gather, Slice};
use crate::device::{Device, DeviceError};
use crate::events::Event;
use crate::executor::join_all;
use crate::members::{Failing, MemberState};
use crate::stripe::redo::tend::tend;
use crate::stripe::{Attached, StripeSet};

/// Keeps the superblocks of one array. Lives on one shard.
pub struct Keeper<D> {
    pub(super) set: Rc<StripeSet<D>>,
    /// Superblock of the member in each slot.
    superblocks: RefCell<Vec<Option<Superblock>>>,
    /// What is to replace the member in each slot.
    pub(super) coming: RefCell<Vec<Option<Coming>>>,
    /// Superblocks and devices of spares.
    spares: RefCell<Vec<Spare<D>>>,
    /// Device numbers that once were members and failed.
    pub(super) failed: RefCell<Vec<u32>>,
    events: Cell<u64>,
    /// Bytes of each recovering member that are in sync **and durable**: what its superblock may say.
    recovered_bytes: RefCell<Vec<u64>>,
    /// The array started with members an event behind.
    uneven: Cell<bool>,
    /// The array started without a member that the superblocks still call active.
    went_on_without: Cell<bool>,
    /// Which version of its bad places each member's log holds.
    pub(super) logs_written: RefCell<Vec<u64>>,
    /// Parity or copies may not agree from here on, whether or not writes are on their way.
    resync_from_bytes: Cell<Option<u64>>,
    /// States of the members that the superblocks on disk tell.
    told: RefCell<Vec<MemberState>>,
    /// The superblocks on disk say dirty, though the redo log made good what a crash left.
    made_good: bool,
    /// No superblocks were written in this run.
    first_round: Cell<bool>,
    /// What superblocks say, or would if no write were on its way: [`Keeper::clean_offset`].
    clean_offset: Cell<Option<u64>>,
    bitmap: RefCell<Option<Rc<Bitmaps<D>>>>,
    /// What goes with the superblocks, if they are kept with generations.
    pub(super) records: OnceCell<GenerationRecords>,
    close_wanted: Cell<bool>,
    /// [`Keeper::run`] ends after the next round.
    stopping: Cell<bool>,
    /// Seconds since 1970.
    now_s: Box<dyn Fn() -> u64>,
}

/// A device that waits for a slot.
pub struct Spare<D> {
    /// Its superblock.
    pub superblock: Superblock,
    /// This shard's way to it.
    pub device: Rc<D>,
}

/// What one round of superblocks says.
struct Round {
    version: u64,
    dirty: bool,
    closing: bool,
    /// From where on parity or copies may not agree, if it is not dirty.
    clean_offset: Option<u64>,
}

impl<D: Device> Keeper<D> {
    /// The keeper of the array behind `set`; superblocks in slot order. `events` is the newest event count: that of a device
    /// that is to replace a member may be newer than all of these, and the next superblocks are newer still.
    pub fn new(
        set: Rc<StripeSet<D>>,
        superblocks: Vec<Option<Superblock>>,
        events: u64,
        resync_from_bytes: Option<u64>,
        now_s: Box<dyn Fn() -> u64>,
    ) -> Rc<Self> {
        let uneven = superblocks.iter().flatten().any(|superblock| superblock.events() != events);
        let went_on_without = went_on_without(&superblocks);
        let made_good =
            resync_from_bytes.is_none() && superblocks.iter().flatten().any(|s| s.resync_offset().is_some());
        set.shared.loads.set_parity_agrees(resync_from_bytes.is_none());
        set_unsynced(&set, resync_from_bytes);
        if went_on_without && !set.shared.intent.is_used() && set.shared.members.may_write() {
            // No write will ask for superblocks: those that tell of who is missing are there before the first one is
            // acknowledged (invariant 8).
            set.shared.members.want_metadata();
        }
        let told = if went_on_without { Vec::new() } else { set.shared.members.states() };
        let slots = 0..set.shared.geometry.members();
        let recovered_bytes = slots.map(|slot| set.shared.members.recovered_bytes(slot)).collect();
        let logs_written = vec![0; set.shared.geometry.members() as usize];
        let failed = device_numbers::failed(superblocks.iter().flatten());
        Rc::new(Keeper {
            set,
            coming: RefCell::new(superblocks.iter().map(|_| None).collect()),
            superblocks: RefCell::new(superblocks),
            spares: RefCell::new(Vec::new()),
            failed: RefCell::new(failed),
            events: Cell::new(events),
            recovered_bytes: RefCell::new(recovered_bytes),
            logs_written: RefCell::new(logs_written),
            uneven: Cell::new(uneven),
            went_on_without: Cell::new(went_on_without),
            resync_from_bytes: Cell::new(resync_from_bytes),
            made_good,
            told: RefCell::new(told),
            first_round: Cell::new(true),
            clean_offset: Cell::new(resync_from_bytes),
            bitmap: RefCell::new(None),
            records: OnceCell::new(),
            close_wanted: Cell::new(false),
            stopping: Cell::new(false),
            now_s,
        })
    }

    /// The array has a bitmap: it is kept beside the superblocks. Called before [`Keeper::run`].
    pub fn keep_bitmap(&self, bitmap: Rc<Bitmaps<D>>) {
        self.bitmap.replace(Some(bitmap));
    }

    /// The bitmap, if there is one.
    pub fn bitmap(&self) -> Option<Rc<Bitmaps<D>>> {
        self.bitmap.borrow().clone()
    }

    /// Keeps a record of generations beside each superblock, from what was found on; `new_id` draws a random number. Before
    /// [`Keeper::run`].
    pub fn keep_generations(&self, found: &FoundGenerations, new_id: Box<dyn Fn() -> u64>) {
        self.records.get_or_init(|| GenerationRecords::new(found, new_id));
    }

    /// How long the bitmap is on each member.
    pub(super) fn bitmap_extent(&self) -> BitmapExtent {
        self.bitmap().map_or(BitmapExtent::Unknown, |bitmap| bitmap.extent())
    }

    /// Clears bits of chunks that were idle for two rounds; called every few seconds (md's `daemon_sleep`).
    pub async fn clear_idle_bits(&self) {
        if let Some(bitmap) = self.bitmap() {
            bitmap.clear_idle(self.events.get(), self.resync_from_bytes.get().is_some()).await;
        }
    }

    /// Keeps a redo log while members are missing; `repair` is what an earlier one asked for, `bitmaps` by slot. Before
    /// [`Keeper::run`].
    pub fn keep_redo_log(&self, repair: &Repair, bitmaps: &[BitmapExtent]) {
        let redo = &self.set.shared.redo;
        if self.went_on_without.get() && !repair.records.is_empty() {
            // Who is missing now did not get these writes, and a new log will not have them.
            self.set.shared.members.want_metadata();
        }
        for ((slot, superblock), bitmap) in (0u32..).zip(self.superblocks.borrow().iter()).zip(bitmaps) {
            redo.set_member(slot, superblock.as_ref().and_then(|superblock| member_of(superblock, *bitmap)));
        }
        redo.begin(repair.start, self.events.get());
        self.set.executor.spawn(tend(Rc::clone(self.set.redo_log())));
    }

    /// No redo log is kept though an earlier one is in force: superblocks that it does not go with are there before a write is
    /// acknowledged (invariant 8).
    pub fn void_redo_log(&self) {
        self.set.shared.members.want_metadata();
    }

    /// Writes superblocks whenever something wants them. Ends after [`Keeper::stop`], or when they cannot be written
    /// any more.
    pub async fn run(&self) {
        loop {
            self.set.shared.members.metadata_wanted().await;
            if !self.write_round().await || (self.stopping.get() && self.set.shared.members.is_settled()) {
                break;
            }
            self.set.shared.redo.poke();
        }
        self.set.shared.redo.stop();
    }

    /// One round: what is wanted now is on disk when it returns. False if too few members take superblocks for the
    /// array to start from them: going on would make stale what the others hold.
    async fn write_round(&self) -> bool {
        let shared = &self.set.shared;
        if !shared.members.may_write() || (self.stopping.get() && self.is_untouched()) {
            // Nothing was acknowledged that members would have to know of.
            shared.members.metadata_written(shared.members.metadata_version());
            return true;
        }
        let may_close = shared.consistency.suspects() == 0 && shared.members.may_be_clean();
        let mut closing = self.close_wanted.take() && may_close && shared.intent.try_close();
        // Invariant 2: what was written is durable before the superblocks call it clean. A member that failed may lack what
        // the redo log tells: that is on disk before the log is emptied (invariant 8), and clean waits for another round.
        let flushed = !closing || self.set.flush_members().await.is_ok();
        let states = shared.members.states();
        if closing && (!flushed || shared.consistency.suspects() > 0 || states != *self.told.borrow()) {
            shared.intent.reopen();
            closing = false;
        }
        let announcing = match shared.redo.is_used() {
            true => Some(shared.redo.announce().await),
            false => None,
        };
        let (version, clean_offset) = (shared.members.metadata_version(), self.clean_offset().await);
        let round = Round { version, dirty: shared.intent.wants_dirty(), closing, clean_offset };
        self.follow_replacements();
        self.write_bad_block_logs().await;
        if self.uneven.take() {
            self.write_superblocks(&round, 0).await;
        }
        let mut enough = self.write_superblocks(&round, 1).await;
        // The first ones of a run come twice. A device that is not there may have got the last ones before it alone, if a crash
        // cut them short: it must not be as new as these (invariant 8).
        if enough && self.first_round.take() | self.went_on_without.take() {
            enough = self.write_superblocks(&round, 1).await;
        }
        drop(announcing);
        if !enough {
            shared.members.metadata_lost();
            shared.intent.lost();
            shared.redo.lost();
            return false;
        }
        if round.closing {
            shared.intent.clean_written();
        }
        if round.dirty {
            shared.intent.dirty_written();
        }
        self.told.replace(states);
        shared.members.metadata_written(round.version);
        true
    }

    /// The array is as it started, without members that nobody calls failed: they are none the older for it.
    fn is_untouched(&self) -> bool {
        // What a resync that is due has read or made was without them.
        let is_clean = self.resync_from_bytes.get().is_none();
        self.went_on_without.get() && is_clean && !self.set.shared.intent.wants_dirty()
    }

    /// Writes them all, `events` newer than before. False if a member that the array needs did not take its own.
    async fn write_superblocks(&self, round: &Round, events: u64) -> bool {
        let mut enough = true;
        self.events.set(self.events.get() + events);
        // The bitmap says that it is as new as the superblocks that come next.
        if let Some(bitmap) = self.bitmap() {
            bitmap.follow(self.events.get()).await;
        }
        // Last, with no wait between: who was rebuilt since, and who failed then, are not told in one round.
        loop {
            let promoted = self.promote();
            if promoted.is_empty() {
                break;
            }
            enough &= self.write_all(round, &promoted).await;
        }
        enough & self.write_all(round, &self.prepare(round)).await
    }

    async fn write_all(&self, round: &Round, writes: &[SuperblockWrite<D>]) -> bool {
        self.announce_superblocks(round, writes).await;
        if let Some(records) = self.records.get() {
            records.write_before(writes.iter().map(|write| (&write.superblock, &write.member.device))).await;
        }
        let started: Vec<D::Done> = writes.iter().map(SuperblockWrite::start).collect();
        let mut enough = true;
        for (write, result) in writes.iter().zip(join_all(started).await) {
            let failing = match result {
                Ok(()) => None,
                Err(error) => self.retry(write, error).await,
            };
            enough &= failing != Some(Failing::Needed);
            if let Some(records) = self.records.get().filter(|_| failing.is_none()) {
                records.superblock_written(&write.superblock);
            }
            if failing.is_none() && !write.is_replacement {
                self.set.shared.redo.superblock_written(write.slot);
            }
        }
        enough
    }

    /// The redo log goes with these superblocks too, before any of them is written.
    async fn announce_superblocks(&self, round: &Round, writes: &[SuperblockWrite<D>]) {
        let shared = &self.set.shared;
        if !shared.redo.is_used() {
            return;
        }
        let of_members = writes.iter().filter(|write| !write.is_replacement);
        let digests: Vec<(u32, u32)> = of_members.map(|write| (write.slot, write.digest)).collect();
        shared.redo.superblocks_to_come(&digests, self.events.get());
        if round.closing {
            shared.redo.all_durable();
        }
        if shared.redo.is_announced() {
            // Should it fail, members have failed or go without a log; both were reported.
            let _ = self.set.write_headers(true).await;
        } else if round.dirty && shared.intent.is_opening() && shared.redo.wants_opening(&shared.members) {
            // Every write waits for this round: nothing is on its way that was not logged.
            self.set.open_redo(false).await;
        }
    }

    /// A member that was rebuilt says so before anything else changes. Another one may have failed since, because this
    /// one is there: if the superblocks that tell of the failure were first, a crash would leave neither.
    fn promote(&self) -> Vec<SuperblockWrite<D>> {
        let mut writes = Vec::new();
        for (slot, superblock) in (0u32..).zip(self.superblocks.borrow_mut().iter_mut()) {
            let in_sync = self.set.shared.members.state(slot) == MemberState::InSync;
            let Some(superblock) = superblock.as_mut().filter(|s| in_sync && s.recovery_offset().is_some())
            else {
                continue;
            };
            superblock.set_recovery_offset(None);
            writes.extend(self.superblock_write(slot, superblock));
        }
        writes
    }

    fn superblock_write(&self, slot: u32, superblock: &Superblock) -> Option<SuperblockWrite<D>> {
        Some(SuperblockWrite::new(slot, superblock, self.set.devices().described(slot)?))
    }

    /// A second try, then the member fails, which asks for another round. Another device that took the slot meanwhile
    /// has nothing to do with the error, and must not get this superblock: it would call it in sync (invariant 8).
    async fn retry(&self, write: &SuperblockWrite<D>, error: DeviceError) -> Option<Failing> {
        let members = &self.set.shared.members;
        if write.is_replacement {
            return self.retry_replacement(write).await;
        }
        let replaced = || !self.set.devices().is_in_slot(write.slot, &write.member);
        if replaced() {
            return None;
        }
        members.note_error(write.slot, &error);
        let Err(error) = write.start().await else { return None };
        if replaced() {
            return None;
        }
        members.report(Event::MetadataError { member: write.slot, reason: error.to_string() });
        Some(members.fail(write.slot, &format!("its superblock cannot be written: {error}")))
    }

    fn prepare(&self, round: &Round) -> Vec<SuperblockWrite<D>> {
        let states = self.set.shared.members.states();
        self.note_failed(&states);
        let resync = if round.dirty { Some(0) } else { round.clean_offset };
        let mut superblocks = self.superblocks.borrow_mut();
        let active: Vec<(u32, u32)> = (0u32..)
            .zip(superblocks.iter())
            .filter(|(slot, _)| in_use(states[*slot as usize]))
            .filter_map(|(slot, superblock)| Some((superblock.as_ref()?.dev_number(), slot)))
            .chain(self.coming_numbers())
            .collect();
        follow_generations(self, &superblocks, &states);
        let mut writes = Vec::new();
        for (slot, superblock) in (0u32..).zip(superblocks.iter_mut()) {
            let is_told = in_use(states[slot as usize]) && !self.has_just_fallen(slot);
            let Some(superblock) = superblock.as_mut().filter(|_| is_told) else { continue };
            self.fill(superblock, resync, &active);
            self.fill_errors(slot, superblock);
            superblock.set_recovery_offset(match states[slot as usize] {
                MemberState::Recovering => {
                    Some(Sectors::from_bytes_floor(self.recovered_bytes.borrow()[slot as usize]))
                }
                MemberState::InSync | MemberState::Failed | MemberState::Missing => None,
            });
            let by_bitmap = superblock.recovery_offset().is_some() && superblock.bitmap_start().is_some();
            if by_bitmap && self.set.shared.members.lacks_only_marked(slot) {
                superblock.set_recovers_by_bitmap();
            }
            writes.extend(self.superblock_write(slot, superblock));
        }
        writes.extend(self.coming_writes(|superblock| self.fill(superblock, resync, &active)));
        writes
    }

    /// From where on parity or copies may not agree while no write is on its way. With as many members missing as there is
    /// parity, that is what is in doubt: all else was made good or overwritten since, and what the superblocks name is in doubt
    /// again at the next start. With parity left it is what was due all along, since what nobody doubts may not agree with the
    /// parity that was not looked at.
    ///
    /// What agrees since the last superblocks is durable before they say so (invariant 2).
    async fn clean_offset(&self) -> Option<u64> {
        let shared = &self.set.shared;
        let states = shared.members.states();
        let missing = states.iter().filter(|state| **state != MemberState::InSync).count();
        let due = self.resync_from_bytes.get();
        if missing == 0
            || missing < shared.geometry.parity_chunks() as usize
            || shared.geometry.parity_chunks() == 0
        {
            self.clean_offset.set(due);
            return due;
        }
        let first = shared.consistency.doubt_ranges(usize::MAX).first().map(|range| range.first);
        let in_doubt = first.map(|stripe| stripe * u64::from(shared.geometry.chunk_bytes()));
        let or_end = |offset: Option<u64>| offset.unwrap_or(u64::MAX);
        let told = self.clean_offset.get();
        if or_end(in_doubt) <= or_end(told) || self.set.flush_members().await.is_ok() {
            self.clean_offset.set(in_doubt);
        }
        self.clean_offset.get()
    }

    /// Members that are out of use stay known by their device number: their role is "faulty" from now on.
    fn note_failed(&self, states: &[MemberState]) {
        for (slot, superblock) in self.superblocks.borrow().iter().enumerate() {
            if let Some(superblock) = superblock.as_ref().filter(|_| !in_use(states[slot])) {
                device_numbers::note(&mut self.failed.borrow_mut(), superblock.dev_number());
            }
        }
    }

    fn fill_errors(&self, slot: u32, superblock: &mut Superblock) {
        let members = &self.set.shared.members;
        superblock.set_corrected_reads(u32::try_from(members.corrected_reads(slot)).unwrap_or(u32::MAX));
    }

    /// Slots whose members are used.
    pub(super) fn slots_in_use(&self) -> Vec<u32> {
        let states = self.set.shared.members.states();
        (0u32..).zip(states).filter(|(_, state)| in_use(*state)).map(|(slot, _)| slot).collect()
    }

    fn fill(&self, superblock: &mut Superblock, resync: Option<u64>, active: &[(u32, u32)]) {
        superblock.set_events(self.events.get());
        superblock.set_utime_s((self.now_s)());
        superblock.set_resync_offset(resync.map(Sectors::from_bytes_floor));
        // A copy that took the slot of a member has it for itself.
        superblock.set_replacement(false);
        let spares: Vec<u32> =
            self.spares.borrow().iter().map(|spare| spare.superblock.dev_number()).collect();
        Numbers { active, spares: &spares, failed: &self.failed.borrow() }.tell(superblock);
    }

    /// Asks for superblocks now if those on disk call dirty what was made good before the start. Without a write and
    /// without an orderly stop they would say so until another crash, which could then refuse the array.
    pub fn tell_what_was_made_good(&self) {
        if self.made_good {
            self.set.shared.members.want_metadata();
        }
    }

    /// Asks for clean superblocks if no write is on its way.
    pub fn want_close(&self) {
        self.close_wanted.set(true);
        self.set.shared.members.want_metadata();
    }

    /// The last superblocks of an orderly stop: everything is flushed, no write is on its way any more. Where nothing may be
    /// written this only ends [`Keeper::run`].
    ///
    /// # Errors
    /// What was written could not be made durable, or superblocks not written.
    pub(super) async fn stop(&self) -> Result<(), crate::volume::VolumeError> {
        let shared = &self.set.shared;
        if !shared.members.may_write() {
            self.stopping.set(true);
            shared.members.want_metadata();
            return Ok(());
        }
        if *self.told.borrow() != shared.members.states() && !self.is_untouched() {
            shared.members.want_metadata();
        }
        self.set.flush().await?;
        for _ in 0..2 {
            self.clear_idle_bits().await; // twice: at the first look everything has just been written
        }
        self.stopping.set(true);
        self.want_close();
        let settled = shared.members.settled().await;
        settled.map_err(|_| crate::volume::VolumeError::Io {
            reason: "the superblocks cannot be written".into(),
        })
    }

    /// Ends the bitmap's flusher.
    pub fn stop_flusher(&self) {
        self.set.shared.intent.stop_flusher();
    }

    /// From here on the superblocks say that parity or copies agree up to `from_bytes` only, or all of it.
    pub fn set_resync(&self, from_bytes: Option<u64>) {
        self.resync_from_bytes.set(from_bytes);
        self.set.shared.loads.set_parity_agrees(from_bytes.is_none());
        if from_bytes.is_none() {
            self.set.shared.consistency.clear_doubts();
            // But what has failed half way meanwhile stays known, in headers of the redo log too.
            if self.set.shared.redo.is_announced() {
                self.set.doubt_suspects();
            }
        }
        set_unsynced(&self.set, from_bytes);
    }

    /// Where parity or copies may not agree from.
    pub fn resync_from_bytes(&self) -> Option<u64> {
        self.resync_from_bytes.get()
    }

    /// Whether the superblocks, as last written, call the array clean: after a stop nothing is left to resync.
    pub fn says_clean(&self) -> bool {
        let superblocks = self.superblocks.borrow();
        let mut in_use =
            self.slots_in_use().into_iter().filter_map(|slot| superblocks[slot as usize].as_ref());
        in_use.all(|superblock| superblock.resync_offset().is_none())
    }

    /// Newest event count.
    pub fn events(&self) -> u64 {
        self.events.get()
    }

    /// The superblock of the member in a slot, as last written; the outer `None` means that there is no such slot.
    pub fn try_superblock(&self, slot: usize) -> Option<Option<Superblock>> {
        self.superblocks.borrow().get(slot).cloned()
    }

    pub(super) fn change_superblock(&self, slot: u32, change: impl FnOnce(&mut Superblock)) {
        if let Some(superblock) = &mut self.superblocks.borrow_mut()[slot as usize] {
            change(superblock);
        }
    }

    /// The member in `slot` is in sync and durable below `bytes`.
    pub fn set_recovered(&self, slot: u32, bytes: u64) {
        self.recovered_bytes.borrow_mut()[slot as usize] = bytes;
    }

    /// Puts a superblock in a slot, or takes it out; the member goes with it.
    pub fn set_superblock(&self, slot: u32, superblock: Option<Superblock>) {
        self.set_recovered(slot, 0);
        let mut bitmap_extent = BitmapExtent::Unknown;
        if let Some(bitmap) = self.bitmap() {
            bitmap.set_superblock(slot, superblock.as_ref());
            bitmap_extent = bitmap.extent();
        }
        let log = superblock.as_ref().and_then(|superblock| match superblock.bitmap_start() {
            None => member_of(superblock, BitmapExtent::Absent),
            // It gets the array's bitmap before it counts.
            Some(_) => member_of(superblock, bitmap_extent),
        });
        self.set.shared.redo.set_member(slot, log);
        self.set.shared.members.set_bad_room(slot, superblock.as_ref().map_or(0, bad_block_log::room));
        let old = std::mem::replace(&mut self.superblocks.borrow_mut()[slot as usize], superblock);
        if let Some(old) = old {
            device_numbers::note(&mut self.failed.borrow_mut(), old.dev_number());
        }
    }

    /// A superblock of the array and a number for a device that is added: one that no device has and none of these is.
    pub fn for_new_device(&self, reserved: &[u32]) -> Option<(Superblock, u32)> {
        let (mut superblocks, mut coming) = (self.superblocks.borrow_mut(), self.coming.borrow_mut());
        let mut spares = self.spares.borrow_mut();
        let of_coming = coming.iter_mut().flatten().map(Coming::superblock_mut);
        let of_spares = spares.iter_mut().map(|spare| &mut spare.superblock);
        let mut all: Vec<&mut Superblock> =
            superblocks.iter_mut().flatten().chain(of_coming).chain(of_spares).collect();
        let number = device_numbers::take(&mut all, reserved, &mut self.failed.borrow_mut())?;
        Some((superblocks.iter().flatten().next()?.clone(), number))
    }

    /// The spares, for the one who hands them out.
    pub fn spares(&self) -> &RefCell<Vec<Spare<D>>> {
        &self.spares
    }
}

/// A new generation begins if a member is gone that the last superblocks were written with.
fn follow_generations<D: Device>(
    keeper: &Keeper<D>,
    superblocks: &[Option<Superblock>],
    states: &[MemberState],
) {
    let Some(records) = keeper.records.get() else { return };
    let is_told = |slot: u32| in_use(states[slot as usize]) && !keeper.has_just_fallen(slot);
    let members =
        (0u32..).zip(superblocks).map(|(slot, superblock)| superblock.as_ref().filter(|_| is_told(slot)));
    let coming: Vec<Superblock> =
        (0..).zip(superblocks).filter_map(|(slot, _)| keeper.coming(slot)).collect();
    let devices: Vec<Option<&Superblock>> = members.chain(coming.iter().map(Some)).collect();
    let mut slots = (0u32..).zip(states);
    let is_whole = slots.all(|(slot, state)| *state == MemberState::InSync && is_told(slot));
    records.follow(&devices, is_whole, keeper.events(), keeper.bitmap_extent());
}

/// Whether a slot has no member and the newest superblock has a device with that role.
fn went_on_without(superblocks: &[Option<Superblock>]) -> bool {
    let Some(newest) = superblocks.iter().flatten().max_by_key(|superblock| superblock.events()) else {
        return false;
    };
    newest.roles().any(|role| match role {
        DeviceRole::Active(slot) => superblocks.get(usize::from(slot)).is_none_or(Option::is_none),
        DeviceRole::Spare | DeviceRole::Faulty | DeviceRole::Journal => false,
    })
}

/// While all members are there a resync that is due is no doubt; when one goes missing it is, from here on. What was due
/// at that moment stays in doubt, also if a checkpoint of that resync is on its way.
fn set_unsynced<D: Device>(set: &StripeSet<D>, from_bytes: Option<u64>) {
    let shared = &set.shared;
    let stripe = |bytes: u64| bytes / u64::from(shared.geometry.chunk_bytes());
    match from_bytes {
        None => shared.consistency.set_unsynced(None),
        Some(bytes) if shared.geometry.parity_chunks() > 0 && shared.members.all_in_sync() => {
            shared.consistency.set_unsynced(Some(stripe(bytes)));
        }
        Some(_) => {}
    }
}

fn in_use(state: MemberState) -> bool {
    matches!(state, MemberState::InSync | MemberState::Recovering)
}

pub(super) struct SuperblockWrite<D> {
    pub(super) slot: u32,
    superblock: Superblock,
    offset: u64,
    data: Slice,
    digest: u32,
    pub(super) member: Rc<Attached<D>>,
    /// It is about what is to replace the member.
    pub(super) is_replacement: bool,
}

impl<D: Device> SuperblockWrite<D> {
    pub(super) fn new(slot: u32, superblock: &Superblock, member: Rc<Attached<D>>) -> Self {
        let bytes = superblock.encode(member.device.info().logical_block_bytes as usize);
        let (offset, data) = (superblock.offset(), Slice::from_bytes(&bytes));
        let digest = superblock.digest();
        let superblock = superblock.clone();
        SuperblockWrite { slot, superblock, offset, data, digest, member, is_replacement: false }
    }

    pub(super) fn start(&self) -> D::Done {
        self.member.device.write(self.offset, Gather::from(self.data.clone()), true)
    }
}
