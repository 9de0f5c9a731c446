//! What the load of the members changes: what a stripe write plans with, and reads that go round a slow member.

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

/// How busy the members of a stripe are, if writes choose by that.
pub(super) fn stripe_load<D: Device>(engine: &ParityEngine<D>, stripe: u64) -> Option<StripeLoad> {
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

/// Whether a write of one fragment of a whole stripe is by read-modify-write, where that has the fewest reads.
pub(super) fn rmw_is_chosen<D: Device>(engine: &ParityEngine<D>, stripe: u64, fragment: &Fragment) -> bool {
    let Some(load) = stripe_load(engine, stripe) else { return true };
    let plan = plan(engine.shared.shape(), ChunkSet::EMPTY, &[*fragment], &[], Some(&load));
    plan.is_ok_and(|plan| plan.steps.iter().all(|step| !step.adjusted))
}

/// Reads pieces of which one is on a slow member: that one is reconstructed, as its stripe's owner. None if no
/// member is slow, or if anything speaks against it; then nothing was done that matters.
pub(super) async fn read_avoiding<D: Device>(
    engine: &ParityEngine<D>,
    pieces: &[ChunkPiece],
) -> Option<Gather> {
    let shared = &*engine.shared;
    let slot = |piece: &ChunkPiece| shared.slot_of(piece.stripe, piece.fragment.chunk);
    let slow = pieces.iter().find(|piece| shared.loads.is_slow(slot(piece)))?;
    // Another owner of the stripe may itself wait for the slow member: this read does not wait for it.
    let claim = shared.table.claim_if_free(slow.stripe, engine.shard)?;
    read_avoiding_owned(engine.owned(&claim), slow, pieces).await
}

async fn read_avoiding_owned<D: Device>(
    owned: Owned<'_, D>,
    slow: &ChunkPiece,
    pieces: &[ChunkPiece],
) -> Option<Gather> {
    let (engine, shared, stripe) = (owned.engine(), owned.shared(), owned.stripe());
    // Invariant 10, and 6: parity agrees with the data, and it is all there.
    if shared.consistency.is_suspect(stripe) || !shared.members.all_in_sync() {
        return None;
    }
    let avoided = ChunkSet::one(slow.fragment.chunk);
    let here: SmallVec<[Fragment; 8]> =
        pieces.iter().filter(|piece| piece.stripe == stripe).map(|piece| piece.fragment).collect();
    let fetch = plan_read(shared.shape(), avoided, &here).ok()?;
    if !shared.loads.spend(engine.shard, fetch.len().saturating_sub(here.len())) {
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
