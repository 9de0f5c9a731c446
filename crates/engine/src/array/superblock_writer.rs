//! The writer of an array's superblocks: one task that turns changes of the members and of the intent into
//! superblocks on disk, in the order that makes them safe.
//!
//! - Superblocks are written whole, to every member in use, with FUA; a member that takes no superblock fails.
//! - Each round raises the event count by one, no more: a crash between two superblocks leaves some members one event
//!   behind, which [`super::assemble`] and md forgive. That a member failed is in the others' superblocks, as its role.
//! - A superblock of more roles than fit into its first logical block is longer than what a power cut leaves whole. Where what
//!   stands behind that block changes, one member after another gets its own, so that one is torn at most.
//! - Members that are an event behind at the start are brought up first: after a second crash in the next round they
//!   would be two behind.
//! - An array that starts without a member writes its first round twice. The member may have got a round that the
//!   others never saw; it must not come back as new as they are, or it would speak for the array (invariant 8). That round
//!   comes before any write is acknowledged; without a write there is no round, and a member that was left out is none the older for it.
//! - Only the writer writes superblocks, one round at a time.
//! - While the redo log is in force its headers are written before the superblocks: they name those that they go with
//!   (see [`crate::stripe::redo`]). So are the records of generations ([`super::generation_records`]).

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use layout::md_superblock::{DeviceRole, Superblock};
use layout::redo_log::BitmapExtent;
use layout::units::{MemberOffset, Slot};

use super::absences::{absence_place, put_on_record};
use super::bad_block_log::{self, BadBlockLogs, Written};
use super::bitmap::Bitmaps;
use super::redo::{Repair, member_of};
use super::superblock_write::{SuperblockWrite, WrittenTails};
use super::superblocks::Superblocks;
use crate::device::Device;
use crate::in_place::InPlace;
use crate::members::{Failing, MemberState, Replacing};
use crate::stripe::redo::tend::tend;

/// Keeps the superblocks of one array. Lives on one shard.
pub struct SuperblockWriter<D> {
    set: Rc<InPlace<D>>,
    superblocks: Superblocks<D>,
    tails: WrittenTails,
    bad_block_logs: BadBlockLogs,
    /// The array started with members an event behind.
    uneven: Cell<bool>,
    /// The array started without a member that the superblocks still call active.
    went_on_without: Cell<bool>,
    due: Due,
    /// The members' states that are in the superblocks on disk.
    persisted: RefCell<Vec<MemberState>>,
    /// The superblocks on disk say dirty, though the redo log made good what a crash left.
    made_good: bool,
    /// No superblocks were written in this run.
    first_round: Cell<bool>,
    bitmap: RefCell<Option<Rc<Bitmaps<D>>>>,
    close_wanted: Cell<bool>,
    /// [`SuperblockWriter::run`] ends after the next round.
    stopping: Cell<bool>,
}

/// From where on a resync is due, in bytes of the members.
struct Due {
    /// Parity or copies may not agree from here on, whether or not writes are on their way.
    from: Cell<Option<u64>>,
    /// The same, where it begins below what a member had got when its recovery was cut short: that recovery goes on above, and
    /// makes nothing agree there.
    below_recovered: Cell<Option<u64>>,
    /// What superblocks say, or would if no write were on its way: [`clean_offset`].
    told: Cell<Option<u64>>,
}

/// What one round of superblocks says.
struct Round {
    version: u64,
    dirty: bool,
    closing: bool,
    /// From where on parity or copies may not agree, if it is not dirty.
    clean_offset: Option<u64>,
}

impl Round {
    /// From where on parity or copies may not agree.
    fn resync(&self) -> Option<u64> {
        if self.dirty { Some(0) } else { self.clean_offset }
    }
}

impl<D: Device> SuperblockWriter<D> {
    /// The writer of the array behind `set`; superblocks in slot order. `events` is the newest event count: that of a device
    /// that is to replace a member may be newer than all of these, and the next superblocks are newer still.
    pub fn new(
        set: Rc<InPlace<D>>,
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
            // No write will ask for superblocks: those that name the missing members are there before the first one is
            // acknowledged (invariant 8).
            set.shared.members.want_metadata();
        }
        let persisted = if went_on_without { Vec::new() } else { set.shared.members.states() };
        let recovered_bytes = recovered_bytes(&set);
        Rc::new(SuperblockWriter {
            superblocks: Superblocks::new(&set, superblocks, events, now_s),
            tails: WrittenTails::default(),
            bad_block_logs: BadBlockLogs::new(set.shared.geometry.members()),
            set,
            uneven: Cell::new(uneven),
            went_on_without: Cell::new(went_on_without),
            due: Due {
                from: Cell::new(resync_from_bytes),
                below_recovered: Cell::new(resync_from_bytes.filter(|from| *from < recovered_bytes)),
                told: Cell::new(resync_from_bytes),
            },
            made_good,
            persisted: RefCell::new(persisted),
            first_round: Cell::new(true),
            bitmap: RefCell::new(None),
            close_wanted: Cell::new(false),
            stopping: Cell::new(false),
        })
    }

    /// The array has a bitmap: it is kept beside the superblocks. Called before [`SuperblockWriter::run`].
    pub fn keep_bitmap(&self, bitmap: Rc<Bitmaps<D>>) {
        self.bitmap.replace(Some(bitmap));
    }

    /// The bitmap, if there is one.
    pub fn bitmap(&self) -> Option<Rc<Bitmaps<D>>> {
        self.bitmap.borrow().clone()
    }

    /// How long the bitmap is on each member.
    pub(super) fn bitmap_extent(&self) -> BitmapExtent {
        self.bitmap().map_or(BitmapExtent::Unknown, |bitmap| bitmap.extent())
    }

    /// Clears bits of chunks that were idle for two rounds; called every few seconds (md's `daemon_sleep`).
    pub async fn clear_idle_bits(&self) {
        if let Some(bitmap) = self.bitmap() {
            bitmap.clear_idle(self.superblocks.events(), self.due.from.get().is_some()).await;
        }
    }

    /// Keeps a redo log while members are missing; `repair` is what an earlier one asked for, `bitmaps` by slot. Before
    /// [`SuperblockWriter::run`].
    pub fn keep_redo_log(&self, repair: &Repair, bitmaps: &[BitmapExtent]) {
        let redo = &self.set.shared.redo;
        if self.went_on_without.get() && !repair.records.is_empty() {
            // A member that is missing now did not get these writes, and a new log will not have them.
            self.set.shared.members.want_metadata();
        }
        for ((slot, superblock), bitmap) in Slot::all().zip(self.superblocks.all()).zip(bitmaps) {
            redo.set_member(slot, superblock.and_then(|superblock| member_of(&superblock, *bitmap)));
        }
        redo.begin(repair.start, self.superblocks.events());
        self.set.executor.spawn(tend(Rc::clone(self.set.redo_log())));
    }

    /// No redo log is kept though an earlier one is in force: superblocks that it does not go with are there before a write is
    /// acknowledged (invariant 8).
    pub fn void_redo_log(&self) {
        self.set.shared.members.want_metadata();
    }

    /// Writes superblocks whenever something wants them. Ends after [`SuperblockWriter::stop`], or when they cannot be written
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
        if shared.members.fenced() {
            // F-I7: not even where this host is not fenced yet, for the members are the next host's as they are.
            return self.give_up();
        }
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
        if closing && (!flushed || shared.consistency.suspects() > 0 || states != *self.persisted.borrow()) {
            shared.intent.reopen();
            closing = false;
        }
        let announcing = shared.redo.announce().await;
        let (version, clean_offset) =
            (shared.members.metadata_version(), clean_offset(&self.set, &self.due).await);
        let round = Round { version, dirty: shared.intent.wants_dirty(), closing, clean_offset };
        self.follow_replacements();
        let mut enough = self.write_bad_block_logs().await;
        if enough && self.uneven.take() {
            self.write_superblocks(&round, 0).await;
        }
        enough = enough && self.write_superblocks(&round, 1).await;
        // The first ones of a run come twice. A device that is not there may have got the last ones before it alone, if a crash
        // cut them short: it must not be as new as these (invariant 8).
        if enough && self.first_round.take() | self.went_on_without.take() {
            enough = self.write_superblocks(&round, 1).await;
        }
        drop(announcing);
        if !enough {
            return self.give_up();
        }
        if round.closing {
            shared.intent.clean_written();
        }
        if round.dirty {
            shared.intent.dirty_written();
        }
        self.persisted.replace(states);
        shared.members.metadata_written(round.version);
        true
    }

    /// No superblock is written any more: what waits for one, for a bit or for a record fails.
    fn give_up(&self) -> bool {
        let shared = &self.set.shared;
        shared.members.metadata_lost();
        shared.intent.lost();
        shared.redo.lost();
        false
    }

    /// The array is as it started, without members that no superblock calls failed: they are none the older for it.
    fn is_untouched(&self) -> bool {
        // What a resync that is due has read or made was without them.
        let is_clean = self.due.from.get().is_none();
        self.went_on_without.get() && is_clean && !self.set.shared.intent.wants_dirty()
    }

    /// Writes them all, `events` newer than before. False if a member that the array needs did not take its own, or not the
    /// bitmap that goes with it.
    async fn write_superblocks(&self, round: &Round, events: u64) -> bool {
        let mut enough = true;
        self.superblocks.raise_events(events);
        // The bitmap says that it is as new as the superblocks that come next.
        if let Some(bitmap) = self.bitmap()
            && !bitmap.follow(self.superblocks.events()).await
        {
            return false;
        }
        // Last, with no wait after it: else one round would record a member that was rebuilt since, and one that failed after that.
        loop {
            put_on_record(&self.set, &self.superblocks).await;
            let promoted = self.superblocks.promote();
            if promoted.is_empty() {
                break;
            }
            enough &= self.write_all(round, &promoted).await;
        }
        let writes = self.superblocks.prepare(round.resync(), self.bitmap_extent());
        enough & self.write_all(round, &writes).await
    }

    async fn write_all(&self, round: &Round, writes: &[SuperblockWrite<D>]) -> bool {
        self.announce_superblocks(round, writes).await;
        let records = self.superblocks.records();
        if let Some(records) = records {
            records.write_before(writes.iter().map(|write| (&write.superblock, &write.member.device))).await;
        }
        let mut enough = true;
        for (write, result) in writes.iter().zip(self.tails.write_all(writes).await) {
            let failing = match result {
                Ok(()) => None,
                Err(error) => write.retry(&self.set, error).await,
            };
            enough &= failing != Some(Failing::Needed);
            if let Some(records) = records.filter(|_| failing.is_none()) {
                records.superblock_written(&write.superblock);
            }
            if failing.is_none() {
                self.tails.written(write);
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
        let digests: Vec<(Slot, u32)> = of_members.map(|write| (write.slot, write.digest)).collect();
        shared.redo.superblocks_to_come(&digests, self.superblocks.events());
        if round.closing {
            shared.redo.all_durable();
        }
        if shared.redo.is_announced() {
            // Should it fail, members have failed or go without a log; both were reported.
            let _ = self.set.write_headers(true).await;
        } else if self.no_write_is_made(round) && shared.redo.wants_opening(&shared.members) {
            // In the same round: a crash after superblocks that no header goes with would leave all that is marked in doubt.
            self.set.open_redo(false).await;
        }
    }

    /// Whether every write waits for this round, or for one to come: nothing is on its way that was not logged, and what the log
    /// made good at the start is durable.
    fn no_write_is_made(&self, round: &Round) -> bool {
        let intent = &self.set.shared.intent;
        intent.is_used() && (self.first_round.get() || (round.dirty && intent.is_opening()))
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
    /// written this only ends [`SuperblockWriter::run`].
    ///
    /// # Errors
    /// What was written could not be made durable, or superblocks not written.
    pub(super) async fn stop(&self) -> Result<(), crate::error::VolumeError> {
        let shared = &self.set.shared;
        if !shared.members.may_write() {
            self.stopping.set(true);
            shared.members.want_metadata();
            return Ok(());
        }
        if *self.persisted.borrow() != shared.members.states() && !self.is_untouched() {
            shared.members.want_metadata();
        }
        self.set.flush().await?;
        for _ in 0..2 {
            self.clear_idle_bits().await; // twice: at the first look everything has just been written
        }
        self.stopping.set(true);
        self.want_close();
        let settled = shared.members.settled().await;
        settled
            .map_err(|_| crate::error::VolumeError::Io { reason: "the superblocks cannot be written".into() })
    }

    /// Ends the bitmap's flusher.
    pub fn stop_flusher(&self) {
        self.set.shared.intent.stop_flusher();
    }

    /// From here on the superblocks say that parity or copies agree up to `from_bytes` only, or all of it.
    pub fn set_resync(&self, from_bytes: Option<u64>) {
        self.due.from.set(from_bytes);
        self.due.below_recovered.set(None);
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
        self.due.from.get()
    }

    /// Puts a superblock in a slot, or takes it out; the member goes with it.
    pub fn set_superblock(&self, slot: Slot, superblock: Option<Superblock>) {
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
        let place = superblock.as_ref().and_then(|superblock| absence_place(superblock, bitmap_extent));
        self.set.shared.absences.set_place(slot, place);
        let members = &self.set.shared.members;
        members.set_bad_room(slot, superblock.as_ref().map_or(0, bad_block_log::room));
        members.set_read_last(slot, superblock.as_ref().is_some_and(Superblock::is_write_mostly));
        self.superblocks.put(slot, superblock);
    }

    /// Replacements that have their slots by now are the members that superblocks are kept for; those that failed are
    /// faulty. Only before a round of superblocks: the new members get the bitmap before a superblock says that they are
    /// in sync (invariant 2).
    fn follow_replacements(&self) {
        let members = &self.set.shared.members;
        for slot in self.set.shared.geometry.slots() {
            let step = members.replacing(slot);
            if matches!(step, Replacing::Copying | Replacing::Moving) {
                continue;
            }
            self.superblocks.forget_failed_replacement(slot);
            let Some(incoming) = self.superblocks.take_incoming(slot) else { continue };
            let mut superblock = incoming.superblock;
            superblock.set_replacement(false);
            // In this order: a write that finds a place for its record in the redo log finds the device that this place is on.
            self.set.shared.redo.set_member(slot, None);
            members.superblock_is_replacements(slot);
            self.set_superblock(slot, Some(superblock));
            self.superblocks.set_recovered(slot, incoming.copied_bytes.min(members.recovered_bytes(slot)));
            self.bad_block_logs.forget(slot);
        }
    }

    /// Brings the bad-block logs of all members in use up to date, and says in their superblocks whether there is anything in
    /// them. False if a member that the array needs does not take its log: a superblock that calls it in sync would have what is
    /// bad there read as right (invariant 9).
    async fn write_bad_block_logs(&self) -> bool {
        let mut enough = true;
        let members = &self.set.shared.members;
        for slot in self.superblocks.slots_in_use() {
            // The list may be the replacement's already, and the superblock is still the old member's: the next round knows.
            if self.superblocks.incoming(slot).is_some() && members.replacing(slot).has_slot() {
                continue;
            }
            let superblock = self.superblocks.try_superblock(slot).flatten();
            let written = self.bad_block_logs.write(&self.set, slot, superblock.as_ref()).await;
            // Only of a log that was written: md, as we, takes no member whose log makes no sense.
            enough &= !matches!(written, Err(Failing::Needed));
            let Ok(Some(Written { number, any })) = written else { continue };
            self.superblocks.change_superblock(slot, |superblock| {
                if superblock.dev_number() == number {
                    superblock.set_has_bad_blocks(any);
                }
            });
        }
        enough
    }

    /// The superblocks of the array.
    pub fn superblocks(&self) -> &Superblocks<D> {
        &self.superblocks
    }
}

/// From where on parity or copies may not agree while no write is on its way. With as many members missing as there is
/// parity, that is what is in doubt: all else was made good or overwritten since, and what the superblocks name is in doubt
/// again at the next start. With parity left it is what was due all along, since what is not in doubt may not agree with the
/// parity that was not looked at. So it is below what a recovering member had got before this run.
///
/// What agrees since the last superblocks is durable before they say so (invariant 2).
async fn clean_offset<D: Device>(set: &InPlace<D>, due: &Due) -> Option<u64> {
    let shared = &set.shared;
    let states = shared.members.states();
    let missing = states.iter().filter(|state| **state != MemberState::InSync).count();
    let from = due.from.get();
    if missing == 0
        || missing < shared.geometry.parity_chunks() as usize
        || shared.geometry.parity_chunks() == 0
    {
        due.told.set(from);
        return from;
    }
    let first = shared.consistency.doubt_ranges(usize::MAX).first().map(|range| range.first);
    let in_doubt = first.map(|stripe| stripe * u64::from(shared.geometry.chunk_bytes()));
    let first = in_doubt.into_iter().chain(due.below_recovered.get()).min();
    let or_end = |offset: Option<u64>| offset.unwrap_or(u64::MAX);
    let persisted = due.told.get();
    if or_end(first) <= or_end(persisted) || set.flush_members().await.is_ok() {
        due.told.set(first);
    }
    due.told.get()
}

/// How far the recovery of a member had come that came furthest, in bytes of the members. Copies are not made in that order.
fn recovered_bytes<D>(set: &InPlace<D>) -> u64 {
    let (members, geometry) = (&set.shared.members, &set.shared.geometry);
    let recovering = geometry.slots().filter(|slot| members.state(*slot) == MemberState::Recovering);
    recovering.map(|slot| members.recovered_bytes(slot)).max().unwrap_or(0)
}

/// Whether a slot has no member and the newest superblock has a device with that role.
fn went_on_without(superblocks: &[Option<Superblock>]) -> bool {
    let Some(newest) = superblocks.iter().flatten().max_by_key(|superblock| superblock.events()) else {
        return false;
    };
    newest.roles().any(|role| match role {
        DeviceRole::Active(slot) => superblocks.get(slot.index()).is_none_or(Option::is_none),
        DeviceRole::Spare | DeviceRole::Faulty | DeviceRole::Journal => false,
    })
}

/// While all members are there a resync that is due is no doubt; when one goes missing it is, from here on. What was due
/// at that moment stays in doubt, also if a checkpoint of that resync is on its way.
fn set_unsynced<D: Device>(set: &InPlace<D>, from_bytes: Option<u64>) {
    let shared = &set.shared;
    let stripe_at = |bytes| shared.geometry.stripe_at(MemberOffset::new(bytes));
    if shared.geometry.parity_chunks() > 0 {
        shared.redo.set_resync_from(from_bytes.map(stripe_at));
    }
    match from_bytes {
        None => shared.consistency.set_unsynced(None),
        Some(bytes) if shared.geometry.parity_chunks() > 0 && shared.members.all_in_sync() => {
            shared.consistency.set_unsynced(Some(stripe_at(bytes)));
        }
        Some(_) => {}
    }
}
