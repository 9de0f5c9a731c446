//! A stripe as records: which block goes to which column and row, parity, and the descriptor of each column. No I/O.

use std::sync::Arc;

use layout::zoned::{
    BlockEntry, BlockName, Carrier, Checksum, ColumnRole, DataOffset, OOB_BYTES, OobBlock, OobPart,
    RecordKind, SegmentHeader, Sequence, StripeDescriptor, ZEROES_CHECKSUM, coded,
};
use smallvec::SmallVec;

use crate::buffer::{Buffer, Gather, Pool, Slice};
use crate::limits::BLOCK_BYTES;

/// A block that goes into a stripe.
#[derive(Clone, Debug)]
pub struct StripeBlock {
    /// What it is, when it was written, and the checksum of its contents.
    pub entry: BlockEntry,
    /// Its contents.
    pub data: Slice,
}

impl StripeBlock {
    /// A block with its checksum.
    pub fn new(name: BlockName, sequence: Sequence, data: Slice) -> Self {
        assert_eq!(data.len(), BLOCK_BYTES, "a block");
        StripeBlock { entry: BlockEntry::of(name, sequence, data.bytes()), data }
    }
}

/// Where and when a stripe is written.
#[derive(Clone, Copy, Debug)]
pub struct StripePlace {
    /// The block of the data region at which it begins; where the drive chooses places, the start of its group.
    pub offset: DataOffset,
    /// Its id in the group, where the drive chooses places.
    pub id: Option<u16>,
    /// Rows. 0: the rest of a band.
    pub rows: u8,
    /// The random half of the epoch.
    pub epoch: u32,
    /// Of the dispatch.
    pub sequence: Sequence,
    /// Up to this block of the zone all columns were flushed.
    pub durable_block: u32,
}

/// One column's share of a stripe.
#[derive(Clone, Debug, Default)]
pub struct Record {
    /// The descriptor, if there is one, and the blocks.
    pub data: Gather,
    /// 64 bytes for each block, where metadata lies out of band.
    pub metadata: Option<Slice>,
}

/// A stripe's records.
pub struct Encoded {
    /// One for each column.
    pub records: SmallVec<[Record; 8]>,
    /// Its data blocks, row by row.
    pub entries: Vec<BlockEntry>,
    /// Checksums of the descriptor blocks by data index, all of one index first.
    pub descriptors: SmallVec<[u32; 8]>,
}

/// Where a block of a stripe stands: data index and row. Blocks fill a column before the next, so that a long read finds
/// them side by side.
pub fn position(block: usize, rows: u8) -> (u8, u8) {
    let rows = usize::from(rows);
    ((block / rows) as u8, (block % rows) as u8)
}

/// Makes the records of a stripe from at most as many blocks as it has room for; the rest is padding.
pub fn encode(
    headers: &[SegmentHeader],
    place: &StripePlace,
    blocks: &[StripeBlock],
    zeroes: &Slice,
    pool: &Arc<Pool>,
) -> Encoded {
    let stripe = Stripe { headers, place, blocks, zeroes, pool };
    let entries = stripe.entries();
    let (p, q) = stripe.parity();
    let descriptor = StripeDescriptor {
        epoch: place.epoch,
        stripe: place.id.map_or(place.offset.0, u32::from),
        sequence: place.sequence,
        durable_blocks: place.durable_block,
        rows: place.rows,
        entries,
    };
    let mut records = SmallVec::new();
    let width = usize::from(headers[0].shape.plan().columns.data());
    let mut descriptors: SmallVec<[SmallVec<[u32; 4]>; 8]> = smallvec::smallvec![SmallVec::new(); width];
    for header in headers {
        let role = header.shape.role(header.column, place.offset);
        let contents = stripe.contents(role, p.as_ref(), q.as_ref());
        let record = match header.shape.plan().carrier {
            Carrier::Inband => stripe.inband(header, role, &descriptor, contents, &mut descriptors),
            Carrier::Oob => stripe.oob(header, role, &descriptor, contents),
        };
        records.push(record);
    }
    let descriptors = descriptors.into_iter().flatten().collect();
    Encoded { records, entries: descriptor.entries, descriptors }
}

struct Stripe<'a> {
    headers: &'a [SegmentHeader],
    place: &'a StripePlace,
    blocks: &'a [StripeBlock],
    zeroes: &'a Slice,
    pool: &'a Arc<Pool>,
}

impl Stripe<'_> {
    fn data_columns(&self) -> usize {
        self.headers[0].shape.plan().columns.data().into()
    }

    fn block(&self, index: usize, row: usize) -> Option<&StripeBlock> {
        self.blocks.get(index * usize::from(self.place.rows) + row)
    }

    fn slice(&self, index: usize, row: usize) -> Slice {
        match self.block(index, row) {
            Some(block) => block.data.clone(),
            None => self.zeroes.part(0, BLOCK_BYTES),
        }
    }

    fn bytes(&self, index: usize, row: usize) -> &[u8] {
        self.block(index, row).map_or(&self.zeroes.bytes()[..BLOCK_BYTES], |block| block.data.bytes())
    }

    fn entries(&self) -> Vec<BlockEntry> {
        let (rows, width) = (usize::from(self.place.rows), self.data_columns());
        assert!(self.blocks.len() <= rows * width, "{} blocks in {rows} rows", self.blocks.len());
        let padding = BlockEntry::padding(self.place.sequence);
        let at = |at: usize| self.block(at % width, at / width).map_or(padding, |block| block.entry);
        (0..rows * width).map(at).collect()
    }

    /// P and Q, as the level has them.
    fn parity(&self) -> (Option<Slice>, Option<Slice>) {
        let columns = self.headers[0].shape.plan().columns;
        let rows = usize::from(self.place.rows);
        let has = |wanted| (0..columns.width()).any(|column| columns.role(column, 0) == wanted);
        let (with_p, with_q) = (has(ColumnRole::P), has(ColumnRole::Q));
        let take = |wanted: bool| (wanted && rows > 0).then(|| self.pool.take(rows * BLOCK_BYTES));
        let (mut p, mut q) = (take(with_p), take(with_q));
        for row in 0..rows {
            let data: SmallVec<[&[u8]; 16]> =
                (0..self.data_columns()).map(|index| self.bytes(index, row)).collect();
            let part = row * BLOCK_BYTES..(row + 1) * BLOCK_BYTES;
            match (&mut p, &mut q) {
                (Some(p), Some(q)) => {
                    parity::encode_pq(&data, &mut p.bytes_mut()[part.clone()], &mut q.bytes_mut()[part]);
                }
                (Some(p), None) => parity::encode_p(&data, &mut p.bytes_mut()[part]),
                _ => {}
            }
        }
        (p.map(Buffer::freeze), q.map(Buffer::freeze))
    }

    /// The checksum of a block.
    fn sum(&self, index: usize, row: usize) -> u32 {
        self.block(index, row).map_or(ZEROES_CHECKSUM, |block| block.entry.checksum)
    }

    /// The checksum that P of a row must have, from those of its data: over blocks of one length a CRC of a sum is the sum of
    /// the CRCs, and of that of zeroes for each addition. Cheaper than one over P, and a P that is not the sum shows.
    fn sum_of_p(&self, row: usize) -> u32 {
        let data = self.data_columns();
        let sum = (0..data).fold(0, |sum, index| sum ^ self.sum(index, row));
        if data.is_multiple_of(2) { sum ^ ZEROES_CHECKSUM } else { sum }
    }

    /// The blocks of a column, with the checksum of each.
    fn contents(
        &self,
        role: ColumnRole,
        p: Option<&Slice>,
        q: Option<&Slice>,
    ) -> (Gather, SmallVec<[u32; 16]>) {
        let rows = usize::from(self.place.rows);
        match role {
            ColumnRole::Data(index) | ColumnRole::Copy(index) => {
                let index = usize::from(index);
                let slices = (0..rows).map(|row| self.slice(index, row));
                (slices.collect(), (0..rows).map(|row| self.sum(index, row)).collect())
            }
            ColumnRole::P => {
                let Some(p) = p else { return (Gather::new(), SmallVec::new()) };
                (Gather::from(p.clone()), (0..rows).map(|row| self.sum_of_p(row)).collect())
            }
            ColumnRole::Q => {
                let Some(q) = q else { return (Gather::new(), SmallVec::new()) };
                let sums = q.bytes().chunks_exact(BLOCK_BYTES).map(Checksum::of).collect();
                (Gather::from(q.clone()), sums)
            }
        }
    }

    fn inband(
        &self,
        header: &SegmentHeader,
        role: ColumnRole,
        descriptor: &StripeDescriptor,
        (contents, sums): (Gather, SmallVec<[u32; 16]>),
        descriptors: &mut [SmallVec<[u32; 4]>],
    ) -> Record {
        let plan = header.shape.plan();
        let count = plan.carrier.descriptor_blocks(self.place.rows.into(), plan.columns.data());
        let count = count.expect("as many rows as a record has");
        let mut buffer = self.pool.take(count as usize * BLOCK_BYTES);
        let kind = if self.place.rows == 0 { RecordKind::Padding } else { RecordKind::of_role(role) };
        let place = self.place.id.is_none().then_some(self.place.offset.zone_block());
        descriptor.encode_into(header, kind, place, &sums, buffer.bytes_mut());
        if let ColumnRole::Data(index) = role {
            let sums = buffer.bytes().chunks_exact(BLOCK_BYTES).map(Checksum::of);
            descriptors[usize::from(index)] = sums.collect();
        }
        let mut data = Gather::from(buffer.freeze());
        contents.slices().iter().for_each(|slice| data.push(slice.clone()));
        Record { data, metadata: None }
    }

    fn oob(
        &self,
        header: &SegmentHeader,
        role: ColumnRole,
        descriptor: &StripeDescriptor,
        (data, sums): (Gather, SmallVec<[u32; 16]>),
    ) -> Record {
        let rows = usize::from(self.place.rows);
        let mut metadata = self.pool.take(rows * OOB_BYTES);
        for (row, bytes) in metadata.bytes_mut().chunks_exact_mut(OOB_BYTES).enumerate() {
            let entries = descriptor.row(row);
            let part = match role {
                ColumnRole::Data(index) => OobPart::Named {
                    kind: RecordKind::Data,
                    entry: entries[usize::from(index)],
                    durable_blocks: self.place.durable_block,
                },
                role => OobPart::Parity {
                    sequence: self.place.sequence,
                    checksum: sums[row],
                    coded: coded::code(role, entries),
                },
            };
            let stripe = self.place.id.unwrap_or(self.place.offset.0 as u16);
            let block =
                OobBlock { epoch: self.place.epoch, stripe, rows: self.place.rows, row: row as u8, part };
            bytes.copy_from_slice(&block.encode(header));
        }
        Record { data, metadata: Some(metadata.freeze()) }
    }
}
