//! One ring for each shard: every operation in flight, with all that it owns.
//!
//! The contract of cancellation:
//! - An operation owns its memory and descriptors from submission to completion. Nothing that a caller does, dropping
//!   the future included, frees them earlier.
//! - Dropping the future of a device operation leaves the operation running, its result is thrown away. Dropping the
//!   future of a socket operation cancels it.
//! - Dropping the last handle to a ring cancels what may wait for ever and waits for everything else. An operation of a
//!   device that hangs does not hold up the end for ever: after [`DRAIN_LIMIT`] the ring is left as it is, with all
//!   memory that operations still name, until the process ends.
//! - Futures are small, `Unpin`, and hold a handle and a slot. Wakers are called while the ring is borrowed: they may
//!   queue a task, not use the ring.
//!
//! Read `socket.rs` and `transfer.rs` for what can be done, `core.rs` for how it completes, `op.rs` for what is sent,
//! `kernel.rs` for io_uring itself.

mod backend;
mod command;
mod copies;
mod core;
mod fallback;
mod helper;
mod kernel;
mod lane;
pub(crate) mod late;
pub(crate) mod op;
mod slots;
mod socket;
#[cfg(test)]
mod tests;
mod timers;
mod transfer;
mod wake;

use engine::buffer::{FixedRegion, Pool};
use std::cell::RefCell;
use std::future::Future;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use self::backend::Backend;
use self::core::Core;
use self::fallback::Fallback;
use self::kernel::Kernel;
use self::late::LateWrites;
use self::op::{Op, Registered, Target};
use self::slots::State;

pub(crate) use self::command::Command;
pub use self::socket::{Accept, Receive, Send};
pub use self::transfer::{DeviceDone, DeviceRead};
pub use self::wake::WakeUp;

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
    /// Places for registered files: members beyond it are reached by their descriptor.
    pub files: u32,
    /// Who makes the calls.
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

struct Inner {
    core: RefCell<Core>,
    wake: Arc<WakeUp>,
    helpers: helper::Helpers,
    drain_limit: Duration,
}

impl Ring {
    /// Sets up a ring that this thread will use.
    ///
    /// # Errors
    /// What the system says: no descriptors left, or, if io_uring is asked for by name, that it is not allowed.
    pub fn new(options: &RingOptions) -> io::Result<Self> {
        Self::with_wake(options, Arc::new(WakeUp::new()?))
    }

    /// As [`Ring::new`], with a wake-up that other threads have already.
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
        let helpers = helper::Helpers::new(Arc::clone(&core.mailbox), Arc::clone(&wake));
        let (core, drain_limit) = (RefCell::new(core), options.drain_limit);
        Ok(Ring { inner: Rc::new(Inner { core, wake, helpers, drain_limit }) })
    }

    /// Whether operations go through io_uring.
    pub fn uses_io_uring(&self) -> bool {
        self.inner.core.borrow().backend.is_kernel()
    }

    /// What ends [`Ring::wait`] from another thread.
    pub fn wake_up(&self) -> Arc<WakeUp> {
        Arc::clone(&self.inner.wake)
    }

    /// Completes what can be completed without a call to the system, and wakes the tasks. Returns how much.
    #[inline]
    pub fn reap(&self) -> usize {
        self.inner.core.borrow_mut().reap()
    }

    /// Whether so many copies of memory devices wait that [`Ring::reap`] should come before more tasks.
    #[inline]
    pub fn has_round(&self) -> bool {
        self.inner.core.borrow().has_round()
    }

    /// Hands queued operations to the system, in one call, if there are any.
    #[inline]
    pub fn submit(&self) {
        self.inner.core.borrow_mut().submit();
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

    /// Returns after `duration`.
    pub fn sleep(&self, duration: Duration) -> Sleep {
        let end = Instant::now() + duration;
        let slot = self.inner.core.borrow_mut().start_sleep(end);
        Sleep(InFlight { ring: self.clone(), slot })
    }

    /// An operation that has failed before it started.
    pub(crate) fn refuse(&self, op: Op, result: i32) -> InFlight {
        let slot = self.inner.core.borrow_mut().slots.insert_finished(op, result);
        InFlight { ring: self.clone(), slot }
    }

    #[inline]
    pub(crate) fn start(&self, op: Op) -> InFlight {
        let slot = self.inner.core.borrow_mut().start(op);
        InFlight { ring: self.clone(), slot }
    }

    pub(crate) fn start_timed(&self, op: Op, limit: Duration) -> InFlight {
        let slot = self.inner.core.borrow_mut().start_timed(op, limit);
        InFlight { ring: self.clone(), slot }
    }

    /// Starts an operation that the helper thread of `file` carries out: a call that io_uring does not have.
    pub(crate) fn start_helped(&self, op: Op, limit: Duration, file: RawFd, job: helper::Job) -> InFlight {
        let in_flight = self.start_timed(op, limit);
        self.inner.core.borrow_mut().helped += 1;
        self.inner.helpers.send(file, in_flight.slot, job);
        in_flight
    }

    /// A file as this ring knows it: registered if there is room.
    pub(crate) fn target(&self, fd: &Arc<OwnedFd>, direct: bool, late: &Arc<LateWrites>) -> Rc<Target> {
        let (registered, late) = (self.register_file(fd), Arc::clone(late));
        Rc::new(Target {
            fd: Arc::clone(fd),
            direct,
            takes_fixed: true,
            registered,
            late,
            lane: RefCell::default(),
        })
    }

    fn register_file(&self, fd: &Arc<OwnedFd>) -> Option<Registered> {
        let core = &mut *self.inner.core.borrow_mut();
        core.release_files();
        core.files_free.pop().and_then(|index| {
            if let Err(error) = core.backend.set_file(index, fd.as_raw_fd()) {
                tracing::info!(%error, "a file is not registered: its descriptor is looked up for each operation");
                core.files_free.push(index);
                return None;
            }
            Some(Registered { index, released: Rc::clone(&core.released) })
        })
    }

    /// Closes registered files whose last operation is gone. Called when a device is dropped.
    pub(crate) fn release_files(&self) {
        if let Ok(mut core) = self.inner.core.try_borrow_mut() {
            core.release_files();
        }
    }

    /// Registers the pool's fixed memory, so that transfers need not pin it each time, and leaves places behind it for
    /// memory that drivers register.
    ///
    /// # Errors
    /// What the kernel says, most often that RLIMIT_MEMLOCK is too low; the pool works without.
    pub(crate) fn register_buffers(&self, pool: &Arc<Pool>, regions: &[FixedRegion]) -> io::Result<()> {
        let core = &mut *self.inner.core.borrow_mut();
        let Backend::Kernel(kernel) = &core.backend else { return Err(io::ErrorKind::Unsupported.into()) };
        let empty = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };
        let register = |own: &[FixedRegion], places: usize| {
            let piece = |region: &FixedRegion| libc::iovec {
                iov_base: region.address as *mut _,
                iov_len: region.bytes,
            };
            let pieces: Vec<libc::iovec> =
                own.iter().map(piece).chain(std::iter::repeat_n(empty, places)).collect();
            // SAFETY: fixed memory is never freed while its pool lives, and the ring keeps the pool from here on.
            unsafe { kernel.register_buffers(&pieces) }
        };
        let places = |first: usize| {
            let places = first..first + OUTSIDE_PLACES;
            places.rev().map(|place| u16::try_from(place).expect("a small table")).collect()
        };
        if register(regions, OUTSIDE_PLACES).is_ok() {
            core.places_free = places(regions.len());
        } else if let Err(error) = register(regions, 0) {
            // Too little memory may be locked. What drivers register is not counted.
            if register(&[], OUTSIDE_PLACES).is_ok() {
                core.places_free = places(0);
            }
            return Err(error);
        }
        core.fixed_pool = Some(Arc::clone(pool));
        Ok(())
    }

    /// Places where a driver may register memory of its requests, for reads into it. None if there are not so many.
    pub(crate) fn take_places(&self, count: u16) -> Option<Vec<u16>> {
        let free = &mut self.inner.core.borrow_mut().places_free;
        let left = free.len().checked_sub(usize::from(count))?;
        Some(free.split_off(left))
    }

    /// Nothing is registered there any more.
    pub(crate) fn give_places(&self, places: impl Iterator<Item = u16>) {
        self.inner.core.borrow_mut().places_free.extend(places);
    }
}

/// Places for memory that drivers register: of the requests of eight block devices.
const OUTSIDE_PLACES: usize = 1024;

/// How long the end of a ring waits for operations in flight, each of which is beyond its own time limit by then or has
/// nobody who waits for it.
const DRAIN_LIMIT: Duration = Duration::from_secs(10);

impl Drop for Inner {
    fn drop(&mut self) {
        /// Memory must not be freed under operations that still run: without a drain there is no way on.
        struct Abort;
        impl Drop for Abort {
            fn drop(&mut self) {
                std::process::abort();
            }
        }
        let abort = Abort;
        let core = self.core.get_mut();
        if !core.drain(self.drain_limit) {
            let in_flight = core.backend.in_flight();
            tracing::error!(in_flight, "operations of devices that hang are left to the end of the process");
            let nothing = Core::new(Backend::Fallback(Box::new(Fallback::new(Arc::clone(&self.wake)))));
            std::mem::forget(std::mem::replace(core, nothing));
        }
        std::mem::forget(abort);
    }
}

/// An operation in flight: handle and slot.
pub(crate) struct InFlight {
    ring: Ring,
    slot: u32,
}

/// The slot of a future that has returned.
const TAKEN: u32 = u32::MAX;

/// How the wait for an operation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    /// It completed: [`InFlight::take`] has the result.
    Finished,
    /// It is beyond its time limit and still runs: [`InFlight::let_go`] leaves it to the ring.
    Expired,
}

impl InFlight {
    #[inline]
    pub(crate) fn poll(&mut self, context: &mut Context<'_>) -> Poll<Ended> {
        assert_ne!(self.slot, TAKEN, "a future is not polled after it has returned");
        let core = &mut *self.ring.inner.core.borrow_mut();
        let slot = core.slots.get(self.slot);
        match slot.state {
            State::Finished => Poll::Ready(Ended::Finished),
            State::Expired => Poll::Ready(Ended::Expired),
            State::Running => {
                slot.await_with(context.waker());
                Poll::Pending
            }
            State::Vacant | State::Orphaned => unreachable!("a future has a slot of its own"),
        }
    }

    /// What a finished operation owned, and its result. `take` sees it in its place: what it does not move is not
    /// copied.
    #[inline]
    pub(crate) fn take<T>(&mut self, take: impl FnOnce(Op, i32) -> T) -> T {
        let core = &mut *self.ring.inner.core.borrow_mut();
        let result = core.slots.get(self.slot).result;
        let op = core.slots.remove(self.slot);
        self.slot = TAKEN;
        take(op, result)
    }

    /// Leaves an expired operation to the ring. Returns its name, offset and length.
    pub(crate) fn let_go(&mut self) -> (&'static str, u64, u64) {
        let core = &mut *self.ring.inner.core.borrow_mut();
        let about = core.slots.get(self.slot).op.describe();
        core.orphan(self.slot);
        self.slot = TAKEN;
        about
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        if self.slot != TAKEN {
            self.ring.inner.core.borrow_mut().orphan(self.slot);
        }
    }
}

/// The end of a sleep to come.
pub struct Sleep(InFlight);

impl Future for Sleep {
    type Output = ();
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        ready!(self.0.poll(context));
        self.0.take(|_, _| Poll::Ready(()))
    }
}
