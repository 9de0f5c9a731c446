//! Logging the writes of a stripe, and making them. Writes of one shard that come while a record is on its way share
//! the next one.

use smallvec::SmallVec;
use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::rc::Rc;
use std::task::Poll;

use super::cut::{Pieces, StripeWrites, cut, piece};
use super::headers::{no_log_on, settle};
use super::log::RedoLog;
use super::queue::{Logged, Ticket};
use super::retire::retire_as_the_one;
use super::slots::{Next, Taken};
use super::state::{Admitted, Redo};
use crate::buffer::{Gather, Slice};
use crate::device::{Device, DeviceErrorKind};
use crate::error::VolumeError;
use crate::executor::join_all;
use crate::members::attachment::Attached;
use crate::members::health::MemberState;
use crate::members::port::MemberError;
use layout::redo_log::{Checksum, PieceKind, Place, RedoRecord};

/// Records of one shard on their way at once. With more, fewer writes share one.
const RECORDS_AT_ONCE: u32 = 2;

/// What each write of a stripe came to.
type Results = SmallVec<[Result<(), MemberError>; 4]>;

/// Whether enough members have a record.
enum Kept {
    Everywhere,
    TooFew,
    /// Too few, but this one would have it if there were room.
    Full(u32),
}

/// A record of zeroes that are about to be written, if there is one.
pub(in crate::stripe) struct ZeroesLogged(Option<Taken>);

/// Writes of one stripe that is owned, while the array is not whole or its log is in force. `parity`: some of
/// them are parity.
pub(in crate::stripe) async fn write_degraded<D: Device>(
    log: &RedoLog<D>,
    writes: StripeWrites<'_>,
    parity: bool,
    fua: bool,
) -> Result<Results, VolumeError> {
    let (redo, stripe) = (&log.shared.redo, writes.stripe);
    loop {
        // The gate opens when every owner is there or has ended; who gathers must not wait for those who are.
        let waiting = log.in_flight.wait();
        let admitted = redo.admit(&log.shared.members, stripe..stripe + 1).await;
        drop(waiting);
        if admitted? == Admitted::Unlogged {
            return Ok(log.port.write(writes.made, fua).await);
        }
        let results = write_logged(log, writes, parity, fua).await;
        redo.done();
        match results? {
            Some(results) => return Ok(results),
            None => redo.another_log(&log.shared.members).await,
        }
    }
}

/// None: no members took the record.
async fn write_logged<D: Device>(
    log: &RedoLog<D>,
    writes: StripeWrites<'_>,
    parity: bool,
    fua: bool,
) -> Result<Option<Results>, VolumeError> {
    let (redo, stripe) = (&log.shared.redo, writes.stripe);
    // A stripe is touched without a member only after the superblocks say that it failed: were it taken for good
    // after a crash, this record could not make up for what it has missed (invariant 8).
    settle(log).await?;
    // Only data, or one member: nothing can come to disagree with it, and no older record would be redone over it.
    let is_alone = writes.made.iter().all(|write| write.slot == writes.made[0].slot);
    if (!parity || is_alone) && !redo.has_record(stripe) {
        return Ok(Some(log.port.write(writes.made, fua).await));
    }
    let mut results = Results::new();
    for part in cut(writes, redo.payload_bytes()) {
        let Some(taken) = record(log, stripe..stripe + 1, part.pieces).await? else {
            return Ok(None); // what was written already is written again
        };
        results.extend(log.port.write(&part.writes, fua).await);
        let failed = results.iter().any(|result| matches!(result, Err(MemberError::Request(_))));
        if failed {
            // The record goes some time; that the stripe is half written stays known.
            log.shared.consistency.doubt_stripe(stripe);
            redo.unmade(taken, stripe..stripe + 1);
        }
        redo.written(taken);
        if failed {
            break;
        }
    }
    Ok(Some(results))
}

/// Whole stripes are about to be zeroed. Returns once that may be done; what comes back is for
/// [`zeroes_written`].
pub(in crate::stripe) async fn log_zeroes<D: Device>(
    log: &RedoLog<D>,
    stripes: Range<u64>,
) -> Result<ZeroesLogged, VolumeError> {
    let redo = &log.shared.redo;
    loop {
        if redo.admit(&log.shared.members, stripes.clone()).await? == Admitted::Unlogged {
            return Ok(ZeroesLogged(None));
        }
        match log_zeroes_admitted(log, stripes.clone()).await {
            Ok(Some(taken)) => return Ok(ZeroesLogged(Some(taken))),
            Ok(None) => {
                redo.done();
                redo.another_log(&log.shared.members).await;
            }
            Err(error) => {
                redo.done();
                return Err(error);
            }
        }
    }
}

async fn log_zeroes_admitted<D: Device>(
    log: &RedoLog<D>,
    stripes: Range<u64>,
) -> Result<Option<Taken>, VolumeError> {
    settle(log).await?;
    let geometry = &log.shared.geometry;
    let offset = geometry.member_offset(stripes.start);
    let bytes = (stripes.end - stripes.start) * u64::from(geometry.chunk_bytes());
    // Of a missing member, too: what earlier records tell of its chunks is no longer so.
    let zeroes = |slot| (piece(stripes.start, slot, offset, bytes, PieceKind::Zeroes), Gather::new());
    let pieces = (0..geometry.members()).map(zeroes).collect();
    record(log, stripes, pieces).await
}

/// The zeroes are written, or that has failed somewhere.
pub(in crate::stripe) fn zeroes_written<D: Device>(
    log: &RedoLog<D>,
    stripes: Range<u64>,
    logged: &ZeroesLogged,
    failed: bool,
) {
    if let Some(taken) = logged.0 {
        if failed {
            log.shared.redo.unmade(taken, stripes);
        }
        log.shared.redo.written(taken);
        log.shared.redo.done();
    }
}

/// Returns when a record with these pieces is durable. Its writes are to be made then, and
/// [`Redo::written`] called. None: too few members took the record.
async fn record<D: Device>(log: &RedoLog<D>, stripes: Range<u64>, pieces: Pieces) -> Logged {
    let ticket = Rc::new(Ticket {
        stripes,
        pieces,
        result: RefCell::new(None),
        leading: Cell::new(false),
        waker: RefCell::new(None),
    });
    let queue = &log.queue;
    queue.waiting.borrow_mut().push_back(Rc::clone(&ticket));
    if queue.on_their_way.get() < RECORDS_AT_ONCE {
        queue.on_their_way.set(queue.on_their_way.get() + 1);
        ticket.leading.set(true);
    }
    loop {
        let result = std::future::poll_fn(|context| {
            // The lead first, or nobody would have it.
            if ticket.leading.get() {
                return Poll::Ready(None);
            }
            let result = ticket.result.take();
            if result.is_none() {
                ticket.waker.replace(Some(context.waker().clone()));
                return Poll::Pending;
            }
            Poll::Ready(result)
        });
        if let Some(result) = result.await {
            return result;
        }
        write_record(log, &ticket).await;
        ticket.leading.set(false);
        queue.hand_over();
    }
}

/// Writes one record with what waits, as much as fits.
async fn write_record<D: Device>(log: &RedoLog<D>, leader: &Rc<Ticket>) {
    let taken = match slot_for(log, leader).await {
        Ok(Some(taken)) => taken,
        Ok(None) => return,
        Err(error) => {
            let mut waiting = log.queue.waiting.borrow_mut();
            let before = waiting.len();
            waiting.retain(|ticket| !Rc::ptr_eq(ticket, leader));
            if waiting.len() < before {
                leader.done(Err(error));
            }
            return;
        }
    };
    let batch = log.queue.take(log.shared.redo.payload_bytes());
    if batch.is_empty() {
        log.shared.redo.give_back(taken);
        return; // another record took all that waited
    }
    let stripes = batch.iter().map(|ticket| ticket.stripes.clone()).collect();
    log.shared.redo.shared_by(taken, batch.len(), stripes);
    let kept = write_to_logs(log, taken, &batch).await;
    for ticket in batch {
        if !matches!(kept, Kept::Everywhere) {
            // Some member may have it, and a crash would redo it: the slot knows of it until records are retired.
            log.shared.redo.unmade(taken, ticket.stripes.clone());
            log.shared.redo.written(taken);
        }
        ticket.done(match kept {
            Kept::Everywhere => Ok(Some(taken)),
            Kept::TooFew => Ok(None),
            Kept::Full(member) => Err(VolumeError::NoSpace { member }),
        });
    }
}

/// A free slot, after the log was emptied if there is none. None when another record took the leader's own pieces
/// along: the slot of that one is open until the leader has made its writes, and no later slot is freed before it.
/// Whoever waits here has no slot open.
async fn slot_for<D: Device>(log: &RedoLog<D>, leader: &Ticket) -> Result<Option<Taken>, VolumeError> {
    let redo = &log.shared.redo;
    loop {
        let next = std::future::poll_fn(|context| {
            if leader.is_done() {
                return Poll::Ready(None);
            }
            leader.waker.replace(Some(context.waker().clone()));
            redo.poll_when(context, Redo::take).map(Some)
        });
        match next.await {
            None => return Ok(None),
            Some(Next::Taken(taken)) => return Ok(Some(taken)),
            Some(Next::Retire) => retire_as_the_one(log).await?,
        }
    }
}

/// Writes the record to as many members as keep it when more of them fail within the level.
async fn write_to_logs<D: Device>(log: &RedoLog<D>, taken: Taken, batch: &[Rc<Ticket>]) -> Kept {
    let (mut payload, mut sum) = (Gather::new(), Checksum::default());
    for (_, data) in batch.iter().flat_map(|ticket| &ticket.pieces) {
        for slice in data.slices() {
            sum.add(slice.bytes());
            payload.push(slice.clone());
        }
    }
    let copies = log.shared.members.copies_wanted();
    let record = RedoRecord {
        epoch: taken.epoch,
        sequence: taken.sequence,
        copies,
        payload_checksum: sum.value(),
        pieces: batch.iter().flat_map(|ticket| &ticket.pieces).map(|(piece, _)| *piece).collect(),
    };
    let mut tried: SmallVec<[u32; 4]> = SmallVec::new();
    let (mut written, mut full) = (0, None);
    while written < copies {
        let targets = log_members(log, taken.slot, &tried, (copies - written) as usize);
        if targets.is_empty() {
            return full.map_or(Kept::TooFew, Kept::Full);
        }
        tried.extend(targets.iter().copied());
        written += write_record_to(log, &targets, taken, &record, &payload, &mut full).await;
    }
    Kept::Everywhere
}

/// How many of these members took it. One whose file system is full is put in `full`: nothing is wrong with it.
async fn write_record_to<D: Device>(
    log: &RedoLog<D>,
    targets: &[u32],
    taken: Taken,
    record: &RedoRecord,
    payload: &Gather,
    full: &mut Option<u32>,
) -> u32 {
    let place = |slot: u32| {
        let (offset_bytes, member) = log.shared.redo.slot_place(slot, taken.slot)?;
        let place = Place { set_uuid: member.set_uuid, device_uuid: member.device_uuid, offset_bytes };
        let mut data = Gather::from(Slice::from_bytes(&record.encode(place)));
        payload.slices().iter().for_each(|slice| data.push(slice.clone()));
        Some((offset_bytes, data))
    };
    let counters = log.port.counters();
    let mut to = SmallVec::<[(u32, u64, Gather, Rc<Attached<D>>); 2]>::new();
    let mut started = SmallVec::<[D::Done; 2]>::new();
    for &slot in targets {
        let member = log.port.devices.described(slot);
        let (Some((offset, data)), Some(member)) = (place(slot), member) else { continue };
        // Else the place may be one on another device, which has just taken the slot.
        if log.port.devices.described(slot).is_none_or(|now| !Rc::ptr_eq(&now, &member)) {
            continue;
        }
        counters.redo_writes.add(1);
        counters.redo_write_bytes.add(data.len() as u64);
        started.push(member.device.write(offset, data.clone(), true));
        to.push((slot, offset, data, member));
    }
    let mut written = 0;
    for ((slot, offset, data, member), done) in to.into_iter().zip(join_all(started).await) {
        let result = match done {
            Ok(()) => Ok(()),
            Err(error) => {
                log.shared.members.note_error(slot, &error);
                member.device.write(offset, data, true).await
            }
        };
        match result {
            Ok(()) => written += 1,
            Err(error) if error.kind == DeviceErrorKind::NoSpace => *full = Some(slot),
            Err(error) => no_log_on(log, slot, &member, &error),
        }
    }
    written
}

/// Members for a record in this slot, other ones for each slot in turn.
fn log_members<D: Device>(log: &RedoLog<D>, slot: u32, tried: &[u32], count: usize) -> SmallVec<[u32; 2]> {
    let logs = log.shared.redo.logs();
    let first = slot as usize % logs.len().max(1);
    let works = |slot: &u32| !tried.contains(slot) && log.shared.members.state(*slot) == MemberState::InSync;
    logs.iter().cycle().skip(first).take(logs.len()).copied().filter(works).take(count).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stripe::fake::World;
    use layout::geometry::Level;

    const BLOCK: u64 = 4096;

    /// Members failed for want of room in their logs, one after the other, until the array was gone.
    #[test]
    fn a_log_without_room_refuses_the_write_and_fails_no_member() {
        let world = World::logging(Level::Raid6, 5);
        let old = vec![1; BLOCK as usize];
        world.write(0, &old).expect("written");
        // One member has room: a record on it alone is not enough, and a crash would redo it.
        (1..4).for_each(|slot: usize| world.fakes[slot].set_full(true));
        let (new, redo) = (vec![2; BLOCK as usize], &world.set.shared.redo);
        let at = 7 * world.set.shared.geometry.stripe_bytes();
        assert!(!redo.has_record(7));
        assert!(matches!(world.write(at, &new), Err(VolumeError::NoSpace { .. })));
        assert!(redo.has_record(7), "what is only data is logged, too, while the record may be redone");
        (1..5).for_each(|slot| assert_eq!(world.state(slot), MemberState::InSync));
        world.fakes[1..4].iter().for_each(|fake| fake.set_full(false));
        world.write(at, &new).expect("room again");
        assert_eq!((world.read(at, BLOCK), world.read(0, BLOCK)), (Ok(new), Ok(old)));
    }

    #[test]
    fn members_without_room_for_headers_do_without_the_log() {
        let world = World::logging(Level::Raid6, 5);
        world.fakes[1].set_full(true);
        let set = Rc::clone(&world.set);
        world
            .run(async move {
                let _announcing = set.shared.redo.announce().await;
                set.write_headers(true).await
            })
            .expect("three others took it");
        assert_eq!(world.state(1), MemberState::InSync);
        assert_eq!(world.set.shared.redo.logs().as_slice(), [2, 3, 4]);
    }
}
