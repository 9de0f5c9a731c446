//! The counters of the bitmap without a lock: one atomic word for each chunk (ScalaRAID 3.1, with a word where the paper
//! has a lock and a counter).
//!
//! - Words of neighbouring chunks are a line of memory apart ([`Group`]), so that a sequential load from several
//!   cores does not fight for a cache line (C2, C4).
//! - Memory is taken for sixteen thousand chunks when the first of them is written.

use std::ops::Range;
use std::sync::OnceLock;

use crate::sync::sequential::atomic::{AtomicU64, Ordering::SeqCst};

/// The bit is durable on every member: writes go ahead.
pub(super) const READY: u64 = 1;
/// A write waits for the bit: it is in the flusher's list.
pub(super) const WANTED: u64 = 1 << 1;
/// The chunk may not agree, since the array was not stopped in order: the bit stays until a resync was there.
pub(super) const NEEDED: u64 = 1 << 2;
/// One write on its way.
pub(super) const WRITE: u64 = 1 << 4;
/// What a write that comes adds.
pub(super) const ENTER: u64 = WRITE + (1 << 32);
/// All but the activity.
pub(super) const STATE: u64 = u64::MAX >> 32;
/// The number of writes.
pub(super) const WRITES: u64 = STATE & !(WRITE - 1);

/// Words of one line: two cache lines of 64 bytes, which processors fetch together.
const LINE_WORDS: u64 = 16;
/// Few where a model makes all of them thousands of times.
const GROUP_LINES: u64 = if cfg!(feature = "model") { 2 } else { 1 << 10 };
const GROUP_WORDS: u64 = GROUP_LINES * LINE_WORDS;
const FOLDERS: u64 = 64;
const FOLDER_GROUPS: u64 = 64;

/// Most chunks that there are words for.
pub(super) const CHUNKS_MAX: u64 = FOLDERS * FOLDER_GROUPS * GROUP_WORDS;

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

/// The words of all chunks.
pub(super) struct Words {
    folders: Box<[OnceLock<Folder>]>,
}

impl Words {
    pub(super) fn new() -> Self {
        Words { folders: (0..FOLDERS).map(|_| OnceLock::new()).collect() }
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

    /// As [`super::bits::Counters::update`].
    pub(super) fn update(&self, chunk: u64, change: impl FnMut(u64) -> Option<u64>) -> Result<u64, u64> {
        self.word(chunk).fetch_update(SeqCst, SeqCst, change)
    }

    /// As [`super::bits::Counters::update_all`].
    pub(super) fn update_all(
        &self,
        chunks: Range<u64>,
        mut change: impl FnMut(u64) -> Option<u64>,
        mut changed: impl FnMut(u64, u64),
    ) {
        self.each(chunks, |chunk, word| {
            if let Ok(before) = word.fetch_update(SeqCst, SeqCst, &mut change) {
                changed(chunk, before);
            }
            None::<()>
        });
    }

    /// As [`super::bits::Counters::first`].
    pub(super) fn first(&self, chunks: Range<u64>, bits: u64) -> Option<u64> {
        self.each(chunks, |chunk, word| (word.load(SeqCst) & bits != 0).then_some(chunk))
    }

    /// Visits the words that exist until one gives something.
    fn each<T>(&self, chunks: Range<u64>, mut visit: impl FnMut(u64, &AtomicU64) -> Option<T>) -> Option<T> {
        let mut at = chunks.start;
        while at < chunks.end {
            let number = at / GROUP_WORDS;
            let end = ((number + 1) * GROUP_WORDS).min(chunks.end);
            if let Some(group) = self.existing(number) {
                let found = (at..end).find_map(|chunk| visit(chunk, group.word(chunk)));
                if found.is_some() {
                    return found;
                }
            }
            at = end;
        }
        None
    }

    /// Bytes of memory taken so far.
    pub(super) fn memory_bytes(&self) -> u64 {
        let groups = self.folders.iter().filter_map(OnceLock::get).flatten().filter_map(OnceLock::get);
        let folders = self.folders.iter().filter_map(OnceLock::get).count() as u64;
        groups.count() as u64 * GROUP_WORDS * 8 + folders * FOLDER_GROUPS * 24 + FOLDERS * 24
    }
}

/// Where counters of a chunk are in what holds them.
pub(super) fn index(place: u64) -> usize {
    usize::try_from(place).expect("at most CHUNKS_MAX")
}
