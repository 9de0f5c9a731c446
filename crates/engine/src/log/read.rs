//! A read: map, segment, column, member. What comes back is verified by the checksum in the map, and made from the rest of
//! its row where it is not right or its member cannot read it (Z-I12).

use std::rc::Rc;
use std::sync::Arc;

use layout::zoned::{BlockName, BlockPlace, Checksum, MapEntry};
use smallvec::SmallVec;

use super::damage::{Damage, report};
use super::degraded::{make_blocks, read_block};
use super::map::{OutOfMemory, check_matches};
use super::paging::Fetch;
use super::segment::Segment;
use super::shard::LogEngine;
use crate::buffer::{Gather, Slice};
use crate::error::VolumeError;
use crate::executor::join_all;
use crate::limits::BLOCK_BYTES;
use crate::members::MemberState;
use crate::zone_device::ZoneDevice;

/// Blocks of a read that lie side by side on one member, or are all zeroes.
struct Run {
    /// The first block's place. None: zeroes.
    at: Option<(Arc<Segment>, BlockPlace)>,
    /// The checksum bits of each block.
    checks: Vec<u32>,
}

/// Reads whole blocks. The slices of the result are in order.
pub async fn read_blocks<D: ZoneDevice>(
    engine: &Rc<LogEngine<D>>,
    offset_bytes: u64,
    bytes: u64,
) -> Result<Gather, VolumeError> {
    let (first, count) = (offset_bytes / BLOCK_BYTES as u64, bytes / BLOCK_BYTES as u64);
    // Z-I4: from here on no zone of a segment that the map names is reset under the read. What is not in memory is fetched
    // without the pin: that may wait for what waits for readers.
    let mut fetch = Fetch::default();
    let mut pin = engine.port.shared.pins.enter(engine.port.shard);
    let runs = loop {
        match find(engine, first, count)? {
            Ok(runs) => break runs,
            Err(out) => {
                drop(pin);
                fetch.bring(&engine.port, out).await?;
                pin = engine.port.shared.pins.enter(engine.port.shard);
            }
        }
    };
    let mut started = Vec::new();
    let mut is_started = Vec::new();
    for run in &runs {
        let read = run.at.as_ref().and_then(|(segment, at)| start(engine, segment, *at, run.checks.len()));
        is_started.push(read.is_some());
        started.extend(read);
    }
    let mut done = join_all(started).await.into_iter();
    let mut blocks: Vec<Slice> = Vec::with_capacity(count as usize);
    let mut wrong: Vec<Wrong> = Vec::new();
    for (run, is_started) in runs.into_iter().zip(is_started) {
        let buffer = match is_started.then(|| done.next().expect("a result for each read")) {
            Some((buffer, Ok(()))) => Some(buffer.freeze()),
            _ => None,
        };
        verify(engine, run, buffer.as_ref(), &mut blocks, &mut wrong);
    }
    if !wrong.is_empty() {
        Box::pin(make(engine, first, wrong, &mut blocks)).await?;
    }
    drop(pin);
    Ok(blocks.into_iter().collect())
}

/// Looks the blocks up, and gathers those that lie side by side.
fn find<D: ZoneDevice>(
    engine: &LogEngine<D>,
    first: u64,
    count: u64,
) -> Result<Result<Vec<Run>, OutOfMemory>, VolumeError> {
    let shared = &engine.port.shared;
    let mut runs: Vec<Run> = Vec::new();
    for lba in first..first + count {
        let entry = match shared.map.get(lba) {
            Ok(entry) => entry,
            Err(out) => return Ok(Err(out)),
        };
        let (at, check) = match entry {
            MapEntry::Zeroes => (None, 0),
            MapEntry::Lost => {
                let reason =
                    format!("block {lba} was lost in a crash: too few records of its stripe are left");
                return Err(VolumeError::Io { reason });
            }
            MapEntry::At { place, checksum } => (Some(place), checksum),
        };
        if let Some(run) = runs.last_mut()
            && follows(run, at)
        {
            run.checks.push(check);
            continue;
        }
        let at = match at {
            None => None,
            Some(at) => {
                let segment = shared.table.get(at.slot);
                Some((segment.expect("a mapped segment is in the table (Z-I4)"), at))
            }
        };
        runs.push(Run { at, checks: vec![check] });
    }
    Ok(Ok(runs))
}

fn follows(run: &Run, at: Option<BlockPlace>) -> bool {
    match (&run.at, at) {
        (None, None) => true,
        (Some((_, first)), Some(at)) => {
            BlockPlace { block: first.block + run.checks.len() as u32, ..*first } == at
        }
        _ => false,
    }
}

/// Starts the read of a run. None: its member does not serve, or has not got the column.
fn start<D: ZoneDevice>(
    engine: &LogEngine<D>,
    segment: &Segment,
    at: BlockPlace,
    blocks: usize,
) -> Option<D::Read> {
    let slot = segment.slot_of(at.column);
    if engine.port.shared.members.state(slot) != MemberState::InSync {
        return None;
    }
    engine.port.read(slot, segment.readable_zone_of(at.column)?, at.block, blocks)
}

/// Blocks side by side that could not be read, or are not right: where they are to be put, and where they are.
struct Wrong {
    first: usize,
    segment: Arc<Segment>,
    at: BlockPlace,
    checks: Vec<u32>,
}

/// Takes a run as it was read, and leaves room for what is not right.
fn verify<D: ZoneDevice>(
    engine: &LogEngine<D>,
    run: Run,
    buffer: Option<&Slice>,
    blocks: &mut Vec<Slice>,
    wrong: &mut Vec<Wrong>,
) {
    let Some((segment, first)) = run.at else {
        blocks.extend(run.checks.iter().map(|_| engine.port.zeroes.clone()));
        return;
    };
    let mut before_is_wrong = false;
    for (index, check) in run.checks.iter().enumerate() {
        let read = buffer.map(|buffer| buffer.part(index * BLOCK_BYTES, BLOCK_BYTES));
        let at = BlockPlace { block: first.block + index as u32, ..first };
        let is_right = |block: &Slice| is_right(engine, *check, block.bytes());
        let was_read = read.is_some();
        if let Some(block) = read.filter(is_right) {
            blocks.push(block);
            before_is_wrong = false;
            continue;
        }
        if was_read {
            name(engine, &segment, at);
        }
        match wrong.last_mut().filter(|_| before_is_wrong) {
            Some(before) => before.checks.push(*check),
            None => {
                let segment = Arc::clone(&segment);
                wrong.push(Wrong { first: blocks.len(), segment, at, checks: vec![*check] });
            }
        }
        blocks.push(engine.port.zeroes.clone());
        before_is_wrong = true;
    }
}

/// Makes what is not right from the other columns, all at once.
async fn make<D: ZoneDevice>(
    engine: &LogEngine<D>,
    first_block: u64,
    wrong: Vec<Wrong>,
    blocks: &mut [Slice],
) -> Result<(), VolumeError> {
    let name = |number: usize| BlockName::User(first_block + number as u64);
    let make = async |Wrong { first, segment, at, checks }: &Wrong| {
        let is_right = |number: usize, bytes: &[u8]| is_right(engine, checks[number], bytes);
        let names: SmallVec<[BlockName; 8]> = (*first..first + checks.len()).map(name).collect();
        make_blocks(&engine.port, segment, *at, &names, &is_right).await
    };
    let made = join_all(wrong.iter().map(|wrong| Box::pin(make(wrong)))).await;
    for (Wrong { first, at, checks, .. }, made) in wrong.iter().zip(made) {
        for (number, made) in made.into_iter().enumerate() {
            blocks[first + number] = match made {
                Ok(block) => block,
                Err(error) => {
                    // Its run may have failed by another block.
                    let at = BlockPlace { block: at.block + number as u32, ..*at };
                    let is_right = |bytes: &[u8]| is_right(engine, checks[number], bytes);
                    read_block(&engine.port, at, name(first + number), &is_right).await.ok_or(error)?
                }
            };
        }
    }
    Ok(())
}

fn is_right<D: ZoneDevice>(engine: &LogEngine<D>, check: u32, bytes: &[u8]) -> bool {
    check_matches(engine.port.shared.map.shape(), check, Checksum::of(bytes))
}

/// Reports a block that was read and is wrong.
fn name<D: ZoneDevice>(engine: &LogEngine<D>, segment: &Segment, at: BlockPlace) {
    if let Some(zone) = segment.zone_of(at.column) {
        let what = "the block's checksum is not that of the map";
        report(&engine.port, &Damage { slot: segment.slot_of(at.column), zone, block: at.block, what });
    }
}
