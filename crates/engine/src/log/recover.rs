//! A start: what the members hold is read, what counts is decided, the map is made, and what a crash left half done is made
//! whole, all before the first request.
//!
//! The order keeps what a second crash would need: what is moved is durable before the footers that no longer name it, what
//! supersedes a segment's blocks before its emptied entry, that before the reset (Z-I4). A segment that a crash left open is
//! sealed rather than written on (docs/decisions/2026-11-25-log-engine.md). Nothing here depends on the order in which things
//! are found, so a recovery that was cut short is done again with the same result.

pub mod columns;
pub mod decide;
#[cfg(test)]
mod decide_tests;
pub mod found;
mod heal;
mod known;
mod map;
mod rebuild;
pub mod scan;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;
use std::sync::Arc;

use layout::zoned::{BlockName, Checkpoint, EmptiedEntry, Epoch, SegmentHeader, ZonePlace};
use smallvec::SmallVec;

use self::columns::{COLUMNS_AT_ONCE, Present, present, read_footers};
use self::decide::{
    Decision, Footers, LiveBlock, SegmentFound, StripeFound, Verdict, decide, footer_places, is_readable,
    named_blocks, newest_footers,
};
use self::found::{Failure, Judged, Loose, RecoverError, RecoveryReport, live_blocks, read_live};
use self::known::{Known, Lists, Reading};
use self::map::build_map;
use self::scan::{ColumnFound, HeaderFound, ZoneFound, scan_column, scan_member};
use super::checkpoints::Checkpoints;
use super::config::{LogConfig, SUPERBLOCK_ZONES};
use super::damage::{Damage, report};
use super::health::LogMembers;
use super::map::Map;
use super::map_memory::MapMemory;
use super::pins::Pins;
use super::places::HeldPlaces;
use super::places_memory::PlacesInMemory;
use super::port::{LogPlatform, LogPort};
use super::segment::{Segment, SegmentState};
use super::segment_table::SegmentTable;
use super::sequence::Sequences;
use super::shared::LogShared;
use super::space::{SegmentKey, Space};
use super::valid_blocks::ValidBlocks;
use super::zeroed::Zeroed;
use super::zone_budget::ZoneBudget;
use crate::buffer::Pool;
use crate::counters::Counters;
use crate::events::EventSink;
use crate::executor::{Executor, join_all, yield_now};
use crate::members::MemberState;
use crate::zone_device::ZoneDevice;

/// Blocks of a segment's columns that are listed before other tasks have a turn.
const OFFSETS_PER_TURN: u32 = 2048;

/// What a start is made from: what the superblocks say, and the members.
pub struct Start<D> {
    /// What is fixed.
    pub config: LogConfig,
    /// The device of each member's slot.
    pub devices: Vec<Option<Rc<D>>>,
    /// The state of each member: those that are neither in sync nor recovering are neither read nor written.
    pub states: Vec<MemberState>,
    /// Members were added, and not every segment may be over all of them.
    pub growing: bool,
    /// The new epoch. It is durable on every member that is present before anything else is written (Z-I16).
    pub epoch: Epoch,
    /// Segment numbers that the superblocks reserve for this epoch, none of them used before.
    pub numbers: std::ops::Range<u64>,
    /// The checkpoint that the superblocks name.
    pub checkpoint: Option<Checkpoint>,
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

/// The state and identity of each slot's member.
type Members = Vec<(MemberState, [u8; 16])>;

/// The zones of each segment that have a right header, by column.
type Columns = BTreeMap<SegmentKey, FoundColumns>;

/// A segment, as its headers say it.
struct FoundColumns {
    header: SegmentHeader,
    zones: Vec<Option<ZoneFound>>,
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
        let members: Members =
            start.states.iter().copied().zip(start.config.devices.iter().copied()).collect();
        for state in start.states.iter_mut().filter(|state| **state == MemberState::Recovering) {
            *state = MemberState::InSync; // it has what it has, and lacks what was not found
        }
        let zones = scan_zones(&start, pool).await?;
        let events: Arc<EventSink> = Arc::new(std::mem::replace(&mut start.events, Box::new(|_| {})));
        let around = (executor, pool, platform);
        let checkpoint = start.checkpoint.filter(|_| start.config.map_limits.changed.is_some());
        match Self::judge_all(&start, &members, &zones, checkpoint, &events, around).await {
            // Without it everything is read: all that it says is in the log as well.
            Err(Failure::Checkpoint(fault)) => {
                let again = Self::judge_all(&start, &members, &zones, None, &events, around).await;
                let mut recovery = again.map_err(Failure::into_error)?;
                recovery.report.checkpoint_fault = Some(fault);
                Ok(recovery)
            }
            judged => judged.map_err(Failure::into_error),
        }
    }

    async fn judge_all(
        start: &Start<D>,
        members: &Members,
        zones: &[ZoneFound],
        said: Option<Checkpoint>,
        events: &Arc<EventSink>,
        (executor, pool, platform): (&Executor, &Arc<Pool>, &Rc<dyn LogPlatform>),
    ) -> Result<Self, Failure> {
        let columns = columns_of(zones, members.len());
        let sink = Arc::clone(events);
        let members = LogMembers::new(
            members.clone(),
            start.config.member_slots(),
            start.config.losses_survived(),
            Box::new(move |event| sink(event)),
        );
        if start.growing {
            members.go_on_growing();
        }
        let (shared, loose) = share(start, members, zones, &columns);
        let port = LogPort::new(
            Arc::clone(&shared),
            0,
            executor.clone(),
            Arc::clone(pool),
            Rc::clone(platform),
            start.devices.clone(),
        );
        let mut segments: BTreeMap<SegmentKey, Judged> = BTreeMap::new();
        let mut known = match said {
            None => None,
            Some(said) => Some(read_known(&port, &columns, &mut segments, said).await?),
        };
        for (key, found) in &columns {
            if !segments.contains_key(key) {
                segments.insert(*key, read_segment(&port, found, known.as_ref()).await);
            }
        }
        insert(&shared, &segments);
        let emptied = emptied_of(&port, &segments).await;
        segments.iter_mut().for_each(|(key, judged)| judged.is_gone |= emptied.contains(key));
        if let Some(known) = &mut known {
            stand_on_what_is_there(&port, &segments, known).await?;
        }
        if !shared.members.are_all_in_sync() {
            // A member that is away may still hold any of them.
            emptied.iter().for_each(|key| shared.space.resetting(*key));
        }
        name_headers(&port, &segments, zones);
        check_slots(&shared, &segments)?;
        check_columns(&segments)?;
        let left_out = segments.values().filter(|judged| judged.left_out.is_some()).count();
        let from_checkpoint = known.is_some();
        let mut report = RecoveryReport {
            segments: segments.len(),
            left_out,
            from_checkpoint,
            ..RecoveryReport::default()
        };
        build_map(&port, &segments, known.as_ref(), &mut report).await?;
        Ok(Recovery { port, segments, loose, report })
    }

    /// What shards will share, with the map as it was found.
    pub fn shared(&self) -> &Arc<LogShared> {
        &self.port.shared
    }

    /// This shard's way to the members.
    pub fn port(&self) -> &LogPort<D> {
        &self.port
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
            let is_sealed = matches!(judged.decision, Decision::Sealed(_)) && judged.left_out.is_none();
            is_sealed && !judged.is_gone && !all_have_footers(judged)
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
    let scan = async |(slot, device): (usize, &Rc<D>)| {
        let place =
            ZonePlace { set_uuid: start.config.set_uuid, device_uuid: start.config.devices[slot], zone: 0 };
        let found = scan_member(device, pool, SUPERBLOCK_ZONES, place, slot).await;
        found.map_err(|error| RecoverError::Member { slot, error })
    };
    let there = start.devices.iter().enumerate();
    let there = there.filter(|(slot, _)| start.states[*slot] == MemberState::InSync);
    let there = there.filter_map(|(slot, device)| Some((slot, device.as_ref()?)));
    let mut zones = Vec::new();
    for found in join_all(there.map(|member| Box::pin(scan(member)))).await {
        zones.append(&mut found?);
    }
    Ok(zones)
}

/// Gathers the columns of each segment. Superblocks that list a member are durable before a segment has a column of it, so a header
/// that names another one is none of this array's.
fn columns_of(zones: &[ZoneFound], members: usize) -> Columns {
    let mut columns = Columns::new();
    for zone in zones {
        let HeaderFound::Right(header) = &zone.header else { continue };
        if header.columns[usize::from(header.column)].slot as usize != zone.slot {
            continue; // it is not its own
        }
        if header.columns.iter().any(|column| usize::from(column.slot) >= members) {
            continue;
        }
        let found = columns.entry((header.segment, header.tag)).or_insert_with(|| FoundColumns {
            header: SegmentHeader { column: 0, generation: 0, ..SegmentHeader::clone(header) },
            zones: vec![None; header.columns.len()],
        });
        if let Some(own) = found.zones.get_mut(usize::from(header.column)) {
            *own = Some(zone.clone());
        }
    }
    columns
}

/// Reads a checkpoint: the segment with the lowest number that it is in, and those after it as far as it goes. They are judged, and in their slots.
async fn read_known<D: ZoneDevice>(
    port: &LogPort<D>,
    columns: &Columns,
    segments: &mut BTreeMap<SegmentKey, Judged>,
    said: Checkpoint,
) -> Result<Known, Failure> {
    let mut lists = Lists::default();
    for (key, found) in columns.range((said.segment, 0)..) {
        let judged = read_segment(port, found, None).await;
        place(&port.shared, &judged);
        lists.take(port, &judged, said).await;
        segments.insert(*key, judged);
        if lists.are_whole() {
            break;
        }
    }
    lists.known(said, &port.shared.map).map_err(Failure::Checkpoint)
}

/// Z-I17: a start that moved a checkpoint's lists, and was cut short, may have emptied the segment that they were in, and what is
/// left of it looks whole until the entry for it is read. The lists count where they were moved to.
///
/// # Errors
/// Another block that the checkpoint needs is gone.
async fn stand_on_what_is_there<D: ZoneDevice>(
    port: &LogPort<D>,
    segments: &BTreeMap<SegmentKey, Judged>,
    known: &mut Known,
) -> Result<(), Failure> {
    let (shared, said) = (&port.shared, known.said);
    let is_gone = |slot: u32| {
        let there = shared.table.get(slot).and_then(|segment| segments.get(&segment.key()));
        there.is_none_or(|judged| judged.is_gone)
    };
    if known.lists.iter().any(|slot| is_gone(*slot)) {
        let mut lists = Lists::default();
        let later = segments.range((said.segment, 0)..).filter(|(_, judged)| !judged.is_gone);
        for (_, judged) in later {
            lists.take(port, judged, said).await;
            if lists.are_whole() {
                break;
            }
        }
        *known = lists.known(said, &shared.map).map_err(Failure::Checkpoint)?;
    }
    match known.pinned(shared.map.shape()).into_iter().any(is_gone) {
        true => Err(Failure::Checkpoint("a segment that it needs was emptied")),
        false => Ok(()),
    }
}

/// Reads a segment, as far as what is known of it does not do.
async fn read_segment<D: ZoneDevice>(
    port: &LogPort<D>,
    found: &FoundColumns,
    known: Option<&Known>,
) -> Judged {
    let FoundColumns { header, zones } = found;
    let reading = known.map_or(Reading::Whole, |known| known.decide(header, zones));
    let left_out = match reading {
        Reading::LeftOut(lists) => Some(lists),
        Reading::Gone => None,
        Reading::Whole => return judge(&|slot| port.device(slot), &port.pool, header, zones.clone()).await,
    };
    let column = |zone: &Option<ZoneFound>| {
        let end_block = zone.as_ref()?.end_block;
        Some(ColumnFound { end_block, ..ColumnFound::default() })
    };
    Judged {
        found: SegmentFound { header: header.clone(), columns: zones.iter().map(column).collect() },
        zones: zones.clone(),
        decision: Decision::Sealed(Vec::new()),
        lacking: SmallVec::new(),
        is_gone: left_out.is_none(),
        left_out,
    }
}

/// Reads what the columns of a segment hold, their footers and, where those are not enough, their records, and decides what
/// counts. `zones` are those with a header of the segment, by column, each of a member that `devices` has.
pub async fn judge<D: ZoneDevice>(
    devices: &impl Fn(usize) -> Option<Rc<D>>,
    pool: &Arc<Pool>,
    header: &SegmentHeader,
    zones: Vec<Option<ZoneFound>>,
) -> Judged {
    let mut found = read_footers(devices, pool, header, &zones).await;
    let decision = match Footers::of(&found) {
        Some(footers) => Decision::Sealed(named_by(&footers).await),
        None => {
            scan_records(devices, pool, &mut found, &zones).await;
            decide(&found)
        }
    };
    let is_gone = has_nothing(&found);
    let lacking = match decision {
        Decision::Sealed(_) => lacking_columns(devices, pool, &found, &zones).await,
        Decision::Records { .. } => SmallVec::new(),
    };
    Judged { found, zones, decision, lacking, is_gone, left_out: None }
}

/// What footers name, a part at a time: a large zone has a quarter of a million blocks in each column, and reclaim looks at them while
/// clients wait.
async fn named_by(footers: &Footers<'_>) -> Vec<LiveBlock> {
    let mut live = Vec::new();
    for start in (0..footers.length).step_by(OFFSETS_PER_TURN as usize) {
        live.extend(footers.blocks(start..(start + OFFSETS_PER_TURN).min(footers.length)));
        yield_now().await;
    }
    live
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
    let is_wanted = |of: &Present<'_, D>| !newest[usize::from(of.header.column)];
    for Present { header, zone, device } in
        present(devices, &found.header, zones).into_iter().filter(is_wanted)
    {
        let records = scan_column(&*device, pool, zone, &header).await.records;
        let whole = records.iter().filter(|record| record.is_whole);
        let held: BTreeSet<u32> =
            whole.flat_map(|record| record.block..record.block + record.blocks(&header)).collect();
        if !named.is_subset(&held) {
            lacking.push(header.column);
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
    let scan = async |of: &Present<'_, D>| {
        (of.header.column, scan_column(&*of.device, pool, of.zone, &of.header).await)
    };
    for some in present(devices, &found.header, zones).chunks(COLUMNS_AT_ONCE) {
        for (column, scanned) in join_all(some.iter().map(|of| Box::pin(scan(of)))).await {
            let column = found.columns[usize::from(column)].as_mut().expect("it has a header");
            column.records = scanned.records;
            column.unread_blocks = scanned.unread_blocks;
            column.footer = column.footer.take().or(scanned.footer);
        }
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

/// What shards will share: the table has the zones that are free, and no segment yet. Also returns zones that hold no column, and
/// those that are active.
fn share<D: ZoneDevice>(
    start: &Start<D>,
    members: LogMembers,
    zones: &[ZoneFound],
    columns: &Columns,
) -> (Arc<LogShared>, Loose) {
    let config = start.config.clone();
    let mut named = BTreeSet::new();
    for found in columns.values() {
        let columns = found.header.columns.iter();
        named.extend(columns.filter_map(|column| Some((usize::from(column.slot), column.zone?))));
        named.extend(found.zones.iter().flatten().map(|zone| (zone.slot, zone.zone)));
    }
    let mut free = vec![VecDeque::new(); config.member_slots()];
    let mut loose = Loose::default();
    let open_segments = config.open.total() * start.counters.len() as u32;
    let mut budget = ZoneBudget::new(config.zone_limits.iter().copied(), open_segments);
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
    let map = Map::new(config.logical_blocks, config.map);
    let shared = LogShared {
        epoch: start.epoch,
        sequences: Sequences::new(start.epoch.number),
        valid: ValidBlocks::of(&config, start.states.len(), map.groups()),
        map,
        zeroed: Zeroed::default(),
        space: Space::default(),
        members,
        pins: Pins::new(start.counters.len()),
        openings: Pins::new(start.counters.len()),
        memory: MapMemory::new(config.map_limits.groups),
        checkpoints: Checkpoints::new(config.map_limits.changed),
        counters: Arc::clone(&start.counters),
        table,
        places: PlacesInMemory::default(),
        config,
    };
    (Arc::new(shared), loose)
}

/// Puts segments into their slots, the newest first: where two say that they have the same slot, the older one was emptied,
/// and its reset was lost. One that is gone keeps its slot until it is reset, which waits for members that are missing: where
/// those are what tells that it is gone, a later start would find two in one slot.
fn insert(shared: &LogShared, segments: &BTreeMap<SegmentKey, Judged>) {
    let (gone, used): (Vec<&Judged>, Vec<&Judged>) =
        segments.values().rev().partition(|judged| judged.is_gone);
    used.into_iter().chain(gone).for_each(|judged| place(shared, judged));
}

/// Puts a segment into its slot, if that is free.
fn place(shared: &LogShared, judged: &Judged) {
    let header = &judged.found.header;
    if !shared.table.take_found(header.slot) {
        return;
    }
    let is_sealed = match judged.decision {
        Decision::Sealed(_) => judged.left_out.is_some() || all_have_footers(judged),
        Decision::Records { .. } => false,
    };
    let is_whole = judged.found.columns.iter().all(Option::is_some);
    let mut segment = match is_sealed {
        true if is_whole => Segment::of_footers(&as_found(judged)),
        true => Segment::new(&as_found(judged), SegmentState::Sealed),
        false => Segment::new(&as_found(judged), SegmentState::Short),
    };
    segment.read_without(&judged.lacking);
    if judged.left_out.is_some() {
        segment.leave_out();
    }
    if let Some(places) = segment.places.as_ref().and_then(HeldPlaces::that_stay) {
        // Two records of one place cannot both be right: the first stays, and the other is made from its stripe.
        for (column, group, id, start) in places_in(judged) {
            _ = places.table.place(column, group, id, start);
        }
    }
    shared.table.insert(Arc::new(segment));
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
fn places_in(judged: &Judged) -> Vec<(u8, u32, u16, u32)> {
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
    let unknown = zones.iter().filter(|zone| zone.header == HeaderFound::Unknown);
    let unknown: BTreeSet<(usize, u32)> = unknown.map(|zone| (zone.slot, zone.zone)).collect();
    for judged in segments.values().filter(|judged| !judged.is_gone) {
        let columns = judged.found.header.columns.iter().zip(&judged.found.columns);
        for (column, _) in columns.filter(|(_, found)| found.is_none()) {
            let Some(zone) = column.zone else { continue };
            let slot = usize::from(column.slot);
            if unknown.contains(&(slot, zone)) {
                let what = "the segment's header is not right";
                report(port, &Damage { slot, zone, block: 0, what });
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
