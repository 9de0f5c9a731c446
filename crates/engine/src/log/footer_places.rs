//! The places of a sealed append segment, from what its columns have: their footers, or the records of all of them where one lost its
//! footer. Of a column that cannot be read no other knows a place; but the others tell together which block is in which stripe of
//! a group. No I/O.

use std::collections::BTreeMap;

use layout::zoned::{
    BlockEntry, BlockName, ColumnRole, DataOffset, FooterEntry, SegmentHeader, Structure, coded,
};

use super::append_table::AppendTable;
use super::places::{LostBlock, Places};
use super::recover::decide::{
    SegmentFound, StripeFound, Verdict, blocks_of, footer_places, makes_all, newest_footers,
};

/// Columns that cannot be read.
fn lost_of(found: &SegmentFound) -> Vec<u8> {
    let lost = (0u8..).zip(&found.columns).filter(|(_, column)| column.is_none());
    lost.map(|(column, _)| column).collect()
}

/// What the footers of a segment tell.
pub struct Footers<'a> {
    found: &'a SegmentFound,
    lost: Vec<u8>,
}

impl<'a> Footers<'a> {
    /// None: a column that can be read has none of the newest epoch, or too few can be read.
    pub fn of(found: &'a SegmentFound) -> Option<Self> {
        let (has_footer, lost) = (newest_footers(found), lost_of(found));
        let is_whole = found.columns.iter().zip(&has_footer).all(|(column, has)| column.is_none() || *has);
        let columns = (0u8..).zip(&has_footer).filter(|(_, has)| **has);
        let roles = columns.map(|(column, _)| found.header.shape.role(column, DataOffset(0)));
        (is_whole && makes_all(&found.header, roles)).then_some(Footers { found, lost })
    }

    /// The places that they name. The groups of lost columns follow ([`Footers::lost_of_group`]).
    pub fn places(&self) -> Places {
        let table = AppendTable::new(&self.found.header.shape);
        for (column, group, id, start) in footer_places(self.found) {
            // Two records of one place cannot both be right: the first stays.
            _ = table.place(column, group, id, start);
        }
        Places::without(table, &self.lost)
    }

    /// The data blocks that lost columns have of a group, by column.
    pub fn lost_of_group(&self, places: &Places, group: u32) -> Vec<(u8, Vec<LostBlock>)> {
        let shape = &self.found.header.shape;
        let none = |column: &u8| (*column, Vec::new());
        let mut lost: Vec<(u8, Vec<LostBlock>)> = self.lost.iter().map(none).collect();
        if lost.is_empty() {
            return lost;
        }
        for id in 0..shape.plan().group {
            for in_record in 0..shape.plan().record_blocks {
                let row = self.row_of(places, (group, id), in_record);
                for (column, blocks) in &mut lost {
                    let role = shape.role(*column, DataOffset(group * shape.group_blocks()));
                    let ColumnRole::Data(index) = role else { continue };
                    let own = row.get(usize::from(index));
                    blocks.extend(own.and_then(|entry| lost_block(entry, in_record, id)));
                }
            }
        }
        lost
    }

    /// All data entries of a row of a stripe. Empty: its columns do not tell them.
    fn row_of(&self, places: &Places, (group, id): (u32, u16), in_record: u16) -> Vec<BlockEntry> {
        let SegmentHeader { shape, .. } = &self.found.header;
        let band = DataOffset(group * shape.group_blocks());
        let part = |column: u8| {
            let start = places.table.find(column, group, id)?;
            let entry = self.entry(column, start + u32::from(in_record))?;
            Some(coded::RowPart { role: shape.role(column, band), bytes: entry.part.bytes() })
        };
        let parts: Vec<coded::RowPart> = (0..self.found.columns.len() as u8).filter_map(part).collect();
        if parts.is_empty() {
            return Vec::new();
        }
        coded::recover(Structure::Footer, shape.plan().columns, &parts).unwrap_or_default()
    }

    fn entry(&self, column: u8, offset: u32) -> Option<&FooterEntry> {
        let per_block = self.found.header.shape.entries_per_footer();
        let footer = self.found.columns[usize::from(column)].as_ref()?.footer.as_ref()?;
        footer.get((offset / per_block) as usize)?.entries.get((offset % per_block) as usize)
    }
}

fn lost_block(entry: &BlockEntry, in_record: u16, id: u16) -> Option<LostBlock> {
    let is_data = !matches!(entry.name, BlockName::Padding | BlockName::Descriptor(_));
    is_data.then(|| LostBlock { in_record, name: entry.name.to_word(), sequence: entry.sequence, id })
}

/// The places of these stripes, which the records of all columns that can be read tell. None: of too few columns they do.
pub fn places_of_stripes(found: &SegmentFound, stripes: &[StripeFound]) -> Option<Places> {
    let shape = &found.header.shape;
    let there = (0u8..).zip(&found.columns).filter(|(_, column)| column.is_some());
    if !makes_all(&found.header, there.map(|(column, _)| shape.role(column, DataOffset(0)))) {
        return None;
    }
    let lost = lost_of(found);
    let mut places = Places::without(AppendTable::new(shape), &lost);
    let mut blocks: BTreeMap<(u8, u32), Vec<LostBlock>> = BTreeMap::new();
    for stripe in stripes.iter().filter(|stripe| stripe.verdict != Verdict::Void) {
        for (column, start) in (0u8..).zip(&stripe.starts) {
            if let Some(start) = start.filter(|_| stripe.guessed & 1 << column == 0) {
                _ = places.table.place(column, shape.group_of(DataOffset(start)), stripe.id, start);
            }
        }
        for (entry, place) in blocks_of(&found.header, stripe) {
            let Some(place) = place.filter(|place| lost.contains(&place.column)) else { continue };
            let Some(offset) = DataOffset::of_zone_block(place.block) else { continue };
            let (group, in_record) = places.table.in_group(offset.0);
            blocks.entry((place.column, group)).or_default().extend(lost_block(&entry, in_record, stripe.id));
        }
    }
    for column in lost {
        for group in 0..shape.data_blocks() / shape.group_blocks() {
            places.add_group(column, blocks.remove(&(column, group)).unwrap_or_default());
        }
    }
    Some(places)
}
