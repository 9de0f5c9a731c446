//! The newest record of each place in a redo log: what the replay writes, and what missing chunks hold.

use rangemap::RangeMap;
use std::collections::BTreeMap;
use std::ops::Range;

use layout::geometry::{Geometry, Role};
use layout::redo_log::{PieceKind, RedoPiece, WholeRecord};
use layout::units::{MemberOffset, Slot, Stripe};

/// New contents of some bytes of a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Part<'a> {
    pub(super) slot: Slot,
    pub(super) offset: MemberOffset,
    pub(super) bytes: u64,
    /// None: zeroes.
    pub(super) contents: Option<&'a [u8]>,
}

/// What the replay of all records comes to.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Newest<'a> {
    /// Writes to members, none twice. The replay leaves out those of a member that is not there.
    pub(super) writes: Vec<Part<'a>>,
    /// Contents of missing chunks, each within one stripe. The replay makes parity of these rows from them and from what the
    /// members hold after `writes`, in which these rows have no parity.
    pub(super) missing: Vec<Part<'a>>,
    /// What parity said of missing chunks. After `writes` the replay makes their contents of it, and then parity of these rows.
    pub(super) partial: Vec<Partial<'a>>,
}

/// Rows of a missing chunk, within one stripe: what parity said of them without some data chunks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Partial<'a> {
    pub(super) slot: Slot,
    pub(super) offset: MemberOffset,
    pub(super) contents: &'a [u8],
    /// Members whose data is not in it: they may hold what they held before.
    pub(super) without: Vec<Slot>,
}

impl<'a> Newest<'a> {
    /// `records` are in their order, and lie within the array.
    pub(super) fn of(geometry: &Geometry, records: &'a [WholeRecord]) -> Self {
        let pieces: Vec<(RedoPiece, &[u8])> = records.iter().flat_map(WholeRecord::writes).collect();
        // Of each piece, those of its record.
        let counts = records.iter().map(|record| record.record().pieces.len());
        let ends = counts.scan(0, |end, count| {
            let start = std::mem::replace(end, *end + count);
            Some(std::iter::repeat_n(start..*end, count))
        });
        let of_record: Vec<Range<usize>> = ends.flatten().collect();
        // By member: the newest piece of every place. And the member whose missing chunk is logged, by rows.
        let mut newest = BTreeMap::<Slot, RangeMap<MemberOffset, usize>>::new();
        let mut missing_rows = RangeMap::<MemberOffset, Slot>::new();
        for (index, (piece, _)) in pieces.iter().enumerate() {
            let range = piece.offset..piece.offset + piece.bytes;
            newest.entry(piece.member).or_default().insert(range.clone(), index);
            if matches!(piece.kind, PieceKind::Missing | PieceKind::Partial) {
                missing_rows.insert(range, piece.member);
            }
        }
        let mut found = Newest::default();
        for (range, index) in newest.values().flat_map(RangeMap::iter) {
            let (piece, contents) = pieces[*index];
            if piece.kind == PieceKind::Unlogged {
                continue;
            }
            if piece.kind == PieceKind::Partial {
                let at = |place: MemberOffset| (place - piece.offset) as usize;
                let beside = || pieces[of_record[*index].clone()].iter().map(|(piece, _)| piece);
                let rows = by_writes(range, beside);
                found.partial.extend(rows.into_iter().map(|(rows, without)| Partial {
                    slot: piece.member,
                    offset: rows.start,
                    contents: &contents[at(rows.start)..at(rows.end)],
                    without,
                }));
                continue;
            }
            let part = |range: Range<MemberOffset>| Part {
                slot: piece.member,
                offset: range.start,
                bytes: range.end - range.start,
                contents: match contents {
                    [] => None,
                    contents => {
                        let at = |place: MemberOffset| (place - piece.offset) as usize;
                        Some(&contents[at(range.start)..at(range.end)])
                    }
                },
            };
            found.writes.extend(missing_rows.gaps(range).map(part));
            for (logged, missing) in missing_rows.overlapping(range) {
                let overlap = logged.start.max(range.start)..logged.end.min(range.end);
                for (stripe, rows) in by_stripe(geometry, overlap) {
                    match geometry.role(stripe, piece.member) {
                        _ if piece.member == *missing => found.missing.push(part(rows)),
                        Role::Data(_) => found.writes.push(part(rows)),
                        _ => {} // it is made anew
                    }
                }
            }
        }
        found
    }
}

/// Some rows, cut where writes that a record does not hold begin and end, each with the members of those that are there.
fn by_writes<'a, I: Iterator<Item = &'a RedoPiece>>(
    rows: &Range<MemberOffset>,
    pieces: impl Fn() -> I,
) -> Vec<(Range<MemberOffset>, Vec<Slot>)> {
    let bytes_of = |piece: &RedoPiece| piece.offset..piece.offset + piece.bytes;
    let writes = || pieces().filter(|piece| piece.kind == PieceKind::Unlogged);
    let edges = writes().map(bytes_of).flat_map(|bytes| [bytes.start, bytes.end]);
    let mut cuts: Vec<MemberOffset> = edges.filter(|at| rows.start < *at && *at < rows.end).collect();
    cuts.extend([rows.start, rows.end]);
    cuts.sort_unstable();
    cuts.dedup();
    let part = |cut: &[MemberOffset]| {
        let there = writes().filter(|piece| bytes_of(piece).contains(&cut[0])).map(|piece| piece.member);
        (cut[0]..cut[1], there.collect())
    };
    cuts.windows(2).map(part).collect()
}

/// A range of the members' data areas, stripe by stripe.
fn by_stripe(
    geometry: &Geometry,
    range: Range<MemberOffset>,
) -> impl Iterator<Item = (Stripe, Range<MemberOffset>)> {
    let geometry = *geometry;
    let last = range.start + (range.end - range.start - 1);
    let stripes = geometry.stripe_at(range.start)..geometry.stripe_at(last).next();
    Stripe::each(stripes).map(move |stripe| {
        let (start, end) = (geometry.member_offset(stripe), geometry.member_offset(stripe.next()));
        (stripe, start.max(range.start)..end.min(range.end))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stripe::fake::World;
    use PieceKind::{Data, Missing, Partial, Unlogged, Zeroes};
    use layout::geometry::Level;
    use layout::redo_log::{Checksum, RedoRecord};

    const STRIPE: Stripe = Stripe::new(3);
    const ROW: u64 = 512;

    fn geometry() -> Geometry {
        World::new(Level::Raid5, 4).set.shared.geometry
    }

    /// The members of the stripe: data chunks in their order, then parity.
    fn members() -> [Slot; 4] {
        let geometry = geometry();
        let data = |index| geometry.data_member(STRIPE, index);
        [data(0), data(1), data(2), geometry.p_member(STRIPE).expect("parity")]
    }

    /// A record of pieces: chunk (3: parity), rows, kind, and the byte that the contents are made of.
    fn record(sequence: u64, list: &[(usize, Range<u64>, PieceKind, u8)]) -> WholeRecord {
        let base = geometry().member_offset(STRIPE);
        let (mut pieces, mut payload) = (Vec::new(), Vec::new());
        for (chunk, rows, kind, byte) in list {
            let piece = RedoPiece {
                stripe: STRIPE,
                member: members()[*chunk],
                offset: base + rows.start * ROW,
                bytes: (rows.end - rows.start) * ROW,
                kind: *kind,
            };
            payload.extend(std::iter::repeat_n(*byte, piece.payload_bytes() as usize));
            pieces.push(piece);
        }
        let payload_checksum = Checksum::of(&payload);
        RedoRecord { epoch: 1, sequence, copies: 1, payload_checksum, pieces }
            .complete(payload)
            .expect("whole")
    }

    /// Chunk, row, and the byte, 0 for zeroes.
    type ByRow = Vec<(usize, u64, u8)>;

    /// What is to be done: writes, and contents of missing chunks.
    fn found(records: &[WholeRecord]) -> (ByRow, ByRow) {
        let geometry = geometry();
        let newest = Newest::of(&geometry, records);
        let base = geometry.member_offset(STRIPE);
        let by_row = |parts: &[Part<'_>]| {
            let rows = |part: &Part<'_>| {
                let chunk = members().iter().position(|slot| *slot == part.slot).unwrap();
                let (first, byte) = ((part.offset - base) / ROW, part.contents.map_or(0, |bytes| bytes[0]));
                (0..part.bytes / ROW).map(move |row| (chunk, first + row, byte))
            };
            let mut all: ByRow = parts.iter().flat_map(rows).collect();
            all.sort_unstable();
            all
        };
        (by_row(&newest.writes), by_row(&newest.missing))
    }

    #[test]
    fn the_newest_of_every_place_counts() {
        let records = [
            record(1, &[(0, 0..2, Data, 1), (3, 0..2, Data, 2)]),
            record(2, &[(0, 1..3, Data, 3), (3, 1..3, Data, 4)]),
            record(3, &[(1, 2..3, Zeroes, 0), (3, 2..3, Zeroes, 0)]),
        ];
        let writes = vec![(0, 0, 1), (0, 1, 3), (0, 2, 3), (1, 2, 0), (3, 0, 2), (3, 1, 4), (3, 2, 0)];
        assert_eq!(found(&records), (writes, vec![]));
    }

    /// Where a record holds a row's missing chunk, parity of that row in other records does not count, older or newer, nor
    /// does data that a later write replaced without logging it.
    #[test]
    fn a_missing_chunk_that_is_known_makes_parity_of_its_rows_old() {
        let records = [
            record(1, &[(0, 0..3, Data, 1), (3, 0..3, Data, 2)]),
            record(2, &[(2, 0..2, Missing, 3), (0, 0..2, Unlogged, 0), (3, 0..2, Unlogged, 0)]),
            record(3, &[(1, 1..3, Data, 4), (3, 1..3, Data, 5)]),
        ];
        let writes = vec![(0, 2, 1), (1, 1, 4), (1, 2, 4), (3, 2, 5)];
        assert_eq!(found(&records), (writes, vec![(2, 0, 3), (2, 1, 3)]));
    }

    /// Rows of partial parity come with the members whose chunks are left out of it: those that the same record names.
    #[test]
    fn partial_parity_names_the_chunks_that_are_not_in_it() {
        let records = [
            record(1, &[(0, 0..3, Unlogged, 0), (3, 0..3, Unlogged, 0), (2, 0..3, Partial, 5)]),
            record(2, &[(1, 1..2, Unlogged, 0), (0, 1..2, Unlogged, 0), (2, 1..2, Partial, 6)]),
            record(3, &[(2, 2..3, Missing, 7), (1, 2..3, Unlogged, 0), (3, 2..3, Unlogged, 0)]),
        ];
        let newest = Newest::of(&geometry(), &records);
        let base = geometry().member_offset(STRIPE);
        let chunks = |partial: &super::Partial<'_>| {
            let chunk = |slot| members().iter().position(|other| other == slot).unwrap();
            let without: Vec<usize> = partial.without.iter().map(chunk).collect();
            ((partial.offset - base) / ROW, partial.contents.len() as u64 / ROW, partial.contents[0], without)
        };
        let partial: Vec<_> = newest.partial.iter().map(chunks).collect();
        assert_eq!(partial, [(0, 1, 5, vec![0, 3]), (1, 1, 6, vec![1, 0])]);
        assert_eq!(found(&records), (vec![], vec![(2, 2, 7)]));
    }

    /// It may have been logged again, as zeroes or as data of a member that is there again.
    #[test]
    fn the_newest_contents_of_a_missing_chunk_count() {
        let missing = record(1, &[(2, 0..3, Missing, 1), (3, 0..3, Unlogged, 0)]);
        let records = [
            missing.clone(),
            record(
                2,
                &[(0, 1..2, Zeroes, 0), (1, 1..2, Zeroes, 0), (2, 1..2, Zeroes, 0), (3, 1..2, Zeroes, 0)],
            ),
            record(3, &[(2, 2..3, Data, 6), (3, 2..3, Data, 7)]),
        ];
        let (writes, contents) = found(&records);
        assert_eq!(contents, [(2, 0, 1), (2, 1, 0), (2, 2, 6)]);
        assert_eq!(writes, [(0, 1, 0), (1, 1, 0)]);
        let before = [record(0, &[(2, 0..1, Data, 9), (3, 0..1, Data, 8)]), missing];
        assert_eq!(found(&before), (vec![], vec![(2, 0, 1), (2, 1, 1), (2, 2, 1)]));
    }
}
