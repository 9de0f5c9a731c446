//! After a crash with members missing: what the redo log asks for, and which stripes stay in doubt. Reading is apart
//! from deciding, and that from doing, so that `assemble --explain` says what `serve` does.

mod newest;
mod replay;

use std::collections::BTreeMap;

use layout::geometry::{Geometry, Role};
use layout::redo_log::{
    BLOCK_BYTES, PieceKind, Place, RecordError, RedoArea, RedoHeader, RedoPiece, RedoRecord, StripeRange,
    WholeRecord,
};
use layout::units::{DeviceOffset, MemberOffset, Slot, Stripe};

use super::start_bitmap::StartBitmap;
use crate::device::Device;
use crate::events::Event;
use crate::in_place::InPlace;
use crate::members::MemberState;
use crate::stripe::ranges::common;
use crate::stripe::redo::{RedoMember, RedoStart};

pub use replay::replay;

/// The log of one member as it was found.
#[derive(Clone, Debug)]
pub struct MemberLog {
    /// Slot of the member in the array.
    pub slot: Slot,
    /// Digest of its superblock.
    pub digest: u32,
    /// Headers that may be believed.
    pub headers: Vec<RedoHeader>,
    /// Records that may be believed, of whatever time.
    pub records: Vec<WholeRecord>,
    /// Places that could not be read: what they held is unknown.
    pub unreadable: Option<String>,
}

/// Reads the log of the member in `slot` by `read`, which gets a place on the device and a length in bytes.
pub fn read_log(
    slot: Slot,
    member: &RedoMember,
    read: impl Fn(DeviceOffset, usize) -> Result<Vec<u8>, String>,
) -> MemberLog {
    let (headers, records) = (Vec::new(), Vec::new());
    let mut log = MemberLog { slot, digest: member.digest, headers, records, unreadable: None };
    for copy in 0..2 {
        let offset = member.area.header_offset(copy);
        match read(offset, BLOCK_BYTES) {
            Ok(bytes) => {
                log.headers.extend(RedoHeader::parse(&bytes, place(member, offset), member.area.bytes).ok());
            }
            Err(error) => log.unreadable = Some(error),
        }
    }
    // The highest one says how the area is cut; records of any other cut are old.
    if let Some(plan) = log.headers.iter().max_by_key(|header| header.generation).map(|header| header.plan) {
        for slot in 0..plan.slots {
            match read_record(member, plan.slot_offset(member.area, slot), plan, &read) {
                Ok(Ok(record)) => log.records.push(record),
                Ok(Err(_)) => {} // never finished, or nothing of ours: its stripes were not touched
                Err(error) => log.unreadable = Some(error),
            }
        }
    }
    log
}

fn read_record(
    member: &RedoMember,
    offset: DeviceOffset,
    plan: layout::redo_log::SlotPlan,
    read: &impl Fn(DeviceOffset, usize) -> Result<Vec<u8>, String>,
) -> Result<Result<WholeRecord, RecordError>, String> {
    let bytes = read(offset, BLOCK_BYTES)?;
    let record = match RedoRecord::parse(&bytes, place(member, offset), plan) {
        Ok(record) => record,
        Err(error) => return Ok(Err(error)),
    };
    let payload = match record.payload_bytes() {
        0 => Vec::new(),
        bytes => read(offset + BLOCK_BYTES as u64, bytes)?,
    };
    Ok(record.complete(payload))
}

fn place(member: &RedoMember, offset: DeviceOffset) -> Place {
    Place { set_uuid: member.set_uuid, device_uuid: member.device_uuid, offset }
}

/// The array that was found, as far as it matters here.
#[derive(Clone, Debug)]
pub struct Situation<'a> {
    /// Where every byte lives.
    pub geometry: Geometry,
    /// State of every slot.
    pub states: &'a [MemberState],
    /// Event count of the newest superblock.
    pub events: u64,
    /// Parity may not agree from here on: the superblocks say so.
    pub resync_from_bytes: Option<u64>,
    /// What an array with a bitmap starts with: stripes that it does not mark agree (invariant 2).
    pub bitmap: Option<&'a StartBitmap>,
    /// A person accepts contents that may be wrong.
    pub force: bool,
}

/// What is to be done before the array is served.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Repair {
    /// To be redone in this order.
    pub records: Vec<WholeRecord>,
    /// Missing chunks of these stripes may be wrong.
    pub doubts: Vec<StripeRange>,
    /// From this stripe on parity that is there may not agree, though no missing chunk is in doubt: it was due already, or
    /// force accepts what was in doubt.
    pub resync_from: Option<Stripe>,
    /// Why stripes are in doubt, in words.
    pub reason: Option<String>,
    /// The log tells of every stripe in flight: what has neither record nor doubt agrees.
    pub in_force: bool,
    /// Records cannot be read: what was in flight is not known.
    pub lost_records: bool,
    /// What this run's numbers go on from.
    pub start: RedoStart,
}

impl Repair {
    /// Stripes that the records are about, ascending.
    pub fn stripes(&self, geometry: &Geometry) -> Vec<Stripe> {
        let chunk_bytes = u64::from(geometry.chunk_bytes());
        let pieces = self.records.iter().flat_map(|record| &record.record().pieces);
        let mut stripes: Vec<Stripe> = pieces
            .flat_map(|piece| {
                let start = piece.offset.get() % chunk_bytes; // several stripes only from one's start
                Stripe::each(piece.stripe..piece.stripe + (start + piece.bytes).div_ceil(chunk_bytes))
            })
            .collect();
        stripes.sort_unstable();
        stripes.dedup();
        stripes
    }

    /// From where on the superblocks have to say that parity may not agree, in bytes of the members.
    pub fn resync_from_bytes(&self, situation: &Situation<'_>) -> Option<u64> {
        let degraded = situation.states.iter().any(|state| *state != MemberState::InSync);
        if !degraded || !self.in_force {
            return situation.resync_from_bytes;
        }
        let is_there = |state: &MemberState| matches!(state, MemberState::InSync | MemberState::Recovering);
        let missing = situation.states.iter().filter(|state| !is_there(state)).count();
        let has_parity = missing < situation.geometry.parity_chunks() as usize;
        let due = self.resync_from.filter(|_| has_parity);
        let in_doubt = self.doubts.first().map(|doubt| Stripe::new(doubt.first));
        due.into_iter().chain(in_doubt).min().map(|stripe| situation.geometry.member_offset(stripe).get())
    }
}

/// Decides what the logs ask for (invariant 10: what an intent record tells how to repair is repaired; what none tells
/// is in doubt).
pub fn decide(situation: &Situation<'_>, logs: &[MemberLog]) -> Repair {
    let headers = logs.iter().flat_map(|log| &log.headers);
    let start = RedoStart {
        generation: headers.clone().map(|header| header.generation).max().unwrap_or(0),
        epoch: headers.map(|header| header.epoch).max().unwrap_or(0),
    };
    let mut repair = Repair { start, ..Repair::default() };
    if situation.geometry.parity_chunks() == 0 {
        return repair;
    }
    // Invariant 8, for the log: one that goes with another superblock than this is old, and so is one that goes with
    // this but missed what the newest superblocks say: its member comes back, or is taken by force. Records that overlap
    // made again over superblocks that say clean would be a cut away from stripes that are half written.
    let goes_with = |log: &&MemberLog, header: &&RedoHeader| {
        header.superblocks.contains(&log.digest) && header.events >= situation.events
    };
    let current =
        logs.iter().flat_map(|log| log.headers.iter().filter(move |header| goes_with(&log, header)));
    let newest = current.max_by_key(|header| header.generation);
    match newest.filter(|header| header.in_force) {
        Some(header) => redo(situation, logs, header, &mut repair),
        None => doubt_all(situation, why_not_in_force(logs, newest), &mut repair),
    }
    if situation.force {
        let accepted = repair.doubts.first().map(|doubt| Stripe::new(doubt.first));
        repair.resync_from = repair.resync_from.into_iter().chain(accepted).min();
        (repair.doubts, repair.reason) = (Vec::new(), None);
    }
    repair
}

fn redo(situation: &Situation<'_>, logs: &[MemberLog], header: &RedoHeader, repair: &mut Repair) {
    let missing = situation.states.iter().filter(|state| **state != MemberState::InSync).count();
    let mut by_sequence = BTreeMap::new();
    // Superblocks that say clean say that what was logged is durable: stripes may be in doubt still, but none is in flight.
    let is_clean = situation.resync_from_bytes.is_none();
    for record in logs.iter().filter(|_| !is_clean).flat_map(|log| &log.records) {
        let (epoch, sequence) = (record.record().epoch, record.record().sequence);
        if epoch == header.epoch && sequence >= header.retired_below {
            by_sequence.insert(sequence, record);
        }
    }
    let stripes = situation.geometry.stripes();
    let inside = |range: &StripeRange| StripeRange { first: range.first, end: range.end.min(stripes) };
    repair.in_force = true;
    repair.resync_from = header.resync_from;
    repair.doubts = header.doubts.iter().map(inside).filter(|range| range.first < range.end).collect();
    if !repair.doubts.is_empty() {
        repair.reason = Some("they were in doubt before".to_string());
    }
    let unreadable = logs.iter().filter(|log| log.unreadable.is_some()).count();
    let copies = 1 + (situation.geometry.parity_chunks() as usize).saturating_sub(missing);
    let foreign = by_sequence.values().any(|record| !fits(&situation.geometry, record));
    if foreign || unreadable >= copies {
        let error = logs.iter().find_map(|log| log.unreadable.clone());
        let error = error.unwrap_or_else(|| "a record is about no place of this array".to_string());
        repair.lost_records = true;
        doubt_all(situation, format!("the redo log cannot be read: {error}"), repair);
        by_sequence.retain(|_, record| fits(&situation.geometry, record));
    }
    repair.records = by_sequence.into_values().cloned().collect();
}

fn fits(geometry: &Geometry, record: &WholeRecord) -> bool {
    let chunk_bytes = u64::from(geometry.chunk_bytes());
    record.record().pieces.iter().all(|piece| {
        let end = MemberOffset::new(piece.offset.get().saturating_add(piece.bytes));
        geometry.has(piece.member)
            && end.get() <= geometry.stripes() * chunk_bytes
            && piece.stripe == geometry.stripe_at(piece.offset)
            && (piece.kind == PieceKind::Zeroes || end <= geometry.member_offset(piece.stripe.next()))
            && (!matches!(piece.kind, PieceKind::Missing | PieceKind::Partial) || is_data(geometry, piece))
            && (piece.kind != PieceKind::Partial || geometry.parity_chunks() == 1)
    })
}

fn is_data(geometry: &Geometry, piece: &RedoPiece) -> bool {
    matches!(geometry.role(piece.stripe, piece.member), Role::Data(_))
}

fn doubt_all(situation: &Situation<'_>, reason: String, repair: &mut Repair) {
    let degraded = situation.states.iter().any(|state| *state != MemberState::InSync);
    let Some(from) = situation.resync_from_bytes.filter(|_| degraded) else { return };
    let (first, end) = (from / u64::from(situation.geometry.chunk_bytes()), situation.geometry.stripes());
    let due = StripeRange { first, end };
    repair.doubts = match situation.bitmap {
        Some(bitmap) => common(&bitmap.marked_stripes(&situation.geometry), &[due]),
        None => vec![due],
    };
    if !repair.doubts.is_empty() {
        repair.reason = Some(reason);
    }
}

fn why_not_in_force(logs: &[MemberLog], newest: Option<&RedoHeader>) -> String {
    match newest {
        Some(_) => "the array was not stopped cleanly, and members went missing before its redo log was in force",
        None if logs.iter().any(|log| !log.headers.is_empty()) => {
            "the array was not stopped cleanly, and its redo log is older than its superblocks: members went missing \
             at the crash, or another program wrote to it since"
        }
        None => "the array was not stopped cleanly, and nothing was logged: members went missing at the crash, or \
                 another program wrote to it",
    }
    .to_string()
}

/// Puts what stays in doubt into the array's memory, and says it.
pub fn take_doubts<D: Device>(set: &InPlace<D>, repair: &Repair) {
    for range in &repair.doubts {
        set.shared.consistency.doubt(*range);
        let reason = repair.reason.clone().unwrap_or_default();
        set.shared.members.report(Event::StripesInDoubt { first: range.first, end: range.end, reason });
    }
}

/// Where the log of a member is, if it has room.
pub fn member_of(
    superblock: &layout::md_superblock::Superblock,
    bitmap: layout::redo_log::BitmapExtent,
) -> Option<RedoMember> {
    let area = RedoArea::of(superblock, bitmap)?;
    let (set_uuid, device_uuid) = (superblock.set_uuid(), superblock.device_uuid());
    Some(RedoMember { area, set_uuid, device_uuid, digest: superblock.digest() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stripe::fake::{CHUNK, Fake, World};
    use layout::geometry::Level;
    use layout::redo_log::{Checksum, SlotPlan};

    const RECOVERING: Slot = Slot::new(1);

    /// A member's log in force, which goes with the superblock that it has now.
    fn log(slot: Slot, events: u64, records: Vec<WholeRecord>) -> MemberLog {
        let header = RedoHeader {
            generation: 1,
            epoch: 1,
            in_force: true,
            retired_below: 1,
            events,
            superblocks: [7, 8],
            plan: SlotPlan { slots: 2, slot_bytes: 8192 },
            resync_from: None,
            doubts: Vec::new(),
        };
        MemberLog { slot, digest: 8, headers: vec![header], records, unreadable: None }
    }

    /// The log of a member that is back from before: the others were written to, or called clean, without it. Its records
    /// may overlap, so that making them again passes through what was never right, and may be cut short there.
    #[test]
    fn a_log_from_before_the_newest_superblocks_is_not_made_again() {
        use MemberState::{InSync, Missing};
        let geometry = World::new(Level::Raid5, 4).set.shared.geometry;
        let resync_from_bytes = Some(u64::from(CHUNK));
        let states = &[InSync, InSync, InSync, Missing];
        let dirty = Situation { geometry, states, events: 5, resync_from_bytes, bitmap: None, force: false };
        let logs = [log(Slot::new(0), 5, vec![zeroes()]), log(Slot::new(1), 5, vec![zeroes()])];
        let now = decide(&dirty, &logs);
        assert_eq!((now.records.len(), now.in_force, now.doubts.len()), (1, true, 0));
        // Superblocks that say clean were the last to be written.
        let clean = decide(&Situation { resync_from_bytes: None, ..dirty.clone() }, &logs);
        assert_eq!((clean.records.len(), clean.in_force, clean.doubts.len()), (0, true, 0));
        // Newer superblocks without a log of their own: no record says what was in flight.
        let missed = decide(&Situation { events: 6, ..dirty.clone() }, &logs);
        assert_eq!((missed.records.len(), missed.in_force), (0, false));
        assert_eq!(missed.doubts, [StripeRange { first: 1, end: geometry.stripes() }]);
        // One that was taken by force speaks for itself only, not for the others.
        let forced = decide(&Situation { events: 6, force: true, ..dirty }, &logs);
        assert_eq!((forced.records.len(), forced.doubts.len()), (0, 0));
    }

    /// A record is on as many members as may still go. Where as many logs cannot be read it may have been on these only.
    #[test]
    fn logs_that_cannot_be_read_leave_what_was_in_flight_in_doubt() {
        use MemberState::{InSync, Missing};
        for (level, states, lost) in [
            (Level::Raid5, [InSync, InSync, InSync, Missing], true),
            (Level::Raid6, [InSync, InSync, InSync, Missing], false),
            (Level::Raid6, [InSync, InSync, Missing, Missing], true),
        ] {
            let geometry = World::new(level, 4).set.shared.geometry;
            let resync_from_bytes = Some(0);
            let situation = Situation {
                geometry,
                states: &states,
                events: 5,
                resync_from_bytes,
                bitmap: None,
                force: false,
            };
            let unreadable =
                MemberLog { unreadable: Some("a bad sector".to_owned()), ..log(Slot::new(1), 5, Vec::new()) };
            let repair = decide(&situation, &[log(Slot::new(0), 5, vec![zeroes()]), unreadable]);
            assert_eq!((repair.records.len(), repair.lost_records), (1, lost), "{level} {states:?}");
            assert_eq!(repair.doubts.is_empty(), !lost, "{level} {states:?}: {:?}", repair.reason);
        }
    }

    /// Zeroes of the stripes 1 to 5, as one piece for each member.
    fn zeroes() -> WholeRecord {
        let chunk = u64::from(CHUNK);
        let piece = |member| RedoPiece {
            stripe: Stripe::new(1),
            member,
            offset: MemberOffset::new(chunk),
            bytes: 5 * chunk,
            kind: PieceKind::Zeroes,
        };
        let pieces = Slot::first(4).map(piece).collect();
        let record =
            RedoRecord { epoch: 1, sequence: 1, copies: 1, payload_checksum: Checksum::of(&[]), pieces };
        record.complete(Vec::new()).expect("a record")
    }

    /// A recovery had come to the middle of what a record writes. What lies before that is trusted, so it must be
    /// written too: else parity would be that of zeroes, and the member would hold what it held before.
    #[test]
    fn a_piece_is_made_again_on_both_sides_of_a_recovery() {
        let world = World::new(Level::Raid5, 4);
        world.fill();
        let shared = &world.set.shared;
        shared.members.fail(RECOVERING, "by hand");
        assert!(shared.members.remove(RECOVERING));
        assert!(shared.members.begin_recovery(RECOVERING, 3 * u64::from(CHUNK)));
        let repair = Repair { records: vec![zeroes()], in_force: true, ..Repair::default() };
        assert_eq!(repair.stripes(&shared.geometry), [1, 2, 3, 4, 5].map(Stripe::new));
        let set = std::rc::Rc::clone(&world.set);
        world.run(async move { replay(&set, &repair).await }).expect("written");
        let areas: Vec<Vec<u8>> = world.fakes.iter().map(Fake::area).collect();
        let odd = (0..areas[0].len()).find(|&at| areas.iter().fold(0, |sum, area| sum ^ area[at]) != 0);
        assert_eq!(odd.map(|at| at / CHUNK as usize), None, "a stripe that does not agree");
    }
}
