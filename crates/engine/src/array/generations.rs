//! Generations as pure decisions: how a member stands to the array, whether it may come back by delta, and when a new
//! generation begins.
//!
//! A generation is an unbroken run of the array beside the same members. md's superblock speaks of other devices by numbers,
//! which are given away again, and event counts grow alike on both sides of an array that was split. A generation has a
//! random id, and names its members by their UUIDs. A record that does not go with its superblock is none: md knows nothing
//! of it (`layout::generations`). Where there is none md's rules stay, and what they leave open is never a delta
//! (docs/decisions/2026-11-25-generations.md).
//!
//! Invariant 8 rests on this: every write that was acknowledged in a generation is on all members that it names, because
//! superblocks and records of a generation are on all of them before the first such write is acknowledged.

use layout::generations::{Generations, GenerationsArea, GenerationsRecord, HISTORY_MAX, RECORD_BYTES};
use layout::md_bitmap::{BitmapSuper, SUPER_BYTES};
use layout::md_superblock::{DeviceRole, Superblock, display_uuid};
use layout::redo_log::BitmapExtent;
use layout::units::{DeviceOffset, Slot};

/// The identity of a device.
pub(super) type DeviceUuid = [u8; 16];

/// What an array that starts goes on from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FoundGenerations {
    /// Its generations. None: the first superblocks begin one that knows of none before, since md wrote the last ones, or force
    /// chose what counts.
    pub now: Option<Generations>,
    /// Device UUID of each device with a record, and the record's sequence.
    pub sequences: Vec<([u8; 16], u64)>,
}

/// The record that goes with the superblock of a device of `device_bytes`; `read` reads a number of bytes at an
/// offset of it. None if the record cannot be read.
pub fn find_record(
    superblock: &Superblock,
    device_bytes: u64,
    read: impl Fn(DeviceOffset, usize) -> Option<Vec<u8>>,
) -> Option<GenerationsRecord> {
    let bitmap = match superblock.bitmap_start() {
        None => BitmapExtent::Absent,
        Some(start) => {
            let bytes = read(DeviceOffset::of_sector(start), SUPER_BYTES)?;
            let room_bytes = superblock.bitmap_room(device_bytes)?;
            let bitmap = BitmapSuper::parse(&bytes, superblock.set_uuid(), room_bytes).ok()?;
            BitmapExtent::Bytes(bitmap.bitmap_bytes())
        }
    };
    let area = GenerationsArea::of(superblock, bitmap)?;
    let copy = |number| read(area.copy_offset(number), RECORD_BYTES).unwrap_or_default();
    Generations::choose([&copy(0), &copy(1)], superblock, area).ok()
}

/// The superblock of one member, and the generations that go with it.
#[derive(Clone, Copy)]
pub(super) struct MemberMetadata<'a> {
    pub(super) superblock: &'a Superblock,
    pub(super) generations: Option<&'a Generations>,
}

/// How a member stands to the member that speaks for the array.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    /// One of the two has no generations: md's rules decide.
    Unknown,
    /// Both are in the same generation, or the member is the older one of a crash between two superblocks.
    Together,
    /// The array went on without it.
    Behind,
    /// It went on by itself.
    Apart,
    /// It was last written before the array's history begins.
    Forgotten,
}

/// How the member `own` stands to `newest`; `all` are the members that are there.
pub(super) fn standing(
    own: MemberMetadata<'_>,
    newest: MemberMetadata<'_>,
    all: &[MemberMetadata<'_>],
) -> Standing {
    let (Some(generations), Some(of_array)) = (own.generations, newest.generations) else {
        return Standing::Unknown;
    };
    if generations.current == of_array.current || remembers(generations, of_array.current) {
        return Standing::Together;
    }
    if remembers(of_array, generations.current) {
        return match names(of_array, &own.superblock.device_uuid()) {
            true => Standing::Together,
            false => Standing::Behind,
        };
    }
    let is_forgotten =
        of_array.history.len() == HISTORY_MAX || own.superblock.events() < of_array.since_events;
    match is_deserted(own, all) {
        true => Standing::Behind,
        false if is_forgotten => Standing::Forgotten,
        false => Standing::Apart,
    }
}

/// Whether a member cannot speak for the array: another one has gone on from its generation without it, or members that it
/// names went another way.
pub(super) fn is_outgrown(own: MemberMetadata<'_>, all: &[MemberMetadata<'_>]) -> bool {
    let Some(generations) = own.generations else { return false };
    let went_on = |other: &Generations| {
        other.history.contains(&generations.current) && !names(other, &own.superblock.device_uuid())
    };
    all.iter().filter_map(|other| other.generations).any(went_on) || is_deserted(own, all)
}

/// Whether a member that this one names went another way: it is in a generation that has nothing to do with this one's. Then
/// it never had this one's, so no write was acknowledged there; or that is so long ago that it forgot. One that was last written
/// before this one's history begins went nowhere: it was coming back when the power failed.
fn is_deserted(own: MemberMetadata<'_>, all: &[MemberMetadata<'_>]) -> bool {
    let Some(generations) = own.generations else { return false };
    let went_elsewhere = |other: &MemberMetadata<'_>| {
        names(generations, &other.superblock.device_uuid())
            && other.superblock.events() >= generations.since_events
            && other.generations.is_some_and(|other| {
                !remembers(other, generations.current) && !remembers(generations, other.current)
            })
    };
    all.iter().any(went_elsewhere)
}

/// Whether a generation is among those that the member or array has been in.
fn remembers(generations: &Generations, id: u64) -> bool {
    generations.current == id || generations.history.contains(&id)
}

/// Whether the device has a slot in the current generation, or is to get one.
pub(super) fn names(generations: &Generations, uuid: &DeviceUuid) -> bool {
    generations.members.contains(&Some(*uuid))
}

/// The array to which a member is to come back.
pub(super) struct Here<'a> {
    /// Its generations.
    pub(super) generations: Option<&'a Generations>,
    /// Superblocks of its members in sync, with their slots.
    pub(super) in_sync: &'a [(Slot, &'a Superblock)],
    /// The returning member would have a record if it was written with one.
    pub(super) has_room: bool,
}

/// Whether all that a member lacks, by its generations, is marked in the array's bitmap. If not: why, in words.
pub(super) fn lacks_only_marked(own: MemberMetadata<'_>, here: &Here<'_>) -> Result<(), String> {
    match (own.generations, here.generations) {
        (Some(generations), Some(of_array)) if marks_since(of_array, generations.current) => Ok(()),
        // The array's record begins after this member left: md or an older Twill ran it meanwhile, or it was forced.
        (Some(generations), Some(of_array)) if own.superblock.events() >= of_array.since_events => {
            let current = generations.current;
            Err(format!(
                "its generation {current:016x} is none of the last that the array was in, back to when it was whole: it ran \
                 without the others, or was away too long"
            ))
        }
        (Some(generations), _) => {
            let stranger = here.in_sync.iter().find(|(_, other)| !names(generations, &other.device_uuid()));
            stranger.map_or(Ok(()), |(slot, other)| {
                let (uuid, current) = (display_uuid(&other.device_uuid()), generations.current);
                Err(format!(
                    "its generation {current:016x} was without the member in slot {slot}, {uuid}: one of the two ran without \
                     the other, or that one came later"
                ))
            })
        }
        (None, Some(of_array)) if here.has_room && own.superblock.events() >= of_array.since_events => {
            let (events, since) = (own.superblock.events(), of_array.since_events);
            Err(format!(
                "it has no record of generations beside its superblock of event {events}, and this array has them since event \
                 {since}: another program wrote to it meanwhile"
            ))
        }
        (None, _) => knows_all_by_number(own.superblock, here.in_sync),
    }
}

/// Whether a member of this generation lacks only what the bitmap marks.
fn marks_since(generations: &Generations, id: u64) -> bool {
    let mut known = std::iter::once(&generations.current).chain(&generations.history);
    let mut is_marked = true;
    known.any(|known| {
        let found = is_marked && *known == id;
        is_marked &= *known != generations.bitmap;
        found
    })
}

/// md's superblocks tell of others by number. One that calls all that are in sync here active where they are was beside them
/// to the last; any other may have run without them.
fn knows_all_by_number(own: &Superblock, in_sync: &[(Slot, &Superblock)]) -> Result<(), String> {
    let unknown = in_sync
        .iter()
        .find(|(slot, other)| own.role_of(other.dev_number()) != Some(DeviceRole::Active(*slot)));
    unknown.map_or(Ok(()), |(slot, other)| {
        let number = other.dev_number();
        Err(format!(
            "its superblock does not say that device {number} is the member in slot {slot}: it ran without that one, or that one \
             came later, and nothing on disk tells which"
        ))
    })
}

/// The generations after `before`, now that superblocks with the event count `events` are about to be written: `members` by
/// slot, then what is to replace one. A new one begins if any that was named is gone. `is_whole` says that all are in sync.
pub(super) fn go_on(
    before: Option<&Generations>,
    members: &[Option<DeviceUuid>],
    is_whole: bool,
    events: u64,
    mut new_id: impl FnMut() -> u64,
) -> Generations {
    let Some(before) = before else {
        let (current, members) = (new_id(), members.to_vec());
        // Where a member is missing the array was last whole before it had records, in a generation that no record names.
        let bitmap = if is_whole { current } else { new_id() };
        let history = Vec::new();
        return Generations { current, bitmap, history, since_events: events, absences: 0, members };
    };
    let mut next = Generations { members: members.to_vec(), ..before.clone() };
    if before.members.iter().flatten().any(|uuid| !names(&next, uuid)) {
        next.history.insert(0, before.current);
        next.history.truncate(HISTORY_MAX);
        next.current = new_id();
    }
    if is_whole {
        next.bitmap = next.current;
    }
    next
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    /// A record that begins while a member is missing, as that of an array that mdadm made, does not say that the array was
    /// whole: a start after a crash would take a new device that was being rebuilt for one that holds its part.
    #[test]
    fn a_record_that_begins_degraded_does_not_say_that_the_array_was_whole() {
        let last = Cell::new(0);
        let new_id = || {
            last.set(last.get() + 1);
            last.get()
        };
        let (one, other) = (Some([1; 16]), Some([2; 16]));
        let degraded = go_on(None, &[one, None], false, 7, new_id);
        assert_ne!(degraded.bitmap, degraded.current);
        assert!(marks_since(&degraded, degraded.current), "the bitmap marks what is written from here on");
        let rebuilding = go_on(Some(&degraded), &[one, other], false, 8, new_id);
        assert_eq!((rebuilding.current, rebuilding.bitmap), (degraded.current, degraded.bitmap));
        let whole = go_on(Some(&rebuilding), &[one, other], true, 9, new_id);
        assert_eq!(whole.bitmap, whole.current);
        let begun_whole = go_on(None, &[one, other], true, 7, new_id);
        assert_eq!(begun_whole.bitmap, begun_whole.current);
    }

    /// Bits were last all clear in the generation in which the array was whole: a member that left before that lacks more.
    #[test]
    fn what_was_written_before_the_array_was_whole_is_not_marked() {
        let generations = |bitmap, history: &[u64]| Generations {
            current: 9,
            bitmap,
            history: history.to_vec(),
            since_events: 0,
            absences: 0,
            members: Vec::new(),
        };
        let degraded = generations(7, &[8, 7, 6]);
        assert!([9, 8, 7].iter().all(|id| marks_since(&degraded, *id)));
        assert!(!marks_since(&degraded, 6), "it left before the array was whole");
        assert!(!marks_since(&degraded, 5), "it is not in the history");
        let whole = generations(9, &[8]);
        assert!(marks_since(&whole, 9) && !marks_since(&whole, 8));
    }
}
