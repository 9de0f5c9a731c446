//! The steps from an array's memory to an array at work.

use std::rc::Rc;
use std::sync::Arc;

use super::assembled::Assembled;
use crate::array::absences::{note_replayed, sectors_in_doubt};
use crate::array::bitmap::Bitmaps;
use crate::array::ledgers::make_agree;
use crate::array::manager::Manager;
use crate::array::platform::Platform;
use crate::array::redo::{Repair, replay, take_doubts};
use crate::array::running::Running;
use crate::array::scrub::ScrubState;
use crate::array::superblock_writer::SuperblockWriter;
use crate::array::superblocks::Spare;
use crate::device::Device;
use crate::error::VolumeError;
use crate::events::EventSink;
use crate::in_place::InPlace;
use crate::members::MemberState;
use crate::members::load::Clock;
use crate::stripe::Shared;

/// The shared memory of an array that is about to start. Every shard gets its view of it before [`super::start`].
pub struct Prepared {
    pub(super) shared: Arc<Shared>,
    pub(super) assembled: Assembled,
}

/// The members hold what the redo log asked for.
pub(super) struct Replayed<D> {
    set: Rc<InPlace<D>>,
    assembled: Assembled,
}

/// The array's metadata has its writers, which have not begun.
pub(super) struct Kept<D> {
    set: Rc<InPlace<D>>,
    writer: Rc<SuperblockWriter<D>>,
    assembled: Assembled,
}

impl Prepared {
    /// Makes the memory that the array's shards share. Events go to `events`.
    pub fn new(assembled: Assembled, events: EventSink, clock: Arc<dyn Clock>) -> Self {
        Prepared { shared: assembled.shared(events, clock), assembled }
    }

    /// What all shards share.
    pub fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// The same, for what no policy says. Before a shard has it.
    ///
    /// # Panics
    /// If a shard has it.
    pub fn shared_mut(&mut self) -> &mut Shared {
        Arc::get_mut(&mut self.shared).expect("no shard has it yet")
    }

    /// What the redo log asks for.
    pub fn repair(&self) -> &Repair {
        &self.assembled.redo.repair
    }

    pub(super) async fn replay<D: Device>(self, set: Rc<InPlace<D>>) -> Result<Replayed<D>, VolumeError> {
        let Prepared { shared, mut assembled } = self;
        assert!(Arc::ptr_eq(&set.shared, &shared), "a shard's view of this array");
        let repair = &assembled.redo.repair;
        assert!(!assembled.policy.read_only || repair.records.is_empty(), "a read-only start writes nothing");
        replay(&set, repair).await?;
        take_doubts(&set, repair);
        if let Some(under_way) = assembled.under_way.take()
            && make_agree(&set, &under_way).await
        {
            assembled.redo.resync_from_bytes = None;
            shared.intent.resynced_all();
        }
        let repair = &assembled.redo.repair;
        // Their recovery does not wait for the first superblocks, and asks what a member that came back holds of stripes in doubt.
        for slot in
            shared.geometry.slots().filter(|slot| shared.members.state(*slot) == MemberState::Recovering)
        {
            if let Some(superblock) = &assembled.superblocks[slot.index()] {
                shared.absences.returns(slot, superblock.device_uuid(), || sectors_in_doubt(&shared));
            }
        }
        if !repair.records.is_empty() {
            note_replayed(&shared.absences, repair, &shared.geometry, &shared.members);
            let _announcing = shared.redo.announce().await;
            set.write_absences().await; // void or not: the first superblocks say so
        }
        Ok(Replayed { set, assembled })
    }
}

impl<D: Device> Replayed<D> {
    /// Makes the superblock writer, which knows the spares; the redo log is kept, or the old one is void.
    pub(super) fn keep<P: Platform<D>>(
        self,
        platform: &Rc<P>,
        device: &impl Fn(usize) -> Option<Rc<D>>,
    ) -> Kept<D> {
        let Replayed { set, assembled } = self;
        let (superblocks, redo) = (assembled.superblocks.clone(), &assembled.redo);
        let clock = Rc::clone(platform);
        let now_s = Box::new(move || clock.now_unix_s());
        let writer = SuperblockWriter::new(
            Rc::clone(&set),
            superblocks,
            assembled.events,
            redo.resync_from_bytes,
            now_s,
        );
        let drawing = Rc::clone(platform);
        let new_id = Box::new(move || drawing.new_id());
        writer.superblocks().keep_generations(&assembled.generations, new_id);
        if assembled.keeps_redo_log {
            set.shared.redo.set_contents(assembled.policy.redo_log.unwrap_or_default());
            writer.keep_redo_log(&redo.repair, &redo.bitmaps);
        } else if redo.repair.in_force && !assembled.policy.read_only {
            // No new header makes it old: without other superblocks its writes would be made again, over later ones.
            writer.void_redo_log();
        }
        if assembled.policy.force && !assembled.policy.read_only {
            // What force chose is on the members, though nothing may ever be written: the next start goes on from it (invariant 8).
            set.shared.members.want_metadata();
        }
        for (candidate, superblock) in &assembled.spares {
            if let Some(device) = device(*candidate) {
                writer
                    .superblocks()
                    .spares()
                    .borrow_mut()
                    .push(Spare { superblock: superblock.clone(), device });
            }
        }
        if let Some(start) = &assembled.bitmap {
            let (image, superblocks) = (start.image.clone(), &assembled.superblocks);
            writer.keep_bitmap(Bitmaps::new(Rc::clone(&set), image, superblocks, &start.whole));
        }
        Kept { set, writer, assembled }
    }
}

impl<D: Device> Kept<D> {
    /// The tasks that look after the array begin.
    pub(super) fn run<P: Platform<D>>(
        self,
        platform: Rc<P>,
        device: &impl Fn(usize) -> Option<Rc<D>>,
        scrub: Option<ScrubState>,
    ) -> Running<D, P> {
        let Kept { set, writer, assembled } = self;
        let read_only = assembled.policy.read_only;
        let manager = Manager::new(Rc::clone(&set), Rc::clone(&writer), platform, scrub, read_only);
        for (slot, candidate, superblock) in assembled.replacements {
            if let Some(device) = device(candidate) {
                manager.replacements().resume_later(slot, device, superblock);
            }
        }
        Running::begin(&set, &writer, manager)
    }
}
