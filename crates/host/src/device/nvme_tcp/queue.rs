//! A shard's way to a member on another machine: the device as the engine sees it.

use std::cell::Cell;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use engine::buffer::{Buffer, Gather};
use engine::device::{Device, DeviceError, DeviceInfo, PeerMember};
use engine::executor::Executor;

use super::member::RemoteMember;
use super::open::Attached;
use super::operations::{VendorWork, Work};
use super::shard_queue::ShardQueue;
use super::transfer::{carry, watch};
use super::vendor::{VendorCommand, VendorReply};
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

    pub(super) fn member(&self) -> &RemoteMember {
        &self.queue().member
    }

    pub(super) fn ring(&self) -> Ring {
        self.queue().ring.clone()
    }

    fn done(&self, name: &'static str, work: Work, offset: DeviceOffset, bytes: u64) -> DeviceDone {
        DeviceDone(self.queue().start(name, work, offset, bytes))
    }
}

/// A command of the vendor's range in flight.
pub struct VendorDone {
    done: DeviceDone,
    reply: Rc<Cell<Option<VendorReply>>>,
}

impl Future for VendorDone {
    type Output = Result<VendorReply, DeviceError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let done = ready!(Pin::new(&mut self.done).poll(context));
        Poll::Ready(done.map(|()| self.reply.take().expect("a command without an error has a reply")))
    }
}

impl RemoteDevice {
    /// Sends a command of the vendor's range.
    #[must_use]
    pub fn send(&self, name: &'static str, command: VendorCommand) -> VendorDone {
        let VendorCommand { sqe, data, bytes_in, sent, is_volatile } = command;
        let reply = Rc::new(Cell::new(None));
        let buffer = (bytes_in > 0).then(|| self.queue().pool.take(bytes_in as usize));
        let own = Rc::clone(&reply);
        let work = VendorWork { sqe, data, buffer, bytes_in, sent, reply: own, is_volatile };
        let done = self.done(name, Work::Vendor(Box::new(work)), DeviceOffset::START, 0);
        VendorDone { done, reply }
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

    fn peer(&self) -> Option<&dyn PeerMember> {
        Some(self)
    }
}
