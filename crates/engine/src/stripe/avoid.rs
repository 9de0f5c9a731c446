//! What the load of the members changes: what a stripe write plans with, and reads that go round a slow member.

use smallvec::SmallVec;

use super::chunk_set::{ChunkSet, P, Q};
use super::cost::MemberLoad;
use super::image::{Held, Image};
use super::load::UpdatePolicy;
use super::member_io::MemberRead;
use super::plan::{Fragment, StripeLoad, plan, plan_read};
use super::read::Piece;
use super::{StripeSet, data_chunk};
use crate::buffer::Gather;
use crate::device::Device;

impl<D: Device> StripeSet<D> {
    /// How busy the members of a stripe are, if writes choose by that.
    pub(super) fn stripe_load(&self, stripe: u64) -> Option<StripeLoad> {
        let shared = &*self.shared;
        if shared.loads.policy() == UpdatePolicy::FewestReads {
            return None;
        }
        let at = |chunk| shared.loads.of(shared.member_of(stripe, chunk));
        let shape = shared.shape();
        Some(StripeLoad {
            data: (0..shape.data).map(|index| at(data_chunk(index))).collect(),
            parity: [at(P), if shape.parity == 2 { at(Q) } else { MemberLoad::default() }],
        })
    }

    /// Whether a write of one fragment of a whole stripe is by read-modify-write, where that has the fewest reads.
    pub(super) fn rmw_is_chosen(&self, stripe: u64, fragment: &Fragment) -> bool {
        let Some(load) = self.stripe_load(stripe) else { return true };
        let plan = plan(self.shared.shape(), ChunkSet::EMPTY, &[*fragment], &[], Some(&load));
        plan.is_ok_and(|plan| plan.segments.iter().all(|segment| !segment.adjusted))
    }

    /// Reads pieces of which one is on a slow member: that one is reconstructed, as its stripe's owner. None if no
    /// member is slow, or if anything speaks against it; then nothing was done that matters.
    pub(super) async fn read_avoiding(&self, pieces: &[Piece]) -> Option<Gather> {
        let shared = &*self.shared;
        let slot = |piece: &Piece| shared.member_of(piece.stripe, piece.fragment.chunk);
        let slow = pieces.iter().find(|piece| shared.loads.is_slow(slot(piece)))?;
        // Whoever owns the stripe may wait for the slow member itself: nobody waits for him.
        let claim = shared.table.claim_if_free(slow.stripe, self.shard)?;
        let gather = self.read_avoiding_as_owner(slow, pieces).await;
        claim.release(&Ok(()));
        gather
    }

    async fn read_avoiding_as_owner(&self, slow: &Piece, pieces: &[Piece]) -> Option<Gather> {
        let (shared, stripe) = (&*self.shared, slow.stripe);
        // Invariant 10, and 6: parity agrees with the data, and it is all there.
        if shared.is_suspect(stripe) || !shared.members.all_in_sync() {
            return None;
        }
        let avoided = ChunkSet::one(slow.fragment.chunk);
        let here: SmallVec<[Fragment; 8]> =
            pieces.iter().filter(|piece| piece.stripe == stripe).map(|piece| piece.fragment).collect();
        let fetch = plan_read(shared.shape(), avoided, &here).ok()?;
        if !shared.loads.spend(self.shard, fetch.len().saturating_sub(here.len())) {
            return None;
        }
        let elsewhere = pieces.iter().filter(|piece| piece.stripe != stripe);
        let reads: SmallVec<[MemberRead; 8]> = fetch
            .iter()
            .map(|fragment| self.fragment_read(stripe, fragment))
            .chain(elsewhere.map(|piece| self.fragment_read(piece.stripe, &piece.fragment)))
            .collect();
        let mut buffers = self.read_members(&reads).await.into_iter();
        let mut image = Image::default();
        for fragment in fetch {
            image.insert(fragment, Held::Owned(buffers.next()?.ok()?));
        }
        let mut gather = Gather::new();
        for piece in pieces {
            gather.push(match piece.stripe == stripe {
                true => self.extract(stripe, avoided, &piece.fragment, &mut image),
                false => buffers.next()?.ok()?.freeze(),
            });
        }
        self.counters().avoided_reads.add(1);
        Some(gather)
    }
}
