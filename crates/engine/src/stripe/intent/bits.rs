//! The in-memory side of a write-intent bitmap: one word for each chunk of the bitmap counts the writes in flight there,
//! and says whether the chunk's bit is durable.
//!
//! Invariant 3: counter and bit are one word, so they cannot come from different chunks.
//!
//! ```text
//! bit 63..32 activity | 31..4 writes in flight | 2 NEEDED | 1 WANTED | 0 READY
//! ```
//!
//! - A write that begins adds one to both numbers in one step and goes ahead if it finds READY; a write that ends
//!   takes one from the lower number. With atomic words ([`Words`]) no write waits for another; with one lock over all
//!   words ([`Pages`]) the steps are the same, one after the other.
//! - Each search for idle bits clears the activity: a bit is idle if two searches in a row find no activity, so
//!   a hot chunk costs no I/O (md's scheme). The activity may overflow off the upper end of the word without harm.

use std::ops::Range;
use std::task::{Context, Poll, Waker};

use layout::md_bitmap::Mapping;

use super::pages::Pages;
use super::words::{self, ENTER, NEEDED, READY, STATE, WANTED, WRITE, WRITES, Words};
use crate::stages::{Lock, Unwatched, Watch};
use crate::stripe::locks::Locks;
use crate::sync::sequential::Mutex;
use crate::sync::sequential::atomic::{AtomicU64, Ordering::SeqCst};

/// Most chunks of one bitmap. md's own bitmaps stay far below: 128 KiB hold a million bits.
pub const CHUNKS_MAX: u64 = words::CHUNKS_MAX;

/// The words of all chunks, and the flusher's queue.
pub(super) struct Bits {
    /// Maps units to chunks.
    mapping: Mapping,
    counters: ChunkCounters,
    /// No chunk from here on ever had a bit: searches end here.
    end: AtomicU64,
    /// Chunks whose bits have to become durable.
    wanted: Mutex<Wanted>,
}

/// The words, by how they are shared.
pub(super) enum ChunkCounters {
    /// Atomic words, without a lock.
    Words(Words),
    /// Plain words behind one lock.
    Pages(Pages),
}

#[derive(Default)]
struct Wanted {
    chunks: Vec<u64>,
    flusher: Option<Waker>,
    stopped: bool,
}

impl ChunkCounters {
    /// Changes the word of a chunk to what `change` returns. Returns the word before; as an error if `change` returned
    /// None.
    fn update(&self, chunk: u64, change: impl FnMut(u64) -> Option<u64>) -> Result<u64, u64> {
        match self {
            ChunkCounters::Words(words) => words.update(chunk, change),
            ChunkCounters::Pages(pages) => pages.update(chunk, change),
        }
    }

    /// Changes the existing words of these chunks, and calls `changed` with each chunk and its word before.
    fn update_all(
        &self,
        chunks: Range<u64>,
        change: impl FnMut(u64) -> Option<u64>,
        changed: impl FnMut(u64, u64),
    ) {
        match self {
            ChunkCounters::Words(words) => words.update_all(chunks, change, changed),
            ChunkCounters::Pages(pages) => pages.update_all(chunks, change, changed),
        }
    }

    /// The first chunk whose word has one of these bits.
    fn first(&self, chunks: Range<u64>, bits: u64) -> Option<u64> {
        match self {
            ChunkCounters::Words(words) => words.first(chunks, bits),
            ChunkCounters::Pages(pages) => pages.first(chunks, bits),
        }
    }
}

/// The durable intent of a write: while it lives the write's stripes may be inconsistent on the members.
pub(crate) struct Marked<'a> {
    /// The word that counts the write in its first unit; None with one lock over the words.
    pub(super) word: Option<&'a AtomicU64>,
    /// The further units, hardly ever any; all units with one lock over the words.
    pub(super) more: Option<(&'a Bits, Range<u64>)>,
}

impl Marked<'_> {
    /// The write has ended and its stripes are consistent, or known not to be.
    #[inline]
    pub(crate) fn end(mut self, watch: impl Watch) {
        self.leave(watch);
    }

    #[inline]
    fn leave(&mut self, watch: impl Watch) {
        if let Some(word) = self.word.take() {
            watch.without(Lock::Counters, || word.fetch_sub(WRITE, SeqCst));
        }
        if let Some((bits, chunks)) = self.more.take() {
            bits.leave(watch, chunks);
        }
    }
}

impl Drop for Marked<'_> {
    #[inline]
    fn drop(&mut self) {
        self.leave(Unwatched(0));
    }
}

impl Bits {
    pub(super) fn new(mapping: Mapping, locks: Locks) -> Self {
        let counters = match locks.one_for_counters() {
            true => ChunkCounters::Pages(Pages::new()),
            false => ChunkCounters::Words(Words::new()),
        };
        Bits { mapping, counters, end: AtomicU64::new(0), wanted: Mutex::default() }
    }

    /// Counts a write that begins in these units. Returns whether all their bits are durable.
    #[inline]
    pub(super) fn enter(&self, watch: impl Watch, units: Range<u64>) -> (bool, Marked<'_>) {
        let mapping = self.mapping;
        let words = match &self.counters {
            ChunkCounters::Words(words) => words,
            ChunkCounters::Pages(pages) => {
                let ready = pages.enter(watch, units.clone().map(|unit| mapping.bit(unit)));
                return (ready, Marked { word: None, more: Some((self, units)) });
            }
        };
        watch.without(Lock::Counters, || {
            // Invariant 3: the chunk is computed once, for the counter and for the bit.
            let word = words.word(mapping.bit(units.start));
            let mut ready = word.fetch_add(ENTER, SeqCst) & READY;
            let mut marked = Marked { word: Some(word), more: None };
            if units.end - units.start > 1 {
                let more = units.start + 1..units.end;
                let enter = |unit| words.word(mapping.bit(unit)).fetch_add(ENTER, SeqCst);
                more.clone().for_each(|unit| ready &= enter(unit));
                marked.more = Some((self, more));
            }
            (ready != 0, marked)
        })
    }

    /// Uncounts a write in these units.
    pub(super) fn leave(&self, watch: impl Watch, units: Range<u64>) {
        let chunks = units.map(|unit| self.mapping.bit(unit));
        match &self.counters {
            ChunkCounters::Words(words) => watch.without(Lock::Counters, || {
                chunks.for_each(|chunk| _ = words.word(chunk).fetch_sub(WRITE, SeqCst));
            }),
            ChunkCounters::Pages(pages) => pages.leave(watch, chunks),
        }
    }

    /// The chunk's bit is on the members already. `needed`: the chunk has to be resynced.
    pub(super) fn load(&self, chunk: u64, needed: bool) {
        self.end.fetch_max(chunk + 1, SeqCst);
        let bits = if needed { READY | NEEDED } else { READY };
        let _always = self.counters.update(chunk, |word| Some(word | bits));
    }

    /// Asks the flusher for the bits that are not durable. Returns whether all are.
    pub(super) fn want(&self, units: Range<u64>) -> bool {
        let mut wanted = Vec::new();
        let mut ready = true;
        for chunk in self.mapping.bits(units).into_iter().flatten() {
            self.end.fetch_max(chunk + 1, SeqCst); // before any write can find the bit durable
            let ask = |word| (word & READY == 0).then_some(word | WANTED);
            let Ok(before) = self.counters.update(chunk, ask) else { continue };
            ready = false;
            if before & WANTED == 0 {
                wanted.push(chunk);
            }
        }
        if !wanted.is_empty() {
            let mut queue = self.wanted.lock();
            queue.chunks.append(&mut wanted);
            let flusher = queue.flusher.take();
            drop(queue);
            flusher.into_iter().for_each(Waker::wake);
        }
        ready
    }

    /// Checks every word: a bit is not both durable and wanted, and a chunk that waits for a resync has its bit set.
    pub(super) fn self_check(&self) {
        let check = |word: u64| {
            assert_ne!(word & (READY | WANTED), READY | WANTED, "a durable bit is not wanted: {word:x}");
            assert_ne!(word & (READY | NEEDED), NEEDED, "what waits for a resync has its bit: {word:x}");
            None
        };
        self.counters.update_all(self.all(), check, |_, _| {});
    }

    /// For the flusher: the chunks whose bits writes wait for, once there are any; None once stopped.
    pub(super) fn poll_wanted(&self, context: &Context<'_>) -> Poll<Option<Vec<u64>>> {
        let mut queue = self.wanted.lock();
        if !queue.chunks.is_empty() {
            return Poll::Ready(Some(std::mem::take(&mut queue.chunks)));
        }
        if queue.stopped {
            return Poll::Ready(None);
        }
        queue.flusher = Some(context.waker().clone());
        Poll::Pending
    }

    /// Ends the flusher once no bit is wanted.
    pub(super) fn stop(&self) {
        let mut queue = self.wanted.lock();
        queue.stopped = true;
        let flusher = queue.flusher.take();
        drop(queue);
        flusher.into_iter().for_each(Waker::wake);
    }

    /// These bits are durable: writes to their chunks go ahead.
    pub(super) fn written(&self, chunks: &[u64]) {
        for &chunk in chunks {
            let _always = self.counters.update(chunk, |word| Some(word & !WANTED | READY));
        }
    }

    /// Clears READY of chunks that have been idle since the search before the last, and returns them. No write goes
    /// ahead there before [`Bits::written`]. With `keep_needed` chunks that wait for a resync keep their bits.
    pub(super) fn take_idle(&self, keep_needed: bool) -> Vec<u64> {
        let is_idle = |word: u64| word & !STATE == 0;
        let look = |now: u64| {
            if now & READY == 0 || now & WRITES != 0 || (keep_needed && now & NEEDED != 0) {
                return None;
            }
            Some(if is_idle(now) { now & !(READY | NEEDED) } else { now & STATE })
        };
        let mut idle = Vec::new();
        self.counters.update_all(self.all(), look, |chunk, before| {
            if is_idle(before) {
                idle.push(chunk);
            }
        });
        idle
    }

    /// Whether a write is in flight anywhere.
    pub(super) fn any_write(&self) -> bool {
        self.counters.first(self.all(), WRITES).is_some()
    }

    /// A resync in ascending order has done these units: the chunks whose last unit is among them agree.
    pub(super) fn synced(&self, units: Range<u64>) {
        self.mapping.bits(self.mapping.last_of(units)).into_iter().for_each(|chunks| self.agree(chunks));
    }

    fn agree(&self, chunks: Range<u64>) {
        let agrees = |word: u64| (word & NEEDED != 0).then_some(word & !NEEDED);
        self.counters.update_all(chunks, agrees, |_, _| {});
    }

    /// A resync has done the whole array: all chunks agree.
    pub(super) fn all_synced(&self) {
        self.agree(self.all());
    }

    /// The first unit from `first` on, below `end`, whose chunk waits for a resync; with `marked`, whose chunk is marked at
    /// all.
    pub(super) fn next(&self, first: u64, end: u64, marked: bool) -> Option<u64> {
        let mut unit = first;
        for chunks in self.mapping.bits(first..end) {
            if let Some(found) = self.counters.first(chunks.clone(), if marked { STATE } else { NEEDED }) {
                return Some(unit + found - chunks.start);
            }
            unit += chunks.end - chunks.start;
        }
        None
    }

    /// Bytes of memory taken for words so far.
    pub(super) fn memory_bytes(&self) -> u64 {
        match &self.counters {
            ChunkCounters::Words(words) => words.memory_bytes(),
            ChunkCounters::Pages(pages) => pages.memory_bytes(),
        }
    }

    fn all(&self) -> Range<u64> {
        0..self.end.load(SeqCst)
    }
}
