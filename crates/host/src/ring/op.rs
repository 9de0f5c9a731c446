//! An operation: what it owns, the calls it makes of the system, and how it goes on after a partial result.

use engine::buffer::{Buffer, Gather, Pool, Slice};
use engine::foreign_buffer::Lease;
use rustix::fs::OFlags;
use std::ops::Range;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use super::file::RingFile;
use super::memory::{Clearing, Region};
use super::nvme::{self, NvmeCommand};
use super::system_call::{CALL_BYTES_MAX, COMMAND_BYTES, Descriptor, SystemCall, Vectors};
use super::zone_copy::ZoneCopy;

/// Result of a read that met the end of the file: the member was cut short.
pub(crate) const PAST_END: i32 = i32::MIN;

/// Result of an operation outside of its device or across its blocks, which is not sent.
pub(crate) const MISPLACED: i32 = i32::MIN + 1;

/// Result of an operation at a member that another host has reserved.
pub(crate) const FENCED: i32 = i32::MIN + 2;

/// Direct reads end at a multiple of this, or at the end of the file.
const DIRECT_UNIT: usize = 512;

/// An operation with all that it owns.
pub(crate) enum Op {
    /// None: its slot is free.
    Vacant,
    Read {
        file: Rc<RingFile>,
        buffer: Buffer,
        offset: u64,
        done: usize,
        fixed: Option<u16>,
    },
    /// A read into a foreign buffer.
    ReadInto {
        file: Rc<RingFile>,
        target: Lease,
        offset: u64,
        bytes: usize,
        done: usize,
    },
    Write {
        file: Rc<RingFile>,
        data: Gather,
        offset: u64,
        done: usize,
        fixed: Option<u16>,
        fua: bool,
    },
    Flush {
        file: Rc<RingFile>,
    },
    /// fallocate. Where the file system refuses it, `zeroes` are written out instead if they are there.
    Allocate {
        file: Rc<RingFile>,
        mode: i32,
        offset: u64,
        bytes: u64,
        zeroes: Option<Slice>,
    },
    /// Zeroes written piece by piece where the file system cannot make them itself.
    WriteZeroes {
        file: Rc<RingFile>,
        zeroes: Slice,
        offset: u64,
        bytes: u64,
        done: u64,
    },
    /// A call that io_uring does not have, made by a helper thread: a discard, the report or the reset of a zone.
    Helped {
        file: Rc<RingFile>,
        name: &'static str,
        offset: u64,
        bytes: u64,
        /// Whether it changes what the file holds.
        changes: bool,
    },
    /// A command of NVMe's own.
    Nvme {
        file: Rc<RingFile>,
        command: Box<NvmeCommand>,
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
        clearing: Clearing,
    },
    MemoryFlush {
        region: Rc<Region>,
    },
    /// Of a zoned memory device.
    ZoneCopy(Box<ZoneCopy>),
    /// Of a member on another machine: its queue carries it out and ends it by [`super::Ring::finish`].
    Remote {
        name: &'static str,
        offset: u64,
        bytes: u64,
        /// What a read has read, once it has ended.
        buffer: Option<Buffer>,
    },
    /// A command of the file's own driver. It owns no memory.
    Command {
        file: Rc<RingFile>,
        command: u32,
        payload: [u8; COMMAND_BYTES],
        /// What the driver wants in the entry's field for an address.
        address: u64,
    },
    /// A wait until a descriptor can be read: an eventfd that another process signals.
    Readable {
        fd: Rc<OwnedFd>,
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

/// What carries an operation out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Route {
    /// The kernel, through the ring.
    System,
    /// The reap step, by a copy from or to a memory device.
    Copy,
    /// The reap step, at the moment when the memory device is ready.
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
    pub fn file(&self) -> Option<&Rc<RingFile>> {
        match self {
            Op::Read { file, .. }
            | Op::ReadInto { file, .. }
            | Op::Write { file, .. }
            | Op::Flush { file }
            | Op::Allocate { file, .. }
            | Op::WriteZeroes { file, .. }
            | Op::Helped { file, .. }
            | Op::Nvme { file, .. } => Some(file),
            _ => None,
        }
    }

    pub(super) fn is_flush(&self) -> bool {
        matches!(self, Op::Flush { .. })
    }

    /// Whether it changes what the file holds.
    pub fn changes_contents(&self) -> bool {
        match self {
            Op::Write { .. } | Op::Allocate { .. } | Op::WriteZeroes { .. } => true,
            Op::Helped { changes, .. } => *changes,
            Op::Nvme { command, .. } => command.changes_contents(),
            _ => false,
        }
    }

    pub(super) fn route(&self) -> Route {
        match self {
            Op::MemoryRead { region, .. } if region.reads_cost() => Route::CopyLater,
            Op::MemoryWrite { region, .. } if region.writes_cost() => Route::CopyLater,
            Op::ZoneCopy(copy) if copy.ready.is_some() => Route::CopyLater,
            Op::ZoneCopy(_)
            | Op::MemoryRead { .. }
            | Op::MemoryWrite { .. }
            | Op::MemoryClear { .. }
            | Op::MemoryFlush { .. } => Route::Copy,
            Op::Vacant | Op::Helped { .. } | Op::Remote { .. } | Op::Sleep => Route::Elsewhere,
            Op::Read { .. }
            | Op::ReadInto { .. }
            | Op::Write { .. }
            | Op::Flush { .. }
            | Op::Allocate { .. }
            | Op::WriteZeroes { .. }
            | Op::Nvme { .. }
            | Op::Command { .. }
            | Op::Readable { .. }
            | Op::Accept { .. }
            | Op::Receive { .. }
            | Op::Send { .. } => Route::System,
        }
    }

    /// Whether the operation may wait for a peer for ever: it is cancelled when its future is dropped.
    pub(super) fn awaits_peer(&self) -> bool {
        matches!(self, Op::Readable { .. } | Op::Accept { .. } | Op::Receive { .. } | Op::Send { .. })
    }

    /// Whether the operation may wait for its driver for ever: only the end of the ring or of the device ends it.
    pub(super) fn is_command(&self) -> bool {
        matches!(self, Op::Command { .. })
    }

    /// When a memory device that is slowed down is ready for this operation.
    pub(super) fn ready_at(&self) -> Instant {
        match self {
            Op::MemoryRead { region, buffer, .. } => region.ready_at(true, buffer.len()),
            Op::MemoryWrite { region, data, .. } => region.ready_at(false, data.len()),
            Op::ZoneCopy(copy) => copy.ready.expect("it waits for its time"),
            _ => unreachable!("only operations of memory devices wait for them"),
        }
    }

    /// The next call of this operation. `vectors` belongs to its slot.
    pub(super) fn call(&mut self, vectors: &mut Option<Box<Vectors>>) -> SystemCall {
        match self {
            Op::Read { file, buffer, offset, done, fixed } => {
                let rest = &mut buffer.bytes_mut()[*done..];
                let bytes = call_bytes(rest.len());
                let at = *offset + *done as u64;
                SystemCall::Read {
                    fd: file.descriptor(),
                    address: rest.as_mut_ptr(),
                    bytes,
                    offset: at,
                    fixed: *fixed,
                }
            }
            Op::ReadInto { file, target, offset, bytes, done } => SystemCall::ReadInto {
                fd: file.descriptor(),
                buffer: target.index(),
                buffer_offset: target.offset_bytes() + *done as u64,
                bytes: call_bytes(*bytes - *done),
                offset: *offset + *done as u64,
            },
            Op::Write { file, data, offset, done, fixed, fua } => {
                let flags = if *fua { libc::RWF_DSYNC } else { 0 };
                write_call(file, data, *offset, *done, *fixed, flags, vectors)
            }
            Op::WriteZeroes { file, zeroes, offset, bytes, done } => {
                let length = usize::try_from(*bytes - *done).unwrap_or(usize::MAX).min(zeroes.len());
                SystemCall::Write {
                    fd: file.descriptor(),
                    address: zeroes.bytes().as_ptr(),
                    bytes: call_bytes(length),
                    offset: *offset + *done,
                    fixed: None,
                    flags: 0,
                }
            }
            Op::Flush { file } => SystemCall::Sync { fd: file.descriptor() },
            Op::Allocate { file, mode, offset, bytes, .. } => {
                SystemCall::Allocate { fd: file.descriptor(), mode: *mode, offset: *offset, bytes: *bytes }
            }
            Op::Command { file, command, payload, address } => SystemCall::Command {
                fd: file.descriptor(),
                command: *command,
                payload: *payload,
                address: *address,
            },
            Op::Nvme { file, command } => command.call(file.descriptor(), vectors),
            Op::Readable { fd } => SystemCall::Readable { fd: Descriptor::Plain(fd.as_raw_fd()) },
            Op::Accept { listener } => SystemCall::Accept { fd: Descriptor::Plain(listener.as_raw_fd()) },
            Op::Receive { socket, buffer, range, done, whole } => {
                let rest = &mut buffer.bytes_mut()[range.start + *done..range.end];
                SystemCall::Receive {
                    fd: Descriptor::Plain(socket.as_raw_fd()),
                    address: rest.as_mut_ptr(),
                    bytes: call_bytes(rest.len()),
                    flags: if *whole { libc::MSG_WAITALL } else { 0 },
                }
            }
            Op::Send { socket, data, done } => send_call(socket, data, *done, vectors),
            Op::Vacant
            | Op::Helped { .. }
            | Op::Remote { .. }
            | Op::ZoneCopy(_)
            | Op::MemoryRead { .. }
            | Op::MemoryWrite { .. }
            | Op::MemoryClear { .. }
            | Op::MemoryFlush { .. }
            | Op::Sleep => unreachable!("only operations of the system make calls"),
        }
    }

    /// Takes the result of a call: a count or a negated error number.
    pub(super) fn advance(&mut self, result: i32) -> Step {
        if matches!(self, Op::Nvme { .. }) {
            return Step::Done(nvme::outcome(result));
        }
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

    /// The kernel does not wait for a socket in mode O_NONBLOCK: this ends the mode and tries again.
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

    /// Looks up the index under which `pool` has registered the memory of a transfer that is one piece.
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

    /// Whether the write lies beyond the end of a block device that has become smaller. The writes of one that was pulled
    /// out fail with ENOSPC.
    pub(crate) fn is_beyond_shrunk_device(&self) -> bool {
        let Op::Write { file, .. } = self else { return false };
        let (_, offset, bytes) = self.describe();
        file.has_shrunk_below(offset + bytes)
    }

    /// Lets go of a result that no future takes: the connection of an accept is closed.
    pub(super) fn discard_result(&self, result: i32) {
        if matches!(self, Op::Accept { .. }) && result >= 0 {
            drop(accepted(result));
        }
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
            Op::Allocate { offset, bytes, zeroes: None, .. } => ("discard", *offset, *bytes),
            Op::Helped { name, offset, bytes, .. } | Op::Remote { name, offset, bytes, .. } => {
                (name, *offset, *bytes)
            }
            Op::Nvme { command, .. } => command.describe(),
            Op::ZoneCopy(copy) => (copy.name, copy.offset_bytes, copy.bytes),
            Op::Allocate { offset, bytes, .. } | Op::WriteZeroes { offset, bytes, .. } => {
                ("write zeroes", *offset, *bytes)
            }
            Op::MemoryClear { offset, bytes, clearing, .. } => (clearing.name(), *offset, *bytes),
            Op::Command { .. } => ("command", 0, 0),
            Op::Readable { .. } => ("wait", 0, 0),
            Op::Accept { .. } => ("accept", 0, 0),
            Op::Receive { range, .. } => ("receive", 0, range.len() as u64),
            Op::Send { data, .. } => ("send", 0, data.len() as u64),
            Op::Vacant | Op::Sleep => ("sleep", 0, 0),
        }
    }
}

/// The connection that an accept returned. Called once for each result.
pub(super) fn accepted(result: i32) -> OwnedFd {
    // SAFETY: a successful accept returns a fresh descriptor, and its result is taken once.
    unsafe { OwnedFd::from_raw_fd(result) }
}

fn call_bytes(bytes: usize) -> u32 {
    u32::try_from(bytes.min(CALL_BYTES_MAX)).expect("below 2^30")
}

/// A read has got some of its bytes.
fn read_on(file: &RingFile, done: &mut usize, result: i32, whole: usize) -> Step {
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

fn write_call(
    file: &RingFile,
    data: &Gather,
    offset: u64,
    done: usize,
    fixed: Option<u16>,
    flags: i32,
    vectors: &mut Option<Box<Vectors>>,
) -> SystemCall {
    let (fd, at) = (file.descriptor(), offset + done as u64);
    if let Some(rest) = last_piece(data, done) {
        let bytes = call_bytes(rest.len());
        return SystemCall::Write { fd, address: rest.as_ptr(), bytes, offset: at, fixed, flags };
    }
    let pieces = &mut Vectors::list(vectors, data, done).pieces;
    let count = u32::try_from(pieces.len()).expect("at most 1024 pieces");
    SystemCall::WriteVectored { fd, pieces: pieces.as_ptr(), count, offset: at, flags }
}

fn send_call(socket: &OwnedFd, data: &Gather, done: usize, vectors: &mut Option<Box<Vectors>>) -> SystemCall {
    let (fd, flags) = (Descriptor::Plain(socket.as_raw_fd()), libc::MSG_NOSIGNAL | libc::MSG_WAITALL);
    if let Some(rest) = last_piece(data, done) {
        return SystemCall::Send { fd, address: rest.as_ptr(), bytes: call_bytes(rest.len()), flags };
    }
    let vectors = Vectors::list(vectors, data, done);
    vectors.message.msg_iov = vectors.pieces.as_mut_ptr();
    vectors.message.msg_iovlen = vectors.pieces.len() as _;
    SystemCall::SendMessage { fd, message: &raw const vectors.message, flags }
}

/// The bytes from `done` on, if they lie in one slice.
fn last_piece(data: &Gather, done: usize) -> Option<&[u8]> {
    let last = data.slices().last()?;
    let before = data.len() - last.len();
    (done >= before).then(|| &last.bytes()[done - before..])
}
