//! Sockets on the ring: accept, receive, send, each owning its memory and its descriptor until it completes.
//!
//! Dropping a future cancels its operation. What had arrived by then may be lost: a stream is not used further after
//! a dropped receive. Sends of one stream are made one after the other; the caller keeps that order.

use engine::buffer::{Buffer, Gather};
use std::future::Future;
use std::io;
use std::ops::Range;
use std::os::fd::{FromRawFd, OwnedFd};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use super::op::{Op, PAST_END};
use super::{InFlight, Ring};

impl Ring {
    /// Accepts one connection.
    pub fn accept(&self, listener: &Rc<OwnedFd>) -> Accept {
        Accept(self.start(Op::Accept { listener: Rc::clone(listener) }))
    }

    /// Receives once into `range` of `buffer`: the count may be less than asked for, 0 is the end of the stream.
    pub fn recv(&self, socket: &Rc<OwnedFd>, buffer: Buffer, range: Range<usize>) -> Receive {
        self.start_receive(socket, buffer, range, false)
    }

    /// Fills `range` of `buffer`, or fails with `UnexpectedEof` if the stream ends before. The count is the length of
    /// the range.
    pub fn recv_exact(&self, socket: &Rc<OwnedFd>, buffer: Buffer, range: Range<usize>) -> Receive {
        self.start_receive(socket, buffer, range, true)
    }

    fn start_receive(
        &self,
        socket: &Rc<OwnedFd>,
        buffer: Buffer,
        range: Range<usize>,
        whole: bool,
    ) -> Receive {
        assert!(range.start <= range.end && range.end <= buffer.len(), "a range inside the buffer");
        if range.is_empty() {
            return Receive(Receiving::Ready(Some(buffer)));
        }
        let socket = Rc::clone(socket);
        Receive(Receiving::Running(self.start(Op::Receive { socket, buffer, range, done: 0, whole })))
    }

    /// Sends all of `data`.
    pub fn send_all(&self, socket: &Rc<OwnedFd>, data: Gather) -> Send {
        if data.is_empty() {
            return Send(None);
        }
        Send(Some(self.start(Op::Send { socket: Rc::clone(socket), data, done: 0 })))
    }
}

/// A connection to come.
pub struct Accept(InFlight);

impl Future for Accept {
    type Output = io::Result<OwnedFd>;
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        ready!(self.0.poll(context));
        Poll::Ready(self.0.take(|_, result| count_of(result).map(|_| own(result))))
    }
}

/// Bytes to come.
pub struct Receive(Receiving);

enum Receiving {
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
pub struct Send(Option<InFlight>);

impl Future for Send {
    type Output = io::Result<()>;
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let Some(running) = &mut self.0 else { return Poll::Ready(Ok(())) };
        ready!(running.poll(context));
        Poll::Ready(running.take(|_, result| count_of(result).map(|_| ())))
    }
}

/// Closes the connection of an accept that nobody waits for.
pub(super) fn discard_result(op: &Op, result: i32) {
    if matches!(op, Op::Accept { .. }) && result >= 0 {
        drop(own(result));
    }
}

fn count_of(result: i32) -> io::Result<usize> {
    if result == PAST_END {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    usize::try_from(result).map_err(|_| io::Error::from_raw_os_error(-result))
}

fn own(accepted: i32) -> OwnedFd {
    // SAFETY: a successful accept returns a fresh descriptor, and its result is taken once.
    unsafe { OwnedFd::from_raw_fd(accepted) }
}
