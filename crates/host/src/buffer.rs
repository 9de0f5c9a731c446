//! The buffers of a shard: a pool, part of it registered with the ring so that transfers need not pin memory.

use engine::buffer::{FixedRegion, Pool};
use engine::limits::POOL_CLASS_BLOCKS_MAX;
use std::sync::Arc;

use crate::machine::MemoryLimit;
use crate::ring::Ring;

/// How much memory a shard keeps and registers.
#[derive(Clone, Debug)]
pub struct BufferOptions {
    /// Free memory kept for each size class, in bytes.
    pub keep_bytes: usize,
    /// Registered buffers: their size in bytes and their number. For users without CAP_IPC_LOCK their sum counts against
    /// RLIMIT_MEMLOCK, often 8 MiB.
    pub registered: Vec<(usize, u16)>,
}

/// Most registered buffers of a ring: the kernel's limit before 5.13.
const REGISTERED_MAX: usize = 1024;

impl Default for BufferOptions {
    fn default() -> Self {
        // 3.5 MiB: two shards stay below the customary 8 MiB of RLIMIT_MEMLOCK.
        BufferOptions {
            keep_bytes: 64 << 20,
            registered: vec![(4 << 10, 256), (16 << 10, 32), (64 << 10, 32)],
        }
    }
}

impl BufferOptions {
    /// With free memory of all shards, all sizes together, that is no more than a quarter of what the process may have.
    pub fn within(memory: MemoryLimit, shards: usize) -> Self {
        let options = Self::default();
        let sizes = u64::from(POOL_CLASS_BLOCKS_MAX.trailing_zeros()) + 1;
        let most = memory.bytes / 4 / (sizes * shards.max(1) as u64);
        let keep_bytes = options.keep_bytes.min(usize::try_from(most).unwrap_or(usize::MAX));
        BufferOptions { keep_bytes, ..options }
    }
}

/// Makes the pool of the shard that has `ring`. If memory cannot be registered the pool works without, and the log says so.
pub fn pool_for(ring: &Ring, options: &BufferOptions) -> Arc<Pool> {
    let pool = Pool::new(options.keep_bytes);
    if !ring.uses_io_uring() || options.registered.is_empty() {
        return pool;
    }
    let mut regions: Vec<FixedRegion> = Vec::new();
    for &(bytes, count) in &options.registered {
        let room = REGISTERED_MAX - regions.len();
        let first = u16::try_from(regions.len()).expect("at most 1024 regions");
        let count = count.min(u16::try_from(room).expect("at most 1024 regions"));
        regions.extend(pool.prefill_fixed(bytes, count, first));
    }
    let bytes: usize = regions.iter().map(|region| region.bytes).sum();
    match ring.register_buffers(&pool, &regions) {
        Ok(()) => tracing::debug!(bytes, buffers = regions.len(), "buffers registered"),
        Err(error) => {
            tracing::info!(
                bytes,
                %error,
                "buffers are not registered, and each transfer pins its memory: a higher RLIMIT_MEMLOCK (ulimit -l) saves time"
            );
        }
    }
    pool
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::LimitedBy;

    #[test]
    fn free_buffers_of_all_shards_take_no_more_than_a_quarter() {
        for (bytes, shards, keep_bytes) in
            [(1 << 40, 8, 64 << 20), (256 << 20, 1, (64 << 20) / 9), (256 << 20, 4, (16 << 20) / 9)]
        {
            let memory = MemoryLimit { bytes, by: LimitedBy::ControlGroup };
            assert_eq!(BufferOptions::within(memory, shards).keep_bytes, keep_bytes);
        }
    }
}
