//! The members' health, shared by all shards, and the rule that a failure is on disk before any acknowledgement relies on
//! it.
//!
//! Invariant 8 (a stale member is never read) has two halves. A member that failed is not read again in this run:
//! its state says so before the next plan is made. It is not read in a later run either: a write that was not made
//! on a failed member is acknowledged only after the superblocks of the others say that it failed. Hence
//! [`Members::settled`] before every acknowledgement.

use std::ops::Range;
use std::sync::OnceLock;

use super::metadata::Metadata;
use super::replacement::{Replacement, Replacing};
use crate::bad_blocks::BadBlocks;
use crate::device::{DeviceError, DeviceErrorKind};
use crate::error::MetadataLost;
use crate::events::{Event, EventSink};
use crate::read_errors::ReadErrors;
use crate::sync::sequential::Mutex;
use crate::sync::sequential::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering::SeqCst};
use layout::geometry::Geometry;
use layout::units::{MemberOffset, Slot};

/// State of a slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
#[repr(u8)]
pub enum MemberState {
    /// The slot is empty.
    Missing = 0,
    /// The member is there and not used any more.
    Failed = 1,
    /// The member is being rebuilt: its contents below the cursor are in sync.
    Recovering = 2,
    /// The member holds all it should.
    InSync = 3,
}

impl MemberState {
    fn from_byte(byte: u8) -> Self {
        match byte {
            0 => MemberState::Missing,
            1 => MemberState::Failed,
            2 => MemberState::Recovering,
            3 => MemberState::InSync,
            other => unreachable!("{other} is no member state"),
        }
    }
}

/// One slot: the health of its member.
struct SlotHealth {
    state: AtomicU8,
    /// Bytes of the data area that are in sync while recovering.
    recovered_bytes: AtomicU64,
    /// While recovering: the member lacks only chunks that the bitmap marks.
    lacks_marked: AtomicBool,
    /// While recovering: it is about to be in sync.
    is_nearly_in_sync: AtomicBool,
    errors: AtomicU64,
    read_errors: Mutex<ReadErrors>,
    bad: Mutex<BadBlocks>,
    /// Entries that the member's bad-block log has room for; 0 without a log.
    bad_room: AtomicUsize,
    /// Counts the changes of `bad`.
    bad_version: AtomicU64,
    replacement: Replacement,
    /// md's write-mostly: reads go to other copies while one is in sync.
    read_last: AtomicBool,
}

/// All slots of an array.
pub struct Members {
    geometry: Geometry,
    slots: Box<[SlotHealth]>,
    /// Every slot is in sync.
    whole: AtomicBool,
    /// Writes are logged before they are made, whether or not every slot is in sync.
    logged: AtomicBool,
    /// Members that an operator is about to take out of use.
    expected_failures: AtomicUsize,
    /// Every slot is in sync and no failure is expected, no write is logged, no block is known to be bad, and no member is
    /// being replaced: the write path checks nothing else.
    plain: AtomicBool,
    /// The same, but that slots may be empty.
    steady: AtomicBool,
    /// Serialises changes of state.
    changing: Mutex<()>,
    state_changes: AtomicU64,
    metadata: Metadata,
    /// Nothing is written to the members, not even repairs.
    read_only: AtomicBool,
    /// A member that the array needs failed to flush: its contents are uncertain even if later flushes succeed.
    flush_failed: AtomicBool,
    /// Another host has taken the array over (F-I7).
    fenced: AtomicBool,
    /// A member is read last.
    any_read_last: AtomicBool,
    /// Runs when a member has failed, and drops what is cached of the members' contents.
    on_failure: OnceLock<Box<dyn Fn() + Send + Sync>>,
    events: EventSink,
}

/// The outcome of an attempt to fail a member.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Failing {
    /// It is not used any more.
    Failed,
    /// The array cannot do without the member; it stays.
    Needed,
}

/// While it lives an operator is about to take a member out of use.
pub(crate) struct Expected<'a>(&'a Members);

impl Drop for Expected<'_> {
    fn drop(&mut self) {
        let _changing = self.0.changing.lock();
        self.0.expected_failures.fetch_sub(1, SeqCst);
        self.0.update_whole();
    }
}

impl Members {
    /// Members in these states; `events` receives what happens to them.
    pub fn new(geometry: Geometry, states: &[MemberState], events: EventSink) -> Self {
        assert_eq!(states.len(), geometry.members() as usize, "a state for every slot");
        let slot = |state: &MemberState| SlotHealth {
            state: AtomicU8::new(*state as u8),
            recovered_bytes: AtomicU64::new(0),
            lacks_marked: AtomicBool::new(false),
            is_nearly_in_sync: AtomicBool::new(false),
            errors: AtomicU64::new(0),
            read_errors: Mutex::new(ReadErrors::default()),
            bad: Mutex::new(BadBlocks::default()),
            bad_room: AtomicUsize::new(0),
            bad_version: AtomicU64::new(0),
            replacement: Replacement::default(),
            read_last: AtomicBool::new(false),
        };
        let members = Members {
            geometry,
            slots: states.iter().map(slot).collect(),
            whole: AtomicBool::new(false),
            logged: AtomicBool::new(false),
            expected_failures: AtomicUsize::new(0),
            plain: AtomicBool::new(false),
            steady: AtomicBool::new(false),
            changing: Mutex::new(()),
            state_changes: AtomicU64::new(0),
            metadata: Metadata::new(),
            read_only: AtomicBool::new(false),
            flush_failed: AtomicBool::new(false),
            fenced: AtomicBool::new(false),
            any_read_last: AtomicBool::new(false),
            on_failure: OnceLock::new(),
            events,
        };
        members.update_whole();
        members
    }

    /// Where every byte lives.
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// Whether reads of a mirror go to other copies than this member's while one is in sync.
    pub fn set_read_last(&self, slot: Slot, is_last: bool) {
        self.slots[slot.index()].read_last.store(is_last, SeqCst);
        self.any_read_last.store(self.slots.iter().any(|slot| slot.read_last.load(SeqCst)), SeqCst);
    }

    /// Whether some member is read last.
    #[inline]
    pub(crate) fn any_read_last(&self) -> bool {
        self.any_read_last.load(SeqCst)
    }

    /// Whether this member is read last.
    pub(crate) fn is_read_last(&self, slot: Slot) -> bool {
        self.slots[slot.index()].read_last.load(SeqCst)
    }

    /// From now on nothing is written to the members. Called before the first request.
    pub fn set_read_only(&self) {
        self.read_only.store(true, SeqCst);
    }

    /// Whether members may be written, also to repair them.
    pub fn may_write(&self) -> bool {
        !self.read_only.load(SeqCst)
    }

    /// A member that the array needs failed to flush.
    pub(super) fn set_flush_failed(&self) {
        self.flush_failed.store(true, SeqCst);
    }

    /// Whether superblocks may ever say clean again in this run: every flush of a member that the array needs succeeded.
    pub fn may_be_clean(&self) -> bool {
        !self.flush_failed.load(SeqCst)
    }

    /// Another host has reserved the members: this one writes nothing more, and no member fails for that (F-I7).
    pub fn set_fenced(&self, reason: &str) {
        if !self.fenced.swap(true, SeqCst) {
            self.report(Event::Fenced { reason: reason.to_string() });
            // The members take no record any more: writes that wait for superblocks fail now, and the superblock writer fails those
            // that wait for a bit of the bitmap or for the redo log.
            self.metadata.lost();
            self.want_metadata();
        }
    }

    /// Whether another host has taken the array over.
    pub fn fenced(&self) -> bool {
        self.fenced.load(SeqCst)
    }

    /// Sets the function that runs when a member has failed. Later calls have no effect.
    pub(crate) fn on_failure(&self, run: Box<dyn Fn() + Send + Sync>) {
        self.on_failure.get_or_init(|| run);
    }

    /// Whether every member is in sync.
    pub fn all_in_sync(&self) -> bool {
        self.whole.load(SeqCst)
    }

    /// Whether writes need no special care: every member is in sync, no block of any is known to be bad, none is being
    /// replaced, and no write is logged first.
    pub(crate) fn plain(&self) -> bool {
        self.plain.load(SeqCst)
    }

    /// Whether no member is being rebuilt or replaced, no block of any is known to be bad, and no write is logged first: members may
    /// be missing, and those that are there need no special care.
    pub(crate) fn is_steady(&self) -> bool {
        self.steady.load(SeqCst)
    }

    /// Sets whether every write is logged first (see [`crate::stripe::redo`]).
    pub(crate) fn set_logged(&self, logged: bool) {
        let _changing = self.changing.lock();
        self.logged.store(logged, SeqCst);
        self.update_whole();
    }

    /// An operator is about to take a member out of use: writes are to be logged until this is dropped.
    pub(crate) fn expect_failure(&self) -> Expected<'_> {
        let _changing = self.changing.lock();
        self.expected_failures.fetch_add(1, SeqCst);
        self.update_whole();
        Expected(self)
    }

    /// Whether writes are to be logged: members are missing, or are about to be.
    pub(crate) fn want_log(&self) -> bool {
        !self.all_in_sync() || self.expected_failures.load(SeqCst) > 0
    }

    /// Copies that a redo record needs so that one is left after as many more failures as the level survives.
    pub(crate) fn copies_wanted(&self) -> u32 {
        self.copies_for(|slot| slot.state.load(SeqCst) != MemberState::InSync as u8)
    }

    /// The same once members are in sync that are about to be: a record that is made now may still be needed then.
    pub(crate) fn copies_wanted_soon(&self) -> u32 {
        self.copies_for(|slot| match slot.state.load(SeqCst) {
            state if state == MemberState::InSync as u8 => false,
            state if state == MemberState::Recovering as u8 => !slot.is_nearly_in_sync.load(SeqCst),
            _ => true,
        })
    }

    fn copies_for(&self, is_out: impl Fn(&SlotHealth) -> bool) -> u32 {
        let out = self.slots.iter().filter(|slot| is_out(slot)).count();
        1 + self.geometry.parity_chunks().saturating_sub(u32::try_from(out).expect("few members"))
    }

    /// State of a slot.
    pub fn state(&self, slot: Slot) -> MemberState {
        MemberState::from_byte(self.slots[slot.index()].state.load(SeqCst))
    }

    /// States of all slots in order.
    pub fn states(&self) -> Vec<MemberState> {
        self.geometry.slots().map(|slot| self.state(slot)).collect()
    }

    /// Whether the member is in sync in a range that ends before `end` of its data area.
    pub fn in_sync_to(&self, slot: Slot, end: MemberOffset) -> bool {
        match self.state(slot) {
            MemberState::InSync => true,
            MemberState::Recovering => end.get() <= self.recovered_bytes(slot),
            MemberState::Missing | MemberState::Failed => false,
        }
    }

    /// Bytes of a recovering member that are in sync.
    pub fn recovered_bytes(&self, slot: Slot) -> u64 {
        self.slots[slot.index()].recovered_bytes.load(SeqCst)
    }

    /// I/O errors of a member since the start.
    pub fn errors(&self, slot: Slot) -> u64 {
        self.slots[slot.index()].errors.load(SeqCst)
    }

    /// Whether enough members are in sync to serve all data.
    pub fn serving(&self) -> bool {
        self.geometry.survives(|slot| self.state(slot) != MemberState::InSync)
    }

    /// Passes an event to the sink.
    pub fn report(&self, event: Event) {
        (self.events)(event);
    }

    /// Counts and reports an error of a member.
    pub fn note_error(&self, slot: Slot, error: &DeviceError) {
        if error.kind == DeviceErrorKind::Fenced {
            return self.set_fenced(&error.to_string());
        }
        self.slots[slot.index()].errors.fetch_add(1, SeqCst);
        self.report(Event::MemberError { member: slot, kind: error.kind, error: error.to_string() });
    }

    /// Counts a read error that was corrected at `now_ns`. True if the member has had too many lately.
    pub fn note_corrected_read(&self, slot: Slot, now_ns: u64) -> bool {
        self.slots[slot.index()].read_errors.lock().note(now_ns)
    }

    /// Read errors of a member that were corrected, those of earlier runs too.
    pub fn corrected_reads(&self, slot: Slot) -> u64 {
        self.slots[slot.index()].read_errors.lock().total()
    }

    /// Takes over, at the start, what a member's superblock and bad-block log say: corrected read errors, bad blocks, and
    /// how many entries the log has room for.
    pub fn begin_with(&self, slot: Slot, corrected_reads: u64, bad: BadBlocks, bad_room: usize) {
        let _changing = self.changing.lock();
        let slot = &self.slots[slot.index()];
        *slot.read_errors.lock() = ReadErrors::with_total(corrected_reads);
        *slot.bad.lock() = bad;
        slot.bad_room.store(bad_room, SeqCst);
        self.update_whole();
    }

    /// Sets how many entries the bad-block log of the member in a slot has room for.
    pub fn set_bad_room(&self, slot: Slot, entries: usize) {
        self.slots[slot.index()].bad_room.store(entries, SeqCst);
    }

    /// How often any member's state has changed in this run: unlike equal states, equal counts show that nothing changed.
    pub fn state_changes(&self) -> u64 {
        self.state_changes.load(SeqCst)
    }

    /// Whether any part of a range of the member's data area is known to be bad. It is never read as data.
    pub fn is_bad(&self, slot: Slot, range: &Range<MemberOffset>) -> bool {
        !self.plain() && self.slots[slot.index()].bad.lock().meets(range)
    }

    /// Whether all of a range is known to be bad.
    pub fn is_all_bad(&self, slot: Slot, range: &Range<MemberOffset>) -> bool {
        self.slots[slot.index()].bad.lock().covers(range)
    }

    /// Records a range as bad. False, with nothing changed, if the log has no room for it.
    pub fn set_bad(&self, slot: Slot, range: Range<MemberOffset>) -> bool {
        self.change_bad(slot, |bad, room| {
            let mut with = bad.clone();
            if with.set(range) && with.entries() > room {
                return None;
            }
            Some(with)
        })
    }

    /// The range was written, so it is good again. It stays bad if the log has no room for what is left around it.
    pub fn clear_bad(&self, slot: Slot, range: &Range<MemberOffset>) {
        self.clear_bad_of_replacement(slot, range);
        if self.is_bad(slot, range) {
            self.change_bad(slot, |bad, room| {
                let mut without = bad.clone();
                without.clear_within(range, room).then_some(without)
            });
        }
    }

    /// Changes the bad blocks of a member: metadata, on disk before a request that relies on it is acknowledged.
    fn change_bad(&self, slot: Slot, change: impl FnOnce(&BadBlocks, usize) -> Option<BadBlocks>) -> bool {
        let _changing = self.changing.lock();
        let slot = &self.slots[slot.index()];
        let new = change(&slot.bad.lock(), slot.bad_room.load(SeqCst));
        let Some(new) = new else { return false };
        self.metadata.change();
        *slot.bad.lock() = new;
        slot.bad_version.fetch_add(1, SeqCst);
        self.update_whole();
        self.metadata.wake_writer();
        true
    }

    /// The bad blocks of a member, and their version.
    pub fn bad_blocks(&self, slot: Slot) -> (BadBlocks, u64) {
        let slot = &self.slots[slot.index()];
        let bad = slot.bad.lock();
        (bad.clone(), slot.bad_version.load(SeqCst))
    }

    /// Whether an error is worth a second try: a device that is gone or silent stays so.
    pub fn worth_a_retry(error: &DeviceError) -> bool {
        match error.kind {
            DeviceErrorKind::Io => true,
            DeviceErrorKind::NoSpace
            | DeviceErrorKind::Gone
            | DeviceErrorKind::Timeout
            | DeviceErrorKind::Fenced
            | DeviceErrorKind::Unsupported
            | DeviceErrorKind::Invalid => false,
            // What follows from a zone's state stays so until the caller has asked for the zone's report.
            DeviceErrorKind::ZoneFull
            | DeviceErrorKind::ZoneState
            | DeviceErrorKind::TooManyOpen
            | DeviceErrorKind::NotAtPointer => false,
        }
    }
}

/// How members leave and come.
impl Members {
    /// Fails a member, unless the array would be lost without it. A replacement that is being copied takes its slot.
    pub fn fail(&self, slot: Slot, reason: &str) -> Failing {
        let changing = self.changing.lock();
        if self.fenced() {
            return Failing::Needed;
        }
        match self.state(slot) {
            MemberState::Failed | MemberState::Missing => return Failing::Failed,
            MemberState::Recovering => {}
            MemberState::InSync => {
                let lost = |other| other == slot || self.state(other) != MemberState::InSync;
                if !self.geometry.survives(lost) {
                    drop(changing);
                    self.report(Event::MemberKept { member: slot, reason: reason.to_string() });
                    return Failing::Needed;
                }
            }
        }
        let rebuilt_from = self.begin_failover(slot);
        self.set(slot, if rebuilt_from.is_some() { MemberState::Recovering } else { MemberState::Failed });
        if rebuilt_from.is_some() {
            self.finish_failover(slot);
        }
        let working = self.states().into_iter().filter(|&state| state == MemberState::InSync).count();
        let working = u32::try_from(working).expect("few members");
        drop(changing);
        if let Some(run) = self.on_failure.get() {
            run();
        }
        self.report(Event::MemberFailed { member: slot, reason: reason.to_string(), working });
        if let Some(from_bytes) = rebuilt_from {
            self.report(Event::RecoveryStarted { member: slot, from_bytes });
        }
        Failing::Failed
    }

    /// Empties a slot whose member failed. False if the member is in use.
    pub fn remove(&self, slot: Slot) -> bool {
        let _changing = self.changing.lock();
        match self.state(slot) {
            MemberState::InSync | MemberState::Recovering => false,
            MemberState::Missing => true,
            MemberState::Failed => {
                self.set(slot, MemberState::Missing);
                self.report(Event::MemberRemoved { member: slot });
                true
            }
        }
    }

    /// A spare takes an empty slot, to be rebuilt from `from_bytes` on. False if the slot is taken.
    pub fn begin_recovery(&self, slot: Slot, from_bytes: u64) -> bool {
        let _changing = self.changing.lock();
        if self.state(slot) != MemberState::Missing {
            return false;
        }
        let new = &self.slots[slot.index()];
        new.recovered_bytes.store(from_bytes, SeqCst);
        new.lacks_marked.store(false, SeqCst);
        *new.read_errors.lock() = ReadErrors::default();
        *new.bad.lock() = BadBlocks::default();
        new.bad_version.fetch_add(1, SeqCst); // the spare's log may hold entries of an earlier use: write it again
        self.set(slot, MemberState::Recovering);
        self.report(Event::RecoveryStarted { member: slot, from_bytes });
        true
    }

    /// A member that was detached for a while takes its empty slot again, and keeps its read errors and bad blocks. It lacks only
    /// chunks that the bitmap marks if `lacks_marked`, else all are rebuilt. False if the slot is taken.
    pub fn begin_catching_up(
        &self,
        slot: Slot,
        corrected_reads: u64,
        bad: BadBlocks,
        lacks_marked: bool,
    ) -> bool {
        let _changing = self.changing.lock();
        if self.state(slot) != MemberState::Missing {
            return false;
        }
        let back = &self.slots[slot.index()];
        back.recovered_bytes.store(0, SeqCst);
        back.lacks_marked.store(lacks_marked, SeqCst);
        *back.read_errors.lock() = ReadErrors::with_total(corrected_reads);
        *back.bad.lock() = bad;
        self.set(slot, MemberState::Recovering);
        self.report(match lacks_marked {
            true => Event::MemberReAdded { member: slot },
            false => Event::RecoveryStarted { member: slot, from_bytes: 0 },
        });
        true
    }

    /// Sets, at the start, how far the recovery of a member had come in an earlier run. `lacks_marked`: beyond that the
    /// member lacks only chunks that the bitmap marks.
    pub fn resume_recovery(&self, slot: Slot, from_bytes: u64, lacks_marked: bool) {
        let slot = &self.slots[slot.index()];
        slot.recovered_bytes.store(from_bytes, SeqCst);
        slot.lacks_marked.store(lacks_marked, SeqCst);
    }

    /// Whether a recovering member lacks only chunks that the bitmap marks.
    pub fn lacks_only_marked(&self, slot: Slot) -> bool {
        self.state(slot) == MemberState::Recovering && self.slots[slot.index()].lacks_marked.load(SeqCst)
    }

    /// Moves a recovering member's cursor: everything below `end` is in sync. The caller owns the stripes in between.
    pub fn recovered_to(&self, slot: Slot, end: MemberOffset) {
        self.slots[slot.index()].recovered_bytes.fetch_max(end.get(), SeqCst);
    }

    /// A recovering member is about to be in sync, or not any more.
    pub(crate) fn set_nearly_in_sync(&self, slot: Slot, is_nearly: bool) {
        self.slots[slot.index()].is_nearly_in_sync.store(is_nearly, SeqCst);
    }

    /// A recovering member holds all it should. False if it has failed meanwhile.
    pub fn finish_recovery(&self, slot: Slot) -> bool {
        let _changing = self.changing.lock();
        if self.state(slot) != MemberState::Recovering {
            return false;
        }
        self.set(slot, MemberState::InSync);
        self.report(Event::RecoveryFinished { member: slot });
        true
    }

    /// Called with `changing` locked. The change counts as not on disk before any shard can see it, and no version is
    /// handed out in between (see [`Members::metadata_version`]): a write that another shard plans without the member
    /// cannot be acknowledged too early.
    fn set(&self, slot: Slot, state: MemberState) {
        self.state_changes.fetch_add(1, SeqCst);
        self.metadata.change();
        self.slots[slot.index()].state.store(state as u8, SeqCst);
        self.update_whole();
        self.metadata.wake_writer();
    }

    fn update_whole(&self) {
        let whole = self.slots.iter().all(|slot| slot.state.load(SeqCst) == MemberState::InSync as u8);
        self.whole.store(whole, SeqCst);
        let bad = self.slots.iter().any(|slot| !slot.bad.lock().is_empty());
        let replaced = self.geometry.slots().any(|slot| self.replacing(slot) != Replacing::No);
        let logs = self.logged.load(SeqCst) || self.expected_failures.load(SeqCst) > 0;
        let rebuilt = self.slots.iter().any(|slot| slot.state.load(SeqCst) == MemberState::Recovering as u8);
        let is_steady = !rebuilt && !bad && !replaced && !logs;
        self.steady.store(is_steady, SeqCst);
        self.plain.store(whole && is_steady, SeqCst);
    }

    /// Asks the superblock writer for a round.
    pub fn want_metadata(&self) {
        self.metadata.change();
        self.metadata.wake_writer();
    }

    /// Whether every change so far is on disk, without waiting: the fast path of an acknowledgement.
    pub fn is_settled(&self) -> bool {
        self.metadata.is_settled()
    }

    /// Waits until every change so far is on disk.
    pub async fn settled(&self) -> Result<(), MetadataLost> {
        self.metadata.settled().await
    }

    /// For the superblock writer: waits until there is a change to write, and returns the version to write.
    pub async fn metadata_wanted(&self) -> u64 {
        std::future::poll_fn(|context| {
            let _changing = self.changing.lock();
            self.metadata.poll_wanted(context)
        })
        .await
    }

    /// The newest version. States read after this call are at least as new.
    pub fn metadata_version(&self) -> u64 {
        let _changing = self.changing.lock();
        self.metadata.version()
    }

    /// The superblocks of `version` are on disk.
    pub fn metadata_written(&self, version: u64) {
        self.metadata.written(version);
    }

    /// The superblocks can no longer be written: requests that wait for them fail.
    pub fn metadata_lost(&self) {
        self.metadata.lost();
    }
}

impl Members {
    fn replacement(&self, slot: Slot) -> &Replacement {
        &self.slots[slot.index()].replacement
    }

    /// The step of the replacement of the member in a slot.
    pub fn replacing(&self, slot: Slot) -> Replacing {
        Replacing::from_byte(self.replacement(slot).step.load(SeqCst))
    }

    /// The step that decides which device serves a read that ends before `end` of a slot's data area. None: the slot
    /// has got another device since the read was planned, which does not hold the range yet (invariant 8). The caller
    /// checks the bad blocks next and then the step again: if that has changed, they were the bad blocks of another device.
    pub(crate) fn step_to_read(&self, slot: Slot, end: MemberOffset) -> Option<Replacing> {
        let step = self.replacing(slot);
        let holds = || match self.geometry.parity_chunks() {
            0 => self.state(slot) == MemberState::InSync,
            _ => self.in_sync_to(slot, end),
        };
        (step != Replacing::Moving && (!step.has_slot() || holds())).then_some(step)
    }

    /// Begins a replacement, which every shard has attached: from here on it gets every write. `from_bytes` were copied in
    /// an earlier run; its bad-block log has room for `bad_room` entries. False if the member is not in sync, or is being
    /// replaced already.
    pub fn begin_replacement(&self, slot: Slot, from_bytes: u64, bad_room: usize) -> bool {
        let _changing = self.changing.lock();
        if self.state(slot) != MemberState::InSync || self.replacing(slot) != Replacing::No {
            return false;
        }
        let replacement = self.replacement(slot);
        replacement.copied_bytes.store(from_bytes, SeqCst);
        *replacement.bad.lock() = BadBlocks::default();
        replacement.bad_room.store(bad_room, SeqCst);
        self.change_step(slot, Replacing::Copying);
        self.report(Event::ReplacementStarted { member: slot, from_bytes });
        true
    }

    /// Bytes of the member's data area that were copied to its replacement, in order.
    pub fn copied_bytes(&self, slot: Slot) -> u64 {
        self.replacement(slot).copied_bytes.load(SeqCst)
    }

    /// Everything below `end` was copied. Without effect once the replacement has the slot: beyond the cursor it may have
    /// missed writes since.
    pub fn copied_to(&self, slot: Slot, end: MemberOffset) {
        let _changing = self.changing.lock();
        if self.replacing(slot) == Replacing::Copying {
            self.replacement(slot).copied_bytes.fetch_max(end.get(), SeqCst);
        }
    }

    /// Records a range that can be neither read nor reconstructed as bad on the replacement. False if its log has no room.
    pub fn set_bad_on_replacement(&self, slot: Slot, range: Range<MemberOffset>) -> bool {
        let replacement = self.replacement(slot);
        let mut bad = replacement.bad.lock();
        let mut with = bad.clone();
        if with.set(range) && with.entries() > replacement.bad_room.load(SeqCst) {
            return false;
        }
        *bad = with;
        true
    }

    fn clear_bad_of_replacement(&self, slot: Slot, range: &Range<MemberOffset>) {
        if self.replacing(slot) == Replacing::Copying {
            let replacement = self.replacement(slot);
            replacement.bad.lock().clear_within(range, replacement.bad_room.load(SeqCst));
        }
    }

    /// Where a later run may resume the copying: not beyond the first bad block, which only this run knows of.
    pub fn copied_without_bad(&self, slot: Slot, done_bytes: u64) -> u64 {
        let first_bad = self.replacement(slot).bad.lock().first();
        first_bad.map_or(done_bytes, |first| first.get().min(done_bytes))
    }

    /// Fails the replacement in a slot; the member stays. False if the replacement has the slot by now: its errors are then
    /// the member's.
    pub fn fail_replacement(&self, slot: Slot, reason: &str) -> bool {
        let changing = self.changing.lock();
        match self.replacing(slot) {
            Replacing::No => return true,
            Replacing::Copying => self.change_step(slot, Replacing::No),
            Replacing::Moving | Replacing::Taken | Replacing::Alone => return false,
        }
        drop(changing);
        self.report(Event::ReplacementFailed { member: slot, reason: reason.to_string() });
        true
    }

    /// Gives the slot to the replacement, which holds everything durably and has a superblock of its own that says so.
    /// False if the member or the replacement has failed.
    pub fn hand_over(&self, slot: Slot) -> bool {
        let _changing = self.changing.lock();
        if self.state(slot) != MemberState::InSync || self.replacing(slot) != Replacing::Copying {
            return false;
        }
        self.adopt_replacement(slot);
        self.change_step(slot, Replacing::Taken);
        true
    }

    /// The superblocks name the replacement as the member: the old member gets no more writes.
    pub fn let_go(&self, slot: Slot) {
        let _changing = self.changing.lock();
        if self.replacing(slot) == Replacing::Taken {
            self.replacement(slot).step.store(Replacing::Alone as u8, SeqCst);
        }
    }

    /// Ends a replacement: no shard has the old member attached any more.
    pub fn end_replacement(&self, slot: Slot) {
        let _changing = self.changing.lock();
        self.replacement(slot).has_superblock.store(false, SeqCst);
        self.replacement(slot).step.store(Replacing::No as u8, SeqCst);
        self.update_whole();
    }

    /// The slot's superblock is the replacement's from here on.
    pub(crate) fn superblock_is_replacements(&self, slot: Slot) {
        self.replacement(slot).has_superblock.store(true, SeqCst);
    }

    /// Whether the slot's superblock, and so its offsets, is the replacement's.
    pub(crate) fn is_superblock_replacements(&self, slot: Slot) -> bool {
        self.replacement(slot).has_superblock.load(SeqCst)
    }

    /// The member is failing: if a replacement is being copied it takes the slot, in effect from
    /// [`Members::finish_failover`] on. Returns where its rebuild starts. Called with `changing` locked.
    fn begin_failover(&self, slot: Slot) -> Option<u64> {
        if self.replacing(slot) != Replacing::Copying {
            return None;
        }
        let from_bytes = self.copied_bytes(slot);
        self.adopt_replacement(slot);
        self.slots[slot.index()].recovered_bytes.store(from_bytes, SeqCst);
        self.slots[slot.index()].lacks_marked.store(false, SeqCst);
        Some(from_bytes)
    }

    /// The replacement has the slot: the slot's state says by now what it lacks. Called with `changing` locked.
    fn finish_failover(&self, slot: Slot) {
        self.replacement(slot).step.store(Replacing::Alone as u8, SeqCst);
    }

    /// Replaces the slot's bad blocks and error counts by those of the replacement.
    fn adopt_replacement(&self, slot: Slot) {
        self.replacement(slot).step.store(Replacing::Moving as u8, SeqCst);
        let slot = &self.slots[slot.index()];
        *slot.read_errors.lock() = ReadErrors::default();
        *slot.bad.lock() = std::mem::take(&mut *slot.replacement.bad.lock());
        slot.bad_room.store(slot.replacement.bad_room.load(SeqCst), SeqCst);
        slot.bad_version.fetch_add(1, SeqCst);
        slot.errors.store(0, SeqCst);
    }

    /// Called with `changing` locked. As with states, the change counts as not on disk before any shard can see it.
    fn change_step(&self, slot: Slot, step: Replacing) {
        self.metadata.change();
        self.replacement(slot).step.store(step as u8, SeqCst);
        self.update_whole();
        self.metadata.wake_writer();
    }
}
