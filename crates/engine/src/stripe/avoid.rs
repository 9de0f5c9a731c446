//! Fail-slow members: the load that a stripe write plans with, and reads that avoid a slow member by reconstruction.

use smallvec::SmallVec;

use super::engine::{Owned, ParityEngine};
use crate::buffer::Gather;
use crate::code::chunk_set::{ChunkSet, P, Q, data_chunk};
use crate::code::cost::MemberLoad;
use crate::code::image::{Held, Image};
use crate::code::plan::{StripeLoad, plan, plan_read};
use crate::code::recover::extract;
use crate::code::rows::{ChunkPiece, Fragment};
use crate::device::Device;
use crate::members::load::UpdatePolicy;
use crate::members::port::MemberRead;
use layout::units::Stripe;

/// How busy the members of a stripe are, if the update policy asks for it.
pub(super) fn stripe_load<D: Device>(engine: &ParityEngine<D>, stripe: Stripe) -> Option<StripeLoad> {
    let shared = &*engine.shared;
    if shared.loads.policy() == UpdatePolicy::FewestReads {
        return None;
    }
    let at = |chunk| shared.loads.of(shared.slot_of(stripe, chunk));
    let shape = shared.shape();
    Some(StripeLoad {
        data: (0..shape.data).map(|index| at(data_chunk(index))).collect(),
        parity: [at(P), if shape.parity == 2 { at(Q) } else { MemberLoad::default() }],
    })
}

/// Whether the plan would choose read-modify-write for a write of one fragment of a healthy stripe. The caller knows that
/// read-modify-write has the fewest reads.
pub(super) fn rmw_is_chosen<D: Device>(
    engine: &ParityEngine<D>,
    stripe: Stripe,
    fragment: &Fragment,
) -> bool {
    let Some(load) = stripe_load(engine, stripe) else { return true };
    let plan = plan(engine.shared.shape(), ChunkSet::EMPTY, &[*fragment], &[], Some(&load));
    plan.is_ok_and(|plan| plan.steps.iter().all(|step| !step.adjusted))
}

/// Reads pieces of which one is on a slow member: that piece is reconstructed, as its stripe's owner. None if no member is
/// slow, the stripe is not free or not consistent, a read fails, or the shard's allowance of extra reads is spent: the
/// caller then reads from the members as usual.
pub(super) async fn read_avoiding<D: Device>(
    engine: &ParityEngine<D>,
    pieces: &[ChunkPiece],
) -> Option<Gather> {
    let shared = &*engine.shared;
    let slot = |piece: &ChunkPiece| shared.slot_of(piece.stripe, piece.fragment.chunk);
    let slow = pieces.iter().find(|piece| shared.loads.is_slow(slot(piece)))?;
    // Only if free: the stripe's owner may itself be waiting for the slow member.
    let claim = shared.table.claim_if_free(slow.stripe, engine.shard)?;
    read_avoiding_owned(engine.owned(&claim), slow, pieces).await
}

async fn read_avoiding_owned<D: Device>(
    owned: Owned<'_, D>,
    slow: &ChunkPiece,
    pieces: &[ChunkPiece],
) -> Option<Gather> {
    let (engine, shared, stripe) = (owned.engine(), owned.shared(), owned.stripe());
    // Invariants 6 and 10: parity agrees with the data, and no chunk is missing.
    if shared.consistency.is_suspect(stripe) || !shared.members.all_in_sync() {
        return None;
    }
    let avoided = ChunkSet::one(slow.fragment.chunk);
    let wanted: SmallVec<[Fragment; 8]> =
        pieces.iter().filter(|piece| piece.stripe == stripe).map(|piece| piece.fragment).collect();
    let fetch = plan_read(shared.shape(), avoided, &wanted).ok()?;
    if !shared.loads.spend(engine.shard, fetch.len().saturating_sub(wanted.len())) {
        return None;
    }
    let elsewhere = pieces.iter().filter(|piece| piece.stripe != stripe);
    let reads: SmallVec<[MemberRead; 8]> = fetch
        .iter()
        .map(|fragment| engine.read_of(stripe, fragment))
        .chain(elsewhere.map(|piece| engine.read_of(piece.stripe, &piece.fragment)))
        .collect();
    let mut buffers = engine.port.read(&reads).await.into_iter();
    let mut image = Image::default();
    for fragment in fetch {
        image.insert(fragment, Held::Owned(buffers.next()?.ok()?));
    }
    let mut gather = Gather::new();
    for piece in pieces {
        gather.push(match piece.stripe == stripe {
            true => extract(
                &engine.shared.geometry,
                stripe,
                avoided,
                &piece.fragment,
                &mut image,
                &engine.port.pool,
            ),
            false => buffers.next()?.ok()?.freeze(),
        });
    }
    engine.port.counters().avoided_reads.add(1);
    Some(gather)
}
