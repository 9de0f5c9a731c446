//! Futures of device operations, with the results that [`engine::device::Device`] promises.

use engine::buffer::Buffer;
use engine::device::{DeviceError, DeviceErrorKind};
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use super::in_flight::{Ended, InFlight};
use super::op::{MISPLACED, Op, PAST_END};

/// A read on its way.
pub struct DeviceRead(pub(crate) InFlight);

impl Future for DeviceRead {
    type Output = (Buffer, Result<(), DeviceError>);

    #[inline]
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Poll::Ready(match ready!(self.0.poll(context)) {
            Ended::Finished => self.0.take(|op, result| {
                let result = if result >= 0 { Ok(()) } else { Err(error_of(&op, result)) };
                let (Op::Read { buffer, .. } | Op::MemoryRead { buffer, .. }) = op else {
                    unreachable!("the slot of a read")
                };
                (buffer, result)
            }),
            // The memory stays with the operation that does not end: the caller gets other memory, zeroed.
            Ended::Expired => {
                let about = self.0.let_go();
                let bytes = usize::try_from(about.2).expect("the length of a buffer");
                (Buffer::new(bytes), Err(timeout(about)))
            }
        })
    }
}

/// An operation on its way that returns no data.
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

#[cold]
fn error_of(op: &Op, result: i32) -> DeviceError {
    let (operation, offset_bytes, bytes) = op.describe();
    let (kind, errno) = match result {
        PAST_END => (DeviceErrorKind::Gone, 0),
        MISPLACED => (DeviceErrorKind::Invalid, 0),
        _ if -result == libc::ENOSPC && op.is_beyond_shrunk_device() => (DeviceErrorKind::Gone, -result),
        _ => (kind_of(-result), -result),
    };
    DeviceError { kind, operation, offset_bytes, bytes, errno }
}

fn timeout((operation, offset_bytes, bytes): (&'static str, u64, u64)) -> DeviceError {
    DeviceError { kind: DeviceErrorKind::Timeout, operation, offset_bytes, bytes, errno: 0 }
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
