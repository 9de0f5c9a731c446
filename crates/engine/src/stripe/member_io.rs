//! I/O at members: many at once, one retry. What cannot be read then is made from the others; for anything else the member
//! fails.

use smallvec::SmallVec;
use std::rc::Rc;

use super::load::{Kind, Timed};
use super::plan::Fragment;
use super::seats::Standing;
use super::{Attached, StripeSet};
use crate::buffer::{Buffer, Gather};
use crate::device::{Device, DeviceError, DeviceErrorKind};
use crate::executor::join_all;
use crate::members::{Failing, MemberState, Members};
use crate::volume::VolumeError;

/// A read at a member.
#[derive(Clone, Copy, Debug)]
pub(super) struct MemberRead {
    pub(super) slot: u32,
    /// Offset in the data area.
    pub(super) offset: u64,
    pub(super) bytes: usize,
}

/// A write at a member.
#[derive(Clone, Debug)]
pub(super) struct MemberWrite {
    pub(super) slot: u32,
    /// Offset in the data area.
    pub(super) offset: u64,
    pub(super) data: Gather,
}

/// Why an operation at a member was not done.
#[derive(Debug)]
pub(super) enum Undone {
    /// The member is not used any more: plan again without it.
    MemberGone,
    /// The member works, but cannot read this place: see [`salvage`](super::salvage).
    Unreadable,
    /// The request fails.
    Request(VolumeError),
}

/// The device of each operation, None where the slot is empty, and the operations that were started.
type Started<D, F> = (SmallVec<[Option<Rc<Attached<D>>>; 4]>, SmallVec<[F; 4]>);

fn split<D, F>(started: impl Iterator<Item = Option<(Rc<Attached<D>>, F)>>) -> Started<D, F> {
    let mut split = Started::default();
    for started in started {
        let (device, future) = started.unzip();
        split.0.push(device);
        split.1.extend(future);
    }
    split
}

impl<D: Device> StripeSet<D> {
    /// Reads all, at once. The results are in the order of `reads`.
    pub(super) async fn read_members(&self, reads: &[MemberRead]) -> SmallVec<[Result<Buffer, Undone>; 4]> {
        let mut results = SmallVec::new();
        let started = reads.iter().map(|read| self.start_read(read));
        let (from, started) = split::<D, Timed<'_, D::Read>>(started);
        if let ([read], [Some(from)]) = (reads, &from[..]) {
            let only = started.into_iter().next().expect("one read");
            results.push(self.finish_read(read, from, only.await).await);
            return results;
        }
        let mut done = join_all(started).await.into_iter();
        for (read, from) in reads.iter().zip(from) {
            results.push(match from {
                None => Err(self.not_started(read)),
                Some(from) => {
                    self.finish_read(read, &from, done.next().expect("a result for every read")).await
                }
            });
        }
        results
    }

    /// None if there is nothing to read from; [`Self::not_started`] says why.
    pub(super) fn start_read(&self, read: &MemberRead) -> Option<(Rc<Attached<D>>, Timed<'_, D::Read>)> {
        let member = self.source(read)?;
        self.counters().member_reads.add(1);
        self.counters().member_read_bytes.add(read.bytes as u64);
        let buffer = self.pool.take(read.bytes);
        let started = member.device.read(member.data_offset_bytes + read.offset, buffer);
        let started = self.shared.loads.timed(self.shard, read.slot, Kind::Read, started);
        Some((member, started))
    }

    /// Why a read was not started.
    pub(super) fn not_started(&self, read: &MemberRead) -> Undone {
        if self.is_bad(read) {
            return Undone::Unreadable;
        }
        // Somebody is there, but not for whom this was planned.
        if self.attached(read.slot).is_some() { Undone::MemberGone } else { self.absent(read.slot) }
    }

    async fn finish_read(
        &self,
        read: &MemberRead,
        from: &Rc<Attached<D>>,
        (buffer, result): (Buffer, Result<(), DeviceError>),
    ) -> Result<Buffer, Undone> {
        let Err(mut error) = result else { return Ok(buffer) };
        drop(buffer);
        let (mut from, mut is_second) = (Rc::clone(from), false);
        loop {
            if !self.is_in_slot(read.slot, &from) {
                self.has_successor(read.slot)?;
            } else if is_second {
                let is_place = Self::is_latent(&error) && self.shared.geometry.losses_survived() > 0;
                return Err(if is_place { Undone::Unreadable } else { self.give_up(read.slot, &error) });
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

    /// The first error of a read or write, which a second try may mend. If not, the member fails.
    pub(super) fn first_error(&self, slot: u32, error: &DeviceError) -> Result<(), Undone> {
        self.shared.members.note_error(slot, error);
        if Members::worth_a_retry(error) { Ok(()) } else { Err(self.give_up(slot, error)) }
    }

    /// Whether it is about a place, not about the whole device.
    pub(super) fn is_latent(error: &DeviceError) -> bool {
        error.kind == DeviceErrorKind::Io
    }

    /// Whether the member's bad-block log has a part of what is to be read.
    pub(super) fn is_bad(&self, read: &MemberRead) -> bool {
        let members = &self.shared.members;
        !members.plain() && members.is_bad(read.slot, &(read.offset..read.offset + read.bytes as u64))
    }

    /// Writes all, at once. What a member gets that is being replaced, its replacement gets, too.
    pub(super) async fn write_members(
        &self,
        writes: &[MemberWrite],
        fua: bool,
    ) -> SmallVec<[Result<(), Undone>; 4]> {
        let (mut to, mut started) = Started::<D, Timed<'_, D::Done>>::default();
        let mut others = SmallVec::<[(usize, Rc<Attached<D>>); 2]>::new();
        for (index, write) in writes.iter().enumerate() {
            let mut targets = self.targets(write.slot).into_iter();
            let member = targets.next();
            started.extend(member.as_ref().map(|member| self.start_write_to(member, write, fua)));
            to.push(member);
            others.extend(targets.map(|other| (index, other)));
        }
        started.extend(others.iter().map(|(index, other)| self.start_write_to(other, &writes[*index], fua)));
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
        for ((index, other), done) in others.into_iter().zip(done) {
            self.finish_other(&writes[index], fua, &other, done, &mut results[index]).await;
        }
        results
    }

    pub(super) fn start_write(
        &self,
        write: &MemberWrite,
        fua: bool,
    ) -> Option<(Rc<Attached<D>>, Timed<'_, D::Done>)> {
        let member = self.attached(write.slot)?;
        let started = self.start_write_to(&member, write, fua);
        Some((member, started))
    }

    fn start_write_to(&self, to: &Rc<Attached<D>>, write: &MemberWrite, fua: bool) -> Timed<'_, D::Done> {
        self.counters().member_writes.add(1);
        self.counters().member_write_bytes.add(write.data.len() as u64);
        let started = to.device.write(to.data_offset_bytes + write.offset, write.data.clone(), fua);
        self.shared.loads.timed(self.shard, write.slot, Kind::Write, started)
    }

    pub(super) async fn finish_write(
        &self,
        write: &MemberWrite,
        fua: bool,
        to: &Rc<Attached<D>>,
        result: Result<(), DeviceError>,
    ) -> Result<(), Undone> {
        let Err(error) = result else {
            self.written(write);
            return Ok(());
        };
        self.still_there(write.slot, to)?;
        self.first_error(write.slot, &error)?;
        let (_, again) = self.start_write(write, fua).expect("still there");
        let Err(error) = again.await else {
            self.written(write);
            return Ok(());
        };
        self.still_there(write.slot, to)?;
        Err(self.give_up(write.slot, &error))
    }

    /// What became of a write at the second device of a slot. It may have the slot by now; then this is what counts.
    async fn finish_other(
        &self,
        write: &MemberWrite,
        fua: bool,
        other: &Rc<Attached<D>>,
        done: Result<(), DeviceError>,
        result: &mut Result<(), Undone>,
    ) {
        let mut done = done;
        if let Err(error) = &done
            && Members::worth_a_retry(error)
            && self.standing(write.slot, other) != Standing::Nobody
        {
            done = self.start_write_to(other, write, fua).await;
        }
        match (done, self.standing(write.slot, other)) {
            (_, Standing::Nobody) => {}
            (Ok(()), Standing::Replacement) => {
                if matches!(result, Err(Undone::Request(_))) {
                    let bytes = write.data.len() as u64;
                    self.take_back_from_replacement(write.slot, write.offset..write.offset + bytes).await;
                }
            }
            (Ok(()), Standing::Member) => *result = Ok(()),
            (Err(error), Standing::Replacement | Standing::Member) => {
                if !self.shared.members.fail_replacement(write.slot, &error.to_string()) {
                    self.shared.members.note_error(write.slot, &error);
                    *result = Err(self.give_up(write.slot, &error));
                }
            }
        }
    }

    /// What was bad there holds something again.
    fn written(&self, write: &MemberWrite) {
        let members = &self.shared.members;
        if !members.plain() {
            members.clear_bad(write.slot, &(write.offset..write.offset + write.data.len() as u64));
        }
    }

    /// A device has failed at something, and its slot is another's by now. That one has nothing to do with the error; it may
    /// be asked if it replaced the member, not if it has yet to be rebuilt (invariant 8).
    pub(super) fn has_successor(&self, slot: u32) -> Result<(), Undone> {
        if self.shared.members.state(slot) == MemberState::InSync { Ok(()) } else { Err(Undone::MemberGone) }
    }

    /// An error of a write counts, and a second try makes sense, only while the device is in its slot.
    fn still_there(&self, slot: u32, device: &Rc<Attached<D>>) -> Result<(), Undone> {
        if self.is_in_slot(slot, device) { Ok(()) } else { Err(Undone::MemberGone) }
    }

    /// Makes everything durable on every working member, and what is known of the others.
    pub(crate) async fn flush_volume(&self) -> Result<(), VolumeError> {
        self.flush_members().await?;
        self.settle().await
    }

    /// Makes everything durable on every working member.
    pub(crate) async fn flush_members(&self) -> Result<(), VolumeError> {
        let at: SmallVec<[(u32, Rc<Attached<D>>); 8]> = (0..self.shared.geometry.members())
            .filter(|&slot| in_use(self.shared.members.state(slot)))
            .flat_map(|slot| self.targets(slot).into_iter().map(move |device| (slot, device)))
            .collect();
        let flushes: SmallVec<[D::Done; 8]> = at.iter().map(|(_, at)| at.device.flush()).collect();
        let mut outcome = Ok(());
        for ((slot, at), result) in at.into_iter().zip(join_all(flushes).await) {
            let Err(error) = result else { continue };
            let standing = self.standing(slot, &at);
            if standing == Standing::Nobody
                || (standing == Standing::Replacement
                    && self.shared.members.fail_replacement(slot, &error.to_string()))
            {
                continue;
            }
            self.shared.members.note_error(slot, &error);
            // After a failed flush, for want of space too, the kernel may have dropped the dirty pages: a second one
            // that succeeds proves nothing. Every member that failed to flush fails at once.
            if let Undone::Request(error) = self.fail_member(slot, &error) {
                self.shared.flush_failed.store(true, std::sync::atomic::Ordering::SeqCst);
                outcome = Err(error);
            }
        }
        outcome
    }

    /// A slot without a device: its member was removed while the request was on its way.
    pub(super) fn absent(&self, slot: u32) -> Undone {
        match self.shared.members.fail(slot, "it has no device") {
            Failing::Failed => Undone::MemberGone,
            Failing::Needed => {
                Undone::Request(VolumeError::Io { reason: format!("member {slot} has no device") })
            }
        }
    }

    /// The second error, or the first that is final: the member fails, or the request if the array needs it.
    pub(super) fn give_up(&self, slot: u32, error: &DeviceError) -> Undone {
        // A drive that was pulled out answers writes with ENOSPC: of a member that has failed, any error is the same.
        if matches!(self.shared.members.state(slot), MemberState::Failed | MemberState::Missing) {
            return Undone::MemberGone;
        }
        if error.kind == DeviceErrorKind::NoSpace {
            // The file system below is full: other members will meet the same. Nothing is wrong with this one.
            return Undone::Request(VolumeError::NoSpace { member: slot });
        }
        self.fail_member(slot, error)
    }

    /// A member fails for another reason than an error of the moment.
    pub(super) fn fail_for(&self, slot: u32, reason: &str) -> Failing {
        let failing = self.shared.members.fail(slot, reason);
        if failing == Failing::Failed {
            self.shared.cache.clear();
        }
        failing
    }

    fn fail_member(&self, slot: u32, error: &DeviceError) -> Undone {
        match self.fail_for(slot, &error.to_string()) {
            Failing::Failed => Undone::MemberGone,
            Failing::Needed => {
                let reason = format!("member {slot}: {error}, and the array cannot do without it");
                Undone::Request(VolumeError::Io { reason })
            }
        }
    }

    pub(super) fn fragment_read(&self, stripe: u64, fragment: &Fragment) -> MemberRead {
        MemberRead {
            slot: self.shared.member_of(stripe, fragment.chunk),
            offset: self.shared.geometry.member_offset(stripe) + u64::from(fragment.rows.start),
            bytes: fragment.rows.bytes(),
        }
    }
}

/// Whether a member in this state gets writes.
pub(super) fn in_use(state: MemberState) -> bool {
    matches!(state, MemberState::InSync | MemberState::Recovering)
}
