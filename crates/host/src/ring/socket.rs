//! Futures of socket operations: accept, receive, send. Each operation owns its memory and its descriptor until it
//! completes.
//!
//! Cancellation: dropping a future cancels its operation. What had arrived by then may be lost, so a stream is not used
//! further after a dropped receive. The caller keeps the order of a stream's sends: it starts one when the last is done.

use engine::buffer::Buffer;
use std::future::Future;
use std::io;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use super::in_flight::InFlight;
use super::op::{Op, PAST_END, accepted};

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

/// Bytes on their way out.
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
