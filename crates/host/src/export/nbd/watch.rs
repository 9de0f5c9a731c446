//! Ends what a client would keep open for ever: a handshake that takes too long, a payload that does not come, a connection that
//! was asked to stop, a goodbye whose last replies the client does not read. A client that is idle between two requests may stay.

use super::connection::{Connection, Signal};
use crate::ring::Ring;
use rustix::net::{Shutdown, shutdown};
use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::os::fd::OwnedFd;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

/// How far a connection is. It only moves forward.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ConnectionState {
    /// No export chosen yet.
    Handshake,
    /// Requests are taken.
    Serving,
    /// No further requests; the last replies are on their way.
    Finishing,
    /// Gone.
    Closed,
}

/// The state of a connection. Its task moves it on, its watcher waits for that.
pub struct Lifecycle {
    state: Cell<ConnectionState>,
    /// A request's payload is being received: the count of receives so far, which tells whether more of it came.
    payload: Cell<Option<u64>>,
    receives: Cell<u64>,
    watcher: RefCell<Option<Waker>>,
}

impl Lifecycle {
    /// A connection that was just accepted.
    pub fn new() -> Rc<Self> {
        Rc::new(Lifecycle {
            state: Cell::new(ConnectionState::Handshake),
            payload: Cell::default(),
            receives: Cell::default(),
            watcher: RefCell::default(),
        })
    }

    /// Moves on.
    pub fn reach(&self, state: ConnectionState) {
        self.state.set(state.max(self.state.get()));
        if let Some(watcher) = self.watcher.take() {
            watcher.wake();
        }
    }

    /// Some of a payload came, or it begins now.
    pub fn payload_comes(&self) {
        self.receives.set(self.receives.get() + 1);
        self.payload.set(Some(self.receives.get()));
    }

    /// No payload is expected.
    pub fn payload_is_there(&self) {
        self.payload.set(None);
    }

    fn poll_reached(&self, state: ConnectionState, context: &mut Context<'_>) -> Poll<()> {
        if self.state.get() >= state {
            return Poll::Ready(());
        }
        self.watcher.replace(Some(context.waker().clone()));
        Poll::Pending
    }
}

/// How long a client may take.
#[derive(Clone, Copy, Debug)]
pub struct TimeLimits {
    /// To choose an export.
    pub handshake: Duration,
    /// To take its last replies after a goodbye or a stop.
    pub finish: Duration,
    /// To send more of a payload.
    pub payload: Duration,
}

/// Watches over one connection until it is gone. Its only means is to shut the socket down, which ends what waits
/// on it; the connection's own task cleans up.
pub async fn watch(
    ring: Ring,
    socket: Rc<OwnedFd>,
    connection: Arc<Connection>,
    lifecycle: Rc<Lifecycle>,
    limits: TimeLimits,
) {
    let stop = &connection.stop;
    let agreed = within(&ring, limits.handshake, |context| {
        or(lifecycle.poll_reached(ConnectionState::Serving, context), || stop.poll_raised(context))
    });
    if !agreed.await {
        tracing::debug!(connection = connection.id, "the client has chosen no export within the time limit");
        let _ = shutdown(&*socket, Shutdown::Both);
    }
    let mut payload = None;
    let finishing = |context: &mut Context<'_>| finishing_or_stopped(&lifecycle, stop, context);
    while !within(&ring, limits.payload, finishing).await {
        if payload.is_some() && payload == lifecycle.payload.get() {
            tracing::debug!(
                connection = connection.id,
                "no more of a payload has come within the time limit"
            );
            let _ = shutdown(&*socket, Shutdown::Both);
        }
        payload = lifecycle.payload.get();
    }
    // Requests that have already arrived are still read, and answered with ESHUTDOWN; then the stream is at its end.
    let _ = shutdown(&*socket, Shutdown::Read);
    let closed =
        within(&ring, limits.finish, |context| lifecycle.poll_reached(ConnectionState::Closed, context));
    if !closed.await {
        tracing::debug!(
            connection = connection.id,
            "the client has not taken its last replies within the time limit"
        );
        let _ = shutdown(&*socket, Shutdown::Both);
    }
}

fn finishing_or_stopped(lifecycle: &Lifecycle, stop: &Signal, context: &mut Context<'_>) -> Poll<()> {
    or(lifecycle.poll_reached(ConnectionState::Finishing, context), || stop.poll_raised(context))
}

fn or(first: Poll<()>, second: impl FnOnce() -> Poll<()>) -> Poll<()> {
    if first.is_ready() { first } else { second() }
}

/// Waits for `poll`, at most for `limit`; false if the time ran out.
pub(super) async fn within(
    ring: &Ring,
    limit: Duration,
    mut poll: impl FnMut(&mut Context<'_>) -> Poll<()>,
) -> bool {
    let mut sleep = pin!(ring.sleep(limit));
    poll_fn(|context| {
        if poll(context).is_ready() {
            return Poll::Ready(true);
        }
        sleep.as_mut().poll(context).map(|_| false)
    })
    .await
}
