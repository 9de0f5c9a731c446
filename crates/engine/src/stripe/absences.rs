//! What members that are away still hold: the second mark beside doubt.
//!
//! Doubt says that parity may not agree, so it does not tell what a member that is away holds. The member tells when it comes
//! back, unless the array wrote that place meanwhile. For each member that is away there are two sets of sectors of its data
//! area, and a sector is in one of them at the most:
//! - **holds**: the member held all that was acknowledged there when it left, and nothing was written there since. Its own
//!   contents count (invariant 11).
//! - **made**: written while it was away, and parity agrees in these rows.
//!
//! Both are about contents, not about doubt: a stripe that leaves doubt may stay in them. They are used in stripes in doubt
//! only.
//!
//! **Order** (invariant 10). A write without the member takes its sectors out of `holds` on disk, on every member in sync,
//! before it changes the stripe, and after its redo record is durable: what a crash then leaves half written is made again. So
//! the two sets change in the same step. Without a log the sectors are in neither set until the write has ended, and `made` is
//! forgotten at a start that finds no log in force.
//!
//! **Where the sets begin.** When superblocks stop naming a member that was in sync, it holds what is in doubt at that moment,
//! but for what this run wrote there: a write that the member missed, and one that it may have in its cache only.
//! A stripe that came into doubt in this run is left out: writes before that were not followed.

use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};

use super::carried::Carried;
use super::ranges::Ranges;
use layout::absences::{
    ABSENT_MAX, AbsenceRecord, AbsencesArea, AbsentMember, SectorRange, carried_max, ranges_max,
};
use layout::units::{MemberOffset, Slot};

const SECTOR: u64 = 512;

/// The identity of a device.
pub(crate) type DeviceUuid = [u8; 16];

/// How the device in a slot stands, as superblocks are about to say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// It is in sync.
    InSync(DeviceUuid),
    /// It is being rebuilt, and durably holds this many bytes of its data area.
    Recovering(DeviceUuid, u64),
    /// No device is in the slot, or a failed one.
    Away,
}

/// Where a member keeps the record, and the identity that this carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AbsencePlace {
    pub(crate) area: AbsencesArea,
    pub(crate) set_uuid: [u8; 16],
    pub(crate) device_uuid: DeviceUuid,
}

/// What members of one array that are away still hold, shared by all shards.
#[derive(Default)]
pub struct Absences {
    /// The array keeps the record: there is parity, and members have room for it.
    is_kept: AtomicBool,
    state: Mutex<State>,
    /// Changes of the sets, and how many of those are on the members.
    changes: AtomicU64,
    persisted: AtomicU64,
}

#[derive(Default)]
struct State {
    /// Id of the record on the members; 0 while there is nothing to record.
    id: u64,
    sequence: u64,
    absent: BTreeMap<Slot, Absent>,
    carried: Carried,
    /// A member that the array needs takes no record: what was carried alone is no reason for one.
    carried_is_void: bool,
    standings: Vec<Option<Standing>>,
    places: Vec<Option<AbsencePlace>>,
    /// Sectors in doubt that a member missed, by slot, until its absence begins.
    missed: BTreeMap<Slot, Ranges>,
    /// Those of them that parity tells.
    missed_made: BTreeMap<Slot, Ranges>,
    /// Sectors in doubt that a member was sent since the last flush, by slot.
    unflushed: BTreeMap<Slot, Ranges>,
    /// How often `unflushed` grew.
    sent: u64,
}

/// A member that is away, or back and not in sync yet.
struct Absent {
    device: DeviceUuid,
    /// The device is in its slot again, being rebuilt.
    is_back: bool,
    holds: Ranges,
    made: Ranges,
}

/// What tells the contents of some sectors of a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Teller {
    /// The member itself.
    Member,
    /// Parity, whether or not the stripe is in doubt.
    Parity,
    /// Parity, if the stripe is sound.
    Nothing,
}

/// What the array starts with.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FoundAbsences {
    /// What the members that are there have on record.
    pub record: Option<AbsenceRecord>,
    /// The array was whole when its superblocks were last written: each member that they name was in sync.
    pub was_whole: bool,
    /// Device that the last superblocks name, by slot.
    pub named: Vec<Option<[u8; 16]>>,
}

impl Absences {
    /// Takes over what was found at the start; `standings` by slot. `made_counts`: the redo log was in force, or nothing was in
    /// flight.
    pub(crate) fn begin(&self, found: &FoundAbsences, standings: &[Standing], made_counts: bool) {
        self.is_kept.store(true, SeqCst);
        let state = &mut *self.state.lock();
        let on_record = found.record.is_some();
        if let Some(record) = &found.record {
            (state.id, state.sequence) = (record.id, record.sequence);
            state.carried = Carried::of_list(&record.carried);
            for member in &record.members {
                let standing = standings.get(member.slot.index());
                if standing.is_none_or(|standing| matches!(standing, Standing::InSync(_))) {
                    continue;
                }
                let device = member.device_uuid;
                let is_back = matches!(standing, Some(Standing::Recovering(uuid, _)) if *uuid == device);
                let made = if made_counts { of_list(&member.made) } else { Ranges::default() };
                let absent = Absent { device, is_back, holds: of_list(&member.holds), made };
                state.absent.insert(member.slot, absent);
            }
        }
        // A record lists every member that was not in sync.
        let tells = found.was_whole || on_record;
        let before =
            |(slot, now): (Slot, &Standing)| match (now, found.named.get(slot.index()).copied().flatten()) {
                // It left in the crash: the first superblocks say so. It may be back already, since the next crash was before any
                // superblocks of the others; or what was to replace it has its slot.
                (Standing::Away | Standing::Recovering(..), Some(named))
                    if tells && !state.absent.contains_key(&slot) =>
                {
                    Some(Standing::InSync(named))
                }
                (now, _) => Some(*now),
            };
        state.standings = Slot::all().zip(standings).map(before).collect();
        if state.tells_nothing() {
            state.id = 0;
        }
    }

    /// Whether the array keeps a record, and its members have room for it.
    pub fn has_room(&self) -> bool {
        self.is_kept() && self.state.lock().places.iter().any(Option::is_some)
    }

    /// Whether the array keeps a record.
    #[inline]
    pub(crate) fn is_kept(&self) -> bool {
        self.is_kept.load(SeqCst)
    }

    /// Where the member in a slot keeps its record.
    pub(crate) fn set_place(&self, slot: Slot, place: Option<AbsencePlace>) {
        let state = &mut *self.state.lock();
        state.places.resize(state.places.len().max(slot.index() + 1), None);
        state.places[slot.index()] = place;
    }

    /// Superblocks are about to tell of these standings, by slot. `in_doubt` lists the sectors of each member that were in doubt
    /// before this run wrote there, `on_record` all that a start after a crash would find in doubt; `new_id` draws an id. The record
    /// is written before the superblocks.
    pub(crate) fn follow(
        &self,
        standings: &[Standing],
        in_doubt: impl FnOnce() -> Vec<Range<u64>>,
        on_record: impl FnOnce() -> Vec<Range<u64>>,
        new_id: impl FnOnce() -> u64,
    ) {
        let state = &mut *self.state.lock();
        let befores = std::mem::replace(&mut state.standings, standings.iter().copied().map(Some).collect());
        let before = |slot: Slot| befores.get(slot.index()).copied().flatten();
        let changed: Vec<(Slot, Standing, Option<Standing>)> = Slot::all()
            .zip(standings)
            .map(|(slot, now)| (slot, *now, before(slot)))
            .filter(|(_, now, before)| before.is_none_or(|before| !before.is_like(*now)))
            .collect();
        let is_pruned = !state.carried.is_empty() && state.carried.keep_within(&on_record());
        if changed.is_empty() && !is_pruned && !state.lacks_id() {
            return;
        }
        let all_have_room = (0..)
            .zip(standings)
            .filter(|(_, now)| matches!(now, Standing::InSync(_)))
            .all(|(slot, _)| state.places.get(slot).copied().flatten().is_some());
        let mut doubts = None;
        let mut in_doubt = Some(in_doubt);
        let mut doubted = || doubts.get_or_insert_with(|| in_doubt.take().expect("once")()).clone();
        for (slot, now, before) in changed {
            match (before, now) {
                (_, Standing::InSync(_)) => {
                    state.absent.remove(&slot);
                    state.missed.remove(&slot);
                    state.missed_made.remove(&slot);
                    state.unflushed.remove(&slot);
                }
                (Some(Standing::InSync(device)), now) => {
                    state.leaves(slot, device, doubted());
                    state.note_back(slot, now);
                }
                (Some(Standing::Recovering(device, durable)), Standing::Away) => {
                    state.leaves_again(slot, device, durable, &doubted());
                }
                (_, now) => state.note_back(slot, now),
            }
        }
        if !all_have_room {
            state.absent.values_mut().for_each(Absent::forget);
        }
        if state.tells_nothing() {
            state.absent.clear();
            (state.id, state.sequence) = (0, 0);
        } else {
            // Every member that is not in sync is on record: one that is not was. One that leaves its rebuild stays there, since the
            // superblocks on disk still name it.
            for (slot, now) in Slot::all().zip(standings) {
                if let Standing::Recovering(device, _) = now {
                    state.absent.entry(slot).or_insert_with(|| Absent::new(*device, true));
                }
            }
            match state.absent.len() > ABSENT_MAX {
                true => state.void(),
                false if state.id == 0 => (state.id, state.sequence) = (new_id(), 0),
                false => {}
            }
        }
        self.changes.fetch_add(1, SeqCst);
    }

    /// The device is in its slot again, to be rebuilt. `in_doubt` as for [`Absences::follow`]: the member may be back before any
    /// superblocks told that it was away, and its recovery does not wait for them.
    pub(crate) fn returns(&self, slot: Slot, device: DeviceUuid, in_doubt: impl FnOnce() -> Vec<Range<u64>>) {
        let state = &mut *self.state.lock();
        let before = state.standings.get(slot.index()).copied().flatten();
        if let Some(Standing::InSync(left)) = before {
            state.standings[slot.index()] = Some(Standing::Away);
            state.leaves(slot, left, in_doubt());
        }
        if let Some(absent) = state.absent.get_mut(&slot) {
            absent.is_back = absent.device == device;
        }
    }

    /// The id that records of generations name; 0 without a record.
    pub(crate) fn id(&self) -> u64 {
        self.state.lock().id
    }

    /// Whether a write of these bytes of the member in `slot` changes what is on record.
    pub(crate) fn meets_held(&self, slot: Slot, bytes: &Range<MemberOffset>) -> bool {
        self.is_of(slot, |absent| !absent.holds.within(&sectors(bytes)).is_empty())
    }

    /// These bytes of the member in `slot` are about to be written without it, and a redo record of the write is durable.
    pub(crate) fn written_without(&self, slot: Slot, bytes: &Range<MemberOffset>) {
        self.change(slot, bytes, true);
    }

    /// Nothing tells any more what these bytes of the member in `slot` are, if the stripe is in doubt.
    pub(crate) fn forget(&self, slot: Slot, bytes: &Range<MemberOffset>) {
        self.change(slot, bytes, false);
    }

    /// The same for all members.
    pub(crate) fn forget_all(&self, bytes: &Range<MemberOffset>) {
        let slots: Vec<Slot> = self.state.lock().absent.keys().copied().collect();
        slots.into_iter().for_each(|slot| self.forget(slot, bytes));
    }

    /// A member is about to be written by read-modify-write in a stripe in doubt: P and Q prove nothing there any more.
    pub(crate) fn carry(&self, slot: Slot, bytes: &Range<MemberOffset>) {
        if self.state.lock().carried.add(slot, sectors(bytes)) && self.is_kept() {
            self.changes.fetch_add(1, SeqCst);
        }
    }

    /// Whether P and Q prove nothing of some of these bytes of a member, though they may agree.
    pub(crate) fn is_carried(&self, slot: Slot, bytes: &Range<MemberOffset>) -> bool {
        self.state.lock().carried.meets(slot, &sectors(bytes))
    }

    /// There is something to record, and superblocks name no record yet.
    pub(crate) fn lacks_id(&self) -> bool {
        self.is_kept() && self.state.lock().lacks_id()
    }

    /// Members that are away, or back and not in sync.
    pub(crate) fn slots(&self) -> Vec<Slot> {
        match self.is_kept() {
            true => self.state.lock().absent.keys().copied().collect(),
            false => Vec::new(),
        }
    }

    fn change(&self, slot: Slot, bytes: &Range<MemberOffset>, made: bool) {
        if !self.is_kept() || bytes.is_empty() {
            return;
        }
        let (sectors, state) = (sectors(bytes), &mut *self.state.lock());
        let Some(absent) = state.absent.get_mut(&slot) else {
            // Its absence may be about to begin.
            if matches!(state.standings.get(slot.index()), Some(Some(Standing::InSync(_)))) {
                state.missed.entry(slot).or_default().add(sectors.clone());
                let missed_made = state.missed_made.entry(slot).or_default();
                match made {
                    true => missed_made.add(sectors),
                    false => missed_made.remove_all(sectors),
                }
            }
            return;
        };
        let (held, was_made) =
            (!absent.holds.within(&sectors).is_empty(), absent.made.within(&sectors) == [sectors.clone()]);
        let touches_made = !absent.made.within(&sectors).is_empty();
        absent.holds.remove_all(sectors.clone());
        match made {
            true => absent.made.add(sectors),
            false => absent.made.remove_all(sectors),
        }
        // What is added to `made` outside of what is in doubt is of no use, but of no harm either.
        if held || (made && !was_made) || (!made && touches_made) {
            self.changes.fetch_add(1, SeqCst);
        }
    }

    /// The member in `slot` took a write of these bytes, which were in doubt. It may be in the member's cache only.
    pub(crate) fn sent(&self, slot: Slot, bytes: &Range<MemberOffset>) {
        if self.is_kept() {
            let state = &mut *self.state.lock();
            state.unflushed.entry(slot).or_default().add(sectors(bytes));
            state.sent += 1;
        }
    }

    /// To be read before a flush, for [`Absences::flushed`].
    pub(crate) fn sent_count(&self) -> u64 {
        if self.is_kept() { self.state.lock().sent } else { 0 }
    }

    /// Every member has what it was sent before the count was read, durably.
    pub(crate) fn flushed(&self, sent: u64) {
        if self.is_kept() {
            let state = &mut *self.state.lock();
            if state.sent == sent {
                state.unflushed.clear();
            }
        }
    }

    /// What tells these bytes of the member in `slot` in a stripe in doubt, as ascending pieces.
    pub(crate) fn tellers(
        &self,
        slot: Slot,
        bytes: &Range<MemberOffset>,
    ) -> Vec<(Range<MemberOffset>, Teller)> {
        if !self.is_kept() {
            return vec![(bytes.clone(), Teller::Nothing)];
        }
        let (all, state) = (sectors(bytes), self.state.lock());
        let mut known = Vec::new();
        if let Some(absent) = state.absent.get(&slot) {
            let of = |ranges: &Ranges, teller| -> Vec<(Range<u64>, Teller)> {
                ranges.within(&all).into_iter().map(|range| (range, teller)).collect()
            };
            if absent.is_back {
                known.extend(of(&absent.holds, Teller::Member));
            }
            known.extend(of(&absent.made, Teller::Parity));
        }
        let bytes_of = |(range, teller): (Range<u64>, Teller)| {
            let (start, end) =
                (MemberOffset::new(range.start * SECTOR), MemberOffset::new(range.end * SECTOR));
            (start.max(bytes.start)..end.min(bytes.end), teller)
        };
        all_told(known, &all).into_iter().map(bytes_of).collect()
    }

    /// Whether there is anything in stripes in doubt that the member in `slot`, or parity, tells of its contents.
    pub(crate) fn tells_in_doubt(&self, slot: Slot) -> bool {
        self.is_of(slot, |absent| absent.is_back || !absent.made.0.is_empty())
    }

    /// Whether parity tells all of these bytes of the member in `slot`, also in a stripe in doubt.
    pub(crate) fn is_made(&self, slot: Slot, bytes: &Range<MemberOffset>) -> bool {
        self.is_of(slot, |absent| absent.made.within(&sectors(bytes)) == [sectors(bytes)])
    }

    /// P and Q agree on these bytes of the member in `slot`, and a client is about to read what they make: from now on parity
    /// tells them, and not the member, which may hold another side of a write that a crash tore. Whether that changes anything.
    /// A record that is half full takes no more: it keeps its room for writes.
    pub(crate) fn read_by_parities(&self, slot: Slot, bytes: &Range<MemberOffset>) -> bool {
        if !self.is_kept() || bytes.is_empty() {
            return false;
        }
        let state = self.state.lock();
        let told_by_member = match state.absent.get(&slot) {
            Some(absent) => {
                !absent.holds.within(&sectors(bytes)).is_empty() && 2 * state.ranges() < state.ranges_max()
            }
            None => matches!(state.standings.get(slot.index()), Some(Some(Standing::InSync(_)))),
        };
        drop(state);
        if told_by_member {
            self.change(slot, bytes, true);
        }
        told_by_member
    }

    /// Whether superblocks have told that the member in `slot` is away, and the record says what it holds.
    pub(crate) fn is_followed(&self, slot: Slot) -> bool {
        self.is_of(slot, |_| true)
    }

    /// Whether this device, which was in this slot and is away, may hold what stripes in doubt need. `any_doubt`: some were in
    /// doubt before this run wrote there, so that one whose absence no superblocks have told yet holds them.
    pub(crate) fn may_hold(&self, slot: Slot, device: DeviceUuid, any_doubt: bool) -> bool {
        if !self.is_kept() {
            return false;
        }
        let state = self.state.lock();
        match state.absent.get(&slot) {
            Some(absent) => absent.device == device && !absent.holds.0.is_empty(),
            None => any_doubt && state.standings.get(slot.index()) == Some(&Some(Standing::InSync(device))),
        }
    }

    fn is_of(&self, slot: Slot, what: impl FnOnce(&Absent) -> bool) -> bool {
        self.is_kept() && self.state.lock().absent.get(&slot).is_some_and(what)
    }

    /// Sectors by what tells them, of all members that are away: their own contents, parity.
    pub fn sectors(&self) -> (u64, u64) {
        let state = self.state.lock();
        let sum = |of: fn(&Absent) -> &Ranges| state.absent.values().map(|absent| of(absent).len()).sum();
        (sum(|absent| &absent.holds), sum(|absent| &absent.made))
    }

    /// Whether the members have on record what is known here.
    #[inline]
    pub(crate) fn is_persisted(&self) -> bool {
        self.changes.load(SeqCst) == self.persisted.load(SeqCst)
    }

    /// The next record, and the value for [`Absences::set_persisted`] once it is on the members. None: there is nothing to record.
    pub(crate) fn next_record(&self) -> (u64, Option<AbsenceRecord>) {
        let changes = self.changes.load(SeqCst);
        let state = &mut *self.state.lock();
        if state.id == 0 {
            return (changes, None);
        }
        state.carried.coarsen_to(carried_max(state.copy_bytes()));
        let carried = state.carried.as_list();
        state.shorten_to(state.ranges_max());
        state.sequence += 1;
        let member = |(slot, absent): (&Slot, &Absent)| AbsentMember {
            slot: *slot,
            device_uuid: absent.device,
            holds: as_list(&absent.holds),
            made: as_list(&absent.made),
        };
        let members = state.absent.iter().map(member).collect();
        (changes, Some(AbsenceRecord { id: state.id, sequence: state.sequence, members, carried }))
    }

    /// The place of the record on the member in a slot.
    pub(crate) fn place(&self, slot: Slot) -> Option<AbsencePlace> {
        self.state.lock().places.get(slot.index()).copied().flatten()
    }

    /// The members have what was known when the record was made.
    pub(crate) fn set_persisted(&self, changes: u64) {
        self.persisted.fetch_max(changes, SeqCst);
    }

    /// A member that the array needs takes no record: superblocks name none from here on. What was carried stays known in this run.
    /// A start would not know of it: but then so many members are missing that P and Q are not compared.
    pub(crate) fn void(&self) {
        self.state.lock().void();
        self.changes.fetch_add(1, SeqCst);
    }

    /// Checks that no sector is in two sets.
    ///
    /// # Panics
    /// If one is.
    pub fn self_check(&self) {
        let state = self.state.lock();
        state.carried.self_check();
        for absent in state.absent.values() {
            absent.holds.self_check();
            absent.made.self_check();
            for (&first, &end) in &absent.holds.0 {
                assert!(absent.made.within(&(first..end)).is_empty(), "held and made: {first} to {end}");
            }
        }
    }
}

/// All of some sectors in ascending pieces, by what tells them; `known` are those that something tells.
fn all_told(mut known: Vec<(Range<u64>, Teller)>, all: &Range<u64>) -> Vec<(Range<u64>, Teller)> {
    known.sort_by_key(|(range, _)| range.start);
    let (mut pieces, mut at) = (Vec::new(), all.start);
    for (range, teller) in known.into_iter().chain([(all.end..all.end, Teller::Nothing)]) {
        if at < range.start {
            pieces.push((at..range.start, Teller::Nothing));
        }
        at = range.end;
        if !range.is_empty() {
            pieces.push((range, teller));
        }
    }
    pieces
}

impl Standing {
    /// Whether nothing changes between the two but how far a rebuild is.
    fn is_like(self, other: Standing) -> bool {
        match (self, other) {
            (Standing::Recovering(one, _), Standing::Recovering(other, _)) => one == other,
            (one, other) => one == other,
        }
    }
}

impl Absent {
    fn new(device: DeviceUuid, is_back: bool) -> Self {
        Absent { device, is_back, holds: Ranges::default(), made: Ranges::default() }
    }

    fn is_empty(&self) -> bool {
        self.holds.0.is_empty() && self.made.0.is_empty()
    }

    /// Nothing tells what the member holds.
    fn forget(&mut self) {
        (self.holds, self.made) = (Ranges::default(), Ranges::default());
    }
}

impl State {
    /// Nothing is known of any member that is not in sync, and there is nothing else to record.
    fn tells_nothing(&self) -> bool {
        self.absent.values().all(Absent::is_empty) && (self.carried.is_empty() || self.carried_is_void)
    }

    fn void(&mut self) {
        self.absent.clear();
        self.carried_is_void = true;
        (self.id, self.sequence) = (0, 0);
    }

    /// Superblocks name no record, and one is needed.
    fn lacks_id(&self) -> bool {
        self.id == 0 && !self.tells_nothing()
    }

    /// A member that was in sync leaves: it holds what is in doubt, but for what it missed and what it may not have kept.
    fn leaves(&mut self, slot: Slot, device: DeviceUuid, in_doubt: Vec<Range<u64>>) {
        let mut absent = Absent::new(device, false);
        let made = self.missed_made.remove(&slot).unwrap_or_default();
        for range in in_doubt {
            made.within(&range).into_iter().for_each(|part| absent.made.add(part));
            absent.holds.add(range);
        }
        for lacking in [self.missed.remove(&slot), self.unflushed.remove(&slot)].into_iter().flatten() {
            lacking.0.into_iter().for_each(|(first, end)| absent.holds.remove_all(first..end));
        }
        self.absent.insert(slot, absent);
    }

    /// A member leaves that was being rebuilt, and holds `durable` bytes: below that it is as one that was in sync.
    fn leaves_again(&mut self, slot: Slot, device: DeviceUuid, durable: u64, in_doubt: &[Range<u64>]) {
        let Some(old) = self.absent.remove(&slot) else { return };
        if old.device != device {
            self.absent.insert(slot, old); // another device was rebuilt in its slot
            return;
        }
        let cursor = durable / SECTOR;
        let below = in_doubt.iter().map(|range| range.start.min(cursor)..range.end.min(cursor));
        self.leaves(slot, device, below.filter(|range| !range.is_empty()).collect());
        let absent = self.absent.get_mut(&slot).expect("just inserted");
        for range in in_doubt.iter().map(|range| range.start.max(cursor)..range.end.max(cursor)) {
            old.holds.within(&range).into_iter().for_each(|part| absent.holds.add(part));
            old.made.within(&range).into_iter().for_each(|part| absent.made.add(part));
        }
    }

    fn note_back(&mut self, slot: Slot, now: Standing) {
        if let Some(absent) = self.absent.get_mut(&slot) {
            absent.is_back = matches!(now, Standing::Recovering(device, _) if device == absent.device);
        }
    }

    /// Ranges of the members that are away.
    fn ranges(&self) -> usize {
        self.absent.values().map(|absent| absent.holds.0.len() + absent.made.0.len()).sum()
    }

    /// As many as the record has room for.
    fn ranges_max(&self) -> usize {
        ranges_max(self.copy_bytes(), self.absent.len(), self.carried.ranges())
    }

    fn copy_bytes(&self) -> u64 {
        self.places.iter().flatten().map(|place| place.area.copy_bytes).min().unwrap_or(0)
    }

    /// Forgets the shortest ranges until `most` are left: nothing tells those places then.
    fn shorten_to(&mut self, most: usize) {
        let over = self.ranges().saturating_sub(most);
        if over == 0 {
            return;
        }
        let mut lengths: Vec<u64> = Vec::new();
        for absent in self.absent.values() {
            lengths.extend(absent.holds.0.iter().chain(&absent.made.0).map(|(first, end)| end - first));
        }
        // A sixteenth more than need be, so that the next write does not sort again.
        let drop = (over + most / 16).min(lengths.len());
        let (_, longest_dropped, _) = lengths.select_nth_unstable(drop - 1);
        let longest_dropped = *longest_dropped;
        for absent in self.absent.values_mut() {
            for ranges in [&mut absent.holds, &mut absent.made] {
                ranges.0.retain(|first, end| *end - *first > longest_dropped);
            }
        }
    }
}

/// The sectors of a range of bytes, those at its ends included.
fn sectors(bytes: &Range<MemberOffset>) -> Range<u64> {
    bytes.start.get() / SECTOR..bytes.end.get().div_ceil(SECTOR)
}

fn of_list(list: &[SectorRange]) -> Ranges {
    let mut ranges = Ranges::default();
    list.iter().for_each(|range| ranges.add(range.first..range.end));
    ranges
}

fn as_list(ranges: &Ranges) -> Vec<SectorRange> {
    ranges.0.iter().map(|(&first, &end)| SectorRange { first, end }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use Standing::{Away, InSync, Recovering};
    use layout::absences::COPY_BYTES_MAX;
    use layout::units::DeviceOffset;

    const ME: DeviceUuid = [1; 16];
    const OTHER: DeviceUuid = [2; 16];

    /// Two members with room for a record; that in slot 1 is `ME`.
    fn absences(copy_bytes: u64) -> Absences {
        let absences = Absences::default();
        absences.begin(&FoundAbsences::default(), &[InSync(OTHER), InSync(ME)], true);
        for (slot, device_uuid) in Slot::all().zip([OTHER, ME]) {
            let area = AbsencesArea { start: DeviceOffset::START, copy_bytes };
            absences.set_place(slot, Some(AbsencePlace { area, set_uuid: [7; 16], device_uuid }));
        }
        absences
    }

    fn leave(absences: &Absences, in_doubt: Range<u64>) {
        absences.follow(&[InSync(OTHER), Away], || std::iter::once(in_doubt).collect(), Vec::new, || 77);
    }

    fn bytes(sectors: Range<u64>) -> Range<MemberOffset> {
        MemberOffset::new(sectors.start * SECTOR)..MemberOffset::new(sectors.end * SECTOR)
    }

    fn tellers(absences: &Absences, sectors: Range<u64>) -> Vec<(Range<u64>, Teller)> {
        let told = absences.tellers(Slot::new(1), &bytes(sectors)).into_iter();
        told.map(|(range, teller)| (super::sectors(&range), teller)).collect()
    }

    #[test]
    fn what_a_member_held_counts_once_it_is_back() {
        let absences = absences(COPY_BYTES_MAX);
        leave(&absences, 8..24);
        assert!(!absences.is_persisted() && absences.id() == 77);
        absences.written_without(Slot::new(1), &bytes(10..12));
        assert!(
            absences.is_made(Slot::new(1), &bytes(10..12)) && !absences.is_made(Slot::new(1), &bytes(10..13))
        );
        let away = [(8..10, Teller::Nothing), (10..12, Teller::Parity), (12..24, Teller::Nothing)];
        assert_eq!(tellers(&absences, 8..24), away, "nothing is read of a member that is away");
        absences.returns(Slot::new(1), OTHER, Vec::new);
        assert_eq!(tellers(&absences, 8..24), away, "nor of another device in its slot");
        absences.returns(Slot::new(1), ME, Vec::new);
        let back = [
            (4..8, Teller::Nothing),
            (8..10, Teller::Member),
            (10..12, Teller::Parity),
            (12..24, Teller::Member),
            (24..28, Teller::Nothing),
        ];
        assert_eq!(tellers(&absences, 4..28), back);
        absences.forget_all(&bytes(11..14));
        let back = [(8..10, Teller::Member), (10..11, Teller::Parity), (11..14, Teller::Nothing)];
        assert_eq!(tellers(&absences, 8..14), back);
        absences.self_check();
        absences.follow(&[InSync(OTHER), InSync(ME)], Vec::new, Vec::new, || 78);
        assert_eq!((absences.id(), absences.sectors()), (0, (0, 0)), "it is in sync");
    }

    #[test]
    fn one_that_is_back_before_superblocks_tell_of_it_holds_what_it_held() {
        let absences = absences(COPY_BYTES_MAX);
        absences.written_without(Slot::new(1), &bytes(10..12));
        absences.returns(Slot::new(1), ME, || std::iter::once(8..24).collect());
        let back = [(8..10, Teller::Member), (10..12, Teller::Parity), (12..24, Teller::Member)];
        assert_eq!(tellers(&absences, 8..24), back);
        absences.follow(
            &[InSync(OTHER), Recovering(ME, 0)],
            || unreachable!("it left before"),
            Vec::new,
            || 78,
        );
        assert_eq!(tellers(&absences, 8..24), back);
        assert!(!absences.is_persisted() && absences.id() == 78);
    }

    #[test]
    fn what_a_member_missed_or_may_have_in_its_cache_only_is_not_held() {
        let absences = absences(COPY_BYTES_MAX);
        absences.sent(Slot::new(1), &bytes(10..11));
        let count = absences.sent_count();
        absences.flushed(count);
        absences.sent(Slot::new(1), &bytes(12..13));
        absences.flushed(count); // that flush began before
        absences.forget(Slot::new(1), &bytes(14..15));
        absences.written_without(Slot::new(1), &bytes(8..9));
        absences.written_without(Slot::new(1), &bytes(20..21)); // not in doubt
        leave(&absences, 8..16);
        assert!(
            absences.is_made(Slot::new(1), &bytes(8..9)) && !absences.is_made(Slot::new(1), &bytes(20..21))
        );
        absences.returns(Slot::new(1), ME, Vec::new);
        let held: Vec<Range<u64>> = tellers(&absences, 8..16)
            .into_iter()
            .filter(|(_, teller)| *teller == Teller::Member)
            .map(|(range, _)| range)
            .collect();
        assert_eq!(held, [9..12, 13..14, 15..16]);
    }

    /// It was caught up as far as sector 12 when it left again: above that what was known of it stands.
    #[test]
    fn one_that_leaves_again_is_known_as_before_beyond_its_cursor() {
        let absences = absences(COPY_BYTES_MAX);
        leave(&absences, 8..24);
        absences.written_without(Slot::new(1), &bytes(9..10));
        absences.written_without(Slot::new(1), &bytes(16..18));
        absences.follow(&[InSync(OTHER), Recovering(ME, 12 * SECTOR)], Vec::new, Vec::new, || 0);
        leave(&absences, 8..20); // the rest has left doubt
        absences.returns(Slot::new(1), ME, Vec::new);
        let back = [
            (8..16, Teller::Member),
            (16..18, Teller::Parity),
            (18..20, Teller::Member),
            (20..24, Teller::Nothing),
        ];
        assert_eq!(tellers(&absences, 8..24), back);
    }

    #[test]
    fn a_record_is_taken_over_and_made_counts_only_with_a_log() {
        let absences = absences(COPY_BYTES_MAX);
        leave(&absences, 8..24);
        absences.written_without(Slot::new(1), &bytes(10..12));
        let (changes, record) = absences.next_record();
        absences.set_persisted(changes);
        assert!(absences.is_persisted());
        let named = vec![Some(OTHER), None];
        for made_counts in [true, false] {
            let found = FoundAbsences { record: record.clone(), was_whole: false, named: named.clone() };
            let next = Absences::default();
            next.begin(&found, &[InSync(OTHER), Recovering(ME, 0)], made_counts);
            let made = if made_counts { Teller::Parity } else { Teller::Nothing };
            let back = [(8..10, Teller::Member), (10..12, made), (12..24, Teller::Member)];
            assert_eq!(tellers(&next, 8..24), back);
        }
        let in_sync = Absences::default();
        in_sync.begin(&FoundAbsences { record, was_whole: false, named }, &[InSync(OTHER), InSync(ME)], true);
        assert_eq!((in_sync.id(), in_sync.sectors()), (0, (0, 0)));
    }

    /// A member is not there at a start. It left in the crash only if it was in sync until then.
    #[test]
    fn a_member_that_is_missing_at_a_start_holds_what_it_had_if_it_was_in_sync() {
        let record = AbsenceRecord { id: 5, sequence: 1, ..AbsenceRecord::default() };
        const REPLACEMENT: DeviceUuid = [3; 16];
        let of_whole = [(None, true, 16), (None, false, 0), (Some(record), false, 16)];
        let cases = of_whole.iter().flat_map(|case| {
            [Away, Recovering(REPLACEMENT, 0), Recovering(ME, 0)].map(|now| (case.clone(), now))
        });
        for ((record, was_whole, holds), now) in cases {
            let absences = Absences::default();
            let found = FoundAbsences { record, was_whole, named: vec![Some(OTHER), Some(ME)] };
            absences.begin(&found, &[InSync(OTHER), now], true);
            let area = AbsencesArea { start: DeviceOffset::START, copy_bytes: 4096 };
            absences
                .set_place(Slot::new(0), Some(AbsencePlace { area, set_uuid: [7; 16], device_uuid: OTHER }));
            leave(&absences, 8..24);
            assert_eq!(absences.sectors().0, holds, "whole {was_whole}");
        }
    }

    /// A member that was being rebuilt leaves, while places of other members are carried: the record is on disk, and the superblocks
    /// that say so are not. Their device is none that was in sync.
    #[test]
    fn one_that_leaves_its_rebuild_stays_on_record_until_superblocks_say_so() {
        let absences = absences(COPY_BYTES_MAX);
        let back = [InSync(OTHER), Recovering(ME, 0)];
        absences.follow(&[InSync(OTHER), Away], Vec::new, Vec::new, || 78);
        absences.carry(Slot::new(0), &bytes(8..16));
        let doubts = || std::iter::once(0..24).collect();
        absences.follow(&back, doubts, doubts, || 78);
        let away = [InSync(OTHER), Away];
        absences.follow(&away, doubts, doubts, || 78);
        for again in 0..2 {
            let (changes, record) = absences.next_record();
            absences.set_persisted(changes);
            let next = Absences::default();
            let found = FoundAbsences { record, was_whole: false, named: vec![Some(OTHER), Some(ME)] };
            next.begin(&found, &back, false);
            next.returns(Slot::new(1), ME, doubts);
            assert_eq!(tellers(&next, 8..16), [(8..16, Teller::Nothing)], "record {again}");
            absences.carry(Slot::new(0), &bytes(16..20));
            absences.follow(&away, doubts, doubts, || 78);
        }
    }

    #[test]
    fn the_shortest_ranges_are_forgotten_where_a_record_has_no_room() {
        let absences = absences(4096);
        leave(&absences, 0..100_000);
        (0..400).for_each(|i| absences.written_without(Slot::new(1), &bytes(i * 200..i * 200 + 1 + i % 7)));
        let (_, record) = absences.next_record();
        let member = &record.expect("a record").members[0];
        assert!(member.holds.len() + member.made.len() <= ranges_max(4096, 1, 0));
        assert!(member.holds.iter().all(|range| range.end - range.first > 100));
        let (held, made) = absences.sectors();
        assert!(held > 15_000 && made < 2_000, "{held} {made}");
        absences.self_check();
    }

    /// What was written in doubt is on record until it is out of doubt, also once all members are in sync.
    #[test]
    fn carried_places_have_a_record_of_their_own() {
        let absences = absences(COPY_BYTES_MAX);
        absences.carry(Slot::new(0), &bytes(8..16));
        assert!(absences.lacks_id() && !absences.is_persisted(), "superblocks are to name a record");
        let whole = [InSync(OTHER), InSync(ME)];
        let doubts = || std::iter::once(0..16).collect();
        absences.follow(&whole, Vec::new, doubts, || 79);
        let (changes, record) = absences.next_record();
        absences.set_persisted(changes);
        let record = record.expect("a record");
        assert_eq!((record.id, record.carried.len(), record.members.len()), (79, 1, 0));
        let again = Absences::default();
        again.begin(&FoundAbsences { record: Some(record), ..FoundAbsences::default() }, &whole, false);
        assert!(
            again.is_carried(Slot::new(0), &(MemberOffset::new(7680)..MemberOffset::new(8192)))
                && !again.is_carried(Slot::new(1), &bytes(8..16))
        );
        again.follow(&whole, Vec::new, doubts, || 80);
        assert_eq!(again.id(), 79, "still in doubt");
        again.follow(&whole, Vec::new, Vec::new, || 80);
        assert_eq!((again.id(), again.is_carried(Slot::new(0), &bytes(8..16))), (0, false));
    }

    /// A member that the array needs takes no record: the superblock writer does not try for ever.
    #[test]
    fn a_void_record_is_not_wanted_for_carried_places_alone() {
        let absences = absences(COPY_BYTES_MAX);
        absences.carry(Slot::new(0), &bytes(8..16));
        absences.void();
        assert!(!absences.lacks_id() && absences.next_record().1.is_none());
        assert!(absences.is_carried(Slot::new(0), &bytes(8..16)), "this run knows");
    }
}
