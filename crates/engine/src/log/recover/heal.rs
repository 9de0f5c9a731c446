//! Makes whole what a crash left half done. Each step leaves what the next start needs to do it again.

use std::collections::BTreeSet;
use std::sync::Arc;

use layout::zoned::{
    Access, BlockEntry, BlockName, BlockPlace, Carrier, Class, DataOffset, EMPTIED_MAX, EmptiedEntry,
    FenceBlock, HEADER_BLOCKS, MapEntry, RecordKind, SegmentHeader, ZEROES_MAX, ZeroesEntry,
};
use smallvec::SmallVec;

use super::decide::{Decision, LiveBlock, StripeFound, Verdict, newest_footers};
use super::found::{Judged, Loose, RecoverError, RecoveryReport, placed, read_live};
use super::scan::{HeaderFound, ZoneFound};
use crate::buffer::{Gather, Slice};
use crate::device::DeviceError;
use crate::error::VolumeError;
use crate::executor::join_all;
use crate::limits::BLOCK_BYTES;
use crate::log::append::{block_at, reserve, returned, write_stripe};
use crate::log::damage::{self, Damage};
use crate::log::encode::StripeBlock;
use crate::log::flush::flush_members;
use crate::log::footer::footer;
use crate::log::open::{Stream, close_segment, open_segment, refused, seal_column, set_aside, write_footer};
use crate::log::port::{Blame, LogPort};
use crate::log::segment::{Segment, SegmentState, StripeNote};
use crate::members::MemberState;
use crate::zone_device::{ZoneDevice, ZoneOffset, ZoneState};

/// Zones that were active and are finished by now: member and zone.
type Finished = BTreeSet<(usize, u32)>;

/// Segments that are tried for one stripe.
const TRIES_MAX: usize = 8;

/// Moves stripes that lack a column, seals what is open, and resets what nothing maps to.
pub async fn heal<D: ZoneDevice>(
    port: &LogPort<D>,
    segments: &[&Judged],
    loose: &Loose,
    report: &mut RecoveryReport,
) -> Result<(), RecoverError> {
    // What was read may still be in the members' caches, if no power was cut: what is decided from it must not be lost alone.
    flush_members(port).await?;
    let mut writer = Writer { port, segment: None };
    // First what needs no zone of its own, so that recovery always has one (Z-I9, Z-I10).
    let needs_room = |judged: &Judged| {
        [Verdict::Move, Verdict::Lost].into_iter().any(|verdict| stripes_of(judged, verdict).next().is_some())
    };
    let (later, now): (Vec<&Judged>, Vec<&Judged>) =
        segments.iter().copied().partition(|judged| needs_room(judged));
    let mut finished = BTreeSet::new();
    seal(port, &now, &mut finished, report).await?;
    make_room(port, segments, &mut finished).await;
    move_stripes(&mut writer, &later, report).await?;
    keep_lost(&mut writer, &later).await?;
    seal(port, &later, &mut finished, report).await?;
    // Z-I4: only now, with the whole map known.
    let mut empty = empty_segments(port, segments);
    let entry = |judged: &&Judged| {
        let header = &judged.found.header;
        EmptiedEntry { segment: header.segment, tag: header.tag }
    };
    let entries: Vec<EmptiedEntry> = empty.iter().map(entry).collect();
    for entries in entries.chunks(EMPTIED_MAX) {
        let contents = Slice::from_bytes(&EmptiedEntry::encode_all(entries));
        match writer.write(BlockName::Emptied, None, contents).await {
            Err(VolumeError::NoSpace { .. }) => empty.clear(), // they stay as they are, and reclaim empties them
            written => written?,
        }
    }
    flush_members(port).await?;
    // Before any zone is reset: what is left of a segment must not look like one that lacks columns.
    let to_reset: BTreeSet<(usize, u32)> = empty
        .iter()
        .flat_map(|judged| judged.zones.iter().flatten())
        .map(|zone| (zone.slot, zone.zone))
        .collect();
    let to_finish = |zone: &&ZoneFound| {
        let at = (zone.slot, zone.zone);
        !finished.contains(&at) && !to_reset.contains(&at)
    };
    join_all(loose.active.iter().filter(to_finish).map(|zone| Box::pin(fence(port, zone)))).await;
    let reset = reset(port, &empty, &loose.unused, &finished, report).await;
    // What is left of segments that are gone has to stay gone: their emptied entries are needed as long.
    let is_left = |judged: &&&Judged| {
        let mut zones = judged.zones.iter().flatten();
        judged.is_gone && zones.any(|zone| !reset.contains(&(zone.slot, zone.zone)))
    };
    let left = segments.iter().filter(is_left).map(|judged| &judged.found.header);
    left.for_each(|header| port.shared.space.resetting((header.segment, header.tag)));
    finish_rest(port, &loose.active, (&finished, &reset), report).await;
    flush_members(port).await?;
    if let Some(segment) = writer.segment {
        port.shared.table.hand_over(segment);
    }
    Ok(())
}

/// Writes blocks durably into segments of recovery, which user writes leave room for (Z-I10).
struct Writer<'a, D> {
    port: &'a LogPort<D>,
    segment: Option<Arc<Segment>>,
}

impl<D: ZoneDevice> Writer<'_, D> {
    async fn write(
        &mut self,
        name: BlockName,
        sequence: Option<layout::zoned::Sequence>,
        contents: Slice,
    ) -> Result<(), VolumeError> {
        let fresh = || self.port.shared.sequences.take().expect("an epoch that just began has numbers");
        let block = StripeBlock::new(name, sequence.unwrap_or_else(fresh), contents);
        let shared = Arc::clone(&self.port.shared);
        self.write_all(&[block], |_, place| shared.table.add_list(place.slot)).await
    }

    /// Writes blocks, and passes the place of each to `at`.
    async fn write_all(
        &mut self,
        blocks: &[StripeBlock],
        mut at: impl FnMut(&StripeBlock, BlockPlace),
    ) -> Result<(), VolumeError> {
        let (mut rest, mut tries) = (blocks, 0);
        while !rest.is_empty() {
            let segment = match &self.segment {
                Some(segment) => Arc::clone(segment),
                None => {
                    let access = self.port.shared.config.access_of(Class::Recovery, 0);
                    open_segment(self.port, Stream::Recovered, access).await?
                }
            };
            self.segment = Some(Arc::clone(&segment));
            let Some((reserved, count)) = reserve(&segment, rest.len()).await else {
                self.segment = None;
                close_segment(self.port, &segment).await;
                continue;
            };
            let (now, later) = rest.split_at(count);
            match write_stripe(self.port, &segment, reserved, now, true).await {
                Ok(written) => {
                    for (index, block) in now.iter().enumerate() {
                        at(block, block_at(&segment, &written, index));
                    }
                    returned(&segment, reserved, Some(written.note));
                    rest = later;
                }
                Err(blame) => {
                    returned(&segment, reserved, None);
                    tries += 1;
                    self.segment = None;
                    if blame == Blame::Array || tries == TRIES_MAX {
                        return Err(refused(blame, tries));
                    }
                    close_segment(self.port, &segment).await;
                }
            }
        }
        Ok(())
    }
}

fn stripes_of(judged: &Judged, verdict: Verdict) -> impl Iterator<Item = &StripeFound> {
    let stripes: &[StripeFound] = match &judged.decision {
        Decision::Records { stripes, .. } if !judged.is_gone => stripes,
        _ => &[],
    };
    stripes.iter().filter(move |stripe| stripe.verdict == verdict)
}

/// Writes the blocks that still count of stripes that lack a column anew, with their sequences: there they are redundant.
async fn move_stripes<D: ZoneDevice>(
    writer: &mut Writer<'_, D>,
    segments: &[&Judged],
    report: &mut RecoveryReport,
) -> Result<(), RecoverError> {
    let shared = Arc::clone(&writer.port.shared);
    let mut others = BTreeSet::new();
    for judged in segments {
        for stripe in stripes_of(judged, Verdict::Move) {
            let mut moved = Vec::new();
            for live in placed(&judged.found.header, stripe) {
                let counts = match live.entry.name {
                    BlockName::User(lba) => {
                        lba < shared.map.blocks()
                            && matches!(shared.map.get(lba), Ok(MapEntry::At { place, .. }) if place == live.place)
                    }
                    _ => others.insert((live.entry.name.to_word(), live.entry.sequence, live.entry.checksum)),
                };
                if counts {
                    moved.push(moved_block(writer.port, &live).await?);
                }
            }
            report.moved_stripes += usize::from(!moved.is_empty());
            let map = |block: &StripeBlock, place: BlockPlace| {
                match block.entry.name {
                    BlockName::User(lba) => {
                        shared.table.note_sequence(place.slot, block.entry.sequence);
                        let checksum = shared.map.shape().checksum_of(block.entry.checksum);
                        shared.count(&[shared.map.set(lba, MapEntry::At { place, checksum })]);
                    }
                    BlockName::Zeroes | BlockName::Emptied => shared.table.add_list(place.slot),
                    // Z-I17: the next start finds the checkpoint's lists here, and no more where they were.
                    BlockName::Root(_) | BlockName::SegmentTable(_)
                        if shared
                            .checkpoints
                            .said()
                            .is_some_and(|said| said.sequence == block.entry.sequence) =>
                    {
                        shared.table.pin(place.slot);
                        shared.checkpoints.moved(place.slot);
                    }
                    _ => {}
                }
            };
            writer.write_all(&moved, map).await?;
        }
    }
    Ok(())
}

async fn moved_block<D: ZoneDevice>(
    port: &LogPort<D>,
    live: &LiveBlock,
) -> Result<StripeBlock, RecoverError> {
    let Some(data) = read_live(port, live).await else {
        let reason = format!("{} of a stripe that was whole cannot be read again", live.entry.name);
        return Err(VolumeError::Io { reason }.into());
    };
    Ok(StripeBlock { entry: live.entry, data })
}

/// Writes down which blocks are lost, so that no later start takes an older value for them (Z-I7).
async fn keep_lost<D: ZoneDevice>(
    writer: &mut Writer<'_, D>,
    segments: &[&Judged],
) -> Result<(), RecoverError> {
    let shared = Arc::clone(&writer.port.shared);
    let mut lost = Vec::new();
    for judged in segments {
        for stripe in stripes_of(judged, Verdict::Lost) {
            for BlockEntry { name, sequence, .. } in &stripe.descriptor.entries {
                if let BlockName::User(lba) = *name
                    && lba < shared.map.blocks()
                    && shared.map.get(lba) == Ok(MapEntry::Lost)
                {
                    lost.push(ZeroesEntry { lba, blocks: 1, is_lost: true, sequence: *sequence });
                }
            }
        }
    }
    for ranges in lost.chunks(ZEROES_MAX) {
        let contents = Slice::from_bytes(&ZeroesEntry::encode_all(ranges));
        writer.write(BlockName::Zeroes, None, contents).await?;
    }
    Ok(())
}

/// Seals every segment without footers: from here on its footers say what counts, and no later crash or returning member
/// changes it (Z-I6).
async fn seal<D: ZoneDevice>(
    port: &LogPort<D>,
    segments: &[&Judged],
    finished: &mut Finished,
    report: &mut RecoveryReport,
) -> Result<(), RecoverError> {
    for judged in segments.iter().filter(|judged| !judged.is_gone) {
        let header = &judged.found.header;
        let Decision::Records { stripes, .. } = &judged.decision else { continue };
        if port.shared.table.live(header.slot) == 0 && !holds_others(judged, keeps_emptied(port, segments)) {
            continue; // it is emptied instead
        }
        let Some(segment) = port.shared.table.get(header.slot) else { continue };
        let kept = stripes.iter().filter(|stripe| stripe.verdict == Verdict::Keep);
        let notes: Vec<StripeNote> = kept.map(|stripe| note_of(&segment.headers, stripe)).collect();
        let newest = newest_footers(&judged.found);
        let mut sealing = Vec::new();
        for (column, zone) in (0u8..).zip(&judged.zones) {
            let Some(zone) = zone else { continue };
            let is_open = zone.is_active() && !finished.contains(&(zone.slot, zone.zone));
            let is_writable = is_open || zone.state == ZoneState::NoPointer;
            if !is_writable || newest[usize::from(column)] && !is_open {
                continue;
            }
            let is_new = !newest[usize::from(column)];
            let own = &segment.headers[usize::from(column)];
            let is_filled = !(is_open && is_new) || fill_up(port, zone, own).await;
            let length = footer_length(header, zone, &notes, column).filter(|_| is_new && is_filled);
            if is_open && is_new && is_filled && length.is_none() {
                fence_filled(port, zone, own).await;
            }
            let blocks = footer(own, &notes, length.unwrap_or(0), port.shared.epoch);
            finished.insert((zone.slot, zone.zone));
            let at = (zone.slot, zone.zone);
            sealing.push(Box::pin(close_column(port, &segment, at, (length, blocks), is_open)));
        }
        let written = join_all(sealing).await.into_iter().filter(|is_written| *is_written).count();
        let had = newest.iter().filter(|has| **has).count();
        // Of footers of two epochs the next start takes the newer ones.
        let of_one_epoch = if written > 0 { written } else { had };
        if of_one_epoch == judged.zones.iter().flatten().count() {
            segment.set_state(SegmentState::Sealed);
            report.sealed += usize::from(written > 0);
        } else {
            segment.cut_short(&notes);
        }
    }
    Ok(())
}

/// Writes the footer of a column, durably, and finishes its zone where that was active. True if it has a footer now.
async fn close_column<D: ZoneDevice>(
    port: &LogPort<D>,
    segment: &Segment,
    (slot, zone): (usize, u32),
    (length, blocks): (Option<u32>, Vec<Vec<u8>>),
    is_open: bool,
) -> bool {
    let length = length.unwrap_or(0);
    if is_open {
        return seal_column(port, segment, (slot, zone), length, blocks, true).await;
    }
    write_footer(port, segment, (slot, zone), length, &blocks, true).await
}

/// Crashes in recoveries may leave open every segment that the limit allows. No other can be opened then: those are finished
/// as they are, and their records say what they hold.
async fn make_room<D: ZoneDevice>(port: &LogPort<D>, segments: &[&Judged], finished: &mut Finished) {
    for zone in
        segments.iter().flat_map(|judged| judged.zones.iter().flatten()).filter(|zone| zone.is_active())
    {
        let members = port.shared.members.in_sync();
        if port.shared.table.may_take(&members) {
            return;
        }
        let Some(device) = port.device(zone.slot) else { continue };
        if finished.contains(&(zone.slot, zone.zone)) {
            continue;
        }
        fence(port, zone).await;
        if device.finish(zone.zone).await.is_ok() {
            finished.insert((zone.slot, zone.zone));
            port.shared.table.finished(zone.slot);
        }
    }
}

/// Whether a segment has blocks that no map entry names and that must stay: zeroes, and emptied entries, which are
/// needed until the resets of what they name are durable on all members.
fn holds_others(judged: &Judged, keeps_emptied: bool) -> bool {
    let is_other = |entry: &BlockEntry| match entry.name {
        BlockName::Zeroes => true,
        BlockName::Emptied => keeps_emptied,
        _ => false,
    };
    match &judged.decision {
        _ if judged.left_out.is_some_and(|lists| lists > 0) => true,
        Decision::Sealed(live) => live.iter().any(|live| is_other(&live.entry)),
        Decision::Records { .. } => {
            stripes_of(judged, Verdict::Keep).any(|stripe| stripe.descriptor.entries.iter().any(is_other))
        }
    }
}

fn note_of(headers: &[SegmentHeader], stripe: &StripeFound) -> StripeNote {
    let any = stripe.starts.iter().flatten().next().copied().unwrap_or(0);
    let descriptor = &stripe.descriptor;
    let plan = headers[0].shape.plan();
    let data = plan.columns.data();
    let blocks = plan.carrier.descriptor_blocks(descriptor.rows.into(), data).unwrap_or(0) as usize;
    let mut sums = SmallVec::new();
    for index in 0..if blocks > 0 { data } else { 0 } {
        let column = usize::from(headers[0].shape.data_column(index, DataOffset(any)));
        let checksums: Vec<u32> = (0..usize::from(descriptor.rows))
            .map(|row| descriptor.row(row)[usize::from(index)].checksum)
            .collect();
        let mut bytes = vec![0; blocks * BLOCK_BYTES];
        let place = (!headers[0].shape.is_append()).then_some(DataOffset(any).zone_block());
        descriptor.encode_into(&headers[column], RecordKind::Data, place, &checksums, &mut bytes);
        sums.extend(bytes.chunks_exact(BLOCK_BYTES).map(layout::zoned::Checksum::of));
    }
    StripeNote {
        starts: stripe.starts.iter().map(|start| start.unwrap_or(any)).collect(),
        id: stripe.id,
        rows: descriptor.rows,
        descriptors: sums,
        entries: descriptor.entries.clone(),
    }
}

/// Blocks of a column's data region that its footer names. None: there is no room for one, or the zone cannot be written.
fn footer_length(header: &SegmentHeader, zone: &ZoneFound, notes: &[StripeNote], column: u8) -> Option<u32> {
    let shape = &header.shape;
    let end = |note: &StripeNote| {
        let blocks = shape.plan().carrier.record_blocks(note.rows.into(), shape.plan().columns.data());
        note.starts[usize::from(column)] + blocks.unwrap_or(0)
    };
    let needed = notes.iter().map(end).max().unwrap_or(0);
    let length = match (shape.plan().access, zone.state) {
        (Access::Placed, ZoneState::NoPointer) => needed,
        (_, ZoneState::NoPointer | ZoneState::Full | ZoneState::ReadOnly | ZoneState::Offline) => {
            return None;
        }
        _ => DataOffset::of_zone_block(zone.next_block())?.0,
    };
    (length >= needed && length > 0 && length <= shape.data_blocks()).then_some(length)
}

/// Whether emptied entries that were found are still needed: a zone of a segment that is gone was found, or a member that
/// may hold one is not there.
fn keeps_emptied<D: ZoneDevice>(port: &LogPort<D>, segments: &[&Judged]) -> bool {
    let is_whole = port.shared.members.are_all_in_sync();
    !is_whole || segments.iter().any(|judged| judged.is_gone)
}

/// Segments that nothing maps to, and whose every column can be reset now. Of those that are gone already, what is there: a member
/// that is away may hold what is left of a record, and the emptied entry tells it that nothing of it counts.
fn empty_segments<'a, D: ZoneDevice>(port: &LogPort<D>, segments: &[&'a Judged]) -> Vec<&'a Judged> {
    let all_in_sync = |judged: &Judged| {
        let mut columns = judged.found.header.columns.iter().filter(|column| column.zone.is_some());
        columns.all(|column| port.shared.members.state(column.slot.into()) == MemberState::InSync)
    };
    let keeps = keeps_emptied(port, segments);
    let is_empty = |judged: &&&Judged| {
        judged.is_gone
            || port.shared.table.live(judged.found.header.slot) == 0 && !holds_others(judged, keeps)
    };
    let can_be = |judged: &&&Judged| judged.is_gone || all_in_sync(judged);
    segments.iter().filter(is_empty).filter(can_be).copied().collect()
}

/// Resets the zones of empty segments, and, where no member is missing, those that no segment names. Returns the zones that
/// were tried.
async fn reset<D: ZoneDevice>(
    port: &LogPort<D>,
    empty: &[&Judged],
    unused: &[ZoneFound],
    finished: &Finished,
    report: &mut RecoveryReport,
) -> BTreeSet<(usize, u32)> {
    let (table, mut done) = (&port.shared.table, BTreeSet::new());
    for judged in empty {
        // A column that was not found may be on a member that is away.
        let mut all_reset = judged.zones.iter().all(Option::is_some);
        for zone in judged.zones.iter().flatten() {
            all_reset &= reset_zone(port, zone, finished, report).await;
            done.insert((zone.slot, zone.zone));
        }
        let header = &judged.found.header;
        let has_slot = table.get(header.slot).is_some_and(|there| there.number() == header.segment);
        // Z-I4: its zones that were reset are others' from here on, so nothing may take it for a segment any more.
        if has_slot {
            port.shared.segment_is_gone(header.slot);
        }
        if !all_reset {
            port.shared.space.resetting((header.segment, header.tag));
        }
    }
    let is_whole = port.shared.members.are_all_in_sync();
    for zone in unused.iter().filter(|zone| is_whole && !matches!(zone.header, HeaderFound::Right(_))) {
        // A zone that wore out has no pointer, so nothing says that it held anything; and no reset changes it.
        if matches!(zone.state, ZoneState::ReadOnly | ZoneState::Offline) {
            continue;
        }
        // Headers are durable before the first record: a pointer beyond one says that the header was right, and is damaged.
        if zone.state != ZoneState::NoPointer && zone.end_block > 1 {
            let what = "no header names what the zone holds: it is kept";
            damage::report(port, &Damage { slot: zone.slot, zone: zone.zone, block: 0, what });
            continue;
        }
        reset_zone(port, zone, finished, report).await;
        done.insert((zone.slot, zone.zone));
    }
    done
}

/// Z-I6: ends a zone where its pointer stands, durably, before it is finished without a new footer. A finished zone has no
/// pointer, and shows behind what was written whatever stood there: also records and footers that a power cut took back, and that
/// this start did not see.
async fn fence<D: ZoneDevice>(port: &LogPort<D>, zone: &ZoneFound) {
    if let HeaderFound::Right(header) = &zone.header
        && fill_up(port, zone, header).await
    {
        fence_filled(port, zone, header).await;
    }
}

/// As [`fence`], of a zone whose pointer stands at a block.
async fn fence_filled<D: ZoneDevice>(port: &LogPort<D>, zone: &ZoneFound, header: &SegmentHeader) {
    let (at, shape) = (zone.next_block(), &header.shape);
    let Some(device) = port.device(zone.slot) else { return };
    if at >= shape.footer_start() + shape.footer_blocks() {
        return; // nothing is behind it
    }
    let mut pointers = vec![None; header.columns.len()];
    pointers[usize::from(header.column)] = Some(at);
    let sequence = port.shared.sequences.take().unwrap_or_default();
    for block in FenceBlock::all(port.shared.epoch, sequence, &pointers, &[]) {
        let at = ZoneOffset::new(zone.zone, u64::from(at) * BLOCK_BYTES as u64);
        if let Err(error) = write_plain(&*device, at, &block.encode(header), header).await {
            port.judge(zone.slot, &error);
        }
    }
}

/// Fills up the block in which the pointer stands, so that the next write begins with a block. What it held is no block any more:
/// it may have been one of a footer that a power cut took back, and ends with zeroes. False if the zone cannot be written.
async fn fill_up<D: ZoneDevice>(port: &LogPort<D>, zone: &ZoneFound, header: &SegmentHeader) -> bool {
    let Some(device) = port.device(zone.slot) else { return false };
    if zone.torn_bytes == 0 {
        return true;
    }
    let rest = vec![0xff; BLOCK_BYTES - zone.torn_bytes as usize];
    let pointer = u64::from(zone.end_block) * BLOCK_BYTES as u64 + u64::from(zone.torn_bytes);
    let filled = write_plain(&*device, ZoneOffset::new(zone.zone, pointer), &rest, header).await;
    filled.inspect_err(|error| _ = port.judge(zone.slot, error)).is_ok()
}

/// Writes bytes that no entry names, durably, at a pointer.
async fn write_plain<D: ZoneDevice>(
    device: &D,
    at: ZoneOffset,
    bytes: &[u8],
    header: &SegmentHeader,
) -> Result<(), DeviceError> {
    let beside = device.zoned().metadata_of(bytes.len(), device.info().logical_block_bytes);
    let is_oob = header.shape.plan().carrier == Carrier::Oob;
    let metadata = is_oob.then(|| Slice::from_bytes(&vec![0; beside]));
    device.write_at(at, Gather::from(Slice::from_bytes(bytes)), metadata, true).await
}

/// Z-I9: what is neither sealed nor reset takes no more records, and must not stay active: start after start there would be
/// more of it, until no segment could be opened. What a zone holds stays, up to its fence.
async fn finish_rest<D: ZoneDevice>(
    port: &LogPort<D>,
    active: &[ZoneFound],
    (finished, reset): (&Finished, &BTreeSet<(usize, u32)>),
    report: &mut RecoveryReport,
) {
    for zone in active {
        let at = (zone.slot, zone.zone);
        let Some(device) = port.device(zone.slot) else { continue };
        if finished.contains(&at) || reset.contains(&at) {
            continue;
        }
        // One without a right header, and nothing behind it, holds nothing, whichever segment other columns say it is of: records
        // follow only when all headers are durable.
        if zone.end_block <= HEADER_BLOCKS && !matches!(zone.header, HeaderFound::Right(_)) {
            reset_zone(port, zone, finished, report).await;
            continue;
        }
        match device.finish(zone.zone).await {
            Ok(()) => port.shared.table.finished(zone.slot),
            Err(_) => set_aside(port, zone.slot, zone.zone).await,
        }
    }
}

async fn reset_zone<D: ZoneDevice>(
    port: &LogPort<D>,
    zone: &ZoneFound,
    finished: &Finished,
    report: &mut RecoveryReport,
) -> bool {
    let Some(device) = port.device(zone.slot) else { return false };
    match device.reset(zone.zone).await {
        Ok(()) => {
            report.reset_zones += 1;
            if zone.is_active() && !finished.contains(&(zone.slot, zone.zone)) {
                port.shared.table.finished(zone.slot);
            }
            port.shared.table.freed(zone.slot, zone.zone);
            true
        }
        Err(error) => {
            port.judge(zone.slot, &error); // it stays aside: a read-only zone never changes again
            if zone.is_active() && !finished.contains(&(zone.slot, zone.zone)) {
                set_aside(port, zone.slot, zone.zone).await;
            }
            false
        }
    }
}
