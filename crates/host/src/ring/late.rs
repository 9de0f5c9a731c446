//! Late writes: writes, discards and zeroes beyond their time limit. Their futures have returned, but the device may still
//! make them, on top of data that was written there since and acknowledged. So nothing else is sent to a device before its
//! late writes have ended (the contract in [`engine::device`]).

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// How many late writes a device has, on all shards.
#[derive(Debug, Default)]
pub(crate) struct LateWrites(AtomicU32);

impl LateWrites {
    #[inline]
    pub(crate) fn any(&self) -> bool {
        self.0.load(Ordering::SeqCst) > 0
    }
}

/// Counts one late write until it is dropped.
#[derive(Debug)]
pub(crate) struct LateWrite(Arc<LateWrites>);

impl LateWrite {
    pub(crate) fn new(device: &Arc<LateWrites>) -> Self {
        device.0.fetch_add(1, Ordering::SeqCst);
        LateWrite(Arc::clone(device))
    }
}

impl Drop for LateWrite {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::SeqCst);
    }
}
