//! A call to the system as a value: what a backend carries out.

use std::os::fd::RawFd;

/// Bytes that a command of a driver carries in an entry of 64 bytes.
pub(crate) const COMMAND_BYTES: usize = 16;

/// Most bytes of one call: the kernel's own limit (`MAX_RW_COUNT`) is a page below 2 GiB.
pub(super) const CALL_BYTES_MAX: usize = 1 << 30;

/// Most pieces of one vectored call (`UIO_MAXIOV`).
pub(super) const CALL_PIECES_MAX: usize = 1024;

/// The descriptor of a call: plain, or an index into the registered files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Descriptor {
    Plain(RawFd),
    Registered(u32, RawFd),
}

/// One call. Its pointers are valid until the slot that made it is freed or makes the next one.
#[derive(Clone, Copy, Debug)]
pub(super) enum SystemCall {
    Read {
        fd: Descriptor,
        address: *mut u8,
        bytes: u32,
        offset: u64,
        fixed: Option<u16>,
    },
    /// Reads into the foreign buffer with index `buffer`, from its byte `buffer_offset` on.
    ReadInto {
        fd: Descriptor,
        buffer: u16,
        buffer_offset: u64,
        bytes: u32,
        offset: u64,
    },
    Write {
        fd: Descriptor,
        address: *const u8,
        bytes: u32,
        offset: u64,
        fixed: Option<u16>,
        flags: i32,
    },
    WriteVectored {
        fd: Descriptor,
        pieces: *const libc::iovec,
        count: u32,
        offset: u64,
        flags: i32,
    },
    Sync {
        fd: Descriptor,
    },
    Allocate {
        fd: Descriptor,
        mode: i32,
        offset: u64,
        bytes: u64,
    },
    Command {
        fd: Descriptor,
        command: u32,
        payload: [u8; COMMAND_BYTES],
        address: u64,
    },
    Accept {
        fd: Descriptor,
    },
    Receive {
        fd: Descriptor,
        address: *mut u8,
        bytes: u32,
        flags: i32,
    },
    Send {
        fd: Descriptor,
        address: *const u8,
        bytes: u32,
        flags: i32,
    },
    SendMessage {
        fd: Descriptor,
        message: *const libc::msghdr,
        flags: i32,
    },
}

impl Descriptor {
    /// The plain descriptor.
    pub fn raw(self) -> RawFd {
        match self {
            Descriptor::Plain(fd) | Descriptor::Registered(_, fd) => fd,
        }
    }

    /// The number in an entry of io_uring: the descriptor, or its index among the registered files.
    pub fn number(self) -> i32 {
        match self {
            Descriptor::Plain(fd) => fd,
            Descriptor::Registered(index, _) => index.cast_signed(),
        }
    }
}

impl SystemCall {
    pub fn is_socket(&self) -> bool {
        matches!(
            self,
            SystemCall::Accept { .. }
                | SystemCall::Receive { .. }
                | SystemCall::Send { .. }
                | SystemCall::SendMessage { .. }
        )
    }

    pub fn fd(&self) -> Descriptor {
        match *self {
            SystemCall::Read { fd, .. }
            | SystemCall::ReadInto { fd, .. }
            | SystemCall::Write { fd, .. }
            | SystemCall::WriteVectored { fd, .. }
            | SystemCall::Sync { fd }
            | SystemCall::Allocate { fd, .. }
            | SystemCall::Command { fd, .. }
            | SystemCall::Accept { fd }
            | SystemCall::Receive { fd, .. }
            | SystemCall::Send { fd, .. }
            | SystemCall::SendMessage { fd, .. } => fd,
        }
    }
}

/// Whether a backend took a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pushed {
    Yes,
    /// There is no room: to be pushed again after completions were reaped.
    Full,
}

/// Memory that a vectored call names besides its data. It stays with the slot, so that it is allocated once.
pub(super) struct Vectors {
    pub message: libc::msghdr,
    pub pieces: Vec<libc::iovec>,
}

impl Vectors {
    pub fn new() -> Box<Self> {
        // SAFETY: msghdr is plain integers and pointers, for which all zeroes mean "none".
        let message = unsafe { std::mem::zeroed() };
        Box::new(Vectors { message, pieces: Vec::new() })
    }
}
