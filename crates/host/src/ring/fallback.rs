//! The calls of a ring without io_uring, for systems that forbid it (containers often do): files by helper threads,
//! sockets by `poll`. Slower, with the same rules.
//!
//! Invariants:
//! - As with the kernel, the memory that a call names belongs to its slot until its completion was reaped. So the
//!   pointers that helper threads get are valid, and no other thread touches what they point to meanwhile.
//! - A call is in one place only: waiting for its socket, with the helpers, or completed.

use crossbeam::channel::{Receiver, Sender};
use crossbeam::queue::SegQueue;
use rustix::event::{PollFd, PollFlags, Timespec};
use std::collections::HashMap;
use std::io;
use std::os::fd::{BorrowedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use super::system_call::{Pushed, SystemCall};
use super::wake::WakeUp;

/// Most helper threads of a file, each started when an operation finds none idle. A device that does not answer holds up only
/// its own.
const HELPERS: usize = 8;

pub(super) struct Fallback {
    /// Calls on sockets that are not ready.
    waiting: Vec<(SystemCall, u64)>,
    completed: Vec<(u64, i32)>,
    in_flight: u32,
    /// By descriptor. A later file with the same number gets the same threads.
    helpers: HashMap<RawFd, Helpers>,
    results: Arc<SegQueue<(u64, i32)>>,
    wake: Arc<WakeUp>,
}

/// The threads for one file.
struct Helpers {
    jobs: Sender<Job>,
    /// The threads take their jobs from here.
    queue: Receiver<Job>,
    threads: usize,
    /// Threads that wait for a job.
    idle: Arc<AtomicUsize>,
}

struct Job {
    call: SystemCall,
    token: u64,
}

// SAFETY: the pointers of a call are used by one thread at a time: the helper that has it (first invariant).
unsafe impl Send for Job {}

impl Fallback {
    pub fn new(wake: Arc<WakeUp>) -> Self {
        Fallback {
            waiting: Vec::new(),
            completed: Vec::new(),
            in_flight: 0,
            helpers: HashMap::new(),
            results: Arc::default(),
            wake,
        }
    }

    pub fn in_flight(&self) -> u32 {
        self.in_flight
    }

    pub fn push(&mut self, call: &SystemCall, token: u64) -> Pushed {
        self.in_flight += 1;
        if call.awaits_peer() {
            match attempt(call) {
                result if result == -libc::EAGAIN => self.waiting.push((*call, token)),
                result => self.completed.push((token, result)),
            }
            return Pushed::Yes;
        }
        let helpers = self.helpers.entry(call.fd().raw()).or_insert_with(Helpers::new);
        helpers.send(Job { call: *call, token }, &self.results, &self.wake);
        Pushed::Yes
    }

    /// Ends a call that waits for its socket. A call that a helper makes ends by itself.
    pub fn cancel(&mut self, token: u64) -> Pushed {
        if let Some(index) = self.waiting.iter().position(|(_, waiting)| *waiting == token) {
            self.waiting.swap_remove(index);
            self.completed.push((token, -libc::ECANCELED));
        }
        Pushed::Yes
    }

    pub fn submit(&mut self) {
        if !self.waiting.is_empty() {
            self.poll(Some(Duration::ZERO));
        }
    }

    pub fn wait(&mut self, limit: Option<Duration>) {
        let is_done = !self.completed.is_empty() || !self.results.is_empty();
        self.poll(if is_done { Some(Duration::ZERO) } else { limit });
    }

    pub fn reap(&mut self, completed: &mut Vec<(u64, i32)>) {
        if self.in_flight == 0 {
            return;
        }
        let before = completed.len();
        completed.append(&mut self.completed);
        completed.extend(std::iter::from_fn(|| self.results.pop()));
        self.in_flight -= u32::try_from(completed.len() - before).expect("no more than were in flight");
    }

    /// Waits for the sockets and the wake-up, and goes on with what is ready.
    fn poll(&mut self, limit: Option<Duration>) {
        let limit = limit.map(|limit| Timespec::try_from(limit).expect("a wait below 2^63 s"));
        let mut polled: Vec<PollFd<'_>> = self.waiting.iter().map(|(call, _)| poll_fd(call)).collect();
        let wake = Arc::clone(&self.wake);
        polled.push(PollFd::from_borrowed_fd(wake.fd(), PollFlags::IN));
        if rustix::event::poll(&mut polled, limit.as_ref()).is_err() {
            return; // interrupted: the caller looks again
        }
        let is_ready: Vec<bool> = polled.iter().map(|polled| !polled.revents().is_empty()).collect();
        if is_ready[self.waiting.len()] {
            let _ = rustix::io::read(wake.fd(), &mut [0u8; 8]);
        }
        let mut ready = is_ready.iter();
        let completed = &mut self.completed;
        self.waiting.retain(|(call, token)| {
            if !ready.next().expect("as many as were polled") {
                return true;
            }
            let result = attempt(call);
            if result != -libc::EAGAIN {
                completed.push((*token, result));
            }
            result == -libc::EAGAIN
        });
    }
}

impl Helpers {
    fn new() -> Self {
        let (jobs, queue) = crossbeam::channel::unbounded();
        Helpers { jobs, queue, threads: 0, idle: Arc::default() }
    }

    fn send(&mut self, job: Job, results: &Arc<SegQueue<(u64, i32)>>, wake: &Arc<WakeUp>) {
        if self.idle.fetch_update(SeqCst, SeqCst, |idle| idle.checked_sub(1)).is_err()
            && self.threads < HELPERS
        {
            self.start_thread(Arc::clone(results), Arc::clone(wake));
        }
        self.jobs.send(job).expect("this struct has a receiver");
    }

    /// Starts a thread. It does not count as idle before its first job is done.
    fn start_thread(&mut self, results: Arc<SegQueue<(u64, i32)>>, wake: Arc<WakeUp>) {
        let (queue, idle) = (Receiver::clone(&self.queue), Arc::clone(&self.idle));
        let help = move || {
            for Job { call, token } in &queue {
                results.push((token, attempt(&call)));
                wake.notify();
                if queue.is_empty() {
                    idle.fetch_add(1, SeqCst);
                }
            }
        };
        std::thread::Builder::new().name("twill-io".into()).spawn(help).expect("a helper thread starts");
        self.threads += 1;
    }
}

fn poll_fd(call: &SystemCall) -> PollFd<'static> {
    let flags = match call {
        SystemCall::Readable { .. } | SystemCall::Accept { .. } | SystemCall::Receive { .. } => PollFlags::IN,
        SystemCall::Send { .. } | SystemCall::SendMessage { .. } => PollFlags::OUT,
        _ => unreachable!("only sockets are polled"),
    };
    // SAFETY: the slot that made the call owns the descriptor until it completes (first invariant).
    PollFd::from_borrowed_fd(unsafe { BorrowedFd::borrow_raw(call.fd().raw()) }, flags)
}

fn can_be_read(fd: RawFd) -> bool {
    let mut polled = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    // SAFETY: one `pollfd`, which lives until the call returns.
    unsafe { libc::poll(&raw mut polled, 1, 0) != 0 }
}

/// Makes the call. Sockets do not block: [`libc::EAGAIN`] says that they are not ready.
fn attempt(call: &SystemCall) -> i32 {
    // SAFETY: pointers, lengths and descriptors of a call are valid until its completion was reaped.
    let result = unsafe {
        match *call {
            SystemCall::Read { fd, address, bytes, offset, .. } => {
                libc::pread(fd.raw(), address.cast(), bytes as usize, offset.cast_signed())
            }
            SystemCall::Write { fd, address, bytes, offset, flags, .. } => {
                let piece = libc::iovec { iov_base: address.cast_mut().cast(), iov_len: bytes as usize };
                libc::pwritev2(fd.raw(), &raw const piece, 1, offset.cast_signed(), flags)
            }
            SystemCall::WriteVectored { fd, pieces, count, offset, flags } => {
                libc::pwritev2(fd.raw(), pieces, count.cast_signed(), offset.cast_signed(), flags)
            }
            SystemCall::Sync { fd } => libc::fdatasync(fd.raw()) as isize,
            SystemCall::Allocate { fd, mode, offset, bytes } => {
                libc::fallocate(fd.raw(), mode, offset.cast_signed(), bytes.cast_signed()) as isize
            }
            // Drivers take commands, and register memory, through io_uring only.
            SystemCall::Command { .. } | SystemCall::ReadInto { .. } | SystemCall::Nvme { .. } => {
                return -libc::ENOSYS;
            }
            SystemCall::Readable { fd } => {
                if !can_be_read(fd.raw()) {
                    return -libc::EAGAIN;
                }
                0
            }
            SystemCall::Accept { fd } => {
                if !can_be_read(fd.raw()) {
                    return -libc::EAGAIN; // accept4 would block: the listener keeps the mode its owner gave it
                }
                libc::accept4(fd.raw(), std::ptr::null_mut(), std::ptr::null_mut(), libc::SOCK_CLOEXEC)
                    as isize
            }
            SystemCall::Receive { fd, address, bytes, flags } => {
                // A partial result is resumed by the operation; waiting for all would block.
                let flags = (flags & !libc::MSG_WAITALL) | libc::MSG_DONTWAIT;
                libc::recv(fd.raw(), address.cast(), bytes as usize, flags)
            }
            SystemCall::Send { fd, address, bytes, flags } => {
                libc::send(fd.raw(), address.cast(), bytes as usize, flags | libc::MSG_DONTWAIT)
            }
            SystemCall::SendMessage { fd, message, flags } => {
                libc::sendmsg(fd.raw(), message, flags | libc::MSG_DONTWAIT)
            }
        }
    };
    match result {
        ..0 => -io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO),
        count => i32::try_from(count).expect("a call moves at most 2^30 bytes"),
    }
}
