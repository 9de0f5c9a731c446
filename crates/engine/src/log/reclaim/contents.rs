//! What a victim holds that counts still, read from its footers, or from its records where footers are missing, exactly as a
//! start reads it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use layout::zoned::{
    BlockName, BlockPlace, DataOffset, EMPTIED_MAX, EmptiedEntry, MapEntry, Sequence, ZEROES_MAX, ZeroesEntry,
};

use crate::buffer::Slice;
use crate::error::VolumeError;
use crate::executor::yield_now;
use crate::log::degraded::make_blocks;
use crate::log::encode::StripeBlock;
use crate::log::paging::{entry_of, holds, load_all, parts_of_groups};
use crate::log::port::LogPort;
use crate::log::read_places::{find_columns, places_of};
use crate::log::recover::decide::{Decision, LiveBlock, StripeFound, Verdict, blocks_of, place_missing};
use crate::log::recover::found::{Judged, live_blocks, placed, read_live};
use crate::log::recover::judge;
use crate::log::segment::Segment;
use crate::log::shared::LogShared;
use crate::members::MemberState;
use crate::zone_device::ZoneDevice;

/// What is to be moved out of a segment.
pub struct Contents {
    /// Blocks that the map names here, in the order of their places.
    pub mapped: Vec<LiveBlock>,
    /// Ranges that read as zeroes, or as lost, since writes that stand.
    pub zeroes: Vec<ZeroesEntry>,
    /// Segments that are not reset yet.
    pub emptied: Vec<EmptiedEntry>,
}

/// Reads what a segment holds. None: it cannot be told now, since too much of it cannot be read.
pub async fn read_contents<D: ZoneDevice>(port: &LogPort<D>, segment: &Segment) -> Option<Contents> {
    let judged = judge_again(port, segment).await?;
    let shared = &port.shared;
    let mut contents = Contents { mapped: Vec::new(), zeroes: Vec::new(), emptied: Vec::new() };
    let lives = live_blocks(&judged, |verdict| verdict <= Verdict::Move);
    let (mut users, others): (Vec<LiveBlock>, Vec<LiveBlock>) =
        lives.into_iter().partition(|live| matches!(live.entry.name, BlockName::User(_)));
    let guessed = guessed_places(&judged);
    users.retain(|live| !guessed.contains(&live.place)); // the map names none of them
    contents.mapped = mapped_of(port, users).await.ok()?;
    let was_left_out = segment.was_left_out();
    let mut lists = 0;
    for live in others {
        match live.entry.name {
            BlockName::Zeroes => {
                lists += 1;
                let block = read_live(port, &live).await?;
                let ranges = ZeroesEntry::parse_all(block.bytes(), &live.entry).ok()?;
                for range in &ranges {
                    if was_left_out && !range.is_lost {
                        shared.zeroed.add(range.lba..range.lba + u64::from(range.blocks), range.sequence);
                    }
                    contents.zeroes.extend(standing(port, range).await.ok()?);
                }
            }
            BlockName::Emptied => {
                lists += 1;
                let block = read_live(port, &live).await?;
                let entries = EmptiedEntry::parse_all(block.bytes(), &live.entry).ok()?;
                // What a start left out, nothing else knows: a member that is away may hold any of them.
                let is_away = was_left_out && !shared.members.are_all_in_sync();
                let is_needed =
                    |entry: &&EmptiedEntry| is_away || shared.space.needs_entry((entry.segment, entry.tag));
                contents.emptied.extend(entries.iter().filter(is_needed));
            }
            _ => {}
        }
    }
    if lists < shared.table.lists(segment.slot()) {
        return None; // the map does not tell that a list is missing, and what it says must not be lost
    }
    contents.mapped.sort_unstable_by_key(|live| (live.place.column, live.place.block));
    Some(contents)
}

/// Those blocks of a segment that the map names: by their bits, where these are known, so that no group is read for what is dead.
async fn mapped_of<D: ZoneDevice>(
    port: &LogPort<D>,
    mut users: Vec<LiveBlock>,
) -> Result<Vec<LiveBlock>, VolumeError> {
    let shared = &port.shared;
    if let Some(valid) = &shared.valid
        && users.first().is_some_and(|live| valid.is_known(live.place.slot))
    {
        users.retain(|live| valid.has(live.place) == Some(true));
        return Ok(users);
    }
    let lba = |live: &LiveBlock| match live.entry.name {
        BlockName::User(lba) => lba,
        _ => unreachable!("a block of a client"),
    };
    users.retain(|live| lba(live) < shared.map.blocks());
    users.sort_unstable_by_key(lba);
    let mut mapped = Vec::new();
    for part in parts_of_groups(shared, &users, lba) {
        load_all(port, part.iter().map(|live| shared.map.group_of(lba(live))).collect()).await?;
        for live in part {
            if is_mapped(port, live).await? {
                mapped.push(*live);
            }
        }
        shared.memory.ask(&shared.map);
        yield_now().await; // clients of this shard wait
    }
    Ok(mapped)
}

/// Whether the map names a block here.
///
/// # Errors
/// Its group cannot be read.
pub async fn is_mapped<D: ZoneDevice>(port: &LogPort<D>, live: &LiveBlock) -> Result<bool, VolumeError> {
    let BlockName::User(lba) = live.entry.name else { return Ok(false) };
    if lba >= port.shared.map.blocks() {
        return Ok(false);
    }
    Ok(matches!(entry_of(port, lba).await?, MapEntry::At { place, .. } if place == live.place))
}

/// The lists as blocks, and the sequence of each list is one of its own: what counts is those of its rows.
pub fn list_blocks(shared: &LogShared, contents: &[Contents]) -> Option<Vec<StripeBlock>> {
    let mut blocks = Vec::new();
    let mut add = |name, bytes: Vec<u8>| {
        blocks.push(StripeBlock::new(name, shared.sequences.take()?, Slice::from_bytes(&bytes)));
        Some(())
    };
    let zeroes: Vec<ZeroesEntry> = contents.iter().flat_map(|contents| contents.zeroes.clone()).collect();
    for ranges in zeroes.chunks(ZEROES_MAX) {
        add(BlockName::Zeroes, ZeroesEntry::encode_all(ranges))?;
    }
    let emptied: Vec<EmptiedEntry> = contents.iter().flat_map(|contents| contents.emptied.clone()).collect();
    for entries in emptied.chunks(EMPTIED_MAX) {
        add(BlockName::Emptied, EmptiedEntry::encode_all(entries))?;
    }
    Some(blocks)
}

/// The parts of a range for which no newer write of zeroes stands, but those that data has covered whole (Z-I13: an older
/// block may be anywhere in the log, so what still reads as zeroes needs its entry).
async fn standing<D: ZoneDevice>(
    port: &LogPort<D>,
    range: &ZeroesEntry,
) -> Result<Vec<ZeroesEntry>, VolumeError> {
    let shared = &port.shared;
    let end = (range.lba + u64::from(range.blocks)).min(shared.map.blocks());
    if range.is_lost {
        let is_lost = holds(port, range.lba..end, MapEntry::Lost).await?;
        return Ok(if is_lost { vec![*range] } else { Vec::new() });
    }
    let mut standing = Vec::new();
    for part in shared.zeroed.parts(range.lba..end, range.sequence) {
        if holds(port, part.clone(), MapEntry::Zeroes).await? {
            let blocks = (part.end - part.start) as u32;
            standing.push(ZeroesEntry { lba: part.start, blocks, ..*range });
        } else {
            shared.zeroed.remove(part, range.sequence);
        }
    }
    Ok(standing)
}

async fn judge_again<D: ZoneDevice>(port: &LogPort<D>, segment: &Segment) -> Option<Judged> {
    let zones = find_columns(port, segment).await;
    let mut judged = judge(&|slot| port.device(slot), &port.pool, &segment.headers[0], zones).await;
    as_placed(port, segment, &mut judged).await.ok()?;
    // Nothing of it on any column that can be read is no proof here: it may be that none can be.
    judged.zones.iter().any(Option::is_some).then_some(judged)
}

/// Where drives chose places, those of columns that cannot be read are the ones that the map names: as memory has them, or else as
/// the map itself says. What it names nothing of keeps a place that is a guess.
///
/// # Errors
/// A group of the map cannot be read, or too few columns tell where records are.
async fn as_placed<D: ZoneDevice>(
    port: &LogPort<D>,
    segment: &Segment,
    judged: &mut Judged,
) -> Result<(), VolumeError> {
    let Decision::Records { stripes, .. } = &mut judged.decision else { return Ok(()) };
    let Some(places) = places_of(port, segment).await? else { return Ok(()) };
    for stripe in &mut *stripes {
        let Some(any) = stripe.starts.iter().flatten().next().copied() else { continue };
        let group = segment.shape().group_of(DataOffset(any));
        for column in 0..segment.headers.len() as u8 {
            let (start, is_guessed) =
                (&mut stripe.starts[usize::from(column)], stripe.guessed & 1 << column != 0);
            if let Some(known) = places.table.find(column, group, stripe.id) {
                *start = Some(known);
                stripe.guessed &= !(1 << column);
            } else if is_guessed && !places.lost().any(|lost| lost == column) {
                *start = None; // another may be there
            }
        }
    }
    for column in places.lost() {
        place_by_map(port, segment, stripes, column).await?;
    }
    place_missing(&judged.found.header, stripes);
    Ok(())
}

/// A block of a client in a column of which no place is known.
struct Unplaced {
    lba: u64,
    sequence: Sequence,
    /// The number of its stripe.
    stripe: usize,
    /// Which block of its record it is.
    in_record: u32,
}

/// Gives the records of a column the places that the map names, and no others. Of two versions of a block that could be at a place
/// it names the newer one.
async fn place_by_map<D: ZoneDevice>(
    port: &LogPort<D>,
    segment: &Segment,
    stripes: &mut [StripeFound],
    column: u8,
) -> Result<(), VolumeError> {
    let (shape, map) = (segment.shape(), &port.shared.map);
    let group_of =
        |stripe: &StripeFound| Some(shape.group_of(DataOffset(*stripe.starts.iter().flatten().next()?)));
    let mut unplaced: Vec<Unplaced> = Vec::new();
    for (number, stripe) in stripes.iter().enumerate() {
        for (entry, place) in blocks_of(&segment.headers[0], stripe) {
            let (BlockName::User(lba), Some(place)) = (entry.name, place) else { continue };
            let start = stripe.starts[usize::from(column)];
            if let (true, Some(start)) = (place.column == column && lba < map.blocks(), start) {
                let in_record = place.block - DataOffset(start).zone_block();
                unplaced.push(Unplaced { lba, sequence: entry.sequence, stripe: number, in_record });
            }
        }
    }
    unplaced.sort_unstable_by_key(|own| own.lba);
    let mut newest: BTreeMap<u32, (Sequence, usize)> = BTreeMap::new();
    for part in parts_of_groups(&port.shared, &unplaced, |own| own.lba) {
        load_all(port, part.iter().map(|own| map.group_of(own.lba)).collect()).await?;
        for own in part {
            let MapEntry::At { place, .. } = entry_of(port, own.lba).await? else { continue };
            let start = place.block.checked_sub(DataOffset(own.in_record).zone_block());
            let Some(start) = start.filter(|_| (place.slot, place.column) == (segment.slot(), column)) else {
                continue;
            };
            let is_there = start.is_multiple_of(shape.plan().record_blocks.into())
                && group_of(&stripes[own.stripe]) == Some(shape.group_of(DataOffset(start)));
            let best = newest.get(&start).is_none_or(|(sequence, _)| *sequence < own.sequence);
            if is_there && best {
                newest.insert(start, (own.sequence, own.stripe));
            }
        }
        port.shared.memory.ask(map);
        yield_now().await; // clients of this shard wait
    }
    stripes.iter_mut().for_each(|stripe| stripe.starts[usize::from(column)] = None);
    for (start, (_, number)) in newest {
        let stripe = &mut stripes[number];
        stripe.starts[usize::from(column)] = Some(start);
        stripe.guessed &= !(1 << column);
    }
    Ok(())
}

/// The places of a segment's blocks that are guesses.
fn guessed_places(judged: &Judged) -> BTreeSet<BlockPlace> {
    let Decision::Records { stripes, .. } = &judged.decision else { return BTreeSet::new() };
    let guessed = stripes.iter().filter(|stripe| stripe.guessed > 0);
    let places = guessed.flat_map(|stripe| {
        let is_guessed = |live: &LiveBlock| stripe.guessed & 1 << live.place.column != 0;
        placed(&judged.found.header, stripe).into_iter().filter(is_guessed)
    });
    places.map(|live| live.place).collect()
}

/// A run of blocks side by side on one column, read at once. Each is verified, and made from the others where it is not right
/// (Z-I12). None: it cannot be read or made.
pub async fn read_mapped<D: ZoneDevice>(
    port: &LogPort<D>,
    segment: &Arc<Segment>,
    run: &[LiveBlock],
) -> Vec<Option<StripeBlock>> {
    let at = run[0].place;
    let slot = segment.slot_of(at.column);
    let is_there = port.shared.members.state(slot) == MemberState::InSync;
    let reading = segment.zone_of(at.column).filter(|_| is_there);
    let reading = reading.and_then(|zone| port.read(slot, zone, at.block, run.len()));
    let read = match reading {
        None => None,
        Some(reading) => {
            let (buffer, result) = reading.await;
            result.is_ok().then(|| buffer.freeze())
        }
    };
    let right = |live: &LiveBlock, data: &[u8]| layout::zoned::Checksum::of(data) == live.entry.checksum;
    let own = |(index, live): (usize, &LiveBlock)| {
        let block = read.as_ref()?.part(index * crate::limits::BLOCK_BYTES, crate::limits::BLOCK_BYTES);
        right(live, block.bytes()).then_some(block)
    };
    let mut blocks: Vec<Option<Slice>> = run.iter().enumerate().map(own).collect();
    let mut first = 0;
    while let Some(from) = blocks[first..].iter().position(Option::is_none).map(|on| first + on) {
        let wrong = blocks[from..].iter().take_while(|block| block.is_none()).count();
        let lives = &run[from..from + wrong];
        let is_right = |number: usize, data: &[u8]| right(&lives[number], data);
        let names: Vec<BlockName> = lives.iter().map(|live| live.entry.name).collect();
        let made = make_blocks(port, segment, lives[0].place, &names, &is_right).await;
        for ((made, live), block) in made.into_iter().zip(lives).zip(&mut blocks[from..]) {
            // Its run may have failed by another block.
            *block = match made {
                Ok(made) => Some(made),
                Err(_) => read_live(port, live).await,
            };
        }
        first = from + wrong;
    }
    let entries = run.iter().map(|live| live.entry);
    let with_entry = |(entry, data): (_, Option<Slice>)| data.map(|data| StripeBlock { entry, data });
    entries.zip(blocks).map(with_entry).collect()
}
