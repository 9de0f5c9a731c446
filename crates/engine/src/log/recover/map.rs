//! The map after a crash: that of the checkpoint, and over it what was found in segments that were read; or all from those.

use std::collections::{BTreeMap, BTreeSet};

use layout::units::{DeviceOffset, Slot};
use layout::zoned::{BlockName, BlockPlace, Class, MapEntry, Sequence, ZeroesEntry};

use super::decide::{Decision, LiveBlock, Verdict};
use super::found::{Failure, Judged, RecoverError, RecoveryReport, live_blocks, placed, read_live};
use super::known::Known;
use super::rebuild::Rebuild;
use crate::error::VolumeError;
use crate::executor::join_all;
use crate::log::map::{Claim, check_matches};
use crate::log::paging::{GROUPS_AT_ONCE, read_group, slot_of};
use crate::log::port::LogPort;
use crate::log::shared::LogShared;
use crate::log::space::SegmentKey;
use crate::zone_device::ZoneDevice;

type Segments = BTreeMap<SegmentKey, Judged>;

/// Makes the map: entries of stripes that stay before those of stripes that are to be moved, in the order of segments.
pub(super) async fn build_map<D: ZoneDevice>(
    port: &LogPort<D>,
    segments: &Segments,
    known: Option<&Known>,
    report: &mut RecoveryReport,
) -> Result<(), Failure> {
    let shared = &port.shared;
    let ranges = read_ranges(port, segments).await?;
    known.map_or(Ok(()), |known| put_out(shared, segments, known))?;
    let mut live = known.map_or_else(|| LiveCounts::none(shared), |known| LiveCounts::of(shared, known));
    let groups = groups_of(shared, segments, &ranges, known);
    load(port, &groups).await?;
    let standing = Standing::of(shared, segments);
    let mut rebuild = Rebuild::new(&shared.map);
    for &group in &groups {
        live.leave_out(shared, group);
        let as_of = known.map_or(Sequence(0), |known| known.group(group).as_of);
        rebuild.open(group, as_of, |block, entry| standing.has(block, entry));
    }
    offer(shared, segments, &ranges, &mut rebuild, report);
    for lba in rebuild.left() {
        report.lost_blocks += 1;
        shared.map.set(lba, MapEntry::Lost);
    }
    report.replayed_groups = groups.len();
    for group in rebuild.open_groups() {
        live.add(shared, group);
    }
    live.tell(shared)?;
    note_what_segments_hold(shared, segments, known);
    if let Some(known) = known {
        forget_valid_blocks(shared);
        let pinned = known.pinned(shared.map.shape());
        pinned.iter().for_each(|slot| shared.table.pin(*slot));
        shared.checkpoints.found(known.said, pinned);
    }
    Ok(())
}

/// What a checkpoint says of groups that were not read, valid bits do not: of all segments, since any group may name blocks of
/// any.
fn forget_valid_blocks(shared: &LogShared) {
    if let Some(valid) = &shared.valid {
        shared.table.all().iter().for_each(|segment| valid.forget(segment.slot()));
    }
}

/// A range of zeroes, or of lost blocks, and what is to become of its list.
struct FoundRange {
    range: ZeroesEntry,
    verdict: Verdict,
}

/// Reads the lists of zeroes of stripes that count.
async fn read_ranges<D: ZoneDevice>(
    port: &LogPort<D>,
    segments: &Segments,
) -> Result<Vec<FoundRange>, RecoverError> {
    let mut found = Vec::new();
    for verdict in [Verdict::Keep, Verdict::Move] {
        for live in used(segments).flat_map(|judged| live_blocks(judged, |of| of == verdict)) {
            let is_list = matches!(live.entry.name, BlockName::Zeroes | BlockName::Emptied);
            if is_list && verdict == Verdict::Keep {
                port.shared.table.add_list(live.place.slot);
            }
            if live.entry.name != BlockName::Zeroes {
                continue;
            }
            let contents = read_live(port, &live).await;
            let ranges = contents.and_then(|block| ZeroesEntry::parse_all(block.bytes(), &live.entry).ok());
            let unreadable =
                || VolumeError::Unreadable { member: Slot::new(0), offset_bytes: DeviceOffset::START };
            for range in ranges.ok_or_else(unreadable)? {
                if !range.is_lost {
                    let blocks = range.lba..range.lba + u64::from(range.blocks);
                    port.shared.zeroed.add(blocks, range.sequence);
                }
                found.push(FoundRange { range, verdict });
            }
        }
    }
    Ok(found)
}

fn used(segments: &Segments) -> impl Iterator<Item = &Judged> {
    segments.values().filter(|judged| !judged.is_gone)
}

/// Every group is where the root says. The segments that it names are there.
fn put_out(shared: &LogShared, segments: &Segments, known: &Known) -> Result<(), Failure> {
    let guesses = GuessedPlaces::of(shared, segments);
    for (group, word) in known.groups_with_block(0..=shared.map.groups() - 1) {
        let word = guesses.word(shared, group, word);
        let slot = slot_of(shared.map.shape(), word).filter(|slot| is_as_known(shared, known, *slot));
        let slot = slot.ok_or(Failure::Checkpoint("its root names a segment that is not there"))?;
        shared.map.put_out(group, word);
        shared.table.add_mapping(slot);
    }
    Ok(())
}

/// Whether a segment has places that are none where a record was found, and that the map must name instead of those.
fn has_guesses(judged: &Judged) -> bool {
    match &judged.decision {
        Decision::Records { stripes, .. } => stripes.iter().any(|stripe| stripe.guessed > 0),
        Decision::Sealed(_) => false,
    }
}

/// Mapping blocks of segments in which places are guessed: there they have others than the root says.
struct GuessedPlaces {
    /// By slot and first block: each with its place and checksum.
    blocks: BTreeMap<(u32, u64), Vec<(BlockPlace, u32)>>,
}

impl GuessedPlaces {
    fn of(shared: &LogShared, segments: &Segments) -> Self {
        let root = shared.map.shape().of_root();
        let mut blocks: BTreeMap<(u32, u64), Vec<(BlockPlace, u32)>> = BTreeMap::new();
        for live in used(segments)
            .filter(|judged| has_guesses(judged))
            .flat_map(|judged| live_blocks(judged, |of| of <= Verdict::Move))
        {
            if let BlockName::Mapping(first) = live.entry.name {
                let found = (live.place, root.checksum_of(live.entry.checksum));
                blocks.entry((live.place.slot, first)).or_default().push(found);
            }
        }
        GuessedPlaces { blocks }
    }

    /// The word of the place that a mapping block has now.
    fn word(&self, shared: &LogShared, group: u64, word: u64) -> u64 {
        let root = shared.map.shape().of_root();
        let Some(MapEntry::At { place, checksum }) = root.entry(word) else { return word };
        let found = self.blocks.get(&(place.slot, shared.map.blocks_of(group).start));
        let is_it = |(_, of): &&(BlockPlace, u32)| *of == checksum;
        match found.and_then(|found| found.iter().find(is_it)) {
            Some(&(place, checksum)) => root.word(MapEntry::At { place, checksum }),
            None => word,
        }
    }
}

/// Whether the segment in a slot is the one that the checkpoint has there.
fn is_as_known(shared: &LogShared, known: &Known, slot: u32) -> bool {
    let there = shared.table.get(slot).and_then(|segment| known.table.get(&segment.key()));
    there.is_some_and(|entry| entry.slot == slot)
}

/// The groups that what was found may change: of what is newer than they are, of stripes that are to be moved or are lost, of
/// segments that moved blocks go to, whose copies count where the place that the checkpoint names is gone, and of those in which places
/// are guessed. What clients wrote before a group was taken cannot change it otherwise; only where something was lost it may be the
/// last that is left, and everything is looked at.
fn groups_of(
    shared: &LogShared,
    segments: &Segments,
    ranges: &[FoundRange],
    known: Option<&Known>,
) -> BTreeSet<u64> {
    let map = &shared.map;
    let mut groups = BTreeSet::new();
    let any_lost = used(segments).any(|judged| !live_blocks(judged, |of| of >= Verdict::Lost).is_empty());
    for judged in used(segments) {
        let has_moved = matches!(judged.found.header.class, Class::Reclaim | Class::Recovery);
        let has_moved = has_moved || has_guesses(judged);
        for verdict in [Verdict::Keep, Verdict::Move, Verdict::Lost] {
            let always = any_lost || has_moved || verdict != Verdict::Keep;
            for live in live_blocks(judged, |of| of == verdict) {
                let BlockName::User(lba) = live.entry.name else { continue };
                let is_newer =
                    |group: u64| known.is_none_or(|known| known.group(group).as_of < live.entry.sequence);
                if lba < map.blocks() && (always || is_newer(map.group_of(lba))) {
                    groups.insert(map.group_of(lba));
                }
            }
        }
    }
    for FoundRange { range, .. } in ranges {
        let end = range.lba.saturating_add(range.blocks.into()).min(map.blocks());
        if range.lba >= end {
            continue;
        }
        let all = map.group_of(range.lba)..=map.group_of(end - 1);
        // A group that is all zeroes needs no zeroes; what was lost has to be said.
        match known {
            _ if range.is_lost => groups.extend(all),
            None => {}
            Some(known) => {
                let is_older = |group: &u64| known.group(*group).as_of < range.sequence;
                groups.extend(known.groups_with_block(all).map(|(group, _)| group).filter(is_older));
            }
        }
    }
    groups
}

/// Reads the groups that are in the log. None of them is let go before the array serves.
async fn load<D: ZoneDevice>(port: &LogPort<D>, groups: &BTreeSet<u64>) -> Result<(), Failure> {
    let map = &port.shared.map;
    let out = groups.iter().filter_map(|group| match map.claim(*group) {
        Claim::Read(word) => Some((*group, word)),
        Claim::There | Claim::Taken => None,
    });
    let out: Vec<(u64, u64)> = out.collect();
    for some in out.chunks(GROUPS_AT_ONCE) {
        let reads = some.iter().map(|&(group, word)| Box::pin(read_group(port, group, word, |_| true)));
        for (&(group, _), block) in some.iter().zip(join_all(reads).await) {
            map.loaded(group, &block.ok_or(Failure::Checkpoint("a mapping block cannot be read"))?);
        }
    }
    Ok(())
}

/// Which places still hold what a checkpoint says.
struct Standing<'a> {
    shared: &'a LogShared,
    /// The block at each place of segments that were read, and its checksum.
    blocks: BTreeMap<BlockPlace, (u64, u32)>,
    /// The slots of segments that were left out.
    left_out: BTreeSet<u32>,
}

impl<'a> Standing<'a> {
    fn of(shared: &'a LogShared, segments: &Segments) -> Self {
        let mut standing = Standing { shared, blocks: BTreeMap::new(), left_out: BTreeSet::new() };
        for judged in used(segments) {
            if judged.left_out.is_some() {
                standing.left_out.insert(judged.found.header.slot);
                continue;
            }
            let block = |live: LiveBlock| match live.entry.name {
                BlockName::User(lba) => Some((live.place, (lba, live.entry.checksum))),
                _ => None,
            };
            standing.blocks.extend(found_blocks(judged).into_iter().filter_map(block));
        }
        standing
    }

    fn has(&self, block: u64, entry: MapEntry) -> bool {
        let MapEntry::At { place, checksum } = entry else { return true };
        let is_there = self.shared.table.get(place.slot).is_some();
        let is_it =
            |&(lba, of): &(u64, u32)| lba == block && check_matches(self.shared.map.shape(), checksum, of);
        is_there && (self.left_out.contains(&place.slot) || self.blocks.get(&place).is_some_and(is_it))
    }
}

/// The blocks of a segment that count, each where it was found. Where drives choose places and a column cannot be read, a place in it
/// is a guess, by which another version of the same block may have the place that a checkpoint names.
fn found_blocks(judged: &Judged) -> Vec<LiveBlock> {
    let Decision::Records { stripes, .. } = &judged.decision else {
        return live_blocks(judged, |of| of <= Verdict::Move);
    };
    let found = stripes.iter().filter(|stripe| stripe.verdict <= Verdict::Move).flat_map(|stripe| {
        let is_found = |live: &LiveBlock| stripe.guessed & 1 << live.place.column == 0;
        placed(&judged.found.header, stripe).into_iter().filter(is_found)
    });
    found.collect()
}

/// Offers what was found.
fn offer(
    shared: &LogShared,
    segments: &Segments,
    ranges: &[FoundRange],
    rebuild: &mut Rebuild<'_>,
    report: &mut RecoveryReport,
) {
    for verdict in [Verdict::Keep, Verdict::Move] {
        for live in used(segments).flat_map(|judged| live_blocks(judged, |of| of == verdict)) {
            if let BlockName::User(lba) = live.entry.name {
                let checksum = shared.map.shape().checksum_of(live.entry.checksum);
                rebuild.offer(lba, live.entry.sequence, MapEntry::At { place: live.place, checksum });
            }
        }
        ranges.iter().filter(|of| of.verdict == verdict).for_each(|of| rebuild.offer_range(&of.range));
    }
    for judged in used(segments) {
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
}

/// The live blocks of each slot: as the checkpoint's table counts them, without those of groups that are made anew, and with what
/// these name then.
struct LiveCounts {
    slots: Vec<i64>,
    /// Slots whose segment is the one of the table.
    known: Vec<bool>,
}

impl LiveCounts {
    fn none(shared: &LogShared) -> Self {
        let slots = shared.config.slots() as usize;
        LiveCounts { slots: vec![0; slots], known: vec![false; slots] }
    }

    fn of(shared: &LogShared, known: &Known) -> Self {
        let mut counts = LiveCounts::none(shared);
        for entry in known.table.values() {
            if is_as_known(shared, known, entry.slot)
                && shared.table.get(entry.slot).is_some_and(|there| there.key() == (entry.segment, entry.tag))
            {
                counts.slots[entry.slot as usize] = entry.live_blocks.into();
                counts.known[entry.slot as usize] = true;
            }
        }
        counts
    }

    fn places(shared: &LogShared, group: u64) -> impl Iterator<Item = BlockPlace> {
        shared.map.blocks_of(group).filter_map(|block| shared.map.get(block).ok()?.place())
    }

    /// Takes out what the checkpoint counts of a group.
    fn leave_out(&mut self, shared: &LogShared, group: u64) {
        for BlockPlace { slot, .. } in Self::places(shared, group) {
            if self.known.get(slot as usize) == Some(&true) {
                self.slots[slot as usize] -= 1;
            }
        }
    }

    fn add(&mut self, shared: &LogShared, group: u64) {
        for place in Self::places(shared, group) {
            self.slots[place.slot as usize] += 1;
            shared.valid.iter().for_each(|valid| valid.add(place));
        }
    }

    fn tell(&self, shared: &LogShared) -> Result<(), Failure> {
        for (slot, live) in (0..).zip(&self.slots) {
            let live = u64::try_from(*live);
            let live =
                live.map_err(|_| Failure::Checkpoint("its table counts fewer live blocks than there are"))?;
            if live > 0 {
                shared.table.add_live(slot, live, false);
            }
        }
        Ok(())
    }
}

/// What later checkpoints ask: how new anything is that a segment holds, and whether it holds lists.
fn note_what_segments_hold(shared: &LogShared, segments: &Segments, known: Option<&Known>) {
    for judged in used(segments) {
        let slot = judged.found.header.slot;
        if let (Some(lists), Some(known)) = (judged.left_out, known) {
            shared.table.add_lists(slot, lists.into());
            shared.table.note_sequence(slot, known.said.sequence);
            continue;
        }
        for live in live_blocks(judged, |of| of <= Verdict::Lost) {
            shared.table.note_sequence(slot, live.entry.sequence);
        }
    }
}
