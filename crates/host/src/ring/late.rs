//! Writes beyond their time limit. Nobody waits for them any more, but the device may still make them: over what was
//! written there since, and acknowledged. So nothing else is sent to a device before they have ended.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// How many such writes a device owes an answer to, on all shards.
#[derive(Debug, Default)]
pub(crate) struct LateWrites(AtomicU32);

impl LateWrites {
    #[inline]
    pub(crate) fn any(&self) -> bool {
        self.0.load(Ordering::SeqCst) > 0
    }
}

/// One of them, until it is dropped.
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
