//! The life of a segment while the array serves: opened with durable headers, closed when it is full or a column failed,
//! sealed by its footers.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Poll, Waker};

use layout::geometry::Level;
use layout::units::Slot;
use layout::zoned::{Access, Class, DataOffset, SegmentColumn, SegmentHeader, ZonePlace};
use smallvec::SmallVec;

use super::config::{LogConfig, RECOVERY_SEGMENTS, RESERVED_SEGMENTS};
use super::encode::Record;
use super::flush::flush_members;
use super::footer::footer;
use super::port::{Blame, LogPort, member_needed};
use super::segment::{Segment, SegmentState};
use super::segment_table::{NotTaken, Taken};
use super::shared::LogShared;
use super::zone_budget::Purpose;
use crate::buffer::{Gather, Slice};
use crate::error::VolumeError;
use crate::executor::join_all;
use crate::limits::BLOCK_BYTES;
use crate::members::MemberState;
use crate::zone_device::{Zone, ZoneDevice};

/// Segments that are tried before a request fails: each one failed on a zone or member of its own.
const TRIES_MAX: usize = 8;

/// A shard's open segment of one class.
#[derive(Default)]
enum Current {
    #[default]
    None,
    /// A task opens one.
    Opening(Vec<Waker>),
    Open(Arc<Segment>),
}

impl Current {
    /// Whether nothing is in flight there, where the engine chooses places.
    fn is_idle(&self) -> bool {
        match self {
            Current::None => true,
            Current::Opening(_) => false,
            Current::Open(segment) => segment.is_idle(),
        }
    }
}

/// A shard's open segments of one class.
struct OpenClass {
    segments: Box<[RefCell<Current>]>,
    /// Where the search for the next one begins.
    next: Cell<usize>,
    /// The drives choose the places in the first one, and the engine in the others.
    is_mixed: bool,
}

impl OpenClass {
    fn new(config: &LogConfig, class: Class) -> Self {
        let segments: Box<[_]> = (0..config.open.of(class)).map(|_| RefCell::default()).collect();
        let is_mixed = segments.len() > 1 && config.access_of(class, 0) != config.access_of(class, 1);
        OpenClass { segments, next: Cell::new(0), is_mixed }
    }

    /// The segment of the next stripe: in turn. Where the first one is appended to: an idle one of the others, in turn, else the
    /// first one (ZapRAID 3.3).
    fn choose(&self) -> usize {
        let first = usize::from(self.is_mixed);
        let (from, count) = (self.next.get(), self.segments.len() - first);
        let is_free = |at: &usize| !self.is_mixed || self.segments[*at].borrow().is_idle();
        let chosen = (0..count).map(|step| first + (from + step) % count).find(is_free);
        if chosen.is_some() {
            self.next.set((from + 1) % count);
        }
        chosen.unwrap_or(0)
    }
}

/// A shard's open segments.
pub struct OpenSegments {
    streams: [OpenClass; 4],
}

/// What a stripe is written for. A shard has open segments for each, but for recovery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stream {
    /// Clients' writes, of this class.
    Clients(Class),
    /// What reclaim moves, and its lists.
    Moved,
    /// Mapping blocks, most of which are superseded long before what reclaim moves is: in one segment with that they would have
    /// it moved again and again. Where no segment can be spared for them they go there all the same.
    Map,
    /// What a start writes anew.
    Recovered,
}

impl Stream {
    /// Those that have open segments, in order.
    const ALL: [Stream; 4] =
        [Stream::Clients(Class::Small), Stream::Clients(Class::Large), Stream::Moved, Stream::Map];

    /// The class of its segments.
    pub fn class(self) -> Class {
        match self {
            Stream::Clients(class) => class,
            Stream::Moved | Stream::Map => Class::Reclaim,
            Stream::Recovered => Class::Recovery,
        }
    }

    /// Z-I10: free segments that it leaves alone, and what it takes zones for.
    fn leaves(self) -> (usize, Purpose) {
        match self {
            Stream::Clients(_) => (RESERVED_SEGMENTS, Purpose::User),
            Stream::Map => (RESERVED_SEGMENTS, Purpose::Map),
            Stream::Moved => (RECOVERY_SEGMENTS, Purpose::Recovery),
            Stream::Recovered => (0, Purpose::Recovery),
        }
    }

    fn index(self) -> usize {
        Stream::ALL.iter().position(|stream| *stream == self).expect("a stream with open segments")
    }
}

impl OpenSegments {
    /// None is open.
    pub fn new(config: &LogConfig) -> Self {
        OpenSegments { streams: Stream::ALL.map(|stream| OpenClass::new(config, stream.class())) }
    }

    /// What reclaim moves goes to a segment that is open already.
    pub fn go_on_with(&self, segment: Arc<Segment>) {
        *self.streams[Stream::Moved.index()].segments[0].borrow_mut() = Current::Open(segment);
    }

    /// The shard's open segment for the next stripe of a stream. Opens one where there is none, or where the one there is takes
    /// no more stripes.
    ///
    /// # Errors
    /// No zone is free, or the array cannot do without a member that failed.
    pub async fn current<D: ZoneDevice>(
        &self,
        port: &Rc<LogPort<D>>,
        stream: Stream,
    ) -> Result<Arc<Segment>, VolumeError> {
        if stream != Stream::Map {
            return self.open_of(port, stream).await;
        }
        if port.shared.is_map_paged() {
            match self.open_of(port, Stream::Map).await {
                Err(VolumeError::NoSpace { .. }) => {}
                open => return open,
            }
        }
        self.open_of(port, Stream::Moved).await
    }

    async fn open_of<D: ZoneDevice>(
        &self,
        port: &Rc<LogPort<D>>,
        stream: Stream,
    ) -> Result<Arc<Segment>, VolumeError> {
        let at = self.streams[stream.index()].choose();
        let current = &self.streams[stream.index()].segments[at];
        let access = port.shared.config.access_of(stream.class(), at);
        loop {
            let found = match &*current.borrow() {
                Current::Open(segment) if takes_stripes(port, segment) => return Ok(Arc::clone(segment)),
                Current::Open(segment) => Some(Some(Arc::clone(segment))),
                Current::Opening(_) => None,
                Current::None => Some(None),
            };
            let Some(full) = found else {
                opened(current).await;
                continue;
            };
            *current.borrow_mut() = Current::Opening(Vec::new());
            if let Some(full) = full {
                let port_of_task = Rc::clone(port);
                port.executor.spawn(async move { close_segment(&port_of_task, &full).await });
            }
            let opened = open_segment(port, stream, access).await;
            let state = opened.as_ref().map_or(Current::None, |segment| Current::Open(Arc::clone(segment)));
            let Current::Opening(waiting) = current.replace(state) else { unreachable!("one task opens") };
            waiting.into_iter().for_each(Waker::wake);
            return opened;
        }
    }

    /// Data blocks that the open segments of a stream have room for still, about.
    pub fn room_left(&self, stream: Stream) -> u64 {
        let room = |current: &RefCell<Current>| match &*current.borrow() {
            Current::Open(segment) => segment.room_left(),
            Current::None | Current::Opening(_) => 0,
        };
        self.streams[stream.index()].segments.iter().map(room).sum()
    }

    fn all(&self) -> impl Iterator<Item = &RefCell<Current>> {
        self.streams.iter().flat_map(|stream| &stream.segments)
    }

    /// Closes the open segments: what is written next goes to segments of the members that are in use now.
    pub async fn renew<D: ZoneDevice>(&self, port: &Rc<LogPort<D>>) {
        for current in self.all() {
            let open = match &*current.borrow() {
                Current::Open(segment) => Arc::clone(segment),
                Current::None | Current::Opening(_) => continue,
            };
            *current.borrow_mut() = Current::None;
            close_segment(port, &open).await;
        }
    }

    /// Closes all segments, and writes their footers: the array stops cleanly.
    pub async fn close_all<D: ZoneDevice>(&self, port: &Rc<LogPort<D>>) {
        for current in self.all() {
            let taken = current.take();
            if let Current::Open(segment) = taken {
                close_segment(port, &segment).await;
            }
        }
    }
}

/// Waits for the task that opens a segment.
async fn opened(current: &RefCell<Current>) {
    let mut is_first = true;
    std::future::poll_fn(|context| match &mut *current.borrow_mut() {
        Current::Opening(waiting) if std::mem::take(&mut is_first) => {
            waiting.push(context.waker().clone());
            Poll::Pending
        }
        _ => Poll::Ready(()),
    })
    .await;
}

/// Z-I15: new stripes go only to segments all of whose columns, but those left out, are in sync, and that leave out none
/// whose member is there by now.
fn takes_stripes<D: ZoneDevice>(port: &LogPort<D>, segment: &Segment) -> bool {
    if segment.state() != SegmentState::Open {
        return false;
    }
    let states = port.shared.members.states();
    let is_whole =
        segment.zones().all(|(_, slot, zone)| zone.is_some() == (states[slot] == MemberState::InSync));
    if !is_whole {
        segment.close();
    }
    is_whole
}

/// The columns of the next segment: what is free is counted over their members from now on.
pub(super) fn next_columns(shared: &LogShared) -> Vec<(usize, bool)> {
    let (width, in_sync) = (shared.members.width(), shared.members.in_sync());
    let columns = columns_of(&shared.config, width, &in_sync, shared.table.live_blocks());
    shared.table.use_members(&present(&columns));
    columns
}

fn present(columns: &[(usize, bool)]) -> Vec<usize> {
    columns.iter().filter(|(_, is_there)| *is_there).map(|(slot, _)| *slot).collect()
}

/// The slots of a new segment's columns in an array of `width` members, and whether each has one. After a failure a segment is narrower, and all of
/// it is redundant. Where too few members are left for the level, and where what is `live` does not fit into narrower
/// segments, the columns of missing members are left out instead: then its redundancy is smaller by their number.
pub fn columns_of(config: &LogConfig, width: usize, in_sync: &[usize], live: u64) -> Vec<(usize, bool)> {
    let least = match config.level {
        Level::Raid6 => 3,
        Level::Raid0 => width,
        Level::Raid1 | Level::Raid4 | Level::Raid5 | Level::Raid10 => 2,
    };
    let narrow = columns_over(config.level, width, in_sync, least);
    if narrow_fits(config, narrow.len(), live) {
        narrow
    } else {
        columns_over(config.level, width, in_sync, width)
    }
}

/// Columns of the members that are in sync, and of missing ones where these are fewer than `least`.
fn columns_over(level: Level, width: usize, in_sync: &[usize], least: usize) -> Vec<(usize, bool)> {
    let mut columns: Vec<(usize, bool)> = in_sync.iter().map(|&slot| (slot, true)).collect();
    if level == Level::Raid10 && columns.len() > least {
        columns.truncate(columns.len() / 2 * 2);
    }
    let out = (0..width).filter(|slot| !in_sync.contains(slot));
    let missing = least.saturating_sub(columns.len());
    columns.extend(out.take(missing).map(|slot| (slot, false)));
    columns.sort_unstable();
    columns
}

/// Whether an array whose segments all have this many columns would hold what is live, and a tenth more.
fn narrow_fits(config: &LogConfig, columns: usize, live: u64) -> bool {
    let width = u8::try_from(columns).unwrap_or(u8::MAX);
    let Ok(shape) = config.shape(Class::Small, width) else { return false };
    let segments = u64::from(config.slots()).saturating_sub(RESERVED_SEGMENTS as u64);
    let room = segments * u64::from(shape.rows()) * u64::from(shape.plan().columns.data());
    live + live / 10 <= room
}

/// Opens a segment: its headers are durable on all columns before its first record (Z-I7).
pub async fn open_segment<D: ZoneDevice>(
    port: &LogPort<D>,
    stream: Stream,
    access: Access,
) -> Result<Arc<Segment>, VolumeError> {
    for _ in 0..TRIES_MAX {
        let number = take_number(port).await?;
        let width = port.shared.members.width();
        let (columns, taken, exchanges) = take_zones(port, stream).await?;
        port.shared.members.note_columns(taken.zones.len(), columns.len() - taken.zones.len());
        let _opening = port.shared.openings.enter(port.shard);
        let header = header(port, (stream.class(), access), number, &columns, &taken)?;
        let segment = Arc::new(Segment::new(&header, SegmentState::Open));
        match write_headers(port, &segment).await {
            Ok(()) if port.shared.members.width() == width && is_current(port, &segment, &exchanges) => {
                port.shared.table.insert(Arc::clone(&segment));
                port.shared.checkpoints.try_again();
                return Ok(segment);
            }
            Err(Blame::Array) => {
                return Err(VolumeError::Io {
                    reason: "no segment can be opened without the members that failed".to_owned(),
                });
            }
            // A zone or member is out, or another member came, or one more: the next segment uses others.
            Ok(()) | Err(Blame::Zone | Blame::Member) => {
                abandon(port, &segment, &exchanges).await;
                port.shared.table.give_back_slot(taken.slot);
            }
        }
    }
    Err(VolumeError::Io { reason: format!("the headers of {TRIES_MAX} segments could not be written") })
}

/// Whether a segment has a column on each member that is in use and that it has a place for, none of which was exchanged
/// while its headers were written.
fn is_current<D: ZoneDevice>(port: &LogPort<D>, segment: &Segment, exchanges: &[u64]) -> bool {
    let members = &port.shared.members;
    segment.zones().all(|(_, slot, zone)| match zone {
        Some(_) => members.exchanges(slot) == exchanges[slot],
        None => members.state(slot) != MemberState::InSync,
    })
}

/// Resets the zones of a segment that could not be opened: none of its records was ever written. A zone that cannot be reset
/// stays aside.
async fn abandon<D: ZoneDevice>(port: &LogPort<D>, segment: &Segment, exchanges: &[u64]) {
    let members = &port.shared.members;
    for (_, slot, zone) in segment.zones() {
        let (Some(zone), Some(device)) = (zone, port.device(slot)) else { continue };
        let is_same = || members.exchanges(slot) == exchanges[slot];
        if members.state(slot) != MemberState::InSync || !is_same() {
            continue;
        }
        let is_reset = device.reset(zone).await.is_ok();
        if !is_same() {
            continue; // the zone is none of the array's any more
        }
        if is_reset {
            port.shared.table.finished(slot);
            port.shared.table.freed(slot, zone);
        } else {
            set_aside(port, slot, zone).await;
        }
    }
}

/// A zone that cannot be finished or reset counts as active as long as its drive calls it so (Z-I9): one that is read-only,
/// or that the drive has finished, must not keep others from being opened.
pub(super) async fn set_aside<D: ZoneDevice>(port: &LogPort<D>, slot: usize, zone: u32) {
    let Some(device) = port.device(slot) else { return };
    let exchanges = port.shared.members.exchanges(slot);
    let is_idle = |zone: &Zone| !zone.state.is_active();
    let report = device.report(zone..zone + 1).await;
    let is_same = port.shared.members.exchanges(slot) == exchanges;
    if is_same && report.is_ok_and(|report| report.first().is_some_and(is_idle)) {
        port.shared.table.finished(slot);
    }
}

/// Z-I16: a segment number that superblocks have reserved.
async fn take_number<D: ZoneDevice>(port: &LogPort<D>) -> Result<u64, VolumeError> {
    loop {
        if let Some(number) = port.shared.table.take_number() {
            return Ok(number);
        }
        port.shared.members.want_metadata();
        port.shared.members.settled().await?;
    }
}

/// Z-I10: user writes leave the reserved segments alone, and wait for reclaim where there are no others. Only if reclaim finds
/// nothing to gain either is the log full (ENOSPC). Reclaim leaves recovery its own.
async fn take_zones<D: ZoneDevice>(
    port: &LogPort<D>,
    stream: Stream,
) -> Result<(Vec<(usize, bool)>, Taken, Vec<u64>), VolumeError> {
    let (kept, purpose) = stream.leaves();
    let (table, space) = (&port.shared.table, &port.shared.space);
    let without_gain = space.without_gain();
    loop {
        // Anew after each wait: a member may have failed meanwhile, and a segment without it needs no zone of it.
        let seen = table.seen();
        let members = &port.shared.members;
        let exchanges = (0..members.slots()).map(|slot| members.exchanges(slot)).collect();
        let columns = next_columns(&port.shared);
        match table.take(&present(&columns), kept, purpose) {
            Ok(taken) => {
                // Not for segments of reclaim's own: it would go on for ever where it gains nothing.
                if purpose == Purpose::User && table.free_least() <= port.shared.config.low_segments() {
                    space.want();
                }
                return Ok((columns, taken, exchanges));
            }
            Err(NotTaken::Full { member }) => {
                // A pass that was under way may have looked before something died: the next one has seen it.
                let is_hopeless = purpose != Purpose::User
                    || !space.is_running()
                    || space.without_gain() > without_gain + 1;
                if is_hopeless {
                    return Err(VolumeError::NoSpace { member: Slot::of_index(member) });
                }
                space.want();
                table.changed(seen).await;
            }
            Err(NotTaken::Busy) if purpose == Purpose::Map => {
                return Err(VolumeError::NoSpace { member: Slot::of_index(0) });
            }
            Err(NotTaken::Busy) => table.changed(seen).await,
        }
    }
}

fn header<D: ZoneDevice>(
    port: &LogPort<D>,
    (class, access): (Class, Access),
    segment: u64,
    columns: &[(usize, bool)],
    taken: &Taken,
) -> Result<SegmentHeader, VolumeError> {
    let config = &port.shared.config;
    let shape = config.shape_of(class, access, columns.len() as u8);
    let shape =
        shape.map_err(|fault| VolumeError::Io { reason: format!("a segment cannot be made: {fault}") })?;
    let mut zones = taken.zones.iter().copied();
    let column = |&(slot, there): &(usize, bool)| SegmentColumn {
        slot: u16::try_from(slot).expect("few members"),
        zone: if there { zones.next() } else { None },
    };
    Ok(SegmentHeader {
        segment,
        tag: port.platform.random(),
        epoch: port.shared.epoch,
        first_sequence: port.shared.sequences.peek(),
        class,
        shape,
        slot: taken.slot,
        column: 0,
        generation: 0,
        columns: columns.iter().map(column).collect(),
    })
}

async fn write_headers<D: ZoneDevice>(port: &LogPort<D>, segment: &Segment) -> Result<(), Blame> {
    let config = &port.shared.config;
    let mut columns: SmallVec<[(usize, u64); 8]> = SmallVec::new();
    let mut writing = Vec::new();
    for (column, slot, zone) in segment.zones() {
        let Some(zone) = zone else { continue };
        let place =
            ZonePlace { set_uuid: config.set_uuid, device_uuid: port.shared.members.uuid(slot), zone };
        let block = segment.headers[usize::from(column)].encode(place);
        let record = plain_record(port, &block, segment);
        let Some(write) = port.write(slot, zone, Some(0), record, true) else { return Err(Blame::Member) };
        columns.push((slot, port.shared.members.exchanges(slot)));
        writing.push(write);
    }
    let mut worst = Ok(());
    for ((slot, exchanges), result) in columns.into_iter().zip(join_all(writing).await) {
        let Err(error) = result else { continue };
        match port.judge_since(slot, exchanges, &error) {
            Blame::Array => worst = Err(Blame::Array),
            blame if worst.is_ok() => worst = Err(blame),
            _ => {}
        }
    }
    worst
}

/// Blocks without entries of their own: a header, a footer. Metadata beside them is zeroes.
fn plain_record<D: ZoneDevice>(port: &LogPort<D>, bytes: &[u8], segment: &Segment) -> Record {
    let mut buffer = port.pool.take(bytes.len());
    buffer.bytes_mut().copy_from_slice(bytes);
    let blocks = bytes.len() / BLOCK_BYTES;
    let is_oob = segment.shape().plan().carrier == layout::zoned::Carrier::Oob;
    let metadata = is_oob.then(|| Slice::from_bytes(&vec![0; blocks * layout::zoned::OOB_BYTES]));
    Record { data: Gather::from(buffer.freeze()), metadata }
}

/// Closes a segment: when everything in flight has returned, footers are written and the zones finished. A column that
/// failed gets none; its records, or the other columns' footers, tell what it held.
pub async fn close_segment<D: ZoneDevice>(port: &LogPort<D>, segment: &Segment) {
    segment.close();
    segment.drained().await;
    // A footer is the authority for what it names, so that must be durable before: else a power cut could leave footers of
    // blocks that are gone, while older ones, durable, stand elsewhere.
    let is_durable = flush_members(port).await.is_ok();
    let notes = segment.take_notes();
    let damaged = segment.damaged();
    let mut is_whole = damaged.is_empty() && is_durable;
    let mut columns = Vec::new();
    for (column, slot, zone) in segment.zones() {
        let Some(zone) = zone else { continue };
        let is_in_sync = port.shared.members.state(slot) == MemberState::InSync;
        is_whole &= is_in_sync;
        if !is_in_sync {
            continue;
        }
        let has_footer = is_durable && !damaged.contains(&column);
        let length = if has_footer { segment.length() } else { 0 };
        let blocks = footer(&segment.headers[usize::from(column)], &notes, length, port.shared.epoch);
        columns.push(Box::pin(seal_column(port, segment, (slot, zone), length, blocks, false)));
    }
    is_whole &= join_all(columns).await.into_iter().all(|sealed| sealed);
    match is_whole {
        true => {
            segment.set_state(SegmentState::Sealed);
            let_go_of_places(port, segment);
        }
        false => segment.cut_short(&notes),
    }
    // A member that is behind lacks a column of it, or a column is damaged, or it is narrower than the array that grows.
    let members = &port.shared.members;
    let lacks = segment.zones().any(|(_, _, zone)| zone.is_none()) && !members.behind().is_empty()
        || members.is_growing() && segment.headers.len() < members.width();
    let is_of_clients = matches!(segment.headers[0].class, Class::Small | Class::Large);
    port.shared.space.closed(is_of_clients, is_whole, lacks);
}

/// Footers of all columns say where the records of a sealed segment are: memory need not. Of a column that was left out none does.
fn let_go_of_places<D: ZoneDevice>(port: &LogPort<D>, segment: &Segment) {
    let there = port.shared.table.get(segment.slot()).filter(|there| std::ptr::eq(&**there, segment));
    if let Some(segment) = there.filter(|segment| segment.zones().all(|(_, _, zone)| zone.is_some())) {
        port.shared.places.sealed(&segment);
    }
}

/// Writes a column's footer, if there is one, and finishes its zone, which is not active then. False if it has no footer now.
pub(super) async fn seal_column<D: ZoneDevice>(
    port: &LogPort<D>,
    segment: &Segment,
    (slot, zone): (usize, u32),
    length: u32,
    blocks: Vec<Vec<u8>>,
    fua: bool,
) -> bool {
    let exchanges = port.shared.members.exchanges(slot);
    let is_written = write_footer(port, segment, (slot, zone), length, &blocks, fua).await;
    let Some(device) = port.device(slot) else { return false };
    let is_same = || port.shared.members.exchanges(slot) == exchanges;
    if !is_same() {
        return false; // the zone is none of the array's any more
    }
    match device.finish(zone).await {
        _ if !is_same() => false,
        Ok(()) => {
            port.shared.table.finished(slot);
            is_written
        }
        Err(error) => {
            port.judge(slot, &error);
            set_aside(port, slot, zone).await;
            false
        }
    }
}

/// Writes a column's footer. False if it has none then.
pub(super) async fn write_footer<D: ZoneDevice>(
    port: &LogPort<D>,
    segment: &Segment,
    (slot, zone): (usize, u32),
    length: u32,
    blocks: &[Vec<u8>],
    fua: bool,
) -> bool {
    let exchanges = port.shared.members.exchanges(slot);
    let mut at = DataOffset(length).zone_block();
    let Some(device) = port.device(slot) else { return false };
    let mut rest = blocks;
    while !rest.is_empty() {
        let most = rest.len().min(port.shared.config.record_bytes_max as usize / BLOCK_BYTES);
        let blocks = device.zoned().blocks_at_once(most as u32, device.info().logical_block_bytes);
        let (chunk, later) = rest.split_at(blocks as usize);
        rest = later;
        let record = plain_record(port, &chunk.concat(), segment);
        let Some(writing) = port.write(slot, zone, Some(at), record, fua) else { return false };
        if let Err(error) = writing.await {
            port.judge_since(slot, exchanges, &error);
            return false;
        }
        if port.shared.members.exchanges(slot) != exchanges {
            return false;
        }
        at += chunk.len() as u32;
    }
    length > 0
}

/// The error of a request that no segment could take.
pub fn refused(blame: Blame, tries: usize) -> VolumeError {
    match blame {
        Blame::Array => member_needed(0, "a write failed"),
        Blame::Zone | Blame::Member => {
            VolumeError::Io { reason: format!("a stripe could not be written to any of {tries} segments") }
        }
    }
}

#[cfg(all(test, not(feature = "model")))]
mod tests {
    use super::super::config::{Appends, OpenCounts};
    use super::super::world::{RAID5, Shape, World};
    use super::*;
    use crate::zone_device::ZoneAccess;

    fn small(access: ZoneAccess, appends: Appends) -> OpenClass {
        let open = OpenCounts { small: 3, large: 1, appends };
        let world = World::new(Shape { access, open, ..RAID5 }, 1);
        OpenClass::new(&world.config(), Class::Small)
    }

    /// ZapRAID 3.3: an idle one of those that are written in order, in turn, else the one that is appended to.
    #[test]
    fn a_stripe_is_appended_where_no_other_segment_is_idle() {
        let class = small(ZoneAccess::Append, Appends::UnlessIdle);
        let be_busy = |at: usize| *class.segments[at].borrow_mut() = Current::Opening(Vec::new());
        assert_eq!([class.choose(), class.choose(), class.choose()], [1, 2, 1]);
        be_busy(1);
        assert_eq!([class.choose(), class.choose()], [2, 2]);
        be_busy(2);
        be_busy(0);
        assert_eq!([class.choose(), class.choose()], [0, 0]);
    }

    #[test]
    fn segments_of_one_kind_are_written_in_turn_however_busy() {
        for (access, appends) in [
            (ZoneAccess::Append, Appends::IfAlone),
            (ZoneAccess::Append, Appends::Only),
            (ZoneAccess::Placed, Appends::UnlessIdle),
        ] {
            let class = small(access, appends);
            *class.segments[1].borrow_mut() = Current::Opening(Vec::new());
            assert_eq!([(); 4].map(|()| class.choose()), [0, 1, 2, 0], "{access:?}, {appends:?}");
        }
    }

    /// Z-I10: clients leave reclaim room for what it moves and for its lists, and reclaim leaves a start the room for two, of which the
    /// first may be cut short.
    #[test]
    fn each_leaves_the_next_one_its_segments() {
        let [clients, map, moved, recovered] =
            [Stream::Clients(Class::Small), Stream::Map, Stream::Moved, Stream::Recovered]
                .map(|stream| stream.leaves().0);
        assert!(clients >= moved + 2 && map >= moved + 2, "{clients}, {map}: two for reclaim");
        assert!(moved >= recovered + 2, "{moved}: two for recovery");
    }
}
