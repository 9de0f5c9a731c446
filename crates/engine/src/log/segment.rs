//! One segment in memory: which zones it has, what is written of it and what is in flight, and what its footer will say.
//! Shared by all shards; a lock is held for a few numbers at a time.

use std::collections::VecDeque;
use std::sync::Arc;
use std::task::{Poll, Waker};

use layout::zoned::{BlockEntry, Carrier, DataOffset, OOB_BYTES, SegmentHeader, SegmentShape};
use smallvec::SmallVec;

use super::append_table::AppendTable;
use super::places::{HeldPlaces, Places};
use super::stripe_group::StripeGroups;
use crate::sync::sequential::Mutex;
use crate::sync::sequential::atomic::{AtomicBool, AtomicU32, Ordering::SeqCst};
use crate::zone_device::METADATA_SECTOR_BYTES;

/// No zone.
const NO_ZONE: u32 = u32::MAX;

/// Where a segment is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SegmentState {
    /// Its headers are durable and it takes stripes.
    Open,
    /// It takes no more stripes: those in flight return, then its footers are written.
    Closing,
    /// Every column in use has its footer, and the zones are finished.
    Sealed,
    /// It takes no more stripes, and at least one column has no footer.
    Short,
    /// Its zones are being reset.
    Resetting,
}

/// A stripe that was written whole: what the footer says of it.
#[derive(Clone, Debug)]
pub struct StripeNote {
    /// The block of the data region at which its record begins, for each column: the same in all that are not appended.
    pub starts: SmallVec<[u32; 8]>,
    /// Its id in the group; 0 where there are no groups.
    pub id: u16,
    /// Rows of its records.
    pub rows: u8,
    /// Checksums of the descriptor blocks by data index, all of one index first.
    pub descriptors: SmallVec<[u32; 8]>,
    /// Its data blocks, row by row.
    pub entries: Vec<BlockEntry>,
}

/// Where a stripe that was written whole is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StripePlace {
    /// The block of the data region at which its record begins; where the drive chooses places, that of one of its columns.
    pub start: u32,
    /// Its id in the group; 0 where there are no groups.
    pub id: u16,
    /// Blocks of each record.
    pub blocks: u32,
}

impl StripePlace {
    /// Which stripe of a segment of this shape it is.
    pub fn key(&self, shape: &SegmentShape) -> StripeKey {
        StripeKey::new(shape, DataOffset(self.start), self.id.into())
    }
}

/// What tells a stripe from the others of its segment, and is the same on all of its columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum StripeKey {
    /// Where the drive chooses places: the group, and the id in it.
    Appended {
        /// The group.
        group: u32,
        /// The id.
        id: u32,
    },
    /// Where the engine chooses them: that place.
    At(DataOffset),
}

impl StripeKey {
    /// Of a record that begins at `start`, of the stripe with this id.
    pub fn new(shape: &SegmentShape, start: DataOffset, id: u32) -> Self {
        match shape.is_append() {
            true => StripeKey::Appended { group: shape.group_of(start), id },
            false => StripeKey::At(start),
        }
    }
}

/// Room for a stripe where the engine chooses the place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// Where it begins.
    pub offset: DataOffset,
    /// Its rows. 0: the rest of a band is too short for a row.
    pub rows: u8,
    /// Blocks of each record.
    pub record_blocks: u32,
}

#[derive(Debug)]
struct Progress {
    state: SegmentState,
    /// The first block of the data region that is not reserved.
    next: u32,
    /// Stripes that are reserved and begin at or after `returned`, in order.
    out: VecDeque<(u32, u32, bool)>,
    /// Everything below has returned on all columns.
    returned: u32,
    /// Everything below was flushed on all columns.
    durable: u32,
    notes: Vec<StripeNote>,
    /// The stripes that count, where footers may not say so: of a segment that is short.
    counted: Option<Vec<StripePlace>>,
    /// Columns with a record whose end is not known, or that failed.
    damaged: SmallVec<[u8; 2]>,
    waiting: Vec<Waker>,
}

/// A segment.
pub struct Segment {
    /// The header of each column, as the segment was opened.
    pub headers: Vec<SegmentHeader>,
    /// The zone of each column now: a member that is exchanged for another takes its columns with it, and one that is made
    /// again lies elsewhere.
    zones: Box<[AtomicU32]>,
    /// Columns that lack some of what the footers of the others name: their members were away when it was written.
    unsure: SmallVec<[u8; 2]>,
    /// A start has not read what it holds: a checkpoint says what of it counts, and nothing what its lists say.
    is_left_out: AtomicBool,
    /// The groups, where the drive chooses places.
    pub groups: Option<StripeGroups>,
    /// Where the stripes of each group are, where the drive chooses places.
    pub places: Option<HeldPlaces>,
    progress: Mutex<Progress>,
}

impl Segment {
    /// A segment whose headers are durable, and of which memory has all places; `header` is that of its first column.
    pub fn new(header: &SegmentHeader, state: SegmentState) -> Self {
        Segment::with(header, state, |shape| HeldPlaces::kept(AppendTable::new(shape)))
    }

    /// A sealed segment: where its records are its footers say.
    pub fn of_footers(header: &SegmentHeader) -> Self {
        Segment::with(header, SegmentState::Sealed, |_| HeldPlaces::in_footers())
    }

    fn with(
        header: &SegmentHeader,
        state: SegmentState,
        places: impl Fn(&SegmentShape) -> HeldPlaces,
    ) -> Self {
        let shape = header.shape;
        let headers: Vec<SegmentHeader> = (0..shape.plan().columns.width())
            .map(|column| SegmentHeader { column, ..header.clone() })
            .collect();
        let groups = shape.is_append().then(|| {
            let count = shape.data_blocks() / shape.group_blocks();
            StripeGroups::new(count, shape.plan().group)
        });
        let places = shape.is_append().then(|| places(&shape));
        let progress = Progress {
            state,
            next: 0,
            out: VecDeque::new(),
            returned: 0,
            durable: 0,
            notes: Vec::new(),
            counted: None,
            damaged: SmallVec::new(),
            waiting: Vec::new(),
        };
        let zones = header.columns.iter().map(|column| AtomicU32::new(column.zone.unwrap_or(NO_ZONE)));
        let (zones, unsure) = (zones.collect(), SmallVec::new());
        let is_left_out = AtomicBool::new(false);
        Segment { zones, unsure, is_left_out, headers, groups, places, progress: Mutex::new(progress) }
    }

    /// A start leaves it out.
    pub fn leave_out(&self) {
        self.is_left_out.store(true, SeqCst);
    }

    /// Whether a start left it out.
    pub fn was_left_out(&self) -> bool {
        self.is_left_out.load(SeqCst)
    }

    /// These columns lack some of what counts: reads are made from the others, and reclaim empties the segment.
    pub fn read_without(&mut self, columns: &[u8]) {
        self.unsure.extend_from_slice(columns);
    }

    /// Where its records are, as far as memory has it, where the drive chooses places.
    pub fn places_in_memory(&self) -> Option<Arc<Places>> {
        self.places.as_ref()?.in_memory()
    }

    /// Its number.
    pub fn number(&self) -> u64 {
        self.headers[0].segment
    }

    /// Its number and the tag that was drawn for it.
    pub fn key(&self) -> (u64, u64) {
        (self.headers[0].segment, self.headers[0].tag)
    }

    /// Its slot in the map.
    pub fn slot(&self) -> u32 {
        self.headers[0].slot
    }

    /// How its zones are divided.
    pub fn shape(&self) -> &SegmentShape {
        &self.headers[0].shape
    }

    /// Data columns.
    pub fn data_columns(&self) -> usize {
        self.shape().plan().columns.data().into()
    }

    /// The member and zone of each column. None: the column is left out.
    pub fn zones(&self) -> impl Iterator<Item = (u8, usize, Option<u32>)> {
        (0..self.headers.len() as u8).map(|column| (column, self.slot_of(column), self.zone_of(column)))
    }

    /// The member of a column.
    pub fn slot_of(&self, column: u8) -> usize {
        self.headers[0].columns[usize::from(column)].slot.into()
    }

    /// The zone of a column. None: the column is left out.
    pub fn zone_of(&self, column: u8) -> Option<u32> {
        Some(self.zones[usize::from(column)].load(SeqCst)).filter(|zone| *zone != NO_ZONE)
    }

    /// The zone of a column that has all that counts.
    pub fn readable_zone_of(&self, column: u8) -> Option<u32> {
        self.zone_of(column).filter(|_| !self.unsure.contains(&column))
    }

    /// A column is in another zone from now on, or in none.
    pub fn place_column(&self, column: u8, zone: Option<u32>) {
        self.zones[usize::from(column)].store(zone.unwrap_or(NO_ZONE), SeqCst);
    }

    /// Where it is in its life.
    pub fn state(&self) -> SegmentState {
        self.progress.lock().state
    }

    /// Sets where it is in its life.
    pub fn set_state(&self, state: SegmentState) {
        let mut progress = self.progress.lock();
        progress.state = state;
        let waiting = std::mem::take(&mut progress.waiting);
        drop(progress);
        waiting.into_iter().for_each(Waker::wake);
    }

    /// No stripe is reserved from now on.
    pub fn close(&self) {
        let mut progress = self.progress.lock();
        if progress.state == SegmentState::Open {
            progress.state = SegmentState::Closing;
        }
        drop(progress);
        self.groups.iter().for_each(StripeGroups::close);
    }

    /// A record of a column failed: no stripe is reserved any more, and the column gets no footer.
    pub fn damage(&self, column: u8) {
        self.progress.lock().damaged.push(column);
        self.close();
    }

    /// Whether a record of any column failed.
    pub fn is_damaged(&self) -> bool {
        !self.progress.lock().damaged.is_empty()
    }

    /// Columns of which a record failed.
    pub fn damaged(&self) -> SmallVec<[u8; 2]> {
        self.progress.lock().damaged.clone()
    }

    /// Whether none of its stripes is in flight, where the engine chooses the place.
    pub fn is_idle(&self) -> bool {
        self.progress.lock().out.is_empty()
    }

    /// Data blocks that it has room for still, about.
    pub fn room_left(&self) -> u64 {
        let shape = self.shape();
        let all = shape.data_blocks();
        let used = match (&self.groups, self.progress.lock()) {
            (_, progress) if progress.state != SegmentState::Open => all,
            (Some(groups), _) => groups.reserved() * u32::from(shape.plan().record_blocks),
            (None, progress) => progress.next,
        };
        let rows = u64::from(shape.rows()) * u64::from(all - used.min(all)) / u64::from(all.max(1));
        rows * self.data_columns() as u64
    }

    /// Reserves room for up to `blocks` data blocks where the engine chooses the place, in the order of calls. None: the
    /// segment is full or closed.
    pub fn reserve(&self, blocks: usize) -> Option<Room> {
        let (shape, data) = (self.shape(), self.data_columns());
        let mut progress = self.progress.lock();
        let offset = DataOffset(progress.next);
        if progress.state != SegmentState::Open || offset.0 >= shape.data_blocks() {
            return None;
        }
        let plan = shape.plan();
        let room = shape.room_at(offset).min(plan.record_blocks.into());
        let room = plan.carrier.rows_in(room, plan.columns.data());
        let rows = rows_of(plan.carrier, blocks.div_ceil(data) as u32, room);
        // A rest of a band too short for a row is a record of no rows, one block for each.
        let record_blocks = plan.carrier.record_blocks(rows, plan.columns.data()).unwrap_or(1).max(1);
        progress.next += record_blocks;
        progress.out.push_back((offset.0, record_blocks, false));
        Some(Room { offset, rows: rows as u8, record_blocks })
    }

    /// All records of a stripe have returned. `note`: it was written whole.
    pub fn returned(&self, offset: DataOffset, note: Option<StripeNote>) {
        let mut progress = self.progress.lock();
        progress.notes.extend(note);
        let out = progress.out.iter_mut().find(|(start, ..)| *start == offset.0);
        out.expect("a stripe returns once").2 = true;
        while let Some(&(start, blocks, true)) = progress.out.front() {
            progress.out.pop_front();
            progress.returned = start + blocks;
        }
        let waiting = match progress.out.is_empty() {
            true => std::mem::take(&mut progress.waiting),
            false => Vec::new(),
        };
        drop(progress);
        waiting.into_iter().for_each(Waker::wake);
    }

    /// As [`Segment::returned`] where the drive chooses places: a group of which everything returned moves the end on.
    pub fn appended(&self, group: u32, note: Option<StripeNote>) {
        let mut progress = self.progress.lock();
        progress.notes.extend(note);
        // A group begins only when the one before has returned (Z-I5).
        progress.returned = progress.returned.max(group * self.shape().group_blocks());
    }

    /// Waits until nothing is in flight. Called after [`Segment::close`].
    pub async fn drained(&self) {
        if let Some(groups) = &self.groups {
            return groups.drained().await;
        }
        std::future::poll_fn(|context| {
            let mut progress = self.progress.lock();
            if progress.out.is_empty() {
                return Poll::Ready(());
            }
            progress.waiting.push(context.waker().clone());
            Poll::Pending
        })
        .await;
    }

    /// Up to where all columns have returned: what a flush that is sent now makes durable.
    pub fn returned_to(&self) -> u32 {
        self.progress.lock().returned
    }

    /// A flush of all columns that was sent at `returned` has returned.
    pub fn flushed_to(&self, returned: u32) {
        let mut progress = self.progress.lock();
        progress.durable = progress.durable.max(returned);
    }

    /// What a record that is sent now says was flushed on all columns: a block of the zone (Z-I7).
    pub fn durable_block(&self) -> u32 {
        DataOffset(self.progress.lock().durable).zone_block()
    }

    /// Blocks of the data region that were reserved.
    pub fn length(&self) -> u32 {
        match &self.groups {
            Some(_) => self.places_in_memory().map_or(0, |places| places.table.length()),
            None => self.progress.lock().next,
        }
    }

    /// Where footers do not say it: the stripes that were written whole, and while it is open the block of the data region up to
    /// which everything returned. None: footers say it, or nothing does.
    pub fn counted(&self) -> Option<(Vec<StripePlace>, Option<u32>)> {
        let progress = self.progress.lock();
        match progress.state {
            SegmentState::Open | SegmentState::Closing => {
                let places = self.places_of(&progress.notes);
                let end = places.iter().map(|place| place.start + place.blocks).max().unwrap_or(0);
                // Of appended records the ends differ by up to a group.
                let end = if self.groups.is_some() { end + self.shape().group_blocks() } else { end };
                Some((places, Some(end.min(self.shape().data_blocks()))))
            }
            SegmentState::Short => Some((progress.counted.clone()?, None)),
            SegmentState::Sealed | SegmentState::Resetting => None,
        }
    }

    fn places_of(&self, notes: &[StripeNote]) -> Vec<StripePlace> {
        let plan = self.shape().plan();
        let place = |note: &StripeNote| StripePlace {
            start: note.starts[0],
            id: note.id,
            blocks: plan.carrier.record_blocks(note.rows.into(), plan.columns.data()).unwrap_or(1),
        };
        notes.iter().map(place).collect()
    }

    /// It takes no more stripes, and a column has no footer: these stripes count.
    pub fn cut_short(&self, notes: &[StripeNote]) {
        self.progress.lock().counted = Some(self.places_of(notes));
        self.set_state(SegmentState::Short);
    }

    /// What its footers say, once nothing is in flight.
    pub fn take_notes(&self) -> Vec<StripeNote> {
        std::mem::take(&mut self.progress.lock().notes)
    }
}

/// Rows of a record: `wanted`, as far as there is `room`. Out of band, a number whose metadata one command may move.
pub fn rows_of(carrier: Carrier, wanted: u32, room: u32) -> u32 {
    let unit = (METADATA_SECTOR_BYTES / OOB_BYTES) as u32;
    match carrier {
        Carrier::Inband => wanted.min(room),
        Carrier::Oob if wanted <= unit || room <= unit => wanted.min(room).min(unit),
        Carrier::Oob => wanted.next_multiple_of(unit).min(room / unit * unit),
    }
}

#[cfg(all(test, not(feature = "model")))]
mod tests {
    use super::*;
    use crate::zone_device::is_whole_metadata;

    #[test]
    fn one_command_may_move_the_metadata_of_any_record() {
        for (wanted, room, expected) in [
            (1, 40, 1),
            (8, 40, 8),
            (9, 40, 16),
            (9, 15, 8),
            (17, 31, 24),
            (32, 32, 32),
            (5, 3, 3),
            (30, 9, 8),
            (30, 7, 7),
        ] {
            assert_eq!(rows_of(Carrier::Oob, wanted, room), expected, "{wanted} rows, room for {room}");
            assert_eq!(rows_of(Carrier::Inband, wanted, room), wanted.min(room));
        }
        for (wanted, room) in (0..=255).flat_map(|wanted| (0..=255).map(move |room| (wanted, room))) {
            let rows = rows_of(Carrier::Oob, wanted, room);
            assert!(is_whole_metadata(rows as usize * OOB_BYTES) && rows <= room);
            assert_eq!(rows == 0, wanted == 0 || room == 0);
        }
    }
}
