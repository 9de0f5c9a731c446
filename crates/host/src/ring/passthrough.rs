//! The ring of larger entries that carries NVMe commands: 128 bytes in, 32 bytes back. It exists only on shards that have a
//! member which needs it. All other operations keep their entries of one cache line.
//!
//! Its completions end a wait of the shard's own ring by the shard's wake-up, which is registered here as an eventfd.
//!
//! Invariants: as of the [kernel](super::kernel) module: `in_flight` counts every entry whose completion was not seen, and
//! the memory that an entry names belongs to a slot until then.

use io_uring::cqueue::Entry32;
use io_uring::squeue::Entry128;
use io_uring::types::Fd;
use io_uring::{Builder, IoUring, opcode};
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use zerocopy::IntoBytes;

use super::system_call::{NvmeWire, Pushed, push, submit};
use super::wake::WakeUp;

/// Entries of the queue of submissions.
const ENTRIES: u32 = 256;

/// `NVME_URING_CMD_IO` and `NVME_URING_CMD_IO_VEC` of `linux/nvme_ioctl.h`: `_IOWR('N', 0x80, struct nvme_uring_cmd)`, 0x81.
const COMMAND: u32 = 0xc048_4e80;
const COMMAND_VECTORED: u32 = 0xc048_4e81;

pub(super) struct Passthrough {
    ring: IoUring<Entry128, Entry32>,
    in_flight: u32,
}

impl Passthrough {
    /// Sets the ring up. `wake` is written when a command completes.
    pub fn new(wake: &WakeUp) -> io::Result<Self> {
        let mut builders: [Builder<Entry128, Entry32>; 2] = [IoUring::builder(), IoUring::builder()];
        builders[0].setup_single_issuer().setup_defer_taskrun().setup_taskrun_flag().setup_submit_all(); // 6.1
        let [newer, older] = &mut builders;
        let ring = match newer.setup_clamp().dontfork().build(ENTRIES) {
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
                older.setup_clamp().dontfork().build(ENTRIES)? // 5.19
            }
            result => result?,
        };
        ring.submitter().register_eventfd(wake.fd().as_raw_fd())?;
        Ok(Passthrough { ring, in_flight: 0 })
    }

    pub fn in_flight(&self) -> u32 {
        self.in_flight
    }

    /// Queues a command; it goes out with the next [`Passthrough::submit`].
    pub fn push(&mut self, fd: RawFd, command: *const NvmeWire, vectored: bool, token: u64) -> Pushed {
        let mut bytes = [0; 80];
        // SAFETY: the command lies in the slot that made this call, which is in flight (second invariant).
        bytes[..size_of::<NvmeWire>()].copy_from_slice(unsafe { &*command }.as_bytes());
        let code = if vectored { COMMAND_VECTORED } else { COMMAND };
        let entry = opcode::UringCmd80::new(Fd(fd), code).cmd(bytes).build().user_data(token);
        // SAFETY: what the entry points to belongs to a slot until its completion was seen.
        let pushed = unsafe { push(&mut self.ring, &entry) };
        self.in_flight += u32::from(pushed == Pushed::Yes);
        pushed
    }

    /// Hands queued entries to the kernel and lets it post what is complete. No call if there is neither.
    pub fn submit(&mut self) {
        submit(&mut self.ring);
    }

    /// Whether there are completions to reap.
    pub fn has_completed(&mut self) -> bool {
        !self.ring.completion().is_empty()
    }

    /// Takes the completions that are there, without a call: token, result and answer.
    pub fn reap(&mut self, mut take: impl FnMut(u64, i32, u64)) {
        for entry in self.ring.completion() {
            assert!(self.in_flight > 0, "a completion has an entry");
            self.in_flight -= 1;
            take(entry.user_data(), entry.result(), entry.big_cqe()[0]);
        }
    }
}
