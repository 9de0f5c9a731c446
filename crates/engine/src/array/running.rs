//! An array at work: the tasks that look after it, and how they end.

use std::rc::Rc;

use super::manager::Manager;
use super::platform::Platform;
use super::superblock_writer::SuperblockWriter;
use crate::device::Device;
use crate::error::VolumeError;
use crate::in_place::InPlace;
use crate::limits::{BITMAP_CLEAR_S_MAX, LOOK_NS};

/// An array that was started and is not stopped yet. Lives on one shard.
pub struct Running<D, P> {
    manager: Rc<Manager<D, P>>,
}

impl<D: Device, P: Platform<D>> Running<D, P> {
    /// Begins the tasks of an array whose metadata is ready to be written.
    pub(super) fn begin(
        set: &InPlace<D>,
        writer: &Rc<SuperblockWriter<D>>,
        manager: Rc<Manager<D, P>>,
    ) -> Self {
        let executor = &set.executor;
        if let Some(bitmap) = writer.bitmap() {
            executor.spawn(async move { bitmap.run().await });
            if set.shared.members.may_write() {
                executor.spawn(clear_idle_bits(Rc::clone(&manager)));
            }
        }
        let writer = Rc::clone(writer);
        executor.spawn(async move { writer.run().await });
        let managing = Rc::clone(&manager);
        executor.spawn(async move { managing.run().await });
        Running { manager }
    }

    /// What looks after the array.
    pub fn manager(&self) -> &Rc<Manager<D, P>> {
        &self.manager
    }

    /// Stops the array: clients are gone. First the manager, so that nothing new begins; then the last superblocks, which say
    /// clean unless something is left to resync; then the flusher of the bitmap. Whether the superblocks say clean.
    ///
    /// # Errors
    /// What was written could not be made durable, or superblocks not written: the array is dirty.
    pub async fn stop(&self) -> Result<bool, VolumeError> {
        self.manager.stop().await;
        let writer = self.manager.writer();
        let stopped = writer.stop().await;
        writer.stop_flusher();
        stopped.map(|()| writer.superblocks().says_clean())
    }
}

/// Clears bits of idle chunks every few seconds, as the bitmap's superblock has it.
async fn clear_idle_bits<D: Device, P: Platform<D>>(manager: Rc<Manager<D, P>>) {
    let platform = Rc::clone(manager.platform());
    let sleep_s = manager.writer().bitmap().map_or(0, |bitmap| bitmap.superblock().daemon_sleep_s());
    let sleep_ns = u64::from(sleep_s.clamp(1, BITMAP_CLEAR_S_MAX)) * 1_000_000_000;
    let mut cleared_ns = platform.now_ns();
    while !manager.is_stopping() {
        platform.sleep(LOOK_NS).await;
        if platform.now_ns().saturating_sub(cleared_ns) >= sleep_ns {
            cleared_ns = platform.now_ns();
            manager.writer().clear_idle_bits().await;
        }
    }
}
