//! A volume in memory, with places that are slow, broken or full on demand.

use engine::buffer::{Gather, Pool};
use engine::error::VolumeError;
use engine::volume::{Space, Volume, VolumeInfo, ZeroFlags};
use host::ring::Ring;
use host::shard::ShardContext;
use std::ops::Range;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, RwLock};
use std::time::Duration;

/// Reads come in pieces of this size, as from chunks on several members.
const PIECE_BYTES: u64 = 64 << 10;

/// What all shards share.
pub struct Memory {
    bytes: RwLock<Vec<u8>>,
    block_bytes: u32,
    /// Reads that begin here take 200 ms.
    slow: Range<u64>,
    /// Everything that touches this fails.
    broken: Range<u64>,
    pub flushes: AtomicU64,
    pub fua_writes: AtomicU64,
    pub holes: AtomicU64,
}

impl Memory {
    pub fn new(size_bytes: usize, block_bytes: u32) -> Self {
        Memory {
            bytes: RwLock::new(vec![0; size_bytes]),
            block_bytes,
            slow: 0..0,
            broken: 0..0,
            flushes: AtomicU64::new(0),
            fua_writes: AtomicU64::new(0),
            holes: AtomicU64::new(0),
        }
    }

    /// Reads that begin in `range` take 200 ms.
    pub fn slow(self, range: Range<u64>) -> Self {
        Memory { slow: range, ..self }
    }

    /// Everything that touches `range` fails.
    pub fn broken(self, range: Range<u64>) -> Self {
        Memory { broken: range, ..self }
    }

    /// Fills all of it with numbered words.
    pub fn fill(&self) {
        let mut bytes = self.bytes.write().expect("no panic");
        for (number, word) in (0u64..).zip(bytes.chunks_exact_mut(8)) {
            word.copy_from_slice(&(number.wrapping_mul(0x9e37_79b9_7f4a_7c15)).to_be_bytes());
        }
    }

    pub fn contents(&self) -> Vec<u8> {
        self.bytes.read().expect("no panic").clone()
    }

    /// The function that gives a shard its handle.
    pub fn opener(memory: &Arc<Self>) -> impl Fn(&ShardContext) -> Rc<MemoryVolume> + Send + Sync + 'static {
        let memory = Arc::clone(memory);
        move |shard| {
            let (pool, ring) = (Arc::clone(&shard.pool), shard.ring.clone());
            Rc::new(MemoryVolume { memory: Arc::clone(&memory), pool, ring })
        }
    }
}

/// One shard's handle.
pub struct MemoryVolume {
    memory: Arc<Memory>,
    pool: Arc<Pool>,
    ring: Ring,
}

impl MemoryVolume {
    fn check(&self, offset_bytes: u64, bytes: u64) -> Result<Range<usize>, VolumeError> {
        let broken = &self.memory.broken;
        if offset_bytes < broken.end && broken.start < offset_bytes + bytes {
            return Err(VolumeError::Io { reason: "two members too many are gone".to_owned() });
        }
        let at = |offset: u64| usize::try_from(offset).expect("64-bit tests");
        Ok(at(offset_bytes)..at(offset_bytes + bytes))
    }
}

impl Volume for MemoryVolume {
    fn info(&self) -> VolumeInfo {
        VolumeInfo {
            size_bytes: self.memory.bytes.read().expect("no panic").len() as u64,
            logical_block_bytes: self.memory.block_bytes,
            physical_block_bytes: 4096,
            io_min_bytes: 64 << 10,
            io_opt_bytes: 256 << 10,
            read_only: false,
        }
    }
}

impl Space for MemoryVolume {
    async fn read(&self, offset_bytes: u64, bytes: u64) -> Result<Gather, VolumeError> {
        let range = self.check(offset_bytes, bytes)?;
        if self.memory.slow.contains(&offset_bytes) {
            self.ring.sleep(Duration::from_millis(200)).await;
        }
        let memory = self.memory.bytes.read().expect("no panic");
        let pieces = memory[range].chunks(usize::try_from(PIECE_BYTES).expect("small"));
        Ok(pieces
            .map(|piece| {
                let mut buffer = self.pool.take(piece.len());
                buffer.bytes_mut().copy_from_slice(piece);
                buffer.freeze()
            })
            .collect())
    }

    async fn write(&self, offset_bytes: u64, data: Gather, fua: bool) -> Result<(), VolumeError> {
        let range = self.check(offset_bytes, data.len() as u64)?;
        self.memory.fua_writes.fetch_add(u64::from(fua), Ordering::Relaxed);
        data.copy_to(&mut self.memory.bytes.write().expect("no panic")[range]);
        Ok(())
    }

    async fn flush(&self) -> Result<(), VolumeError> {
        self.memory.flushes.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    async fn write_zeroes(&self, offset_bytes: u64, bytes: u64, how: ZeroFlags) -> Result<(), VolumeError> {
        let range = self.check(offset_bytes, bytes)?;
        self.memory.holes.fetch_add(u64::from(how.may_unmap), Ordering::Relaxed);
        self.memory.bytes.write().expect("no panic")[range].fill(0);
        Ok(())
    }

    async fn discard(&self, offset_bytes: u64, bytes: u64) -> Result<(), VolumeError> {
        self.check(offset_bytes, bytes).map(|_| ())
    }
}
