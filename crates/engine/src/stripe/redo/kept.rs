//! What the records that are not retired told of each stripe: the newest contents of what was written since its members were last
//! flushed. A record of partial parity speaks of chunks that are durable and as they were; so it has to leave out all that was
//! written since, and not only what it writes itself. Otherwise two records whose rows overlap would each count on what the
//! other's write may have left in a cache.
//!
//! It is as large as the log, but for writes of many chunks beside the missing one: with more than [`BYTES_MAX`] a writer retires
//! records first.

use std::borrow::Borrow;
use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::Arc;

use rangemap::RangeMap;

use crate::buffer::Slice;
use crate::members::port::MemberWrite;
use layout::units::{MemberOffset, Slot, Stripe};

/// Most bytes of contents, over all stripes.
const BYTES_MAX: usize = 32 << 20;

/// Contents of some bytes of a member's data area.
#[derive(Clone, Debug)]
struct Contents {
    /// Of the record that tells of them.
    sequence: u64,
    from: MemberOffset,
    bytes: Arc<[u8]>,
}

impl PartialEq for Contents {
    fn eq(&self, other: &Self) -> bool {
        self.sequence == other.sequence && self.from == other.from && Arc::ptr_eq(&self.bytes, &other.bytes)
    }
}

impl Eq for Contents {}

/// What is kept of all stripes.
#[derive(Debug, Default)]
pub(super) struct Kept {
    stripes: HashMap<Stripe, KeptStripe>,
    /// Of all contents that were put in, until their stripe or all of them are dropped.
    bytes: usize,
}

/// What is kept of one stripe.
#[derive(Clone, Debug, Default)]
pub(super) struct KeptStripe {
    /// The missing chunk. In these rows nothing else is kept: it is told of itself.
    missing: RangeMap<MemberOffset, Contents>,
    /// Chunks of members that are there.
    data: BTreeMap<Slot, RangeMap<MemberOffset, Contents>>,
}

impl Kept {
    /// What is kept of a stripe; its owner alone adds to it.
    pub(super) fn of(&self, stripe: Stripe) -> KeptStripe {
        self.stripes.get(&stripe).cloned().unwrap_or_default()
    }

    pub(super) fn has(&self, stripe: Stripe) -> bool {
        self.stripes.contains_key(&stripe)
    }

    pub(super) fn is_full(&self) -> bool {
        self.bytes > BYTES_MAX
    }

    /// Records up to that of this sequence tell of these writes: contents of the missing chunk, and of data of the others.
    pub(super) fn put(
        &mut self,
        stripe: Stripe,
        sequence: u64,
        missing: &[MemberWrite],
        data: impl IntoIterator<Item = impl Borrow<MemberWrite>>,
    ) {
        let kept = self.stripes.entry(stripe).or_default();
        for write in missing {
            let (rows, contents) = (write.bytes(), contents_of(sequence, write));
            kept.data.values_mut().for_each(|data| data.remove(rows.clone()));
            self.bytes += contents.bytes.len();
            kept.missing.insert(rows, contents);
        }
        for write in data {
            let write = write.borrow();
            let told: Vec<Range<MemberOffset>> = kept.missing.gaps(&write.bytes()).collect();
            if told.is_empty() {
                continue;
            }
            let contents = contents_of(sequence, write);
            self.bytes += contents.bytes.len();
            let of_member = kept.data.entry(write.slot).or_default();
            told.into_iter().for_each(|rows| of_member.insert(rows, contents.clone()));
        }
    }

    /// The stripes were made zero, on record.
    pub(super) fn forget(&mut self, stripes: &Range<Stripe>) {
        self.stripes.retain(|stripe, _| !stripes.contains(stripe));
        self.count();
    }

    /// Records below this sequence are retired: what they told is durable.
    pub(super) fn retire(&mut self, below: u64) {
        self.stripes.retain(|_, kept| {
            let KeptStripe { missing, data } = kept;
            data.values_mut().chain([&mut *missing]).for_each(|contents| drop_below(contents, below));
            data.retain(|_, contents| !contents.is_empty());
            !data.is_empty() || !missing.is_empty()
        });
        self.count();
    }

    fn count(&mut self) {
        let all = self.stripes.values().flat_map(|kept| kept.data.values().chain([&kept.missing]));
        self.bytes = all.flat_map(RangeMap::iter).map(|(rows, _)| (rows.end - rows.start) as usize).sum();
    }
}

impl KeptStripe {
    /// Rows of which the missing chunk is kept, with its contents.
    pub(super) fn missing_in(&self, rows: &Range<MemberOffset>) -> Vec<(MemberOffset, Slice)> {
        parts_in(&self.missing, rows).map(|(at, bytes)| (at, Slice::from_bytes(bytes))).collect()
    }

    /// The rest of these rows.
    pub(super) fn rows_without_missing(&self, rows: &Range<MemberOffset>) -> Vec<Range<MemberOffset>> {
        self.missing.gaps(rows).collect()
    }

    /// Members of which something is kept.
    pub(super) fn members(&self) -> impl Iterator<Item = Slot> {
        self.data.keys().copied()
    }

    /// What is kept of a member in some rows.
    pub(super) fn data_in(&self, member: Slot, rows: &Range<MemberOffset>) -> Vec<(MemberOffset, &[u8])> {
        self.data.get(&member).map_or_else(Vec::new, |data| parts_in(data, rows).collect())
    }
}

fn contents_of(sequence: u64, write: &MemberWrite) -> Contents {
    let mut bytes = vec![0; write.data.len()];
    write.data.copy_to(&mut bytes);
    Contents { sequence, from: write.offset, bytes: bytes.into() }
}

fn parts_in<'a>(
    map: &'a RangeMap<MemberOffset, Contents>,
    rows: &Range<MemberOffset>,
) -> impl Iterator<Item = (MemberOffset, &'a [u8])> {
    let rows = rows.clone();
    map.overlapping(rows.clone()).map(move |(own, contents)| {
        let (start, end) = (own.start.max(rows.start), own.end.min(rows.end));
        let at = |place: MemberOffset| (place - contents.from) as usize;
        (start, &contents.bytes[at(start)..at(end)])
    })
}

fn drop_below(map: &mut RangeMap<MemberOffset, Contents>, below: u64) {
    let is_old = |(_, contents): &(&Range<MemberOffset>, &Contents)| contents.sequence < below;
    let old: Vec<Range<MemberOffset>> = map.iter().filter(is_old).map(|(rows, _)| rows.clone()).collect();
    old.into_iter().for_each(|rows| map.remove(rows));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::buffer::Gather;

    const STRIPE: Stripe = Stripe::new(3);
    const ROW: u64 = 512;

    fn write(slot: u32, rows: Range<u64>, byte: u8) -> MemberWrite {
        let data = Gather::from(Slice::from_bytes(&vec![byte; ((rows.end - rows.start) * ROW) as usize]));
        MemberWrite { slot: Slot::new(slot), offset: MemberOffset::new(rows.start * ROW), data }
    }

    fn rows(rows: Range<u64>) -> Range<MemberOffset> {
        MemberOffset::new(rows.start * ROW)..MemberOffset::new(rows.end * ROW)
    }

    /// The first row, how many, and the byte.
    fn words<'a>(parts: impl IntoIterator<Item = (MemberOffset, &'a [u8])>) -> Vec<(u64, u64, u8)> {
        let word = |(at, bytes): (MemberOffset, &[u8])| (at.get() / ROW, bytes.len() as u64 / ROW, bytes[0]);
        parts.into_iter().map(word).collect()
    }

    #[test]
    fn the_newest_counts_until_its_record_is_retired() {
        let mut kept = Kept::default();
        kept.put(STRIPE, 1, &[], [write(1, 0..4, 7)]);
        kept.put(STRIPE, 2, &[], [write(1, 2..3, 8), write(2, 2..3, 9)]);
        let stripe = kept.of(STRIPE);
        assert_eq!(words(stripe.data_in(Slot::new(1), &rows(1..9))), [(1, 1, 7), (2, 1, 8), (3, 1, 7)]);
        assert_eq!(stripe.members().collect::<Vec<_>>(), [1, 2].map(Slot::new));
        kept.retire(2);
        let stripe = kept.of(STRIPE);
        assert_eq!(words(stripe.data_in(Slot::new(1), &rows(0..4))), [(2, 1, 8)], "its own record stands");
        assert_eq!(kept.bytes, 2 * ROW as usize);
        kept.retire(3);
        assert!(!kept.has(STRIPE) && kept.bytes == 0);
    }

    /// Where the missing chunk is told itself nothing else is needed, before or after.
    #[test]
    fn in_rows_of_the_missing_chunk_nothing_else_is_kept() {
        let mut kept = Kept::default();
        kept.put(STRIPE, 1, &[], [write(1, 0..4, 7)]);
        kept.put(STRIPE, 2, &[write(0, 1..3, 5)], [write(2, 0..3, 6)]);
        kept.put(STRIPE, 3, &[], [write(1, 2..4, 8)]);
        let stripe = kept.of(STRIPE);
        let missing = stripe.missing_in(&rows(0..4));
        assert_eq!(words(missing.iter().map(|(at, slice)| (*at, slice.bytes()))), [(1, 2, 5)]);
        assert_eq!(stripe.rows_without_missing(&rows(0..4)), [rows(0..1), rows(3..4)]);
        assert_eq!(words(stripe.data_in(Slot::new(1), &rows(0..4))), [(0, 1, 7), (3, 1, 8)]);
        assert_eq!(words(stripe.data_in(Slot::new(2), &rows(0..4))), [(0, 1, 6)]);
        kept.forget(&(STRIPE..STRIPE.next()));
        assert!(!kept.has(STRIPE));
    }
}
