//! A read: map, segment, column, member. What comes back is verified by the checksum in the map, and made from the rest of
//! its row where it is not right or its member cannot read it (Z-I12).

use std::rc::Rc;
use std::sync::Arc;

use layout::zoned::{BlockPlace, Checksum, MapEntry};

use super::damage::{Damage, report};
use super::degraded::make_block;
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
    let mut data = Gather::new();
    for (run, is_started) in runs.into_iter().zip(is_started) {
        let buffer = match is_started.then(|| done.next().expect("a result for each read")) {
            Some((buffer, Ok(()))) => Some(buffer.freeze()),
            _ => None,
        };
        finish(engine, run, buffer, &mut data).await?;
    }
    drop(pin);
    Ok(data)
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

/// Verifies a run, and makes what is not right from the other columns.
async fn finish<D: ZoneDevice>(
    engine: &Rc<LogEngine<D>>,
    run: Run,
    buffer: Option<Slice>,
    data: &mut Gather,
) -> Result<(), VolumeError> {
    let Some((segment, first)) = run.at else {
        run.checks.iter().for_each(|_| data.push(engine.port.zeroes.clone()));
        return Ok(());
    };
    for (index, check) in run.checks.iter().enumerate() {
        let read = buffer.as_ref().map(|buffer| buffer.part(index * BLOCK_BYTES, BLOCK_BYTES));
        let shape = engine.port.shared.map.shape();
        let is_right = |bytes: &[u8]| check_matches(shape, *check, Checksum::of(bytes));
        let at = BlockPlace { block: first.block + index as u32, ..first };
        match read {
            Some(block) if is_right(block.bytes()) => data.push(block),
            other => {
                if other.is_some() {
                    name(engine, &segment, at);
                }
                data.push(make_block(&engine.port, &segment, at, &is_right).await?);
            }
        }
    }
    Ok(())
}

/// Reports a block that was read and is wrong.
fn name<D: ZoneDevice>(engine: &LogEngine<D>, segment: &Segment, at: BlockPlace) {
    if let Some(zone) = segment.zone_of(at.column) {
        let what = "the block's checksum is not that of the map";
        report(&engine.port, &Damage { slot: segment.slot_of(at.column), zone, block: at.block, what });
    }
}
