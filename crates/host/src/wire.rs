//! How the bytes of a connection come and go: as they are, or under a layer such as TLS. What is written for any wire is compiled
//! once for each, so the plain one costs nothing.

use engine::buffer::{Buffer, Gather};
use std::future::Future;
use std::io;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::rc::Rc;

use crate::ring::Ring;

/// Both directions of a connection. Clones are handles to the same one. One task receives and one sends.
pub(crate) trait Wire: Clone + 'static {
    /// Receives once into `range` of `buffer`: the count may be less than asked for, 0 is the end of the stream.
    fn recv(&self, buffer: Buffer, range: Range<usize>) -> impl Future<Output = (Buffer, io::Result<usize>)>;

    /// Fills `range` of `buffer`, or fails with `UnexpectedEof` if the stream ends before. The count is the length of the range.
    fn recv_exact(
        &self,
        buffer: Buffer,
        range: Range<usize>,
    ) -> impl Future<Output = (Buffer, io::Result<usize>)>;

    /// Sends all of `data`.
    fn send_all(&self, data: Gather) -> impl Future<Output = io::Result<()>>;

    /// Tells the other end that nothing more comes, where the wire has words for that.
    fn finish(&self) -> impl Future<Output = ()>;

    /// Ends both directions, which ends what waits on them.
    fn shut_down(&self);
}

/// A socket without anything above it.
#[derive(Clone)]
pub(crate) struct PlainWire {
    pub ring: Ring,
    pub socket: Rc<OwnedFd>,
}

impl Wire for PlainWire {
    fn recv(&self, buffer: Buffer, range: Range<usize>) -> impl Future<Output = (Buffer, io::Result<usize>)> {
        self.ring.recv(&self.socket, buffer, range)
    }

    fn recv_exact(
        &self,
        buffer: Buffer,
        range: Range<usize>,
    ) -> impl Future<Output = (Buffer, io::Result<usize>)> {
        self.ring.recv_exact(&self.socket, buffer, range)
    }

    fn send_all(&self, data: Gather) -> impl Future<Output = io::Result<()>> {
        self.ring.send_all(&self.socket, data)
    }

    async fn finish(&self) {}

    fn shut_down(&self) {
        // It is shut down already, or the other end is gone.
        let _ = rustix::net::shutdown(&*self.socket, rustix::net::Shutdown::Both);
    }
}
