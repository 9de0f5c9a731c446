//! Zeroes and discards. Whole stripes go down to the members, parity included: the parity of zeroes is zero. What is
//! left at the ends is written as zeroes, or for a discard ignored.

use smallvec::SmallVec;
use std::rc::Rc;

use super::StripeSet;
use super::member_io::Undone;
use super::stripe_table::Claim;
use crate::buffer::Gather;
use crate::device::{Device, DeviceErrorKind};
use crate::executor::join_all;
use crate::members::{MemberState, Members};
use crate::volume::VolumeError;

/// Stripes zeroed in one go: they are owned together, and each member gets one operation.
const STRIPES_AT_ONCE: u64 = 64;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Zeroing {
    Discard,
    WriteZeroes { may_unmap: bool },
}

impl<D: Device> StripeSet<D> {
    /// Discards the whole stripes of a range where every member promises zeroes, else does nothing.
    pub(crate) async fn discard_range(
        self: &Rc<Self>,
        offset_bytes: u64,
        bytes: u64,
    ) -> Result<(), VolumeError> {
        let zeroes = |slot| self.attached(slot).is_none_or(|member| member.device.info().discard_zeroes);
        if self.shared.geometry.parity_chunks() == 0 || !(0..self.shared.geometry.members()).all(zeroes) {
            return Ok(());
        }
        let (first, end) = self.whole_stripes(offset_bytes, bytes);
        self.zero_stripes(first, end, Zeroing::Discard).await.map(|_| ())
    }

    /// Makes a range read as zeroes.
    pub(crate) async fn zero_range(
        self: &Rc<Self>,
        offset_bytes: u64,
        bytes: u64,
        may_unmap: bool,
        fua: bool,
    ) -> Result<(), VolumeError> {
        let end_bytes = offset_bytes + bytes;
        let (first, end) = match self.shared.geometry.parity_chunks() {
            0 => (0, 0),
            _ => self.whole_stripes(offset_bytes, bytes),
        };
        if first >= end {
            return self.write_zero_data(offset_bytes, bytes, fua).await;
        }
        let stripe_bytes = self.shared.geometry.stripe_bytes();
        let (start_whole, end_whole) = (first * stripe_bytes, end * stripe_bytes);
        self.write_zero_data(offset_bytes, start_whole - offset_bytes, fua).await?;
        if !self.zero_stripes(first, end, Zeroing::WriteZeroes { may_unmap }).await? {
            self.write_zero_data(start_whole, end_whole - start_whole, fua).await?;
        }
        self.write_zero_data(end_whole, end_bytes - end_whole, fua).await?;
        if fua { self.flush_members().await } else { Ok(()) }
    }

    fn whole_stripes(&self, offset_bytes: u64, bytes: u64) -> (u64, u64) {
        let stripe_bytes = self.shared.geometry.stripe_bytes();
        (offset_bytes.div_ceil(stripe_bytes), (offset_bytes + bytes) / stripe_bytes)
    }

    /// Writes zeroes as data, a buffer at a time.
    async fn write_zero_data(
        self: &Rc<Self>,
        offset_bytes: u64,
        bytes: u64,
        fua: bool,
    ) -> Result<(), VolumeError> {
        let mut at = offset_bytes;
        while at < offset_bytes + bytes {
            let step = (offset_bytes + bytes - at).min(self.zeroes.len() as u64);
            let zeroes = self.zeroes.part(0, usize::try_from(step).expect("at most the buffer"));
            self.write_range(at, Gather::from(zeroes), fua).await?;
            at += step;
        }
        Ok(())
    }

    /// Zeroes whole stripes at the members. False if a member does not know how; nothing is half done then that a
    /// write of zeroes would not mend.
    async fn zero_stripes(&self, first: u64, end: u64, zeroing: Zeroing) -> Result<bool, VolumeError> {
        let shared = &*self.shared;
        let marked = shared.intent.mark(self.shard, &shared.members).await;
        let _marked =
            marked.map_err(|_| VolumeError::Io { reason: "the superblocks cannot be written".into() })?;
        let mut at = first;
        while at < end {
            let next = (at + STRIPES_AT_ONCE).min(end);
            let mut claims = SmallVec::<[Claim; 64]>::new();
            for stripe in at..next {
                claims.push(shared.table.claim(stripe, self.shard).await);
                shared.cache.forget(stripe);
            }
            let mut result = self.zero_members(at, next, zeroing).await;
            match &result {
                Ok(true) => {
                    if let Err(error) = self.settle().await {
                        result = Err(error);
                    }
                }
                Ok(false) => self.mend(at, next).await?,
                Err(error) => (at..next).for_each(|stripe| shared.suspect(stripe, &error.to_string())),
            }
            claims.into_iter().for_each(|claim| claim.release(&Ok(())));
            if !result? {
                return Ok(false);
            }
            at = next;
        }
        Ok(true)
    }

    /// Some members zeroed their chunks and others did not: the contents are the caller's to write, but parity has to
    /// agree at once. The caller owns the stripes.
    async fn mend(&self, first: u64, end: u64) -> Result<(), VolumeError> {
        for stripe in first..end {
            self.shared.suspect(stripe, "a member cannot zero a range");
            self.make_parity_agree(stripe).await?;
        }
        Ok(())
    }

    async fn zero_members(&self, first: u64, end: u64, zeroing: Zeroing) -> Result<bool, VolumeError> {
        let geometry = &self.shared.geometry;
        let (offset, bytes) =
            (geometry.member_offset(first), (end - first) * u64::from(geometry.chunk_bytes()));
        let start = |slot| -> Option<(u32, D::Done)> {
            if !matches!(self.shared.members.state(slot), MemberState::InSync | MemberState::Recovering) {
                return None;
            }
            let member = self.attached(slot)?;
            let at = member.data_offset_bytes + offset;
            let done = match zeroing {
                Zeroing::Discard => member.device.discard(at, bytes),
                Zeroing::WriteZeroes { may_unmap } => member.device.write_zeroes(at, bytes, may_unmap),
            };
            Some((slot, done))
        };
        let started = (0..geometry.members()).filter_map(start);
        let (slots, started): (SmallVec<[u32; 8]>, SmallVec<[D::Done; 8]>) = started.unzip();
        let mut supported = true;
        for (slot, result) in slots.into_iter().zip(join_all(started).await) {
            let Err(error) = result else { continue };
            if error.kind == DeviceErrorKind::Unsupported {
                supported = false;
                continue;
            }
            self.shared.members.note_error(slot, &error);
            if Members::worth_a_retry(&error) && zeroing == Zeroing::Discard {
                supported = false; // an optional operation is no reason to lose a member
                continue;
            }
            if let Undone::Request(error) = self.give_up(slot, &error) {
                return Err(error);
            }
        }
        Ok(supported)
    }
}
