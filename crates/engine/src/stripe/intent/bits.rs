//! The bookkeeping of a bitmap (ScalaRAID 3): one atomic word for each chunk of the bitmap says how many writes are on
//! their way there, and whether the chunk's bit is durable.
//!
//! Invariant 3: counter and bit are one word, so they cannot come from different chunks.
//!
//! ```text
//! bit 63..32 activity | 31..4 writes on their way | 2 NEEDED | 1 WANTED | 0 READY
//! ```
//!
//! - A write that comes adds one to both numbers in one step and goes ahead if it finds READY; a write that ends
//!   takes one from the lower number. Nobody waits for anybody, and there is no lock.
//! - The activity is taken away by each look for idle bits: a bit is idle if it is without activity twice running, so
//!   a hot chunk costs no I/O (md's scheme). It runs over at the upper end of the word without harm.
//! - Words of neighbouring chunks are a line of memory apart ([`Group`]), so that a sequential load from several
//!   cores does not fight for a cache line (C2, C4).
//! - Memory is taken for sixteen thousand chunks when the first of them is written.

use std::ops::Range;
use std::sync::OnceLock;
use std::task::{Context, Poll, Waker};

use crate::sync::sequential::Mutex;
use crate::sync::sequential::atomic::{AtomicU64, Ordering::SeqCst};

/// The bit is durable on every member: writes go ahead.
pub(super) const READY: u64 = 1;
/// A write waits for the bit: it is in the flusher's list.
const WANTED: u64 = 1 << 1;
/// The chunk may not agree, since the array was not stopped in order: the bit stays until a resync was there.
const NEEDED: u64 = 1 << 2;
/// One write on its way.
pub(super) const WRITE: u64 = 1 << 4;
/// What a write that comes adds.
pub(super) const ENTER: u64 = WRITE + (1 << 32);
/// All but the activity.
const STATE: u64 = u64::MAX >> 32;
/// The number of writes.
const WRITES: u64 = STATE & !(WRITE - 1);

/// Words of one line: two cache lines of 64 bytes, which processors fetch together.
const LINE_WORDS: u64 = 16;
/// Few where a model makes all of them thousands of times.
const GROUP_LINES: u64 = if cfg!(feature = "model") { 2 } else { 1 << 10 };
const GROUP_WORDS: u64 = GROUP_LINES * LINE_WORDS;
const FOLDERS: u64 = 64;
const FOLDER_GROUPS: u64 = 64;

/// Most chunks of one bitmap. md's own bitmaps stay far below: 128 KiB hold a million bits.
pub const CHUNKS_MAX: u64 = FOLDERS * FOLDER_GROUPS * GROUP_WORDS;

#[repr(align(128))]
struct Line([AtomicU64; LINE_WORDS as usize]);

/// The words of neighbouring chunks: the next chunk has its word in the next line.
struct Group(Box<[Line]>);

impl Group {
    fn new() -> Self {
        let line = |_| Line(std::array::from_fn(|_| AtomicU64::new(0)));
        Group((0..GROUP_LINES).map(line).collect())
    }

    fn word(&self, chunk: u64) -> &AtomicU64 {
        let line = chunk % GROUP_LINES;
        let place = chunk / GROUP_LINES % LINE_WORDS;
        &self.0[index(line)].0[index(place)]
    }
}

type Folder = Box<[OnceLock<Group>]>;

/// The words of all chunks, and who waits for bits.
pub(super) struct Bits {
    folders: Box<[OnceLock<Folder>]>,
    /// No chunk from here on ever had a bit: a look at all words ends here.
    end: AtomicU64,
    /// Chunks whose bits have to become durable.
    wanted: Mutex<Wanted>,
}

#[derive(Default)]
struct Wanted {
    chunks: Vec<u64>,
    flusher: Option<Waker>,
    stopped: bool,
}

impl Bits {
    pub(super) fn new() -> Self {
        let folders = (0..FOLDERS).map(|_| OnceLock::new()).collect();
        Bits { folders, end: AtomicU64::new(0), wanted: Mutex::default() }
    }

    /// The word of a chunk.
    #[inline]
    pub(super) fn word(&self, chunk: u64) -> &AtomicU64 {
        match self.existing(chunk / GROUP_WORDS) {
            Some(group) => group.word(chunk),
            None => self.made(chunk / GROUP_WORDS).word(chunk),
        }
    }

    #[inline]
    fn existing(&self, group: u64) -> Option<&Group> {
        self.folders[index(group / FOLDER_GROUPS)].get()?[index(group % FOLDER_GROUPS)].get()
    }

    #[cold]
    fn made(&self, group: u64) -> &Group {
        let folder = self.folders[index(group / FOLDER_GROUPS)]
            .get_or_init(|| (0..FOLDER_GROUPS).map(|_| OnceLock::new()).collect());
        folder[index(group % FOLDER_GROUPS)].get_or_init(Group::new)
    }

    /// The bit is on the members already; with `needed` its chunk has to be resynced.
    pub(super) fn load(&self, chunk: u64, needed: bool) {
        self.end.fetch_max(chunk + 1, SeqCst);
        self.word(chunk).fetch_or(if needed { READY | NEEDED } else { READY }, SeqCst);
    }

    /// Asks the flusher for the bits that are not durable. Returns whether all are.
    pub(super) fn want(&self, chunks: Range<u64>) -> bool {
        let mut wanted = Vec::new();
        let mut ready = true;
        self.end.fetch_max(chunks.end, SeqCst); // before a bit is there that a write could find
        for chunk in chunks {
            let word = self.word(chunk);
            let before =
                word.fetch_update(SeqCst, SeqCst, |word| (word & READY == 0).then_some(word | WANTED));
            let Ok(before) = before else { continue };
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
            let set = |word: u64| Some(word & !WANTED | READY);
            let _always = self.word(chunk).fetch_update(SeqCst, SeqCst, set);
        }
    }

    /// Takes the mark from chunks that have been idle since the look before this one, and returns them. No write goes
    /// ahead there before [`Bits::written`]. With `keep_needed` chunks that wait for a resync keep theirs.
    pub(super) fn take_idle(&self, keep_needed: bool) -> Vec<u64> {
        let mut idle = Vec::new();
        self.for_each(|chunk, word| {
            let now = word.load(SeqCst);
            if now & READY == 0 || now & WRITES != 0 || (keep_needed && now & NEEDED != 0) {
                return;
            }
            let is_idle = now & !STATE == 0;
            let next = if is_idle { now & !(READY | NEEDED) } else { now & STATE };
            // Who comes in between has work for this chunk: it is looked at next time.
            if word.compare_exchange(now, next, SeqCst, SeqCst).is_ok() && is_idle {
                idle.push(chunk);
            }
        });
        idle
    }

    /// Whether a write is on its way anywhere.
    pub(super) fn any_write(&self) -> bool {
        let mut any = false;
        self.for_each(|_, word| any |= word.load(SeqCst) & WRITES != 0);
        any
    }

    /// The chunks were made to agree.
    pub(super) fn synced(&self, chunks: Range<u64>) {
        for chunk in chunks {
            if let Some(group) = self.existing(chunk / GROUP_WORDS) {
                group.word(chunk).fetch_and(!NEEDED, SeqCst);
            }
        }
    }

    /// All chunks agree.
    pub(super) fn all_synced(&self) {
        self.for_each(|_, word| _ = word.fetch_and(!NEEDED, SeqCst));
    }

    /// The first chunk from `first` on, below `end`, that waits for a resync; with `marked` the first that is marked
    /// for any reason.
    pub(super) fn next(&self, first: u64, end: u64, marked: bool) -> Option<u64> {
        let mut chunk = first;
        while chunk < end {
            let Some(group) = self.existing(chunk / GROUP_WORDS) else {
                chunk = (chunk / GROUP_WORDS + 1) * GROUP_WORDS;
                continue;
            };
            let wanted = if marked { STATE } else { NEEDED };
            if group.word(chunk).load(SeqCst) & wanted != 0 {
                return Some(chunk);
            }
            chunk += 1;
        }
        None
    }

    /// Bytes of memory taken for words so far.
    pub(super) fn memory_bytes(&self) -> u64 {
        let groups = self.folders.iter().filter_map(OnceLock::get).flatten().filter_map(OnceLock::get);
        let folders = self.folders.iter().filter_map(OnceLock::get).count() as u64;
        groups.count() as u64 * GROUP_WORDS * 8 + folders * FOLDER_GROUPS * 24 + FOLDERS * 24
    }

    fn for_each(&self, mut visit: impl FnMut(u64, &AtomicU64)) {
        let groups = (0..FOLDERS * FOLDER_GROUPS).filter_map(|number| Some((number, self.existing(number)?)));
        let end = self.end.load(SeqCst);
        for (number, group) in groups {
            for chunk in number * GROUP_WORDS..((number + 1) * GROUP_WORDS).min(end) {
                visit(chunk, group.word(chunk));
            }
        }
    }
}

fn index(place: u64) -> usize {
    usize::try_from(place).expect("at most CHUNKS_MAX")
}
