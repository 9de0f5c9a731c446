//! A start: what the members hold is read, what counts is decided, the map is made, and what a crash left half done is made
//! whole, all before the first request.
//!
//! The order keeps what a second crash would need: what is moved is durable before the footers that no longer name it, what
//! supersedes a segment's blocks before its emptied entry, that before the reset (Z-I4). A segment that a crash left open is
//! sealed rather than written on (docs/decisions/2026-11-25-log-engine.md). Nothing here depends on the order in which things
//! are found, so a recovery that was cut short is done again with the same result.

pub mod decide;
#[cfg(test)]
mod decide_tests;
pub mod found;
mod heal;
mod rebuild;
pub mod scan;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;
use std::sync::Arc;

use layout::units::{DeviceOffset, Slot};
use layout::zoned::{BlockName, EmptiedEntry, Epoch, MapEntry, SegmentHeader, ZeroesEntry, ZonePlace};
use smallvec::SmallVec;

use self::decide::{
    Decision, SegmentFound, StripeFound, Verdict, decide, footer_places, is_readable, named_blocks,
    newest_footers,
};
use self::found::{Judged, Loose, RecoverError, RecoveryReport, live_blocks, read_live};
use self::rebuild::Rebuild;
use self::scan::{ColumnFound, HeaderFound, ZoneFound, read_footer, scan_column, scan_member};
use super::config::{LogConfig, SUPERBLOCK_ZONES};
use super::damage::{Damage, report};
use super::health::LogMembers;
use super::map::Map;
use super::pins::Pins;
use super::port::{LogPlatform, LogPort};
use super::segment::{Segment, SegmentState};
use super::segment_table::SegmentTable;
use super::sequence::Sequences;
use super::shared::LogShared;
use super::space::{SegmentKey, Space};
use super::zeroed::Zeroed;
use super::zone_budget::ZoneBudget;
use crate::buffer::Pool;
use crate::counters::Counters;
use crate::error::VolumeError;
use crate::events::EventSink;
use crate::executor::Executor;
use crate::members::MemberState;
use crate::zone_device::ZoneDevice;

/// What a start is made from: what the superblocks say, and the members.
pub struct Start<D> {
    /// What is fixed.
    pub config: LogConfig,
    /// The device of each slot.
    pub devices: Vec<Option<Rc<D>>>,
    /// The state of each slot: members that are neither in sync nor recovering are neither read nor written.
    pub states: Vec<MemberState>,
    /// The new epoch. It is durable on every member that is present before anything else is written (Z-I16).
    pub epoch: Epoch,
    /// Segment numbers that the superblocks reserve for this epoch, none of them used before.
    pub numbers: std::ops::Range<u64>,
    /// The counters of each shard.
    pub counters: Arc<[Counters]>,
    /// Receives what happens.
    pub events: EventSink,
}

/// Starts an array. On return it can serve, once the superblocks say so.
///
/// # Errors
/// Nothing was changed but where the error says so.
pub async fn recover<D: ZoneDevice>(
    start: Start<D>,
    executor: &Executor,
    pool: &Arc<Pool>,
    platform: &Rc<dyn LogPlatform>,
) -> Result<(Arc<LogShared>, RecoveryReport), RecoverError> {
    Recovery::read(start, executor, pool, platform).await?.write(|_| {}).await
}

/// What a start has read and decided, before it writes anything.
pub struct Recovery<D> {
    port: LogPort<D>,
    segments: BTreeMap<SegmentKey, Judged>,
    loose: Loose,
    report: RecoveryReport,
}

impl<D: ZoneDevice> Recovery<D> {
    /// Reads what the members hold, decides what of it counts, and makes the map.
    ///
    /// # Errors
    /// The array cannot be started. Nothing was written.
    pub async fn read(
        mut start: Start<D>,
        executor: &Executor,
        pool: &Arc<Pool>,
        platform: &Rc<dyn LogPlatform>,
    ) -> Result<Self, RecoverError> {
        let members = start.states.iter().copied().zip(start.config.devices.iter().copied()).collect();
        for state in start.states.iter_mut().filter(|state| **state == MemberState::Recovering) {
            *state = MemberState::InSync; // it has what it has, and lacks what was not found
        }
        let zones = scan_zones(&start, pool).await?;
        let mut segments = gather(&start, pool, &zones).await;
        let events = std::mem::replace(&mut start.events, Box::new(|_| {}));
        let members = LogMembers::new(members, start.config.losses_survived(), events);
        let (shared, loose) = share(&start, members, &zones, &segments);
        let port = LogPort::new(
            Arc::clone(&shared),
            0,
            executor.clone(),
            Arc::clone(pool),
            Rc::clone(platform),
            start.devices.clone(),
        );
        let emptied = emptied_of(&port, &segments).await;
        segments.iter_mut().for_each(|(key, judged)| judged.is_gone |= emptied.contains(key));
        if shared.members.in_sync().len() < shared.config.devices.len() {
            // A member that is away may still hold any of them.
            emptied.iter().for_each(|key| shared.space.resetting(*key));
        }
        name_headers(&port, &segments, &zones);
        check_slots(&shared, &segments)?;
        check_columns(&segments)?;
        let mut report = RecoveryReport { segments: segments.len(), ..RecoveryReport::default() };
        build_map(&port, &segments, &mut report).await?;
        Ok(Recovery { port, segments, loose, report })
    }

    /// Makes whole what a crash left half done. The epoch is durable on every member by now. `keep` is called before the first
    /// write: superblocks have to follow from then on, since segments are opened and members may fail.
    ///
    /// # Errors
    /// A write failed. The next start goes on from what was changed until then.
    pub async fn write(
        self,
        keep: impl FnOnce(&Arc<LogShared>),
    ) -> Result<(Arc<LogShared>, RecoveryReport), RecoverError> {
        let Recovery { port, segments, loose, mut report } = self;
        let shared = Arc::clone(&port.shared);
        let open: Vec<&Judged> = segments.values().collect();
        keep(&shared);
        heal::heal(&port, &open, &loose, &mut report).await?;
        // A column without the footer that others have may lack what they name: its member was away when they were written.
        let lacks = |judged: &&Judged| {
            matches!(judged.decision, Decision::Sealed(_)) && !judged.is_gone && !all_have_footers(judged)
        };
        for judged in segments.values().filter(lacks) {
            let there = shared.table.get(judged.found.header.slot).map(|segment| segment.key());
            let own = (judged.found.header.segment, judged.found.header.tag);
            if there == Some(own) {
                shared.space.mend(own);
            }
        }
        Ok((shared, report))
    }
}

async fn scan_zones<D: ZoneDevice>(
    start: &Start<D>,
    pool: &Arc<Pool>,
) -> Result<Vec<ZoneFound>, RecoverError> {
    let mut zones = Vec::new();
    for (slot, device) in start.devices.iter().enumerate() {
        let (Some(device), MemberState::InSync) = (device, start.states[slot]) else { continue };
        let place =
            ZonePlace { set_uuid: start.config.set_uuid, device_uuid: start.config.devices[slot], zone: 0 };
        let found = scan_member(device, pool, SUPERBLOCK_ZONES, place, slot).await;
        zones.extend(found.map_err(|error| RecoverError::Member { slot, error })?);
    }
    Ok(zones)
}

/// Gathers the columns of each segment, reads their footers, and the records of segments whose footers are not enough.
async fn gather<D: ZoneDevice>(
    start: &Start<D>,
    pool: &Arc<Pool>,
    zones: &[ZoneFound],
) -> BTreeMap<SegmentKey, Judged> {
    let mut columns: BTreeMap<SegmentKey, Vec<(&ZoneFound, &SegmentHeader)>> = BTreeMap::new();
    for zone in zones {
        if let HeaderFound::Right(header) = &zone.header {
            let is_own = header.columns[usize::from(header.column)].slot as usize == zone.slot;
            if is_own {
                columns.entry((header.segment, header.tag)).or_default().push((zone, header));
            }
        }
    }
    let mut segments = BTreeMap::new();
    for (key, columns) in columns {
        let mut of_columns: Vec<Option<ZoneFound>> = vec![None; columns[0].1.columns.len()];
        for (zone, header) in &columns {
            of_columns[usize::from(header.column)] = Some((*zone).clone());
        }
        let devices = |slot: usize| start.devices[slot].clone();
        segments.insert(key, judge(&devices, pool, columns[0].1, of_columns).await);
    }
    segments
}

/// Reads what the columns of a segment hold, their footers and, where those are not enough, their records, and decides what
/// counts. `zones` are those with a header of the segment, by column, each of a member that `devices` has.
pub async fn judge<D: ZoneDevice>(
    devices: &impl Fn(usize) -> Option<Rc<D>>,
    pool: &Arc<Pool>,
    header: &SegmentHeader,
    zones: Vec<Option<ZoneFound>>,
) -> Judged {
    let header = SegmentHeader { column: 0, generation: 0, ..header.clone() };
    let mut found = SegmentFound { columns: vec![None; header.columns.len()], header };
    for (column, zone) in (0u8..).zip(&zones) {
        let Some((zone, device)) = zone.as_ref().and_then(|zone| Some((zone, devices(zone.slot)?))) else {
            continue;
        };
        let header = SegmentHeader { column, ..found.header.clone() };
        let footer = read_footer(&*device, pool, zone, &header).await;
        let held = ColumnFound { footer, end_block: zone.end_block, ..ColumnFound::default() };
        found.columns[usize::from(column)] = Some(held);
    }
    if matches!(decide(&found), Decision::Records { .. }) {
        scan_records(devices, pool, &mut found, &zones).await;
    }
    let is_gone = has_nothing(&found);
    let decision = decide(&found);
    let lacking = match decision {
        Decision::Sealed(_) => lacking_columns(devices, pool, &found, &zones).await,
        Decision::Records { .. } => SmallVec::new(),
    };
    Judged { found, zones, decision, lacking, is_gone }
}

/// Of the columns without a footer of the newest epoch those that have not all records which the footers name. Where drives choose places,
/// all columns have one.
async fn lacking_columns<D: ZoneDevice>(
    devices: &impl Fn(usize) -> Option<Rc<D>>,
    pool: &Arc<Pool>,
    found: &SegmentFound,
    zones: &[Option<ZoneFound>],
) -> SmallVec<[u8; 2]> {
    let newest = newest_footers(found);
    let named = named_blocks(found, &newest);
    let mut lacking = SmallVec::new();
    for (column, zone) in (0u8..).zip(zones).filter(|(column, _)| !newest[usize::from(*column)]) {
        let Some((zone, device)) = zone.as_ref().and_then(|zone| Some((zone, devices(zone.slot)?))) else {
            continue;
        };
        let header = SegmentHeader { column, ..found.header.clone() };
        let records = scan_column(&*device, pool, zone, &header).await.records;
        let whole = records.iter().filter(|record| record.is_whole);
        let held: BTreeSet<u32> =
            whole.flat_map(|record| record.block..record.block + record.blocks(&header)).collect();
        if !named.is_subset(&held) {
            lacking.push(column);
        }
    }
    lacking
}

async fn scan_records<D: ZoneDevice>(
    devices: &impl Fn(usize) -> Option<Rc<D>>,
    pool: &Arc<Pool>,
    found: &mut SegmentFound,
    zones: &[Option<ZoneFound>],
) {
    for (column, zone) in (0u8..).zip(zones) {
        let Some((zone, device)) = zone.as_ref().and_then(|zone| Some((zone, devices(zone.slot)?))) else {
            continue;
        };
        let header = SegmentHeader { column, ..found.header.clone() };
        let scanned = scan_column(&*device, pool, zone, &header).await;
        let column = found.columns[usize::from(column)].as_mut().expect("it has a header");
        column.records = scanned.records;
        column.unread_blocks = scanned.unread_blocks;
        column.footer = column.footer.take().or(scanned.footer);
    }
}

/// Whether no record was ever written, as far as anyone can tell: each stripe has a record on every column, so if there were
/// a durable one, a column that can be read would have it, whatever members are missing. Headers are durable before the
/// first record, so a crash while they are written leaves such a segment, with any of them there, absent or torn.
fn has_nothing(found: &SegmentFound) -> bool {
    let is_empty = |column: &ColumnFound| {
        column.records.is_empty() && column.footer.is_none() && column.unread_blocks == 0
    };
    found.columns.iter().flatten().all(is_empty)
}

/// What shards will share: the table has the segments that hold something, and the zones that are free. Also returns zones
/// that hold no column, and those that are active.
fn share<D: ZoneDevice>(
    start: &Start<D>,
    members: LogMembers,
    zones: &[ZoneFound],
    segments: &BTreeMap<SegmentKey, Judged>,
) -> (Arc<LogShared>, Loose) {
    let config = start.config.clone();
    let mut named = BTreeSet::new();
    for judged in segments.values() {
        let columns = judged.found.header.columns.iter();
        named.extend(columns.filter_map(|column| Some((usize::from(column.slot), column.zone?))));
        named.extend(judged.zones.iter().flatten().map(|zone| (zone.slot, zone.zone)));
    }
    let mut free = vec![VecDeque::new(); config.devices.len()];
    let mut loose = Loose::default();
    let mut budget = ZoneBudget::new(config.zone_limits.iter().copied());
    for zone in zones {
        let is_named = named.contains(&(zone.slot, zone.zone));
        match &zone.header {
            HeaderFound::Absent if !zone.is_active() => free[zone.slot].push_back(zone.zone),
            _ => {
                if zone.is_active() {
                    budget.found(zone.slot);
                    loose.active.push(zone.clone());
                }
                if !is_named {
                    loose.unused.push(zone.clone());
                }
            }
        }
    }
    let used = (0..start.states.len()).filter(|slot| start.states[*slot] == MemberState::InSync).collect();
    let table = SegmentTable::new(config.slots(), free, used, budget, start.numbers.start);
    table.numbers_are_reserved(start.numbers.end);
    let shared = LogShared {
        epoch: start.epoch,
        sequences: Sequences::new(start.epoch.number),
        map: Map::new(config.logical_blocks, config.map),
        zeroed: Zeroed::default(),
        space: Space::default(),
        members,
        pins: Pins::new(start.counters.len()),
        counters: Arc::clone(&start.counters),
        table,
        config,
    };
    insert(&shared, segments);
    (Arc::new(shared), loose)
}

/// Puts segments into their slots, the newest first: where two say that they have the same slot, the older one was emptied,
/// and its reset was lost. One that is gone keeps its slot until it is reset, which waits for members that are missing: where
/// those are what tells that it is gone, a later start would find two in one slot.
fn insert(shared: &LogShared, segments: &BTreeMap<SegmentKey, Judged>) {
    let (gone, used): (Vec<&Judged>, Vec<&Judged>) =
        segments.values().rev().partition(|judged| judged.is_gone);
    for judged in used.into_iter().chain(gone) {
        let header = &judged.found.header;
        if !shared.table.take_found(header.slot) {
            continue;
        }
        let state = match judged.decision {
            Decision::Sealed(_) if all_have_footers(judged) => SegmentState::Sealed,
            Decision::Sealed(_) | Decision::Records { .. } => SegmentState::Short,
        };
        let mut segment = Segment::new(&as_found(judged), state);
        if shared.map.shape().checksum_bits() == 0 {
            segment.read_without(&judged.lacking); // no checksum would show it (Z-I12)
        }
        if let Some(table) = &segment.table {
            // Two records of one place cannot both be right: the first stays, and the other is made from its stripe.
            for (column, group, id, start) in places_of(judged) {
                _ = table.place(column, group, id, start);
            }
        }
        shared.table.insert(Arc::new(segment));
    }
}

/// Whether every column that can be read has a footer of the newest epoch.
fn all_have_footers(judged: &Judged) -> bool {
    let newest = newest_footers(&judged.found);
    judged.found.columns.iter().zip(newest).all(|(column, has)| has || column.is_none())
}

/// The header of a segment whose columns without a header of their own are left out: what such a zone holds is another's, or
/// nothing, and without checksums in the map a read would take it for data (Z-I12).
fn as_found(judged: &Judged) -> SegmentHeader {
    let mut header = judged.found.header.clone();
    for (column, found) in header.columns.iter_mut().zip(&judged.found.columns) {
        column.zone = column.zone.filter(|_| found.is_some());
    }
    header
}

/// Where the records of an append segment are: column, group, id of the stripe, first block.
fn places_of(judged: &Judged) -> Vec<(u8, u32, u16, u32)> {
    let Decision::Records { stripes, .. } = &judged.decision else { return footer_places(&judged.found) };
    let group_blocks = judged.found.header.shape.group_blocks();
    let of_stripe = |stripe: &StripeFound| {
        let id = stripe.id;
        let starts = (0u8..).zip(stripe.starts.clone());
        starts.filter_map(move |(column, start)| Some((column, start? / group_blocks, id, start?)))
    };
    stripes.iter().flat_map(of_stripe).collect()
}

/// Names the headers that are damaged: other columns say that the zone is of their segment. From here on the column is left
/// out, until its segment is emptied.
fn name_headers<D: ZoneDevice>(
    port: &LogPort<D>,
    segments: &BTreeMap<SegmentKey, Judged>,
    zones: &[ZoneFound],
) {
    for judged in segments.values().filter(|judged| !judged.is_gone) {
        for (column, found) in judged.found.header.columns.iter().zip(&judged.found.columns) {
            let slot = usize::from(column.slot);
            let is_at = |zone: &&ZoneFound| (zone.slot, Some(zone.zone)) == (slot, column.zone);
            let there = zones.iter().find(is_at).filter(|_| found.is_none());
            if let Some(there) = there.filter(|there| there.header == HeaderFound::Unknown) {
                let what = "the segment's header is not right";
                report(port, &Damage { slot, zone: there.zone, block: 0, what });
            }
        }
    }
}

/// Every segment that counts is in its slot.
fn check_slots(shared: &LogShared, segments: &BTreeMap<SegmentKey, Judged>) -> Result<(), RecoverError> {
    for judged in segments.values().filter(|judged| !judged.is_gone) {
        let SegmentHeader { segment, slot, .. } = judged.found.header;
        let there = shared.table.get(slot).map(|there| there.number());
        if there != Some(segment) {
            return Err(RecoverError::SameSlot { first: there.unwrap_or(0), second: segment, slot });
        }
    }
    Ok(())
}

/// The segments that durable entries call emptied.
async fn emptied_of<D: ZoneDevice>(
    port: &LogPort<D>,
    segments: &BTreeMap<SegmentKey, Judged>,
) -> BTreeSet<SegmentKey> {
    let mut emptied = BTreeSet::new();
    for judged in segments.values() {
        for live in live_blocks(judged, |verdict| verdict <= Verdict::Move) {
            if live.entry.name == BlockName::Emptied
                && let Some(contents) = read_live(port, &live).await
                && let Ok(entries) = EmptiedEntry::parse_all(contents.bytes(), &live.entry)
            {
                emptied.extend(entries.iter().map(|entry| (entry.segment, entry.tag)));
            }
        }
    }
    emptied
}

/// A start needs as many columns of every segment as make all its data.
fn check_columns(segments: &BTreeMap<SegmentKey, Judged>) -> Result<(), RecoverError> {
    for judged in segments.values().filter(|judged| !judged.is_gone) {
        if !is_readable(&judged.found) {
            let columns = &judged.found.columns;
            let missing = columns.iter().filter(|column| column.is_none()).count();
            let segment = judged.found.header.segment;
            return Err(RecoverError::TooFewColumns { segment, missing, width: columns.len() });
        }
    }
    Ok(())
}

/// Makes the map: entries of stripes that stay before those of stripes that are to be moved, in the order of segments.
async fn build_map<D: ZoneDevice>(
    port: &LogPort<D>,
    segments: &BTreeMap<SegmentKey, Judged>,
    report: &mut RecoveryReport,
) -> Result<(), RecoverError> {
    let shared = &port.shared;
    let mut rebuild = Rebuild::new(&shared.map);
    let used = || segments.values().filter(|judged| !judged.is_gone);
    for verdict in [Verdict::Keep, Verdict::Move] {
        for live in used().flat_map(|judged| live_blocks(judged, |of| of == verdict)) {
            match live.entry.name {
                BlockName::User(lba) => {
                    let checksum = shared.map.shape().checksum_of(live.entry.checksum);
                    let entry = MapEntry::At { place: live.place, checksum };
                    rebuild.offer(lba, live.entry.sequence, entry);
                }
                BlockName::Zeroes => {
                    let contents = read_live(port, &live).await;
                    let ranges =
                        contents.and_then(|block| ZeroesEntry::parse_all(block.bytes(), &live.entry).ok());
                    let unreadable = || VolumeError::Unreadable {
                        member: Slot::new(0),
                        offset_bytes: DeviceOffset::START,
                    };
                    if verdict == Verdict::Keep {
                        shared.table.add_list(live.place.slot);
                    }
                    for range in ranges.ok_or_else(unreadable)? {
                        rebuild.offer_range(&range);
                        if !range.is_lost {
                            shared.zeroed.add(range.lba..range.lba + u64::from(range.blocks), range.sequence);
                        }
                    }
                }
                BlockName::Emptied if verdict == Verdict::Keep => shared.table.add_list(live.place.slot),
                _ => {}
            }
        }
    }
    for judged in used() {
        for live in live_blocks(judged, |of| of == Verdict::Lost) {
            if let BlockName::User(lba) = live.entry.name {
                report.lost_blocks += 1;
                rebuild.offer(lba, live.entry.sequence, MapEntry::Lost);
            }
        }
        if let Decision::Records { stripes, unknown_blocks } = &judged.decision {
            report.void_stripes += stripes.iter().filter(|stripe| stripe.verdict == Verdict::Void).count();
            report.unknown_blocks += unknown_blocks;
        }
    }
    drop(rebuild);
    for (_, entry) in shared.map.mapped() {
        if let MapEntry::At { place, .. } = entry {
            shared.table.add_live(place.slot, 1);
        }
    }
    Ok(())
}
