//! What clients do: requests of every kind and size, mostly at a few hot places, so that they meet and overlap.

use std::ops::Range;
use std::rc::Rc;

use engine::buffer::{Buffer, Gather};
use engine::error::VolumeError;
use engine::members::MemberState;
use engine::volume::{ReadInto, Space, ZeroFlags};

use crate::array::Array;
use crate::check;
use crate::lost::is_lost;
use crate::network::Fault;
use crate::oracle::Write;
use crate::pages;
use crate::trace::Note;
use crate::world::NO_LIMIT;
use layout::units::Stripe;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    Read,
    Write,
    Flush,
    Zeroes,
    Discard,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Kind::Read => "read",
            Kind::Write => "write",
            Kind::Flush => "flush",
            Kind::Zeroes => "write zeroes",
            Kind::Discard => "discard",
        }
    }
}

struct Request {
    kind: Kind,
    offset: u64,
    bytes: u64,
    fua: bool,
}

/// Starts the clients. They end when `requests` requests are done.
pub(crate) fn start(array: &Rc<Array>, requests: u64) {
    let load = &array.machine.scenario.load;
    array.requests_left.set(requests);
    array.bytes_left.set(6 << 20);
    array.clients.set(load.clients);
    for number in 0..load.clients {
        let shard = array.any_shard();
        let own = Rc::clone(array);
        array.spawn(shard, format!("client {number}"), async move {
            while own.requests_left.get() > 0 {
                own.requests_left.set(own.requests_left.get() - 1);
                own.world.sleep_up_to(own.machine.scenario.load.pause).await;
                let request = draw(&own);
                serve(&own, shard, request).await;
            }
            own.clients.set(own.clients.get() - 1);
        });
    }
}

fn draw(array: &Array) -> Request {
    let scenario = &array.machine.scenario;
    let load = &scenario.load;
    let random = array.world.random();
    let mut roll = random.below(100);
    let mut kind = Kind::Discard;
    for (percent, which) in load.mix.iter().zip([Kind::Read, Kind::Write, Kind::Flush, Kind::Zeroes]) {
        if roll < *percent {
            kind = which;
            break;
        }
        roll -= percent;
    }
    if kind == Kind::Flush {
        return Request { kind, offset: 0, bytes: 0, fua: false };
    }
    let (unit, size) = (u64::from(scenario.unit), scenario.geometry.array_bytes());
    let chunk = u64::from(scenario.geometry.chunk_bytes()).max(4096);
    let spot_bytes = scenario.spot_bytes();
    let hot = random.percent(load.hot_percent);
    let spot =
        if hot { random.pick(&load.hot) } else { random.below(size.div_ceil(spot_bytes)) } * spot_bytes;
    let in_spot = |step: u64, random: &crate::random::Random| spot + random.below(spot_bytes / step) * step;
    let many = matches!(kind, Kind::Zeroes | Kind::Discard) && random.one_in(3);
    let (offset, bytes) = match random.below(7) {
        _ if many => (spot, spot_bytes * random.between(4, 20)),
        0 => (in_spot(unit, random), unit * random.between(1, 8)),
        1 | 2 => (in_spot(4096, random), 4096),
        3 => (in_spot(unit, random), unit * random.between(1, (chunk / unit).max(1))),
        4 => (in_spot(chunk.min(spot_bytes), random), chunk),
        5 => (spot, spot_bytes * random.between(1, 3)),
        _ => (in_spot(unit, random), unit * random.between(1, spot_bytes * 5 / 2 / unit)),
    };
    let budget = match kind {
        Kind::Read => load.bytes_max * 4,
        _ if many => array.bytes_left.get(),
        _ => load.bytes_max.min(array.bytes_left.get()),
    };
    let offset = offset.min(size - unit);
    let bytes = bytes.min(size - offset).min(budget.max(4096));
    array.bytes_left.set(array.bytes_left.get().saturating_sub(bytes));
    let fua = matches!(kind, Kind::Write | Kind::Zeroes) && random.percent(load.fua_percent);
    Request { kind, offset, bytes, fua }
}

async fn serve(array: &Rc<Array>, shard: usize, request: Request) {
    let Request { kind, offset, bytes, fua } = request;
    let name = kind.name();
    let unit = array.machine.unit();
    let blocks = offset / unit..(offset + bytes) / unit;
    let open = array.open(format!("{name} {bytes} at {offset} (blocks {blocks:?}) on shard {shard}"));
    let was_taken = array.machine.hosts.all_taken.get();
    array.keep_ledgers(3);
    let is_done = match kind {
        Kind::Read => read(array, shard, blocks).await,
        Kind::Flush => flush(array, shard).await,
        Kind::Write | Kind::Zeroes | Kind::Discard => write(array, shard, kind, blocks, fua).await,
    };
    if was_taken && is_done && matches!(kind, Kind::Read | Kind::Write) {
        array
            .world
            .fail(format!("F-I7: a {name} began after another host had taken all members, and succeeded"));
    }
    array.close(open);
}

/// Reads blocks and compares them with the oracle. Whether they were read.
pub(crate) async fn read(array: &Rc<Array>, shard: usize, blocks: Range<u64>) -> bool {
    let unit = array.machine.unit();
    let (offset, bytes) = (blocks.start * unit, (blocks.end - blocks.start) * unit);
    array.world.counts.borrow_mut().reads += 1;
    array.world.note(Note::Begin { request: 0, kind: "read", shard, offset, bytes, fua: false });
    let read = array.machine.oracle.borrow_mut().begin_read();
    let result = read_somewhere(array, shard, offset, bytes).await;
    array.world.note(Note::End { request: 0, ok: result.is_ok() });
    let is_done = result.is_ok();
    match result {
        Ok(data) => check::read(array, &read, blocks, &data),
        Err(error) => refused(array, "read", &blocks, &error),
    }
    array.machine.oracle.borrow_mut().end_read(&read);
    is_done
}

/// Reads every part of the array that was ever written.
pub(crate) fn read_all(array: &Rc<Array>) {
    if array.world.failure().is_some() {
        return;
    }
    let blocks = array.machine.geometry().array_bytes() / array.machine.unit();
    let step = ((256 << 10) / array.machine.unit()).max(1);
    let (own, shard) = (Rc::clone(array), array.any_shard());
    array.spawn(shard, "reading everything", async move {
        let mut at = 0;
        while at < blocks && own.world.failure().is_none() {
            let end = (at + step).min(blocks);
            if own.machine.oracle.borrow().any_touched(at..end) {
                read(&own, shard, at..end).await;
            }
            at = end;
        }
    });
    array.run(NO_LIMIT);
}

/// Reads as a client of a block device does, or as one over a network. The place decides which, not chance, so that the
/// draws of a seed stay the same.
async fn read_somewhere(
    array: &Rc<Array>,
    shard: usize,
    offset: u64,
    bytes: u64,
) -> Result<Gather, VolumeError> {
    let volume = &array.shards[shard].volume;
    let from_a_device = !((offset + bytes) / array.machine.unit()).is_multiple_of(3);
    if from_a_device {
        let buffer = array.world.foreign_buffers.register(usize::try_from(bytes).expect("a request"));
        let is_read = volume.read_into(offset, bytes, &buffer.lease()).await;
        buffer.returned().await;
        let data = array.world.foreign_buffers.take(&buffer);
        if is_read {
            array.world.counts.borrow_mut().foreign_reads += 1;
            return Ok(data);
        }
    }
    volume.read(offset, bytes).await
}

pub(crate) async fn flush(array: &Rc<Array>, shard: usize) -> bool {
    array.world.counts.borrow_mut().flushes += 1;
    array.world.note(Note::Begin { request: 0, kind: "flush", shard, offset: 0, bytes: 0, fua: false });
    let flush = array.machine.oracle.borrow_mut().begin_flush();
    let result = array.shards[shard].volume.flush().await;
    let is_done = result.is_ok();
    array.world.note(Note::End { request: 0, ok: is_done });
    match result {
        Ok(()) => {
            let decided = array.machine.oracle.borrow_mut().flushed(&flush);
            check::durable(array, decided.into_iter(), "after a flush");
        }
        Err(error) => refused(array, "flush", &(0..0), &error),
    }
    is_done
}

pub(crate) async fn write(
    array: &Rc<Array>,
    shard: usize,
    kind: Kind,
    blocks: Range<u64>,
    fua: bool,
) -> bool {
    let name = kind.name();
    let unit = array.machine.unit();
    let (offset, bytes) = (blocks.start * unit, (blocks.end - blocks.start) * unit);
    let write = array.machine.oracle.borrow_mut().begin_write(blocks.clone(), kind != Kind::Write);
    let request = write.number;
    array.world.note(Note::Begin { request, kind: name, shard, offset, bytes, fua });
    let volume = &array.shards[shard].volume;
    let result = match kind {
        Kind::Write => {
            array.world.counts.borrow_mut().writes += 1;
            array.world.counts.borrow_mut().fua_writes += u64::from(fua);
            volume.write(offset, contents(array, &write), fua).await
        }
        Kind::Zeroes => {
            array.world.counts.borrow_mut().zeroes += 1;
            let may_unmap = array.world.random().one_in(2);
            volume.write_zeroes(offset, bytes, ZeroFlags { may_unmap, fua }).await
        }
        _ => {
            array.world.counts.borrow_mut().discards += 1;
            volume.discard(offset, bytes).await
        }
    };
    let is_done = result.is_ok();
    array.world.note(Note::End { request, ok: is_done });
    match result {
        Ok(()) if kind == Kind::Discard => array.machine.oracle.borrow_mut().in_doubt(&write, false),
        Ok(()) => {
            array.machine.oracle.borrow_mut().acknowledged(&write, fua);
            check::acknowledged(array, &write, fua);
        }
        Err(error) => {
            array.machine.oracle.borrow_mut().in_doubt(&write, true);
            refused(array, name, &blocks, &error);
        }
    }
    is_done
}

/// The bytes of a write, in one to three pieces of memory.
fn contents(array: &Array, write: &Write) -> Gather {
    let unit = array.machine.unit() as usize;
    let count = (write.blocks.end - write.blocks.start) as usize;
    let mut buffer = Buffer::new(count * unit);
    for (number, block) in write.blocks.clone().zip(buffer.bytes_mut().chunks_exact_mut(unit)) {
        pages::fill(block, number, write.content);
    }
    let whole = buffer.freeze();
    let random = array.world.random();
    let mut cuts = vec![0, count];
    for _ in 0..random.pick(&[0, 0, 1, 2]) {
        cuts.push(random.below(count as u64) as usize);
    }
    cuts.sort_unstable();
    let copy = random.one_in(2); // pieces that lie apart in memory
    let piece = |pair: &[usize]| {
        let part = whole.part(pair[0] * unit, (pair[1] - pair[0]) * unit);
        if copy { engine::buffer::Slice::from_bytes(part.bytes()) } else { part }
    };
    cuts.windows(2).map(piece).collect()
}

/// Whether missing chunks of these blocks' stripes cannot be reconstructed because a stripe is in doubt (invariant 10).
fn in_doubt(array: &Array, blocks: &Range<u64>) -> bool {
    let (machine, degraded) = (&array.machine, !array.shared.members.all_in_sync());
    let mut spots = blocks.clone().map(|block| machine.spot_of(block * machine.unit()));
    let doubted = machine.excuses.doubted.borrow();
    degraded
        && spots
            .any(|spot| array.shared.consistency.is_in_doubt(Stripe::new(spot)) || doubted.contains(&spot))
}

/// Whether as many members are missing as the level survives while messages among targets are lost: one more failure in the same
/// op. What it left half done is in doubt then, by name. Where nothing goes wrong but that two members are lost at once, no message
/// between the others is.
fn may_be_cut_short(array: &Array) -> bool {
    let machine = &array.machine;
    if machine.hosts.fault() == Some(Fault::LongTwo) {
        return false;
    }
    let missing = array.shared.members.states().iter().filter(|state| **state != MemberState::InSync).count();
    machine.scenario.fabric.is_some_and(|plan| plan.loses())
        && missing >= machine.geometry().losses_survived() as usize
}

/// An error needs an excuse: while failures are within the level nothing may fail (invariant 6).
fn refused(array: &Array, name: &str, blocks: &Range<u64>, error: &VolumeError) {
    array.world.counts.borrow_mut().request_errors += 1;
    let (machine, excuses) = (&array.machine, &array.machine.excuses);
    if name != "read" && !blocks.is_empty() {
        let unit = machine.unit();
        let spots = machine.spot_of(blocks.start * unit)..=machine.spot_of((blocks.end - 1) * unit);
        excuses.hurt.borrow_mut().extend(spots);
    }
    array.world.note(Note::Words(format!("  {name} of blocks {blocks:?}: {error}")));
    if excuses.fenced.get() {
        return;
    }
    let lost = matches!(error, VolumeError::Unreadable { .. }) && is_lost(machine, blocks);
    let is_cut_short = may_be_cut_short(array);
    if !excuses.beyond.get() && !excuses.full.get() && !in_doubt(array, blocks) && !lost && !is_cut_short {
        let states = array.shared.members.states();
        array.world.fail(format!(
            "invariant 6: {name} of blocks {blocks:?} failed within the level: {error}; members {states:?}"
        ));
    }
}
