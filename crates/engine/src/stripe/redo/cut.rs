//! What a record holds of a stripe's writes, cut into parts that each fit in one record. Rows are independent of each
//! other, so a stripe may be written a few rows at a time.
//!
//! Where the one missing chunk is written, only its new contents are logged: replay makes parity from them and from the
//! data on the other members, old or new. Where it is not written only parity knows it, and to log the chunk itself the owner would
//! have to read the whole row. Then the record holds partial parity ([`Told::Partial`]): new parity without the chunks that are written.
//! From it and from the other chunks a replay makes the missing one. Where that is not possible, new data and new parity.

use smallvec::SmallVec;
use std::ops::Range;

use super::kept::KeptStripe;

use crate::buffer::{Gather, Slice};
use crate::members::port::MemberWrite;
use layout::redo_log::{PIECES_MAX, PieceKind, RedoPiece};
use layout::units::{MemberOffset, Slot, Stripe};

/// Rows are cut at multiples of this.
const CUT_BYTES: u64 = 4096;
/// Rows are cut at multiples of this where one block has more pieces than a record holds.
const CUT_BYTES_MIN: u64 = 512;

/// The member writes of one stripe, which the caller owns.
#[derive(Clone, Copy)]
pub(in crate::stripe) struct StripeWrites<'a> {
    pub(in crate::stripe) stripe: Stripe,
    /// The writes of working members.
    pub(in crate::stripe) made: &'a [MemberWrite],
    /// The new contents of the missing chunk, where no other member may fail. Empty where one may: then every write in
    /// `made` is logged.
    pub(in crate::stripe) missing: &'a [MemberWrite],
    /// The new contents of all missing chunks, whether or not they are logged as such.
    pub(in crate::stripe) unplaced: &'a [MemberWrite],
    /// The one data chunk of the stripe that is missing, and its parity, where no other member may fail.
    pub(in crate::stripe) alone: Option<Alone>,
}

/// A stripe with single parity of which one data chunk is missing.
#[derive(Clone, Copy, Debug)]
pub(in crate::stripe) struct Alone {
    /// The member that has the chunk.
    pub(in crate::stripe) missing: Slot,
    /// The member that has parity.
    pub(in crate::stripe) parity: Slot,
}

/// What a record holds of rows in which the missing chunk is not written.
pub(super) enum Told<'a> {
    /// The contents of all writes.
    Contents,
    /// Parity without the chunks that were written, or the missing chunk where a record that stands has it.
    Partial(Alone, &'a KeptStripe),
}

/// The entries of a record, each with its contents.
pub(super) type Pieces = SmallVec<[(RedoPiece, Gather); 4]>;

/// Rows of a stripe that fit in one record.
pub(super) struct Part {
    /// Where they are in the members' data areas.
    pub(super) bytes: Range<MemberOffset>,
    pub(super) pieces: Pieces,
    /// The member writes to make once the record is durable.
    pub(super) writes: SmallVec<[MemberWrite; 4]>,
}

/// The writes of one stripe in parts of at most `payload_bytes` and [`PIECES_MAX`] pieces, ascending by rows.
pub(super) fn cut(writes: StripeWrites<'_>, told: &Told<'_>, payload_bytes: usize) -> Vec<Part> {
    let start = writes.made.iter().map(|write| write.offset).min().unwrap_or(MemberOffset::START);
    let end = writes.made.iter().map(end_of).max().unwrap_or(start);
    let start = start.aligned_down(CUT_BYTES);
    let mut parts = Vec::new();
    cut_rows((writes, told), start, end, payload_bytes, &mut parts);
    parts
}

fn cut_rows(
    writes: (StripeWrites<'_>, &Told<'_>),
    start: MemberOffset,
    end: MemberOffset,
    payload_bytes: usize,
    parts: &mut Vec<Part>,
) {
    let part = part(writes, start, end);
    if part.writes.is_empty() {
        return;
    }
    let bytes: usize = part.pieces.iter().map(|(_, contents)| contents.len()).sum();
    if bytes <= payload_bytes && part.pieces.len() <= PIECES_MAX {
        parts.push(part);
        return;
    }
    let unit = if end - start > CUT_BYTES { CUT_BYTES } else { CUT_BYTES_MIN };
    let middle = start + ((end - start) / 2).next_multiple_of(unit);
    assert!(middle < end, "one row of every member fits in a record");
    cut_rows(writes, start, middle, payload_bytes, parts);
    cut_rows(writes, middle, end, payload_bytes, parts);
}

fn part((writes, told): (StripeWrites<'_>, &Told<'_>), start: MemberOffset, end: MemberOffset) -> Part {
    let StripeWrites { stripe, made, missing, unplaced, alone: _ } = writes;
    let mut pieces: Pieces = missing
        .iter()
        .filter_map(|write| within(write, start, end))
        .map(|write| logged(stripe, PieceKind::Missing, write))
        .collect();
    if missing.is_empty() {
        // Only that they were written: the parity in the record tells the contents.
        let beside = unplaced.iter().filter_map(|write| within(write, start, end));
        pieces.extend(beside.map(|write| {
            let bytes = write.data.len() as u64;
            (piece(stripe, write.slot, write.offset, bytes, PieceKind::Unlogged), Gather::new())
        }));
    }
    let writes: SmallVec<[MemberWrite; 4]> =
        made.iter().filter_map(|write| within(write, start, end)).collect();
    if let Told::Partial(alone, kept) = told {
        let beside: SmallVec<[Range<MemberOffset>; 2]> =
            missing.iter().filter_map(|write| within(write, start, end)).map(|write| write.bytes()).collect();
        partial(&mut pieces, (stripe, *alone, kept), &writes, &beside);
        return Part { bytes: start..end, pieces, writes };
    }
    for write in &writes {
        let mut at = write.offset;
        for beside in missing.iter().filter_map(|other| within(write, other.offset, end_of(other))) {
            pieces
                .extend(within(write, at, beside.offset).map(|write| logged(stripe, PieceKind::Data, write)));
            at = end_of(&beside);
            let bytes = beside.data.len() as u64;
            let unlogged = piece(stripe, beside.slot, beside.offset, bytes, PieceKind::Unlogged);
            pieces.push((unlogged, Gather::new()));
        }
        pieces.extend(within(write, at, end_of(write)).map(|write| logged(stripe, PieceKind::Data, write)));
    }
    Part { bytes: start..end, pieces, writes }
}

/// Whether parity is written in all rows in which data is: a full stripe's, or those of an update.
pub(super) fn are_covered(writes: &StripeWrites<'_>, alone: Alone) -> bool {
    let of_parity: Vec<Range<MemberOffset>> =
        writes.made.iter().filter(|write| write.slot == alone.parity).map(MemberWrite::bytes).collect();
    writes.made.iter().all(|write| without(write.bytes(), &of_parity).is_empty())
}

impl Part {
    /// The missing chunk, where the record has its contents.
    pub(super) fn missing(&self) -> SmallVec<[MemberWrite; 1]> {
        let of_missing = self.pieces.iter().filter(|(piece, _)| piece.kind == PieceKind::Missing);
        let write = |(piece, contents): &(RedoPiece, Gather)| MemberWrite {
            slot: piece.member,
            offset: piece.offset,
            data: contents.clone(),
        };
        of_missing.map(write).collect()
    }
}

/// Adds what is told of the rows of these writes but for those of `beside`, in which the missing chunk is written.
fn partial(
    pieces: &mut Pieces,
    (stripe, alone, kept): (Stripe, Alone, &KeptStripe),
    writes: &[MemberWrite],
    beside: &[Range<MemberOffset>],
) {
    let unlogged = |slot, at, bytes| (piece(stripe, slot, at, bytes, PieceKind::Unlogged), Gather::new());
    pieces.extend(writes.iter().map(|write| unlogged(write.slot, write.offset, write.data.len() as u64)));
    let (parity, data): (Vec<&MemberWrite>, Vec<&MemberWrite>) =
        writes.iter().partition(|write| write.slot == alone.parity);
    for parity in parity {
        for rows in without(parity.bytes(), beside) {
            for (at, contents) in kept.missing_in(&rows) {
                let bytes = contents.len() as u64;
                let missing = piece(stripe, alone.missing, at, bytes, PieceKind::Missing);
                pieces.push((missing, Gather::from(contents)));
            }
            for rows in kept.rows_without_missing(&rows) {
                let own = within(parity, rows.start, rows.end).expect("rows of it");
                let mut sum = vec![0; own.data.len()];
                own.data.copy_to(&mut sum);
                let mut leave_out = |at: MemberOffset, bytes: &[u8]| {
                    let from = (at - rows.start) as usize;
                    sum[from..from + bytes.len()].iter_mut().zip(bytes).for_each(|(sum, byte)| *sum ^= byte);
                };
                for write in data.iter().filter_map(|write| within(write, rows.start, rows.end)) {
                    let mut at = write.offset;
                    for slice in write.data.slices() {
                        leave_out(at, slice.bytes());
                        at += slice.len() as u64;
                    }
                }
                for slot in kept.members() {
                    let now: Vec<Range<MemberOffset>> =
                        data.iter().filter(|write| write.slot == slot).map(|write| write.bytes()).collect();
                    for rows in without(rows.clone(), &now) {
                        for (at, bytes) in kept.data_in(slot, &rows) {
                            leave_out(at, bytes);
                            pieces.push(unlogged(slot, at, bytes.len() as u64));
                        }
                    }
                }
                let partial = piece(stripe, alone.missing, rows.start, sum.len() as u64, PieceKind::Partial);
                pieces.push((partial, Gather::from(Slice::from_bytes(&sum))));
            }
        }
    }
}

/// What is left of some rows without others.
fn without(rows: Range<MemberOffset>, others: &[Range<MemberOffset>]) -> SmallVec<[Range<MemberOffset>; 2]> {
    let mut left: SmallVec<[Range<MemberOffset>; 2]> = SmallVec::from_iter([rows]);
    for other in others {
        let parts = left.into_iter().flat_map(|rows| {
            let (before, behind) =
                (rows.start..rows.end.min(other.start), rows.start.max(other.end)..rows.end);
            [before, behind]
        });
        left = parts.filter(|rows| rows.start < rows.end).collect();
    }
    left
}

fn logged(stripe: Stripe, kind: PieceKind, write: MemberWrite) -> (RedoPiece, Gather) {
    (piece(stripe, write.slot, write.offset, write.data.len() as u64, kind), write.data)
}

/// The part of a write from `start` to `end` in the members' data areas.
fn within(write: &MemberWrite, start: MemberOffset, end: MemberOffset) -> Option<MemberWrite> {
    let (from, to) = (write.offset.max(start), end_of(write).min(end));
    let part = |bytes: u64| usize::try_from(bytes).expect("a part of a write");
    (from < to).then(|| MemberWrite {
        slot: write.slot,
        offset: from,
        data: write.data.part(part(from - write.offset), part(to - from)),
    })
}

fn end_of(write: &MemberWrite) -> MemberOffset {
    write.bytes().end
}

pub(super) fn piece(
    stripe: Stripe,
    member: Slot,
    offset: MemberOffset,
    bytes: u64,
    kind: PieceKind,
) -> RedoPiece {
    RedoPiece { stripe, member, offset, bytes, kind }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::buffer::Slice;
    use std::collections::{BTreeMap, BTreeSet};

    fn write(slot: Slot, offset: MemberOffset, bytes: usize) -> MemberWrite {
        let contents: Vec<u8> =
            (0..bytes).map(|i| ((offset.get() as usize + i) / 512 + slot.index()) as u8).collect();
        MemberWrite { slot, offset, data: Gather::from(Slice::from_bytes(&contents)) }
    }

    /// What is at each byte of each member.
    type Painted = BTreeMap<(Slot, MemberOffset), Option<u8>>;

    fn paint(map: &mut Painted, slot: Slot, offset: MemberOffset, data: &Gather, bytes: u64) {
        let mut contents = vec![0; data.len()];
        data.copy_to(&mut contents);
        for at in 0..bytes {
            let byte = contents.get(at as usize).copied();
            assert_eq!(map.insert((slot, offset + at), byte), None, "once");
        }
    }

    fn paint_writes(map: &mut Painted, writes: &[MemberWrite]) {
        writes.iter().for_each(|w| paint(map, w.slot, w.offset, &w.data, w.data.len() as u64));
    }

    /// Paints parts and whole; every part fits; no row is in two parts; what is logged is as it should be. Returns how many
    /// parts there are, and how many bytes are logged.
    fn check(made: &[MemberWrite], missing: &[MemberWrite], payload: usize) -> (usize, usize) {
        let (mut whole, mut parts, mut logs) = (Painted::new(), Painted::new(), Painted::new());
        let mut out = Painted::new();
        paint_writes(&mut whole, made);
        paint_writes(&mut out, missing);
        let writes = StripeWrites { stripe: Stripe::new(7), made, missing, unplaced: missing, alone: None };
        let cut = cut(writes, &Told::Contents, payload);
        let (mut below, mut logged) = (MemberOffset::START, 0);
        for part in &cut {
            let bytes: usize = part.pieces.iter().map(|(_, data)| data.len()).sum();
            logged += bytes;
            assert!(bytes <= payload && part.pieces.len() <= PIECES_MAX);
            assert!(
                part.writes.iter().all(|write| write.offset >= below),
                "rows ascend and are in one part each"
            );
            below = part.writes.iter().map(end_of).max().unwrap();
            paint_writes(&mut parts, &part.writes);
            for (piece, data) in &part.pieces {
                assert_eq!(data.len() as u64, piece.payload_bytes());
                paint(&mut logs, piece.member, piece.offset, data, piece.bytes);
            }
        }
        assert_eq!(whole, parts);
        let beside: BTreeSet<MemberOffset> = out.keys().map(|(_, at)| *at).collect();
        for (place, byte) in whole {
            let is_logged = !beside.contains(&place.1);
            assert_eq!(logs.remove(&place), Some(byte.filter(|_| is_logged)), "{place:?}");
        }
        assert_eq!(logs, out, "all of the missing chunk is logged, and nothing else");
        (cut.len(), logged)
    }

    #[test]
    fn table_of_cuts() {
        let base = MemberOffset::new(7 << 16);
        let small = [write(Slot::new(1), base + 4096, 4096), write(Slot::new(3), base + 4096, 4096)];
        assert_eq!(check(&small, &[], 60 << 10), (1, 8192));
        let uneven = [
            write(Slot::new(0), base + 512, 1024),
            write(Slot::new(4), base + 3584, 5120),
            write(Slot::new(2), base + 512, 8192),
        ];
        assert_eq!(check(&uneven, &[], 60 << 10).0, 1);
        let full: Vec<MemberWrite> = Slot::first(5).map(|slot| write(slot, base, 64 << 10)).collect();
        assert_eq!(check(&full, &[], 60 << 10), (8, 5 << 16));
        let wide: Vec<MemberWrite> = Slot::first(120).map(|slot| write(slot, base, 8192)).collect();
        assert_eq!(check(&wide, &[], 508 << 10).0, 2);
        // many small runs in one block: more pieces than a record holds
        let runs = Slot::first(100).flat_map(|slot| [write(slot, base, 512), write(slot, base + 1024, 2048)]);
        assert!(check(&runs.collect::<Vec<_>>(), &[], 508 << 10).0 > 1);
        assert_eq!(check(&[], &[], 60 << 10), (0, 0));
    }

    #[test]
    fn beside_a_missing_chunk_only_that_is_logged() {
        let base = MemberOffset::new(7 << 16);
        let full: Vec<MemberWrite> = Slot::first(5).map(|slot| write(slot, base, 64 << 10)).collect();
        let missing = [write(Slot::new(5), base, 64 << 10)];
        assert_eq!(check(&full, &missing, 508 << 10), (1, 64 << 10));
        assert_eq!(check(&full, &missing, 60 << 10), (2, 64 << 10));
        // in some of the rows, twice, in the middle of a block
        let some = [write(Slot::new(5), base + 4096, 512), write(Slot::new(5), base + 8704, 4096)];
        assert_eq!(check(&full, &some, 508 << 10), (1, 5 * (64 << 10) - 4 * (4096 + 512)));
        assert!(check(&full, &some, 60 << 10).0 > 1);
        // only parity is there to write
        assert_eq!(
            check(
                &[write(Slot::new(0), base + 512, 1024)],
                &[write(Slot::new(5), base + 512, 1024)],
                60 << 10
            ),
            (1, 1024)
        );
    }
}
