//! A volume in memory whose writes can be held up.

use engine::buffer::{Gather, Pool};
use engine::error::VolumeError;
use engine::volume::{Space, Volume, VolumeInfo, ZeroFlags};
use host::ring::Ring;
use host::shard::ShardContext;
use std::ops::Range;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// What all shards share.
pub struct Memory {
    bytes: Mutex<Vec<u8>>,
    pub paused: AtomicBool,
    /// Writes that are held up.
    pub waiting: AtomicUsize,
}

impl Memory {
    pub fn new(size_bytes: usize) -> Arc<Self> {
        let bytes = Mutex::new(vec![0; size_bytes]);
        Arc::new(Memory { bytes, paused: AtomicBool::new(false), waiting: AtomicUsize::new(0) })
    }

    pub fn resize(&self, size_bytes: usize) {
        self.bytes.lock().expect("no panic").resize(size_bytes, 0);
    }

    pub fn byte(&self, at: usize) -> u8 {
        self.bytes.lock().expect("no panic")[at]
    }

    /// The function that gives a shard its handle.
    pub fn opener(memory: &Arc<Self>) -> impl Fn(&ShardContext) -> Rc<PausedVolume> + Send + Sync + 'static {
        let memory = Arc::clone(memory);
        move |shard| {
            let (pool, ring) = (Arc::clone(&shard.pool), shard.ring.clone());
            Rc::new(PausedVolume { memory: Arc::clone(&memory), pool, ring })
        }
    }
}

/// One shard's handle.
pub struct PausedVolume {
    memory: Arc<Memory>,
    pool: Arc<Pool>,
    ring: Ring,
}

fn range(offset_bytes: u64, bytes: u64) -> Range<usize> {
    offset_bytes as usize..(offset_bytes + bytes) as usize
}

impl Volume for PausedVolume {
    fn info(&self) -> VolumeInfo {
        VolumeInfo {
            size_bytes: self.memory.bytes.lock().expect("no panic").len() as u64,
            logical_block_bytes: 4096,
            physical_block_bytes: 4096,
            io_min_bytes: 4096,
            io_opt_bytes: 0,
            read_only: false,
        }
    }
}

impl Space for PausedVolume {
    async fn read(&self, offset_bytes: u64, bytes: u64) -> Result<Gather, VolumeError> {
        let mut buffer = self.pool.take(bytes as usize);
        let memory = self.memory.bytes.lock().expect("no panic");
        buffer.bytes_mut().copy_from_slice(&memory[range(offset_bytes, bytes)]);
        Ok(buffer.freeze().into())
    }

    async fn write(&self, offset_bytes: u64, data: Gather, _fua: bool) -> Result<(), VolumeError> {
        self.memory.waiting.fetch_add(1, Ordering::SeqCst);
        while self.memory.paused.load(Ordering::SeqCst) {
            self.ring.sleep(Duration::from_millis(1)).await;
        }
        self.memory.waiting.fetch_sub(1, Ordering::SeqCst);
        let mut memory = self.memory.bytes.lock().expect("no panic");
        data.copy_to(&mut memory[range(offset_bytes, data.len() as u64)]);
        Ok(())
    }

    async fn flush(&self) -> Result<(), VolumeError> {
        Ok(())
    }

    async fn write_zeroes(&self, offset_bytes: u64, bytes: u64, _how: ZeroFlags) -> Result<(), VolumeError> {
        self.memory.bytes.lock().expect("no panic")[range(offset_bytes, bytes)].fill(0);
        Ok(())
    }

    async fn discard(&self, _offset_bytes: u64, _bytes: u64) -> Result<(), VolumeError> {
        Ok(())
    }
}
