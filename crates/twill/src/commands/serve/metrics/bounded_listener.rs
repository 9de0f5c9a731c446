//! A listener for HTTP whose connections are bounded in number and time: whoever reaches the address may leave them open, and the process
//! serves arrays with the same descriptors.

use std::future::Future as _;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::serve::Listener;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Sleep, sleep};

/// Connections at once; others wait to be accepted.
const CONNECTIONS_MAX: usize = 64;
/// How long one may last. A browser and Prometheus connect again.
const LASTS_AT_MOST: Duration = Duration::from_secs(60);
/// Time after an accept that failed.
const ACCEPT_PAUSE: Duration = Duration::from_millis(200);

pub(super) struct BoundedListener {
    listener: TcpListener,
    free: Arc<Semaphore>,
}

impl BoundedListener {
    pub(super) fn new(listener: TcpListener) -> Self {
        BoundedListener { listener, free: Arc::new(Semaphore::new(CONNECTIONS_MAX)) }
    }
}

impl Listener for BoundedListener {
    type Io = BoundedStream;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (BoundedStream, SocketAddr) {
        let permit = Arc::clone(&self.free).acquire_owned().await.expect("it is never closed");
        loop {
            match self.listener.accept().await {
                Ok((stream, address)) => {
                    let end = Box::pin(sleep(LASTS_AT_MOST));
                    return (BoundedStream { stream, end, _permit: permit }, address);
                }
                Err(error) => {
                    tracing::debug!(%error, "a connection for metrics cannot be accepted");
                    sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

/// A connection that ends by itself.
pub(super) struct BoundedStream {
    stream: TcpStream,
    end: Pin<Box<Sleep>>,
    _permit: OwnedSemaphorePermit,
}

impl BoundedStream {
    /// Its stream, unless its time is over.
    fn in_time(&mut self, context: &mut Context<'_>) -> io::Result<Pin<&mut TcpStream>> {
        match self.end.as_mut().poll(context) {
            Poll::Ready(()) => Err(io::ErrorKind::TimedOut.into()),
            Poll::Pending => Ok(Pin::new(&mut self.stream)),
        }
    }
}

impl AsyncRead for BoundedStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.in_time(context) {
            Ok(stream) => stream.poll_read(context, buffer),
            Err(error) => Poll::Ready(Err(error)),
        }
    }
}

impl AsyncWrite for BoundedStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.in_time(context) {
            Ok(stream) => stream.poll_write(context, bytes),
            Err(error) => Poll::Ready(Err(error)),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.in_time(context) {
            Ok(stream) => stream.poll_flush(context),
            Err(error) => Poll::Ready(Err(error)),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.in_time(context) {
            Ok(stream) => stream.poll_shutdown(context),
            Err(error) => Poll::Ready(Err(error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::poll_fn;

    /// Connections that nobody closes: one more is accepted when the time of the first is over.
    #[test]
    fn connections_are_few_and_end_by_themselves() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.expect("an address");
            let mut bounded = BoundedListener::new(listener);
            let address = bounded.local_addr().expect("its address");
            let (mut clients, mut held) = (Vec::new(), Vec::new());
            for _ in 0..CONNECTIONS_MAX {
                clients.push(TcpStream::connect(address).await.expect("connected"));
                held.push(bounded.accept().await.0);
            }
            let _one_more = TcpStream::connect(address).await.expect("it waits to be accepted");
            let waiting = tokio::time::timeout(Duration::from_millis(50), bounded.accept());
            assert!(waiting.await.is_err(), "as many as may be");
            held[0].end = Box::pin(sleep(Duration::ZERO));
            let read =
                poll_fn(|context| Pin::new(&mut held[0]).poll_read(context, &mut ReadBuf::new(&mut [0])));
            let error = read.await.expect_err("its time is over");
            assert_eq!(error.kind(), io::ErrorKind::TimedOut);
            held.remove(0);
            bounded.accept().await;
        });
    }
}
