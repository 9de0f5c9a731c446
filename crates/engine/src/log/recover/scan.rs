//! What the members hold, read before anything is decided: the header of every zone, footers, and the records of segments
//! that have none.

use std::rc::Rc;

use layout::zoned::{
    Carrier, Checksum, DataOffset, ENTRY_BYTES, Epoch, FenceBlock, FooterBlock, HEADER_BLOCKS, OOB_BYTES,
    OobBlock, OobPart, RecordDescriptor, RecordKind, SegmentHeader, Sequence, StripeDescriptor, ZonePlace,
};

use crate::buffer::{Buffer, Pool};
use crate::device::DeviceError;
use crate::executor::join_all;
use crate::limits::BLOCK_BYTES;
use crate::log::segment::StripeKey;
use crate::zone_device::{Zone, ZoneDevice, ZoneOffset, ZoneState};
use std::sync::Arc;

/// Zones of a member whose headers are read at once: a drive of a million zones has half a second's worth of them then.
const HEADERS_AT_ONCE: usize = 128;
/// Blocks of a zone that are read at once.
const WINDOW_BLOCKS: u32 = 256;
/// Blocks behind a fence in which a footer may begin. A start that is cut short leaves one or two there: a fence, and one that was
/// filled up.
const BEHIND_FENCE_BLOCKS: u32 = 64;

/// What block 0 of a zone holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HeaderFound {
    /// A header of this array, member and zone.
    Right(Arc<SegmentHeader>),
    /// Proof that none was written since the zone was reset: its pointer, or zeroes where there is no pointer.
    Absent,
    /// Neither: a header that is damaged, or what something else wrote.
    Unknown,
}

/// One zone of a member.
#[derive(Clone, Debug)]
pub struct ZoneFound {
    /// The member's slot.
    pub slot: usize,
    /// The zone.
    pub zone: u32,
    /// Its state.
    pub state: ZoneState,
    /// The block after the last that may be written: the pointer, or the capacity where there is none.
    pub end_block: u32,
    /// Bytes of that block that were written: pointers count logical blocks.
    pub torn_bytes: u32,
    /// Its header.
    pub header: HeaderFound,
    /// An earlier start ended it right behind its header: what stands behind is of another life, footers too.
    pub is_ended: bool,
}

/// Blocks of a zone that are read to know what it is: the header, and where a fence would stand right behind it.
const FIRST_BLOCKS: u64 = 2;

impl ZoneFound {
    /// Whether the zone counts against the limit of active zones.
    pub fn is_active(&self) -> bool {
        self.state.is_active()
    }

    /// The next block that can be written, once the one at the pointer is filled up.
    pub fn next_block(&self) -> u32 {
        self.end_block + u32::from(self.torn_bytes > 0)
    }
}

/// A record as it was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordFound {
    /// The block of the zone at which it begins.
    pub block: u32,
    /// Its descriptor, which is right.
    pub descriptor: RecordDescriptor,
    /// Whether all of its blocks have the checksums that it names.
    pub is_whole: bool,
    /// What it says of each row, where metadata lies out of band: an entry, or entries coded. The descriptor then names no
    /// entries: those of the whole stripe are made from the parts of its columns.
    pub parts: Vec<[u8; ENTRY_BYTES]>,
}

impl RecordFound {
    /// The block of the data region at which it begins.
    pub fn start(&self) -> DataOffset {
        DataOffset(self.block - HEADER_BLOCKS)
    }

    /// Which stripe of its segment it is of.
    pub fn key(&self, header: &SegmentHeader) -> StripeKey {
        StripeKey::new(&header.shape, self.start(), self.descriptor.stripe.stripe)
    }

    /// Blocks of the record, as far as they were found where metadata lies out of band.
    pub fn blocks(&self, header: &SegmentHeader) -> u32 {
        match header.shape.plan().carrier {
            Carrier::Inband => self.descriptor.record_blocks(header),
            Carrier::Oob => self.parts.len() as u32,
        }
    }
}

/// What a column of a segment holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ColumnFound {
    /// Its footer, if all blocks of one are right.
    pub footer: Option<Vec<FooterBlock>>,
    /// Its records, if they were looked for.
    pub records: Vec<RecordFound>,
    /// Where its zone ends, as in [`ZoneFound`].
    pub end_block: u32,
    /// Blocks that could not be read when records were looked for: there may be more than was found.
    pub unread_blocks: u32,
}

/// Reads the report and the headers of all zones of a member, but those of the superblock log.
///
/// # Errors
/// The member cannot be read.
pub async fn scan_member<D: ZoneDevice>(
    device: &Rc<D>,
    pool: &Arc<Pool>,
    first_zone: u32,
    place: ZonePlace,
    slot: usize,
) -> Result<Vec<ZoneFound>, DeviceError> {
    let zones = device.report(first_zone..device.zoned().zones).await?;
    let mut found = Vec::with_capacity(zones.len());
    for zones in zones.chunks(HEADERS_AT_ONCE) {
        found.extend(found_zones(device, pool, zones, place, slot).await);
    }
    Ok(found)
}

async fn found_zones<D: ZoneDevice>(
    device: &Rc<D>,
    pool: &Arc<Pool>,
    zones: &[Zone],
    place: ZonePlace,
    slot: usize,
) -> Vec<ZoneFound> {
    // Where a pointer says that nothing was written since the reset, there is nothing to read.
    let is_unwritten = |zone: &Zone| zone.pointer_bytes.is_some_and(|pointer| pointer < BLOCK_BYTES as u64);
    let written = zones.iter().filter(|zone| !is_unwritten(zone));
    let reads = written.map(|zone| Box::pin(read_first(device, pool, zone)));
    let mut found = Vec::with_capacity(zones.len());
    let mut reads = join_all(reads).await.into_iter();
    for zone in zones {
        let end_bytes = end_of(zone);
        let read = if is_unwritten(zone) { None } else { reads.next().flatten() };
        let mut first = read.iter().flat_map(|buffer| buffer.bytes().chunks_exact(BLOCK_BYTES));
        let header = match first.next() {
            _ if is_unwritten(zone) => HeaderFound::Absent,
            None => HeaderFound::Unknown,
            Some(block) => header_of(block, ZonePlace { zone: zone.number, ..place }, zone.state),
        };
        let is_ended = match (&header, first.next()) {
            (HeaderFound::Right(header), Some(second)) => {
                fence_epoch(second, header, HEADER_BLOCKS).is_some()
            }
            _ => false,
        };
        let end_block = (end_bytes / BLOCK_BYTES as u64) as u32;
        let torn_bytes = (end_bytes % BLOCK_BYTES as u64) as u32;
        let (zone, state) = (zone.number, zone.state);
        found.push(ZoneFound { slot, zone, state, end_block, torn_bytes, header, is_ended });
    }
    found
}

/// Where a zone ends: its pointer, or its capacity where there is none.
fn end_of(zone: &Zone) -> u64 {
    zone.pointer_bytes.unwrap_or(zone.capacity_bytes)
}

/// Reads the first blocks of a zone as far as it goes, the header alone where only that can be read.
async fn read_first<D: ZoneDevice>(device: &Rc<D>, pool: &Arc<Pool>, zone: &Zone) -> Option<Buffer> {
    let blocks = (end_of(zone) / BLOCK_BYTES as u64).clamp(1, FIRST_BLOCKS) as u32;
    let read = read_blocks(&**device, pool, zone.number, 0, blocks).await;
    match read {
        None if blocks > 1 => read_blocks(&**device, pool, zone.number, 0, 1).await,
        read => read,
    }
}

/// Reads the report and the header of one zone, `place`. None: it cannot be read.
pub async fn scan_zone<D: ZoneDevice>(
    device: &Rc<D>,
    pool: &Arc<Pool>,
    place: ZonePlace,
    slot: usize,
) -> Option<ZoneFound> {
    let report = device.report(place.zone..place.zone + 1).await.ok()?;
    found_zones(device, pool, &report, place, slot).await.pop()
}

fn header_of(bytes: &[u8], place: ZonePlace, state: ZoneState) -> HeaderFound {
    match SegmentHeader::parse(bytes, place) {
        Ok(header) => HeaderFound::Right(Arc::new(header)),
        // Only where no pointer is kept do contents say anything: a reset leaves zeroes there.
        Err(_) if state == ZoneState::NoPointer && bytes.iter().all(|byte| *byte == 0) => HeaderFound::Absent,
        Err(_) => HeaderFound::Unknown,
    }
}

/// Reads the footer of a full column. None: it has none at its place.
pub async fn read_footer<D: ZoneDevice>(
    device: &D,
    pool: &Arc<Pool>,
    zone: &ZoneFound,
    header: &SegmentHeader,
) -> Option<Vec<FooterBlock>> {
    let start = header.shape.footer_start();
    let blocks = header.shape.footer_blocks();
    if zone.end_block < start + blocks || zone.is_ended {
        return None;
    }
    let read = read_blocks(device, pool, zone.zone, start, blocks).await?;
    let parse = |(index, bytes): (u32, &[u8])| FooterBlock::parse(bytes, header, start + index).ok();
    let footer: Vec<_> = (0..).zip(read.bytes().chunks_exact(BLOCK_BYTES)).map_while(parse).collect();
    is_complete(&footer, header).then_some(footer)
}

/// Whether these are all blocks of one footer.
fn is_complete(footer: &[FooterBlock], header: &SegmentHeader) -> bool {
    let Some(first) = footer.first() else { return false };
    let count = header.shape.footer_blocks_of(first.data_blocks) as usize;
    footer.len() == count
        && (0..).zip(footer).all(|(index, block)| {
            block.index == index && block.epoch == first.epoch && block.data_blocks == first.data_blocks
        })
}

/// Reads blocks of a zone. None: not all of them can be read.
pub async fn read_blocks<D: ZoneDevice>(
    device: &D,
    pool: &Arc<Pool>,
    zone: u32,
    block: u32,
    blocks: u32,
) -> Option<Buffer> {
    let at = device.zoned().offset_bytes(zone, u64::from(block) * BLOCK_BYTES as u64);
    let (buffer, result) = device.read(at, pool.take(blocks as usize * BLOCK_BYTES)).await;
    result.is_ok().then_some(buffer)
}

/// Walks a zone from its first record to its end. Every block is looked at: a volatile cache may lose any part of what was
/// not flushed, and what follows it may be there. Where a record is right the walk goes on behind it. Behind a fence nothing counts
/// but the footer of a later start, which found the zone ended and not yet finished.
pub async fn scan_column<D: ZoneDevice>(
    device: &D,
    pool: &Arc<Pool>,
    zone: &ZoneFound,
    header: &SegmentHeader,
) -> ColumnFound {
    let mut found = ColumnFound { end_block: zone.end_block, ..ColumnFound::default() };
    let is_oob = header.shape.plan().carrier == Carrier::Oob;
    let mut window = Window { first: 0, bytes: Vec::new(), metadata: Vec::new(), unread_blocks: 0 };
    let mut footer: Vec<FooterBlock> = Vec::new();
    let mut block = DataOffset(0).zone_block();
    let longest = u32::from(header.shape.plan().record_blocks);
    let mut fenced: Option<(u32, Epoch)> = None;
    while block < zone.end_block {
        let is_beyond = fenced.is_some_and(|(at, _)| block > at + BEHIND_FENCE_BLOCKS);
        if is_beyond && footer.is_empty() {
            break;
        }
        let wanted = longest.min(zone.end_block - block);
        if !window.holds(block, wanted) {
            window.load(device, pool, zone, block, is_oob).await;
        }
        let bytes = window.from(block);
        let record = match is_oob {
            true => oob_record(bytes, window.metadata_from(block), header, block, wanted),
            false => inband_record(bytes, header, block, wanted),
        };
        if let Some((record, blocks)) = record.filter(|_| fenced.is_none()) {
            found.records.push(record);
            block += blocks;
            continue;
        }
        if let Some(epoch) = fence_epoch(&bytes[..BLOCK_BYTES], header, block) {
            found.end_block = found.end_block.min(block);
            fenced = Some((block, epoch));
            footer.clear();
        }
        let part = FooterBlock::parse(&bytes[..BLOCK_BYTES], header, block).ok();
        let is_later = |part: &FooterBlock| fenced.is_none_or(|(_, epoch)| part.epoch.number > epoch.number);
        if let Some(part) = part.filter(is_later) {
            if part.index == 0 {
                footer.clear();
            }
            footer.push(part);
            if is_complete(&footer, header) {
                found.footer = Some(std::mem::take(&mut footer));
                return found;
            }
        }
        block += 1;
    }
    found.unread_blocks = window.unread_blocks;
    found
}

/// The epoch of an earlier start that ended the zone here (Z-I6).
fn fence_epoch(bytes: &[u8], header: &SegmentHeader, block: u32) -> Option<Epoch> {
    let fence = FenceBlock::parse(bytes, header).ok()?;
    (fence.pointers[usize::from(header.column)] == Some(block)).then_some(fence.epoch)
}

/// The record that begins at a block, and how many blocks the walk goes on behind it. `wanted`: blocks up to the end of the zone.
fn inband_record(
    bytes: &[u8],
    header: &SegmentHeader,
    block: u32,
    wanted: u32,
) -> Option<(RecordFound, u32)> {
    let descriptor = RecordDescriptor::parse(bytes, header, block).ok()?;
    let blocks = descriptor.record_blocks(header);
    let is_whole = blocks <= wanted && contents_are_right(bytes, &descriptor, blocks);
    // A footer or a fence of an earlier start may stand where the rest of a torn one would.
    let step = if is_whole { blocks } else { 1 };
    Some((RecordFound { block, descriptor, is_whole, parts: Vec::new() }, step))
}

/// As [`inband_record`], where metadata lies out of band: the metadata of its first block says what a record is.
fn oob_record(
    bytes: &[u8],
    metadata: &[u8],
    header: &SegmentHeader,
    block: u32,
    wanted: u32,
) -> Option<(RecordFound, u32)> {
    let parse = |row: usize| {
        let beside = metadata.get(row * OOB_BYTES..)?.first_chunk::<OOB_BYTES>()?;
        OobBlock::parse(beside, header, block + row as u32).ok()
    };
    let first = parse(0).filter(|first| first.row == 0)?;
    let rows = usize::from(first.rows);
    let (mut parts, mut checksums, mut durable_blocks) = (Vec::new(), Vec::new(), 0);
    let (mut is_whole, mut kind, mut sequence) =
        (rows as u32 <= wanted, RecordKind::Parity, Sequence::default());
    for row in 0..rows.min(wanted as usize) {
        let of_record = |own: &OobBlock| {
            (own.stripe, own.rows, own.epoch, usize::from(own.row))
                == (first.stripe, first.rows, first.epoch, row)
        };
        let Some(own) = parse(row).filter(of_record) else {
            is_whole = false;
            break;
        };
        let checksum = match own.part {
            OobPart::Named { kind: named, entry, durable_blocks: durable } => {
                (kind, durable_blocks) = (named, durable);
                parts.push(entry.to_bytes());
                entry.checksum
            }
            OobPart::Parity { sequence: dispatched, checksum, coded } => {
                sequence = dispatched;
                parts.push(coded.0);
                checksum
            }
        };
        let contents = &bytes[row * BLOCK_BYTES..][..BLOCK_BYTES];
        is_whole &= Checksum::of(contents) == checksum;
        checksums.push(checksum);
    }
    let stripe = StripeDescriptor {
        epoch: first.epoch,
        stripe: if header.shape.is_append() {
            first.stripe.into()
        } else {
            DataOffset::of_zone_block(block)?.0
        },
        sequence,
        durable_blocks,
        rows: first.rows,
        entries: Vec::new(),
    };
    let blocks = parts.len() as u32; // what is torn is looked at again, block by block
    let descriptor = RecordDescriptor { stripe, kind, place: None, checksums };
    Some((RecordFound { block, descriptor, is_whole, parts }, blocks.max(1)))
}

fn contents_are_right(bytes: &[u8], descriptor: &RecordDescriptor, blocks: u32) -> bool {
    let first = blocks as usize - descriptor.checksums.len();
    let contents = bytes.chunks_exact(BLOCK_BYTES).skip(first);
    descriptor.checksums.iter().zip(contents).all(|(sum, block)| Checksum::of(block) == *sum)
}

/// A part of a zone in memory, with its metadata where there is some. What cannot be read is zeroes, which no checksum takes
/// for right.
struct Window {
    first: u32,
    bytes: Vec<u8>,
    metadata: Vec<u8>,
    unread_blocks: u32,
}

impl Window {
    fn holds(&self, block: u32, blocks: u32) -> bool {
        let end = self.first + (self.bytes.len() / BLOCK_BYTES) as u32;
        self.first <= block && block + blocks <= end
    }

    fn from(&self, block: u32) -> &[u8] {
        &self.bytes[(block - self.first) as usize * BLOCK_BYTES..]
    }

    fn metadata_from(&self, block: u32) -> &[u8] {
        &self.metadata[(block - self.first) as usize * OOB_BYTES..]
    }

    async fn load<D: ZoneDevice>(
        &mut self,
        device: &D,
        pool: &Arc<Pool>,
        zone: &ZoneFound,
        block: u32,
        with_metadata: bool,
    ) {
        let most =
            if with_metadata { device.zoned().record_bytes_max / BLOCK_BYTES as u32 } else { WINDOW_BLOCKS };
        let blocks = WINDOW_BLOCKS.min(most).min(zone.end_block - block);
        self.first = block;
        self.bytes = vec![0; blocks as usize * BLOCK_BYTES];
        self.metadata = vec![0; if with_metadata { blocks as usize * OOB_BYTES } else { 0 }];
        let mut done = 0;
        while done < blocks {
            let left = blocks - done;
            let part = match with_metadata {
                true => device.zoned().blocks_at_once(left, device.info().logical_block_bytes),
                false => left,
            };
            if !self.read(device, pool, zone.zone, (block + done, part)).await {
                // One bad block hides no others.
                for index in done..done + part {
                    let is_read = self.read(device, pool, zone.zone, (block + index, 1)).await;
                    self.unread_blocks += u32::from(!is_read);
                }
            }
            done += part;
        }
    }

    async fn read<D: ZoneDevice>(&mut self, device: &D, pool: &Arc<Pool>, zone: u32, at: (u32, u32)) -> bool {
        let (block, blocks) = (at.0, at.1 as usize);
        let index = (block - self.first) as usize;
        let (data, metadata) = match self.metadata.is_empty() {
            true => (read_blocks(device, pool, zone, block, at.1).await, None),
            false => {
                let (data, beside) = (pool.take(blocks * BLOCK_BYTES), Buffer::new(blocks * OOB_BYTES));
                let in_zone = u64::from(block) * BLOCK_BYTES as u64;
                let (data, beside, result) =
                    device.read_metadata(ZoneOffset::new(zone, in_zone), data, beside).await;
                (result.is_ok().then_some(data), Some(beside))
            }
        };
        let Some(data) = data else { return false };
        self.bytes[index * BLOCK_BYTES..][..blocks * BLOCK_BYTES].copy_from_slice(data.bytes());
        if let Some(beside) = metadata {
            self.metadata[index * OOB_BYTES..][..blocks * OOB_BYTES].copy_from_slice(beside.bytes());
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::super::decide_tests::header;
    use super::*;
    use crate::buffer::{Gather, Slice};
    use crate::executor::Executor;
    use crate::log::footer::footer;
    use crate::zone_device::memory::MemoryZones;
    use crate::zone_device::{ZoneAccess, ZonedInfo};
    use layout::geometry::Level;
    use layout::zoned::{Access, BlockEntry, BlockName};

    /// The pointer stood in the middle of a record when the power went: what stands there by now is an earlier start's.
    #[test]
    fn the_walk_goes_on_inside_of_a_torn_record() {
        let header = header(Level::Raid4, 3, Access::Append);
        let contents = [7; BLOCK_BYTES];
        let checksum = Checksum::of(&contents);
        let entry = BlockEntry { name: BlockName::User(1), sequence: Sequence(5), checksum };
        let entries = vec![entry, BlockEntry { checksum: 0, ..entry }];
        let stripe = StripeDescriptor {
            epoch: 77,
            stripe: 0,
            sequence: Sequence(6),
            durable_blocks: 0,
            rows: 1,
            entries,
        };
        let mut bytes = vec![0; 2 * BLOCK_BYTES];
        let (descriptor, rest) = bytes.split_at_mut(BLOCK_BYTES);
        stripe.encode_into(&header, RecordKind::Data, None, &[checksum], descriptor);
        rest.copy_from_slice(&contents);
        let block = DataOffset(0).zone_block();
        let found = |bytes: &[u8], wanted| {
            inband_record(bytes, &header, block, wanted).map(|(record, step)| (record.is_whole, step))
        };
        assert_eq!(found(&bytes, 2), Some((true, 2)));
        assert_eq!(found(&bytes[..BLOCK_BYTES], 1), Some((false, 1)), "the zone ends in it");
        bytes[BLOCK_BYTES] ^= 1;
        assert_eq!(found(&bytes, 2), Some((false, 1)), "its contents are others");
        assert_eq!(found(&bytes[BLOCK_BYTES..], 1), None);
    }

    /// A start may be cut short between a fence and the end of its zone. The next one ends the zone with a footer behind the fence,
    /// which counts; one of an earlier epoch is what a power cut took back, and does not.
    #[test]
    fn a_footer_behind_a_fence_counts_if_it_is_of_a_later_start() {
        let header = SegmentHeader {
            epoch: Epoch { number: 1, random: 77 },
            ..header(Level::Raid4, 3, Access::Sequential)
        };
        let epoch = |number| Epoch { number, random: 80 + number };
        let fence = |block: u32, number| {
            let fence = FenceBlock::all(epoch(number), Sequence(9), &[Some(block), None, None], &[]);
            fence[0].encode(&header)
        };
        // The data region is the blocks up to where the footer stands.
        let footer = |block: u32, number| {
            let length = DataOffset::of_zone_block(block).expect("behind the header").0;
            footer(&header, &[], length, epoch(number)).remove(0)
        };
        let torn = vec![0xff; BLOCK_BYTES];
        let walks: [(&[Vec<u8>], Option<u32>); 7] = [
            (&[fence(1, 2), footer(2, 3)], Some(3)),
            (&[fence(1, 2), footer(2, 2)], None),
            (&[fence(1, 2), footer(2, 1)], None),
            (&[fence(1, 2), fence(2, 3), footer(3, 4)], Some(4)),
            (&[fence(1, 4), fence(2, 5), footer(3, 4)], None),
            (&[fence(1, 2), torn.clone(), footer(3, 3)], Some(3)),
            (&[torn.clone(), footer(2, 1), fence(3, 2)], Some(1)),
        ];
        for (blocks, expected) in walks {
            assert_eq!(walk(&header, blocks), expected);
        }
    }

    /// The epoch of the footer that is found in a zone that holds these blocks behind its header.
    fn walk(header: &SegmentHeader, blocks: &[Vec<u8>]) -> Option<u32> {
        let zone_bytes = 64 * BLOCK_BYTES as u64;
        let zoned = ZonedInfo {
            access: ZoneAccess::Sequential,
            zones: 3,
            zone_bytes,
            capacity_bytes: zone_bytes,
            record_bytes_max: 16 << 12,
            metadata_bytes: 0,
            open_max: None,
            active_max: None,
        };
        let device = MemoryZones::new(zoned, 4096, "member");
        let executor = Executor::new(Box::new(|| {}));
        let bytes: Vec<u8> = [vec![0; BLOCK_BYTES], blocks.concat()].concat();
        let header = header.clone();
        let walk = executor.spawn_with_result(async move {
            let data = Gather::from(Slice::from_bytes(&bytes));
            device.write_at(ZoneOffset::new(2, 0), data, None, true).await.expect("a write");
            device.finish(2).await.expect("a finished zone");
            let zone = ZoneFound {
                slot: 0,
                zone: 2,
                state: ZoneState::Full,
                end_block: 64,
                torn_bytes: 0,
                header: HeaderFound::Right(Arc::new(header.clone())),
                is_ended: false,
            };
            scan_column(&device, &Pool::new(1 << 20), &zone, &header).await.footer
        });
        executor.run_ready(usize::MAX);
        walk.try_take().expect("the walk ends").map(|footer| footer[0].epoch.number)
    }
}
