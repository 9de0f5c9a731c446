//! Commands that a driver takes over its character device, and the data of its requests there.

use engine::buffer::{Buffer, Gather};
use std::future::Future;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use super::op::{COMMAND_BYTES, Op, Target};
use super::transfer::{DeviceDone, DeviceRead};
use super::{InFlight, Ring};

impl Ring {
    /// A character device as this ring knows it: its driver copies to and from any memory but registered buffers.
    ///
    /// It is not among the registered files. Up to Linux 6.12 a ring lets go of registered files in the order in which they
    /// were removed, each after all operations that had begun by then on any of them: a command that waits for its driver
    /// would hold every member that is removed meanwhile.
    pub(crate) fn character_device(&self, fd: Arc<OwnedFd>) -> Rc<Target> {
        Rc::new(Target {
            fd,
            direct: false,
            takes_fixed: false,
            registered: None,
            late: Arc::default(),
            lane: std::cell::RefCell::default(),
        })
    }

    /// Sends a command. Its future dropped, it goes on: only the driver or the end of the ring ends it.
    /// `address` goes into the entry's field of that name.
    pub(crate) fn command(
        &self,
        file: &Rc<Target>,
        command: u32,
        payload: [u8; COMMAND_BYTES],
        address: u64,
    ) -> Command {
        Command(self.start(Op::Command { file: Rc::clone(file), command, payload, address }))
    }

    /// Fills `buffer` from `offset` on.
    pub(crate) fn copy_in(&self, file: &Rc<Target>, offset: u64, buffer: Buffer) -> DeviceRead {
        DeviceRead(self.start(Op::Read { file: Rc::clone(file), buffer, offset, done: 0, fixed: None }))
    }

    /// Writes all of `data` at `offset`.
    pub(crate) fn copy_out(&self, file: &Rc<Target>, offset: u64, data: Gather) -> DeviceDone {
        let file = Rc::clone(file);
        DeviceDone(self.start(Op::Write { file, data, offset, done: 0, fixed: None, fua: false }))
    }
}

/// A driver's answer to come: its result, an error number negated.
pub(crate) struct Command(InFlight);

impl Future for Command {
    type Output = i32;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<i32> {
        ready!(self.0.poll(context));
        Poll::Ready(self.0.take(|_, result| result))
    }
}
