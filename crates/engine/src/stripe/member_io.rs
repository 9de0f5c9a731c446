//! I/O at members: many at once, one retry, then the member fails.

use smallvec::SmallVec;

use super::StripeSet;
use super::plan::Fragment;
use crate::buffer::{Buffer, Gather};
use crate::device::{Device, DeviceError, DeviceErrorKind};
use crate::executor::join_all;
use crate::members::{Failing, Members};
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
    /// The request fails.
    Request(VolumeError),
}

impl<D: Device> StripeSet<D> {
    /// Reads all, at once. The results are in the order of `reads`.
    pub(super) async fn read_members(&self, reads: &[MemberRead]) -> SmallVec<[Result<Buffer, Undone>; 4]> {
        let mut results = SmallVec::new();
        let started: SmallVec<[Option<D::Read>; 4]> =
            reads.iter().map(|read| self.start_read(read)).collect();
        if let ([read], [Some(_)]) = (reads, &started[..]) {
            let only = started.into_iter().flatten().next().expect("one read");
            results.push(self.finish_read(read, only.await).await);
            return results;
        }
        let gone: SmallVec<[bool; 8]> = started.iter().map(Option::is_none).collect();
        let mut done = join_all(started.into_iter().flatten()).await.into_iter();
        for (read, gone) in reads.iter().zip(gone) {
            results.push(if gone {
                Err(self.absent(read.slot))
            } else {
                self.finish_read(read, done.next().expect("a result for every read")).await
            });
        }
        results
    }

    fn start_read(&self, read: &MemberRead) -> Option<D::Read> {
        let members = self.members.borrow();
        let member = members[read.slot as usize].as_ref()?;
        self.counters().member_reads.add(1);
        self.counters().member_read_bytes.add(read.bytes as u64);
        Some(member.device.read(member.data_offset_bytes + read.offset, self.pool.take(read.bytes)))
    }

    async fn finish_read(
        &self,
        read: &MemberRead,
        (buffer, result): (Buffer, Result<(), DeviceError>),
    ) -> Result<Buffer, Undone> {
        let Err(error) = result else { return Ok(buffer) };
        drop(buffer);
        self.shared.members.note_error(read.slot, &error);
        if Members::worth_a_retry(&error) {
            let Some(again) = self.start_read(read) else { return Err(self.absent(read.slot)) };
            match again.await {
                (buffer, Ok(())) => return Ok(buffer),
                (_, Err(error)) => return Err(self.give_up(read.slot, &error)),
            }
        }
        Err(self.give_up(read.slot, &error))
    }

    /// Writes all, at once. The results are in the order of `writes`.
    pub(super) async fn write_members(
        &self,
        writes: &[MemberWrite],
        fua: bool,
    ) -> SmallVec<[Result<(), Undone>; 4]> {
        let started: SmallVec<[Option<D::Done>; 4]> =
            writes.iter().map(|write| self.start_write(write, fua)).collect();
        let gone: SmallVec<[bool; 8]> = started.iter().map(Option::is_none).collect();
        let mut done = join_all(started.into_iter().flatten()).await.into_iter();
        let mut results = SmallVec::new();
        for (write, gone) in writes.iter().zip(gone) {
            results.push(if gone {
                Err(self.absent(write.slot))
            } else {
                self.finish_write(write, fua, done.next().expect("a result for every write")).await
            });
        }
        results
    }

    fn start_write(&self, write: &MemberWrite, fua: bool) -> Option<D::Done> {
        let members = self.members.borrow();
        let member = members[write.slot as usize].as_ref()?;
        self.counters().member_writes.add(1);
        self.counters().member_write_bytes.add(write.data.len() as u64);
        Some(member.device.write(member.data_offset_bytes + write.offset, write.data.clone(), fua))
    }

    async fn finish_write(
        &self,
        write: &MemberWrite,
        fua: bool,
        result: Result<(), DeviceError>,
    ) -> Result<(), Undone> {
        let Err(error) = result else { return Ok(()) };
        self.shared.members.note_error(write.slot, &error);
        if Members::worth_a_retry(&error) {
            let Some(again) = self.start_write(write, fua) else { return Err(self.absent(write.slot)) };
            return again.await.map_err(|error| self.give_up(write.slot, &error));
        }
        Err(self.give_up(write.slot, &error))
    }

    /// Makes everything durable on every working member, and what is known of the others.
    pub(crate) async fn flush_volume(&self) -> Result<(), VolumeError> {
        self.flush_members().await?;
        self.settle().await
    }

    /// Makes everything durable on every working member.
    pub(super) async fn flush_members(&self) -> Result<(), VolumeError> {
        let slots: SmallVec<[u32; 8]> = (0..self.shared.geometry.members()).collect();
        let all = slots.iter().filter_map(|&slot| Some((slot, self.start_flush(slot)?)));
        let (slots, flushes): (SmallVec<[u32; 8]>, SmallVec<[D::Done; 8]>) = all.unzip();
        let results = join_all(flushes).await;
        for (slot, result) in slots.into_iter().zip(results) {
            let Err(error) = result else { continue };
            self.shared.members.note_error(slot, &error);
            // After a failed flush the kernel may have dropped the dirty pages: a second one that succeeds proves
            // nothing. The member fails at once.
            if let Undone::Request(error) = self.give_up(slot, &error) {
                return Err(error);
            }
        }
        Ok(())
    }

    fn start_flush(&self, slot: u32) -> Option<D::Done> {
        use crate::members::MemberState::{InSync, Recovering};
        if !matches!(self.shared.members.state(slot), InSync | Recovering) {
            return None;
        }
        self.members.borrow()[slot as usize].as_ref().map(|member| member.device.flush())
    }

    /// A slot without a device: its member was removed while the request was on its way.
    fn absent(&self, slot: u32) -> Undone {
        match self.shared.members.fail(slot, "it has no device") {
            Failing::Failed => Undone::MemberGone,
            Failing::Needed => {
                Undone::Request(VolumeError::Io { reason: format!("member {slot} has no device") })
            }
        }
    }

    /// The second error, or the first that is final: the member fails, or the request if the array needs it.
    pub(super) fn give_up(&self, slot: u32, error: &DeviceError) -> Undone {
        if error.kind == DeviceErrorKind::NoSpace {
            // The file system below is full: other members will meet the same. Nothing is wrong with this one.
            return Undone::Request(VolumeError::NoSpace { member: slot });
        }
        match self.shared.members.fail(slot, &error.to_string()) {
            Failing::Failed => {
                self.shared.cache.clear();
                Undone::MemberGone
            }
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
