//! Mapping blocks on their way into the log: to let go of their groups (CLOCK), because their segments are to be emptied, or for
//! a checkpoint.
//!
//! What is written to let go of a group is for this run alone: a start knows the mapping blocks of the newest checkpoint, and
//! replays what came after it. So it may name what no flush has covered yet.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::rc::Rc;

use layout::zoned::{BlockName, BlockPlace, MapEntry};

use super::config::RESERVED_SEGMENTS;
use super::encode::StripeBlock;
use super::map::groups::ROOT_BLOCK_GROUPS;
use super::map::{Evicted, Taken};
use super::open::{OpenSegments, Stream};
use super::paging::{GROUPS_AT_ONCE, load, load_all, slot_of};
use super::port::LogPort;
use super::shard::LogEngine;
use super::shared::LogShared;
use super::write::{used_up, write_stripes};
use crate::buffer::Slice;
use crate::error::VolumeError;
use crate::executor::yield_now;
use crate::zone_device::ZoneDevice;

/// Writes mapping blocks, which [`Map`](super::map::Map) says are being written. Passes each group, and the word of its place, to `placed`.
///
/// # Errors
/// Some could not be written, and are to be written again.
pub(super) async fn write_groups<D: ZoneDevice>(
    port: &Rc<LogPort<D>>,
    open: &OpenSegments,
    groups: Vec<(u64, Vec<u8>)>,
    placed: impl Fn(u64, u64),
) -> Result<(), VolumeError> {
    let shared = &port.shared;
    let root = shared.map.shape().of_root();
    let Some(sequence) = shared.sequences.take() else {
        groups.iter().for_each(|(group, _)| shared.map.not_written(*group));
        return Err(used_up());
    };
    let block = |(group, bytes): &(u64, Vec<u8>)| {
        let name = BlockName::Mapping(shared.map.blocks_of(*group).start);
        StripeBlock::new(name, sequence, Slice::from_bytes(bytes))
    };
    let blocks: Vec<StripeBlock> = groups.iter().map(block).collect();
    let written = Cell::new(0);
    let place = |first: usize, places: &[BlockPlace]| {
        for (at, place) in (first..).zip(places) {
            let checksum = root.checksum_of(blocks[at].entry.checksum);
            let (group, word) = (groups[at].0, root.word(MapEntry::At { place: *place, checksum }));
            shared.table.add_mapping(place.slot);
            superseded(shared, shared.map.written(group, word));
            placed(group, word);
        }
        written.set(first + places.len());
        shared.memory.note_written(places.len());
    };
    let result = write_stripes(port, open, Stream::Map, &blocks, false, place).await;
    groups[written.get()..].iter().for_each(|(group, _)| shared.map.not_written(*group));
    result
}

/// A mapping block is the newest of its group no more.
pub(super) fn superseded(shared: &LogShared, word: Option<u64>) {
    let slot = word.and_then(|word| slot_of(shared.map.shape(), word));
    slot.into_iter().for_each(|slot| shared.table.remove_mapping(slot));
}

/// Writes the mapping blocks that are in these segments anew: the segments are to be emptied.
///
/// # Errors
/// Some could not be read or written.
pub(super) async fn move_groups<D: ZoneDevice>(
    engine: &LogEngine<D>,
    segments: &BTreeSet<u32>,
) -> Result<(), VolumeError> {
    let (port, map) = (&engine.port, &engine.port.shared.map);
    let is_there = |group: &u64| {
        map.place_of(*group)
            .and_then(|word| slot_of(map.shape(), word))
            .is_some_and(|slot| segments.contains(&slot))
    };
    let groups: Vec<u64> = map.groups_there().filter(is_there).collect();
    for some in groups.chunks(GROUPS_AT_ONCE) {
        load_all(port, some.iter().copied().collect()).await?;
        let mut blocks = Vec::new();
        for &group in some {
            loop {
                match map.take(group) {
                    Ok(Taken::Busy) => map.written_by_another(group).await,
                    Ok(Taken::Zeroes(old)) => break superseded(&port.shared, old),
                    Ok(Taken::Block(bytes)) => break blocks.push((group, bytes)),
                    Err(out) => {
                        if let Err(error) = load(port, out).await {
                            blocks.iter().for_each(|(group, _)| map.not_written(*group));
                            return Err(error);
                        }
                    }
                }
            }
        }
        write_groups(port, &engine.open, blocks, |_, _| {}).await?;
    }
    Ok(())
}

/// Lets go of groups whenever memory is wanted, until the array stops. One task, of the shard that reclaims.
pub async fn page_out<D: ZoneDevice>(engine: Rc<LogEngine<D>>) {
    let memory = &engine.port.shared.memory;
    let mut hand = look_through(&engine, 0).await;
    while memory.wanted().await {
        hand = turn(&engine, hand).await;
        memory.round_ended();
    }
    memory.set_running(false);
}

/// After a start from a checkpoint: looks at every group once, a few at a time, after which it is known which blocks the map names.
/// Returns where the hand is then.
async fn look_through<D: ZoneDevice>(engine: &Rc<LogEngine<D>>, mut hand: u64) -> u64 {
    let shared = &engine.port.shared;
    let Some(valid) = shared.valid.as_ref().filter(|valid| !valid.are_known()) else { return hand };
    let groups: Vec<u64> = shared.map.groups_there().collect();
    for some in groups.chunks(shared.memory.round().min(GROUPS_AT_ONCE)) {
        for &group in some {
            while let Err(out) = shared.map.look(group, |place| valid.add(place)) {
                // Reclaim asks the map of segments from before, then, and one that cannot be read comes to light there.
                if shared.memory.is_stopping() || load(&engine.port, out).await.is_err() {
                    return hand;
                }
            }
        }
        hand = turn(engine, hand).await;
        shared.memory.round_ended();
        yield_now().await;
    }
    valid.all_are_known();
    hand
}

/// Whether the map may take less memory than all of it needs: then a task lets go of groups.
pub fn is_paged(shared: &LogShared) -> bool {
    let is_paged = shared.is_map_paged();
    shared.memory.set_running(is_paged);
    is_paged
}

/// Lets go of some groups from the hand on, twice around at most. Returns where the hand is then.
async fn turn<D: ZoneDevice>(engine: &Rc<LogEngine<D>>, mut hand: u64) -> u64 {
    let (map, limit) = (&engine.port.shared.map, engine.port.shared.memory.limit().unwrap_or(usize::MAX));
    let wanted = limit - engine.port.shared.memory.round();
    // Z-I10: what is reserved is for reclaim. While nothing else is free what changed stays, and memory is exceeded.
    let may_write = || engine.port.shared.table.free_least() > RESERVED_SEGMENTS;
    let mut left = 2 * map.root_blocks_there() as u64 * ROOT_BLOCK_GROUPS;
    while map.in_memory() > wanted && left > 0 {
        let mut dirty = Vec::new();
        while map.in_memory() > wanted + dirty.len() && left > 0 && dirty.len() < GROUPS_AT_ONCE {
            hand = map.next_there(hand);
            left -= 1;
            if let Evicted::Write(bytes) = map.evict(hand, may_write()) {
                dirty.push((hand, bytes));
            }
        }
        let groups: Vec<u64> = dirty.iter().map(|(group, _)| *group).collect();
        // What cannot be written stays, and memory is exceeded.
        if !dirty.is_empty() && write_groups(&engine.port, &engine.open, dirty, |_, _| {}).await.is_err() {
            break;
        }
        groups.into_iter().for_each(|group| map.let_go(group));
    }
    hand
}
