//! The bookkeeping of a bitmap: one word for each chunk of the bitmap says how many writes are on their way there, and
//! whether the chunk's bit is durable.
//!
//! Invariant 3: counter and bit are one word, so they cannot come from different chunks.
//!
//! ```text
//! bit 63..32 activity | 31..4 writes on their way | 2 NEEDED | 1 WANTED | 0 READY
//! ```
//!
//! - A write that comes adds one to both numbers in one step and goes ahead if it finds READY; a write that ends
//!   takes one from the lower number. With words that are changed by themselves ([`Words`]) nobody waits for anybody;
//!   with one lock over all of them ([`Pages`]) the steps are the same, one after the other.
//! - The activity is taken away by each look for idle bits: a bit is idle if it is without activity twice running, so
//!   a hot chunk costs no I/O (md's scheme). It runs over at the upper end of the word without harm.

use std::ops::Range;
use std::task::{Context, Poll, Waker};

use layout::md_bitmap::Mapping;

use super::pages::Pages;
use super::words::{self, ENTER, NEEDED, READY, STATE, WANTED, WRITE, WRITES, Words};
use crate::stages::{Lock, Watch};
use crate::stripe::locks::Locks;
use crate::sync::sequential::Mutex;
use crate::sync::sequential::atomic::{AtomicU64, Ordering::SeqCst};

/// Most chunks of one bitmap. md's own bitmaps stay far below: 128 KiB hold a million bits.
pub const CHUNKS_MAX: u64 = words::CHUNKS_MAX;

/// The words of all chunks, and who waits for bits.
pub(super) struct Bits {
    /// Which chunk a unit belongs to.
    mapping: Mapping,
    counters: Counters,
    /// No chunk from here on ever had a bit: a look at all words ends here.
    end: AtomicU64,
    /// Chunks whose bits have to become durable.
    wanted: Mutex<Wanted>,
}

/// The words, by who may change them.
pub(super) enum Counters {
    /// Anybody, each by itself.
    Words(Words),
    /// Who has the one lock.
    Pages(Pages),
}

#[derive(Default)]
struct Wanted {
    chunks: Vec<u64>,
    flusher: Option<Waker>,
    stopped: bool,
}

impl Counters {
    /// Changes the word of a chunk unless `change` says None; returns what it was, as an error if it is that still.
    fn update(&self, chunk: u64, change: impl FnMut(u64) -> Option<u64>) -> Result<u64, u64> {
        match self {
            Counters::Words(words) => words.update(chunk, change),
            Counters::Pages(pages) => pages.update(chunk, change),
        }
    }

    /// Changes the words of those chunks that ever had one; `changed` hears of the chunk and what its word was.
    fn update_all(
        &self,
        chunks: Range<u64>,
        change: impl FnMut(u64) -> Option<u64>,
        changed: impl FnMut(u64, u64),
    ) {
        match self {
            Counters::Words(words) => words.update_all(chunks, change, changed),
            Counters::Pages(pages) => pages.update_all(chunks, change, changed),
        }
    }

    /// The first chunk whose word has one of these bits.
    fn first(&self, chunks: Range<u64>, bits: u64) -> Option<u64> {
        match self {
            Counters::Words(words) => words.first(chunks, bits),
            Counters::Pages(pages) => pages.first(chunks, bits),
        }
    }
}

/// While it lives the stripes of a write may be inconsistent.
pub(crate) struct Marked<'a> {
    /// Where the write is counted, if that is a word that is changed by itself.
    pub(super) word: Option<&'a AtomicU64>,
    /// The units after that one, hardly ever any; with one lock over the words all units.
    pub(super) more: Option<(&'a Bits, Range<u64>)>,
}

impl Marked<'_> {
    /// The stripes agree again.
    #[inline]
    pub(crate) fn end(mut self, watch: &Watch<'_>) {
        self.leave(watch);
    }

    #[inline]
    fn leave(&mut self, watch: &Watch<'_>) {
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
        self.leave(&Watch::off(0));
    }
}

impl Bits {
    pub(super) fn new(mapping: Mapping, locks: Locks) -> Self {
        let counters = match locks.one_for_counters() {
            true => Counters::Pages(Pages::new()),
            false => Counters::Words(Words::new()),
        };
        Bits { mapping, counters, end: AtomicU64::new(0), wanted: Mutex::default() }
    }

    /// A write comes to these units. Returns whether all bits are durable.
    #[inline]
    pub(super) fn enter(&self, watch: &Watch<'_>, units: Range<u64>) -> (bool, Marked<'_>) {
        let mapping = self.mapping;
        let words = match &self.counters {
            Counters::Words(words) => words,
            Counters::Pages(pages) => {
                let ready = pages.enter(watch, units.clone().map(|unit| mapping.bit(unit)));
                return (ready, Marked { word: None, more: Some((self, units)) });
            }
        };
        watch.without(Lock::Counters, || {
            // Invariant 3: the chunk is taken from the address once, for the counter and for the bit.
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

    /// A write that came to these units goes.
    pub(super) fn leave(&self, watch: &Watch<'_>, units: Range<u64>) {
        let chunks = units.map(|unit| self.mapping.bit(unit));
        match &self.counters {
            Counters::Words(words) => watch.without(Lock::Counters, || {
                chunks.for_each(|chunk| _ = words.word(chunk).fetch_sub(WRITE, SeqCst));
            }),
            Counters::Pages(pages) => pages.leave(watch, chunks),
        }
    }

    /// The bit is on the members already; with `needed` its chunk has to be resynced.
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
            self.end.fetch_max(chunk + 1, SeqCst); // before a bit is there that a write could find
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

    /// Checks what the words say of themselves: a bit is durable or wanted, not both, and only a bit that is set waits for
    /// a resync.
    pub(super) fn self_check(&self) {
        let check = |word: u64| {
            assert_ne!(word & (READY | WANTED), READY | WANTED, "a durable bit is not wanted: {word:x}");
            assert_ne!(word & (READY | NEEDED), NEEDED, "what waits for a resync has its bit: {word:x}");
            None
        };
        self.counters.update_all(self.all(), check, |_, _| {});
    }

    /// For the flusher: the chunks whose bits have to become durable, as soon as there are some; None once stopped.
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

    /// The flusher ends when nothing is wanted any more.
    pub(super) fn stop(&self) {
        let mut queue = self.wanted.lock();
        queue.stopped = true;
        let flusher = queue.flusher.take();
        drop(queue);
        flusher.into_iter().for_each(Waker::wake);
    }

    /// These bits are durable: their chunks may be written.
    pub(super) fn written(&self, chunks: &[u64]) {
        for &chunk in chunks {
            let _always = self.counters.update(chunk, |word| Some(word & !WANTED | READY));
        }
    }

    /// Takes the mark from chunks that have been idle since the look before this one, and returns them. No write goes
    /// ahead there before [`Bits::written`]. With `keep_needed` chunks that wait for a resync keep theirs.
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

    /// Whether a write is on its way anywhere.
    pub(super) fn any_write(&self) -> bool {
        self.counters.first(self.all(), WRITES).is_some()
    }

    /// The units were made to agree, in ascending order: so were the chunks that end there.
    pub(super) fn synced(&self, units: Range<u64>) {
        self.mapping.bits(self.mapping.last_of(units)).into_iter().for_each(|chunks| self.agree(chunks));
    }

    fn agree(&self, chunks: Range<u64>) {
        let agrees = |word: u64| (word & NEEDED != 0).then_some(word & !NEEDED);
        self.counters.update_all(chunks, agrees, |_, _| {});
    }

    /// All chunks agree.
    pub(super) fn all_synced(&self) {
        self.agree(self.all());
    }

    /// The first unit from `first` on, below `end`, whose chunk waits for a resync; with `marked` one that is marked for
    /// any reason.
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
            Counters::Words(words) => words.memory_bytes(),
            Counters::Pages(pages) => pages.memory_bytes(),
        }
    }

    fn all(&self) -> Range<u64> {
        0..self.end.load(SeqCst)
    }
}
