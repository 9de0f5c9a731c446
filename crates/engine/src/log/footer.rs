//! The footers of a segment: what every block of each column's data region is. No I/O.

use layout::zoned::{
    BlockEntry, BlockName, ColumnRole, DataOffset, Epoch, FooterBlock, FooterEntry, FooterPart,
    SegmentHeader, Sequence, coded,
};

use super::segment::StripeNote;

/// The footer blocks of a column, in order. `notes` are the stripes that count, of which the footer is the authority: what it
/// does not name is void (Z-I6). `length`: blocks of this column's data region that were written.
pub fn footer(header: &SegmentHeader, notes: &[StripeNote], length: u32, epoch: Epoch) -> Vec<Vec<u8>> {
    if length == 0 {
        return Vec::new();
    }
    let mut entries: Vec<FooterEntry> = (0..length).map(|offset| void(header, DataOffset(offset))).collect();
    for note in notes {
        let start = note.starts[usize::from(header.column)];
        let width = usize::from(header.shape.plan().columns.data());
        let descriptor_blocks = note.descriptors.len() / width;
        for block in 0..descriptor_blocks + usize::from(note.rows) {
            let row: Vec<BlockEntry> = match block.checked_sub(descriptor_blocks) {
                None => (0..width).map(|index| descriptor(note, index * descriptor_blocks + block)).collect(),
                Some(row) => note.entries[row * width..(row + 1) * width].to_vec(),
            };
            let offset = DataOffset(start + block as u32);
            let entry = &mut entries[offset.0 as usize];
            *entry = FooterEntry { part: part(header, offset, &row), stripe: note.id };
        }
    }
    let per_block = header.shape.entries_per_footer() as usize;
    let blocks = entries.chunks(per_block).zip(0u32..);
    blocks
        .map(|(entries, index)| {
            let place = Some(DataOffset(length).zone_block() + index);
            let entries = entries.to_vec();
            FooterBlock { epoch, index, data_blocks: length, place, entries }.encode(header)
        })
        .collect()
}

fn descriptor(note: &StripeNote, at: usize) -> BlockEntry {
    let name = BlockName::Descriptor(note.rows.into());
    BlockEntry { name, sequence: Sequence::default(), checksum: note.descriptors[at] }
}

fn void(header: &SegmentHeader, offset: DataOffset) -> FooterEntry {
    let width = usize::from(header.shape.plan().columns.data());
    let row = vec![BlockEntry::padding(Sequence::default()); width];
    FooterEntry { part: part(header, offset, &row), stripe: 0 }
}

fn part(header: &SegmentHeader, offset: DataOffset, row: &[BlockEntry]) -> FooterPart {
    match header.shape.role(header.column, offset) {
        ColumnRole::Data(index) => FooterPart::Named(row[usize::from(index)]),
        role => FooterPart::Coded(coded::code(role, row)),
    }
}
