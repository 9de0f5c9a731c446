//! Device operations on the ring, with the results that [`engine::device::Device`] promises.

use engine::buffer::Buffer;
use engine::device::{DeviceError, DeviceErrorKind};
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use super::InFlight;
use super::op::{Op, PAST_END};

/// A read on its way, or one that was refused before it started.
pub struct DeviceRead(Reading);

enum Reading {
    Running(InFlight),
    Refused(Option<(Buffer, DeviceError)>),
}

impl DeviceRead {
    #[inline]
    pub(crate) fn running(in_flight: InFlight) -> Self {
        DeviceRead(Reading::Running(in_flight))
    }

    pub(crate) fn refused(buffer: Buffer, error: DeviceError) -> Self {
        DeviceRead(Reading::Refused(Some((buffer, error))))
    }
}

impl Future for DeviceRead {
    type Output = (Buffer, Result<(), DeviceError>);

    #[inline]
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let running = match &mut self.0 {
            Reading::Running(running) => running,
            Reading::Refused(refusal) => {
                let (buffer, error) = refusal.take().expect("polled once after completion");
                return Poll::Ready((buffer, Err(error)));
            }
        };
        let done = ready!(running.poll(context));
        match done.op {
            Some(op) => {
                let result = result_of(&op, done.result);
                let (Op::Read { buffer, .. } | Op::MemoryRead { buffer, .. }) = op else {
                    unreachable!("the slot of a read")
                };
                Poll::Ready((buffer, result))
            }
            // The memory stays with the operation that does not end: the caller gets other memory, zeroed.
            None => Poll::Ready((Buffer::new(length(&done.about)), Err(timeout(done.about)))),
        }
    }
}

/// An operation on its way that returns no data, or one that was refused before it started.
pub struct DeviceDone(Doing);

enum Doing {
    Running(InFlight),
    Refused(DeviceError),
}

impl DeviceDone {
    #[inline]
    pub(crate) fn running(in_flight: InFlight) -> Self {
        DeviceDone(Doing::Running(in_flight))
    }

    pub(crate) fn refused(error: DeviceError) -> Self {
        DeviceDone(Doing::Refused(error))
    }
}

impl Future for DeviceDone {
    type Output = Result<(), DeviceError>;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match &mut self.0 {
            Doing::Running(running) => {
                let done = ready!(running.poll(context));
                Poll::Ready(match done.op {
                    Some(op) => result_of(&op, done.result),
                    None => Err(timeout(done.about)),
                })
            }
            Doing::Refused(error) => Poll::Ready(Err(error.clone())),
        }
    }
}

#[inline]
fn result_of(op: &Op, result: i32) -> Result<(), DeviceError> {
    if result >= 0 {
        return Ok(());
    }
    let (operation, offset_bytes, bytes) = op.describe();
    let errno = if result == PAST_END { 0 } else { -result };
    let kind = if result == PAST_END { DeviceErrorKind::Gone } else { kind_of(errno) };
    Err(DeviceError { kind, operation, offset_bytes, bytes, errno })
}

fn timeout((operation, offset_bytes, bytes): (&'static str, u64, u64)) -> DeviceError {
    DeviceError { kind: DeviceErrorKind::Timeout, operation, offset_bytes, bytes, errno: 0 }
}

fn length((_, _, bytes): &(&'static str, u64, u64)) -> usize {
    usize::try_from(*bytes).expect("the length of a buffer")
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
        libc::EINVAL => DeviceErrorKind::Invalid,
        // EIO, EREMOTEIO (target failure), EILSEQ (bad protection data), ENODATA (medium error), ENOLINK (path), …
        _ => DeviceErrorKind::Io,
    }
}
