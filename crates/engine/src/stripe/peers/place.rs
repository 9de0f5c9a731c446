//! Where the parts of a step are done, and what each of them came to.

use std::rc::Rc;
use std::sync::Arc;

use smallvec::SmallVec;

use crate::buffer::Gather;
use crate::code::chunk_set::{Chunk, P};
use crate::code::rows::{Fragment, Rows};
use crate::device::{Device, PeerMember};
use crate::fabric::credit::{Costs, bytes_of};
use crate::fabric::host::{Attach, Final, Part};
use crate::fabric::order::{Answer, Base, Ending, PeerIndex, Role, Stamp};
use crate::members::Attached;
use crate::stripe::engine::Owned;
use layout::units::Slot;

/// Where a chunk is, at a member whose target takes orders.
pub(super) struct ChunkPlace<D> {
    pub(super) chunk: Chunk,
    pub(super) slot: Slot,
    pub(super) member: Rc<Attached<D>>,
    pub(super) index: PeerIndex,
    /// Under which its target knows the attach.
    pub(super) key: u64,
}

/// Where a chunk is. None: its target takes no orders of this attach, or none as large.
pub(super) fn place_of<D: Device>(
    owned: Owned<'_, D>,
    attach: &mut Option<Arc<Attach>>,
    chunk: Chunk,
    bytes: u64,
) -> Option<ChunkPlace<D>> {
    let slot = owned.slot_of(chunk);
    let member = owned.port().devices.attached(slot)?;
    let place = member.device.peer()?.place()?;
    let is_same = Arc::ptr_eq(attach.get_or_insert_with(|| Arc::clone(&place.attach)), &place.attach);
    let (index, key) = (place.index, place.key);
    let bytes_max = place.order_bytes_max.min(place.attach.order_bytes_max(index));
    (is_same && bytes <= bytes_max).then_some(ChunkPlace { chunk, slot, member, index, key })
}

impl<D: Device> ChunkPlace<D> {
    /// Rows of the chunk on its device.
    pub(super) fn range(&self, owned: Owned<'_, D>, rows: Rows) -> std::ops::Range<u64> {
        let bytes = owned.bytes_of(&Fragment { chunk: self.chunk, rows });
        self.member.on_device(bytes.start).get()..self.member.on_device(bytes.end).get()
    }

    pub(super) fn takes(self, role: Role, data: Gather) -> Participant<D> {
        let last = Final::Answered(Answer::nothing(Ending::NeverSeen));
        Participant { place: self, role, data, last, keeps: None }
    }
}

/// A target's part in a step, and what it came to so far.
pub(super) struct Participant<D> {
    pub(super) place: ChunkPlace<D>,
    pub(super) role: Role,
    pub(super) data: Gather,
    pub(super) last: Final,
    /// The op whose difference it keeps.
    pub(super) keeps: Option<Kept>,
}

/// An op at a target, by what the target knows it by.
#[derive(Clone, Copy)]
pub(super) struct Kept {
    pub(super) stamp: Stamp,
    pub(super) key: u64,
}

impl<D: Device> Participant<D> {
    pub(super) fn peer(&self) -> &dyn PeerMember {
        self.place.member.device.peer().expect("it was asked when the step was prepared")
    }

    /// What is ordered from now on is for the attach that its target has now.
    pub(super) fn look_again(&mut self) {
        if let Some(place) = self.peer().place() {
            self.place.key = place.key;
        }
    }

    pub(super) fn writes(&self) -> bool {
        self.part() == Part::Contribute { writes: true }
    }

    pub(super) fn part(&self) -> Part {
        match &self.role {
            Role::Contribute { own, .. } => Part::Contribute { writes: !own.is_empty() },
            Role::Reduce { .. } => Part::Reduce,
        }
    }
}

/// What the targets do in some rows.
pub(super) struct Prepared<D> {
    pub(super) rows: Rows,
    pub(super) base: Base,
    pub(super) participants: SmallVec<[Participant<D>; 4]>,
    /// Writes were left out, since their members failed or cannot read what is to be replaced: they are made when the others are.
    pub(super) is_partial: bool,
}

impl<D> Prepared<D> {
    /// What the step takes of each participant's memory.
    pub(super) fn costs(&self) -> Costs {
        self.participants.iter().map(|one| (one.place.index, bytes_of(&one.role))).collect()
    }

    /// Whether every contributor's target reaches those that want its part.
    pub(super) fn is_connected(&self, attach: &Attach) -> bool {
        let reaches = |one: &Participant<D>| match &one.role {
            Role::Contribute { to, .. } => to.iter().all(|to| attach.reaches(one.place.index, to.peer)),
            Role::Reduce { .. } => true,
        };
        self.participants.iter().all(reaches)
    }
}

/// What a data chunk is multiplied by in a parity chunk.
pub(super) fn coefficient<D: Device>(owned: Owned<'_, D>, chunk: Chunk, parity: Chunk) -> u8 {
    if parity == P { 1 } else { factor(owned, chunk) }
}

/// What a data chunk is multiplied by in Q.
pub(super) fn factor<D: Device>(owned: Owned<'_, D>, chunk: Chunk) -> u8 {
    parity::coefficient(owned.geometry().syndrome_index(owned.stripe(), u32::from(chunk)) as usize)
}
