//! What carries out the calls of a ring: io_uring, or helper threads and `poll` where the system forbids it.

use std::io;
use std::os::fd::RawFd;
use std::time::Duration;

use super::fallback::Fallback;
use super::kernel::Kernel;
use super::system_call::{Pushed, SystemCall};
use super::wake::WakeUp;

pub(super) enum Backend {
    Kernel(Box<Kernel>),
    Fallback(Box<Fallback>),
}

impl Backend {
    pub fn is_kernel(&self) -> bool {
        matches!(self, Backend::Kernel(_))
    }

    pub fn files(&self) -> u32 {
        match self {
            Backend::Kernel(kernel) => kernel.files(),
            Backend::Fallback(_) => 0,
        }
    }

    pub fn set_file(&self, index: u32, fd: RawFd) -> io::Result<()> {
        match self {
            Backend::Kernel(kernel) => kernel.set_file(index, fd),
            Backend::Fallback(_) => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    pub fn in_flight(&self) -> u32 {
        match self {
            Backend::Kernel(kernel) => kernel.in_flight(),
            Backend::Fallback(fallback) => fallback.in_flight(),
        }
    }

    pub fn push(&mut self, call: &SystemCall, token: u64) -> Pushed {
        match self {
            Backend::Kernel(kernel) => kernel.push(call, token),
            Backend::Fallback(fallback) => fallback.push(call, token),
        }
    }

    pub fn push_cancel(&mut self, token: u64) -> Pushed {
        match self {
            Backend::Kernel(kernel) => kernel.push_cancel(token),
            Backend::Fallback(fallback) => fallback.cancel(token),
        }
    }

    pub fn enable_nvme(&mut self, wake: &WakeUp) -> io::Result<()> {
        match self {
            Backend::Kernel(kernel) => kernel.enable_nvme(wake),
            Backend::Fallback(_) => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    /// Takes the completions of NVMe commands: token, result and the command's own answer.
    #[inline]
    pub fn reap_nvme(&mut self, take: impl FnMut(u64, i32, u64)) {
        match self {
            Backend::Kernel(kernel) => kernel.reap_nvme(take),
            Backend::Fallback(_) => {}
        }
    }

    #[inline]
    pub fn submit(&mut self) {
        match self {
            Backend::Kernel(kernel) => kernel.submit(),
            Backend::Fallback(fallback) => fallback.submit(),
        }
    }

    pub fn wait(&mut self, limit: Option<Duration>) {
        match self {
            Backend::Kernel(kernel) => kernel.wait(limit),
            Backend::Fallback(fallback) => fallback.wait(limit),
        }
    }

    #[inline]
    pub fn reap(&mut self, completed: &mut Vec<(u64, i32)>) {
        match self {
            Backend::Kernel(kernel) => kernel.reap(completed),
            Backend::Fallback(fallback) => fallback.reap(completed),
        }
    }

    pub fn disarm_wake(&mut self) {
        match self {
            Backend::Kernel(kernel) => kernel.disarm_wake(),
            Backend::Fallback(_) => {}
        }
    }
}
