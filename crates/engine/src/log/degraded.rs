//! Blocks made from the rest of their rows. A result counts only if its own checksum is right (Z-I12), so a block of another
//! member that is wrong without an error cannot pass for right: another set of columns is tried then.

use layout::units::Slot;
use layout::zoned::{BlockName, BlockPlace, ColumnRole, DataOffset};
use smallvec::SmallVec;

use super::places::{Places, StripeInGroup};
use super::port::LogPort;
use super::read_places::places_of;
use super::segment::Segment;
use crate::buffer::{Buffer, Slice};
use crate::error::VolumeError;
use crate::executor::join_all;
use crate::limits::BLOCK_BYTES;
use crate::members::MemberState;
use crate::zone_device::ZoneDevice;
use layout::units::DeviceOffset;

/// Reads a block of the log and verifies it, from the other columns where it must be (Z-I12). `name` is what it is.
pub(super) async fn read_block<D: ZoneDevice>(
    port: &LogPort<D>,
    at: BlockPlace,
    name: BlockName,
    is_right: &impl Fn(&[u8]) -> bool,
) -> Option<Slice> {
    let segment = port.shared.table.get(at.slot)?;
    let slot = segment.slot_of(at.column);
    if port.shared.members.state(slot) == MemberState::InSync
        && let Some(read) = segment.zone_of(at.column).and_then(|zone| port.read(slot, zone, at.block, 1))
    {
        let (buffer, result) = read.await;
        if result.is_ok() && is_right(buffer.bytes()) {
            return Some(buffer.freeze());
        }
    }
    make_block(port, &segment, at, name, is_right).await.ok()
}

/// Blocks side by side in one column whose rows are side by side in every other column, too.
#[derive(Clone, Copy)]
struct Stretch {
    at: BlockPlace,
    offset: DataOffset,
    blocks: usize,
}

/// The rows of a stretch, as far as its columns can be read.
struct Rows {
    data: Vec<Option<Slice>>,
    copies: Vec<Slice>,
    p: Option<Slice>,
    q: Option<Slice>,
    /// A column could not be read as a whole.
    had_errors: bool,
}

/// Makes the block at a place from the other columns of its row.
///
/// # Errors
/// Too few of them can be read, or no set of them makes a block with the right checksum.
pub async fn make_block<D: ZoneDevice>(
    port: &LogPort<D>,
    segment: &Segment,
    at: BlockPlace,
    name: BlockName,
    is_right: &impl Fn(&[u8]) -> bool,
) -> Result<Slice, VolumeError> {
    let made = make_blocks(port, segment, at, &[name], &|_, bytes: &[u8]| is_right(bytes)).await;
    made.into_iter().next().expect("a result for each block")
}

/// Makes blocks with these names that lie side by side, the first at a place, from the other columns of their rows, each of which is
/// read once for all. `is_right` is asked for a block by its number.
///
/// # Errors
/// For each block as for one alone; where the drives chose places, also that it cannot be told where the other columns have the rows.
pub async fn make_blocks<D: ZoneDevice>(
    port: &LogPort<D>,
    segment: &Segment,
    at: BlockPlace,
    names: &[BlockName],
    is_right: &impl Fn(usize, &[u8]) -> bool,
) -> Vec<Result<Slice, VolumeError>> {
    let mut made = vec![None; names.len()];
    let places = match places_of(port, segment).await {
        Ok(places) => places,
        Err(error) => return names.iter().map(|_| Err(error.clone())).collect(),
    };
    make_missing(port, segment, at, (places.as_deref(), names), is_right, &mut made).await;
    // A column that could not be read when its places were asked for may be readable now.
    let in_use = |column| port.shared.members.state(segment.slot_of(column)) == MemberState::InSync;
    if let (Some(places), Some(held)) = (places, &segment.places)
        && made.iter().any(Option::is_none)
        && places.lost().any(in_use)
    {
        held.let_go_of(&places);
        if let Ok(places) = places_of(port, segment).await {
            make_missing(port, segment, at, (places.as_deref(), names), is_right, &mut made).await;
        }
    }
    let unreadable = |number: usize| {
        let slot = segment.slot_of(at.column);
        let in_zone = (u64::from(at.block) + number as u64) * BLOCK_BYTES as u64;
        let offset = |device: std::rc::Rc<D>| {
            device.zoned().offset_bytes(segment.zone_of(at.column).unwrap_or(0), in_zone)
        };
        let offset_bytes = port.device(slot).map_or(DeviceOffset::START, offset);
        VolumeError::Unreadable { member: Slot::of_index(slot), offset_bytes }
    };
    let numbered = made.into_iter().enumerate();
    numbered.map(|(number, block)| block.ok_or_else(|| unreadable(number))).collect()
}

/// Makes those that are not `made`. `known`: where the records of the segment are, if the drives chose it, and the names of all.
async fn make_missing<D: ZoneDevice>(
    port: &LogPort<D>,
    segment: &Segment,
    at: BlockPlace,
    (places, names): (Option<&Places>, &[BlockName]),
    is_right: &impl Fn(usize, &[u8]) -> bool,
    made: &mut [Option<Slice>],
) {
    let make = async |(first, stretch): (usize, Stretch)| {
        let is_right = |number: usize, bytes: &[u8]| is_right(first + number, bytes);
        let names = &names[first..first + stretch.blocks];
        let mut made = make_stretch(port, segment, stretch, (places, names), &is_right).await;
        for number in 0..made.blocks.len() {
            // One bad block of another column makes no others of it unreadable.
            if made.blocks[number].is_none() && made.had_errors && stretch.blocks > 1 {
                let own = |_, bytes: &[u8]| is_right(number, bytes);
                let (alone, known) = (stretch.alone(number), (places, &names[number..=number]));
                made.blocks[number] = make_stretch(port, segment, alone, known, &own).await.blocks[0].take();
            }
        }
        made.blocks
    };
    let mut stretches = stretches(segment, at, names.len());
    stretches.retain(|(first, stretch)| made[*first..*first + stretch.blocks].iter().any(Option::is_none));
    let starts: SmallVec<[usize; 2]> = stretches.iter().map(|(first, _)| *first).collect();
    let results = join_all(stretches.into_iter().map(|of| Box::pin(make(of)))).await;
    for (first, blocks) in starts.into_iter().zip(results) {
        for (place, block) in made[first..].iter_mut().zip(blocks) {
            *place = place.take().or(block);
        }
    }
}

/// Blocks that lie side by side, cut where parity moves on, and where a record ends whose place the drives chose. With the number
/// of the first of each.
fn stretches(segment: &Segment, at: BlockPlace, blocks: usize) -> SmallVec<[(usize, Stretch); 2]> {
    let mut stretches = SmallVec::new();
    let mut first = 0;
    while first < blocks {
        let at = BlockPlace { block: at.block + first as u32, ..at };
        let offset = DataOffset::of_zone_block(at.block).expect("the map names blocks of the data region");
        let band = segment.shape().plan().band_blocks;
        let in_band = band - offset.0 % band;
        let record = u32::from(segment.shape().plan().record_blocks);
        let in_record = if segment.shape().is_append() { record - offset.0 % record } else { u32::MAX };
        let own = (blocks - first).min(in_band.min(in_record) as usize);
        stretches.push((first, Stretch { at, offset, blocks: own }));
        first += own;
    }
    stretches
}

impl Stretch {
    fn alone(&self, number: usize) -> Self {
        let on = number as u32;
        Stretch {
            at: BlockPlace { block: self.at.block + on, ..self.at },
            offset: DataOffset(self.offset.0 + on),
            blocks: 1,
        }
    }
}

struct Made {
    blocks: Vec<Option<Slice>>,
    had_errors: bool,
}

/// `known`: where the records of the segment are, if the drives chose it, and the names of the blocks.
async fn make_stretch<D: ZoneDevice>(
    port: &LogPort<D>,
    segment: &Segment,
    stretch: Stretch,
    known: (Option<&Places>, &[BlockName]),
    is_right: &impl Fn(usize, &[u8]) -> bool,
) -> Made {
    let mut made = Made { blocks: vec![None; stretch.blocks], had_errors: false };
    let ColumnRole::Data(index) = segment.shape().role(stretch.at.column, stretch.offset) else {
        return made;
    };
    port.counters().reconstructed_reads.add(1);
    for stripe in stripes_of(stretch, known) {
        let rows = read_rows(port, segment, (stretch, stripe), index).await;
        made.had_errors |= rows.had_errors;
        for (number, block) in made.blocks.iter_mut().enumerate().filter(|(_, block)| block.is_none()) {
            let is_right = |bytes: &[u8]| is_right(number, bytes);
            *block = solve(&rows.row(number), usize::from(index), port, &is_right);
        }
        if made.blocks.iter().all(Option::is_some) {
            break;
        }
    }
    made
}

/// Where the rows of a stretch are in the other columns.
#[derive(Clone, Copy)]
enum Rest<'a> {
    /// At the same offset.
    There,
    /// Where the drives put the records of this stripe.
    Of(&'a Places, StripeInGroup),
}

/// The stripes that a stretch may be of: more than one where its column is lost, and only the names of its blocks tell.
fn stripes_of<'a>(
    stretch: Stretch,
    (places, names): (Option<&'a Places>, &[BlockName]),
) -> SmallVec<[Rest<'a>; 2]> {
    let Some(places) = places else { return smallvec::smallvec![Rest::There] };
    let stripes = places.stripes_at(stretch.at.column, stretch.offset.0, names);
    stripes.into_iter().map(|stripe| Rest::Of(places, stripe)).collect()
}

/// Reads the other columns of the rows. What cannot be read is absent.
async fn read_rows<D: ZoneDevice>(
    port: &LogPort<D>,
    segment: &Segment,
    (stretch, rest): (Stretch, Rest<'_>),
    index: u8,
) -> Rows {
    let Stretch { at, offset, blocks } = stretch;
    let data = vec![None; segment.data_columns()];
    let mut rows = Rows { data, copies: Vec::new(), p: None, q: None, had_errors: false };
    let mut roles: SmallVec<[ColumnRole; 8]> = SmallVec::new();
    let mut reads = Vec::new();
    for (column, slot, _) in segment.zones() {
        let zone = segment.readable_zone_of(column);
        let (Some(zone), Some(block)) = (zone, rest.block(stretch, column)) else { continue };
        if column == at.column || port.shared.members.state(slot) != MemberState::InSync {
            continue;
        }
        if let Some(read) = port.read(slot, zone, block, blocks) {
            roles.push(segment.shape().role(column, offset));
            reads.push(read);
        }
    }
    for (role, (buffer, result)) in roles.into_iter().zip(join_all(reads).await) {
        if result.is_err() {
            rows.had_errors = true;
            continue;
        }
        let slice = buffer.freeze();
        match role {
            ColumnRole::Data(of) => rows.data[usize::from(of)] = Some(slice),
            ColumnRole::Copy(of) if of == index => rows.copies.push(slice),
            ColumnRole::Copy(_) => {}
            ColumnRole::P => rows.p = Some(slice),
            ColumnRole::Q => rows.q = Some(slice),
        }
    }
    rows
}

/// One row of a stripe.
struct Row<'a> {
    data: SmallVec<[Option<&'a [u8]>; 16]>,
    copies: SmallVec<[&'a [u8]; 2]>,
    p: Option<&'a [u8]>,
    q: Option<&'a [u8]>,
}

impl Rows {
    fn row<'a>(&'a self, number: usize) -> Row<'a> {
        fn of(column: &Slice, number: usize) -> &[u8] {
            &column.bytes()[number * BLOCK_BYTES..][..BLOCK_BYTES]
        }
        let of_known = |column: &'a Option<Slice>| column.as_ref().map(|column| of(column, number));
        Row {
            data: self.data.iter().map(of_known).collect(),
            copies: self.copies.iter().map(|copy| of(copy, number)).collect(),
            p: of_known(&self.p),
            q: of_known(&self.q),
        }
    }
}

impl Rest<'_> {
    /// The block of the zone at which the first row is in another column.
    fn block(&self, stretch: Stretch, column: u8) -> Option<u32> {
        match *self {
            Rest::There => Some(stretch.at.block),
            Rest::Of(places, (group, id)) => {
                let (_, in_record) = places.table.in_group(stretch.offset.0);
                let start = places.table.find(column, group, id)?;
                Some(DataOffset(start + u32::from(in_record)).zone_block())
            }
        }
    }
}

fn solve<D: ZoneDevice>(
    row: &Row<'_>,
    index: usize,
    port: &LogPort<D>,
    is_right: &impl Fn(&[u8]) -> bool,
) -> Option<Slice> {
    let right = |out: Buffer| is_right(out.bytes()).then(|| out.freeze());
    let take = || port.pool.take(BLOCK_BYTES);
    if let Some(copy) = row.copies.iter().find(|copy| is_right(copy)) {
        let mut out = take();
        out.bytes_mut().copy_from_slice(copy);
        return Some(out.freeze());
    }
    let others = || (0..row.data.len()).filter(|&of| of != index);
    let without = |left_out: Option<usize>| -> Option<SmallVec<[(usize, &[u8]); 16]>> {
        let wanted = others().filter(|&of| Some(of) != left_out);
        wanted.map(|of| Some((of, row.data[of]?))).collect()
    };
    if let (Some(p), Some(known)) = (row.p, without(None)) {
        let mut out = take();
        let known: SmallVec<[&[u8]; 16]> = known.iter().map(|(_, bytes)| *bytes).collect();
        parity::recover_data_from_p(&known, p, out.bytes_mut());
        if let Some(found) = right(out) {
            return Some(found);
        }
    }
    if let (Some(q), Some(known)) = (row.q, without(None)) {
        let mut out = take();
        parity::recover_data_from_q(&known, q, index, out.bytes_mut());
        if let Some(found) = right(out) {
            return Some(found);
        }
    }
    // Two are lost, or one of the others is wrong without an error.
    let (p, q) = (row.p?, row.q?);
    others().find_map(|of| {
        let (mut out, mut second) = (take(), take());
        let known = without(Some(of))?;
        let lost = (index, of);
        parity::recover_two_data(&known, p, q, lost, (out.bytes_mut(), second.bytes_mut()));
        right(out)
    })
}
