//! The record of absences: which contents of members that are away still count.
//!
//! A crash leaves stripes whose parity may not agree. While a member is away the parity of such a stripe does not tell what
//! the member holds there, but the member does when it comes back, unless the array wrote that place meanwhile. For each member
//! that is away the record lists, in sectors of its data area:
//! - what it *holds*: nothing was written there since it left, so its own contents count;
//! - what was *made* since: written while it was away, with parity that agrees in these rows.
//!
//! A place in neither list is told by parity, if the stripe is sound, or by nothing.
//!
//! With two parity chunks P and Q also tell what a chunk of such a stripe holds, where both make the same of it. Not where the
//! chunk itself was written by read-modify-write meanwhile: such *carried* places, of members that are there, are listed too.
//!
//! The record has no binding to a superblock of its own: a record of generations names it by its id
//! ([`Generations::absences`](crate::generations::Generations)), and counts only beside one superblock. So after md, which knows
//! nothing of either, it is none. There are two copies; the record with the higher sequence on any member counts.
//! Bytes are drawn in `docs/formats.md`.

use byte_struct::byte_struct;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

use crate::generations::GenerationsArea;
use crate::headroom::{BLOCK_BYTES, BitmapExtent, Headroom, Place, RawStart, RecordKind, sealed};
use crate::md_superblock::Superblock;
use crate::units::{DeviceOffset, Slot};

/// Name, offset and size of each field, for the check of `docs/formats.md`.
pub const FIELDS: &[(&str, usize, usize)] = RawAbsences::FIELDS;
/// The same of a member that is away.
pub const MEMBER_FIELDS: &[(&str, usize, usize)] = RawAbsent::FIELDS;
/// The same of a range that was carried.
pub const CARRIED_FIELDS: &[(&str, usize, usize)] = RawCarried::FIELDS;
/// The largest copy. More room gains little: beyond two thousand ranges the shortest are forgotten.
pub const COPY_BYTES_MAX: u64 = 32 << 10;
/// Members away that a record has room for: RAID-6 has two.
pub const ABSENT_MAX: usize = 8;
/// In a carried place: members of all slots.
const ANY_SLOT: u32 = u32::MAX;

const KIND: RecordKind = RecordKind { magic: *b"TwAbsen\0", name: "record of absences", versions: 2..=2 };
const COPIES: u64 = 2;
const BLOCK: u64 = BLOCK_BYTES as u64;
const FIXED_BYTES: usize = size_of::<RawAbsences>();
const ABSENT_BYTES: usize = size_of::<RawAbsent>();
const RANGE_BYTES: usize = 16;
const CARRIED_BYTES: usize = size_of::<RawCarried>();

byte_struct! {
    struct RawAbsences, 128 bytes {
        0   56  start: RawStart,
        56  8   id: U64,
        64  8   sequence: U64,
        72  4   bytes: U32,
        76  4   members: U32,
        80  4   carried: U32,
        84  44  reserve: bytes,
    }
}

byte_struct! {
    struct RawAbsent, 32 bytes {
        0   16  device_uuid: bytes,
        16  4   slot: U32,
        20  4   holds: U32,
        24  4   made: U32,
        28  4   reserve: bytes,
    }
}

byte_struct! {
    struct RawCarried, 24 bytes {
        0   4  slot: U32,
        4   4  reserve: bytes,
        8   8  first: U64,
        16  8  end: U64,
    }
}

/// Sectors of a member's data area, from `first` to `end` - 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SectorRange {
    /// The first sector.
    pub first: u64,
    /// The first sector after the range.
    pub end: u64,
}

/// A member that is away.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AbsentMember {
    /// The slot that it had.
    pub slot: Slot,
    /// Its identity.
    pub device_uuid: [u8; 16],
    /// Where its own contents count.
    pub holds: Vec<SectorRange>,
    /// What was written since it left, with parity that agrees.
    pub made: Vec<SectorRange>,
}

/// A place of a stripe in doubt that was written by read-modify-write: P and Q agree there on what was torn before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Carried {
    /// The slot of the member that was written; `None`: of any.
    pub slot: Option<Slot>,
    /// Sectors of its data area.
    pub range: SectorRange,
}

/// A record of absences.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AbsenceRecord {
    /// The id by which records of generations name it.
    pub id: u64,
    /// Counts up with every record of this id.
    pub sequence: u64,
    /// The members that are away.
    pub members: Vec<AbsentMember>,
    /// Where P and Q prove nothing, in any order.
    pub carried: Vec<Carried>,
}

/// Where a member keeps the record: two copies, one behind the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AbsencesArea {
    /// First byte on the device, a multiple of 4 KiB.
    pub start: DeviceOffset,
    /// Length of a copy, a multiple of 4 KiB.
    pub copy_bytes: u64,
}

impl AbsencesArea {
    /// The room right before the record of generations, after everything that md has there. `None` where there is no record of
    /// generations, or no room for two blocks.
    #[must_use]
    pub fn of(superblock: &Superblock, bitmap: BitmapExtent) -> Option<AbsencesArea> {
        let end = GenerationsArea::of(superblock, bitmap)?.start.get();
        let room = end.checked_sub(Headroom::of(superblock, bitmap)?.start_bytes)?;
        let copy_bytes = (room / COPIES / BLOCK * BLOCK).min(COPY_BYTES_MAX);
        (copy_bytes > 0)
            .then(|| AbsencesArea { start: DeviceOffset::new(end - COPIES * copy_bytes), copy_bytes })
    }

    /// Where copy 0 or 1 is on the device. The record of sequence *n* is in copy *n* mod 2.
    #[must_use]
    pub fn copy_offset(self, sequence: u64) -> DeviceOffset {
        self.start + sequence % COPIES * self.copy_bytes
    }
}

/// Most carried places of a record of this length: a quarter of it.
#[must_use]
pub fn carried_max(copy_bytes: u64) -> usize {
    usize::try_from(copy_bytes / 4).unwrap_or(usize::MAX) / CARRIED_BYTES
}

/// Most ranges of a record of this length about this many members, with so many carried places.
#[must_use]
pub fn ranges_max(copy_bytes: u64, members: usize, carried: usize) -> usize {
    let fixed = FIXED_BYTES + members * ABSENT_BYTES + carried * CARRIED_BYTES;
    usize::try_from(copy_bytes).unwrap_or(usize::MAX).saturating_sub(fixed) / RANGE_BYTES
}

impl AbsenceRecord {
    /// Reads what stands at `place`, a whole copy. `None` if that cannot be believed, whatever the reason: then nothing tells
    /// what members that are away hold.
    #[must_use]
    pub fn parse(copy: &[u8], place: Place) -> Option<AbsenceRecord> {
        let (raw, _) = RawAbsences::read_from_prefix(copy).ok()?;
        let record = KIND.check(copy, raw.bytes.get() as usize, place).ok()?;
        let count = raw.members.get() as usize;
        if raw.id.get() == 0 || count > ABSENT_MAX || raw.reserve != [0; 44] {
            return None;
        }
        let lists = record.get(FIXED_BYTES..)?;
        let (heads, mut rest) = <[RawAbsent]>::ref_from_prefix_with_elems(lists, count).ok()?;
        let mut members = Vec::new();
        for head in heads {
            let holds = ranges(&mut rest, head.holds.get() as usize)?;
            let made = ranges(&mut rest, head.made.get() as usize)?;
            members.push(AbsentMember {
                slot: Slot::new(head.slot.get()),
                device_uuid: head.device_uuid,
                holds,
                made,
            });
        }
        let (raw_carried, _) =
            <[RawCarried]>::ref_from_prefix_with_elems(rest, raw.carried.get() as usize).ok()?;
        let carried = raw_carried.iter().map(|raw| Carried {
            slot: Some(raw.slot.get()).filter(|slot| *slot != ANY_SLOT).map(Slot::new),
            range: SectorRange { first: raw.first.get(), end: raw.end.get() },
        });
        let carried: Vec<Carried> = carried.collect();
        if carried.iter().any(|carried| carried.range.end <= carried.range.first) {
            return None;
        }
        Some(AbsenceRecord { id: raw.id.get(), sequence: raw.sequence.get(), members, carried })
    }

    /// The blocks to write at `place`.
    ///
    /// # Panics
    /// If the record has no id, or more members than [`ABSENT_MAX`].
    #[must_use]
    pub fn encode(&self, place: Place) -> Vec<u8> {
        assert!(self.id != 0 && self.members.len() <= ABSENT_MAX, "{} members", self.members.len());
        let count = |list: &[SectorRange]| u32::try_from(list.len()).expect("a copy is small");
        let mut raw = RawAbsences::new_zeroed();
        raw.start = KIND.start(place);
        raw.id.set(self.id);
        raw.sequence.set(self.sequence);
        raw.members.set(u32::try_from(self.members.len()).expect("a few members"));
        let mut heads = Vec::new();
        let mut lists = Vec::new();
        for member in &self.members {
            let mut head = RawAbsent::new_zeroed();
            head.device_uuid = member.device_uuid;
            head.slot.set(member.slot.get());
            head.holds.set(count(&member.holds));
            head.made.set(count(&member.made));
            heads.extend_from_slice(head.as_bytes());
            for range in member.holds.iter().chain(&member.made) {
                lists.extend_from_slice(&range.first.to_le_bytes());
                lists.extend_from_slice(&range.end.to_le_bytes());
            }
        }
        for carried in &self.carried {
            let mut raw = RawCarried::new_zeroed();
            raw.slot.set(carried.slot.map_or(ANY_SLOT, Slot::get));
            raw.first.set(carried.range.first);
            raw.end.set(carried.range.end);
            lists.extend_from_slice(raw.as_bytes());
        }
        raw.carried.set(u32::try_from(self.carried.len()).expect("a copy is small"));
        let bytes = (FIXED_BYTES + heads.len() + lists.len()).next_multiple_of(BLOCK as usize);
        raw.bytes.set(u32::try_from(bytes).expect("a copy is small"));
        sealed([raw.as_bytes(), &heads, &lists].concat())
    }
}

/// Takes an ascending list of ranges off the front of `rest`.
fn ranges(rest: &mut &[u8], count: usize) -> Option<Vec<SectorRange>> {
    let (raw, after) = <[[U64; 2]]>::ref_from_prefix_with_elems(rest, count).ok()?;
    *rest = after;
    let mut end = 0;
    let mut list = Vec::new();
    for [first, beyond] in raw {
        let range = SectorRange { first: first.get(), end: beyond.get() };
        if range.first < end || range.end <= range.first {
            return None;
        }
        end = range.end;
        list.push(range);
    }
    Some(list)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLACE: Place =
        Place { set_uuid: [1; 16], device_uuid: [2; 16], offset: DeviceOffset::new(184 << 10) };

    fn record(ranges: u64) -> AbsenceRecord {
        let list =
            |from: u64| (0..ranges).map(move |i| SectorRange { first: from + 8 * i, end: from + 8 * i + 3 });
        let member = |slot: u8| AbsentMember {
            slot: Slot::new(slot.into()),
            device_uuid: [slot; 16],
            holds: list(7).collect(),
            made: list(10).collect(),
        };
        let carried = |range| Carried { slot: Some(Slot::new(2)), range };
        AbsenceRecord {
            id: 5,
            sequence: 9,
            members: vec![member(1), member(3)],
            carried: list(4).take(9).map(carried).collect(),
        }
    }

    #[test]
    fn what_is_written_is_read_back_and_nothing_else_is_believed() {
        for ranges in [0, 1, 60, 500] {
            let (record, mut bytes) = (record(ranges), record(ranges).encode(PLACE));
            assert!(bytes.len().is_multiple_of(4096) && bytes.len() as u64 <= COPY_BYTES_MAX);
            assert!(4 * ranges as usize <= ranges_max(bytes.len() as u64, 2, record.carried.len()));
            assert_eq!(AbsenceRecord::parse(&bytes, PLACE), Some(record));
            let elsewhere = Place { offset: PLACE.offset + 4096, ..PLACE };
            assert_eq!(AbsenceRecord::parse(&bytes, elsewhere), None);
            for at in (0..bytes.len()).step_by(37) {
                bytes[at] ^= 4;
                assert_eq!(AbsenceRecord::parse(&bytes, PLACE), None, "byte {at} of {ranges} ranges");
                bytes[at] ^= 4;
            }
            assert_eq!(AbsenceRecord::parse(&bytes[..bytes.len() - 1], PLACE), None);
        }
        assert_eq!(AbsenceRecord::parse(&[], PLACE), None);
    }

    #[test]
    fn ranges_ascend() {
        let mut crossed = record(2);
        crossed.members[1].made.swap(0, 1);
        assert_eq!(AbsenceRecord::parse(&crossed.encode(PLACE), PLACE), None);
        let mut empty = record(2);
        empty.carried[0].range.end = empty.carried[0].range.first;
        assert_eq!(AbsenceRecord::parse(&empty.encode(PLACE), PLACE), None);
    }
}
