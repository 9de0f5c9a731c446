//! Ends the wait of a shard from another thread.

use rustix::event::EventfdFlags;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// An eventfd: written by any thread, read by the ring while its shard sleeps.
#[derive(Debug)]
pub struct WakeUp {
    fd: OwnedFd,
}

impl WakeUp {
    /// A wake-up that no thread has called yet.
    pub fn new() -> io::Result<Self> {
        Ok(WakeUp { fd: rustix::event::eventfd(0, EventfdFlags::CLOEXEC)? })
    }

    /// Ends the present wait of the ring, or its next one if it does not wait now.
    pub fn notify(&self) {
        // The write fails only if the counter is full, after 2^64 - 2 calls: then the reader is awake already.
        while let Err(rustix::io::Errno::INTR) = rustix::io::write(&self.fd, &1u64.to_ne_bytes()) {}
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
