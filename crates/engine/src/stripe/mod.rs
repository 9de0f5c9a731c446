//! In-place RAID after StRAID: one task does one stripe write from the claim to the release, on the core where it
//! arrived (S1). [`write`](mod@write) tells the story; the other files are its parts in the order of use.

mod avoid;
pub mod check;
mod check_copies;
mod chunk_set;
mod copy;
pub mod cost;
pub mod doubts;
#[cfg(test)]
pub(crate) mod fake;
mod gather;
#[cfg(test)]
mod half_written_tests;
mod image;
pub mod intent;
pub mod load;
mod locate;
pub mod locks;
mod lost;
#[cfg(test)]
mod lost_tests;
mod member_io;
pub(crate) mod mirror;
pub mod parity_cache;
mod parity_step;
pub mod plan;
mod read;
mod read_into;
mod recover;
pub mod redo;
pub mod resync;
mod run;
mod salvage;
mod salvage_copies;
#[cfg(test)]
mod salvage_tests;
pub(crate) mod seats;
mod small;
pub mod streams;
pub mod stripe_table;
mod striped;
mod union;
#[cfg(test)]
mod unsynced_tests;
mod whole;
mod write;
mod zero;

pub use chunk_set::{Chunk, ChunkSet, P, Q};

use parking_lot::Mutex;
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed, Ordering::SeqCst};
use std::sync::{Arc, OnceLock};

use crate::buffer::{Gather, Pool, Slice};
use crate::counters::Counters;
use crate::device::Device;
use crate::events::Event;
use crate::executor::Executor;
use crate::foreground::Foreground;
use crate::members::Members;
use crate::stages::{Observer, Watch};
use crate::volume::VolumeError;
use gather::InFlight;
use intent::Intent;
use layout::geometry::{Geometry, Level, Role};
use load::Loads;
use parity_cache::ParityCache;
use plan::Shape;
use seats::Seat;
use stripe_table::StripeTable;

/// What all shards of an in-place array share.
pub struct Shared {
    /// Where every byte lives.
    pub geometry: Geometry,
    /// Who works on which stripe.
    pub table: Arc<StripeTable>,
    /// Parity in memory.
    pub cache: ParityCache,
    /// The members' health.
    pub members: Members,
    /// What is durable before a stripe changes.
    pub intent: Intent,
    /// What was done, by shard.
    pub counters: Box<[Counters]>,
    /// Wait for writes that have already arrived, and let more join while old data is read (StRAID 4.3).
    pub two_phase: AtomicBool,
    /// Reads of copies change to the next one after so many bytes of a member.
    pub read_turn_bytes: u64,
    /// How busy the members are, and what is done about it.
    pub loads: Loads,
    /// Who wants to know where the time goes; set before the first write, or never.
    pub observer: OnceLock<Arc<dyn Observer>>,
    /// How long clients' requests take.
    pub foreground: Foreground,
    /// Nothing is written on the members, not even what would repair them.
    read_only: AtomicBool,
    /// Stripes whose parity may not agree with their data, because a write failed half way.
    suspects: Mutex<BTreeSet<u64>>,
    suspect_count: AtomicUsize,
    /// A member that the array needs failed to flush: what it holds is in doubt, whatever later flushes say.
    flush_failed: AtomicBool,
    /// Stripes whose missing chunks may be wrong.
    pub doubts: doubts::Doubts,
    /// What is durable before a stripe changes while members are missing.
    pub redo: redo::Redo,
}

impl Shared {
    /// The shared part of an array for `shards` shards.
    pub fn new(
        geometry: Geometry,
        members: Members,
        intent: Intent,
        shards: usize,
        cache_bytes: usize,
    ) -> Arc<Self> {
        Arc::new(Shared {
            doubts: doubts::Doubts::default(),
            redo: redo::Redo::new(geometry.members()),
            geometry,
            table: StripeTable::new(intent.locks()),
            cache: ParityCache::new(cache_bytes),
            members,
            intent,
            counters: (0..shards).map(|_| Counters::default()).collect(),
            two_phase: AtomicBool::new(true),
            read_turn_bytes: mirror::READ_TURN_BYTES,
            loads: Loads::new(shards, geometry.members()),
            observer: OnceLock::new(),
            foreground: Foreground::default(),
            read_only: AtomicBool::new(false),
            suspects: Mutex::new(BTreeSet::new()),
            suspect_count: AtomicUsize::new(0),
            flush_failed: AtomicBool::new(false),
        })
    }

    /// From now on nothing is written on the members. For the time before the first request.
    pub fn set_read_only(&self) {
        self.read_only.store(true, Relaxed);
    }

    pub(crate) fn may_write(&self) -> bool {
        !self.read_only.load(Relaxed)
    }

    fn shape(&self) -> Shape {
        Shape { data: self.geometry.data_chunks(), parity: self.geometry.parity_chunks() }
    }

    /// Chunks of a stripe that can be neither read nor written now.
    fn missing(&self, stripe: u64) -> ChunkSet {
        if self.members.all_in_sync() {
            return ChunkSet::EMPTY;
        }
        let end = self.geometry.member_offset(stripe) + u64::from(self.geometry.chunk_bytes());
        let out = (0..self.geometry.members()).filter(|&slot| !self.members.in_sync_to(slot, end));
        out.map(|slot| self.chunk_on(stripe, slot)).collect()
    }

    fn chunk_on(&self, stripe: u64, slot: u32) -> Chunk {
        match self.geometry.role(stripe, slot) {
            Role::Data(index) => data_chunk(index),
            Role::P => P,
            Role::Q => Q,
        }
    }

    fn member_of(&self, stripe: u64, chunk: Chunk) -> u32 {
        match chunk {
            P => self.geometry.p_member(stripe).expect("a level with P"),
            Q => self.geometry.q_member(stripe).expect("a level with Q"),
            data => self.geometry.data_member(stripe, u32::from(data)),
        }
    }

    /// From here on nobody builds on the parity of this stripe before it was made to agree (invariant 9).
    fn suspect(&self, stripe: u64, reason: &str) {
        self.cache.forget(stripe);
        let mut suspects = self.suspects.lock();
        if suspects.insert(stripe) {
            self.members.report(Event::StripeSuspect { stripe, reason: reason.to_string() });
        }
        self.suspect_count.store(suspects.len(), SeqCst);
        drop(suspects);
        // Once more: a resync that ended meanwhile has called everything good.
        if self.redo.is_announced() {
            self.doubt(stripe);
        }
    }

    fn is_suspect(&self, stripe: u64) -> bool {
        self.suspect_count.load(SeqCst) > 0 && self.suspects.lock().contains(&stripe)
    }

    fn trust(&self, stripe: u64) {
        let mut suspects = self.suspects.lock();
        suspects.remove(&stripe);
        self.suspect_count.store(suspects.len(), SeqCst);
        drop(suspects);
        self.doubts.remove(stripe);
    }

    /// From here on missing chunks of this stripe are not reconstructed, in a later run neither.
    fn doubt(&self, stripe: u64) {
        self.doubts.add(layout::redo_log::StripeRange { first: stripe, end: stripe + 1 });
    }

    /// Ascending.
    pub(crate) fn suspect_stripes(&self) -> Vec<u64> {
        self.suspects.lock().iter().copied().collect()
    }

    /// Why what is missing of this stripe cannot be recovered, if so (invariant 10).
    fn unrecoverable(&self, stripe: u64) -> Option<VolumeError> {
        let reason = if self.is_suspect(stripe) {
            "its last write failed half way, so lost data cannot be recovered"
        } else if self.doubts.contains(stripe) {
            "it is in doubt: a crash may have left parity that does not agree with its data, so lost data cannot be \
             recovered"
        } else {
            return None;
        };
        Some(VolumeError::Io { reason: format!("stripe {stripe}: {reason}") })
    }

    /// Whether superblocks may ever say clean again in this run.
    pub fn may_be_clean(&self) -> bool {
        !self.flush_failed.load(SeqCst)
    }

    /// Stripes whose parity has to be made to agree before the array may be called clean.
    pub fn suspects(&self) -> usize {
        self.suspect_count.load(SeqCst)
    }
}

fn data_chunk(index: u32) -> Chunk {
    let chunk = Chunk::try_from(index).expect("at most 254 data chunks");
    assert!(chunk < P, "at most 254 data chunks");
    chunk
}

/// A member as one shard reaches it.
pub struct Attached<D> {
    /// The way to the device.
    pub device: D,
    /// Where the data area starts, in bytes.
    pub data_offset_bytes: u64,
}

/// One shard's view of an in-place array.
pub struct StripeSet<D> {
    /// What all shards share.
    pub shared: Arc<Shared>,
    /// Which shard this is.
    pub shard: usize,
    /// Memory of this shard.
    pub pool: Arc<Pool>,
    /// Where this shard's tasks run.
    pub executor: Executor,
    seats: RefCell<Vec<Seat<D>>>,
    /// Seats with a replacement.
    replacements: Cell<usize>,
    zeroes: Slice,
    /// This shard's stripe writes.
    in_flight: InFlight,
    redo_queue: redo::Queue,
}

/// Zeroes are written from one buffer of this size, again and again.
const ZEROES_BYTES: usize = 1 << 20;

thread_local! {
    /// One for all arrays of a shard's thread: making it costs more than all else of a small array's start.
    static ZEROES: Slice = crate::buffer::Buffer::new(ZEROES_BYTES).freeze();
}

impl<D: Device> StripeSet<D> {
    /// The view of shard `shard`; `members` in slot order.
    pub fn new(
        shared: Arc<Shared>,
        shard: usize,
        pool: Arc<Pool>,
        executor: Executor,
        members: Vec<Option<Attached<D>>>,
    ) -> Rc<Self> {
        assert_eq!(members.len(), shared.geometry.members() as usize, "a place for every slot");
        let seats = RefCell::new(members.into_iter().map(Seat::of).collect());
        let zeroes = ZEROES.with(Slice::clone);
        let (in_flight, redo_queue) = (InFlight::default(), redo::Queue::default());
        let replacements = Cell::new(0);
        Rc::new(StripeSet {
            shared,
            shard,
            pool,
            executor,
            seats,
            replacements,
            zeroes,
            in_flight,
            redo_queue,
        })
    }

    fn counters(&self) -> &Counters {
        &self.shared.counters[self.shard]
    }

    fn watch(&self) -> Watch<'_> {
        Watch::begin(self.shared.observer.get().map(AsRef::as_ref), self.shard)
    }

    fn two_phase(&self) -> bool {
        self.shared.two_phase.load(Relaxed)
    }
}

impl<D: Device> StripeSet<D> {
    /// Whether a write may be acknowledged: what it relies on is on disk (invariants 8 and 10).
    async fn settle(&self) -> Result<(), VolumeError> {
        if !self.shared.members.is_settled() {
            self.shared.members.settled().await?;
        }
        if self.shared.doubts.untold().is_some() { self.tell_doubts().await } else { Ok(()) }
    }

    /// Reads a range that lies inside the array.
    pub(crate) async fn read_range(&self, offset_bytes: u64, bytes: u64) -> Result<Gather, VolumeError> {
        match self.shared.geometry.level() {
            Level::Raid0 => self.read_striped(offset_bytes, bytes).await,
            Level::Raid1 | Level::Raid10 => self.read_copies(offset_bytes, bytes).await,
            Level::Raid4 | Level::Raid5 | Level::Raid6 => self.read_stripes(offset_bytes, bytes).await,
        }
    }

    /// Writes a range that lies inside the array.
    pub(crate) async fn write_range(
        self: &Rc<Self>,
        offset_bytes: u64,
        data: Gather,
        fua: bool,
    ) -> Result<(), VolumeError> {
        match self.shared.geometry.level() {
            Level::Raid0 => self.write_striped(offset_bytes, data, fua).await,
            Level::Raid1 | Level::Raid10 => self.write_copies(offset_bytes, data, fua).await,
            Level::Raid4 | Level::Raid5 | Level::Raid6 => self.write_stripes(offset_bytes, data, fua).await,
        }
    }
}
