//! What an operation owns, the request it makes of the system, and how it goes on after a partial result.

use engine::buffer::{Buffer, Gather, Pool, Slice};
use engine::foreign_buffer::Lease;
use rustix::fs::OFlags;
use std::cell::RefCell;
use std::ops::Range;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::rc::Rc;
use std::sync::Arc;

use super::lane::Lane;
use super::late::LateWrites;
use crate::device::memory::Region;

/// Result of a read that met the end of the file: the member was cut short.
pub(crate) const PAST_END: i32 = i32::MIN;

/// Result of an operation outside of its device or across its blocks, which is not sent.
pub(crate) const MISPLACED: i32 = i32::MIN + 1;

/// Most bytes of one call: the kernel's own limit (`MAX_RW_COUNT`) is a page below 2 GiB.
const CALL_BYTES_MAX: usize = 1 << 30;

/// Most pieces of one vectored call (`UIO_MAXIOV`).
const CALL_PIECES_MAX: usize = 1024;

/// Direct reads end at a multiple of this, or at the end of the file.
const DIRECT_UNIT: usize = 512;

/// What a command of a driver carries in an entry of 64 bytes.
pub(crate) const COMMAND_BYTES: usize = 16;

/// An open file or block device as one ring knows it.
pub(crate) struct Target {
    pub fd: Arc<OwnedFd>,
    pub direct: bool,
    /// Whether its driver takes registered memory: ublk's does not.
    pub takes_fixed: bool,
    pub registered: Option<Registered>,
    /// Shared by all shards that reach the device.
    pub late: Arc<LateWrites>,
    pub lane: RefCell<Lane>,
}

/// A place in the ring's table of registered files, handed back when the last operation on it is gone.
pub(crate) struct Registered {
    pub index: u32,
    pub released: Rc<RefCell<Vec<u32>>>,
}

impl Drop for Registered {
    fn drop(&mut self) {
        self.released.borrow_mut().push(self.index);
    }
}

/// An operation with all that it owns.
pub(crate) enum Op {
    Vacant,
    Read {
        file: Rc<Target>,
        buffer: Buffer,
        offset: u64,
        done: usize,
        fixed: Option<u16>,
    },
    /// A read into memory that a driver has registered with the ring.
    ReadInto {
        file: Rc<Target>,
        target: Lease,
        offset: u64,
        bytes: usize,
        done: usize,
    },
    Write {
        file: Rc<Target>,
        data: Gather,
        offset: u64,
        done: usize,
        fixed: Option<u16>,
        fua: bool,
    },
    Flush {
        file: Rc<Target>,
    },
    /// fallocate; without `zeroes` its refusal is final, else they are written out instead.
    Allocate {
        file: Rc<Target>,
        mode: i32,
        offset: u64,
        bytes: u64,
        zeroes: Option<Slice>,
    },
    /// Zeroes written piece by piece where the file system cannot make them itself.
    WriteZeroes {
        file: Rc<Target>,
        zeroes: Slice,
        offset: u64,
        bytes: u64,
        done: u64,
    },
    /// Done by a helper thread.
    Discard {
        file: Rc<Target>,
        offset: u64,
        bytes: u64,
    },
    MemoryRead {
        region: Rc<Region>,
        buffer: Buffer,
        offset: u64,
    },
    MemoryWrite {
        region: Rc<Region>,
        data: Gather,
        offset: u64,
    },
    MemoryClear {
        region: Rc<Region>,
        offset: u64,
        bytes: u64,
        name: &'static str,
        unmap: bool,
    },
    MemoryFlush {
        region: Rc<Region>,
    },
    /// A command of the file's own driver. It owns no memory.
    Command {
        file: Rc<Target>,
        command: u32,
        payload: [u8; COMMAND_BYTES],
        /// What the driver wants in the entry's field for an address.
        address: u64,
    },
    Accept {
        listener: Rc<OwnedFd>,
    },
    Receive {
        socket: Rc<OwnedFd>,
        buffer: Buffer,
        range: Range<usize>,
        done: usize,
        whole: bool,
    },
    Send {
        socket: Rc<OwnedFd>,
        data: Gather,
        done: usize,
    },
    Sleep,
}

/// Scratch for a vectored call.
pub(crate) struct Vectors {
    pub message: libc::msghdr,
    pub pieces: Vec<libc::iovec>,
}

/// The descriptor of a call: plain, or an index into the registered files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Descriptor {
    Plain(RawFd),
    Registered(u32, RawFd),
}

/// One call to the system. The pointers are valid until the slot that made it is freed or makes the next one.
#[derive(Clone, Copy, Debug)]
pub(super) enum Request {
    Read {
        fd: Descriptor,
        address: *mut u8,
        bytes: u32,
        offset: u64,
        fixed: Option<u16>,
    },
    /// `from` is where in the registered memory it begins.
    ReadInto {
        fd: Descriptor,
        place: u16,
        from: u64,
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

/// Who carries an operation out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Route {
    /// The kernel, through the ring.
    System,
    /// The reap step, by a copy from or to a memory device.
    Copy,
    /// The same, once the device is ready.
    CopyLater,
    /// A timer or a helper thread: nothing to submit.
    Elsewhere,
}

/// What a partial result leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    Done(i32),
    Again,
}

impl Op {
    /// The file of an operation that may have a time limit.
    pub fn target(&self) -> Option<&Rc<Target>> {
        match self {
            Op::Read { file, .. }
            | Op::ReadInto { file, .. }
            | Op::Write { file, .. }
            | Op::Flush { file }
            | Op::Allocate { file, .. }
            | Op::WriteZeroes { file, .. }
            | Op::Discard { file, .. } => Some(file),
            _ => None,
        }
    }

    pub(super) fn is_flush(&self) -> bool {
        matches!(self, Op::Flush { .. })
    }

    /// Whether it changes what the file holds.
    pub fn changes_contents(&self) -> bool {
        matches!(self, Op::Write { .. } | Op::Allocate { .. } | Op::WriteZeroes { .. } | Op::Discard { .. })
    }

    pub(super) fn route(&self) -> Route {
        match self {
            Op::MemoryRead { region, .. } if region.reads_cost() => Route::CopyLater,
            Op::MemoryWrite { region, .. } if region.writes_cost() => Route::CopyLater,
            Op::MemoryRead { .. }
            | Op::MemoryWrite { .. }
            | Op::MemoryClear { .. }
            | Op::MemoryFlush { .. } => Route::Copy,
            Op::Vacant | Op::Discard { .. } | Op::Sleep => Route::Elsewhere,
            Op::Read { .. }
            | Op::ReadInto { .. }
            | Op::Write { .. }
            | Op::Flush { .. }
            | Op::Allocate { .. }
            | Op::WriteZeroes { .. }
            | Op::Command { .. }
            | Op::Accept { .. }
            | Op::Receive { .. }
            | Op::Send { .. } => Route::System,
        }
    }

    /// Whether the operation may wait for a peer for ever, so that it is cancelled with its future.
    pub(super) fn is_socket(&self) -> bool {
        matches!(self, Op::Accept { .. } | Op::Receive { .. } | Op::Send { .. })
    }

    /// Whether the operation waits for its driver for ever, which only the end of the ring or of the device ends.
    pub(super) fn is_command(&self) -> bool {
        matches!(self, Op::Command { .. })
    }

    /// The next call of this operation. `vectors` is its slot's scratch.
    pub(super) fn request(&mut self, vectors: &mut Option<Box<Vectors>>) -> Request {
        match self {
            Op::Read { file, buffer, offset, done, fixed } => {
                let rest = &mut buffer.bytes_mut()[*done..];
                let bytes = call_bytes(rest.len());
                let at = *offset + *done as u64;
                Request::Read {
                    fd: file.descriptor(),
                    address: rest.as_mut_ptr(),
                    bytes,
                    offset: at,
                    fixed: *fixed,
                }
            }
            Op::ReadInto { file, target, offset, bytes, done } => Request::ReadInto {
                fd: file.descriptor(),
                place: target.index(),
                from: target.offset_bytes() + *done as u64,
                bytes: call_bytes(*bytes - *done),
                offset: *offset + *done as u64,
            },
            Op::Write { file, data, offset, done, fixed, fua } => {
                let flags = if *fua { libc::RWF_DSYNC } else { 0 };
                write_request(file, data, *offset, *done, *fixed, flags, vectors)
            }
            Op::WriteZeroes { file, zeroes, offset, bytes, done } => {
                let length = usize::try_from(*bytes - *done).unwrap_or(usize::MAX).min(zeroes.len());
                Request::Write {
                    fd: file.descriptor(),
                    address: zeroes.bytes().as_ptr(),
                    bytes: call_bytes(length),
                    offset: *offset + *done,
                    fixed: None,
                    flags: 0,
                }
            }
            Op::Flush { file } => Request::Sync { fd: file.descriptor() },
            Op::Allocate { file, mode, offset, bytes, .. } => {
                Request::Allocate { fd: file.descriptor(), mode: *mode, offset: *offset, bytes: *bytes }
            }
            Op::Command { file, command, payload, address } => Request::Command {
                fd: file.descriptor(),
                command: *command,
                payload: *payload,
                address: *address,
            },
            Op::Accept { listener } => Request::Accept { fd: Descriptor::Plain(listener.as_raw_fd()) },
            Op::Receive { socket, buffer, range, done, whole } => {
                let rest = &mut buffer.bytes_mut()[range.start + *done..range.end];
                Request::Receive {
                    fd: Descriptor::Plain(socket.as_raw_fd()),
                    address: rest.as_mut_ptr(),
                    bytes: call_bytes(rest.len()),
                    flags: if *whole { libc::MSG_WAITALL } else { 0 },
                }
            }
            Op::Send { socket, data, done } => send_request(socket, data, *done, vectors),
            Op::Vacant
            | Op::Discard { .. }
            | Op::MemoryRead { .. }
            | Op::MemoryWrite { .. }
            | Op::MemoryClear { .. }
            | Op::MemoryFlush { .. }
            | Op::Sleep => unreachable!("only operations of the system make requests"),
        }
    }

    /// Takes the result of a call: a count or a negated error number.
    pub(super) fn advance(&mut self, result: i32) -> Step {
        if result == -libc::EAGAIN {
            return self.make_blocking();
        }
        if result == -libc::EINTR {
            return Step::Again;
        }
        match self {
            Op::Allocate { file, offset, bytes, zeroes, .. }
                if is_unsupported(result) && zeroes.is_some() =>
            {
                let zeroes = zeroes.take().expect("just seen");
                let (file, offset, bytes) = (Rc::clone(file), *offset, *bytes);
                *self = Op::WriteZeroes { file, zeroes, offset, bytes, done: 0 };
                Step::Again
            }
            _ if result < 0 => Step::Done(result),
            Op::Read { file, buffer, done, .. } => read_on(file, done, result, buffer.len()),
            Op::ReadInto { file, bytes, done, .. } => read_on(file, done, result, *bytes),
            Op::Write { data, done, .. } => go_on(done, result, data.len(), -libc::EIO),
            Op::WriteZeroes { bytes, done, .. } => {
                *done += u64::from(result.unsigned_abs());
                match *done == *bytes {
                    true => Step::Done(0),
                    false if result == 0 => Step::Done(-libc::EIO),
                    false => Step::Again,
                }
            }
            Op::Receive { range, done, whole: true, .. } => go_on(done, result, range.len(), PAST_END),
            Op::Send { data, done, .. } => go_on(done, result, data.len(), -libc::EPIPE),
            _ => Step::Done(result),
        }
    }

    /// The kernel does not wait for sockets that are set to O_NONBLOCK: they are set back, and tried again.
    fn make_blocking(&self) -> Step {
        let (Op::Accept { listener: socket } | Op::Receive { socket, .. } | Op::Send { socket, .. }) = self
        else {
            return Step::Again;
        };
        let flags = rustix::fs::fcntl_getfl(socket);
        match flags.and_then(|flags| rustix::fs::fcntl_setfl(socket, flags - OFlags::NONBLOCK)) {
            Ok(()) => Step::Again,
            Err(error) => Step::Done(-error.raw_os_error()),
        }
    }

    /// Index of the memory among those registered with the ring of `pool`, if the transfer is one piece.
    pub(super) fn find_fixed(&mut self, pool: &Arc<Pool>) {
        match self {
            Op::Read { file, buffer, fixed, .. } if file.takes_fixed => *fixed = buffer.fixed_index(pool),
            Op::Write { file, data, fixed, .. } if file.takes_fixed => {
                if let [slice] = data.slices() {
                    *fixed = slice.fixed_index(pool);
                }
            }
            _ => {}
        }
    }

    /// Whether the block device below has become smaller than the operation needs: one that was pulled out has no
    /// bytes left, and its writes fail with ENOSPC.
    pub(crate) fn is_beyond_shrunk_device(&self) -> bool {
        let Op::Write { file, .. } = self else { return false };
        let (_, offset, bytes) = self.describe();
        let is_block = rustix::fs::fstat(&*file.fd)
            .is_ok_and(|stat| rustix::fs::FileType::from_raw_mode(stat.st_mode).is_block_device());
        // Every transfer names its offset, so nobody misses the descriptor's position.
        is_block
            && rustix::fs::seek(&*file.fd, rustix::fs::SeekFrom::End(0)).is_ok_and(|end| end < offset + bytes)
    }

    /// Name, offset and length for an error message.
    pub(crate) fn describe(&self) -> (&'static str, u64, u64) {
        match self {
            Op::Read { buffer, offset, .. } | Op::MemoryRead { buffer, offset, .. } => {
                ("read", *offset, buffer.len() as u64)
            }
            Op::ReadInto { offset, bytes, .. } => ("read", *offset, *bytes as u64),
            Op::Write { data, offset, .. } | Op::MemoryWrite { data, offset, .. } => {
                ("write", *offset, data.len() as u64)
            }
            Op::Flush { .. } | Op::MemoryFlush { .. } => ("flush", 0, 0),
            Op::Allocate { offset, bytes, zeroes: None, .. } | Op::Discard { offset, bytes, .. } => {
                ("discard", *offset, *bytes)
            }
            Op::Allocate { offset, bytes, .. } | Op::WriteZeroes { offset, bytes, .. } => {
                ("write zeroes", *offset, *bytes)
            }
            Op::MemoryClear { offset, bytes, name, .. } => (name, *offset, *bytes),
            Op::Command { .. } => ("command", 0, 0),
            Op::Accept { .. } => ("accept", 0, 0),
            Op::Receive { range, .. } => ("receive", 0, range.len() as u64),
            Op::Send { data, .. } => ("send", 0, data.len() as u64),
            Op::Vacant | Op::Sleep => ("sleep", 0, 0),
        }
    }
}

impl Vectors {
    fn new_box() -> Box<Self> {
        // SAFETY: msghdr is plain integers and pointers, for which all zeroes mean "none".
        let message = unsafe { std::mem::zeroed() };
        Box::new(Vectors { message, pieces: Vec::new() })
    }
}

impl Target {
    fn descriptor(&self) -> Descriptor {
        match &self.registered {
            Some(registered) => Descriptor::Registered(registered.index, self.fd.as_raw_fd()),
            None => Descriptor::Plain(self.fd.as_raw_fd()),
        }
    }
}

fn call_bytes(bytes: usize) -> u32 {
    u32::try_from(bytes.min(CALL_BYTES_MAX)).expect("below 2^30")
}

/// A read that has got some of its bytes.
fn read_on(file: &Target, done: &mut usize, result: i32, whole: usize) -> Step {
    *done += result.unsigned_abs() as usize;
    let cut = result == 0 || (file.direct && !done.is_multiple_of(DIRECT_UNIT));
    match *done == whole {
        true => Step::Done(0),
        false if cut => Step::Done(PAST_END),
        false => Step::Again,
    }
}

fn go_on(done: &mut usize, result: i32, wanted: usize, at_zero: i32) -> Step {
    *done += result.unsigned_abs() as usize;
    match *done == wanted {
        true => Step::Done(0),
        false if result == 0 => Step::Done(at_zero),
        false => Step::Again,
    }
}

fn is_unsupported(result: i32) -> bool {
    matches!(-result, libc::EOPNOTSUPP | libc::ENOSYS)
}

fn write_request(
    file: &Target,
    data: &Gather,
    offset: u64,
    done: usize,
    fixed: Option<u16>,
    flags: i32,
    vectors: &mut Option<Box<Vectors>>,
) -> Request {
    let (fd, at) = (file.descriptor(), offset + done as u64);
    if let Some(rest) = last_piece(data, done) {
        let bytes = call_bytes(rest.len());
        return Request::Write { fd, address: rest.as_ptr(), bytes, offset: at, fixed, flags };
    }
    let pieces = &mut gather_pieces(data, done, vectors).pieces;
    let count = u32::try_from(pieces.len()).expect("at most 1024 pieces");
    Request::WriteVectored { fd, pieces: pieces.as_ptr(), count, offset: at, flags }
}

fn send_request(socket: &OwnedFd, data: &Gather, done: usize, vectors: &mut Option<Box<Vectors>>) -> Request {
    let (fd, flags) = (Descriptor::Plain(socket.as_raw_fd()), libc::MSG_NOSIGNAL | libc::MSG_WAITALL);
    if let Some(rest) = last_piece(data, done) {
        return Request::Send { fd, address: rest.as_ptr(), bytes: call_bytes(rest.len()), flags };
    }
    let vectors = gather_pieces(data, done, vectors);
    vectors.message.msg_iov = vectors.pieces.as_mut_ptr();
    vectors.message.msg_iovlen = vectors.pieces.len() as _;
    Request::SendMessage { fd, message: &raw const vectors.message, flags }
}

/// The bytes from `done` on, if they lie in one slice.
fn last_piece(data: &Gather, done: usize) -> Option<&[u8]> {
    let last = data.slices().last()?;
    let before = data.len() - last.len();
    (done >= before).then(|| &last.bytes()[done - before..])
}

/// Lists the bytes from `done` on.
fn gather_pieces<'a>(data: &Gather, done: usize, vectors: &'a mut Option<Box<Vectors>>) -> &'a mut Vectors {
    let vectors = vectors.get_or_insert_with(Vectors::new_box);
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
