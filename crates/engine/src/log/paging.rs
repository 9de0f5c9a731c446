//! Groups of the map that are in the log: read when one is needed (Z6).

use std::collections::BTreeSet;
use std::ops::Range;

use layout::zoned::{BlockEntry, BlockName, BlockPlace, Checksum, MapEntry, MapShape, MappingBlock};

use super::degraded::read_block;
use super::map::{Claim, Map, OutOfMemory, check_matches};
use super::port::LogPort;
use super::shared::LogShared;
use crate::error::VolumeError;
use crate::executor::join_all;
use crate::zone_device::ZoneDevice;

/// Groups that are read at once, and mapping blocks that are written at once.
pub(super) const GROUPS_AT_ONCE: usize = 64;

/// Begins writes of blocks, before they take their sequences (Z-I3): their groups are in memory until they end.
///
/// # Errors
/// A group cannot be read.
pub async fn begin<D: ZoneDevice>(port: &LogPort<D>, blocks: Range<u64>) -> Result<(), VolumeError> {
    let shared = &port.shared;
    let mut fetch = Fetch::default();
    if shared.memory.is_full(&shared.map) && !shared.map.are_in_memory(blocks.clone()) {
        fetch.make_room(port).await; // a group that was all zeroes takes memory, too
    }
    while let Err(out) = shared.map.begin(blocks.clone(), shared.sequences.peek()) {
        fetch.bring(port, out).await?;
    }
    Ok(())
}

/// The groups that a request needs and that are in the log. It makes room in memory before the first: if it did so for each,
/// one that needs more groups than memory has room for would never have all of them.
#[derive(Default)]
pub struct Fetch {
    has_room: bool,
}

impl Fetch {
    /// Brings a group into memory, for a look without a wait, which may still find it gone.
    ///
    /// # Errors
    /// It cannot be read.
    pub async fn bring<D: ZoneDevice>(
        &mut self,
        port: &LogPort<D>,
        out: OutOfMemory,
    ) -> Result<(), VolumeError> {
        self.make_room(port).await;
        load(port, out).await
    }

    async fn make_room<D: ZoneDevice>(&mut self, port: &LogPort<D>) {
        if !std::mem::replace(&mut self.has_room, true) {
            port.shared.memory.make_room(&port.shared.map).await;
        }
    }
}

/// Where a block's contents are, for reclaim, which makes the room that others wait for and so waits for none itself.
///
/// # Errors
/// Its group cannot be read.
pub async fn entry_of<D: ZoneDevice>(port: &LogPort<D>, block: u64) -> Result<MapEntry, VolumeError> {
    loop {
        match port.shared.map.get(block) {
            Ok(entry) => return Ok(entry),
            Err(out) => load(port, out).await?,
        }
    }
}

/// [`Map::replace`] of a block whose group is brought into memory where it is not; for reclaim.
///
/// # Errors
/// Its group cannot be read.
pub async fn replace<D: ZoneDevice>(
    port: &LogPort<D>,
    block: u64,
    from: BlockPlace,
    mapped: MapEntry,
) -> Result<bool, VolumeError> {
    let shared = &port.shared;
    loop {
        match shared.map.replace(block, from, mapped, |changes| shared.count(changes)) {
            Ok(is_replaced) => return Ok(is_replaced),
            Err(out) => load(port, out).await?,
        }
    }
}

/// [`Map::holds`] of a range whose groups are brought into memory where they are not; for reclaim. One after the other: all of them
/// together may be more than memory has room for.
///
/// # Errors
/// A group cannot be read.
pub async fn holds<D: ZoneDevice>(
    port: &LogPort<D>,
    range: Range<u64>,
    wanted: MapEntry,
) -> Result<bool, VolumeError> {
    let map = &port.shared.map;
    for part in map.parts(range) {
        loop {
            match map.holds(part.clone(), wanted) {
                Ok(true) => return Ok(true),
                Ok(false) => break,
                Err(out) => load(port, out).await?,
            }
        }
    }
    Ok(false)
}

/// What the map names of all blocks, but zeroes, group after group: for checks.
///
/// # Errors
/// A group cannot be read.
pub async fn all_entries<D: ZoneDevice>(port: &LogPort<D>) -> Result<Vec<(u64, MapEntry)>, VolumeError> {
    let map = &port.shared.map;
    let mut found = Vec::new();
    let groups: Vec<u64> = map.groups_there().collect();
    for group in groups {
        loop {
            let entries: Result<Vec<MapEntry>, OutOfMemory> =
                map.blocks_of(group).map(|block| map.get(block)).collect();
            match entries {
                Ok(entries) => break found.extend(map.blocks_of(group).zip(entries)),
                Err(out) => load(port, out).await?,
            }
        }
    }
    found.retain(|(_, entry)| *entry != MapEntry::Zeroes);
    Ok(found)
}

/// Blocks in the order of the map, in parts of as many groups as may be read at once.
pub fn parts_of_groups<'a, B>(
    shared: &LogShared,
    ordered: &'a [B],
    lba: impl Fn(&B) -> u64,
) -> impl Iterator<Item = &'a [B]> {
    let (map, most) = (&shared.map, shared.memory.round().min(GROUPS_AT_ONCE));
    let mut rest = ordered;
    std::iter::from_fn(move || {
        let mut groups = rest.chunk_by(|before, next| map.group_of(lba(before)) == map.group_of(lba(next)));
        let blocks: usize = groups.by_ref().take(most).map(<[B]>::len).sum();
        let (part, later) = rest.split_at(blocks);
        rest = later;
        (blocks > 0).then_some(part)
    })
}

/// Brings groups into memory, many at once.
///
/// # Errors
/// One cannot be read.
pub async fn load_all<D: ZoneDevice>(port: &LogPort<D>, groups: BTreeSet<u64>) -> Result<(), VolumeError> {
    let groups: Vec<u64> = groups.into_iter().collect();
    for some in groups.chunks(GROUPS_AT_ONCE) {
        let loads = some.iter().map(|group| Box::pin(load(port, OutOfMemory { group: *group })));
        join_all(loads).await.into_iter().collect::<Result<(), _>>()?;
    }
    Ok(())
}

/// Reads a group, unless another task does.
///
/// # Errors
/// It cannot be read, or names a segment that is not there.
pub async fn load<D: ZoneDevice>(
    port: &LogPort<D>,
    OutOfMemory { group }: OutOfMemory,
) -> Result<(), VolumeError> {
    let shared = &port.shared;
    loop {
        // Z-I4: the segment of the mapping block that is found from here on is not reset under the read.
        let pin = shared.pins.enter(port.shard);
        match shared.map.claim(group) {
            Claim::There => return Ok(()),
            Claim::Taken => {
                drop(pin);
                shared.map.read_by_another(group).await;
            }
            Claim::Read(word) => {
                let claimed = Claimed { map: &shared.map, group };
                let block = read_group(port, group, word, |slot| shared.table.is_there(slot)).await;
                let reason = || {
                    format!(
                        "the map of blocks {:?} can neither be read nor made from the other members; stop the array and serve it \
                         with --checkpoint off, which makes the map anew from the log",
                        shared.map.blocks_of(group)
                    )
                };
                let block = block.ok_or_else(|| VolumeError::Io { reason: reason() })?;
                std::mem::forget(claimed);
                shared.memory.note_read();
                shared.map.loaded(group, &block);
                return Ok(());
            }
        }
    }
}

/// A group that a task reads: others may, if it does not.
struct Claimed<'a> {
    map: &'a Map,
    group: u64,
}

impl Drop for Claimed<'_> {
    fn drop(&mut self) {
        self.map.not_loaded(self.group);
    }
}

/// Reads a mapping block at the place of a word, verified, from the other columns where it must be. What it names is in slots for
/// which `is_there`.
pub(super) async fn read_group<D: ZoneDevice>(
    port: &LogPort<D>,
    group: u64,
    word: u64,
    is_there: impl Fn(u32) -> bool,
) -> Option<MappingBlock> {
    let (map, shape) = (&port.shared.map, port.shared.map.shape().of_root());
    let MapEntry::At { place, checksum } = shape.entry(word)? else { return None };
    let is_right = |bytes: &[u8]| check_matches(&shape, checksum, Checksum::of(bytes));
    let name = BlockName::Mapping(map.blocks_of(group).start);
    let contents = read_block(port, place, name, &is_right).await?;
    let entry =
        BlockEntry { name, sequence: super::sequence::Sequence(1), checksum: Checksum::of(contents.bytes()) };
    MappingBlock::parse_where(contents.bytes(), &entry, map.shape(), is_there).ok()
}

/// The slot of the segment that a mapping block is in.
pub(super) fn slot_of(shape: &MapShape, word: u64) -> Option<u32> {
    Some(shape.of_root().entry(word)?.place()?.slot)
}
