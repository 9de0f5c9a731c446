//! Ends what a client would keep open for ever: a handshake that does not come to its end, a connection that was
//! asked to stop, a goodbye whose last replies nobody reads.

use super::connection::{Connection, Signal};
use super::listen::ServerOptions;
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
pub enum Phase {
    /// No export chosen yet.
    Handshake,
    /// Requests are taken.
    Serving,
    /// No further requests; the last replies are on their way.
    Finishing,
    /// Gone.
    Closed,
}

/// The phase of a connection, told by its task and heard by its watcher.
pub struct Progress {
    phase: Cell<Phase>,
    watcher: RefCell<Option<Waker>>,
}

impl Progress {
    /// A connection that was just accepted.
    pub fn new() -> Rc<Self> {
        Rc::new(Progress { phase: Cell::new(Phase::Handshake), watcher: RefCell::default() })
    }

    /// Moves on.
    pub fn reach(&self, phase: Phase) {
        self.phase.set(phase.max(self.phase.get()));
        if let Some(watcher) = self.watcher.take() {
            watcher.wake();
        }
    }

    fn poll_reached(&self, phase: Phase, context: &mut Context<'_>) -> Poll<()> {
        if self.phase.get() >= phase {
            return Poll::Ready(());
        }
        self.watcher.replace(Some(context.waker().clone()));
        Poll::Pending
    }
}

/// Watches over one connection until it is gone. Its only means is to shut the socket down, which ends what waits
/// on it; the connection's own task cleans up.
pub async fn watch(
    ring: Ring,
    socket: Rc<OwnedFd>,
    connection: Arc<Connection>,
    progress: Rc<Progress>,
    options: ServerOptions,
) {
    let stop = &connection.stop;
    let agreed = within(&ring, options.handshake_limit, |context| {
        or(progress.poll_reached(Phase::Serving, context), || stop.poll_raised(context))
    });
    if !agreed.await {
        tracing::debug!(connection = connection.id, "no agreement within the time limit");
        let _ = shutdown(&*socket, Shutdown::Both);
    }
    poll_fn(|context| finishing_or_stopped(&progress, stop, context)).await;
    // Requests that have already arrived are still read, and answered with ESHUTDOWN; then the stream is at its end.
    let _ = shutdown(&*socket, Shutdown::Read);
    let closed = within(&ring, options.finish_limit, |context| progress.poll_reached(Phase::Closed, context));
    if !closed.await {
        tracing::debug!(connection = connection.id, "the last replies were not taken within the time limit");
        let _ = shutdown(&*socket, Shutdown::Both);
    }
}

fn finishing_or_stopped(progress: &Progress, stop: &Signal, context: &mut Context<'_>) -> Poll<()> {
    or(progress.poll_reached(Phase::Finishing, context), || stop.poll_raised(context))
}

fn or(first: Poll<()>, second: impl FnOnce() -> Poll<()>) -> Poll<()> {
    if first.is_ready() { first } else { second() }
}

/// Waits for `poll`, at most for `limit`; false if the time ran out.
async fn within(ring: &Ring, limit: Duration, mut poll: impl FnMut(&mut Context<'_>) -> Poll<()>) -> bool {
    let mut sleep = pin!(ring.sleep(limit));
    poll_fn(|context| {
        if poll(context).is_ready() {
            return Poll::Ready(true);
        }
        sleep.as_mut().poll(context).map(|_| false)
    })
    .await
}
