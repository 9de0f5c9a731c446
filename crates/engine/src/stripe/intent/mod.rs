//! Write intent: the record, durable before a stripe may become inconsistent on the members, that a crash may have left a
//! write hole there (invariant 2). After the crash a resync repairs the stripes with intent before anything builds on their
//! parity.
//!
//! There are two of md's policies. With `resync` one flag covers the whole array: before the first write the superblocks
//! say dirty; after a quiet time without writes they say clean. With `bitmap` each chunk of the write-intent bitmap has a
//! bit as well, and only chunks whose bits are set are resynced after a crash. A journal or PPL would be other ways to keep
//! the promise of [`Intent::mark`].
//!
//! A write whose intent is durable already pays, with `resync`, one counter of its own shard, with `bitmap` one word
//! of the chunk that it writes to ([`bits`]), and two loads of the *gate*, a word that hardly ever changes: what the
//! superblocks say, and the shape of the bitmap. A task that changes either closes the gate first and then looks whether
//! any write is counted; a write counts itself first and then looks at the gate. So writes never wait for each other, and
//! only a change waits for writes (C3). The other two systems of ScalaRAID's comparison, with one lock over the words
//! ([`Locks`]), keep the same promise.

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

use crate::error::MetadataLost;
use crate::members::Members;
use crate::stages::Watch;
use crate::stripe::locks::Locks;
use crate::sync::sequential::Mutex;
use crate::sync::sequential::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use bits::Bits;
use words::{ENTER, WRITE};

pub(crate) use bits::Marked;

/// What the superblocks say, and what a write does about it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
enum GateState {
    /// The superblocks say clean; writes wait.
    Clean,
    /// A write has asked for superblocks that say dirty; writes wait.
    Wanted,
    /// The superblocks say dirty; writes go ahead.
    Dirty,
    /// The superblock writer is about to write clean; writes wait.
    Closing,
    /// The array keeps no intent (RAID-0, or the policy `none`): writes go ahead.
    Unused,
    /// The superblocks cannot be written; writes fail.
    Lost,
}

impl GateState {
    const ALL: [GateState; 6] = [
        GateState::Clean,
        GateState::Wanted,
        GateState::Dirty,
        GateState::Closing,
        GateState::Unused,
        GateState::Lost,
    ];
}

/// The write intent of one array, shared by all shards.
pub struct Intent {
    gate: AtomicU64,
    /// The superblocks have said dirty in this run.
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

/// The gate's word: bits 15..8 log2 of the mapping's unit | 7..0 state.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Gate(u64);

impl Gate {
    fn new(state: GateState, shift: u8) -> Self {
        Gate(u64::from(shift) << 8 | state as u64)
    }

    fn state(self) -> GateState {
        GateState::ALL[usize::from(self.0 as u8)]
    }

    fn with_state(self, state: GateState) -> Self {
        Gate(self.0 & !0xff | state as u64)
    }

    fn shift(self) -> u32 {
        u32::from((self.0 >> 8) as u8)
    }

    /// The units of the bitmap's mapping that a range of bytes touches. In md's mapping a unit is a chunk of the bitmap.
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
    /// The intent of an array with `shards` shards, by the policy `resync`. `dirty`: the superblocks say dirty
    /// already. Not `used`: the policy is `none`, or the level has no redundancy that could disagree.
    pub fn new(shards: usize, used: bool, dirty: bool) -> Self {
        let state = match (used, dirty) {
            (false, _) => GateState::Unused,
            (true, true) => GateState::Dirty,
            (true, false) => GateState::Clean,
        };
        let writing = (0..shards).map(|_| CachePadded::new(AtomicU64::new(0))).collect();
        Intent::with(Gate::new(state, 0), Marks::Whole(writing), Locks::Scala)
    }

    /// The intent by the policy `bitmap`, with no bit set yet: see [`Intent::load_bits`]. `mapping` maps ranges of bytes to
    /// bits; `locks` are those over the counters and over the stripes of the array.
    pub fn with_bitmap(mapping: Mapping, dirty: bool, locks: Locks) -> Self {
        let state = if dirty { GateState::Dirty } else { GateState::Clean };
        let gate = Gate::new(state, mapping.unit_shift() as u8);
        Intent::with(gate, Marks::Bitmap(Box::new(Bits::new(mapping, locks))), locks)
    }

    fn with(gate: Gate, marks: Marks, locks: Locks) -> Self {
        let opened = AtomicBool::new(gate.state() == GateState::Dirty);
        Intent { gate: AtomicU64::new(gate.0), opened, marks, locks, waiting: Mutex::new(Vec::new()) }
    }

    /// Which locks writes take.
    pub fn locks(&self) -> Locks {
        self.locks
    }

    /// Returns once the intent of a write is durable. `range` is the bytes that it writes, in the unit of the bitmap's
    /// bits: of the members' data area, for RAID-10 of the array.
    pub(crate) async fn mark(
        &self,
        watch: impl Watch,
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

    /// As [`Self::mark`], if the intent is durable already.
    #[inline]
    pub(crate) fn mark_now(&self, watch: impl Watch, range: &Range<u64>) -> Option<Marked<'_>> {
        self.try_mark(watch, range).ok()
    }

    #[inline]
    fn try_mark(&self, watch: impl Watch, range: &Range<u64>) -> Result<Marked<'_>, NotYet> {
        match &self.marks {
            Marks::Whole(writing) => {
                let word = &*writing[watch.shard()];
                // Counted before the load of the gate: `try_close` changes the gate before it loads the counters.
                word.fetch_add(ENTER, SeqCst);
                self.passed(self.gate(), Marked { word: Some(word), more: None })
            }
            Marks::Bitmap(bits) => {
                let (ready, marked) = bits.enter(watch, self.gate().units(range));
                let now = self.gate();
                if !ready {
                    return Err(if now.state() == GateState::Lost { NotYet::Lost } else { NotYet::Wait });
                }
                self.passed(now, marked)
            }
        }
    }

    #[inline]
    fn passed<'a>(&self, gate: Gate, marked: Marked<'a>) -> Result<Marked<'a>, NotYet> {
        match gate.state() {
            GateState::Dirty | GateState::Unused => Ok(marked),
            GateState::Lost => Err(NotYet::Lost),
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
            let wanted = self.change(GateState::Clean, GateState::Wanted);
            let has_bits = match &self.marks {
                Marks::Whole(_) => true,
                Marks::Bitmap(bits) => bits.want(self.gate().units(range)),
            };
            if (has_bits && self.state() == GateState::Dirty) || self.state() == GateState::Lost {
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

    /// Whether the array keeps write intent: not with the policy `none`.
    pub fn is_used(&self) -> bool {
        self.state() != GateState::Unused
    }

    /// Whether the superblocks have to say dirty. They also do once intent cannot be recorded any more: earlier writes need
    /// not be durable (invariant 2).
    pub fn wants_dirty(&self) -> bool {
        matches!(self.state(), GateState::Wanted | GateState::Dirty | GateState::Lost)
    }

    /// Whether every write waits until the superblocks say dirty.
    pub fn is_opening(&self) -> bool {
        self.state() == GateState::Wanted
    }

    /// Whether the superblocks say dirty, so that a quiet array may be closed.
    pub fn is_open(&self) -> bool {
        self.state() == GateState::Dirty
    }

    /// Whether the superblocks have said dirty in this run. If not, nothing was written.
    pub fn was_open(&self) -> bool {
        self.opened.load(SeqCst)
    }

    /// The superblocks say dirty: writes go ahead.
    pub fn dirty_written(&self) {
        self.opened.store(true, SeqCst);
        self.change(GateState::Wanted, GateState::Dirty);
        self.wake();
    }

    /// Closes the gate if no write is in flight. If it returns true the superblock writer writes clean superblocks and then
    /// calls [`Intent::clean_written`], or [`Intent::reopen`].
    pub fn try_close(&self) -> bool {
        if !self.change(GateState::Dirty, GateState::Closing) {
            return false;
        }
        let any_write = self.any_write();
        if any_write {
            self.reopen();
        }
        !any_write
    }

    /// Whether a write is in flight.
    pub fn any_write(&self) -> bool {
        match &self.marks {
            Marks::Whole(writing) => writing.iter().any(|writing| writing.load(SeqCst) & WRITES_WHOLE != 0),
            Marks::Bitmap(bits) => bits.any_write(),
        }
    }

    /// Whether a write waits for superblocks or bits: such an array is not quiet, however long the wait.
    pub fn any_waits(&self) -> bool {
        !self.waiting.lock().is_empty()
    }

    /// Undoes [`Intent::try_close`].
    pub fn reopen(&self) {
        self.change(GateState::Closing, GateState::Dirty);
        self.wake();
    }

    /// The superblocks say clean. Writes that came meanwhile ask for dirty again.
    pub fn clean_written(&self) {
        self.change(GateState::Closing, GateState::Clean);
        self.wake();
    }

    /// The superblocks cannot be written any more: writes fail.
    pub fn lost(&self) {
        let lost = |gate| Some(Gate(gate).with_state(GateState::Lost).0);
        let _always = self.gate.fetch_update(SeqCst, SeqCst, lost);
        self.wake();
    }

    fn gate(&self) -> Gate {
        Gate(self.gate.load(SeqCst))
    }

    fn state(&self) -> GateState {
        self.gate().state()
    }

    /// Changes the state from `from` to `to`. False if the state is another.
    fn change(&self, from: GateState, to: GateState) -> bool {
        let step = |gate: u64| (Gate(gate).state() == from).then_some(Gate(gate).with_state(to).0);
        self.gate.fetch_update(SeqCst, SeqCst, step).is_ok()
    }

    fn wake(&self) {
        let waiting = std::mem::take(&mut *self.waiting.lock());
        waiting.into_iter().for_each(Waker::wake);
    }
}

/// The bits of a shard's counter that count writes in flight.
const WRITES_WHOLE: u64 = (u64::MAX >> 32) & !(WRITE - 1);
