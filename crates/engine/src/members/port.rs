//! The port through which an engine reads, writes and flushes members, many at once, with the verdict on every result.
//!
//! Fault model: an operation that fails with an I/O error is tried once more. A block that still cannot be read is for the
//! engine to reconstruct ([`MemberError::Unreadable`]); any other error fails the member, or the request if the array
//! cannot do without the member. An error of a device that has left its slot counts against no member.

use smallvec::SmallVec;
use std::future::poll_fn;
use std::ops::Range;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};

use super::attachment::{Attached, Attachment, Attachments};
use super::health::{Failing, MemberState, Members};
use super::load::{Kind, Loads, Timed};
use super::replacement::Replacing;
use crate::buffer::{Buffer, Gather, Pool, Slice};
use crate::counters::Counters;
use crate::device::{Device, DeviceError, DeviceErrorKind};
use crate::error::VolumeError;
use crate::executor::join_all;
use crate::limits::CHUNK_WINDOW_BYTES;
use crate::mismatch::BlockPlace;
use layout::units::{DeviceOffset, MemberOffset, Slot};

/// A read at a member.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MemberRead {
    pub(crate) slot: Slot,
    pub(crate) offset: MemberOffset,
    pub(crate) bytes: usize,
}

/// A write at a member.
#[derive(Clone, Debug)]
pub(crate) struct MemberWrite {
    pub(crate) slot: Slot,
    pub(crate) offset: MemberOffset,
    pub(crate) data: Gather,
}

impl MemberRead {
    /// Where it is in the data area.
    pub(crate) fn range(&self) -> Range<MemberOffset> {
        self.offset..self.offset + self.bytes as u64
    }
}

impl MemberWrite {
    /// Where it is in the data area.
    pub(crate) fn bytes(&self) -> Range<MemberOffset> {
        self.offset..self.offset + self.data.len() as u64
    }
}

/// Why an operation at a member was not done.
#[derive(Debug)]
pub(crate) enum MemberError {
    /// The member is not used any more: plan again without it.
    Gone,
    /// The member works, but cannot read this range: the engine reconstructs it from the others.
    Unreadable,
    /// The request fails.
    Request(VolumeError),
}

/// Zeroes are written from one buffer of this size.
const ZEROES_BYTES: usize = 1 << 20;

thread_local! {
    /// One for all arrays of a thread: allocating it would cost more than the rest of a small array's start.
    static ZEROES: Slice = Buffer::new(ZEROES_BYTES).freeze();
}

/// One shard's port to the members of an array.
pub struct MemberPort<D> {
    pub(crate) members: Arc<Members>,
    pub(crate) loads: Arc<Loads>,
    counters: Arc<[Counters]>,
    shard: usize,
    /// Memory of this shard.
    pub(crate) pool: Arc<Pool>,
    pub(crate) devices: Attachments<D>,
    /// The buffer that zeroes are written from.
    pub(crate) zeroes: Slice,
}

/// The device of each operation, None where the slot is empty, and the operations that were started.
type Started<D, F> = (SmallVec<[Option<Rc<Attached<D>>>; 4]>, SmallVec<[F; 4]>);

/// One of several reads. Started and answered in one place: a request of several chunks moves little, and its future stays small.
enum Reading<'a, D: Device> {
    /// No device can serve it.
    NotStarted,
    Started(Rc<Attached<D>>, Timed<'a, D::Read>),
    Answered(Rc<Attached<D>>, (Buffer, Result<(), DeviceError>)),
}

impl<'a, D: Device> Reading<'a, D> {
    fn of((from, answer): (Rc<Attached<D>>, Timed<'a, D::Read>)) -> Self {
        Reading::Started(from, answer)
    }

    fn has_succeeded(&self) -> bool {
        matches!(self, Reading::Answered(_, (_, Ok(()))))
    }

    /// What a read that has succeeded gives.
    fn into_buffer(self) -> Result<Buffer, MemberError> {
        let Reading::Answered(_, (buffer, Ok(()))) = self else { unreachable!("a read that has succeeded") };
        Ok(buffer)
    }

    /// Ready once every device has answered. Each is asked every time: how long it took is measured as it answers.
    fn poll_all(all: &mut [Self], context: &mut Context<'_>) -> Poll<()> {
        let mut is_ready = true;
        for reading in all {
            let Reading::Started(from, answer) = reading else { continue };
            match Pin::new(answer).poll(context) {
                Poll::Ready(answer) => *reading = Reading::Answered(Rc::clone(from), answer),
                Poll::Pending => is_ready = false,
            }
        }
        if is_ready { Poll::Ready(()) } else { Poll::Pending }
    }
}

impl<D: Device> MemberPort<D> {
    /// The port of shard `shard`; `devices` in slot order.
    pub(crate) fn new(
        members: Arc<Members>,
        loads: Arc<Loads>,
        counters: Arc<[Counters]>,
        shard: usize,
        pool: Arc<Pool>,
        devices: Vec<Option<Attached<D>>>,
    ) -> Self {
        let devices = Attachments::new(Arc::clone(&members), devices);
        let zeroes = ZEROES.with(Slice::clone);
        MemberPort { members, loads, counters, shard, pool, devices, zeroes }
    }

    /// The counters of this shard.
    pub(crate) fn counters(&self) -> &Counters {
        &self.counters[self.shard]
    }
}

/// Reads.
impl<D: Device> MemberPort<D> {
    /// Makes all reads at once. The results are in the order of `reads`.
    pub(crate) async fn read(&self, reads: &[MemberRead]) -> SmallVec<[Result<Buffer, MemberError>; 4]> {
        if let [read] = reads {
            return SmallVec::from_iter([self.read_one(read).await]);
        }
        let start = |read| self.start_read(read).map_or(Reading::NotStarted, Reading::of);
        let mut reading: SmallVec<[Reading<'_, D>; 4]> = reads.iter().map(start).collect();
        poll_fn(|context| Reading::poll_all(&mut reading, context)).await;
        if reading.iter().all(Reading::has_succeeded) {
            return reading.into_iter().map(Reading::into_buffer).collect();
        }
        // On the heap: the future of reads that succeed carries nothing of a second try.
        Box::pin(async move {
            let mut results = SmallVec::new();
            for (read, reading) in reads.iter().zip(reading) {
                results.push(match reading {
                    Reading::Answered(from, (_, Err(error))) => self.read_again(read, &from, error).await,
                    Reading::NotStarted => Err(self.not_started(read)),
                    succeeded => succeeded.into_buffer(),
                });
            }
            results
        })
        .await
    }

    /// Makes one read, without a list.
    pub(crate) async fn read_one(&self, read: &MemberRead) -> Result<Buffer, MemberError> {
        let Some((from, started)) = self.start_read(read) else { return Err(self.not_started(read)) };
        match started.await {
            (buffer, Ok(())) => Ok(buffer),
            // On the heap: the future of a read that succeeds carries nothing of a second try.
            (_, Err(error)) => Box::pin(self.read_again(read, &from, error)).await,
        }
    }

    /// Starts a read. None if no device can serve it; [`Self::not_started`] says why.
    pub(crate) fn start_read(&self, read: &MemberRead) -> Option<(Rc<Attached<D>>, Timed<'_, D::Read>)> {
        let end = read.range().end;
        assert!(
            end.get() <= self.members.geometry().member_bytes(),
            "a read ends inside the data area: {end}"
        );
        let member = self.source(read)?;
        let started = member.device.read(member.on_device(read.offset), self.pool.take(read.bytes));
        Some((member, self.counted_read(read, started)))
    }

    /// The device to read from, if there is one.
    pub(super) fn source(&self, read: &MemberRead) -> Option<Rc<Attached<D>>> {
        self.devices.source(read.slot, read.range().end, || self.is_bad(read))
    }

    /// Counts a read that was started.
    pub(super) fn counted_read<F>(&self, read: &MemberRead, started: F) -> Timed<'_, F> {
        self.counters().member_reads.add(1);
        self.counters().member_read_bytes.add(read.bytes as u64);
        self.loads.timed(self.shard, read.slot, (Kind::Read, read.bytes as u64), started)
    }

    /// Why a read was not started.
    pub(crate) fn not_started(&self, read: &MemberRead) -> MemberError {
        if self.is_bad(read) {
            return MemberError::Unreadable;
        }
        // A slot with a device: it is not the one that the read was planned for, and lacks the range.
        if self.devices.attached(read.slot).is_some() { MemberError::Gone } else { self.absent(read.slot) }
    }

    /// The second try of a read that failed, at the device that is in the slot by now.
    pub(crate) async fn read_again(
        &self,
        read: &MemberRead,
        from: &Rc<Attached<D>>,
        mut error: DeviceError,
    ) -> Result<Buffer, MemberError> {
        let (mut from, mut is_second) = (Rc::clone(from), false);
        loop {
            if !self.devices.is_in_slot(read.slot, &from) {
                self.has_successor(read.slot)?;
            } else if is_second {
                let is_place = Self::is_latent(&error) && self.members.geometry().losses_survived() > 0;
                return Err(if is_place { MemberError::Unreadable } else { self.give_up(read.slot, &error) });
            } else {
                self.first_error(read.slot, &error)?;
            }
            let Some((next, again)) = self.start_read(read) else { return Err(self.not_started(read)) };
            is_second = Rc::ptr_eq(&next, &from);
            from = next;
            error = match again.await {
                (buffer, Ok(())) => return Ok(buffer),
                (_, Err(error)) => error,
            };
        }
    }

    /// Counts the first error of a read or write. Ok if a second try may succeed; otherwise the member fails at once.
    pub(crate) fn first_error(&self, slot: Slot, error: &DeviceError) -> Result<(), MemberError> {
        self.members.note_error(slot, error);
        if Members::worth_a_retry(error) { Ok(()) } else { Err(self.give_up(slot, error)) }
    }

    /// Whether an error concerns one range of the medium rather than the whole device.
    pub(crate) fn is_latent(error: &DeviceError) -> bool {
        error.kind == DeviceErrorKind::Io
    }

    /// Whether a part of the range is in the member's bad-block log.
    pub(crate) fn is_bad(&self, read: &MemberRead) -> bool {
        let members = &self.members;
        !members.plain() && members.is_bad(read.slot, &read.range())
    }

    /// Reads, with a second try, without reporting I/O errors: for a caller that knows already that the range cannot be
    /// read.
    pub(crate) async fn read_quietly(&self, read: &MemberRead) -> Result<Slice, MemberError> {
        match self.read_once(read).await {
            Err(MemberError::Unreadable) => self.read_once(read).await,
            result => result,
        }
    }

    async fn read_once(&self, read: &MemberRead) -> Result<Slice, MemberError> {
        loop {
            let Some((from, reading)) = self.start_read(read) else {
                return Err(self.not_started(read));
            };
            let error = match reading.await {
                (buffer, Ok(())) => return Ok(buffer.freeze()),
                (_, Err(error)) => error,
            };
            match self.devices.is_in_slot(read.slot, &from) {
                false => self.has_successor(read.slot)?,
                true if Self::is_latent(&error) => return Err(MemberError::Unreadable),
                true => return Err(self.give_up(read.slot, &error)),
            }
        }
    }
}

/// Writes and flushes.
impl<D: Device> MemberPort<D> {
    /// Makes all writes at once. A replacement gets every write that its member gets.
    pub(crate) async fn write(
        &self,
        writes: &[MemberWrite],
        fua: bool,
    ) -> SmallVec<[Result<(), MemberError>; 4]> {
        let (mut to, mut started) = Started::<D, Timed<'_, D::Done>>::default();
        let mut seconds = SmallVec::<[(usize, Rc<Attached<D>>); 2]>::new();
        for (index, write) in writes.iter().enumerate() {
            let mut targets = self.devices.targets(write.slot).into_iter();
            let member = targets.next();
            started.extend(member.as_ref().map(|member| self.start_write_to(member, write.clone(), fua)));
            to.push(member);
            seconds.extend(targets.map(|second| (index, second)));
        }
        let start = |(index, second): &(usize, _)| self.start_write_to(second, writes[*index].clone(), fua);
        started.extend(seconds.iter().map(start));
        let mut done = join_all(started).await.into_iter();
        let of_members = done.by_ref().take(to.iter().flatten().count());
        let mut of_members = of_members.collect::<SmallVec<[_; 4]>>().into_iter();
        let mut results = SmallVec::new();
        for (write, to) in writes.iter().zip(to) {
            results.push(match to {
                None => Err(self.absent(write.slot)),
                Some(to) => {
                    let done = of_members.next().expect("a result for every write");
                    self.finish_write(write, fua, &to, done).await
                }
            });
        }
        for ((index, second), done) in seconds.into_iter().zip(done) {
            self.finish_second(&writes[index], fua, &second, done, &mut results[index]).await;
        }
        results
    }

    /// Starts a write. None if the slot has no device. The write is taken over: a copy of its gather is 2 % of a small write.
    pub(crate) fn start_write(
        &self,
        write: MemberWrite,
        fua: bool,
    ) -> Option<(Rc<Attached<D>>, Timed<'_, D::Done>)> {
        let member = self.devices.attached(write.slot)?;
        let started = self.start_write_to(&member, write, fua);
        Some((member, started))
    }

    fn start_write_to(&self, to: &Rc<Attached<D>>, write: MemberWrite, fua: bool) -> Timed<'_, D::Done> {
        let end = write.bytes().end;
        assert!(
            end.get() <= self.members.geometry().member_bytes(),
            "a write ends inside the data area: {end}"
        );
        self.counters().member_writes.add(1);
        let bytes = write.data.len() as u64;
        self.counters().member_write_bytes.add(bytes);
        let started = to.device.write(to.on_device(write.offset), write.data, fua);
        self.loads.timed(self.shard, write.slot, (Kind::Write, bytes), started)
    }

    pub(crate) async fn finish_write(
        &self,
        write: &MemberWrite,
        fua: bool,
        to: &Rc<Attached<D>>,
        result: Result<(), DeviceError>,
    ) -> Result<(), MemberError> {
        let Err(error) = result else {
            self.written(write);
            return Ok(());
        };
        self.still_there(write.slot, to)?;
        self.first_error(write.slot, &error)?;
        let (_, again) = self.start_write(write.clone(), fua).expect("still there");
        let Err(error) = again.await else {
            self.written(write);
            return Ok(());
        };
        self.still_there(write.slot, to)?;
        Err(self.give_up(write.slot, &error))
    }

    /// Judges a write at the second device of a slot. If that device has the slot by now, its result is the slot's.
    async fn finish_second(
        &self,
        write: &MemberWrite,
        fua: bool,
        second: &Rc<Attached<D>>,
        done: Result<(), DeviceError>,
        result: &mut Result<(), MemberError>,
    ) {
        let mut done = done;
        if let Err(error) = &done
            && Members::worth_a_retry(error)
            && self.devices.attachment(write.slot, second) != Attachment::Detached
        {
            done = self.start_write_to(second, write.clone(), fua).await;
        }
        match (done, self.devices.attachment(write.slot, second)) {
            (_, Attachment::Detached) => {}
            (Ok(()), Attachment::Replacement) => {
                if matches!(result, Err(MemberError::Request(_))) {
                    self.take_back_from_replacement(write.slot, write.bytes()).await;
                }
            }
            (Ok(()), Attachment::Member) => *result = Ok(()),
            (Err(error), Attachment::Replacement | Attachment::Member) => {
                if !self.members.fail_replacement(write.slot, &error.to_string()) {
                    self.members.note_error(write.slot, &error);
                    *result = Err(self.give_up(write.slot, &error));
                }
            }
        }
    }

    /// A write succeeded: blocks of it that were bad are good again.
    fn written(&self, write: &MemberWrite) {
        let members = &self.members;
        if !members.plain() {
            members.clear_bad(write.slot, &write.bytes());
        }
    }

    /// A device failed an operation after it had lost its slot to another, which has nothing to do with the error. Ok if
    /// the new device replaced the member and can be read; an error if it has yet to be rebuilt (invariant 8).
    pub(crate) fn has_successor(&self, slot: Slot) -> Result<(), MemberError> {
        if self.members.state(slot) == MemberState::InSync { Ok(()) } else { Err(MemberError::Gone) }
    }

    /// Ok while a device is in its slot: only then does its error count, and does a second try make sense.
    fn still_there(&self, slot: Slot, device: &Rc<Attached<D>>) -> Result<(), MemberError> {
        if self.devices.is_in_slot(slot, device) { Ok(()) } else { Err(MemberError::Gone) }
    }

    /// Makes everything durable on every working member.
    pub(crate) async fn flush(&self) -> Result<(), VolumeError> {
        let at: SmallVec<[(Slot, Rc<Attached<D>>); 8]> = self
            .members
            .geometry()
            .slots()
            .filter(|&slot| in_use(self.members.state(slot)))
            .flat_map(|slot| self.devices.targets(slot).into_iter().map(move |device| (slot, device)))
            .collect();
        let flushes: SmallVec<[D::Done; 8]> = at.iter().map(|(_, at)| at.device.flush()).collect();
        let mut outcome = Ok(());
        for ((slot, at), result) in at.into_iter().zip(join_all(flushes).await) {
            let Err(error) = result else { continue };
            let attachment = self.devices.attachment(slot, &at);
            if attachment == Attachment::Detached
                || (attachment == Attachment::Replacement
                    && self.members.fail_replacement(slot, &error.to_string()))
            {
                continue;
            }
            self.members.note_error(slot, &error);
            // No second try: after a failed flush, with ENOSPC too, the kernel may have dropped the dirty pages, so a
            // second one that succeeds proves nothing.
            if let MemberError::Request(error) = self.fail_member(slot, &error) {
                self.members.set_flush_failed();
                outcome = Err(error);
            }
        }
        outcome
    }

    /// The error of an operation on an empty slot: its member was removed while the request was in flight.
    pub(crate) fn absent(&self, slot: Slot) -> MemberError {
        match self.members.fail(slot, "it has no device") {
            Failing::Failed => MemberError::Gone,
            Failing::Needed => {
                MemberError::Request(VolumeError::Io { reason: format!("member {slot} has no device") })
            }
        }
    }

    /// Judges the second error of an operation, or the first if it is final: the member fails, or the request does if the
    /// array needs the member.
    pub(crate) fn give_up(&self, slot: Slot, error: &DeviceError) -> MemberError {
        // Before the kind of error: a drive that was pulled answers writes with ENOSPC.
        if matches!(self.members.state(slot), MemberState::Failed | MemberState::Missing) {
            return MemberError::Gone;
        }
        if error.kind == DeviceErrorKind::NoSpace {
            // The file system under the member is full: the member is healthy, and others on it will meet the same.
            return MemberError::Request(VolumeError::NoSpace { member: slot });
        }
        self.fail_member(slot, error)
    }

    fn fail_member(&self, slot: Slot, error: &DeviceError) -> MemberError {
        if error.kind == DeviceErrorKind::Fenced {
            self.members.set_fenced(&error.to_string());
        }
        if self.members.fenced() {
            return MemberError::Request(VolumeError::Fenced);
        }
        match self.members.fail(slot, &error.to_string()) {
            Failing::Failed => MemberError::Gone,
            Failing::Needed => {
                let reason = format!("member {slot}: {error}, and the array cannot do without it");
                MemberError::Request(VolumeError::Io { reason })
            }
        }
    }

    /// Writes `right` at `offset` of a member's data area and reads it back. False if the member did not return it.
    pub(crate) async fn write_and_read_back(
        &self,
        slot: Slot,
        offset: MemberOffset,
        right: &Slice,
    ) -> Result<bool, VolumeError> {
        let write = MemberWrite { slot, offset, data: Gather::from(right.clone()) };
        let read = MemberRead { slot, offset, bytes: right.len() };
        match self.write(&[write], false).await.remove(0) {
            Ok(()) => {}
            Err(MemberError::Request(error)) => return Err(error),
            Err(_) => return Ok(false),
        }
        match self.read(&[read]).await.remove(0) {
            Ok(found) => Ok(found.bytes() == right.bytes()),
            Err(MemberError::Request(error)) => Err(error),
            Err(_) => Ok(false),
        }
    }

    /// The member in `slot` refused a write and stays, since it is needed or full, while its replacement may have taken it.
    /// Copies the member's contents to the replacement again: in the copied part the two never differ (invariant 6; parity
    /// is made to agree with the member). The caller owns the stripes or regions.
    pub(crate) async fn take_back_from_replacement(&self, slot: Slot, range: Range<MemberOffset>) {
        let mut at = range.start;
        while at < range.end {
            if self.members.replacing(slot) != Replacing::Copying {
                return;
            }
            let bytes = (range.end - at).min(u64::from(CHUNK_WINDOW_BYTES));
            match self.read_quietly(&MemberRead { slot, offset: at, bytes: bytes as usize }).await {
                // A failed write ends the replacement, so its result does not matter.
                Ok(contents) => _ = self.write_replacement(slot, at, Gather::from(contents)).await,
                Err(_) => {
                    let reason = "its member can neither be written nor read in one place";
                    self.members.fail_replacement(slot, reason);
                }
            }
            at += bytes;
        }
    }

    /// Writes to the replacement only, with a second try. A second error ends the replacement.
    pub(crate) async fn write_replacement(
        &self,
        slot: Slot,
        offset: MemberOffset,
        data: Gather,
    ) -> Result<(), VolumeError> {
        let members = &self.members;
        let device = self.devices.replacement(slot).filter(|_| members.replacing(slot) == Replacing::Copying);
        let Some(device) = device else { return Err(replacement_ended(slot)) };
        self.counters().member_writes.add(1);
        self.counters().member_write_bytes.add(data.len() as u64);
        let write = || device.device.write(device.on_device(offset), data.clone(), false);
        if write().await.is_ok() {
            return Ok(());
        }
        let Err(error) = write().await else { return Ok(()) };
        if self.devices.attachment(slot, &device) == Attachment::Replacement {
            members.fail_replacement(slot, &error.to_string());
        }
        Err(replacement_ended(slot))
    }

    /// Writes zeroes to one member, a buffer at a time.
    pub(crate) async fn write_zeroes(
        &self,
        slot: Slot,
        offset: MemberOffset,
        bytes: u64,
    ) -> Result<(), MemberError> {
        let mut at = offset;
        while at < offset + bytes {
            let step = (offset + bytes - at).min(self.zeroes.len() as u64);
            let data = Gather::from(self.zeroes.part(0, usize::try_from(step).expect("at most the buffer")));
            self.write(&[MemberWrite { slot, offset: at, data }], false).await.remove(0)?;
            at += step;
        }
        Ok(())
    }

    /// A place in a member's data area as one on its device, for messages.
    pub(crate) fn block_place(&self, slot: Slot, offset: MemberOffset) -> BlockPlace {
        let start = self.devices.attached(slot).map_or(DeviceOffset::START, |member| member.data_offset);
        BlockPlace { member: slot, offset_bytes: offset.on_device(start) }
    }
}

/// The error of a copy to a replacement that has ended.
pub(crate) fn replacement_ended(slot: Slot) -> VolumeError {
    VolumeError::Io { reason: format!("member {slot} is not being replaced any more") }
}

/// Whether a member in this state gets writes.
pub(crate) fn in_use(state: MemberState) -> bool {
    matches!(state, MemberState::InSync | MemberState::Recovering)
}
