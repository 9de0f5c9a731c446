//! The futures of a ring: each takes what its operation owned, and the result, from an [`InFlight`].
//!
//! Cancellation: a dropped future leaves a device operation and a command running. It cancels a socket operation, and what
//! had arrived by then may be lost: a stream is not used further after a dropped receive. The caller keeps the order of a
//! stream's sends: it starts one when the last is done.

use engine::buffer::Buffer;
use engine::device::{DeviceError, DeviceErrorKind};
use std::future::Future;
use std::io;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use super::in_flight::{Ended, InFlight};
use super::nvme;
use super::op::{FENCED, MISPLACED, Op, PAST_END, accepted};
use layout::units::DeviceOffset;

/// A read in flight.
pub struct DeviceRead(pub(crate) InFlight);

impl Future for DeviceRead {
    type Output = (Buffer, Result<(), DeviceError>);

    #[inline]
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Poll::Ready(match ready!(self.0.poll(context)) {
            Ended::Finished => self.0.take(|op, result| {
                let result = if result >= 0 { Ok(()) } else { Err(error_of(&op, result)) };
                match op {
                    Op::Read { buffer, .. } | Op::MemoryRead { buffer, .. } => (buffer, result),
                    Op::ZoneCopy(copy) => (copy.into_buffers().0, result),
                    Op::Remote { buffer: Some(buffer), .. } => (buffer, result),
                    _ => unreachable!("the slot of a read"),
                }
            }),
            // The memory stays with the late operation: the caller gets other memory, zeroed.
            Ended::Expired => {
                let about = self.0.let_go();
                let bytes = usize::try_from(about.2).expect("the length of a buffer");
                (Buffer::new(bytes), Err(timeout(about)))
            }
        })
    }
}

/// An operation in flight that returns no data.
pub struct DeviceDone(pub(crate) InFlight);

impl Future for DeviceDone {
    type Output = Result<(), DeviceError>;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Poll::Ready(match ready!(self.0.poll(context)) {
            Ended::Finished => {
                self.0.take(|op, result| if result >= 0 { Ok(()) } else { Err(error_of(&op, result)) })
            }
            Ended::Expired => Err(timeout(self.0.let_go())),
        })
    }
}

/// A read of data and metadata of a zoned memory device in flight.
pub struct ZoneRead(pub(crate) InFlight);

impl Future for ZoneRead {
    type Output = (Buffer, Buffer, Result<(), DeviceError>);

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        ready!(self.0.poll(context)); // memory has no time limit
        Poll::Ready(self.0.take(|op, result| {
            let result = if result >= 0 { Ok(()) } else { Err(error_of(&op, result)) };
            let Op::ZoneCopy(copy) = op else { unreachable!("the slot of a read") };
            let (data, metadata) = copy.into_buffers();
            (data, metadata, result)
        }))
    }
}

/// An NVMe command in flight that answers with a place: a zone append.
pub(crate) struct NvmePlace(pub(crate) InFlight);

impl Future for NvmePlace {
    /// The first logical block of what was appended, as the drive says.
    type Output = Result<u64, DeviceError>;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Poll::Ready(match ready!(self.0.poll(context)) {
            Ended::Finished => self.0.take(|op, result| match &op {
                Op::Nvme { command, .. } if result >= 0 => Ok(command.answer),
                _ => Err(error_of(&op, result)),
            }),
            Ended::Expired => Err(timeout(self.0.let_go())),
        })
    }
}

/// A read of data and metadata in flight.
pub(crate) struct NvmeRead(pub(crate) InFlight, pub(crate) usize);

impl Future for NvmeRead {
    type Output = (Buffer, Buffer, Result<(), DeviceError>);

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let metadata_bytes = self.1;
        Poll::Ready(match ready!(self.0.poll(context)) {
            Ended::Finished => self.0.take(|op, result| {
                let result = if result >= 0 { Ok(()) } else { Err(error_of(&op, result)) };
                let Op::Nvme { command, .. } = op else { unreachable!("the slot of a command") };
                let (data, metadata) = command.into_buffers();
                (data, metadata, result)
            }),
            // The memory stays with the late operation: the caller gets other memory, zeroed.
            Ended::Expired => {
                let about = self.0.let_go();
                let bytes = usize::try_from(about.2).expect("the length of a buffer");
                (Buffer::new(bytes), Buffer::new(metadata_bytes), Err(timeout(about)))
            }
        })
    }
}

#[cold]
fn error_of(op: &Op, result: i32) -> DeviceError {
    let (operation, offset, bytes) = op.describe();
    let offset = DeviceOffset::new(offset);
    let (kind, errno) = match (result, nvme::kind_of(result)) {
        (_, Some(kind)) => (kind, 0),
        (PAST_END, _) => (DeviceErrorKind::Gone, 0),
        (MISPLACED, _) => (DeviceErrorKind::Invalid, 0),
        (FENCED, _) => (DeviceErrorKind::Fenced, 0),
        _ if -result == libc::ENOSPC && op.is_beyond_shrunk_device() => (DeviceErrorKind::Gone, -result),
        _ => (kind_of(-result), -result),
    };
    DeviceError { kind, operation, offset, bytes, errno }
}

fn timeout((operation, offset, bytes): (&'static str, u64, u64)) -> DeviceError {
    let offset = DeviceOffset::new(offset);
    DeviceError { kind: DeviceErrorKind::Timeout, operation, offset, bytes, errno: 0 }
}

/// What an error number of a block device or a file system means for a member.
fn kind_of(errno: i32) -> DeviceErrorKind {
    match errno {
        libc::ENOSPC | libc::EDQUOT | libc::EFBIG => DeviceErrorKind::NoSpace,
        libc::ENODEV | libc::ENXIO | libc::ENOMEDIUM | libc::ESHUTDOWN | libc::ESTALE => {
            DeviceErrorKind::Gone
        }
        libc::ETIMEDOUT | libc::ETIME => DeviceErrorKind::Timeout,
        libc::EOPNOTSUPP | libc::ENOSYS | libc::ENOTTY => DeviceErrorKind::Unsupported,
        // EFAULT: the foreign buffer is not registered.
        libc::EINVAL | libc::EFAULT => DeviceErrorKind::Invalid,
        // EIO, EREMOTEIO (target failure), EILSEQ (bad protection data), ENODATA (medium error), ENOLINK (path), …
        _ => DeviceErrorKind::Io,
    }
}

/// A descriptor that will be readable.
pub(crate) struct Readable(pub(super) InFlight);

impl Future for Readable {
    type Output = io::Result<()>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        ready!(self.0.poll(context));
        Poll::Ready(self.0.take(|_, result| count_of(result).map(|_| ())))
    }
}

/// A connection to come.
pub struct Accept(pub(super) InFlight);

impl Future for Accept {
    type Output = io::Result<OwnedFd>;
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        ready!(self.0.poll(context));
        Poll::Ready(self.0.take(|_, result| count_of(result).map(|_| accepted(result))))
    }
}

/// Bytes to come.
pub struct Receive(pub(super) Receiving);

pub(super) enum Receiving {
    Running(InFlight),
    Ready(Option<Buffer>),
}

impl Future for Receive {
    type Output = (Buffer, io::Result<usize>);
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let running = match &mut self.0 {
            Receiving::Running(running) => running,
            Receiving::Ready(buffer) => {
                return Poll::Ready((buffer.take().expect("polled once after completion"), Ok(0)));
            }
        };
        ready!(running.poll(context));
        Poll::Ready(running.take(|op, result| {
            let Op::Receive { buffer, range, whole, .. } = op else { unreachable!("the slot of a receive") };
            (buffer, count_of(result).map(|count| if whole { range.len() } else { count }))
        }))
    }
}

/// Bytes that are being sent.
pub struct Send(pub(super) Option<InFlight>);

impl Future for Send {
    type Output = io::Result<()>;
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let Some(running) = &mut self.0 else { return Poll::Ready(Ok(())) };
        ready!(running.poll(context));
        Poll::Ready(running.take(|_, result| count_of(result).map(|_| ())))
    }
}

fn count_of(result: i32) -> io::Result<usize> {
    if result == PAST_END {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    usize::try_from(result).map_err(|_| io::Error::from_raw_os_error(-result))
}

/// The driver's answer to come: its result, an error number negated. Dropped, the command goes on: only the driver or the
/// end of the ring ends it.
pub(crate) struct DriverAnswer(pub(super) InFlight);

impl Future for DriverAnswer {
    type Output = i32;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<i32> {
        ready!(self.0.poll(context));
        Poll::Ready(self.0.take(|_, result| result))
    }
}

/// The end of a sleep to come.
pub struct Sleep(pub(super) InFlight);

impl Future for Sleep {
    type Output = ();
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        ready!(self.0.poll(context));
        self.0.take(|_, _| Poll::Ready(()))
    }
}
