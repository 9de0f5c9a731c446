//! The mirror engine of one shard.

use smallvec::SmallVec;
use std::rc::Rc;
use std::sync::Arc;

use super::region::{OwnedRegion, Region, Run, regions};
use crate::device::Device;
use crate::members::health::MemberState;
use crate::members::port::MemberPort;
use crate::stripe::shared::Shared;
use crate::stripe::unit_number::UnitNumber;
use layout::geometry::CopyPlace;

/// RAID-1 and RAID-10 on one shard.
pub(crate) struct MirrorEngine<D> {
    pub(super) shared: Arc<Shared>,
    pub(super) port: Rc<MemberPort<D>>,
    pub(super) shard: usize,
}

impl<D: Device> MirrorEngine<D> {
    pub(crate) fn new(shared: &Arc<Shared>, port: &Rc<MemberPort<D>>, shard: usize) -> Self {
        MirrorEngine { shared: Arc::clone(shared), port: Rc::clone(port), shard }
    }

    /// Becomes the owner of a region once earlier owners have released it.
    pub(super) async fn claim(&self, region: Region) -> OwnedRegion {
        OwnedRegion::of(self.shared.table.claim(region, self.shard).await)
    }

    /// As [`Self::claim`], in its turn: for work that passes over the whole array.
    pub(super) async fn claim_in_turn(&self, region: Region) -> OwnedRegion {
        OwnedRegion::of(self.shared.table.claim_in_turn(region, self.shard).await)
    }

    /// Becomes the owner of the regions from `first` to `last`; of fewer, but at least one, if the stripe table is full.
    pub(super) async fn claim_all(&self, first: Region, last: Region) -> SmallVec<[OwnedRegion; 2]> {
        let regions = first.to(last).map(UnitNumber::from);
        let claims = self.shared.table.claim_whole_run(regions, self.shard).await;
        claims.into_iter().map(OwnedRegion::of).collect()
    }

    /// Whether the member that holds a copy is in sync.
    pub(super) fn in_sync(&self, place: &CopyPlace) -> bool {
        self.shared.members.state(place.member) == MemberState::InSync
    }

    /// Whether the copies of a run may differ.
    pub(super) fn may_differ(&self, run: &Run) -> bool {
        let shared = &self.shared;
        let is_suspect = || {
            let (first, last) = regions(run.offset, run.bytes as u64);
            shared.consistency.suspects() > 0
                && first.to(last).any(|region| shared.consistency.is_suspect(region))
        };
        !shared.loads.parity_agrees() || is_suspect()
    }

    /// The first copy in sync: the one that a resync writes over the others, whatever md's flags say of its member.
    pub(super) fn first_copy(&self, places: &[CopyPlace]) -> Option<CopyPlace> {
        places.iter().find(|place| self.in_sync(place)).copied()
    }

    /// The copy to read where the copies agree: number `index` of those in sync, counted round. Members that are to be read last,
    /// md's write-mostly, count only if no other copy is in sync.
    pub(super) fn copy_in_turn(&self, places: &[CopyPlace], index: usize) -> Option<CopyPlace> {
        let members = &self.shared.members;
        let in_sync = |place: &&CopyPlace| self.in_sync(place);
        let in_turn = |counts: &dyn Fn(&&CopyPlace) -> bool| {
            let count = places.iter().filter(|place| counts(place)).count();
            places.iter().filter(|place| counts(place)).nth(index % count.max(1)).copied()
        };
        if members.any_read_last()
            && let Some(place) = in_turn(&|place| in_sync(place) && !members.is_read_last(place.member))
        {
            return Some(place);
        }
        in_turn(&in_sync)
    }
}
