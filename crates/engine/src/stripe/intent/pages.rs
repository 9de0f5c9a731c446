//! The counters of the bitmap as md has them: packed in pages that are allocated when first written, with one lock over
//! all of them that every write takes when it begins and when it ends.

use std::ops::Range;

use super::words::{ENTER, READY, WRITE, index};
use crate::stages::{Lock, Watch};
use crate::sync::sequential::Mutex;

/// Words of a page.
const PAGE_WORDS: u64 = 2048;

/// The words of all chunks behind their lock.
pub(super) struct Pages(Mutex<Table>);

#[derive(Default)]
struct Table(Vec<Option<Box<[u64]>>>);

impl Table {
    fn word(&mut self, chunk: u64) -> &mut u64 {
        let page = index(chunk / PAGE_WORDS);
        if self.0.len() <= page {
            self.0.resize_with(page + 1, || None);
        }
        let page = self.0[page].get_or_insert_with(|| vec![0; index(PAGE_WORDS)].into_boxed_slice());
        &mut page[index(chunk % PAGE_WORDS)]
    }

    /// The words of `chunks` that lie in the page of the first one, if that page exists; and where they end.
    fn part(&mut self, chunks: &Range<u64>) -> (u64, Option<&mut [u64]>) {
        let (page, first) = (chunks.start / PAGE_WORDS, chunks.start % PAGE_WORDS);
        let end = ((page + 1) * PAGE_WORDS).min(chunks.end);
        let words = self.0.get_mut(index(page)).and_then(Option::as_mut);
        (end, words.map(|words| &mut words[index(first)..index(first + end - chunks.start)]))
    }
}

impl Pages {
    pub(super) fn new() -> Self {
        Pages(Mutex::new(Table::default()))
    }

    /// Counts a write that begins in these chunks. Returns whether all their bits are durable.
    pub(super) fn enter(&self, watch: impl Watch, chunks: impl Iterator<Item = u64>) -> bool {
        watch.hold(Lock::Counters, &self.0, |table| {
            chunks.fold(true, |ready, chunk| {
                let word = table.word(chunk);
                let is_ready = *word & READY != 0;
                *word = word.wrapping_add(ENTER);
                ready && is_ready
            })
        })
    }

    /// Uncounts a write that ends.
    pub(super) fn leave(&self, watch: impl Watch, chunks: impl Iterator<Item = u64>) {
        watch.hold(Lock::Counters, &self.0, |table| chunks.for_each(|chunk| *table.word(chunk) -= WRITE));
    }

    /// As [`super::bits::ChunkCounters::update`].
    pub(super) fn update(&self, chunk: u64, mut change: impl FnMut(u64) -> Option<u64>) -> Result<u64, u64> {
        let mut table = self.0.lock();
        let word = table.word(chunk);
        let before = *word;
        *word = change(before).ok_or(before)?;
        Ok(before)
    }

    /// As [`super::bits::ChunkCounters::update_all`]: the lock is free between two pages.
    pub(super) fn update_all(
        &self,
        mut chunks: Range<u64>,
        mut change: impl FnMut(u64) -> Option<u64>,
        mut changed: impl FnMut(u64, u64),
    ) {
        while !chunks.is_empty() {
            let mut table = self.0.lock();
            let (end, words) = table.part(&chunks);
            for (chunk, word) in (chunks.start..).zip(words.into_iter().flatten()) {
                if let Some(next) = change(*word) {
                    changed(chunk, std::mem::replace(word, next));
                }
            }
            chunks.start = end;
        }
    }

    /// As [`super::bits::ChunkCounters::first`].
    pub(super) fn first(&self, mut chunks: Range<u64>, bits: u64) -> Option<u64> {
        while !chunks.is_empty() {
            let mut table = self.0.lock();
            let (end, words) = table.part(&chunks);
            let found = words.and_then(|words| words.iter().position(|word| *word & bits != 0));
            if let Some(found) = found {
                return Some(chunks.start + found as u64);
            }
            chunks.start = end;
        }
        None
    }

    /// Bytes of memory taken so far.
    pub(super) fn memory_bytes(&self) -> u64 {
        let table = self.0.lock();
        let pages = table.0.iter().flatten().count() as u64;
        pages * PAGE_WORDS * 8 + (table.0.capacity() * size_of::<Option<Box<[u64]>>>()) as u64
    }
}
