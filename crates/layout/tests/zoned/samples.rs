//! Values of every structure of the zoned format, drawn by a seed: all levels, widths, carriers and accesses.

use layout::geometry::Level;
use layout::zoned::coded::{self, CodedEntry};
use layout::zoned::{
    Access, ArrayPlan, BlockEntry, BlockName, BlockPlace, Carrier, Checkpoint, CheckpointBlock, Class,
    ColumnRole, Columns, DataOffset, EmptiedEntry, Epoch, FENCE_RANGES, FenceBlock, FenceRange, FooterBlock,
    FooterEntry, FooterPart, LogPlace, MapEntry, MapEntryBytes, MapShape, Member, MemberState, MemberZones,
    OobBlock, OobPart, ROOT_ENTRIES, RecordKind, RootBlock, RootEntry, SegmentColumn, SegmentHeader,
    SegmentPlan, SegmentShape, Sequence, StripeDescriptor, Superblock, TABLE_ENTRIES, TableBlock, TableEntry,
    Verdict, ZEROES_MAX, ZeroesEntry, ZonePlace,
};

/// A small generator of numbers.
pub struct Dice(pub u64);

impl Dice {
    /// A number below `n`, or 0.
    pub fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let mixed = self.0 ^ (self.0 >> 29);
        ((u128::from(mixed.wrapping_mul(0xbf58_476d_1ce4_e5b9)) * u128::from(n.max(1))) >> 64) as u64
    }

    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u64) as usize]
    }

    /// A number of any size, often 0 or the largest.
    pub fn word(&mut self) -> u64 {
        match self.below(8) {
            0 => 0,
            1 => u64::MAX,
            _ => self.below(u64::MAX),
        }
    }

    fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    fn epoch(&mut self) -> Epoch {
        let number = self.below(u64::from(Epoch::NUMBER_MAX)) as u32 + 1;
        Epoch { number, random: self.word() as u32 }
    }

    fn sequence(&mut self) -> Sequence {
        Sequence(self.word())
    }

    fn uuid(&mut self) -> [u8; 16] {
        std::array::from_fn(|_| self.below(255) as u8 + 1)
    }
}

pub fn columns(dice: &mut Dice) -> Columns {
    loop {
        let level = dice.pick(&[Level::Raid0, Level::Raid4, Level::Raid5, Level::Raid6, Level::Raid10]);
        let most = dice.pick(&[5, 12, 64]);
        if let Some(columns) = Columns::new(level, dice.below(most) as u8 + 1) {
            return columns;
        }
    }
}

pub fn shape(dice: &mut Dice) -> SegmentShape {
    loop {
        let columns = columns(dice);
        let access = dice.pick(&[Access::Append, Access::Sequential, Access::Placed]);
        let carrier = if access == Access::Placed {
            Carrier::Inband
        } else {
            dice.pick(&[Carrier::Oob, Carrier::Inband])
        };
        let blocks = dice.pick(&[1u32, 2, 3, 8, 16, 32, 64, 130, 260]);
        let Some(record) = carrier.whole_record(blocks, columns.data()) else { continue };
        let group = dice.pick(&[1u16, 4, 7, 256]);
        let unit = if access == Access::Append { record * u32::from(group) } else { record };
        let band = unit * (dice.below(5) as u32 + 1);
        let loose = if access == Access::Append { 0 } else { dice.below(record.into()) as u32 };
        let plan = SegmentPlan {
            columns,
            access,
            carrier,
            record_blocks: record as u16,
            group,
            band_blocks: band + loose,
        };
        let capacity = unit * (dice.below(12) as u32 + 2) + dice.below(300) as u32;
        if let Ok(shape) = SegmentShape::new(plan, capacity) {
            return shape;
        }
    }
}

pub fn header(dice: &mut Dice) -> (SegmentHeader, ZonePlace) {
    let shape = shape(dice);
    let width = shape.plan().columns.width();
    let place =
        ZonePlace { set_uuid: dice.uuid(), device_uuid: dice.uuid(), zone: dice.below(1 << 30) as u32 };
    let column = dice.below(width.into()) as u8;
    let generation = dice.below(3) as u32;
    let mut columns: Vec<SegmentColumn> = (0..width)
        .map(|slot| SegmentColumn {
            slot: u16::from(slot) * 3,
            zone: (!dice.one_in(8)).then_some(dice.below(1 << 30) as u32),
        })
        .collect();
    if generation == 0 {
        columns[usize::from(column)].zone = Some(place.zone);
    }
    let header = SegmentHeader {
        segment: dice.below(u64::MAX - 1) + 1,
        tag: dice.word(),
        epoch: dice.epoch(),
        first_sequence: dice.sequence(),
        class: dice.pick(&[Class::Small, Class::Large, Class::Reclaim, Class::Recovery]),
        shape,
        slot: dice.word() as u32,
        column,
        generation,
        columns,
    };
    (header, place)
}

pub fn entry(dice: &mut Dice) -> BlockEntry {
    let sequence = dice.sequence();
    let value = dice.below(BlockName::LBA_MAX + 1);
    let name = match dice.below(12) {
        0 => BlockName::Mapping(value),
        1 => BlockName::Zeroes,
        2 => BlockName::Emptied,
        3 => BlockName::Root(value),
        4 => BlockName::SegmentTable(value),
        5 => BlockName::Fence(value),
        6 => BlockName::Descriptor(value),
        7 => BlockName::Lost(value),
        8 => return BlockEntry::padding(sequence),
        _ => BlockName::User(value),
    };
    BlockEntry { name, sequence, checksum: dice.word() as u32 }
}

/// A record at a block of the zone.
pub struct Record {
    pub stripe: StripeDescriptor,
    pub kind: RecordKind,
    pub place: Option<u32>,
    pub checksums: Vec<u32>,
    pub block: u32,
}

impl Record {
    /// Blocks of its descriptor, at this many data columns.
    pub fn descriptor_blocks(&self, header: &SegmentHeader) -> u32 {
        let data = header.shape.plan().columns.data();
        Carrier::Inband.descriptor_blocks(self.stripe.rows.into(), data).expect("few rows")
    }

    /// The bytes of its descriptor.
    pub fn encode(&self, header: &SegmentHeader) -> Vec<u8> {
        let mut bytes = vec![0xa5; self.descriptor_blocks(header) as usize * 4096];
        self.stripe.encode_into(header, self.kind, self.place, &self.checksums, &mut bytes);
        bytes
    }
}

/// A place in the data region where a record with a row fits, and the most rows that fit there.
fn room(dice: &mut Dice, header: &SegmentHeader) -> (DataOffset, u32) {
    let shape = &header.shape;
    let plan = shape.plan();
    loop {
        let offset = DataOffset(dice.below(shape.data_blocks().into()) as u32);
        let blocks = shape.room_at(offset).min(plan.record_blocks.into());
        let rows = plan.carrier.rows_in(blocks, plan.columns.data());
        if rows > 0 {
            return (offset, rows);
        }
    }
}

/// A record in the zone of a header whose carrier is in band.
pub fn record(dice: &mut Dice, header: &SegmentHeader) -> Record {
    let shape = &header.shape;
    let (offset, most) = room(dice, header);
    let role = shape.role(header.column, offset);
    let kind = dice.pick(&[
        RecordKind::of_role(role),
        RecordKind::of_role(role),
        RecordKind::Fence,
        RecordKind::Padding,
    ]);
    let rows = if dice.one_in(2) { most } else { dice.below(most.into()) as u32 + 1 };
    let rows = if kind == RecordKind::Padding && dice.one_in(2) { 0 } else { rows };
    let width = usize::from(shape.plan().columns.data());
    let entries: Vec<BlockEntry> = (0..rows as usize * width).map(|_| entry(dice)).collect();
    let checksums = (0..rows as usize).map(|row| match role {
        ColumnRole::Data(index) => entries[row * width + usize::from(index)].checksum,
        _ => dice.word() as u32,
    });
    let checksums = checksums.collect();
    let block = offset.zone_block();
    let is_append = shape.is_append();
    let stripe = if is_append { dice.below(shape.group_blocks().into()) as u32 } else { offset.0 };
    let stripe = StripeDescriptor {
        epoch: dice.word() as u32,
        stripe,
        sequence: dice.sequence(),
        durable_blocks: dice.below(block.into()) as u32,
        rows: rows as u8,
        entries,
    };
    let place = (!is_append || dice.one_in(2)).then_some(block);
    Record { stripe, kind, place, checksums, block }
}

/// What stands beside a block of the zone, and the block.
pub fn oob(dice: &mut Dice, header: &SegmentHeader) -> (OobBlock, u32) {
    let shape = &header.shape;
    let (start, most) = room(dice, header);
    let rows = dice.below(most.into()) as u8 + 1;
    let row = dice.below(rows.into()) as u8;
    let role = shape.role(header.column, start);
    let kind = dice.pick(&[
        RecordKind::of_role(role),
        RecordKind::of_role(role),
        RecordKind::Fence,
        RecordKind::Padding,
    ]);
    let part = match kind {
        RecordKind::Parity => OobPart::Parity {
            sequence: dice.sequence(),
            checksum: dice.word() as u32,
            coded: CodedEntry(std::array::from_fn(|_| dice.below(256) as u8)),
        },
        kind => OobPart::Named { kind, entry: entry(dice), durable_blocks: dice.word() as u32 },
    };
    let stripe = match shape.is_append() {
        true => dice.below(shape.group_blocks().into()) as u16,
        false => start.0 as u16,
    };
    let block = OobBlock { epoch: dice.word() as u32, stripe, rows, row, part };
    (block, start.zone_block() + u32::from(row))
}

/// A block of a footer, and where it stands.
pub fn footer(dice: &mut Dice, header: &SegmentHeader) -> (FooterBlock, u32) {
    let shape = &header.shape;
    let data_blocks = match dice.one_in(2) {
        true => shape.data_blocks(),
        false => dice.below(shape.data_blocks().into()) as u32 + 1,
    };
    let blocks = shape.footer_blocks_of(data_blocks);
    let index = dice.below(blocks.into()) as u32;
    let first = index * shape.entries_per_footer();
    let end = data_blocks.min(first + shape.entries_per_footer());
    let width = usize::from(shape.plan().columns.data());
    let entries = (first..end)
        .map(|offset| {
            let row: Vec<BlockEntry> = (0..width).map(|_| entry(dice)).collect();
            let part = match shape.role(header.column, DataOffset(offset)) {
                ColumnRole::Data(index) => FooterPart::Named(row[usize::from(index)]),
                role => FooterPart::Coded(coded::code(role, &row)),
            };
            let stripe = if shape.is_append() { dice.below(shape.group_blocks().into()) as u16 } else { 0 };
            FooterEntry { part, stripe }
        })
        .collect();
    let own = DataOffset(data_blocks).zone_block() + index;
    let is_appended = shape.is_append() && dice.one_in(2);
    let place = (!is_appended).then_some(own);
    let other = DataOffset(data_blocks).zone_block() + dice.below(blocks.into()) as u32;
    let block = FooterBlock { epoch: dice.epoch(), index, data_blocks, place, entries };
    (block, if is_appended { other } else { own })
}

pub fn fence(dice: &mut Dice, header: &SegmentHeader) -> FenceBlock {
    let shape = &header.shape;
    let count = dice.pick(&[0, 1, 7, FENCE_RANGES]);
    let end = shape.footer_start() + shape.footer_blocks();
    let pointers: Vec<Option<u32>> = header
        .columns
        .iter()
        .map(|_| (!dice.one_in(4)).then_some(dice.below(end.into()) as u32 + 1))
        .collect();
    let ranges: Vec<FenceRange> = (0..count)
        .map(|_| {
            let (groups, most) = match shape.is_append() {
                true => (shape.data_blocks() / shape.group_blocks(), shape.group_blocks()),
                false => (1, shape.data_blocks()),
            };
            let first = dice.below(most.into()) as u32;
            FenceRange {
                group: dice.below(groups.into()) as u32,
                first,
                count: dice.below(u64::from(most - first)) as u32 + 1,
                verdict: dice.pick(&[Verdict::Void, Verdict::Lost]),
            }
        })
        .collect();
    FenceBlock::all(dice.epoch(), dice.sequence(), &pointers, &ranges).remove(0)
}

fn plan(dice: &mut Dice) -> ArrayPlan {
    loop {
        let columns = columns(dice);
        let carrier = dice.pick(&[Carrier::Oob, Carrier::Inband]);
        let small = dice.below(8) as u32 + 2;
        let large = small + dice.below(60) as u32;
        let record = |blocks| carrier.whole_record(blocks, columns.data()).map(|blocks| blocks as u16);
        let (Some(small_blocks), Some(large_blocks)) = (record(small), record(large)) else { continue };
        return ArrayPlan {
            columns,
            carrier,
            logical_blocks: dice.below(1 << 40) + 1,
            reserve_blocks: dice.word(),
            small_blocks,
            large_blocks,
            group: dice.pick(&[1, 4, 256]),
            band_blocks: large_blocks + dice.below(1000) as u16,
            open_small: dice.below(4) as u8,
            open_large: dice.below(4) as u8 + 1,
            map_entry: dice.pick(&[MapEntryBytes::Four, MapEntryBytes::Eight]),
            map_columns: columns.width() + dice.below(64) as u8,
        };
    }
}

pub fn superblock(dice: &mut Dice) -> (Superblock, LogPlace) {
    let plan = plan(dice);
    let rows = dice.pick(&[1, 4, 64]);
    let members: Vec<Member> = (0..rows)
        .map(|row| {
            let states =
                [MemberState::InSync, MemberState::Recovering, MemberState::Failed, MemberState::Spare];
            let state = if row == 0 { MemberState::InSync } else { dice.pick(&states) };
            Member {
                device_uuid: dice.uuid(),
                state,
                slot: (state != MemberState::Spare).then_some(row * 5),
                retired_zones: dice.word() as u32,
                events: dice.word(),
                epoch: (!dice.one_in(4)).then_some(dice.epoch()),
            }
        })
        .collect();
    let count = dice.pick(&[1, 3, 64]);
    let first = 1000 + dice.below(1000) as u32;
    let epochs: Vec<Epoch> =
        (0..count).map(|back| Epoch { number: first - back, random: dice.word() as u32 }).collect();
    let own = members[dice.below(u64::from(rows)) as usize];
    let capacity_blocks = u32::from(plan.large_blocks) + 2 + dice.below(10_000) as u32;
    let zone_blocks = capacity_blocks + dice.below(1000) as u32;
    let access = dice.pick(&[Access::Append, Access::Sequential, Access::Placed]);
    let segments_below = dice.below(u64::MAX - 10) + 5;
    let superblock = Superblock {
        set_uuid: dice.uuid(),
        device_uuid: own.device_uuid,
        set_name: dice.pick(&["", "host:array", "ein Name, der in 32 Bytes passt!"]).into(),
        sequence: dice.word(),
        epoch: epochs[0],
        served: dice.pick(&[None, Some(epochs[0]), epochs.last().copied()]),
        ctime_s: dice.word(),
        utime_s: dice.word(),
        growing: dice.one_in(2),
        ro_compat: dice.pick(&[0, 6]),
        compat: dice.word(),
        plan,
        zones: MemberZones { access, zone_blocks, capacity_blocks, zones: dice.below(1 << 20) as u32 + 3 },
        slot: own.slot.unwrap_or(u16::MAX),
        clean: dice.one_in(2),
        checkpoint: dice.one_in(2).then(|| Checkpoint {
            segment: dice.below(segments_below - 1) + 1,
            sequence: Sequence(dice.word()),
        }),
        segments_below,
        members,
        epochs,
    };
    (superblock, LogPlace { zone: dice.below(2) as u32, block: dice.below(1000) as u32 })
}

pub fn map_shape(dice: &mut Dice) -> MapShape {
    let entry = dice.pick(&[MapEntryBytes::Four, MapEntryBytes::Eight]);
    let size = dice.pick(&[1 << 4, 1 << 14, 1 << 20]);
    let capacity = dice.below(size) as u32 + 2;
    MapShape::new(entry, dice.below(128) as u8 + 1, capacity).expect("columns and blocks")
}

/// An entry of the map; its place has a column below `columns` and a block below `capacity`.
pub fn map_entry(dice: &mut Dice, shape: &MapShape, columns: u8, capacity: u32) -> MapEntry {
    match dice.below(8) {
        0 => MapEntry::Zeroes,
        1 => MapEntry::Lost,
        _ => MapEntry::At {
            place: BlockPlace {
                slot: dice.below(shape.slots_max().into()) as u32,
                column: dice.below(columns.into()) as u8,
                block: dice.below(u64::from(capacity - 1)) as u32 + 1,
            },
            checksum: shape.checksum_of(dice.word() as u32),
        },
    }
}

fn checkpoint_block(dice: &mut Dice) -> CheckpointBlock {
    let index = dice.below(1000) as u32;
    let blocks = index + 1 + dice.below(1000) as u32;
    let written = 1 + dice.below(blocks.into()) as u32;
    CheckpointBlock { sequence: Sequence(dice.below(1 << 60)), index, blocks, written }
}

pub fn root(dice: &mut Dice) -> RootBlock {
    let block = checkpoint_block(dice);
    let entries = (0..dice.pick(&[0, 1, ROOT_ENTRIES])).map(|_| RootEntry {
        place: (!dice.one_in(4)).then_some(dice.below(u64::MAX)),
        as_of: Sequence(block.sequence.0 + dice.below(1000)),
    });
    RootBlock { block, entries: entries.collect() }
}

pub fn table(dice: &mut Dice) -> TableBlock {
    let mut segment = dice.below(1000);
    let entries = (0..dice.pick(&[0, 1, TABLE_ENTRIES])).map(|_| {
        segment += dice.below(1000) + 1;
        let (data_blocks, width) = (dice.below(1 << 20) as u32, dice.below(64) as u8 + 1);
        TableEntry {
            segment,
            tag: dice.word(),
            slot: dice.word() as u32,
            data_blocks,
            live_blocks: dice.below(u64::from(data_blocks) * u64::from(width) + 1) as u32,
            width,
            is_mapped: dice.one_in(2),
            is_sealed: dice.one_in(2),
            lists: dice.word() as u16,
        }
    });
    let entries = entries.collect();
    TableBlock { block: checkpoint_block(dice), entries }
}

pub fn zeroes(dice: &mut Dice) -> Vec<ZeroesEntry> {
    let count = dice.pick(&[0, 1, 3, ZEROES_MAX]);
    let entry = |_| ZeroesEntry {
        lba: dice.below(1 << 50),
        blocks: dice.below(u64::from(u32::MAX)) as u32 + 1,
        is_lost: dice.one_in(4),
        sequence: dice.sequence(),
    };
    (0..count).map(entry).collect()
}

pub fn emptied(dice: &mut Dice) -> Vec<EmptiedEntry> {
    let count = dice.pick(&[0, 1, 256]);
    (0..count).map(|_| EmptiedEntry { segment: dice.below(u64::MAX - 1) + 1, tag: dice.word() }).collect()
}
