//! The io_uring itself: entries out, completions in.
//!
//! Invariants:
//! - `in_flight` counts every entry whose completion was not seen. It has no bound: an entry may wait for a client or a driver
//!   for ever, and must not take the room of others. Completions for which the queue has no room the kernel keeps (`NODROP`)
//!   until the next call.
//! - The memory that an entry names belongs to a slot (or to this struct) until its completion was seen. The kernel reads
//!   vectors and headers at submission (`SUBMIT_STABLE`); they stay until then.
//! - Only the thread that made the ring uses it (`SINGLE_ISSUER`): a handle to it is not `Send`.

use io_uring::squeue::{Entry, Flags};
use io_uring::types::{Fd, FsyncFlags, SubmitArgs, Timespec};
use io_uring::{IoUring, opcode};
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;
use std::time::Duration;

use super::lane::WIDTH;
use super::passthrough::Passthrough;
use super::system_call::{Descriptor, Pushed, SystemCall, push, settle, submit};
use super::wake::WakeUp;

/// Completions that are not operations: their tokens lie above every slot.
const TOKEN_WAKE: u64 = u64::MAX;
const TOKEN_CANCEL: u64 = u64::MAX - 1;
const TOKEN_TIMEOUT: u64 = u64::MAX - 2;

/// The least limit of kernel threads for operations that cannot be queued at a device. If two devices do not answer, and all
/// that they may have in flight occupies threads, 64 are left for the others. The kernel's own limit is four for each core.
const THREADS: u32 = 2 * (WIDTH as u32 + 1) + 64;

pub(super) struct Kernel {
    ring: IoUring,
    in_flight: u32,
    wake: Arc<WakeUp>,
    wake_armed: bool,
    /// Where the armed read of the wake-up puts its eight bytes.
    wake_value: Box<u64>,
    /// The limit of a wait on kernels without `EXT_ARG` (before 5.11).
    wait_limit: Box<Timespec>,
    files: u32,
    /// Present once a member is reached by commands of NVMe's own.
    passthrough: Option<Passthrough>,
}

impl Kernel {
    /// Sets a ring up with the flags that the kernel has: each line of flags came with a later version.
    pub fn new(entries: u32, files: u32, wake: Arc<WakeUp>) -> io::Result<Self> {
        let mut builders: [io_uring::Builder; 3] =
            [IoUring::builder(), IoUring::builder(), IoUring::builder()];
        builders[0].setup_single_issuer().setup_defer_taskrun().setup_taskrun_flag().setup_submit_all(); // 6.1
        builders[1].setup_coop_taskrun().setup_taskrun_flag().setup_submit_all(); // 5.19
        let mut refusal = None;
        for builder in &mut builders {
            match builder.setup_clamp().setup_cqsize(entries * 4).dontfork().build(entries) {
                Ok(ring) => return Self::with_ring(ring, files, wake),
                Err(error) if error.raw_os_error() == Some(libc::EINVAL) => refusal = Some(error),
                Err(error) => return Err(error),
            }
        }
        Err(refusal.expect("three attempts were made"))
    }

    fn with_ring(ring: IoUring, files: u32, wake: Arc<WakeUp>) -> io::Result<Self> {
        let parameters = ring.params();
        if !parameters.is_feature_nodrop() || !parameters.is_feature_submit_stable() {
            return Err(io::Error::new(io::ErrorKind::Unsupported, "io_uring of a kernel before 5.5"));
        }
        allow_threads(&ring);
        let empty = vec![-1; files as usize];
        let files = match ring.submitter().register_files(&empty) {
            Ok(()) => files,
            Err(error) => {
                tracing::info!(%error, "no registered files: descriptors are looked up for each operation");
                0
            }
        };
        Ok(Kernel {
            ring,
            in_flight: 0,
            wake,
            wake_armed: false,
            wake_value: Box::new(0),
            wait_limit: Box::new(Timespec::new()),
            files,
            passthrough: None,
        })
    }

    /// Sets up the ring of larger entries, if it is not there.
    pub fn enable_nvme(&mut self, wake: &WakeUp) -> io::Result<()> {
        if self.passthrough.is_none() {
            self.passthrough = Some(Passthrough::new(wake)?);
        }
        Ok(())
    }

    /// Takes the completions of NVMe commands: token, result and the command's own answer.
    pub fn reap_nvme(&mut self, take: impl FnMut(u64, i32, u64)) {
        if let Some(passthrough) = &mut self.passthrough {
            passthrough.reap(take);
        }
    }

    /// Length of the table of registered files.
    pub fn files(&self) -> u32 {
        self.files
    }

    /// Puts `fd` into the table of registered files; -1 empties the index.
    pub fn set_file(&self, index: u32, fd: RawFd) -> io::Result<()> {
        self.ring.submitter().register_files_update(index, &[fd]).map(|_| ())
    }

    /// Registers memory for fixed reads and writes.
    ///
    /// # Safety
    /// Each region stays allocated until the ring is gone.
    pub unsafe fn register_buffers(&self, regions: &[libc::iovec]) -> io::Result<()> {
        // SAFETY: handed on to the caller.
        unsafe { self.ring.submitter().register_buffers(regions) }
    }

    /// Entries whose completion was not seen, the armed wake-up not counted.
    pub fn in_flight(&self) -> u32 {
        let nvme = self.passthrough.as_ref().map_or(0, Passthrough::in_flight);
        self.in_flight - u32::from(self.wake_armed) + nvme
    }

    /// Queues a call; it goes out with the next [`Kernel::submit`] or [`Kernel::wait`].
    pub fn push(&mut self, call: &SystemCall, token: u64) -> Pushed {
        if let SystemCall::Nvme { fd, command, vectored } = *call {
            // A device is attached after the ring was set up for it.
            let passthrough = self.passthrough.as_mut().expect("set up before the first command");
            return passthrough.push(fd.raw(), command, vectored, token);
        }
        self.push_entry(&entry_of(call).user_data(token))
    }

    /// Asks for the end of the operation with this token.
    pub fn push_cancel(&mut self, token: u64) -> Pushed {
        self.push_entry(&opcode::AsyncCancel::new(token).build().user_data(TOKEN_CANCEL))
    }

    fn push_entry(&mut self, entry: &Entry) -> Pushed {
        // SAFETY: what the entry points to belongs to a slot or to `self` until its completion was seen.
        let pushed = unsafe { push(&mut self.ring, entry) };
        self.in_flight += u32::from(pushed == Pushed::Yes);
        pushed
    }

    /// Hands queued entries to the kernel and lets it post what is complete. No call if there is neither.
    pub fn submit(&mut self) {
        submit(&mut self.ring);
        if let Some(passthrough) = &mut self.passthrough {
            passthrough.submit();
        }
    }

    /// As [`Kernel::submit`], then sleeps until a completion, a wake-up or the limit.
    pub fn wait(&mut self, limit: Option<Duration>) {
        self.arm_wake();
        if let Some(passthrough) = &mut self.passthrough {
            // What completes from here on writes to the wake-up, which this ring reads.
            passthrough.submit();
            if passthrough.has_completed() {
                return self.submit();
            }
        }
        if !self.ring.completion().is_empty() {
            return self.submit();
        }
        let Some(limit) = limit else { return settle(self.ring.submitter().submit_and_wait(1)) };
        let timespec = Timespec::from(limit);
        if self.ring.params().is_feature_ext_arg() {
            settle(self.ring.submitter().submit_with_args(1, &SubmitArgs::new().timespec(&timespec)));
            return;
        }
        *self.wait_limit = timespec;
        // Ends with the limit or with the first other completion, so that it never outlives the wait by much.
        let timeout = opcode::Timeout::new(&raw const *self.wait_limit).count(1).build();
        if self.push_entry(&timeout.user_data(TOKEN_TIMEOUT)) == Pushed::Yes {
            settle(self.ring.submitter().submit_and_wait(1));
        }
    }

    /// Takes the completions that are there, without a call, into `completed` as token and result.
    pub fn reap(&mut self, completed: &mut Vec<(u64, i32)>) {
        for entry in self.ring.completion() {
            assert!(self.in_flight > 0, "a completion has an entry");
            self.in_flight -= 1;
            match entry.user_data() {
                TOKEN_WAKE => self.wake_armed = false,
                TOKEN_CANCEL | TOKEN_TIMEOUT => {}
                token => completed.push((token, entry.result())),
            }
        }
    }

    /// Takes the armed wake-up back, for the end of the ring.
    pub fn disarm_wake(&mut self) {
        if self.wake_armed {
            self.wake.notify();
        }
    }

    fn arm_wake(&mut self) {
        if self.wake_armed {
            return;
        }
        let fd = Fd(self.wake.fd().as_raw_fd());
        let read = opcode::Read::new(fd, (&raw mut *self.wake_value).cast(), 8).build();
        self.wake_armed = self.push_entry(&read.user_data(TOKEN_WAKE)) == Pushed::Yes;
        if !self.wake_armed {
            tracing::warn!("the wake-up could not be armed: the submission queue takes no entry");
        }
    }
}

/// Raises the limit of threads that the kernel makes for this ring's operations to [`THREADS`] (from Linux 5.15 on).
fn allow_threads(ring: &IoUring) {
    let mut limits = [0, 0]; // of files and block devices, of sockets; zero asks
    let raised = ring.submitter().register_iowq_max_workers(&mut limits).and_then(|()| {
        limits = [limits[0].max(THREADS), 0];
        ring.submitter().register_iowq_max_workers(&mut limits)
    });
    if let Err(error) = raised {
        tracing::debug!(%error, "the kernel keeps its limit of threads for operations");
    }
}

fn entry_of(call: &SystemCall) -> Entry {
    let (entry, descriptor) = match *call {
        SystemCall::Read { fd, address, bytes, offset, fixed } => {
            let file = Fd(fd.number());
            let entry = match fixed {
                Some(index) => opcode::ReadFixed::new(file, address, bytes, index).offset(offset).build(),
                None => opcode::Read::new(file, address, bytes).offset(offset).build(),
            };
            (entry, fd)
        }
        SystemCall::ReadInto { fd, buffer, buffer_offset, bytes, offset } => {
            // In a foreign buffer the kernel takes the field for an address as an offset.
            let at = usize::try_from(buffer_offset).expect("inside a request");
            let at = std::ptr::without_provenance_mut(at);
            (opcode::ReadFixed::new(Fd(fd.number()), at, bytes, buffer).offset(offset).build(), fd)
        }
        SystemCall::Write { fd, address, bytes, offset, fixed, flags } => {
            let file = Fd(fd.number());
            let entry = match fixed {
                Some(index) => opcode::WriteFixed::new(file, address, bytes, index)
                    .offset(offset)
                    .rw_flags(flags)
                    .build(),
                None => opcode::Write::new(file, address, bytes).offset(offset).rw_flags(flags).build(),
            };
            (entry, fd)
        }
        SystemCall::WriteVectored { fd, pieces, count, offset, flags } => {
            (opcode::Writev::new(Fd(fd.number()), pieces, count).offset(offset).rw_flags(flags).build(), fd)
        }
        SystemCall::Sync { fd } => {
            (opcode::Fsync::new(Fd(fd.number())).flags(FsyncFlags::DATASYNC).build(), fd)
        }
        SystemCall::Allocate { fd, mode, offset, bytes } => {
            (opcode::Fallocate::new(Fd(fd.number()), bytes).offset(offset).mode(mode).build(), fd)
        }
        SystemCall::Command { fd, command, payload, address } => {
            let entry = opcode::UringCmd16::new(Fd(fd.number()), command).cmd(payload);
            (entry.addr(Some(address)).build(), fd)
        }
        SystemCall::Nvme { .. } => unreachable!("it has entries of another size"),
        SystemCall::Readable { fd } => {
            (opcode::PollAdd::new(Fd(fd.number()), u32::from(libc::POLLIN.cast_unsigned())).build(), fd)
        }
        SystemCall::Accept { fd } => {
            let (no_address, no_length) = (std::ptr::null_mut(), std::ptr::null_mut());
            let accept = opcode::Accept::new(Fd(fd.number()), no_address, no_length);
            (accept.flags(libc::SOCK_CLOEXEC).build(), fd)
        }
        SystemCall::Receive { fd, address, bytes, flags } => {
            (opcode::Recv::new(Fd(fd.number()), address, bytes).flags(flags).build(), fd)
        }
        SystemCall::Send { fd, address, bytes, flags } => {
            (opcode::Send::new(Fd(fd.number()), address, bytes).flags(flags).build(), fd)
        }
        SystemCall::SendMessage { fd, message, flags } => {
            (opcode::SendMsg::new(Fd(fd.number()), message).flags(flags.cast_unsigned()).build(), fd)
        }
    };
    match descriptor {
        Descriptor::Plain(_) => entry,
        Descriptor::Registered(..) => entry.flags(Flags::FIXED_FILE),
    }
}
