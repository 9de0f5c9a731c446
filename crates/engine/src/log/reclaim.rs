//! Reclaim (ZapRAID's, 3.6): segments with few live blocks are emptied into new ones and reset, so that a log never fills.
//!
//! The chain of one batch, each step before the next (Z-I4): what counts is read and verified, written with the sequence that it
//! has, mapped if nothing newer was; *all* members are flushed, since a block may be dead because of a write that is in a
//! cache; an emptied entry is durable; readers have left; zones are reset. A crash in between leaves both copies, with one
//! sequence, or a segment that an entry calls gone.

pub mod choose;
mod contents;
pub mod throttle;

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use layout::zoned::{BlockName, BlockPlace, Class, EmptiedEntry, MapEntry, TABLE_ENTRIES, ZeroesEntry};

use self::choose::{Candidate, ReclaimPolicy, choose};
use self::contents::{Contents, is_mapped, list_blocks, read_contents, read_mapped};
use super::checkpoint::checkpoint;
use super::config::RESERVED_SEGMENTS;
use super::encode::StripeBlock;
use super::flush::flush_members;
use super::open::{Stream, next_columns, set_aside};
use super::page_out::move_groups;
use super::paging::{load_all, parts_of_groups, replace};
use super::port::LogPort;
use super::recover::decide::LiveBlock;
use super::segment::{Segment, SegmentState};
use super::sequence::Sequence;
use super::shard::LogEngine;
use super::shared::LogShared;
use super::space::{Activity, Work};
use super::write::{used_up, write_stripes};
use crate::buffer::Slice;
use crate::error::VolumeError;
use crate::executor::{join_all, yield_now};
use crate::members::MemberState;
use crate::zone_device::ZoneDevice;

/// Batches in a row that may leave no more segments free than before: of nearly full segments it takes several to gain one.
const BATCHES_WITHOUT_RISE: u32 = 16;
/// While space is short, checkpoints take a quarter of what reclaim gains, at most.
const CHECKPOINT_GAIN: u64 = 4;
/// Copies that wait to be mapped, at most, where groups of the map may be in the log: 2.5 MiB.
const COPIES_MAX: usize = 1 << 16;
/// While clients rest, only segments are emptied of which at least half is dead: so idle time, however long, never moves more than it
/// gains.
const IDLE_GAIN_LEAST: u64 = 2;
/// Blocks that are read ahead while others are written: 1 MiB, or a stripe.
const READ_BLOCKS: usize = 256;
/// Longest run of blocks that is read at once.
const RUN_BLOCKS: usize = 32;

/// Reclaims whenever segments are few, and when clients rest, until the array stops. One task of one shard: what is emptied is moved
/// by nothing else.
pub async fn reclaim<D: ZoneDevice>(engine: Rc<LogEngine<D>>) {
    let (shared, platform) = (&engine.port.shared, &engine.port.platform);
    let space = &shared.space;
    let rest = || {
        let idle_ns = shared.config.reclaim.idle_ns?;
        Some(platform.sleep_until(platform.now_ns() + idle_ns))
    };
    loop {
        match space.work(rest).await {
            Work::Stop => break,
            Work::Idle => {
                idle(&engine).await;
                continue;
            }
            Work::Wanted => {}
        }
        if shared.checkpoints.is_due(shared.map.changed()) {
            match shared.table.free_least() > shared.config.low_segments() {
                true => keep_checkpoints(&engine).await,
                false => shared.checkpoints.postpone(),
            }
        }
        pass(&engine).await;
        mend(&engine).await;
        restore(&engine).await;
        catch_up(&engine.port.shared).await;
        engine.port.shared.memory.ask(&engine.port.shared.map);
    }
    space.set_running(false);
}

/// While clients rest, empties segments that are dead for the most part, until a comfortable number is free or a client writes.
async fn idle<D: ZoneDevice>(engine: &Rc<LogEngine<D>>) {
    let shared = &engine.port.shared;
    let (table, space) = (&shared.table, &shared.space);
    next_columns(shared);
    space.set_activity(Activity::WhileIdle);
    let mut refused: Vec<u32> = Vec::new();
    let (mut most_free, mut without_rise) = (table.free_least(), 0);
    while table.free_least() <= shared.config.idle_segments() && !space.is_interrupted() {
        // Emptying a segment that a checkpoint needs takes a new checkpoint, which uses the room that was gained.
        let is_dead = |candidate: &Candidate| {
            candidate.live * IDLE_GAIN_LEAST <= candidate.room && !table.is_pinned(candidate.slot)
        };
        let victims = victims(engine, &refused, (ReclaimPolicy::Greedy, &is_dead));
        if victims.is_empty() || without_rise > BATCHES_WITHOUT_RISE {
            break;
        }
        let emptied = empty(engine, &victims).await;
        without_rise = if table.free_least() > most_free { 0 } else { without_rise + 1 };
        most_free = most_free.max(table.free_least());
        if emptied.is_empty() {
            refused.extend(victims.iter().map(|victim| victim.slot()));
        }
    }
    space.set_activity(Activity::None);
}

/// Writes a checkpoint, if one is wanted: here, so that no segment is emptied meanwhile.
async fn keep_checkpoints<D: ZoneDevice>(engine: &Rc<LogEngine<D>>) {
    let shared = &engine.port.shared;
    if !shared.checkpoints.is_wanted(shared.map.changed()) {
        return;
    }
    shared.space.resets_ended().await;
    if checkpoint(engine).await.is_err() {
        shared.checkpoints.postpone(); // the one before stands
    }
}

/// Empties segments until enough are free, or nothing more can be gained.
async fn pass<D: ZoneDevice>(engine: &Rc<LogEngine<D>>) {
    let port = &engine.port;
    let (table, space) = (&port.shared.table, &port.shared.space);
    next_columns(&port.shared);
    let (mut refused, mut most_free, mut without_rise): (Vec<u32>, _, _) =
        (Vec::new(), table.free_least(), 0);
    let (mut gained, mut resetting) = (0, 0);
    space.set_activity(Activity::ForWriters);
    while table.free_least() <= port.shared.config.low_segments() && !space.is_stopping() {
        // The batch before may have its zones reset still, which takes a drive a millisecond: as long as reclaim has a segment for
        // its copies, beside recovery's two, and more is needed than that gives.
        let (free, low) = (table.free_least(), port.shared.config.low_segments());
        if resetting > 0 && (free + resetting > low || free + 1 < RESERVED_SEGMENTS) {
            space.resets_ended().await;
            resetting = 0;
            continue;
        }
        // Where space is short it has to be earned first, or checkpoints would take what reclaim gives.
        if gained >= CHECKPOINT_GAIN * checkpoint_blocks(engine) {
            gained = 0;
            keep_checkpoints(engine).await;
        }
        let began_ns = port.platform.now_ns();
        // With nothing but the reserve left whatever gives most counts, and not what is worth the most later.
        let is_urgent = table.free_least() <= RESERVED_SEGMENTS;
        let policy = if is_urgent { ReclaimPolicy::Greedy } else { port.shared.config.reclaim.policy };
        let victims = victims(engine, &refused, (policy, &|_| true));
        let before: u64 = victims.iter().map(|victim| room_of(victim) - table.live(victim.slot())).sum();
        let emptied = move_out(engine, &victims).await;
        space.resets_ended().await;
        resetting = emptied.len();
        reset_all(engine, emptied.clone());
        without_rise = if table.free_least() + resetting > most_free { 0 } else { without_rise + 1 };
        most_free = most_free.max(table.free_least() + resetting);
        if victims.is_empty() || without_rise > BATCHES_WITHOUT_RISE {
            space.nothing_gained();
            table.nudge();
            break;
        }
        if emptied.is_empty() {
            refused.extend(victims.iter().map(|victim| victim.slot()));
            continue;
        }
        gained += before;
        space.gained(before, port.platform.now_ns().saturating_sub(began_ns));
    }
    space.resets_ended().await;
    space.set_activity(Activity::None);
}

/// After a member is lost, segments that were written before lack its column. Where narrower ones fit, their blocks are moved into
/// such, while space is there: then everything is as redundant as the level says, without a spare. After members were added,
/// segments over fewer of them are moved into wider ones, so that the room of the new ones counts.
async fn restore<D: ZoneDevice>(engine: &Rc<LogEngine<D>>) {
    let port = &engine.port;
    let (table, space) = (&port.shared.table, &port.shared.space);
    next_columns(&port.shared);
    let mut refused: Vec<u32> = Vec::new();
    while table.free_least() > port.shared.config.low_segments() && !space.is_stopping() {
        let is_next = |segment: &Arc<Segment>| {
            let is_over = matches!(segment.state(), SegmentState::Sealed | SegmentState::Short);
            is_over && !refused.contains(&segment.slot())
        };
        let columns = next_columns(&port.shared);
        if columns.iter().any(|(_, is_there)| !is_there) {
            return; // new segments would lack a column as well
        }
        let can_be_whole = port.shared.config.losses_survived() > 0;
        let lacking = lacking(&port.shared).into_iter().filter(|_| can_be_whole).find(is_next);
        let Some(victim) = lacking.or_else(|| narrow(&port.shared).into_iter().find(is_next)) else { return };
        let slot = victim.slot();
        if empty(engine, &[victim]).await.is_empty() {
            refused.push(slot);
        }
    }
}

/// Empties segments in which a repair found something wrong.
async fn mend<D: ZoneDevice>(engine: &Rc<LogEngine<D>>) {
    let shared = &engine.port.shared;
    while let Some(key) = shared.space.to_mend() {
        let is_it = |segment: &Arc<Segment>| {
            segment.key() == key && matches!(segment.state(), SegmentState::Sealed | SegmentState::Short)
        };
        let is_emptied = match shared.table.all().into_iter().find(is_it) {
            Some(victim) => !empty(engine, &[victim]).await.is_empty(),
            None => false,
        };
        shared.space.mend_ended(key, is_emptied);
    }
}

/// Members that are behind have caught up when no segment lacks a column of theirs, and the array has grown when no segment is
/// narrower than it.
async fn catch_up(shared: &LogShared) {
    let behind = shared.members.behind();
    if behind.is_empty() && !shared.members.is_growing() {
        return;
    }
    let all = shared.table.all();
    for slot in behind {
        let lacks =
            |segment: &Arc<Segment>| segment.zones().any(|(_, of, zone)| of == slot && zone.is_none());
        if !all.iter().any(lacks) {
            shared.members.caught_up(slot);
            shared.space.want(); // what is narrow waited for it
        }
    }
    if !shared.members.is_growing() || all.iter().any(|segment| is_narrow(shared, segment)) {
        return;
    }
    shared.openings.readers_left().await; // one that began before members were added is narrow
    if shared.members.are_all_whole() && !shared.table.all().iter().any(|segment| is_narrow(shared, segment))
    {
        shared.members.has_grown();
    }
}

/// While the array grows: segments over fewer members than it has now, those with the fewest live blocks first. None while a
/// member is out of use or behind: then new ones are no wider, or that member comes first.
pub fn narrow(shared: &LogShared) -> Vec<Arc<Segment>> {
    let members = &shared.members;
    if !members.is_growing() || !members.are_all_whole() {
        return Vec::new();
    }
    let mut narrow: Vec<Arc<Segment>> = shared.table.all();
    narrow.retain(|segment| is_narrow(shared, segment));
    narrow.sort_by_key(|segment| shared.table.live(segment.slot()));
    narrow
}

/// Whether a segment has no column of some member. What is emptied already, and could not be reset, does not matter.
fn is_narrow(shared: &LogShared, segment: &Segment) -> bool {
    segment.headers.len() < shared.members.width() && segment.state() != SegmentState::Resetting
}

/// Segments that lack a column: its member is out of use, or was away when a part of it was written, or its zone was found without
/// the segment's header.
pub fn lacking(shared: &LogShared) -> Vec<Arc<Segment>> {
    let states = shared.members.states();
    let lacks = |segment: &Arc<Segment>| {
        let is_out = |(column, slot, _): &(u8, usize, Option<u32>)| {
            segment.readable_zone_of(*column).is_none() || states[*slot] != MemberState::InSync
        };
        segment.zones().filter(is_out).count()
    };
    let mut all: Vec<(usize, Arc<Segment>)> =
        shared.table.all().into_iter().map(|segment| (lacks(&segment), segment)).collect();
    all.retain(|(lacks, _)| *lacks > 0);
    // Least redundancy first.
    all.sort_by_key(|(lacks, _)| std::cmp::Reverse(*lacks));
    all.into_iter().map(|(_, segment)| segment).collect()
}

fn room_of(segment: &Segment) -> u64 {
    u64::from(segment.shape().rows()) * segment.data_columns() as u64
}

/// The next victims by a policy, of those that are wanted.
fn victims<D: ZoneDevice>(
    engine: &LogEngine<D>,
    refused: &[u32],
    (policy, is_wanted): (ReclaimPolicy, &dyn Fn(&Candidate) -> bool),
) -> Vec<Arc<Segment>> {
    let table = &engine.port.shared.table;
    let (scarce, now) = (table.scarce(), engine.port.shared.sequences.peek());
    let candidate = |segment: &Arc<Segment>| {
        let is_over = matches!(segment.state(), SegmentState::Sealed | SegmentState::Short);
        (is_over && !refused.contains(&segment.slot())).then(|| Candidate {
            slot: segment.slot(),
            live: table.live(segment.slot()),
            room: room_of(segment),
            age: age(now, table.last_sequence(segment.slot())),
            is_scarce: segment.zones().any(|(_, slot, zone)| slot == scarce && zone.is_some()),
        })
    };
    let all = table.all();
    let copy_room = all.iter().map(|segment| room_of(segment)).min().unwrap_or(0);
    // The emptied entry takes a row, and where drives choose places a whole stripe.
    let list = stripe_least(engine);
    let candidates: Vec<Candidate> = all.iter().filter_map(candidate).filter(is_wanted).collect();
    let is_pinned = |slot: &u32| table.is_pinned(*slot);
    let few = victims_at_once(&engine.port.shared);
    let choose = |candidates, list| choose(candidates, policy, few, (copy_room, list));
    let mut chosen = choose(candidates.clone(), list);
    if chosen.iter().any(is_pinned) {
        // Those cost a checkpoint first.
        chosen = choose(candidates.clone(), list + checkpoint_blocks(engine));
        if chosen.is_empty() {
            let unpinned = candidates.into_iter().filter(|candidate| !is_pinned(&candidate.slot)).collect();
            chosen = choose(unpinned, list);
        }
    }
    chosen.into_iter().filter_map(|slot| table.get(slot)).collect()
}

/// Victims that are emptied together, unless it takes more to gain anything. While writers go as fast as reclaim frees, half of what it
/// keeps free is left. Of that a segment must be there whenever writers need one, and another is half full of copies: the rest may be
/// in victims that are not free yet.
fn victims_at_once(shared: &LogShared) -> usize {
    let kept = shared.config.low_segments() - RESERVED_SEGMENTS;
    kept.div_ceil(2).saturating_sub(2).max(1)
}

/// Sequences since the newest block of a segment was written. What an earlier run wrote is as old as the start: how much was written
/// between is not known.
fn age(now: Sequence, last: Sequence) -> u64 {
    match now.epoch_number() == last.epoch_number() {
        true => now.0.saturating_sub(last.0),
        false => now.counter(),
    }
}

/// Blocks that a checkpoint takes now, padding included.
fn checkpoint_blocks<D: ZoneDevice>(engine: &LogEngine<D>) -> u64 {
    let shared = &engine.port.shared;
    let lists = shared.map.root_blocks_there() as u64
        + (shared.table.all().len() as u64).div_ceil(TABLE_ENTRIES.into());
    let stripe = stripe_least(engine);
    [shared.map.changed() as u64, lists].into_iter().map(|blocks| blocks.next_multiple_of(stripe)).sum()
}

/// Blocks that the shortest stripe takes of what reclaim writes.
fn stripe_least<D: ZoneDevice>(engine: &LogEngine<D>) -> u64 {
    let blocks = match engine.pads_to_whole(Class::Reclaim) {
        true => engine.stripe_blocks(Class::Reclaim),
        false => engine.data_columns(),
    };
    blocks as u64
}

/// Empties victims and resets their zones. Returns those that are free now: an error leaves the others as they were.
async fn empty<D: ZoneDevice>(engine: &Rc<LogEngine<D>>, victims: &[Arc<Segment>]) -> Vec<Arc<Segment>> {
    let emptied = move_out(engine, victims).await;
    reset_all(engine, emptied.clone());
    engine.port.shared.space.resets_ended().await;
    emptied
}

/// Moves what counts out of victims. Returns those whose zones may be reset: what they held is durable elsewhere, and nobody reads them.
async fn move_out<D: ZoneDevice>(engine: &Rc<LogEngine<D>>, victims: &[Arc<Segment>]) -> Vec<Arc<Segment>> {
    let emptied = try_move_out(engine, victims).await.unwrap_or_default();
    note_ahead(engine, 0);
    emptied
}

/// Begins to reset the zones of segments, of all at once.
fn reset_all<D: ZoneDevice>(engine: &Rc<LogEngine<D>>, emptied: Vec<Arc<Segment>>) {
    for segment in emptied {
        let room = room_of(&segment);
        engine.port.shared.space.reset_begins(room);
        let engine = Rc::clone(engine);
        engine.port.executor.clone().spawn(async move {
            reset_segment(&engine.port, &segment).await;
            engine.port.shared.space.reset_ended(room); // it is a free segment from here on
        });
    }
}

async fn try_move_out<D: ZoneDevice>(
    engine: &Rc<LogEngine<D>>,
    victims: &[Arc<Segment>],
) -> Result<Vec<Arc<Segment>>, VolumeError> {
    let (port, shared) = (&engine.port, &engine.port.shared);
    shared.memory.ask(&shared.map); // for what the batch before brought in
    give_up_map(engine, victims).await?;
    let mut moved: Vec<(Arc<Segment>, Contents)> = Vec::new();
    for victim in victims {
        if let Some(contents) = read_contents(port, victim).await {
            moved.push((Arc::clone(victim), contents));
        }
    }
    move_mapped(engine, &moved).await?;
    moved.retain(|(victim, _)| shared.table.live(victim.slot()) == 0);
    let (emptied, contents): (Vec<Arc<Segment>>, Vec<Contents>) = moved.into_iter().unzip();
    let lists = list_blocks(shared, &contents).ok_or_else(used_up)?;
    let list = |_, places: &[BlockPlace]| add_lists(shared, places);
    write_stripes(port, &engine.open, Stream::Moved, &lists, false, list).await?;
    if emptied.is_empty() || shared.space.is_stopping() {
        return Ok(Vec::new());
    }
    let resets = shared.space.resets_to_flush();
    flush_members(port).await?;
    shared.space.resets_are_durable(&resets);
    write_emptied(engine, &emptied).await?;
    emptied.iter().for_each(|segment| segment.set_state(SegmentState::Resetting));
    shared.pins.readers_left().await;
    Ok(emptied)
}

/// Writes mapping blocks that are in the victims anew, and another checkpoint where the newest needs a block of a victim.
async fn give_up_map<D: ZoneDevice>(
    engine: &Rc<LogEngine<D>>,
    victims: &[Arc<Segment>],
) -> Result<(), VolumeError> {
    let table = &engine.port.shared.table;
    let slots = || victims.iter().map(|victim| victim.slot());
    if slots().any(|slot| table.has_mapping(slot)) {
        move_groups(engine, &slots().collect()).await?;
    }
    if slots().any(|slot| table.is_pinned(slot)) {
        engine.port.shared.space.resets_ended().await;
        checkpoint(engine).await?;
    }
    Ok(())
}

/// Moves the blocks of the victims that the map names. What is left of all of them shares stripes: where drives choose places each
/// victim would take one of its own, most of it padding, and the reserve has room for a few. While one part is written the next
/// is read: with short records, and a read for each stripe, a drive was made again fifteen times as slowly as it could be written.
async fn move_mapped<D: ZoneDevice>(
    engine: &Rc<LogEngine<D>>,
    victims: &[(Arc<Segment>, Contents)],
) -> Result<(), VolumeError> {
    let (port, shared) = (&engine.port, &engine.port.shared);
    let of_victims =
        victims.iter().flat_map(|(victim, contents)| contents.mapped.iter().map(move |live| (victim, *live)));
    let mapped: Vec<Moving> = of_victims.map(|(victim, live)| (Arc::clone(victim), live)).collect();
    let mut moves = Moves {
        copies: Vec::new(),
        looked_at: 0,
        of: mapped.len() as u64,
        rooms: victims.iter().map(|(victim, _)| room_of(victim)).sum(),
    };
    let mut parts = mapped.chunks(READ_BLOCKS.next_multiple_of(engine.stripe_blocks(Class::Reclaim)));
    let mut next = || {
        let part = parts.next().filter(|_| !shared.space.is_interrupted())?.to_vec();
        Some(port.executor.spawn_with_result(read_part(Rc::clone(engine), part)))
    };
    let mut reading = next();
    let mut moved = Ok(());
    while let Some(part) = reading.take() {
        let part = part.await;
        if moved.is_ok() {
            // After an error the part that is being read is waited for still: nothing is reset under a read.
            reading = next();
            moved = moves.write(engine, part).await;
        }
    }
    map_copies(port, moves.copies).await.and(moved)
}

/// A block of a victim, with what it holds once it is read; none: it can neither be read nor made.
type Moving = (Arc<Segment>, LiveBlock);
type Read = (Moving, Option<StripeBlock>);

/// Some blocks of victims as they were read, and how many had died before.
struct Part {
    read: Vec<Read>,
    dead: usize,
}

/// Reads blocks of victims, those side by side at once.
async fn read_part<D: ZoneDevice>(engine: Rc<LogEngine<D>>, mut part: Vec<Moving>) -> Part {
    let (port, shared) = (&engine.port, &engine.port.shared);
    let listed = part.len();
    part.retain(|(_, live)| !is_dead(shared, live));
    let dead = listed - part.len();
    let runs = part.chunk_by(|(_, before), (_, next)| follows(before.place, next.place));
    let runs = runs.flat_map(|run| run.chunks(RUN_BLOCKS)).map(|run| {
        let lives: Vec<LiveBlock> = run.iter().map(|(_, live)| *live).collect();
        Box::pin(async move { read_mapped(port, &run[0].0, &lives).await })
    });
    let read: Vec<Option<StripeBlock>> = join_all(runs).await.into_iter().flatten().collect();
    Part { read: part.into_iter().zip(read).collect(), dead }
}

/// Moves of one batch.
struct Moves {
    /// What is not mapped yet.
    copies: Vec<Copied>,
    /// Blocks that were written, or did not have to be, and how many there are.
    looked_at: u64,
    of: u64,
    /// Blocks that the victims have room for.
    rooms: u64,
}

/// Tells writers what the batch under way has gained so far, beside what is left of the segment that it moves blocks to.
fn note_ahead<D: ZoneDevice>(engine: &LogEngine<D>, gained: u64) {
    engine.port.shared.space.set_ahead(gained + engine.open.room_left(Stream::Moved));
}

/// A block that was copied, and not mapped there yet.
struct Copied {
    lba: u64,
    from: BlockPlace,
    to: MapEntry,
}

impl Moves {
    /// Writes what was read, a stripe at a time, and maps it.
    async fn write<D: ZoneDevice>(
        &mut self,
        engine: &Rc<LogEngine<D>>,
        Part { read, dead }: Part,
    ) -> Result<(), VolumeError> {
        let (port, shared) = (&engine.port, &engine.port.shared);
        let copies_max = if shared.is_map_paged() { COPIES_MAX } else { 1 };
        self.looked_at += dead as u64;
        let mut read = read.into_iter().peekable();
        while read.peek().is_some() && !shared.space.is_interrupted() {
            let stripe: Vec<Read> = read.by_ref().take(engine.stripe_blocks(Class::Reclaim)).collect();
            self.looked_at += stripe.len() as u64;
            let copied = self.copy(engine, stripe).await;
            if copied.is_err() || self.copies.len() >= copies_max {
                map_copies(port, std::mem::take(&mut self.copies)).await?;
            }
            copied?;
            note_ahead(engine, self.rooms * self.looked_at / self.of);
            yield_now().await; // clients of this shard wait
        }
        Ok(())
    }

    async fn copy<D: ZoneDevice>(
        &mut self,
        engine: &Rc<LogEngine<D>>,
        stripe: Vec<Read>,
    ) -> Result<(), VolumeError> {
        let (port, shared) = (&engine.port, &engine.port.shared);
        let mut blocks = Vec::with_capacity(stripe.len());
        let mut places = Vec::with_capacity(stripe.len());
        for ((victim, live), block) in stripe {
            match block {
                _ if is_dead(shared, &live) => {} // since it was read
                Some(block) => {
                    places.push(live.place);
                    blocks.push(block);
                }
                None => lose(engine, &victim, &live).await?,
            }
        }
        let copies = RefCell::new(&mut self.copies);
        let placed = |first: usize, to: &[BlockPlace]| {
            let copied =
                (first..).zip(to).filter_map(|(at, to)| Copied::new(shared, &blocks[at], places[at], *to));
            copies.borrow_mut().extend(copied);
        };
        write_stripes(port, &engine.open, Stream::Moved, &blocks, false, placed).await?;
        shared.space.moved(blocks.len() as u64);
        Ok(())
    }
}

/// Whether a block has died since the victim's contents were listed, as far as that can be told without reading.
fn is_dead(shared: &LogShared, live: &LiveBlock) -> bool {
    if let Some(is_valid) = shared.valid.as_ref().and_then(|valid| valid.has(live.place)) {
        return !is_valid;
    }
    let BlockName::User(lba) = live.entry.name else { return true };
    shared.map.get(lba).is_ok_and(|entry| entry.place() != Some(live.place))
}

impl Copied {
    /// Z-I3: the copy has the sequence of its block.
    fn new(shared: &LogShared, block: &StripeBlock, from: BlockPlace, to: BlockPlace) -> Option<Self> {
        let BlockName::User(lba) = block.entry.name else { return None };
        shared.table.note_sequence(to.slot, block.entry.sequence);
        let checksum = shared.map.shape().checksum_of(block.entry.checksum);
        Some(Copied { lba, from, to: MapEntry::At { place: to, checksum } })
    }
}

/// Maps copies, each if the block's place still stands (Z-I3). In the order of the map: victims hold blocks of all groups, and each
/// group is read at most once for all of them. In the order of their places half of a map in memory cost a read and a write of a
/// group for every second block.
async fn map_copies<D: ZoneDevice>(port: &LogPort<D>, mut copies: Vec<Copied>) -> Result<(), VolumeError> {
    let shared = &port.shared;
    copies.sort_unstable_by_key(|copied| copied.lba);
    for part in parts_of_groups(shared, &copies, |copied| copied.lba) {
        load_all(port, part.iter().map(|copied| shared.map.group_of(copied.lba)).collect()).await?;
        for copied in part {
            replace(port, copied.lba, copied.from, copied.to).await?;
        }
        shared.memory.ask(&shared.map);
        yield_now().await; // clients of this shard wait
    }
    Ok(())
}

fn add_lists(shared: &LogShared, places: &[BlockPlace]) {
    places.iter().for_each(|place| shared.table.add_list(place.slot));
}

fn follows(before: BlockPlace, next: BlockPlace) -> bool {
    BlockPlace { block: before.block + 1, ..before } == next
}

/// A block that can neither be read nor made. If nothing that is away could bring it back, it is lost: it reads as an error,
/// never as something else (Z-I12). Else its segment stays as it is.
async fn lose<D: ZoneDevice>(
    engine: &Rc<LogEngine<D>>,
    victim: &Segment,
    live: &LiveBlock,
) -> Result<(), VolumeError> {
    let (port, shared) = (&engine.port, &engine.port.shared);
    let states = shared.members.states();
    let is_whole = victim.zones().all(|(_, slot, _)| states[slot] == MemberState::InSync);
    let BlockName::User(lba) = live.entry.name else { return Ok(()) };
    if !is_whole || !is_mapped(port, live).await? {
        return Ok(());
    }
    let range = ZeroesEntry { lba, blocks: 1, is_lost: true, sequence: live.entry.sequence };
    let contents = Slice::from_bytes(&ZeroesEntry::encode_all(&[range]));
    let sequence = shared.sequences.take().ok_or_else(used_up)?;
    let block = StripeBlock::new(BlockName::Zeroes, sequence, contents);
    let list = |_, places: &[BlockPlace]| add_lists(shared, places);
    write_stripes(port, &engine.open, Stream::Moved, &[block], false, list).await?;
    if replace(port, lba, live.place, MapEntry::Lost).await? {
        shared.space.lost();
    }
    Ok(())
}

/// From here on nothing of these segments counts at a start, whichever of their zones are reset by then.
async fn write_emptied<D: ZoneDevice>(
    engine: &Rc<LogEngine<D>>,
    emptied: &[Arc<Segment>],
) -> Result<(), VolumeError> {
    let (port, shared) = (&engine.port, &engine.port.shared);
    let entry = |segment: &Arc<Segment>| {
        let (segment, tag) = segment.key();
        shared.space.resetting((segment, tag));
        EmptiedEntry { segment, tag }
    };
    let entries: Vec<EmptiedEntry> = emptied.iter().map(entry).collect();
    let contents = Slice::from_bytes(&EmptiedEntry::encode_all(&entries));
    let sequence = shared.sequences.take().ok_or_else(used_up)?;
    let block = StripeBlock::new(BlockName::Emptied, sequence, contents);
    let list = |_, places: &[BlockPlace]| add_lists(shared, places);
    write_stripes(port, &engine.open, Stream::Moved, &[block], true, list).await?;
    // Nor is anything acknowledged, or reset, that relies on a member's failure which superblocks do not tell yet.
    Ok(shared.members.settled().await?)
}

/// Resets the zones of a segment that is emptied. One that cannot be reset is set aside; the entry is kept for it.
async fn reset_segment<D: ZoneDevice>(port: &LogPort<D>, segment: &Segment) {
    let columns = segment.zones().filter_map(|(_, slot, zone)| Some((slot, zone?)));
    let resets = columns.map(|(slot, zone)| Box::pin(reset_column(port, slot, zone)));
    if join_all(resets).await.into_iter().all(|is_reset| is_reset) {
        port.shared.space.reset(segment.key());
    }
    port.shared.segment_is_gone(segment.slot());
}

/// Resets a zone of a segment that is emptied. False: it is still there, on a member that serves.
async fn reset_column<D: ZoneDevice>(port: &LogPort<D>, slot: usize, zone: u32) -> bool {
    let shared = &port.shared;
    // A member that is out is stale: what it holds of this segment is looked at when it comes back.
    let Some(device) = port.device(slot).filter(|_| shared.members.state(slot) == MemberState::InSync) else {
        return true;
    };
    let is_active = |report: Vec<crate::zone_device::Zone>| report.iter().any(|zone| zone.state.is_active());
    let exchanges = shared.members.exchanges(slot);
    let was_active = device.report(zone..zone + 1).await.is_ok_and(is_active);
    let is_reset = device.reset(zone).await;
    if shared.members.exchanges(slot) != exchanges {
        return true; // the device is none of the array's any more
    }
    match is_reset {
        Ok(()) => {
            if was_active {
                shared.table.finished(slot);
            }
            shared.table.freed(slot, zone);
            true
        }
        Err(error) => {
            port.judge(slot, &error);
            if was_active {
                set_aside(port, slot, zone).await;
            }
            shared.members.state(slot) != MemberState::InSync
        }
    }
}
