//! What of a segment counts after a crash: a pure decision over what its columns hold. The same input gives the same
//! decision, so a recovery that a crash cut short is done again.
//!
//! A *stripe* whose right records make all its data counts. If every column that can be read has its record, it stays; else
//! it is to be moved, so that it is redundant again. One with fewer is void, and was never acknowledged as durable: unless
//! records prove that it lies below what all columns had flushed. Then it is lost, and its blocks read as errors, never as
//! an older value (Z-I7).

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use layout::zoned::{
    BlockEntry, BlockName, BlockPlace, ColumnRole, DataOffset, ENTRY_BYTES, FooterEntry, FooterPart,
    RecordKind, SegmentHeader, Sequence, StripeDescriptor, Structure, coded,
};
use smallvec::SmallVec;

use super::scan::ColumnFound;
use crate::log::encode::position;

/// What is known of a segment.
#[derive(Clone, Debug)]
pub struct SegmentFound {
    /// The header of its first column.
    pub header: SegmentHeader,
    /// Each column that could be read.
    pub columns: Vec<Option<ColumnFound>>,
}

/// What becomes of a stripe.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verdict {
    /// Every column that can be read has it.
    Keep,
    /// It can be made, but a column that can be read lacks it.
    Move,
    /// It was durable and cannot be made.
    Lost,
    /// It never counted.
    Void,
}

/// A stripe of a segment without footers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StripeFound {
    /// Where its record begins in each column, as a block of the data region. None: not found there.
    pub starts: SmallVec<[Option<u32>; 8]>,
    /// The columns, as bits, whose start is no place where the record was found, but a free one of its group (see `place_missing`).
    pub guessed: u64,
    /// Its id in the group; 0 where there are no groups.
    pub id: u16,
    /// What its records say alike.
    pub descriptor: StripeDescriptor,
    /// What becomes of it.
    pub verdict: Verdict,
}

/// A block of the log that counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LiveBlock {
    /// What it is.
    pub entry: BlockEntry,
    /// Where.
    pub place: BlockPlace,
}

/// What a segment holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Footers name all of it.
    Sealed(Vec<LiveBlock>),
    /// Its records do.
    Records {
        /// In the order of their places.
        stripes: Vec<StripeFound>,
        /// Blocks of the data region below what was flushed of which no column has a descriptor.
        unknown_blocks: u32,
    },
}

/// Whether columns with these roles make all data of a stripe.
pub fn makes_all(header: &SegmentHeader, roles: impl Iterator<Item = ColumnRole>) -> bool {
    let columns = header.shape.plan().columns;
    let mut data = vec![false; columns.data().into()];
    let mut parity = 0;
    for role in roles {
        match role {
            ColumnRole::Data(index) | ColumnRole::Copy(index) => data[usize::from(index)] = true,
            ColumnRole::P | ColumnRole::Q => parity += 1,
        }
    }
    data.iter().filter(|have| !**have).count() <= parity
}

/// Whether enough columns can be read.
pub fn is_readable(found: &SegmentFound) -> bool {
    let readable = (0u8..).zip(&found.columns).filter(|(_, column)| column.is_some());
    makes_all(&found.header, readable.map(|(column, _)| found.header.shape.role(column, DataOffset(0))))
}

/// Decides what of a segment counts.
pub fn decide(found: &SegmentFound) -> Decision {
    match Footers::of(found) {
        Some(footers) => Decision::Sealed(footers.blocks(0..footers.length)),
        None => records(found),
    }
}

/// The footers of a segment that say what counts of it: of columns without one what the others' coded entries say.
pub struct Footers<'a> {
    found: &'a SegmentFound,
    newest: Vec<bool>,
    /// Blocks of the data region that they tell of.
    pub length: u32,
}

/// The columns whose footer is of the newest epoch: a recovery that never served may have left others (Z-I6).
pub fn newest_footers(found: &SegmentFound) -> Vec<bool> {
    let epoch = |column: &Option<ColumnFound>| Some(column.as_ref()?.footer.as_ref()?.first()?.epoch);
    let newest = found.columns.iter().filter_map(epoch).max_by_key(|epoch| epoch.number);
    found.columns.iter().map(|column| newest.is_some() && epoch(column) == newest).collect()
}

/// The blocks of a zone that footers name on some column, where the engine chose the places: each column has its part of them.
pub fn named_blocks(found: &SegmentFound, newest: &[bool]) -> BTreeSet<u32> {
    let mut named = BTreeSet::new();
    for (column, of) in (0u8..).zip(&found.columns).filter(|(column, _)| newest[usize::from(*column)]) {
        let header = SegmentHeader { column, ..found.header.clone() };
        let entries = of.iter().flat_map(|of| &of.footer).flatten().flat_map(|block| &block.entries);
        let entries = (0u32..).map(DataOffset).zip(entries);
        let names = entries.filter(|(offset, entry)| !is_void(&header, *offset, entry));
        named.extend(names.map(|(offset, _)| offset.zone_block()));
    }
    named
}

impl<'a> Footers<'a> {
    /// None: only records tell what counts.
    pub fn of(found: &'a SegmentFound) -> Option<Self> {
        let newest = newest_footers(found);
        let columns = (0u8..).zip(&newest).filter(|(_, has)| **has);
        let roles = columns.map(|(column, _)| found.header.shape.role(column, DataOffset(0)));
        // Footers are written when what they name is durable. Only records say where an append segment's lost column holds what.
        let is_lacking = found.header.shape.is_append() && newest.contains(&false);
        let is_sealed = makes_all(&found.header, roles) && !is_lacking;
        let with_footer = found.columns.iter().zip(&newest).filter(|(_, has)| **has);
        let first = with_footer.filter_map(|(column, _)| column.as_ref()?.footer.as_ref()?.first());
        let length = first.map(|first| first.data_blocks).max().unwrap_or(0);
        is_sealed.then_some(Footers { found, newest, length })
    }

    /// What they name in a part of the data region.
    pub fn blocks(&self, offsets: Range<u32>) -> Vec<LiveBlock> {
        let (found, newest) = (self.found, &self.newest);
        let (header, shape) = (&found.header, &found.header.shape);
        let width = shape.plan().columns.width();
        let part = |column: u8, offset: u32| -> Option<FooterPart> {
            let footer = found.columns[usize::from(column)].as_ref()?.footer.as_ref()?;
            let at = (offset / shape.entries_per_footer(), offset % shape.entries_per_footer());
            Some(footer.get(at.0 as usize)?.entries.get(at.1 as usize)?.part)
        };
        let with_footer: Vec<u8> = (0..width).filter(|column| newest[usize::from(*column)]).collect();
        let mut live = Vec::new();
        for offset in offsets {
            let mut place = |column: u8, entry: BlockEntry| {
                if !matches!(entry.name, BlockName::Padding | BlockName::Descriptor(_)) {
                    let block = DataOffset(offset).zone_block();
                    live.push(LiveBlock { entry, place: BlockPlace { slot: header.slot, column, block } });
                }
            };
            for &column in &with_footer {
                if let Some(FooterPart::Named(entry)) = part(column, offset) {
                    place(column, entry);
                }
            }
            if with_footer.len() == usize::from(width) {
                continue;
            }
            let parts: Vec<coded::RowPart> = with_footer
                .iter()
                .filter_map(|&column| {
                    let role = shape.role(column, DataOffset(offset));
                    Some(coded::RowPart { role, bytes: part(column, offset)?.bytes() })
                })
                .collect();
            let Ok(row) = coded::recover(Structure::Footer, shape.plan().columns, &parts) else { continue };
            for (index, entry) in (0u8..).zip(row) {
                let column = shape.data_column(index, DataOffset(offset));
                if !newest[usize::from(column)] {
                    place(column, entry);
                }
            }
        }
        live
    }
}

/// What the descriptors of one stripe have in common.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    /// The offset; in append segments the group.
    place: u32,
    id: u32,
    sequence: Sequence,
}

struct Gathered {
    descriptor: StripeDescriptor,
    starts: SmallVec<[Option<u32>; 8]>,
    whole: SmallVec<[bool; 8]>,
    /// What whole records say of their rows, where metadata lies out of band.
    parts: Vec<(u8, Vec<[u8; ENTRY_BYTES]>)>,
}

fn records(found: &SegmentFound) -> Decision {
    let (header, shape) = (&found.header, &found.header.shape);
    let width = found.columns.len();
    let mut stripes: BTreeMap<Key, Gathered> = BTreeMap::new();
    let mut durable = DataOffset(0).zone_block();
    let mut covered: Vec<(u32, u32)> = Vec::new();
    for (column, records) in found.columns.iter().enumerate() {
        for record in records.iter().flat_map(|column| &column.records) {
            let stripe = &record.descriptor.stripe;
            if stripe.epoch != header.epoch.random {
                continue; // a segment is written in the epoch that opened it only
            }
            let offset = DataOffset::of_zone_block(record.block).expect("records lie behind the header");
            durable = durable.max(stripe.durable_blocks);
            covered.push((record.block, record.block + record.descriptor.record_blocks(header)));
            if record.descriptor.kind == RecordKind::Padding {
                continue;
            }
            // An append behind one that moved the pointer by a part of its length: no table of places can name it (Z-I14), so the
            // stripe was never acknowledged, and on this column it is as good as missing.
            let record_blocks = u32::from(shape.plan().record_blocks);
            if shape.is_append() && !offset.0.is_multiple_of(record_blocks) {
                continue;
            }
            let place = if shape.is_append() { shape.group_of(offset) } else { offset.0 };
            // Out of band, records of data do not name the dispatch; a place is written once in a segment's life.
            let sequence = if record.parts.is_empty() { stripe.sequence } else { Sequence::default() };
            let key = Key { place, id: stripe.stripe, sequence };
            let gathered = stripes.entry(key).or_insert_with(|| Gathered {
                descriptor: stripe.clone(),
                starts: smallvec::smallvec![None; width],
                whole: smallvec::smallvec![false; width],
                parts: Vec::new(),
            });
            if gathered.descriptor.entries == stripe.entries && gathered.starts[column].is_none() {
                gathered.starts[column] = Some(offset.0);
                gathered.whole[column] = record.is_whole;
                if record.is_whole && !record.parts.is_empty() {
                    gathered.parts.push((column as u8, record.parts.clone()));
                }
            }
        }
    }
    if shape.is_append() {
        drop_strays(&mut stripes);
    }
    let mut stripes: Vec<_> =
        stripes.into_iter().map(|(key, gathered)| judge(found, &key, gathered, durable)).collect();
    if shape.is_append() {
        place_missing(&found.header, &mut stripes);
    }
    Decision::Records { stripes, unknown_blocks: uncovered(covered, durable) }
}

/// An id is given once in a group. Where two stripes have it, the drive wrote nothing of an append that it acknowledged, and the
/// records behind it stand one place early, those of the next group in this one. They count as missing on that column: else the
/// group would have no place left for what was lost (Z-I14).
fn drop_strays(stripes: &mut BTreeMap<Key, Gathered>) {
    let mut most: BTreeMap<(u32, u32), (usize, Sequence)> = BTreeMap::new();
    let columns = |gathered: &Gathered| gathered.starts.iter().flatten().count();
    for (key, gathered) in &*stripes {
        let best = most.entry((key.place, key.id)).or_insert((columns(gathered), key.sequence));
        if columns(gathered) > best.0 {
            *best = (columns(gathered), key.sequence);
        }
    }
    stripes.retain(|key, _| most[&(key.place, key.id)].1 == key.sequence);
}

fn judge(found: &SegmentFound, key: &Key, gathered: Gathered, durable: u32) -> StripeFound {
    let (header, shape) = (&found.header, &found.header.shape);
    let Gathered { mut descriptor, starts, whole, parts } = gathered;
    let rows = descriptor.rows;
    let band = if shape.is_append() { key.place * shape.group_blocks() } else { key.place };
    let roles = (0u8..).zip(&whole).filter(|(_, whole)| **whole);
    let is_made = makes_all(header, roles.map(|(column, _)| shape.role(column, DataOffset(band))));
    let is_made =
        is_made && (parts.is_empty() || fill_entries(header, DataOffset(band), &parts, &mut descriptor));
    let is_everywhere = found.columns.iter().zip(&whole).all(|(column, whole)| column.is_none() || *whole);
    let end = match shape.is_append() {
        true => band + shape.group_blocks(),
        false => {
            band + shape.plan().carrier.record_blocks(rows.into(), shape.plan().columns.data()).unwrap_or(0)
        }
    };
    let named = named_by_footers(found, key, &starts);
    let was_durable = DataOffset(end).zone_block() <= durable || named == Some(true);
    let verdict = match (is_made, is_everywhere) {
        // Z-I6: an earlier recovery has decided so, with other records at hand.
        _ if named == Some(false) => Verdict::Void,
        (true, true) => Verdict::Keep,
        (true, false) => Verdict::Move,
        (false, _) if was_durable => Verdict::Lost,
        (false, _) => Verdict::Void,
    };
    StripeFound { starts, guessed: 0, id: key.id as u16, descriptor, verdict }
}

/// Whether footers of too few columns to tell everything name a stripe. They are written when all that they name is durable,
/// so one that names it proves that it was. None: there are none, or they do not reach so far.
fn named_by_footers(found: &SegmentFound, key: &Key, starts: &[Option<u32>]) -> Option<bool> {
    let newest = newest_footers(found);
    let shape = &found.header.shape;
    let mut named = None;
    for (column, of) in (0u8..).zip(&found.columns).filter(|(column, _)| newest[usize::from(*column)]) {
        let header = SegmentHeader { column, ..found.header.clone() };
        let footer = of.iter().flat_map(|of| &of.footer).flatten().flat_map(|block| &block.entries);
        let entries: Vec<&FooterEntry> = footer.collect();
        let start = match shape.is_append() {
            false => Some(key.place),
            true => starts[usize::from(column)],
        };
        let Some(start) = start else { continue };
        let Some(entry) = entries.get(start as usize) else { continue };
        let names = !is_void(&header, DataOffset(start), entry)
            && (!shape.is_append() || u32::from(entry.stripe) == key.id);
        named = Some(named.unwrap_or(false) || names);
    }
    named
}

/// Makes the entries of a stripe from what its columns say out of band. False if they do not go together.
fn fill_entries(
    header: &SegmentHeader,
    band: DataOffset,
    parts: &[(u8, Vec<[u8; ENTRY_BYTES]>)],
    descriptor: &mut StripeDescriptor,
) -> bool {
    for row in 0..usize::from(descriptor.rows) {
        let part = |(column, rows): &(u8, Vec<[u8; ENTRY_BYTES]>)| {
            Some(coded::RowPart { role: header.shape.role(*column, band), bytes: *rows.get(row)? })
        };
        let parts: Vec<coded::RowPart> = parts.iter().filter_map(part).collect();
        let Ok(entries) = coded::recover(Structure::Oob, header.shape.plan().columns, &parts) else {
            return false;
        };
        descriptor.entries.extend(entries);
    }
    true
}

/// The place of a record that a column lacks is not known, where drives choose, and does not matter: it is given a free one
/// of its group, by which the map names what is made from the other columns.
pub fn place_missing(header: &SegmentHeader, stripes: &mut [StripeFound]) {
    let shape = &header.shape;
    let record = u32::from(shape.plan().record_blocks);
    let group_of = |stripe: &StripeFound| {
        stripe.starts.iter().flatten().next().map_or(0, |start| shape.group_of(DataOffset(*start)))
    };
    for column in 0..header.columns.len() {
        let mut taken: BTreeSet<u32> = stripes.iter().filter_map(|stripe| stripe.starts[column]).collect();
        for stripe in stripes.iter_mut().filter(|stripe| stripe.starts[column].is_none()) {
            let first = group_of(stripe) * shape.group_blocks();
            let places = (first..first + shape.group_blocks()).step_by(record as usize);
            let free = places.into_iter().find(|place| !taken.contains(place));
            stripe.starts[column] = free;
            stripe.guessed |= 1 << column;
            taken.extend(free);
        }
    }
}

/// Whether a footer's entry names nothing. Padding of a stripe has the sequence of its dispatch: where metadata lies out of
/// band it may be all of a record, and the other columns' blocks cannot be made without its place.
pub fn is_void(header: &SegmentHeader, offset: DataOffset, entry: &FooterEntry) -> bool {
    let void = BlockEntry::padding(Sequence::default());
    match (header.shape.role(header.column, offset), entry.part) {
        (_, FooterPart::Named(named)) => named == void,
        (role, FooterPart::Coded(sums)) => {
            sums == coded::code(role, &vec![void; header.shape.plan().columns.data().into()])
        }
    }
}

/// Where footers say that the records of an append segment are: column, group, id of the stripe, first block.
pub fn footer_places(found: &SegmentFound) -> Vec<(u8, u32, u16, u32)> {
    let shape = &found.header.shape;
    let mut places = Vec::new();
    for (column, of) in (0u8..).zip(&found.columns) {
        let header = SegmentHeader { column, ..found.header.clone() };
        let entries = of.iter().flat_map(|of| &of.footer).flatten().flat_map(|block| &block.entries);
        for (offset, entry) in (0u32..).zip(entries) {
            let starts = offset.is_multiple_of(shape.plan().record_blocks.into());
            if starts && !is_void(&header, DataOffset(offset), entry) {
                places.push((column, shape.group_of(DataOffset(offset)), entry.stripe, offset));
            }
        }
    }
    places
}

/// Blocks below what was flushed that no descriptor covers.
fn uncovered(mut covered: Vec<(u32, u32)>, durable: u32) -> u32 {
    covered.sort_unstable();
    let (mut at, mut unknown) = (DataOffset(0).zone_block(), 0);
    for (start, end) in covered {
        unknown += start.min(durable).saturating_sub(at);
        at = at.max(end);
    }
    unknown + durable.saturating_sub(at)
}

/// The data blocks of a stripe, with their place in its column if that has it.
pub fn blocks_of(header: &SegmentHeader, stripe: &StripeFound) -> Vec<(BlockEntry, Option<BlockPlace>)> {
    let shape = &header.shape;
    let data = shape.plan().columns.data();
    let descriptor_blocks =
        shape.plan().carrier.descriptor_blocks(stripe.descriptor.rows.into(), data).unwrap_or(0);
    let Some(any) = stripe.starts.iter().flatten().next() else { return Vec::new() };
    if stripe.descriptor.entries.is_empty() {
        return Vec::new(); // out of band, too few records name nothing
    }
    let count = usize::from(data) * usize::from(stripe.descriptor.rows);
    let block = |at: usize| {
        let (index, row) = position(at, stripe.descriptor.rows);
        let entry = stripe.descriptor.entries[usize::from(row) * usize::from(data) + usize::from(index)];
        let column = shape.data_column(index, DataOffset(*any));
        // Where the engine chose, a column's record has its place whether or not it can be read.
        let own = stripe.starts[usize::from(column)].or((!shape.is_append()).then_some(*any));
        let place = own.map(|start| BlockPlace {
            slot: header.slot,
            column,
            block: DataOffset(start).zone_block() + descriptor_blocks + u32::from(row),
        });
        (entry, place)
    };
    (0..count).map(block).filter(|(entry, _)| entry.name != BlockName::Padding).collect()
}
