//! Zeroes and discards of whole stripes. They go to every member, parity included: the parity of zeroes is zero. A member
//! that cannot zero a range itself is written zeroes: a stripe is zero on every member, or its write has failed.

use smallvec::SmallVec;
use std::ops::Range;
use std::rc::Rc;

use super::engine::ParityEngine;
use super::redo::headers::settle;
use super::redo::write::{log_zeroes, zeroes_begin, zeroes_written};
use super::stripe_table::Claim;
use crate::device::{Device, DeviceErrorKind};
use crate::error::VolumeError;
use crate::executor::join_all;
use crate::members::attachment::{Attached, Attachment};
use crate::members::port::{MemberError, in_use};
use crate::stages::Unwatched;
use layout::units::{MemberOffset, Slot, Stripe};

/// Most stripes zeroed at once: the task owns all of them, and each member gets one operation.
const STRIPES_AT_ONCE: u64 = 64;
/// Most bytes of one operation at a member, but at least a chunk: it ends in time even if zeroes have to be written.
const BYTES_AT_ONCE: u64 = 32 << 20;

/// How stripes become zeroes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Zeroing {
    Discard,
    WriteZeroes { may_unmap: bool },
}

/// Zeroes whole stripes at the members, as many at once as the task can claim without waiting.
pub(crate) async fn zero_stripes<D: Device>(
    engine: &ParityEngine<D>,
    stripes: Range<Stripe>,
    zeroing: Zeroing,
) -> Result<(), VolumeError> {
    let shared = &*engine.shared;
    let at_once = BYTES_AT_ONCE / u64::from(shared.geometry.chunk_bytes());
    let at_once = at_once.clamp(1, STRIPES_AT_ONCE);
    let mut at = stripes.start;
    while at < stripes.end {
        let run = at..stripes.end.min(at + at_once);
        let offset = |stripe| shared.geometry.member_offset(stripe).get();
        let range = offset(run.start)..offset(run.end);
        let _marked = shared.intent.mark(Unwatched(engine.shard), &shared.members, range).await?;
        let _under_way = shared.consistency.enter(); // F-I14
        let claims = shared.table.claim_run(run, engine.shard).await;
        let next = at + claims.len() as u64;
        Stripe::each(at..next).for_each(|stripe| shared.cache.forget(stripe));
        let mut result = zero_owned(engine, &claims, zeroing).await;
        match &result {
            Ok(()) => {
                // Zero data and zero parity agree.
                Stripe::each(at..next).for_each(|stripe| shared.consistency.trust(stripe));
                result = settle(&engine.redo).await;
            }
            Err(error) => {
                Stripe::each(at..next).for_each(|stripe| shared.suspect(stripe, &error.to_string()));
            }
        }
        drop(claims);
        result?;
        at = next;
    }
    Ok(())
}

async fn zero_owned<D: Device>(
    engine: &ParityEngine<D>,
    claims: &[Claim],
    zeroing: Zeroing,
) -> Result<(), VolumeError> {
    let stripes = claims[0].stripe()..claims[0].stripe() + claims.len() as u64;
    if engine.shared.members.plain() {
        return zero_members(engine, stripes, zeroing).await;
    }
    let logged = log_zeroes(&engine.redo, stripes.clone()).await?;
    let result = match zeroes_begin(&engine.redo, stripes.clone(), &logged).await {
        Ok(()) => zero_members(engine, stripes.clone(), zeroing).await,
        Err(error) => Err(error),
    };
    if result.is_err() {
        Stripe::each(stripes.clone()).for_each(|stripe| engine.shared.consistency.doubt_stripe(stripe));
    }
    zeroes_written(&engine.redo, stripes, &logged, result.is_err());
    result
}

async fn zero_members<D: Device>(
    engine: &ParityEngine<D>,
    stripes: Range<Stripe>,
    zeroing: Zeroing,
) -> Result<(), VolumeError> {
    let geometry = &engine.shared.geometry;
    let offset = geometry.member_offset(stripes.start);
    let bytes = geometry.member_offset(stripes.end) - offset;
    let at: SmallVec<[(Slot, Rc<Attached<D>>); 8]> = geometry
        .slots()
        .filter(|&slot| in_use(engine.shared.members.state(slot)))
        .flat_map(|slot| engine.port.devices.targets(slot).into_iter().map(move |device| (slot, device)))
        .collect();
    let start = |(_, to): &(Slot, Rc<Attached<D>>)| start_zeroing(to, offset, bytes, zeroing);
    let started: SmallVec<[D::Done; 8]> = at.iter().map(start).collect();
    let (mut result, mut not_zeroed) = (Ok(()), SmallVec::<[Slot; 4]>::new());
    for ((slot, at), done) in at.into_iter().zip(join_all(started).await) {
        let attachment = engine.port.devices.attachment(slot, &at);
        let Err(error) = done else {
            if attachment == Attachment::Member {
                engine.shared.members.clear_bad(slot, &(offset..offset + bytes));
            }
            continue;
        };
        if attachment == Attachment::Detached {
            continue;
        }
        if attachment == Attachment::Member && error.kind != DeviceErrorKind::Unsupported {
            engine.shared.members.note_error(slot, &error);
        }
        // Zeroing is optional for a device, so its failure fails no member; a failed write of zeroes does. The write goes
        // to a replacement as well.
        let outcome = match (error.kind, attachment) {
            (DeviceErrorKind::Unsupported | DeviceErrorKind::Io, _) => {
                engine.port.write_zeroes(slot, offset, bytes).await
            }
            (_, Attachment::Replacement)
                if engine.shared.members.fail_replacement(slot, &error.to_string()) =>
            {
                Ok(())
            }
            _ => Err(engine.port.give_up(slot, &error)),
        };
        if let Err(MemberError::Request(error)) = outcome {
            result = Err(error);
            not_zeroed.push(slot);
        }
    }
    for slot in not_zeroed {
        engine.port.take_back_from_replacement(slot, offset..offset + bytes).await;
    }
    result
}

fn start_zeroing<D: Device>(to: &Attached<D>, offset: MemberOffset, bytes: u64, zeroing: Zeroing) -> D::Done {
    let at = to.on_device(offset);
    match zeroing {
        // Checked again: since the request was admitted another device may have taken the slot.
        Zeroing::Discard if !to.device.info().discard_zeroes => to.device.write_zeroes(at, bytes, true),
        Zeroing::Discard => to.device.discard(at, bytes),
        Zeroing::WriteZeroes { may_unmap } => to.device.write_zeroes(at, bytes, may_unmap),
    }
}
