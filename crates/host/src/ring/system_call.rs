//! A call to the system as a value: what a backend carries out.

use engine::buffer::Gather;
use io_uring::{IoUring, cqueue, squeue};
use std::io;
use std::os::fd::RawFd;

/// Bytes that a command of a driver carries in an entry of 64 bytes.
pub(crate) const COMMAND_BYTES: usize = 16;

/// Most bytes of one call: the kernel's own limit (`MAX_RW_COUNT`) is a page below 2 GiB.
pub(super) const CALL_BYTES_MAX: usize = 1 << 30;

/// Most pieces of one vectored call (`UIO_MAXIOV`).
const CALL_PIECES_MAX: usize = 1024;

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
    /// A command of NVMe's own, from an entry of 128 bytes.
    Nvme {
        fd: Descriptor,
        command: *const NvmeWire,
        /// Its address is that of a list of pieces.
        vectored: bool,
    },
    /// Ends once the descriptor can be read.
    Readable {
        fd: Descriptor,
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
    pub fn awaits_peer(&self) -> bool {
        matches!(
            self,
            SystemCall::Readable { .. }
                | SystemCall::Accept { .. }
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
            | SystemCall::Nvme { fd, .. }
            | SystemCall::Readable { fd }
            | SystemCall::Accept { fd }
            | SystemCall::Receive { fd, .. }
            | SystemCall::Send { fd, .. }
            | SystemCall::SendMessage { fd, .. } => fd,
        }
    }
}

/// `struct nvme_uring_cmd` of `linux/nvme_ioctl.h`.
#[derive(Clone, Copy, Debug, Default, zerocopy::IntoBytes, zerocopy::Immutable)]
#[repr(C)]
pub(crate) struct NvmeWire {
    pub opcode: u8,
    pub flags: u8,
    pub reserved: u16,
    pub namespace: u32,
    pub dwords_2_and_3: [u32; 2],
    pub metadata: u64,
    pub address: u64,
    pub metadata_bytes: u32,
    /// Bytes, or pieces of a list.
    pub data_length: u32,
    /// Dwords 10 to 15.
    pub dwords_10: [u32; 6],
    /// 0: the driver's own.
    pub timeout_ms: u32,
    pub reserved_end: u32,
}

const _: () = assert!(size_of::<NvmeWire>() == 72);

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

    /// Lists the bytes of `data` from `done` on, at most what one call takes.
    pub fn list<'a>(vectors: &'a mut Option<Box<Self>>, data: &Gather, done: usize) -> &'a mut Self {
        let vectors = vectors.get_or_insert_with(Vectors::new);
        vectors.pieces.clear();
        let (mut skip, mut total) = (done, 0);
        for slice in data.slices() {
            let bytes = slice.bytes();
            if skip >= bytes.len() {
                skip -= bytes.len();
                continue;
            }
            let piece = &bytes[skip..bytes.len().min(skip + CALL_BYTES_MAX - total)];
            if vectors.pieces.len() == CALL_PIECES_MAX || piece.is_empty() {
                break;
            }
            let base = piece.as_ptr().cast_mut().cast();
            vectors.pieces.push(libc::iovec { iov_base: base, iov_len: piece.len() });
            (skip, total) = (0, total + piece.len());
        }
        assert!(!vectors.pieces.is_empty(), "a call carries bytes");
        vectors
    }
}

/// Queues an entry of a ring. If the queue is full, what is queued goes to the kernel first.
///
/// # Safety
/// The memory that the entry points to is valid until its completion was seen.
pub(super) unsafe fn push<S: squeue::EntryMarker, C: cqueue::EntryMarker>(
    ring: &mut IoUring<S, C>,
    entry: &S,
) -> Pushed {
    // SAFETY: the contract of this function.
    let mut pushed = unsafe { ring.submission().push(entry) };
    if pushed.is_err() {
        submit(ring);
        // SAFETY: as above.
        pushed = unsafe { ring.submission().push(entry) };
    }
    if pushed.is_ok() { Pushed::Yes } else { Pushed::Full }
}

/// Hands the queued entries of a ring to the kernel and lets it post what is complete. No call if there is neither.
pub(super) fn submit<S: squeue::EntryMarker, C: cqueue::EntryMarker>(ring: &mut IoUring<S, C>) {
    let (queued, work) = {
        let submission = ring.submission();
        (!submission.is_empty(), submission.taskrun() || submission.cq_overflow())
    };
    if queued || work {
        settle(ring.submitter().submit_and_wait(0));
    }
}

/// The result of `io_uring_enter`. What it could not take stays queued and goes with the next call.
pub(super) fn settle(result: io::Result<usize>) {
    let Err(error) = result else { return };
    match error.raw_os_error() {
        // Interrupted, time over, completions to reap first, no memory for a request now.
        Some(libc::EINTR | libc::ETIME | libc::EBUSY | libc::EAGAIN) => {}
        _ => panic!("io_uring_enter failed: {error}"),
    }
}
