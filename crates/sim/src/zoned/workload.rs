//! Clients of a zoned array: they read, write, zero, discard and flush the same few blocks at once, and the oracle hears of
//! each request before and after.

use std::cell::Cell;
use std::ops::Range;
use std::rc::Rc;

use engine::buffer::{Buffer, Gather};
use engine::error::VolumeError;
use engine::volume::{Space, ZeroFlags};

use super::array::Array;
use super::medium::BLOCK;
use crate::pages;
use crate::trace::Note;
use crate::world::Ended;

/// A request, and how often it is drawn of a hundred.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Write,
    Read,
    Flush,
    Zeroes,
    Discard,
}

const MIX: [(Kind, u64); 5] =
    [(Kind::Write, 55), (Kind::Read, 15), (Kind::Flush, 12), (Kind::Zeroes, 10), (Kind::Discard, 8)];
const FUA_PERCENT: u64 = 25;

/// Starts clients that make `requests` requests in all.
pub(super) fn start(array: &Rc<Array>, requests: u64) {
    let left = Rc::new(Cell::new(requests));
    for client in 0..array.machine.scenario.clients {
        array.working.set(array.working.get() + 1);
        let (array, left) = (Rc::clone(array), Rc::clone(&left));
        let shard = client as usize % array.executors.len();
        array.executors[shard].clone().spawn(async move {
            while left.get() > 0 {
                left.set(left.get() - 1);
                request(&array, shard).await;
                if array.machine.world.random().one_in(3) {
                    array.machine.world.sleep_up_to(60).await;
                }
            }
            array.working.set(array.working.get() - 1);
        });
    }
}

fn draw(array: &Array) -> (Kind, Range<u64>, bool) {
    let (random, scenario) = (array.machine.world.random(), &array.machine.scenario);
    let mut drawn = random.below(100);
    let kind = MIX.iter().find(|(_, percent)| {
        let is_it = drawn < *percent;
        drawn = drawn.saturating_sub(*percent);
        is_it
    });
    let first = random.below(scenario.logical_blocks);
    let blocks = random.between(1, scenario.blocks_max).min(scenario.logical_blocks - first);
    (kind.map_or(Kind::Write, |(kind, _)| *kind), first..first + blocks, random.percent(FUA_PERCENT))
}

async fn request(array: &Rc<Array>, shard: usize) {
    let (kind, blocks, fua) = draw(array);
    let machine = &array.machine;
    let set = &array.sets[shard];
    let (at, bytes) = (blocks.start * BLOCK, (blocks.end - blocks.start) * BLOCK);
    let name = match kind {
        Kind::Write => "write",
        Kind::Read => "read",
        Kind::Flush => "flush",
        Kind::Zeroes => "zeroes",
        Kind::Discard => "discard",
    };
    machine.world.note(Note::Begin { request: 0, kind: name, shard, offset: at, bytes, fua });
    count(array, kind, fua);
    let result = match kind {
        Kind::Read => read(array, shard, blocks).await,
        Kind::Flush => {
            let flush = machine.oracle.borrow_mut().begin_flush();
            let result = set.flush().await;
            if result.is_ok() {
                machine.oracle.borrow_mut().flushed(&flush);
            }
            result
        }
        _ => {
            let write = machine.oracle.borrow_mut().begin_write(blocks.clone(), kind != Kind::Write);
            let result = match kind {
                Kind::Write => set.write(at, contents(blocks, write.content), fua).await,
                Kind::Zeroes => set.write_zeroes(at, bytes, ZeroFlags { may_unmap: true, fua }).await,
                _ => set.discard(at, bytes).await,
            };
            let fua = fua && kind != Kind::Discard;
            match &result {
                Ok(()) => machine.oracle.borrow_mut().acknowledged(&write, fua),
                Err(_) => machine.oracle.borrow_mut().in_doubt(&write, false),
            }
            result
        }
    };
    machine.world.note(Note::End { request: 0, ok: result.is_ok() });
    match result {
        Ok(()) => {}
        // Worn zones take room away, and so does a member that is missing; else a log never fills.
        Err(VolumeError::NoSpace { .. }) if may_be_full(array) => {
            machine.world.counts.borrow_mut().zoned_refused += 1;
        }
        Err(error) => machine.world.fail(format!("a {name} failed: {error}")),
    }
}

fn may_be_full(array: &Array) -> bool {
    let machine = &array.machine;
    !machine.scenario.faults.is_empty() || !machine.lost.borrow().is_empty() || machine.depth.get() > 0
}

fn count(array: &Array, kind: Kind, fua: bool) {
    let mut counts = array.machine.world.counts.borrow_mut();
    match kind {
        Kind::Write if fua => counts.fua_writes += 1,
        Kind::Write => counts.writes += 1,
        Kind::Read => counts.reads += 1,
        Kind::Flush => counts.flushes += 1,
        Kind::Zeroes => counts.zeroes += 1,
        Kind::Discard => counts.discards += 1,
    }
}

/// What a write puts into blocks.
fn contents(blocks: Range<u64>, content: pages::Content) -> Gather {
    let mut buffer = Buffer::new(((blocks.end - blocks.start) * BLOCK) as usize);
    for (number, block) in blocks.zip(buffer.bytes_mut().chunks_exact_mut(BLOCK as usize)) {
        pages::fill(block, number, content);
    }
    Gather::from(buffer.freeze())
}

/// Reads blocks, and compares each with what it may hold.
pub(super) async fn read(array: &Rc<Array>, shard: usize, blocks: Range<u64>) -> Result<(), VolumeError> {
    let machine = &array.machine;
    let read = machine.oracle.borrow_mut().begin_read();
    let bytes = (blocks.end - blocks.start) * BLOCK;
    let result = array.sets[shard].read(blocks.start * BLOCK, bytes).await;
    let data = match result {
        Ok(data) => data,
        Err(error) => {
            machine.oracle.borrow_mut().end_read(&read);
            return Err(error);
        }
    };
    let mut all = vec![0; data.len()];
    data.copy_to(&mut all);
    for (number, block) in blocks.zip(all.chunks_exact(BLOCK as usize)) {
        let found = pages::identify(block, number);
        let is_right = found.is_some_and(|content| machine.oracle.borrow_mut().found(&read, number, content));
        machine.world.counts.borrow_mut().blocks_read += 1;
        if !is_right {
            let (holds, may) = (pages::describe(block, number), machine.oracle.borrow().expected(number));
            machine.world.fail(format!("block {number}: it holds {holds}; it may hold {may}"));
        }
    }
    machine.oracle.borrow_mut().end_read(&read);
    Ok(())
}

/// Reads every block. False if one cannot be read.
pub(super) fn read_all(array: &Rc<Array>, what: &str) -> bool {
    let own = Rc::clone(array);
    let result = array.wait(async move {
        for block in 0..own.machine.scenario.logical_blocks {
            read(&own, 0, block..block + 1).await.map_err(|error| format!("block {block}: {error}"))?;
        }
        Ok::<(), String>(())
    });
    let world = &array.machine.world;
    match result {
        Some(Ok(())) => {}
        Some(Err(error)) => world.fail(format!("{what}: a read failed: {error}")),
        None if world.failure().is_none() => world.fail(format!("{what}: a read never ends")),
        None => {}
    }
    world.failure().is_none()
}

/// Serves for a while.
pub(super) fn serve(array: &Rc<Array>, requests: u64) -> bool {
    start(array, requests);
    let ended = array.run(crate::world::NO_LIMIT);
    let world = &array.machine.world;
    match ended {
        Ended::Circles => world.fail("the array runs in circles".to_owned()),
        Ended::Idle => all_ended(array),
        Ended::Steps | Ended::Failed => {}
    }
    world.failure().is_none()
}

/// Nothing is left to do: every request was answered.
pub(super) fn all_ended(array: &Array) {
    let working = array.working.get();
    if working > 0 {
        let table = &array.shared.table;
        let members = 0..array.machine.scenario.members;
        let active: Vec<u32> = members.map(|member| table.active_zones(member)).collect();
        let states: Vec<_> = table.all().iter().map(|segment| (segment.slot(), segment.state())).collect();
        array.machine.world.fail(format!(
            "{working} clients wait for a request that never ends: zones free {:?}, active {active:?}, segments {states:?}, {:?}",
            table.free_zones(),
            array.shared.space.totals()
        ));
    }
}
