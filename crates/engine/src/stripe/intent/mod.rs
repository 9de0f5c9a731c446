//! Intents: what is durable before a stripe may become inconsistent on the members (invariant 2).
//!
//! Two of md's policies are here. With `resync` there is one flag for the whole array: before the first write the
//! superblocks say that the array is dirty; after a quiet time without writes they say clean. With `bitmap` there is a
//! bit for each chunk of the bitmap besides, and only chunks whose bits are set are resynced after a crash. The journal
//! and PPL are other ways to make [`Intent::mark`] true.
//!
//! A write that finds what it needs durable pays, with `resync`, one counter of its own shard, with `bitmap` one word
//! of the chunk that it writes to ([`bits`]), and two loads of a word that hardly ever changes, the *gate*: what the
//! superblocks say, and the shape of the bitmap. Whoever wants to change either closes the gate first, then waits until
//! no write is counted anywhere; a write counts itself first and then looks at the gate. So writes never wait for each
//! other, and only a change waits for writes (C3). The other two systems of ScalaRAID's comparison, with one lock over the
//! words ([`Locks`]), keep the same promise.

pub mod bits;
mod flush;
#[cfg(all(test, feature = "model"))]
mod model;
mod pages;
#[cfg(test)]
mod tests;
mod words;

use crossbeam::utils::CachePadded;
use std::ops::Range;
use std::task::{Poll, Waker};

use layout::md_bitmap::Mapping;

use crate::members::{Members, MetadataLost};
use crate::stages::Watch;
use crate::stripe::locks::Locks;
use crate::sync::sequential::Mutex;
use crate::sync::sequential::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use bits::Bits;
use words::{ENTER, WRITE};

pub(crate) use bits::Marked;

/// The superblocks say clean; a write has to wait.
const CLEAN: u8 = 0;
/// A write waits for the superblocks to say dirty.
const WANTED: u8 = 1;
/// The superblocks say dirty; writes go ahead.
const DIRTY: u8 = 2;
/// The keeper is about to write clean; a write has to wait.
const CLOSING: u8 = 3;
/// The array has no use for intents (RAID-0, or the policy `none`): writes go ahead.
const UNUSED: u8 = 4;
/// The superblocks cannot be written.
const LOST: u8 = 5;

/// The intents of one array, shared by all shards.
pub struct Intent {
    gate: AtomicU64,
    /// Superblocks have said dirty.
    opened: AtomicBool,
    marks: Marks,
    locks: Locks,
    waiting: Mutex<Vec<Waker>>,
}

/// Where writes count themselves.
enum Marks {
    /// For the whole array, by shard.
    Whole(Box<[CachePadded<AtomicU64>]>),
    /// By chunk of the bitmap.
    Bitmap(Box<Bits>),
}

/// What the gate's word says: bits 63..16 generation of the shape | 15..8 log2 of the mapping's unit | 7..0 state.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Gate(u64);

impl Gate {
    fn new(state: u8, shift: u8) -> Self {
        Gate(u64::from(shift) << 8 | u64::from(state))
    }

    fn state(self) -> u8 {
        self.0 as u8
    }

    fn with_state(self, state: u8) -> Self {
        Gate(self.0 & !0xff | u64::from(state))
    }

    fn shift(self) -> u32 {
        u32::from((self.0 >> 8) as u8)
    }

    /// The units of the bitmap's mapping that a range of bytes touches: with md's they are its chunks.
    fn units(self, range: &Range<u64>) -> Range<u64> {
        range.start >> self.shift()..((range.end.max(range.start + 1) - 1) >> self.shift()) + 1
    }
}

/// Why a write does not go ahead at once.
enum NotYet {
    Wait,
    Lost,
}

impl Intent {
    /// Intents of an array written by `shards` shards, by the policy `resync`. `dirty`: the superblocks say so
    /// already. Not `used`: the policy is `none`, or the level has nothing to disagree.
    pub fn new(shards: usize, used: bool, dirty: bool) -> Self {
        let state = match (used, dirty) {
            (false, _) => UNUSED,
            (true, true) => DIRTY,
            (true, false) => CLEAN,
        };
        let writing = (0..shards).map(|_| CachePadded::new(AtomicU64::new(0))).collect();
        Intent::with(Gate::new(state, 0), Marks::Whole(writing), Locks::Scala)
    }

    /// Intents by the policy `bitmap`, with no bit set yet: see [`Intent::load_bits`]. `mapping` says which bit stands for
    /// what; `locks` are over the counters, and over the stripes of the array.
    pub fn with_bitmap(mapping: Mapping, dirty: bool, locks: Locks) -> Self {
        let state = if dirty { DIRTY } else { CLEAN };
        let gate = Gate::new(state, mapping.unit_shift() as u8);
        Intent::with(gate, Marks::Bitmap(Box::new(Bits::new(mapping, locks))), locks)
    }

    fn with(gate: Gate, marks: Marks, locks: Locks) -> Self {
        let opened = AtomicBool::new(gate.state() == DIRTY);
        Intent { gate: AtomicU64::new(gate.0), opened, marks, locks, waiting: Mutex::new(Vec::new()) }
    }

    /// Which locks writes take.
    pub fn locks(&self) -> Locks {
        self.locks
    }

    /// Returns once the intent of a write is durable. `range` is what it writes in bytes of the members' data area, at
    /// RAID-10 of the array: what the bits of a bitmap stand for.
    pub(crate) async fn mark(
        &self,
        watch: &Watch<'_>,
        members: &Members,
        range: Range<u64>,
    ) -> Result<Marked<'_>, MetadataLost> {
        loop {
            match self.try_mark(watch, &range) {
                Ok(marked) => return Ok(marked),
                Err(NotYet::Lost) => return Err(MetadataLost),
                Err(NotYet::Wait) => self.wait_for_mark(members, &range).await,
            }
        }
    }

    #[inline]
    fn try_mark(&self, watch: &Watch<'_>, range: &Range<u64>) -> Result<Marked<'_>, NotYet> {
        let gate = self.gate();
        match &self.marks {
            Marks::Whole(writing) => {
                let word = &*writing[watch.shard()];
                // Counted before the look at the gate; who closes it looks at the counters afterwards.
                word.fetch_add(ENTER, SeqCst);
                self.passed(self.gate(), Marked { word: Some(word), more: None })
            }
            Marks::Bitmap(bits) => {
                let (ready, marked) = bits.enter(watch, gate.units(range));
                // The gate as it was before the chunk was taken: the bitmap still has the same shape.
                let now = self.gate();
                if !ready || now.with_state(0) != gate.with_state(0) {
                    return Err(if now.state() == LOST { NotYet::Lost } else { NotYet::Wait });
                }
                self.passed(now, marked)
            }
        }
    }

    #[inline]
    fn passed<'a>(&self, gate: Gate, marked: Marked<'a>) -> Result<Marked<'a>, NotYet> {
        match gate.state() {
            DIRTY | UNUSED => Ok(marked),
            LOST => Err(NotYet::Lost),
            _ => Err(NotYet::Wait),
        }
    }

    #[cold]
    async fn wait_for_mark(&self, members: &Members, range: &Range<u64>) {
        let mut waited = false;
        std::future::poll_fn(|context| {
            if std::mem::replace(&mut waited, true) {
                return Poll::Ready(());
            }
            let mut waiting = self.waiting.lock();
            let wanted = self.change(CLEAN, WANTED);
            let has_bits = match &self.marks {
                Marks::Whole(_) => true,
                Marks::Bitmap(bits) => bits.want(self.gate().units(range)),
            };
            if (has_bits && self.state() == DIRTY) || self.state() == LOST {
                return Poll::Ready(());
            }
            waiting.push(context.waker().clone());
            drop(waiting);
            if wanted {
                members.want_metadata();
            }
            Poll::Pending
        })
        .await;
    }

    /// Whether anything is written down before a stripe changes: not with the policy `none`.
    pub fn is_used(&self) -> bool {
        self.state() != UNUSED
    }

    /// Whether the superblocks have to say dirty. They do when intents cannot be kept any more, too: what was written before
    /// need not be durable (invariant 2).
    pub fn wants_dirty(&self) -> bool {
        matches!(self.state(), WANTED | DIRTY | LOST)
    }

    /// Whether every write waits until the superblocks say dirty.
    pub fn is_opening(&self) -> bool {
        self.state() == WANTED
    }

    /// Whether the superblocks say dirty, so that a quiet array may be closed.
    pub fn is_open(&self) -> bool {
        self.state() == DIRTY
    }

    /// Whether superblocks have ever said dirty in this run. If not, nothing was written.
    pub fn was_open(&self) -> bool {
        self.opened.load(SeqCst)
    }

    /// The superblocks say dirty: writes go ahead.
    pub fn dirty_written(&self) {
        self.opened.store(true, SeqCst);
        self.change(WANTED, DIRTY);
        self.wake();
    }

    /// Closes the gate if no write is on its way. After true the keeper writes clean superblocks and calls
    /// [`Intent::clean_written`].
    pub fn try_close(&self) -> bool {
        if !self.change(DIRTY, CLOSING) {
            return false;
        }
        let any_write = self.any_write();
        if any_write {
            self.reopen();
        }
        !any_write
    }

    /// Whether a write is on its way.
    pub fn any_write(&self) -> bool {
        match &self.marks {
            Marks::Whole(writing) => writing.iter().any(|writing| writing.load(SeqCst) & WRITES_WHOLE != 0),
            Marks::Bitmap(bits) => bits.any_write(),
        }
    }

    /// Whether a write waits for superblocks or bits: the array is not quiet, however long that takes.
    pub fn any_waits(&self) -> bool {
        !self.waiting.lock().is_empty()
    }

    /// Undoes [`Intent::try_close`].
    pub fn reopen(&self) {
        self.change(CLOSING, DIRTY);
        self.wake();
    }

    /// The superblocks say clean. Writes that came meanwhile ask for dirty again.
    pub fn clean_written(&self) {
        self.change(CLOSING, CLEAN);
        self.wake();
    }

    /// The superblocks cannot be written any more: writes fail.
    pub fn lost(&self) {
        let _always = self.gate.fetch_update(SeqCst, SeqCst, |gate| Some(Gate(gate).with_state(LOST).0));
        self.wake();
    }

    fn gate(&self) -> Gate {
        Gate(self.gate.load(SeqCst))
    }

    fn state(&self) -> u8 {
        self.gate().state()
    }

    /// One step from one state to another; false if it is in none of the two.
    fn change(&self, from: u8, to: u8) -> bool {
        let step = |gate: u64| (Gate(gate).state() == from).then_some(Gate(gate).with_state(to).0);
        self.gate.fetch_update(SeqCst, SeqCst, step).is_ok()
    }

    fn wake(&self) {
        let waiting = std::mem::take(&mut *self.waiting.lock());
        waiting.into_iter().for_each(Waker::wake);
    }
}

/// The number of writes in a counter of the whole array.
const WRITES_WHOLE: u64 = (u64::MAX >> 32) & !(WRITE - 1);
