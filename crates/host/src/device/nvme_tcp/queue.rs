//! A shard's way to a member on another machine: the device as the engine sees it.

use std::rc::Rc;
use std::sync::Arc;

use engine::buffer::{Buffer, Gather};
use engine::device::{Device, DeviceInfo};
use engine::executor::Executor;

use super::open::Attached;
use super::operations::Work;
use super::shard_queue::ShardQueue;
use super::transfer::{carry, watch};
use crate::ring::{DeviceDone, DeviceRead, Ring};
use layout::units::DeviceOffset;

/// A member on another machine as one shard sees it. Clones are handles to the same.
#[derive(Clone)]
pub struct RemoteDevice {
    handle: Rc<Handle>,
}

/// Ends the queue's tasks with the last device.
struct Handle(Rc<ShardQueue>);

impl Drop for Handle {
    fn drop(&mut self) {
        self.0.close();
    }
}

impl RemoteDevice {
    /// The way to `attached` for the shard that has `ring` and runs this.
    ///
    /// # Panics
    /// If no executor runs the caller.
    pub fn new(attached: &Arc<Attached>, ring: &Ring) -> Self {
        let executor = Executor::current().expect("a shard attaches its devices");
        let queue = ShardQueue::new(attached, ring);
        executor.spawn(carry(Rc::clone(&queue)));
        executor.spawn(watch(Rc::clone(&queue)));
        queue.member.register(&queue.port);
        RemoteDevice { handle: Rc::new(Handle(queue)) }
    }

    fn queue(&self) -> &ShardQueue {
        &self.handle.0
    }

    fn done(&self, name: &'static str, work: Work, offset: DeviceOffset, bytes: u64) -> DeviceDone {
        DeviceDone(self.queue().start(name, work, offset, bytes))
    }
}

impl Device for RemoteDevice {
    type Read = DeviceRead;
    type Done = DeviceDone;

    fn info(&self) -> &DeviceInfo {
        &self.queue().member.info
    }

    fn read(&self, offset: DeviceOffset, buffer: Buffer) -> DeviceRead {
        let bytes = buffer.len() as u64;
        DeviceRead(self.queue().start("read", Work::Read(Some(buffer)), offset, bytes))
    }

    fn write(&self, offset: DeviceOffset, data: Gather, fua: bool) -> DeviceDone {
        let bytes = data.len() as u64;
        self.done("write", Work::Write { data, fua }, offset, bytes)
    }

    fn flush(&self) -> DeviceDone {
        self.done("flush", Work::Flush, DeviceOffset::START, 0)
    }

    fn discard(&self, offset: DeviceOffset, bytes: u64) -> DeviceDone {
        self.done("discard", Work::Discard, offset, bytes)
    }

    fn write_zeroes(&self, offset: DeviceOffset, bytes: u64, may_unmap: bool) -> DeviceDone {
        self.done("write zeroes", Work::WriteZeroes { may_unmap }, offset, bytes)
    }
}
