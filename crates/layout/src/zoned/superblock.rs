//! The superblock of a zoned member. Each member has the whole of it; nothing is spread over parity.

use byte_struct::byte_struct;
use zerocopy::little_endian::{I32, U16, U32, U64};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

use super::block::{BLOCK_BYTES, check_start, seal};
use super::columns::Columns;
use super::error::{Structure, ZonedError};
use super::member::{Member, MembersFault, RawMember, check_members};
use super::sequence::{Epoch, RawEpoch, Sequence};
use super::shape::{Access, Carrier, GROUP_BLOCKS_MAX};

/// Members that a superblock names at most.
pub const MEMBERS_MAX: usize = 64;
/// Epochs that are remembered.
pub const EPOCHS_MAX: usize = 64;
/// The longest name of an array, in bytes.
pub const NAME_BYTES_MAX: usize = 32;
/// The least blocks of a zone: header, footer, and a short record.
pub const ZONE_BLOCKS_MIN: u32 = 4;
/// The least zones of a member: the superblock log's two, and one.
pub const ZONES_MIN: u32 = 3;

/// Name, offset and size of each field, for the check of `docs/formats.md`.
pub const SUPERBLOCK_FIELDS: &[(&str, usize, usize)] = RawSuperblock::FIELDS;

const MAGIC: [u8; 8] = *b"TwZonSb\0";
const WHAT: Structure = Structure::Superblock;
/// Members were added, and segments over fewer of them are still being rewritten: the size that clients see follows.
const INCOMPAT_GROWING: u64 = 1;
/// What a program must know.
const INCOMPAT_KNOWN: u64 = INCOMPAT_GROWING;
/// No feature that a writer must know exists yet.
const RO_COMPAT_KNOWN: u64 = 0;

byte_struct! {
    struct RawSuperblock, 4096 bytes {
        0     8     magic: bytes,
        8     4     version: U32,
        12    4     checksum: U32,
        16    16    set_uuid: bytes,
        32    16    device_uuid: bytes,
        48    32    set_name: bytes,
        80    8     sequence: U64,
        88    8     epoch: RawEpoch,
        96    8     ctime: U64,
        104   8     utime: U64,
        112   4     zone: U32,
        116   4     block: U32,
        120   8     incompat: U64,
        128   8     ro_compat: U64,
        136   8     compat: U64,
        144   4     level: I32,
        148   2     width: U16,
        150   1     parity: u8,
        151   1     carrier: u8,
        152   4     block_bytes: U32,
        156   4     zone_blocks: U32,
        160   4     zone_capacity_blocks: U32,
        164   4     zones: U32,
        168   8     logical_blocks: U64,
        176   8     reserve_blocks: U64,
        184   2     small_blocks: U16,
        186   2     large_blocks: U16,
        188   2     group: U16,
        190   2     band_blocks: U16,
        192   1     open_small: u8,
        193   1     open_large: u8,
        194   2     table_entries: U16,
        196   2     slot: U16,
        198   1     clean: u8,
        199   1     access: u8,
        200   8     checkpoint_segment: U64,
        208   8     checkpoint_sequence: U64,
        216   8     segments_below: U64,
        224   1     map_entry_bytes: u8,
        225   1     map_columns: u8,
        226   6     reserve_a: bytes,
        232   8     served: RawEpoch,
        240   16    reserve_b: bytes,
        256   2560  members: [RawMember; 64],
        2816  512   epochs: [RawEpoch; 64],
        3328  768   reserve: bytes,
    }
}

/// A block of the superblock log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LogPlace {
    /// The zone, 0 or 1.
    pub zone: u32,
    /// The block of the zone.
    pub block: u32,
}

/// How a member is cut into zones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MemberZones {
    /// How they are written.
    pub access: Access,
    /// Blocks from the start of one zone to that of the next.
    pub zone_blocks: u32,
    /// Blocks of a zone that can be written, the least of all zones.
    pub capacity_blocks: u32,
    /// Zones in all.
    pub zones: u32,
}

/// Bytes of an entry of the map.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MapEntryBytes {
    /// A place of 32 bits, the paper's.
    Four = 4,
    /// A place of 40 bits and 24 bits of the block's checksum.
    Eight = 8,
}

/// What was chosen when the array was created.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ArrayPlan {
    /// Level and width of segments when no member is missing.
    pub columns: Columns,
    /// Where the metadata of blocks lies.
    pub carrier: Carrier,
    /// Blocks that clients see. It never changes but by growing.
    pub logical_blocks: u64,
    /// Blocks kept free for reclaim.
    pub reserve_blocks: u64,
    /// Blocks of a small record, its descriptor included (the paper's Cs).
    pub small_blocks: u16,
    /// Blocks of a large record, its descriptor included (the paper's Cl).
    pub large_blocks: u16,
    /// Records of a group of an append segment (the paper's G).
    pub group: u16,
    /// Blocks after which parity moves on; in append segments rounded up to whole groups.
    pub band_blocks: u16,
    /// Open segments for small records (the paper's Ns).
    pub open_small: u8,
    /// Open segments for large records (the paper's Nl).
    pub open_large: u8,
    /// Bytes of an entry of the map.
    pub map_entry: MapEntryBytes,
    /// Columns of a slot of the map: what segments may grow to.
    pub map_columns: u8,
}

impl ArrayPlan {
    /// Whether both may be of one array at different times: growing changes its width, and with that the blocks that clients see
    /// and the lengths of records.
    #[must_use]
    pub fn is_akin_to(&self, other: &ArrayPlan) -> bool {
        let ArrayPlan { columns, logical_blocks, reserve_blocks, small_blocks, large_blocks, .. } = *self;
        let grown = ArrayPlan {
            columns,
            logical_blocks,
            reserve_blocks,
            small_blocks,
            large_blocks,
            ..other.clone()
        };
        *self == grown && columns.level() == other.columns.level()
    }
}

/// Where recovery begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Checkpoint {
    /// The segment that the map's root begins in.
    pub segment: u64,
    /// As of which write the map is.
    pub sequence: Sequence,
}

/// A checked superblock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Superblock {
    /// The array.
    pub set_uuid: [u8; 16],
    /// The member.
    pub device_uuid: [u8; 16],
    /// The array's name, at most [`NAME_BYTES_MAX`] bytes.
    pub set_name: String,
    /// Counts up with every superblock of the array (md's events).
    pub sequence: u64,
    /// The newest epoch that was begun.
    pub epoch: Epoch,
    /// The newest epoch in which a request was served; none before the first.
    pub served: Option<Epoch>,
    /// Creation of the array, in seconds since 1970.
    pub ctime_s: u64,
    /// When this was written, in seconds since 1970.
    pub utime_s: u64,
    /// Members were added, and segments over fewer of them may be there: the array gets its new size when none is.
    pub growing: bool,
    /// Features that a program may ignore that only reads. Kept as they are.
    pub ro_compat: u64,
    /// Features that every program may ignore. Kept as they are.
    pub compat: u64,
    /// What was chosen at creation.
    pub plan: ArrayPlan,
    /// How this member is cut into zones.
    pub zones: MemberZones,
    /// This member's slot.
    pub slot: u16,
    /// Whether the array was stopped after all was written and mapped.
    pub clean: bool,
    /// Where recovery begins; without one, every footer is read.
    pub checkpoint: Option<Checkpoint>,
    /// Segment numbers below this one may be in use.
    pub segments_below: u64,
    /// The members, this one among them; at most [`MEMBERS_MAX`].
    pub members: Vec<Member>,
    /// The last epochs begun, newest first, `epoch` among them; at most [`EPOCHS_MAX`].
    pub epochs: Vec<Epoch>,
}

impl Superblock {
    /// Checks `bytes`, read at `place` of a member.
    ///
    /// # Errors
    /// [`ZonedError`] names the first thing that is wrong.
    pub fn parse(bytes: &[u8], place: LogPlace) -> Result<Superblock, ZonedError> {
        let raw = RawSuperblock::read_from_bytes(check_start(WHAT, bytes, MAGIC)?).expect("a block");
        let unknown = raw.incompat.get() & !INCOMPAT_KNOWN;
        if unknown != 0 {
            return Err(ZonedError::UnknownFeature { bit: unknown.trailing_zeros() });
        }
        WHAT.reserved(&raw.reserve_a, 226)?;
        WHAT.reserved(&raw.reserve_b, 240)?;
        WHAT.reserved(&raw.reserve, 3328)?;
        WHAT.belongs("zone", raw.zone.get(), place.zone)?;
        WHAT.belongs("block", raw.block.get(), place.block)?;
        let bytes = raw.block_bytes.get();
        let is_ours = bytes as usize == BLOCK_BYTES;
        WHAT.require(is_ours, "block_bytes", || format!("{bytes} bytes"), || format!("{BLOCK_BYTES} bytes"))?;
        WHAT.require(raw.clean <= 1, "clean", || raw.clean.to_string(), || "0 or 1".into())?;
        let superblock = Superblock {
            set_uuid: raw.set_uuid,
            device_uuid: raw.device_uuid,
            set_name: name_of(&raw.set_name)?,
            sequence: raw.sequence.get(),
            epoch: Epoch::of_raw(raw.epoch),
            served: Some(Epoch::of_raw(raw.served)).filter(|epoch| *epoch != Epoch::default()),
            ctime_s: raw.ctime.get(),
            utime_s: raw.utime.get(),
            growing: raw.incompat.get() & INCOMPAT_GROWING != 0,
            ro_compat: raw.ro_compat.get(),
            compat: raw.compat.get(),
            plan: plan_of(&raw)?,
            zones: zones_of(&raw)?,
            slot: raw.slot.get(),
            clean: raw.clean == 1,
            checkpoint: checkpoint_of(&raw)?,
            segments_below: raw.segments_below.get(),
            members: members_of(&raw)?,
            epochs: epochs_of(&raw)?,
        };
        superblock.check()?;
        Ok(superblock)
    }

    /// The block to write at `place` of the member.
    ///
    /// # Panics
    /// If a value is out of bounds, so that [`Superblock::parse`] would refuse it.
    #[must_use]
    pub fn encode(&self, place: LogPlace) -> Vec<u8> {
        let mut raw = RawSuperblock::new_zeroed();
        raw.set_uuid = self.set_uuid;
        raw.device_uuid = self.device_uuid;
        raw.set_name[..self.set_name.len()].copy_from_slice(self.set_name.as_bytes());
        raw.sequence.set(self.sequence);
        raw.epoch = self.epoch.to_raw();
        raw.served = self.served.unwrap_or_default().to_raw();
        raw.ctime.set(self.ctime_s);
        raw.utime.set(self.utime_s);
        raw.zone.set(place.zone);
        raw.block.set(place.block);
        raw.incompat.set(if self.growing { INCOMPAT_GROWING } else { 0 });
        raw.ro_compat.set(self.ro_compat);
        raw.compat.set(self.compat);
        raw.block_bytes.set(BLOCK_BYTES as u32);
        set_plan(&mut raw, &self.plan);
        raw.zone_blocks.set(self.zones.zone_blocks);
        raw.zone_capacity_blocks.set(self.zones.capacity_blocks);
        raw.zones.set(self.zones.zones);
        raw.access = self.zones.access as u8;
        raw.table_entries.set(self.members.len() as u16);
        raw.slot.set(self.slot);
        raw.clean = self.clean.into();
        if let Some(checkpoint) = self.checkpoint {
            raw.checkpoint_segment.set(checkpoint.segment);
            raw.checkpoint_sequence.set(checkpoint.sequence.0);
        }
        raw.segments_below.set(self.segments_below);
        raw.members.iter_mut().zip(&self.members).for_each(|(raw, member)| *raw = member.to_raw());
        raw.epochs.iter_mut().zip(&self.epochs).for_each(|(raw, epoch)| *raw = epoch.to_raw());
        let mut block = raw.as_bytes().to_vec();
        seal(&mut block, MAGIC);
        assert_eq!(
            Superblock::parse(&block, place).as_ref(),
            Ok(self),
            "a superblock is read as it was written"
        );
        block
    }

    /// Why the array may be read only, if so: it has features that a writer has to know, by the lowest bit of `ro_compat`.
    #[must_use]
    pub fn read_only_feature(&self) -> Option<u32> {
        match self.ro_compat & !RO_COMPAT_KNOWN {
            0 => None,
            unknown => Some(unknown.trailing_zeros()),
        }
    }

    /// This member's row.
    ///
    /// # Panics
    /// Not for a superblock that was read: its member is in it.
    #[must_use]
    pub fn own_member(&self) -> &Member {
        self.members.iter().find(|member| member.device_uuid == self.device_uuid).expect("own row, checked")
    }

    /// What several fields say together.
    fn check(&self) -> Result<(), ZonedError> {
        check_members(&self.members, self.device_uuid, self.slot).map_err(
            |MembersFault { field, found, expected }| ZonedError::Field {
                structure: WHAT,
                field,
                found,
                expected,
            },
        )?;
        let own = self.epoch;
        let newest = self.epochs.first().copied();
        let found = || newest.map_or("empty".into(), |epoch| format!("{epoch} first"));
        WHAT.require(newest == Some(own), "epochs", found, || format!("{own} first"))?;
        let falls = self.epochs.is_sorted_by(|newer, older| newer.number > older.number);
        WHAT.require(falls, "epochs", || "in another order".into(), || "numbers that fall".into())?;
        let most = || format!("at most {}", Epoch::NUMBER_MAX);
        WHAT.require(own.number <= Epoch::NUMBER_MAX, "epoch", || own.to_string(), most)?;
        let served = self.served.unwrap_or_default();
        let begun = self.served.is_none_or(|served| served.number <= own.number);
        WHAT.require(begun, "served", || served.to_string(), || format!("at most {own}"))?;
        let (capacity, large) = (self.zones.capacity_blocks, self.plan.large_blocks);
        let fits = u32::from(large) + 2 <= capacity;
        let room = || format!("room in a zone of {capacity} blocks");
        WHAT.require(fits, "large_blocks", || format!("{large} blocks"), room)
    }
}

fn name_of(raw: &[u8; NAME_BYTES_MAX]) -> Result<String, ZonedError> {
    let end = raw.iter().position(|byte| *byte == 0).unwrap_or(NAME_BYTES_MAX);
    let name = std::str::from_utf8(&raw[..end]).ok().filter(|name| !name.chars().any(char::is_control));
    let is_name = name.is_some() && raw[end..].iter().all(|byte| *byte == 0);
    let found = || format!("{:?}", String::from_utf8_lossy(raw));
    WHAT.require(is_name, "set_name", found, || "UTF-8 without control characters, then zeroes".into())?;
    Ok(name.unwrap_or_default().to_string())
}

fn plan_of(raw: &RawSuperblock) -> Result<ArrayPlan, ZonedError> {
    let columns = Columns::read(WHAT, raw.level.get(), raw.width.get(), raw.parity)?;
    let carrier = Carrier::read(WHAT, raw.carrier)?;
    let map_entry = match raw.map_entry_bytes {
        4 => Some(MapEntryBytes::Four),
        8 => Some(MapEntryBytes::Eight),
        _ => None,
    };
    let found = || format!("{} bytes", raw.map_entry_bytes);
    let map_entry = WHAT.known(map_entry, "map_entry_bytes", found, || "4 or 8 bytes".into())?;
    let plan = ArrayPlan {
        columns,
        carrier,
        logical_blocks: raw.logical_blocks.get(),
        reserve_blocks: raw.reserve_blocks.get(),
        small_blocks: raw.small_blocks.get(),
        large_blocks: raw.large_blocks.get(),
        group: raw.group.get(),
        band_blocks: raw.band_blocks.get(),
        open_small: raw.open_small,
        open_large: raw.open_large,
        map_entry,
        map_columns: raw.map_columns,
    };
    check_plan(&plan)?;
    Ok(plan)
}

fn check_plan(plan: &ArrayPlan) -> Result<(), ZonedError> {
    let logical = plan.logical_blocks;
    let range = || "1 to 2^50 blocks".into();
    WHAT.require((1..=1 << 50).contains(&logical), "logical_blocks", || format!("{logical} blocks"), range)?;
    let (small, large) = (plan.small_blocks, plan.large_blocks);
    let data = plan.columns.data();
    for (field, blocks) in [("small_blocks", small), ("large_blocks", large)] {
        let whole = plan.carrier.whole_record(blocks.into(), data);
        let expected = || match whole {
            Some(whole) => format!("a record whose blocks are all in use, such as {whole} blocks"),
            None => "room for a descriptor and a row".into(),
        };
        WHAT.require(whole == Some(blocks.into()), field, || format!("{blocks} blocks"), expected)?;
    }
    let order = || format!("at least {small} blocks, a small record");
    WHAT.require(small <= large, "large_blocks", || format!("{large} blocks"), order)?;
    let group = u32::from(plan.group) * u32::from(large);
    let groups = || format!("1 to {} records of {large} blocks", GROUP_BLOCKS_MAX / u32::from(large));
    let is_group = (1..=GROUP_BLOCKS_MAX).contains(&group);
    WHAT.require(is_group, "group", || format!("{} records", plan.group), groups)?;
    let band = plan.band_blocks;
    let at_least = || format!("at least {large} blocks, a large record");
    WHAT.require(band >= large, "band_blocks", || format!("{band} blocks"), at_least)?;
    let open = (plan.open_small, plan.open_large);
    WHAT.require(
        open != (0, 0),
        "open_large",
        || "0 beside open_small of 0".into(),
        || "one to be open".into(),
    )?;
    let (columns, width) = (plan.map_columns, plan.columns.width());
    let at_least = || format!("at least the width {width}");
    WHAT.require(columns >= width, "map_columns", || columns.to_string(), at_least)
}

fn zones_of(raw: &RawSuperblock) -> Result<MemberZones, ZonedError> {
    let access = Access::ALL.into_iter().find(|access| *access as u8 == raw.access);
    let expected = || "1 (append), 2 (sequential) or 3 (placed)".into();
    WHAT.require(access.is_some(), "access", || raw.access.to_string(), expected)?;
    let (distance, capacity) = (raw.zone_blocks.get(), raw.zone_capacity_blocks.get());
    let range = || format!("{ZONE_BLOCKS_MIN} to {distance} blocks, the distance of zones");
    let fits = (ZONE_BLOCKS_MIN..=distance).contains(&capacity);
    WHAT.require(fits, "zone_capacity_blocks", || format!("{capacity} blocks"), range)?;
    let zones = raw.zones.get();
    WHAT.require(zones >= ZONES_MIN, "zones", || zones.to_string(), || format!("at least {ZONES_MIN}"))?;
    let blocks = u64::from(zones) * u64::from(distance);
    let fits = blocks <= i64::MAX as u64 / BLOCK_BYTES as u64;
    let range = || "zones of less than 2^63 bytes together".into();
    WHAT.require(fits, "zones", || format!("{zones} of {distance} blocks"), range)?;
    let access = access.expect("checked");
    Ok(MemberZones { access, zone_blocks: distance, capacity_blocks: capacity, zones })
}

fn checkpoint_of(raw: &RawSuperblock) -> Result<Option<Checkpoint>, ZonedError> {
    let (segment, sequence) = (raw.checkpoint_segment.get(), Sequence(raw.checkpoint_sequence.get()));
    if segment == 0 {
        let is_none = sequence == Sequence(0);
        let found = || sequence.to_string();
        WHAT.require(is_none, "checkpoint_sequence", found, || "0 without a checkpoint".into())?;
        return Ok(None);
    }
    let below = raw.segments_below.get();
    let found = || format!("segment {segment}");
    WHAT.require(segment < below, "checkpoint_segment", found, || format!("below segment {below}"))?;
    Ok(Some(Checkpoint { segment, sequence }))
}

fn members_of(raw: &RawSuperblock) -> Result<Vec<Member>, ZonedError> {
    let count = usize::from(raw.table_entries.get());
    let range = || format!("1 to {MEMBERS_MAX}");
    WHAT.require((1..=MEMBERS_MAX).contains(&count), "table_entries", || count.to_string(), range)?;
    let (used, unused) = raw.members.split_at(count);
    WHAT.reserved(unused.as_bytes(), 256 + used.as_bytes().len())?;
    let member = |(row, raw): (usize, &RawMember)| {
        Member::of_raw(row, raw).map_err(|MembersFault { field, found, expected }| ZonedError::Field {
            structure: WHAT,
            field,
            found,
            expected,
        })
    };
    used.iter().enumerate().map(member).collect()
}

fn epochs_of(raw: &RawSuperblock) -> Result<Vec<Epoch>, ZonedError> {
    let epochs: Vec<Epoch> = raw.epochs.iter().map(|raw| Epoch::of_raw(*raw)).collect();
    let known = epochs.iter().position(|epoch| *epoch == Epoch::default()).unwrap_or(EPOCHS_MAX);
    WHAT.reserved(raw.epochs[known..].as_bytes(), 2816 + known * size_of::<RawEpoch>())?;
    Ok(epochs[..known].to_vec())
}

fn set_plan(raw: &mut RawSuperblock, plan: &ArrayPlan) {
    raw.level.set(plan.columns.level().md_number());
    raw.width.set(plan.columns.width().into());
    raw.parity = plan.columns.parity();
    raw.carrier = plan.carrier as u8;
    raw.logical_blocks.set(plan.logical_blocks);
    raw.reserve_blocks.set(plan.reserve_blocks);
    raw.small_blocks.set(plan.small_blocks);
    raw.large_blocks.set(plan.large_blocks);
    raw.group.set(plan.group);
    raw.band_blocks.set(plan.band_blocks);
    raw.open_small = plan.open_small;
    raw.open_large = plan.open_large;
    raw.map_entry_bytes = plan.map_entry as u8;
    raw.map_columns = plan.map_columns;
}
