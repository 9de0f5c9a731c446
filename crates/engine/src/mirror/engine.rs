//! The mirror engine of one shard.

use std::rc::Rc;
use std::sync::Arc;

use crate::device::Device;
use crate::members::health::MemberState;
use crate::members::port::MemberPort;
use crate::stripe::shared::Shared;
use crate::stripe::stripe_table::Claim;
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

    /// Becomes the owner of a region, once those before have released it.
    pub(super) async fn claim(&self, region: u64) -> Claim {
        self.shared.table.claim(region, self.shard).await
    }

    /// The same for work that goes over the whole array, in its turn.
    pub(super) async fn claim_in_turn(&self, region: u64) -> Claim {
        self.shared.table.claim_in_turn(region, self.shard).await
    }

    /// Whether the member with a copy holds what it should.
    pub(super) fn in_sync(&self, place: &CopyPlace) -> bool {
        self.shared.members.state(place.member) == MemberState::InSync
    }

    /// The copy to read among those in sync; `turn` spreads the choice.
    pub(super) fn copy_to_read(&self, places: &[CopyPlace], turn: usize) -> Option<CopyPlace> {
        let in_sync = |place: &&CopyPlace| self.in_sync(place);
        let count = places.iter().filter(in_sync).count();
        places.iter().filter(in_sync).nth(turn % count.max(1)).copied()
    }
}
