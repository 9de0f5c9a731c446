//! Logs the writes of a stripe, then makes them. Writers of one shard that come while records are in flight share the next
//! record.

use smallvec::SmallVec;
use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::rc::Rc;
use std::task::Poll;

use super::absence_record;
use super::cut::{Pieces, StripeWrites, Told, are_covered, cut, piece};
use super::headers::{no_log_on, settle};
use super::kept::KeptStripe;
use super::log::RedoLog;
use super::queue::{Logged, Ticket};
use super::retire::{empty, outlive_records, retire_exclusively};
use super::slots::{Next, Taken};
use super::state::{Admitted, Redo};
use crate::buffer::{Gather, Slice};
use crate::device::{Device, DeviceErrorKind};
use crate::error::VolumeError;
use crate::executor::join_all;
use crate::members::attachment::Attached;
use crate::members::health::MemberState;
use crate::members::port::{MemberError, MemberWrite};
use layout::geometry::Geometry;
use layout::redo_log::{Checksum, PieceKind, Place, RedoRecord};
use layout::units::{DeviceOffset, MemberOffset, Slot, Stripe};

/// Most records of one shard in flight. With more, fewer writers would share one.
const RECORDS_AT_ONCE: u32 = 2;

/// The result of each member write of a stripe.
type Results = SmallVec<[Result<(), MemberError>; 4]>;

/// Whether enough members have a record.
enum Copies {
    Enough,
    TooFew,
    /// Too few, because the file system under this member is full.
    Full(Slot),
}

/// The record of a zeroing, if the log is in force.
pub(in crate::stripe) struct ZeroesLogged(Option<Taken>);

/// Whole stripes are about to be zeroed: what members that are away hold of them does not count any more, durably.
///
/// # Errors
/// It cannot be put on record.
pub(in crate::stripe) async fn zeroes_begin<D: Device>(
    log: &RedoLog<D>,
    stripes: Range<Stripe>,
    logged: &ZeroesLogged,
) -> Result<(), VolumeError> {
    let (absences, bytes) = (&log.shared.absences, bytes_of(&log.shared.geometry, stripes));
    for slot in absences.slots() {
        match logged.0.is_some() {
            true => absences.written_without(slot, &bytes),
            false => absences.forget(slot, &bytes),
        }
    }
    absence_record::persist(log).await
}

/// The bytes of each member's data area that some stripes take.
fn bytes_of(geometry: &Geometry, stripes: Range<Stripe>) -> Range<MemberOffset> {
    geometry.member_offset(stripes.start)..geometry.member_offset(stripes.end)
}

/// Makes the writes of one owned stripe while members are missing or the log is in force. `parity`: some of the writes are
/// parity.
pub(in crate::stripe) async fn write_degraded<D: Device>(
    log: &RedoLog<D>,
    writes: StripeWrites<'_>,
    parity: bool,
    fua: bool,
) -> Result<Results, VolumeError> {
    let (redo, stripe) = (&log.shared.redo, writes.stripe);
    loop {
        // The gate opens once every owner waits at it or has ended: a gathering owner must not wait for this one.
        let waiting = log.in_flight.wait();
        let admitted = redo.admit(&log.shared.members, stripe..stripe.next()).await;
        drop(waiting);
        if admitted? == Admitted::Unlogged {
            return write_unlogged(log, writes, fua).await;
        }
        let results = write_logged(log, writes, parity, fua).await;
        redo.done();
        match results? {
            Some(results) => return Ok(results),
            None => redo.logs_changed(&log.shared.members).await,
        }
    }
}

/// Makes the writes without a record. Until they are made nothing tells what missing chunks hold in these rows.
async fn write_unlogged<D: Device>(
    log: &RedoLog<D>,
    writes: StripeWrites<'_>,
    fua: bool,
) -> Result<Results, VolumeError> {
    let absences = &log.shared.absences;
    let is_held = writes.unplaced.iter().any(|write| absences.meets_held(write.slot, &write.bytes()));
    if is_held {
        writes.unplaced.iter().for_each(|write| absences.forget(write.slot, &write.bytes()));
        absence_record::persist(log).await?;
    }
    let results = log.port.write(writes.made, fua).await;
    match results.iter().any(|result| matches!(result, Err(MemberError::Request(_)))) {
        true => absences.forget_all(&rows_of(writes.made)),
        false => {
            writes.unplaced.iter().for_each(|write| absences.written_without(write.slot, &write.bytes()));
        }
    }
    Ok(results)
}

/// From the first to the last byte of some writes of one stripe.
fn rows_of(writes: &[MemberWrite]) -> Range<MemberOffset> {
    let start = writes.iter().map(|write| write.bytes().start).min().unwrap_or(MemberOffset::START);
    start..writes.iter().map(|write| write.bytes().end).max().unwrap_or(start)
}

/// Logs the writes and makes them, part by part. None: too few members took a record.
async fn write_logged<D: Device>(
    log: &RedoLog<D>,
    writes: StripeWrites<'_>,
    parity: bool,
    fua: bool,
) -> Result<Option<Results>, VolumeError> {
    let (redo, stripe) = (&log.shared.redo, writes.stripe);
    // Invariant 8: a stripe is written without a member only after the superblocks record its failure. Replay could not
    // make up for what the member missed if a start after a crash took it for good.
    settle(log).await?;
    // Only data, or one member, and no older record that a replay would write over it: a crash leaves nothing in
    // disagreement.
    let is_alone = writes.made.iter().all(|write| write.slot == writes.made[0].slot);
    // But for a stripe in doubt: parity that is torn between old and new would tell neither of a missing chunk.
    let absences = &log.shared.absences;
    let is_held = writes.unplaced.iter().any(|write| absences.meets_held(write.slot, &write.bytes()));
    if (!parity || is_alone) && !is_held && !redo.has_record(stripe) {
        writes.unplaced.iter().for_each(|write| absences.written_without(write.slot, &write.bytes()));
        return Ok(Some(log.port.write(writes.made, fua).await));
    }
    let (kept, keeps) =
        match writes.alone.filter(|alone| redo.keeps_partial() && are_covered(&writes, *alone)) {
            Some(alone) => (told_of(log, stripe).await?, Some(alone)),
            None => {
                // Contents of chunks that a record of partial parity takes as they were.
                if redo.keeps_something_of(stripe) {
                    Box::pin(outlive_records(log)).await?;
                }
                (KeptStripe::default(), None)
            }
        };
    let told = keeps.map_or(Told::Contents, |alone| Told::Partial(alone, &kept));
    let mut results = Results::new();
    for part in cut(writes, &told, redo.payload_bytes()) {
        let missing = part.missing();
        let Some(taken) = record(log, stripe..stripe.next(), part.pieces).await? else {
            return Ok(None); // the caller writes all parts again
        };
        if let Some(alone) = keeps {
            redo.keep(taken, stripe, &missing, part.writes.iter().filter(|write| write.slot != alone.parity));
        }
        // The record is durable: what a crash leaves half written is made again, so parity will tell.
        let in_part = |write: &MemberWrite| {
            let bytes = write.bytes();
            bytes.start.max(part.bytes.start)..bytes.end.min(part.bytes.end)
        };
        writes.unplaced.iter().for_each(|write| absences.written_without(write.slot, &in_part(write)));
        let on_record = absence_record::persist(log).await;
        if on_record.is_ok() {
            results.extend(log.port.write(&part.writes, fua).await);
        }
        let failed =
            on_record.is_err() || results.iter().any(|result| matches!(result, Err(MemberError::Request(_))));
        if failed {
            absences.forget_all(&part.bytes);
            // Doubt outlives the record, which is retired some time later.
            log.shared.consistency.doubt_stripe(stripe);
            redo.mark_incomplete(taken, stripe..stripe.next());
            // Before the record may be retired.
            let forgotten = absence_record::persist(log).await;
            redo.written(taken);
            on_record.and(forgotten)?;
            break;
        }
        redo.written(taken);
    }
    Ok(Some(results))
}

/// What unretired records told of a stripe. With much kept of others they are retired first.
async fn told_of<D: Device>(log: &RedoLog<D>, stripe: Stripe) -> Result<KeptStripe, VolumeError> {
    if log.shared.redo.keeps_too_much() {
        Box::pin(empty(log)).await?;
    }
    Ok(log.shared.redo.kept_of(stripe))
}

/// Logs the zeroing of whole stripes. On return the caller may zero them, and then passes the result to [`zeroes_written`].
pub(in crate::stripe) async fn log_zeroes<D: Device>(
    log: &RedoLog<D>,
    stripes: Range<Stripe>,
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
                redo.logs_changed(&log.shared.members).await;
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
    stripes: Range<Stripe>,
) -> Result<Option<Taken>, VolumeError> {
    settle(log).await?;
    let geometry = &log.shared.geometry;
    let Range { start: offset, end } = bytes_of(geometry, stripes.clone());
    // A missing member is included: the record supersedes what earlier records say of its chunks.
    let zeroes = |slot| (piece(stripes.start, slot, offset, end - offset, PieceKind::Zeroes), Gather::new());
    let pieces = geometry.slots().map(zeroes).collect();
    let logged = record(log, stripes.clone(), pieces).await;
    if let Ok(Some(_)) = logged {
        log.shared.redo.keeps_no_more_of(&stripes); // the record makes all of it zero again
    }
    logged
}

/// The zeroes have been written; `failed`: not at every member.
pub(in crate::stripe) fn zeroes_written<D: Device>(
    log: &RedoLog<D>,
    stripes: Range<Stripe>,
    logged: &ZeroesLogged,
    failed: bool,
) {
    let bytes = bytes_of(&log.shared.geometry, stripes.clone());
    match failed {
        true => log.shared.absences.forget_all(&bytes),
        false => {
            let absences = &log.shared.absences;
            absences.slots().into_iter().for_each(|slot| absences.written_without(slot, &bytes));
        }
    }
    if let Some(taken) = logged.0 {
        if failed {
            log.shared.redo.mark_incomplete(taken, stripes);
        }
        log.shared.redo.written(taken);
        log.shared.redo.done();
    }
}

/// Returns when a record with these pieces is durable. The caller then makes its writes, and calls [`Redo::written`].
/// None: too few members took the record.
async fn record<D: Device>(log: &RedoLog<D>, stripes: Range<Stripe>, pieces: Pieces) -> Logged {
    let ticket = Rc::new(Ticket {
        stripes,
        pieces,
        result: RefCell::new(None),
        leading: Cell::new(false),
        waker: RefCell::new(None),
    });
    let queue = &log.queue;
    queue.waiting.borrow_mut().push_back(Rc::clone(&ticket));
    if queue.in_flight.get() < RECORDS_AT_ONCE {
        queue.in_flight.set(queue.in_flight.get() + 1);
        ticket.leading.set(true);
    }
    loop {
        let result = std::future::poll_fn(|context| {
            // The lead comes before the result: a leader that returned with its result would leave the queue without one.
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

/// Writes one record for the waiting writers, as many as fit.
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
    log.shared.redo.assign(taken, batch.len(), stripes);
    let kept = write_to_logs(log, taken, &batch).await;
    for ticket in batch {
        if !matches!(kept, Copies::Enough) {
            // A member may hold the record, and replay would redo it: the slot stays in use until it is retired.
            log.shared.redo.mark_incomplete(taken, ticket.stripes.clone());
            log.shared.redo.written(taken);
        }
        ticket.done(match kept {
            Copies::Enough => Ok(Some(taken)),
            Copies::TooFew => Ok(None),
            Copies::Full(member) => Err(VolumeError::NoSpace { member }),
        });
    }
}

/// A free slot; if there is none, records are retired first. None once another record holds the leader's own pieces: that
/// record's slot stays open until the leader has made its writes, and no later slot is freed before it, so a leader that
/// waited on would wait for itself. A leader that waits here has no slot open.
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
            Some(Next::Retire) => retire_exclusively(log).await?,
        }
    }
}

/// Writes the record to as many members as keep a copy when more of them fail within the level.
async fn write_to_logs<D: Device>(log: &RedoLog<D>, taken: Taken, batch: &[Rc<Ticket>]) -> Copies {
    let (mut payload, mut sum) = (Gather::new(), Checksum::default());
    for (_, data) in batch.iter().flat_map(|ticket| &ticket.pieces) {
        for slice in data.slices() {
            sum.add(slice.bytes());
            payload.push(slice.clone());
        }
    }
    let members = &log.shared.members;
    let logs = log.shared.redo.logs();
    let working = logs.iter().filter(|slot| members.state(**slot) == MemberState::InSync).count();
    let most = u32::try_from(working).expect("few members");
    let copies = members.copies_wanted_soon().min(most).max(members.copies_wanted());
    let record = RedoRecord {
        epoch: taken.epoch,
        sequence: taken.sequence,
        copies,
        payload_checksum: sum.value(),
        pieces: batch.iter().flat_map(|ticket| &ticket.pieces).map(|(piece, _)| *piece).collect(),
    };
    let mut tried: SmallVec<[Slot; 4]> = SmallVec::new();
    let (mut written, mut full) = (0, None);
    while written < copies {
        let targets = log_members(log, taken.slot, &tried, (copies - written) as usize);
        if targets.is_empty() {
            return full.map_or(Copies::TooFew, Copies::Full);
        }
        tried.extend(targets.iter().copied());
        written += write_record_to(log, &targets, taken, &record, &payload, &mut full).await;
    }
    Copies::Enough
}

/// Members for a copy of a record in this slot. The first one rotates with the slot, so that all members share the load.
fn log_members<D: Device>(
    log: &RedoLog<D>,
    record_slot: u32,
    tried: &[Slot],
    count: usize,
) -> SmallVec<[Slot; 2]> {
    let logs = log.shared.redo.logs();
    let first = record_slot as usize % logs.len().max(1);
    let works = |slot: &Slot| !tried.contains(slot) && log.shared.members.state(*slot) == MemberState::InSync;
    logs.iter().cycle().skip(first).take(logs.len()).copied().filter(works).take(count).collect()
}

/// Writes the record to these members and counts those that took it. A member whose file system is full is put in `full`
/// and does not fail.
async fn write_record_to<D: Device>(
    log: &RedoLog<D>,
    targets: &[Slot],
    taken: Taken,
    record: &RedoRecord,
    payload: &Gather,
    full: &mut Option<Slot>,
) -> u32 {
    let place = |slot: Slot| {
        let (offset, member) = log.shared.redo.slot_place(slot, taken.slot)?;
        let place = Place { set_uuid: member.set_uuid, device_uuid: member.device_uuid, offset };
        let mut data = Gather::from(Slice::from_bytes(&record.encode(place)));
        payload.slices().iter().for_each(|slice| data.push(slice.clone()));
        Some((offset, data))
    };
    let counters = log.port.counters();
    let mut to = SmallVec::<[(Slot, DeviceOffset, Gather, Rc<Attached<D>>); 2]>::new();
    let mut started = SmallVec::<[D::Done; 2]>::new();
    for &slot in targets {
        let member = log.port.devices.described(slot);
        let (Some((offset, data)), Some(member)) = (place(slot), member) else { continue };
        // The slot may have got another device between the two look-ups: the offset would be that one's.
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

#[cfg(test)]
mod tests {
    use super::super::state::RedoContents;
    use super::*;
    use crate::stripe::fake::{CHUNK, World};
    use layout::geometry::Level;

    const BLOCK: u64 = 4096;

    /// Members failed one after the other because their logs had no room, until the array was gone.
    #[test]
    fn a_log_without_room_refuses_the_write_and_fails_no_member() {
        let world = World::logging(Level::Raid6, 5);
        let old = vec![1; BLOCK as usize];
        world.write(0, &old).expect("written");
        // One member has room: a record on it alone is not enough, and a crash would redo it.
        (1..4).for_each(|slot: usize| world.fakes[slot].set_full(true));
        let (new, redo) = (vec![2; BLOCK as usize], &world.set.shared.redo);
        let at = 7 * world.set.shared.geometry.stripe_bytes();
        assert!(!redo.has_record(Stripe::new(7)));
        assert!(matches!(world.write(at, &new), Err(VolumeError::NoSpace { .. })));
        assert!(
            redo.has_record(Stripe::new(7)),
            "what is only data is logged, too, while the record may be redone"
        );
        Slot::first(5).skip(1).for_each(|slot| assert_eq!(world.state(slot), MemberState::InSync));
        world.fakes[1..4].iter().for_each(|fake| fake.set_full(false));
        world.write(at, &new).expect("room again");
        assert_eq!((world.read(at, BLOCK), world.read(0, BLOCK)), (Ok(new), Ok(old)));
    }

    /// A rebuilt member was called in sync while a record still had only one copy. When the member with that copy failed, the record
    /// was lost although the level survives that failure.
    #[test]
    fn a_record_made_while_a_recovery_ends_has_the_copies_that_count_after_it() {
        for (is_nearly_in_sync, copies) in [(false, 1), (true, 2)] {
            let world = World::logging(Level::Raid5, 4);
            let members = &world.set.shared.members;
            members.remove(Slot::new(0));
            assert!(members.begin_recovery(Slot::new(0), 0));
            members.set_nearly_in_sync(Slot::new(0), is_nearly_in_sync);
            world.write(CHUNK.into(), &[7; BLOCK as usize]).expect("written");
            let has_record = |slot: &u32| {
                let place = world.set.shared.redo.slot_place(Slot::new(*slot), 0);
                let (place, _) = place.expect("it holds the log");
                world.fakes[*slot as usize].peek(place, BLOCK as usize).iter().any(|byte| *byte != 0)
            };
            assert_eq!((1..4).filter(has_record).count(), copies, "{is_nearly_in_sync}");
        }
    }

    /// A record of contents replays parity that was made with what the record of partial parity takes as it was.
    #[test]
    fn contents_are_not_logged_beside_partial_parity_that_stands() {
        let world = World::logging(Level::Raid5, 4);
        let redo = &world.set.shared.redo;
        let stripe = Stripe::first(4)
            .find(|stripe| world.set.shared.geometry.data_member(*stripe, 0) == Slot::new(0))
            .expect("each member has the first chunk of some stripe");
        let at = stripe.get() * world.set.shared.geometry.stripe_bytes();
        world.write(at + u64::from(CHUNK), &[1; BLOCK as usize]).expect("written");
        assert!(redo.keeps_something_of(stripe));
        redo.set_contents(RedoContents::Full);
        world.write(at + 2 * u64::from(CHUNK), &[2; BLOCK as usize]).expect("written");
        assert!(!redo.keeps_something_of(stripe) && redo.has_record(stripe), "the first one is retired");
    }

    /// A write of another chunk tells the missing one again, since what it writes is in a cache when the first record is
    /// retired.
    #[test]
    fn a_missing_chunk_is_kept_as_long_as_the_newest_record_that_tells_it() {
        let world = World::logging(Level::Raid5, 4);
        let redo = &world.set.shared.redo;
        world.write(0, &vec![1; world.set.shared.geometry.stripe_bytes() as usize]).expect("written");
        let stripe = Stripe::FIRST;
        let missing = world.set.shared.geometry.p_member(stripe) != Some(Slot::new(0));
        assert!(missing && redo.keeps_something_of(stripe), "the chunk of the member that is gone is told");
        let second = redo.state.lock().next_sequence;
        let data = (0..3).find(|index| world.set.shared.geometry.data_member(stripe, *index) != Slot::new(0));
        let at = u64::from(data.expect("two are there")) * u64::from(CHUNK);
        world.write(at, &vec![2; CHUNK as usize]).expect("written");
        redo.state.lock().kept.retire(second);
        assert!(redo.keeps_something_of(stripe), "the second record tells all of it again");
        redo.state.lock().kept.retire(second + 1);
        assert!(!redo.keeps_something_of(stripe));
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
        assert_eq!(world.state(Slot::new(1)), MemberState::InSync);
        assert_eq!(world.set.shared.redo.logs().as_slice(), [2, 3, 4].map(Slot::new));
    }
}
