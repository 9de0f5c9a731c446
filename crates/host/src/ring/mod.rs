//! One ring for each shard: every operation in flight, with all that it owns.
//!
//! The contract of cancellation:
//! - An operation owns its memory and descriptors from submission to completion. Nothing that a caller does, dropping
//!   the future included, frees them earlier.
//! - Dropping the future of a device operation leaves the operation running, its result is thrown away. Dropping the
//!   future of a socket operation cancels it.
//! - Dropping the last handle to a ring, futures included, cancels what may wait for ever and waits for everything else. An
//!   operation of a device that hangs does not hold up the end for ever: after `DRAIN_LIMIT` the ring is left as it is,
//!   with all memory that operations still name, until the process ends.
//! - Futures are small, `Unpin`, and hold a handle and a slot. Wakers are called while the ring is borrowed: they may
//!   queue a task, not use the ring.
//!
//! The way of an operation: [`Ring`] starts it with all that it owns (`op`), it gets a slot (`slots`) and goes through the
//! lane of its file (`core`, `lane`) into the submission queue (`kernel`); its completion is reaped and wakes the
//! task of its future (`core`), which takes the result (`in_flight`, `futures`). Without io_uring the
//! `fallback` makes the calls; the reap step makes those of memory devices (`copies`, `memory`).

mod backend;
mod clock;
mod copies;
mod core;
mod cost;
mod fallback;
pub(crate) mod file;
mod futures;
mod helper;
pub(crate) mod in_flight;
mod kernel;
mod lane;
pub(crate) mod late;
pub(crate) mod memory;
pub(crate) mod nvme;
pub(crate) mod op;
mod passthrough;
mod registered;
mod slots;
pub(crate) mod system_call;
#[cfg(test)]
mod tests;
mod wake;
pub(crate) mod zone_copy;

use engine::buffer::{Buffer, FixedRegion, Gather, Pool};
use std::cell::RefCell;
use std::io;
use std::ops::Range;
use std::os::fd::{OwnedFd, RawFd};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use self::backend::Backend;
use self::core::Core;
use self::fallback::Fallback;
use self::file::RingFile;
use self::futures::Receiving;
use self::helper::{Helpers, Job};
use self::in_flight::{InFlight, Inner};
use self::kernel::Kernel;
use self::late::LateWrites;
use self::op::Op;
use self::system_call::COMMAND_BYTES;

pub(crate) use self::futures::Readable;
pub use self::futures::{Accept, DeviceDone, DeviceRead, Receive, Send, Sleep, ZoneRead};
pub(crate) use self::futures::{DriverAnswer, NvmePlace, NvmeRead};
pub(crate) use self::slots::Ticket;
pub use self::wake::WakeUp;

/// How long the end of a ring waits for operations in flight. No task waits for them any more: those of a member that hangs have
/// been answered as failed.
const DRAIN_LIMIT: Duration = Duration::from_secs(2);

/// Whether a ring uses io_uring.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RingBackend {
    /// io_uring if the system allows it, else helper threads and `poll`, with a warning.
    #[default]
    Auto,
    /// io_uring or an error.
    IoUring,
    /// Helper threads and `poll`.
    Threads,
}

/// How a ring is set up.
#[derive(Clone, Debug)]
pub struct RingOptions {
    /// Entries of the submission queue: operations that are handed to the kernel in one call.
    pub entries: u32,
    /// Length of the table of registered files: further members are reached by their descriptor.
    pub files: u32,
    /// What makes the calls.
    pub backend: RingBackend,
    /// How long the end of the ring waits for operations that do not end.
    pub drain_limit: Duration,
}

impl Default for RingOptions {
    fn default() -> Self {
        RingOptions { entries: 256, files: 256, backend: RingBackend::Auto, drain_limit: DRAIN_LIMIT }
    }
}

/// A handle to the ring of this shard. Clones are handles to the same one.
#[derive(Clone)]
pub struct Ring {
    inner: Rc<Inner>,
}

impl Ring {
    /// Sets up a ring that this thread will use.
    ///
    /// # Errors
    /// What the system says: no descriptors left, or, if io_uring is asked for by name, that it is not allowed.
    pub fn new(options: &RingOptions) -> io::Result<Self> {
        Self::with_wake(options, Arc::new(WakeUp::new()?))
    }

    /// As [`Ring::new`], with a wake-up that other threads already have.
    pub fn with_wake(options: &RingOptions, wake: Arc<WakeUp>) -> io::Result<Self> {
        let threads = || Backend::Fallback(Box::new(Fallback::new(Arc::clone(&wake))));
        let backend = match options.backend {
            RingBackend::Threads => threads(),
            RingBackend::IoUring => {
                Backend::Kernel(Box::new(Kernel::new(options.entries, options.files, Arc::clone(&wake))?))
            }
            RingBackend::Auto => match Kernel::new(options.entries, options.files, Arc::clone(&wake)) {
                Ok(kernel) => Backend::Kernel(Box::new(kernel)),
                Err(error) => {
                    tracing::warn!(%error, "no io_uring: files and sockets go through helper threads, slower");
                    threads()
                }
            },
        };
        let core = Core::new(backend);
        let helpers = Helpers::new(Arc::clone(&core.mailbox), Arc::clone(&wake));
        let (core, drain_limit) = (RefCell::new(core), options.drain_limit);
        Ok(Ring { inner: Rc::new(Inner { core, wake, helpers, drain_limit }) })
    }

    /// Whether operations go through io_uring.
    pub fn uses_io_uring(&self) -> bool {
        self.inner.core.borrow().backend.is_kernel()
    }

    /// Ends [`Ring::wait`] from another thread.
    pub fn wake_up(&self) -> Arc<WakeUp> {
        Arc::clone(&self.inner.wake)
    }

    /// Completes what can be completed without a call to the system, and wakes the tasks. Returns how much.
    #[inline]
    pub fn reap(&self) -> usize {
        self.inner.core.borrow_mut().reap()
    }

    /// Whether enough copies of memory devices wait for a round: then [`Ring::reap`] comes before more tasks.
    #[inline]
    pub fn has_round(&self) -> bool {
        self.inner.core.borrow().copies.has_round()
    }

    /// Hands queued operations to the system, in one call, if there are any.
    #[inline]
    pub fn submit(&self) {
        self.inner.core.borrow_mut().backend.submit();
    }

    /// Hands queued operations over and sleeps until one completes, a timer ends, the wake-up is called, or `limit`.
    /// Returns at once if copies of memory devices wait for [`Ring::reap`].
    pub fn wait(&self, limit: Option<Duration>) {
        self.inner.core.borrow_mut().wait(limit);
    }

    /// Operations that have not completed, and results that were not taken.
    pub fn operations(&self) -> usize {
        self.inner.core.borrow().slots.occupied()
    }

    /// Starts an operation of a device. After `limit` its future returns, and the operation stays in flight.
    pub(crate) fn start_timed(&self, op: Op, limit: Duration) -> InFlight {
        let slot = self.inner.core.borrow_mut().start_timed(op, limit);
        InFlight::new(&self.inner, slot)
    }

    /// Starts an operation without a time limit.
    #[inline]
    pub(crate) fn start(&self, op: Op) -> InFlight {
        let slot = self.inner.core.borrow_mut().start(op);
        InFlight::new(&self.inner, slot)
    }

    /// Starts an operation that the helper thread of `file` carries out: a call that io_uring does not have.
    pub(crate) fn start_helped(&self, op: Op, limit: Duration, file: RawFd, job: Job) -> InFlight {
        let in_flight = self.start_timed(op, limit);
        self.inner.core.borrow_mut().helped += 1;
        self.inner.helpers.send(file, in_flight.slot(), job);
        in_flight
    }

    /// Starts an operation of a member on another machine, whose queue ends it by [`Ring::finish`].
    pub(crate) fn start_remote(&self, name: &'static str, offset: u64, bytes: u64) -> (InFlight, Ticket) {
        let op = Op::Remote { name, offset, bytes, buffer: None };
        let core = &mut *self.inner.core.borrow_mut();
        let slot = core.start(op);
        (InFlight::new(&self.inner, slot), core.slots.ticket(slot))
    }

    // By value: the ticket is used up.
    #[allow(clippy::needless_pass_by_value)]
    /// Ends an operation of a member on another machine; `buffer` is what a read returns. Wakes its task.
    pub(crate) fn finish(&self, ticket: Ticket, buffer: Option<Buffer>, result: i32) {
        let core = &mut *self.inner.core.borrow_mut();
        core.slots.fill(&ticket, buffer);
        core.complete(ticket.slot, result);
    }

    /// An operation that has failed before it started.
    pub(crate) fn refuse(&self, op: Op, result: i32) -> InFlight {
        let slot = self.inner.core.borrow_mut().slots.insert_finished(op, result);
        InFlight::new(&self.inner, slot)
    }

    /// Returns after `duration`.
    pub fn sleep(&self, duration: Duration) -> Sleep {
        let end = Instant::now() + duration;
        let slot = self.inner.core.borrow_mut().start_sleep(end);
        Sleep(InFlight::new(&self.inner, slot))
    }

    /// Returns once `fd` can be read. Dropped, it waits no longer.
    pub(crate) fn readable(&self, fd: &Rc<OwnedFd>) -> Readable {
        Readable(self.start(Op::Readable { fd: Rc::clone(fd) }))
    }

    /// Accepts one connection.
    pub fn accept(&self, listener: &Rc<OwnedFd>) -> Accept {
        Accept(self.start(Op::Accept { listener: Rc::clone(listener) }))
    }

    /// Receives once into `range` of `buffer`: the count may be less than asked for, 0 is the end of the stream.
    pub fn recv(&self, socket: &Rc<OwnedFd>, buffer: Buffer, range: Range<usize>) -> Receive {
        self.start_receive(socket, buffer, range, false)
    }

    /// Fills `range` of `buffer`, or fails with `UnexpectedEof` if the stream ends before. The count is the length of
    /// the range.
    pub fn recv_exact(&self, socket: &Rc<OwnedFd>, buffer: Buffer, range: Range<usize>) -> Receive {
        self.start_receive(socket, buffer, range, true)
    }

    fn start_receive(
        &self,
        socket: &Rc<OwnedFd>,
        buffer: Buffer,
        range: Range<usize>,
        whole: bool,
    ) -> Receive {
        assert!(range.start <= range.end && range.end <= buffer.len(), "a range inside the buffer");
        if range.is_empty() {
            return Receive(Receiving::Ready(Some(buffer)));
        }
        let socket = Rc::clone(socket);
        Receive(Receiving::Running(self.start(Op::Receive { socket, buffer, range, done: 0, whole })))
    }

    /// Sends all of `data`.
    pub fn send_all(&self, socket: &Rc<OwnedFd>, data: Gather) -> Send {
        if data.is_empty() {
            return Send(None);
        }
        Send(Some(self.start(Op::Send { socket: Rc::clone(socket), data, done: 0 })))
    }

    /// Sends a command to the driver of `file`. `address` goes into the entry's field of that name.
    pub(crate) fn command(
        &self,
        file: &Rc<RingFile>,
        command: u32,
        payload: [u8; COMMAND_BYTES],
        address: u64,
    ) -> DriverAnswer {
        DriverAnswer(self.start(Op::Command { file: Rc::clone(file), command, payload, address }))
    }

    /// Fills `buffer` from `offset` of `file` on, without a time limit.
    pub(crate) fn copy_in(&self, file: &Rc<RingFile>, offset: u64, buffer: Buffer) -> DeviceRead {
        DeviceRead(self.start(Op::Read { file: Rc::clone(file), buffer, offset, done: 0, fixed: None }))
    }

    /// Writes all of `data` at `offset` of `file`, without a time limit.
    pub(crate) fn copy_out(&self, file: &Rc<RingFile>, offset: u64, data: Gather) -> DeviceDone {
        let file = Rc::clone(file);
        DeviceDone(self.start(Op::Write { file, data, offset, done: 0, fixed: None, fua: false }))
    }

    /// A file as this ring knows it: registered if there is room.
    pub(crate) fn open_file(&self, fd: &Arc<OwnedFd>, direct: bool, late: &Arc<LateWrites>) -> Rc<RingFile> {
        let core = &mut *self.inner.core.borrow_mut();
        let registered = core.files.register(&core.backend, fd);
        RingFile::new(Arc::clone(fd), registered, direct, Arc::clone(late))
    }

    /// Closes registered files whose last operation is gone. Called when a device is dropped.
    pub(crate) fn close_files(&self) {
        if let Ok(mut core) = self.inner.core.try_borrow_mut() {
            let core = &mut *core;
            core.files.empty_released(&core.backend);
        }
    }

    /// Whether this system carries NVMe commands.
    pub(crate) fn can_do_nvme() -> bool {
        WakeUp::new().is_ok_and(|wake| passthrough::Passthrough::new(&wake).is_ok())
    }

    /// Sets up what carries NVMe commands.
    ///
    /// # Errors
    /// No io_uring, or that of a kernel before 5.19.
    pub(crate) fn enable_nvme(&self) -> io::Result<()> {
        self.inner.core.borrow_mut().backend.enable_nvme(&self.inner.wake)
    }

    /// Registers the pool's fixed memory, so that transfers need not pin it each time.
    ///
    /// # Errors
    /// What the kernel says, most often that RLIMIT_MEMLOCK is too low; the pool works without.
    pub(crate) fn register_buffers(&self, pool: &Arc<Pool>, regions: &[FixedRegion]) -> io::Result<()> {
        let core = &mut *self.inner.core.borrow_mut();
        core.buffers.register(&core.backend, pool, regions)
    }

    /// Takes `count` indices under which a driver may register foreign buffers. None: fewer are free.
    pub(crate) fn take_foreign_indices(&self, count: u16) -> Option<Vec<u16>> {
        self.inner.core.borrow_mut().buffers.take_foreign(count)
    }

    /// No foreign buffer is registered under these indices any more.
    pub(crate) fn give_foreign_indices(&self, indices: impl Iterator<Item = u16>) {
        self.inner.core.borrow_mut().buffers.give_foreign(indices);
    }
}
