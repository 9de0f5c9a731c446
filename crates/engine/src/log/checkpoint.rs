//! Checkpoints: the map in the log, so that a start reads what changed since rather than all that was ever written (Z6).
//!
//! A checkpoint takes every group of the map as it is at a moment of its own, writes the mapping blocks of those that changed,
//! then the root, which names all of them, and the segment table; flushes all members; and superblocks name it. Z-I17: until
//! they name a newer one, no zone is reset that holds a block of it, so mapping blocks are never looked for: they are where the
//! root says.
//!
//! Why a start may leave segments out (docs/decisions/2026-11-26-checkpoints.md has the whole argument): of a group that is as of
//! A, the mapping block has every write up to A, and perhaps later ones. A segment is left out only if it took nothing more
//! when the checkpoint began and all that it holds is as old as the oldest group. So every entry that a group may lack, and
//! every one that could be taken for newer than what the group has, is in a segment that is replayed.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;
use std::sync::Arc;

use layout::zoned::{
    BlockName, BlockPlace, Checkpoint, CheckpointBlock, RootBlock, RootEntry, TABLE_ENTRIES, TableBlock,
    TableEntry,
};

use super::encode::StripeBlock;
use super::flush::flush_members;
use super::map::groups::{Root, in_root};
use super::open::Stream;
use super::page_out::{superseded, write_groups};
use super::paging::{GROUPS_AT_ONCE, slot_of};
use super::segment::{Segment, SegmentState};
use super::sequence::Sequence;
use super::shard::LogEngine;
use super::shared::LogShared;
use super::space::SegmentKey;
use super::write::{used_up, write_stripes};
use crate::buffer::Slice;
use crate::error::VolumeError;
use crate::executor::yield_now;
use crate::members::MemberState;
use crate::zone_device::ZoneDevice;

/// Groups that are looked at before other tasks of the shard have a turn.
const GROUPS_PER_TURN: u64 = 256;

/// Writes a checkpoint. Called by what empties segments, or after it has stopped: none is emptied meanwhile.
///
/// # Errors
/// It was not written; the one before stands.
pub async fn checkpoint<D: ZoneDevice>(engine: &Rc<LogEngine<D>>) -> Result<(), VolumeError> {
    let shared = &engine.port.shared;
    if !shared.checkpoints.are_on() {
        return Err(VolumeError::Io { reason: "the array keeps no checkpoints".to_owned() });
    }
    let written = write(engine).await;
    if written.is_err() {
        shared.map.give_up_checkpoint();
    }
    written
}

async fn write<D: ZoneDevice>(engine: &Rc<LogEngine<D>>) -> Result<(), VolumeError> {
    let (port, shared) = (&engine.port, &engine.port.shared);
    let sequence = shared.sequences.take().ok_or_else(used_up)?;
    // From here on a segment that is opened has a higher first sequence; those before are in the table, or never will be.
    shared.openings.readers_left().await;
    let sealed = sealed(shared);
    let (cycle, blocks) = shared.map.begin_checkpoint(|| shared.table.begin_checkpoint());
    let root = write_map(engine, cycle, blocks).await?;
    let entries = || root.values().flatten();
    // What has no block of the root is as of the checkpoint.
    let oldest = entries().map(|entry| entry.as_of).min().unwrap_or(sequence).min(sequence);
    let table = table_of(shared, &sealed, oldest);
    let lists = lists(shared, sequence, &root, &table);
    let place = |entry: &RootEntry| slot_of(shared.map.shape(), entry.place?);
    let mut pins = NewPins { shared, slots: Vec::new() };
    entries().filter_map(place).for_each(|slot| pins.add(slot));
    let segment = write_lists(engine, &lists, &mut pins).await?;
    // All that the mapping blocks name, too, whatever wrote it.
    flush_members(port).await?;
    let said = Checkpoint { segment, sequence };
    let before = shared.checkpoints.say(said, std::mem::take(&mut pins.slots));
    shared.members.want_metadata();
    shared.members.settled().await?; // else superblocks may name either, and both stay
    // Z-I17: only what superblocks do not name any more is let go.
    shared.checkpoints.forget(before.len());
    before.into_iter().for_each(|slot| shared.table.unpin(slot));
    Ok(())
}

/// The pins of a checkpoint that superblocks do not name yet: let go if they never come to.
struct NewPins<'a> {
    shared: &'a LogShared,
    slots: Vec<u32>,
}

impl NewPins<'_> {
    fn add(&mut self, slot: u32) {
        self.shared.table.pin(slot);
        self.slots.push(slot);
    }
}

impl Drop for NewPins<'_> {
    fn drop(&mut self) {
        self.slots.iter().for_each(|slot| self.shared.table.unpin(*slot));
    }
}

/// Segments that take nothing more, whole on every column: what they hold is mapped.
fn sealed(shared: &LogShared) -> BTreeSet<SegmentKey> {
    let states = shared.members.states();
    let is_there =
        |(_, slot, zone): (u8, usize, Option<u32>)| zone.is_some() && states[slot] == MemberState::InSync;
    let is_sealed = |segment: &Arc<Segment>| {
        segment.state() == SegmentState::Sealed
            && segment.zones().all(is_there)
            && !shared.space.is_mending(segment.key())
    };
    shared.table.all().iter().filter(|segment| is_sealed(segment)).map(|segment| segment.key()).collect()
}

/// Takes every group of these blocks of the root into the checkpoint, and writes the mapping blocks of those that changed.
async fn write_map<D: ZoneDevice>(
    engine: &LogEngine<D>,
    cycle: u32,
    blocks_there: Vec<u64>,
) -> Result<Root, VolumeError> {
    let (port, shared) = (&engine.port, &engine.port.shared);
    let map = &shared.map;
    let root = RefCell::new(Root::new());
    // As each was written for the checkpoint: a later one has changes that the live blocks of the table do not count.
    let placed = |group: u64, word| {
        let (block, at) = in_root(group);
        let mut root = root.borrow_mut();
        let entry = root.get_mut(&block).and_then(|entries| entries.get_mut(at));
        entry.expect("it was taken").place = Some(word);
    };
    let mut blocks = Vec::new();
    for group in blocks_there.into_iter().flat_map(|block| map.groups_of_root(block)) {
        let snapshot = loop {
            match map.snapshot(group, cycle, || shared.sequences.take()) {
                Some(snapshot) => break snapshot,
                None if shared.sequences.take().is_none() => {
                    blocks.iter().for_each(|(group, _)| map.not_written(*group));
                    return Err(used_up());
                }
                None => map.written_by_another(group).await, // to let it go
            }
        };
        superseded(shared, snapshot.released);
        let entry = RootEntry { place: snapshot.place, as_of: snapshot.as_of };
        root.borrow_mut().entry(in_root(group).0).or_default().push(entry);
        blocks.extend(snapshot.block.map(|block| (group, block)));
        if blocks.len() == GROUPS_AT_ONCE {
            write_groups(port, &engine.open, std::mem::take(&mut blocks), placed).await?;
        } else if group % GROUPS_PER_TURN == 0 {
            yield_now().await;
        }
    }
    write_groups(port, &engine.open, blocks, placed).await?;
    Ok(root.into_inner())
}

/// The segment table: what is there now. `oldest` is what the oldest group is as of.
fn table_of(shared: &LogShared, sealed: &BTreeSet<SegmentKey>, oldest: Sequence) -> Vec<TableEntry> {
    let entry = |segment: Arc<Segment>| {
        let (number, tag) = segment.key();
        let slot = segment.slot();
        TableEntry {
            segment: number,
            tag,
            slot,
            data_blocks: segment.shape().data_blocks(),
            live_blocks: shared.table.live_in_checkpoint(slot),
            width: segment.headers.len() as u8,
            is_mapped: sealed.contains(&(number, tag)) && shared.table.last_sequence(slot) <= oldest,
            is_sealed: segment.state() == SegmentState::Sealed,
            lists: shared.table.lists(slot).min(u16::MAX.into()) as u16,
        }
    };
    let mut entries: Vec<TableEntry> = shared.table.all().into_iter().map(entry).collect();
    entries.sort_unstable_by_key(|entry| entry.segment);
    entries
}

/// The root and the segment table, as blocks to be written.
fn lists(shared: &LogShared, sequence: Sequence, root: &Root, table: &[TableEntry]) -> Vec<StripeBlock> {
    let set_uuid = shared.config.set_uuid;
    let list_block = |name, bytes: Vec<u8>| StripeBlock::new(name, sequence, Slice::from_bytes(&bytes));
    let (blocks, written) = (shared.map.root_blocks() as u32, root.len() as u32);
    let root_block = |(&index, entries): (&u32, &Vec<RootEntry>)| {
        let block = CheckpointBlock { sequence, index, blocks, written };
        let bytes = RootBlock { block, entries: entries.clone() }.encode(set_uuid);
        list_block(BlockName::Root(index.into()), bytes)
    };
    let parts = table.chunks(TABLE_ENTRIES as usize);
    let blocks = parts.len() as u32;
    let table_block = |(index, entries): (u32, &[TableEntry])| {
        let block = CheckpointBlock { sequence, index, blocks, written: blocks };
        let bytes = TableBlock { block, entries: entries.to_vec() }.encode(set_uuid);
        list_block(BlockName::SegmentTable(index.into()), bytes)
    };
    root.iter().map(root_block).chain((0..).zip(parts).map(table_block)).collect()
}

/// Writes the lists, and pins them. Returns the lowest number of a segment that they are in.
async fn write_lists<D: ZoneDevice>(
    engine: &LogEngine<D>,
    lists: &[StripeBlock],
    pins: &mut NewPins<'_>,
) -> Result<u64, VolumeError> {
    let (port, table) = (&engine.port, &engine.port.shared.table);
    let slots = RefCell::new(Vec::new());
    let place = |_: usize, places: &[BlockPlace]| {
        slots.borrow_mut().extend(places.iter().map(|place| place.slot));
    };
    let result = write_stripes(port, &engine.open, Stream::Map, lists, false, place).await;
    let slots = slots.into_inner();
    slots.iter().for_each(|slot| pins.add(*slot));
    result?;
    // A start reads on from there by numbers, and where space is short they may end in a segment that was opened before.
    let numbers = slots.iter().filter_map(|slot| table.get(*slot)).map(|segment| segment.number());
    Ok(numbers.min().expect("a root of one block at least, in a segment that nothing empties now"))
}
