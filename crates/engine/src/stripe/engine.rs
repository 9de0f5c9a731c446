//! The parity engine of one shard, and the proof of ownership that its functions take.
//!
//! Invariant 4 is an argument: a function that only a stripe's owner may call takes an [`Owned`], and an [`Owned`] is made
//! of a [`Claim`] and of nothing else.

use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use smallvec::SmallVec;

use super::in_flight::InFlight;
use super::redo::log::RedoLog;
use super::shared::Shared;
use super::stripe_table::Claim;
use crate::buffer::{Gather, Pool};
use crate::code::chunk_set::{Chunk, ChunkSet, P, Q, data_chunk};
use crate::code::plan::Shape;
use crate::code::rows::{Fragment, Rows};
use crate::device::Device;
use crate::error::VolumeError;
use crate::events::Event;
use crate::executor::Executor;
use crate::members::port::{MemberPort, MemberRead, MemberWrite};
use crate::stages::Stopwatch;
use layout::geometry::{Geometry, Role};
use layout::units::{MemberOffset, Slot, Stripe};

/// RAID-4, 5 and 6 on one shard.
pub(crate) struct ParityEngine<D> {
    pub(crate) shared: Arc<Shared>,
    pub(super) port: Rc<MemberPort<D>>,
    pub(super) shard: usize,
    /// Where this shard's tasks run.
    pub(super) executor: Executor,
    /// This shard's stripe writes.
    pub(super) in_flight: Rc<InFlight>,
    pub(crate) redo: Rc<RedoLog<D>>,
}

impl<D: Device> ParityEngine<D> {
    pub(crate) fn new(
        shared: &Arc<Shared>,
        port: &Rc<MemberPort<D>>,
        shard: usize,
        executor: Executor,
        redo: &Rc<RedoLog<D>>,
    ) -> Rc<Self> {
        let in_flight = Rc::clone(&redo.in_flight);
        let (shared, port, redo) = (Arc::clone(shared), Rc::clone(port), Rc::clone(redo));
        Rc::new(ParityEngine { shared, port, shard, executor, in_flight, redo })
    }

    /// A stripe whose owner holds `claim`.
    pub(super) fn owned<'a>(&'a self, claim: &'a Claim) -> Owned<'a, D> {
        Owned { engine: self, claim }
    }

    /// Becomes the owner of a stripe once earlier owners have released it. No write joins.
    pub(super) async fn claim(&self, stripe: Stripe) -> Claim {
        self.shared.table.claim(stripe, self.shard).await
    }

    /// As [`Self::claim`], in its turn: for work that passes over the whole array.
    pub(super) async fn claim_in_turn(&self, stripe: Stripe) -> Claim {
        self.shared.table.claim_in_turn(stripe, self.shard).await
    }

    /// As [`Self::claim_in_turn`] for adjacent stripes: the first, and those after it that are free.
    pub(super) async fn claim_run_in_turn(&self, run: Range<Stripe>) -> SmallVec<[Claim; 2]> {
        self.shared.table.claim_run_in_turn(run, self.shard).await
    }

    /// A write of an observed array begins: whether it is one of those that are measured.
    pub(crate) fn is_measured(&self) -> bool {
        self.shared.observer.get().is_some_and(|observer| observer.wants(self.shard))
    }

    /// Begins to measure a write of an observed array.
    pub(super) fn stopwatch(&self) -> Stopwatch<'_> {
        let observer = self.shared.observer.get().expect("the array is observed");
        Stopwatch::begin(&**observer, self.shard)
    }

    pub(super) fn two_phase(&self) -> bool {
        self.shared.two_phase.load(Relaxed)
    }

    /// Whether members' targets may make parity among themselves.
    #[inline]
    pub(super) fn by_peers(&self) -> bool {
        self.shared.peers.by_peers()
    }

    /// The member read that fetches a fragment.
    pub(super) fn read_of(&self, stripe: Stripe, fragment: &Fragment) -> MemberRead {
        MemberRead {
            slot: self.shared.slot_of(stripe, fragment.chunk),
            offset: self.shared.geometry.member_offset(stripe) + u64::from(fragment.rows.start),
            bytes: fragment.rows.bytes(),
        }
    }
}

impl Shared {
    /// How many chunks a stripe has.
    pub(super) fn shape(&self) -> Shape {
        Shape { data: self.geometry.data_chunks(), parity: self.geometry.parity_chunks() }
    }

    /// Chunks of a stripe that can be neither read nor written now.
    pub(super) fn missing(&self, stripe: Stripe) -> ChunkSet {
        if self.members.all_in_sync() {
            return ChunkSet::EMPTY;
        }
        let end = self.geometry.member_offset(stripe) + u64::from(self.geometry.chunk_bytes());
        let out = self.geometry.slots().filter(|&slot| !self.members.in_sync_to(slot, end));
        out.map(|slot| self.chunk_on(stripe, slot)).collect()
    }

    /// The chunk of a stripe that the member in a slot holds.
    pub(super) fn chunk_on(&self, stripe: Stripe, slot: Slot) -> Chunk {
        match self.geometry.role(stripe, slot) {
            Role::Data(index) => data_chunk(index),
            Role::P => P,
            Role::Q => Q,
        }
    }

    /// The slot of the member that holds a chunk of a stripe.
    pub(super) fn slot_of(&self, stripe: Stripe, chunk: Chunk) -> Slot {
        match chunk {
            P => self.geometry.p_member(stripe).expect("a level with P"),
            Q => self.geometry.q_member(stripe).expect("a level with Q"),
            data => self.geometry.data_member(stripe, u32::from(data)),
        }
    }

    /// Marks a stripe whose write failed half way: nothing builds on its parity before a task makes it agree (invariant 9).
    pub(super) fn suspect(&self, stripe: Stripe, reason: &str) {
        self.cache.forget(stripe);
        if self.consistency.suspect(stripe) {
            self.members.report(Event::StripeSuspect { stripe, reason: reason.to_string() });
        }
        // `write_logged` put the stripe in doubt when the write failed; a resync that ended since then cleared all doubts.
        if self.redo.is_announced() {
            self.consistency.doubt_stripe(stripe);
        }
    }
}

/// A stripe, and the proof that the caller owns it.
pub(super) struct Owned<'a, D> {
    engine: &'a ParityEngine<D>,
    claim: &'a Claim,
}

impl<D> Clone for Owned<'_, D> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<D> Copy for Owned<'_, D> {}

impl<'a, D: Device> Owned<'a, D> {
    pub(super) fn engine(self) -> &'a ParityEngine<D> {
        self.engine
    }

    pub(super) fn stripe(self) -> Stripe {
        self.claim.stripe()
    }

    /// The claim: the writes that joined the owner's, and whether the batch is open.
    pub(super) fn claim(self) -> &'a Claim {
        self.claim
    }

    pub(super) fn shared(self) -> &'a Shared {
        &self.engine.shared
    }

    pub(super) fn geometry(self) -> &'a Geometry {
        &self.engine.shared.geometry
    }

    pub(super) fn port(self) -> &'a MemberPort<D> {
        &self.engine.port
    }

    pub(super) fn pool(self) -> &'a Arc<Pool> {
        &self.engine.port.pool
    }

    pub(super) fn redo(self) -> &'a RedoLog<D> {
        &self.engine.redo
    }

    pub(super) fn shape(self) -> Shape {
        self.engine.shared.shape()
    }

    /// Chunks that can be neither read nor written now.
    pub(super) fn missing(self) -> ChunkSet {
        self.engine.shared.missing(self.stripe())
    }

    /// Every data chunk.
    pub(super) fn data(self) -> ChunkSet {
        ChunkSet::first(self.geometry().data_chunks())
    }

    /// Data chunks that cannot be read now.
    pub(super) fn lost(self) -> ChunkSet {
        self.missing().and(self.data())
    }

    /// P, and in RAID-6 Q.
    pub(super) fn parity_chunks(self) -> impl Iterator<Item = Chunk> {
        [P, Q].into_iter().take(self.geometry().parity_chunks() as usize)
    }

    pub(super) fn slot_of(self, chunk: Chunk) -> Slot {
        self.engine.shared.slot_of(self.stripe(), chunk)
    }

    pub(super) fn chunk_on(self, slot: Slot) -> Chunk {
        self.engine.shared.chunk_on(self.stripe(), slot)
    }

    /// Where the stripe's chunks begin in the members' data area.
    pub(super) fn offset(self) -> MemberOffset {
        self.geometry().member_offset(self.stripe())
    }

    /// Where a fragment lies in its member's data area.
    pub(super) fn bytes_of(self, fragment: &Fragment) -> Range<MemberOffset> {
        let Rows { start, end } = fragment.rows;
        self.offset() + u64::from(start)..self.offset() + u64::from(end)
    }

    pub(super) fn read_of(self, fragment: &Fragment) -> MemberRead {
        self.engine.read_of(self.stripe(), fragment)
    }

    /// The write of a chunk's rows from `start` on at its member.
    pub(super) fn write_of(self, chunk: Chunk, start: u32, data: impl Into<Gather>) -> MemberWrite {
        MemberWrite { slot: self.slot_of(chunk), offset: self.offset() + u64::from(start), data: data.into() }
    }

    pub(super) fn all_rows(self) -> Rows {
        Rows::all(self.geometry())
    }

    /// Invariant 5: the owner is about to make the stripe's cached parity stale.
    pub(super) fn forget_parity(self) {
        self.shared().cache.forget(self.stripe());
    }

    pub(super) fn is_suspect(self) -> bool {
        self.shared().consistency.is_suspect(self.stripe())
    }

    pub(super) fn is_in_doubt(self) -> bool {
        self.shared().consistency.is_in_doubt(self.stripe())
    }

    /// Why the stripe's missing chunks must not be reconstructed, if so (invariant 10).
    pub(super) fn unrecoverable(self) -> Option<VolumeError> {
        self.shared().consistency.unrecoverable(self.stripe())
    }

    pub(super) fn suspect(self, reason: &str) {
        self.shared().suspect(self.stripe(), reason);
    }

    /// Mending has failed: the reason is reported, also where the stripe was suspect before.
    pub(super) fn stays_suspect(self, reason: &str) {
        if self.is_suspect() {
            let (stripe, reason) = (self.stripe(), reason.to_string());
            self.shared().members.report(Event::StripeSuspect { stripe, reason });
        }
        self.suspect(reason);
    }

    /// The stripe's parity agrees with its data from now on.
    pub(super) fn trust(self) {
        self.shared().consistency.trust(self.stripe());
    }

    pub(super) fn doubt(self) {
        self.shared().consistency.doubt_stripe(self.stripe());
    }

    /// The error where more chunks are missing than parity makes up for.
    pub(super) fn too_many_missing(self, missing: ChunkSet) -> VolumeError {
        too_many_missing(self.stripe(), missing)
    }
}

pub(super) fn too_many_missing(stripe: Stripe, missing: ChunkSet) -> VolumeError {
    VolumeError::Io {
        reason: format!("stripe {stripe}: chunks {missing:?} are missing, more than parity makes up for"),
    }
}
