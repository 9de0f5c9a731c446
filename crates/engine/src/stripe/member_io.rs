//! I/O at members: many at once, one retry. What cannot be read then is made from the others; for anything else the member
//! fails.

use smallvec::SmallVec;
use std::rc::Rc;

use super::load::{Kind, Timed};
use super::plan::Fragment;
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
                None if self.is_bad(read) => Err(Undone::Unreadable),
                None => Err(self.absent(read.slot)),
                Some(from) => {
                    self.finish_read(read, &from, done.next().expect("a result for every read")).await
                }
            });
        }
        results
    }

    /// None if nobody is in the slot, or the place [is bad](Self::is_bad).
    pub(super) fn start_read(&self, read: &MemberRead) -> Option<(Rc<Attached<D>>, Timed<'_, D::Read>)> {
        if self.is_bad(read) {
            return None;
        }
        let member = self.attached(read.slot)?;
        self.counters().member_reads.add(1);
        self.counters().member_read_bytes.add(read.bytes as u64);
        let buffer = self.pool.take(read.bytes);
        let started = member.device.read(member.data_offset_bytes + read.offset, buffer);
        let started = self.shared.loads.timed(self.shard, read.slot, Kind::Read, started);
        Some((member, started))
    }

    async fn finish_read(
        &self,
        read: &MemberRead,
        from: &Rc<Attached<D>>,
        (buffer, result): (Buffer, Result<(), DeviceError>),
    ) -> Result<Buffer, Undone> {
        let Err(error) = result else { return Ok(buffer) };
        drop(buffer);
        self.still_there(read.slot, from)?;
        self.shared.members.note_error(read.slot, &error);
        if !Members::worth_a_retry(&error) {
            return Err(self.give_up(read.slot, &error));
        }
        let Some((_, again)) = self.start_read(read) else { return Err(Undone::Unreadable) };
        let error = match again.await {
            (buffer, Ok(())) => return Ok(buffer),
            (_, Err(error)) => error,
        };
        self.still_there(read.slot, from)?;
        match Self::is_latent(&error) && self.shared.geometry.losses_survived() > 0 {
            true => Err(Undone::Unreadable),
            false => Err(self.give_up(read.slot, &error)),
        }
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

    /// Writes all, at once.
    pub(super) async fn write_members(
        &self,
        writes: &[MemberWrite],
        fua: bool,
    ) -> SmallVec<[Result<(), Undone>; 4]> {
        let started = writes.iter().map(|write| self.start_write(write, fua));
        let (to, started) = split::<D, Timed<'_, D::Done>>(started);
        let mut done = join_all(started).await.into_iter();
        let mut results = SmallVec::new();
        for (write, to) in writes.iter().zip(to) {
            results.push(match to {
                None => Err(self.absent(write.slot)),
                Some(to) => {
                    let done = done.next().expect("a result for every write");
                    self.finish_write(write, fua, &to, done).await
                }
            });
        }
        results
    }

    pub(super) fn start_write(
        &self,
        write: &MemberWrite,
        fua: bool,
    ) -> Option<(Rc<Attached<D>>, Timed<'_, D::Done>)> {
        let member = self.attached(write.slot)?;
        self.counters().member_writes.add(1);
        self.counters().member_write_bytes.add(write.data.len() as u64);
        let started = member.device.write(member.data_offset_bytes + write.offset, write.data.clone(), fua);
        let started = self.shared.loads.timed(self.shard, write.slot, Kind::Write, started);
        Some((member, started))
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
        self.shared.members.note_error(write.slot, &error);
        if !Members::worth_a_retry(&error) {
            return Err(self.give_up(write.slot, &error));
        }
        let (_, again) = self.start_write(write, fua).expect("still there");
        let Err(error) = again.await else {
            self.written(write);
            return Ok(());
        };
        self.still_there(write.slot, to)?;
        Err(self.give_up(write.slot, &error))
    }

    /// What was bad there holds something again.
    fn written(&self, write: &MemberWrite) {
        let members = &self.shared.members;
        if !members.plain() {
            members.clear_bad(write.slot, &(write.offset..write.offset + write.data.len() as u64));
        }
    }

    /// An error counts, and a second try makes sense, only while the device is in its slot. Another one there has
    /// nothing to do with the error, and nothing to read either before it is rebuilt (invariant 8).
    pub(super) fn still_there(&self, slot: u32, device: &Rc<Attached<D>>) -> Result<(), Undone> {
        let now = self.attached(slot);
        if now.is_some_and(|now| Rc::ptr_eq(&now, device)) { Ok(()) } else { Err(Undone::MemberGone) }
    }

    /// Makes everything durable on every working member, and what is known of the others.
    pub(crate) async fn flush_volume(&self) -> Result<(), VolumeError> {
        self.flush_members().await?;
        self.settle().await
    }

    /// Makes everything durable on every working member.
    pub(crate) async fn flush_members(&self) -> Result<(), VolumeError> {
        let slots: SmallVec<[u32; 8]> = (0..self.shared.geometry.members()).collect();
        let (at, flushes) = split::<D, D::Done>(slots.iter().map(|&slot| self.start_flush(slot)));
        let at = slots.into_iter().zip(at).filter_map(|(slot, at)| Some((slot, at?)));
        let mut outcome = Ok(());
        for ((slot, at), result) in at.zip(join_all(flushes).await) {
            let Err(error) = result else { continue };
            if self.still_there(slot, &at).is_err() {
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

    fn start_flush(&self, slot: u32) -> Option<(Rc<Attached<D>>, D::Done)> {
        use crate::members::MemberState::{InSync, Recovering};
        if !matches!(self.shared.members.state(slot), InSync | Recovering) {
            return None;
        }
        let member = self.attached(slot)?;
        let started = member.device.flush();
        Some((member, started))
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
