//! What every logical block of the array may hold.
//!
//! A block has an entry for each write that may be what it holds:
//! - A write that was acknowledged takes the place of every write that had ended before it began. Of writes in flight
//!   at the same time any may win.
//! - A write that failed, and a discard, may be there or not, block by block.
//! - A read may find whatever had not been replaced when it began, or came since. Once it found one of several with
//!   nothing in flight, that is what the block holds.
//! - After a power cut a block may hold whatever was not replaced by a write that is *durable*: acknowledged with FUA,
//!   or before a flush began that was acknowledged.
//! - Copies that a power cut left different are the first one's contents until the resync is over, and any one's after
//!   another cut before that, for the first may be away then.

use std::ops::Range;

use crate::pages::Content;

/// A moment; no two are the same.
pub(crate) type Moment = u64;
const NEVER: Moment = Moment::MAX;

#[derive(Clone, Debug)]
struct Entry {
    write: u32,
    content: Content,
    began: Moment,
    ended: Moment,
    /// When it was no longer what a later read may find.
    replaced: Moment,
    /// It was acknowledged, so it takes the place of what was before.
    acknowledged: bool,
    durable: bool,
    /// A durable write took its place.
    buried: bool,
    /// It failed on a level that keeps copies: they may differ for good.
    split: bool,
    /// Only another copy has it, until the resync is over.
    elsewhere: bool,
}

#[derive(Clone, Debug)]
struct Block {
    entries: Vec<Entry>,
    /// It is in the list of blocks with acknowledged writes that are not durable.
    listed: bool,
}

/// A write in flight.
#[derive(Clone, Debug)]
pub(crate) struct Write {
    pub(crate) number: u32,
    pub(crate) content: Content,
    pub(crate) blocks: Range<u64>,
}

/// A read in flight.
pub(crate) struct Read {
    began: Moment,
}

/// A flush in flight.
pub(crate) struct Flush {
    began: Moment,
}

#[derive(Clone)]
pub(crate) struct Oracle {
    blocks: Vec<Option<Box<Block>>>,
    now: Moment,
    writes: u32,
    reading: Vec<Moment>,
    /// Blocks with acknowledged writes that are not durable.
    volatile: Vec<u64>,
    mirrored: bool,
}

impl Oracle {
    /// An array of `blocks` logical blocks of zeroes.
    pub(crate) fn new(blocks: u64, mirrored: bool) -> Self {
        let blocks = vec![None; usize::try_from(blocks).expect("a small array")];
        Oracle { blocks, now: 0, writes: 0, reading: Vec::new(), volatile: Vec::new(), mirrored }
    }

    /// A write begins: of data, or of zeroes.
    pub(crate) fn begin_write(&mut self, blocks: Range<u64>, zeroes: bool) -> Write {
        let began = self.tick();
        self.writes += 1;
        let number = self.writes;
        let content = if zeroes { 0 } else { number };
        let oldest_read = self.reading.iter().copied().min().unwrap_or(NEVER);
        for block in blocks.clone() {
            let block = self.block_mut(block);
            block.entries.retain(|entry| !(entry.buried && entry.replaced < oldest_read));
            block.entries.push(Entry {
                write: number,
                content,
                began,
                ended: NEVER,
                replaced: NEVER,
                acknowledged: false,
                durable: false,
                buried: false,
                split: false,
                elsewhere: false,
            });
        }
        Write { number, content, blocks }
    }

    /// A write was acknowledged; with `durable` it was one with FUA.
    pub(crate) fn acknowledged(&mut self, write: &Write, durable: bool) {
        let now = self.tick();
        for number in write.blocks.clone() {
            let block = self.block_mut(number);
            let own = block.own(write.number);
            (own.ended, own.acknowledged, own.durable) = (now, true, durable);
            let began = own.began;
            for entry in block.entries.iter_mut().filter(|entry| entry.ended < began) {
                entry.replaced = entry.replaced.min(now);
                entry.buried |= durable;
            }
            if !durable && !std::mem::replace(&mut block.listed, true) {
                self.volatile.push(number);
            }
        }
    }

    /// A write failed, or a discard ended either way.
    pub(crate) fn in_doubt(&mut self, write: &Write, failed: bool) {
        let (now, split) = (self.tick(), failed && self.mirrored);
        for block in write.blocks.clone() {
            let own = self.block_mut(block).own(write.number);
            (own.ended, own.split) = (now, split);
        }
    }

    pub(crate) fn begin_flush(&mut self) -> Flush {
        Flush { began: self.tick() }
    }

    /// A flush was acknowledged. Returns the blocks whose durable contents it decided.
    pub(crate) fn flushed(&mut self, flush: &Flush) -> Vec<u64> {
        let mut decided = Vec::new();
        for number in std::mem::take(&mut self.volatile) {
            let block = self.block_mut(number);
            let before = |entry: &Entry| entry.acknowledged && !entry.durable;
            for at in 0..block.entries.len() {
                if before(&block.entries[at]) && block.entries[at].ended < flush.began {
                    block.entries[at].durable = true;
                    let began = block.entries[at].began;
                    block.entries.iter_mut().filter(|e| e.ended < began).for_each(|e| e.buried = true);
                }
            }
            block.listed = block.entries.iter().any(before);
            if block.listed {
                self.volatile.push(number);
            }
            decided.push(number);
        }
        decided
    }

    pub(crate) fn begin_read(&mut self) -> Read {
        let began = self.tick();
        self.reading.push(began);
        Read { began }
    }

    /// Whether a read may find this content in a block. If it may, and nothing else is in flight there, later reads
    /// find it too.
    pub(crate) fn found(&mut self, read: &Read, block: u64, content: Content) -> bool {
        let now = self.tick();
        let Some(block) = &mut self.blocks[block as usize] else { return content == 0 };
        let found = block.entries.iter().any(|e| e.content == content && e.replaced > read.began);
        let quiet = block.entries.iter().all(|e| e.ended < read.began && !e.split);
        if found && quiet {
            let others = block.entries.iter_mut().filter(|e| e.content != content);
            others.for_each(|entry| entry.replaced = entry.replaced.min(now));
        }
        found
    }

    pub(crate) fn end_read(&mut self, read: &Read) {
        self.reading.retain(|began| *began != read.began);
    }

    /// Whether a block may hold this content now.
    pub(crate) fn may_hold(&self, block: u64, content: Content) -> bool {
        match &self.blocks[block as usize] {
            None => content == 0,
            Some(block) => block.entries.iter().any(|e| e.content == content && e.replaced == NEVER),
        }
    }

    /// Whether a block may hold this content after a power cut now.
    pub(crate) fn may_survive(&self, block: u64, content: Content) -> bool {
        match &self.blocks[block as usize] {
            None => content == 0,
            Some(block) => block.entries.iter().any(|e| e.content == content && !e.buried),
        }
    }

    /// Blocks that were ever written.
    pub(crate) fn touched(&self) -> Vec<u64> {
        (0..).zip(&self.blocks).filter(|(_, block)| block.is_some()).map(|(number, _)| number).collect()
    }

    /// Whether any of these blocks was ever written.
    pub(crate) fn any_touched(&self, blocks: Range<u64>) -> bool {
        self.blocks[blocks.start as usize..blocks.end as usize].iter().any(Option::is_some)
    }

    /// The power was cut: whatever may have survived is what a read may find.
    pub(crate) fn cut(&mut self) {
        let now = self.tick();
        self.reading.clear();
        for block in self.blocks.iter_mut().flatten() {
            block.entries.retain(|entry| !entry.buried);
            for entry in &mut block.entries {
                (entry.ended, entry.replaced) = (entry.ended.min(now), NEVER);
                entry.acknowledged &= entry.durable;
            }
            block.listed = false;
        }
        self.volatile.clear();
    }

    /// A block is known to hold this, durably; other copies hold the others.
    pub(crate) fn settle(&mut self, number: u64, content: Content, others: &[Content]) {
        let now = self.tick();
        let block = self.block_mut(number);
        let keep =
            block.entries.iter().position(|entry| entry.content == content).expect("an allowed content");
        let mut entry = block.entries.swap_remove(keep);
        (entry.ended, entry.replaced) = (entry.ended.min(now), NEVER);
        (entry.acknowledged, entry.durable, entry.buried, entry.split) = (true, true, false, false);
        entry.elsewhere = false;
        block.entries.retain(|entry| others.contains(&entry.content));
        for other in &mut block.entries {
            (other.ended, other.replaced) = (other.ended.min(now), now);
            (other.acknowledged, other.durable, other.split, other.elsewhere) = (false, false, false, true);
        }
        block.entries.push(entry);
    }

    /// The copies of every block are the same again.
    pub(crate) fn resynced(&mut self) {
        self.blocks.iter_mut().flatten().for_each(|block| block.entries.retain(|entry| !entry.elsewhere));
    }

    /// What a block may hold, for a message.
    pub(crate) fn expected(&self, number: u64) -> String {
        let Some(block) = &self.blocks[number as usize] else { return "zeroes, never written".to_string() };
        let words = |entry: &Entry| {
            let name = match entry.content {
                0 => format!("zeroes of {}", entry.write),
                content => format!("write {content}"),
            };
            let state = match (entry.ended, entry.acknowledged) {
                (NEVER, _) => "in flight",
                (_, true) => "acknowledged",
                (_, false) => "in doubt",
            };
            let durable = if entry.durable { ", durable" } else { "" };
            let replaced = if entry.replaced == NEVER { "" } else { ", replaced" };
            let buried = if entry.buried { " for good" } else { "" };
            format!("{name} ({state}{durable}{replaced}{buried})")
        };
        block.entries.iter().map(words).collect::<Vec<_>>().join("; ")
    }

    fn tick(&mut self) -> Moment {
        self.now += 1;
        self.now
    }

    fn block_mut(&mut self, number: u64) -> &mut Block {
        self.blocks[number as usize].get_or_insert_with(|| {
            let zeroes = Entry {
                write: 0,
                content: 0,
                began: 0,
                ended: 0,
                replaced: NEVER,
                acknowledged: true,
                durable: true,
                buried: false,
                split: false,
                elsewhere: false,
            };
            Box::new(Block { entries: vec![zeroes], listed: false })
        })
    }
}

impl Block {
    fn own(&mut self, write: u32) -> &mut Entry {
        self.entries.iter_mut().find(|entry| entry.write == write).expect("a write in flight has its entry")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn acknowledged_writes_replace_what_ended_before() {
        let mut oracle = Oracle::new(4, false);
        let first = oracle.begin_write(0..2, false);
        let read = oracle.begin_read();
        oracle.acknowledged(&first, false);
        assert!(oracle.found(&read, 0, 0) || oracle.found(&read, 0, first.content), "both are in flight");
        let second = oracle.begin_write(0..1, false);
        let third = oracle.begin_write(0..1, false);
        oracle.acknowledged(&second, false);
        oracle.acknowledged(&third, false);
        for (content, may) in
            [(0, false), (first.content, false), (second.content, true), (third.content, true)]
        {
            assert_eq!(oracle.may_hold(0, content), may, "write {content}");
            assert!(oracle.may_survive(0, content), "nothing is durable yet");
        }
        let later = oracle.begin_read();
        assert!(oracle.found(&later, 0, third.content));
        assert!(!oracle.may_hold(0, second.content), "a block does not change by itself");
    }

    #[test]
    fn flush_and_fua_decide_what_survives() {
        let mut oracle = Oracle::new(4, false);
        let first = oracle.begin_write(0..1, false);
        oracle.acknowledged(&first, false);
        let flush = oracle.begin_flush();
        let second = oracle.begin_write(0..1, false);
        oracle.acknowledged(&second, false);
        oracle.flushed(&flush);
        assert!(!oracle.may_survive(0, 0) && oracle.may_survive(0, first.content));
        let third = oracle.begin_write(0..1, true);
        oracle.acknowledged(&third, true);
        assert!(!oracle.may_survive(0, second.content) && oracle.may_survive(0, 0));
    }

    #[test]
    fn copies_that_differ_may_change_places_at_the_next_cut_before_the_end_of_the_resync() {
        let mut oracle = Oracle::new(1, true);
        let write = oracle.begin_write(0..1, false);
        oracle.cut();
        oracle.settle(0, write.content, &[0]);
        let read = oracle.begin_read();
        assert!(!oracle.found(&read, 0, 0) && oracle.found(&read, 0, write.content));
        let mut later = oracle.clone();
        oracle.cut();
        assert!(oracle.may_hold(0, 0) && oracle.may_survive(0, write.content));
        later.resynced();
        later.cut();
        assert!(!later.may_survive(0, 0) && later.may_survive(0, write.content));
    }

    #[test]
    fn a_failed_write_is_there_or_not() {
        let mut oracle = Oracle::new(1, false);
        let write = oracle.begin_write(0..1, false);
        oracle.in_doubt(&write, true);
        assert!(oracle.may_hold(0, 0) && oracle.may_hold(0, write.content));
        let next = oracle.begin_write(0..1, false);
        oracle.acknowledged(&next, true);
        assert!(!oracle.may_hold(0, 0) && !oracle.may_survive(0, write.content));
    }
}
