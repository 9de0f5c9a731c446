//! Waiting with a limit.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use crate::ring::Ring;

/// What `future` returns; none: not within `limit`. It is dropped then.
pub(super) async fn within<F: Future>(ring: &Ring, limit: Duration, future: F) -> Option<F::Output> {
    let (mut sleep, mut future) = (pin!(ring.sleep(limit)), pin!(future));
    poll_fn(|context| match future.as_mut().poll(context) {
        Poll::Ready(value) => Poll::Ready(Some(value)),
        Poll::Pending => sleep.as_mut().poll(context).map(|()| None),
    })
    .await
}
