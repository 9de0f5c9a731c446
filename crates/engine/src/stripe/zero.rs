//! Zeroes and discards. Whole stripes go down to the members, parity included: the parity of zeroes is zero. A member
//! that does not know how, or will not, is written zeroes: a stripe is zero on every member or its write has failed.
//! What is left at the ends is written as zeroes, or for a discard ignored.

use smallvec::SmallVec;
use std::rc::Rc;

use super::member_io::{MemberWrite, Undone, in_use};
use super::seats::Standing;
use super::{Attached, StripeSet};
use crate::buffer::Gather;
use crate::device::{Device, DeviceErrorKind};
use crate::executor::join_all;
use crate::stages::Watch;
use crate::volume::VolumeError;

/// Stripes zeroed in one go: they are owned together, and each member gets one operation.
const STRIPES_AT_ONCE: u64 = 64;
/// One operation of a member covers no more, but at least a chunk: where zeroes have to be written it ends in time.
const BYTES_AT_ONCE: u64 = 32 << 20;

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
        self.zero_stripes(first, end, Zeroing::Discard).await
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
        self.zero_stripes(first, end, Zeroing::WriteZeroes { may_unmap }).await?;
        self.write_zero_data(end_whole, end_bytes - end_whole, fua).await?;
        // Not the members' flush alone: it may fail a member, and that has to be on disk first (invariant 8).
        if fua { self.flush_volume().await } else { Ok(()) }
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

    /// Zeroes whole stripes at the members, as many at once as it may own.
    async fn zero_stripes(&self, first: u64, end: u64, zeroing: Zeroing) -> Result<(), VolumeError> {
        let shared = &*self.shared;
        let at_once = BYTES_AT_ONCE / u64::from(shared.geometry.chunk_bytes());
        let at_once = at_once.clamp(1, STRIPES_AT_ONCE);
        let mut at = first;
        while at < end {
            let most = end.min(at + at_once);
            let offset = |stripe| shared.geometry.member_offset(stripe);
            let range = offset(at)..offset(most - 1) + u64::from(shared.geometry.chunk_bytes());
            let _marked = shared.intent.mark(&Watch::off(self.shard), &shared.members, range).await?;
            let claims = shared.table.claim_run(at, most, self.shard).await;
            let next = at + claims.len() as u64;
            (at..next).for_each(|stripe| shared.cache.forget(stripe));
            let mut result = self.zero_owned(at, next, zeroing).await;
            match &result {
                Ok(()) => {
                    (at..next).for_each(|stripe| shared.trust(stripe)); // all that was in doubt is gone
                    result = self.settle().await;
                }
                Err(error) => (at..next).for_each(|stripe| shared.suspect(stripe, &error.to_string())),
            }
            claims.into_iter().for_each(|claim| claim.release(&Ok(())));
            result?;
            at = next;
        }
        Ok(())
    }

    async fn zero_owned(&self, first: u64, end: u64, zeroing: Zeroing) -> Result<(), VolumeError> {
        if self.shared.members.plain() {
            return self.zero_members(first, end, zeroing).await;
        }
        let logged = self.log_zeroes(first..end).await?;
        let result = self.zero_members(first, end, zeroing).await;
        if result.is_err() {
            (first..end).for_each(|stripe| self.shared.doubt(stripe));
        }
        self.zeroes_written(first..end, &logged, result.is_err());
        result
    }

    async fn zero_members(&self, first: u64, end: u64, zeroing: Zeroing) -> Result<(), VolumeError> {
        let geometry = &self.shared.geometry;
        let (offset, bytes) =
            (geometry.member_offset(first), (end - first) * u64::from(geometry.chunk_bytes()));
        let at: SmallVec<[(u32, Rc<Attached<D>>); 8]> = (0..geometry.members())
            .filter(|&slot| in_use(self.shared.members.state(slot)))
            .flat_map(|slot| self.targets(slot).into_iter().map(move |device| (slot, device)))
            .collect();
        let start = |(_, to): &(u32, Rc<Attached<D>>)| start_zeroing(to, offset, bytes, zeroing);
        let started: SmallVec<[D::Done; 8]> = at.iter().map(start).collect();
        let (mut result, mut not_zeroed) = (Ok(()), SmallVec::<[u32; 4]>::new());
        for ((slot, at), done) in at.into_iter().zip(join_all(started).await) {
            let standing = self.standing(slot, &at);
            let Err(error) = done else {
                if standing == Standing::Member {
                    self.shared.members.clear_bad(slot, &(offset..offset + bytes));
                }
                continue;
            };
            if standing == Standing::Nobody {
                continue;
            }
            if standing == Standing::Member && error.kind != DeviceErrorKind::Unsupported {
                self.shared.members.note_error(slot, &error);
            }
            // An optional operation is no reason to lose a member; if it cannot be written, that is. What is written goes to
            // its replacement, too.
            let outcome = match (error.kind, standing) {
                (DeviceErrorKind::Unsupported | DeviceErrorKind::Io, _) => {
                    self.write_zeroes_to(slot, offset, bytes).await
                }
                (_, Standing::Replacement)
                    if self.shared.members.fail_replacement(slot, &error.to_string()) =>
                {
                    Ok(())
                }
                _ => Err(self.give_up(slot, &error)),
            };
            if let Err(Undone::Request(error)) = outcome {
                result = Err(error);
                not_zeroed.push(slot);
            }
        }
        for slot in not_zeroed {
            self.take_back_from_replacement(slot, offset..offset + bytes).await;
        }
        result
    }

    /// Makes a logged write again: `data`, or without it zeroes.
    pub(crate) async fn redo_piece(
        &self,
        slot: u32,
        offset: u64,
        bytes: u64,
        data: Option<Gather>,
    ) -> Result<(), VolumeError> {
        let result = match data {
            Some(data) => self.write_members(&[MemberWrite { slot, offset, data }], false).await.remove(0),
            None => self.write_zeroes_to(slot, offset, bytes).await,
        };
        match result {
            Ok(()) | Err(Undone::MemberGone | Undone::Unreadable) => Ok(()),
            Err(Undone::Request(error)) => Err(error),
        }
    }

    /// Writes zeroes to one member, a buffer at a time.
    async fn write_zeroes_to(&self, slot: u32, offset: u64, bytes: u64) -> Result<(), Undone> {
        let mut at = offset;
        while at < offset + bytes {
            let step = (offset + bytes - at).min(self.zeroes.len() as u64);
            let data = Gather::from(self.zeroes.part(0, usize::try_from(step).expect("at most the buffer")));
            self.write_members(&[MemberWrite { slot, offset: at, data }], false).await.remove(0)?;
            at += step;
        }
        Ok(())
    }
}

fn start_zeroing<D: Device>(to: &Attached<D>, offset: u64, bytes: u64, zeroing: Zeroing) -> D::Done {
    let at = to.data_offset_bytes + offset;
    match zeroing {
        // Looked at here once more: since the request came, another device may have taken the slot.
        Zeroing::Discard if !to.device.info().discard_zeroes => to.device.write_zeroes(at, bytes, true),
        Zeroing::Discard => to.device.discard(at, bytes),
        Zeroing::WriteZeroes { may_unmap } => to.device.write_zeroes(at, bytes, may_unmap),
    }
}
