//! A command that a driver takes over its character device.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use super::in_flight::InFlight;

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
