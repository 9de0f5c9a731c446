//! The generations of every block: issued, acknowledged, flushed; in memory, and in a file that can be copied at any
//! moment.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context, Result, bail};
use parking_lot::Mutex;

/// Which generation a block must at least hold.
#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Least {
    Acknowledged,
    Flushed,
}

/// The state file holds three tables of one little-endian word a block, in this order.
const TABLES: usize = 3;

pub struct State {
    tables: [Vec<AtomicU32>; TABLES],
    file: File,
    flushing: Mutex<()>,
}

const ISSUED: usize = 0;
const ACKNOWLEDGED: usize = 1;
const FLUSHED: usize = 2;

impl State {
    /// A file in which no block was ever written.
    pub fn create(path: &Path, blocks: u32) -> Result<Self> {
        std::fs::write(path, vec![0; blocks as usize * 4 * TABLES])
            .with_context(|| path.display().to_string())?;
        Self::open(path, blocks)
    }

    /// # Errors
    /// If the file is of a device of another size.
    pub fn open(path: &Path, blocks: u32) -> Result<Self> {
        let bytes = std::fs::read(path).with_context(|| path.display().to_string())?;
        let knows = bytes.len() / 4 / TABLES;
        if knows != blocks as usize {
            bail!("the device has {blocks} blocks, {} knows {knows}", path.display());
        }
        let word = |bytes: &[u8]| AtomicU32::new(u32::from_le_bytes(bytes.try_into().expect("four bytes")));
        let table =
            |at: usize| bytes[at * knows * 4..(at + 1) * knows * 4].chunks_exact(4).map(word).collect();
        let file = File::options().write(true).open(path)?;
        Ok(Self { tables: [ISSUED, ACKNOWLEDGED, FLUSHED].map(table), file, flushing: Mutex::new(()) })
    }

    /// After a check: what each block was found to hold is what it must hold from now on.
    pub fn settle(path: &Path, found: &[u32]) -> Result<()> {
        let table: Vec<u8> = found.iter().flat_map(|generation| generation.to_le_bytes()).collect();
        std::fs::write(path, table.repeat(TABLES)).with_context(|| path.display().to_string())
    }

    /// New generations for `count` blocks from `first` on, written down before their request goes out.
    pub fn issue(&self, first: u32, count: u32) -> Result<Vec<u32>> {
        let next = |block: u32| self.get(ISSUED, block) + 1;
        let generations: Vec<u32> = (first..first + count).map(next).collect();
        self.put(ISSUED, first, &generations)?;
        Ok(generations)
    }

    /// Their request has ended well.
    pub fn acknowledge(&self, first: u32, generations: &[u32]) -> Result<()> {
        self.put(ACKNOWLEDGED, first, generations)
    }

    /// What is acknowledged now, for `flushed` when a flush that begins after this has ended.
    pub fn acknowledged(&self) -> Vec<u32> {
        self.tables[ACKNOWLEDGED].iter().map(|word| word.load(Ordering::Acquire)).collect()
    }

    /// A flush has ended that began after these were acknowledged. Flushes may end in any order.
    pub fn flushed(&self, acknowledged: &[u32]) -> Result<()> {
        let _one_at_a_time = self.flushing.lock();
        let newer = (0..).zip(acknowledged).map(|(block, &word)| word.max(self.get(FLUSHED, block)));
        let newer: Vec<u32> = newer.collect();
        self.put(FLUSHED, 0, &newer)
    }

    /// The oldest and the newest generation that a block may hold.
    pub fn allowed(&self, block: u32, least: Least) -> (u32, u32) {
        let table = if least == Least::Flushed { FLUSHED } else { ACKNOWLEDGED };
        (self.get(table, block), self.get(ISSUED, block))
    }

    fn get(&self, table: usize, block: u32) -> u32 {
        self.tables[table][block as usize].load(Ordering::Acquire)
    }

    fn put(&self, table: usize, first: u32, generations: &[u32]) -> Result<()> {
        let blocks = self.tables[table].len();
        for (word, &generation) in self.tables[table][first as usize..].iter().zip(generations) {
            word.store(generation, Ordering::Release);
        }
        let bytes: Vec<u8> = generations.iter().flat_map(|generation| generation.to_le_bytes()).collect();
        let at = (table * blocks + first as usize) as u64 * 4;
        self.file.write_all_at(&bytes, at).context("the state file")
    }
}
