//! A connection of NVMe/TCP: as it is, or under TLS. Which one is decided once, and each call looks.

use engine::buffer::{Buffer, Gather};
use std::io;
use std::ops::Range;

use super::psk::PskConnection;
use super::wire::TlsWire;
use crate::wire::{PlainWire, Wire};

/// Either.
#[derive(Clone)]
pub(crate) enum EitherWire {
    Plain(PlainWire),
    Tls(TlsWire<PskConnection>),
}

impl Wire for EitherWire {
    async fn recv(&self, buffer: Buffer, range: Range<usize>) -> (Buffer, io::Result<usize>) {
        match self {
            EitherWire::Plain(wire) => wire.recv(buffer, range).await,
            EitherWire::Tls(wire) => wire.recv(buffer, range).await,
        }
    }

    async fn recv_exact(&self, buffer: Buffer, range: Range<usize>) -> (Buffer, io::Result<usize>) {
        match self {
            EitherWire::Plain(wire) => wire.recv_exact(buffer, range).await,
            EitherWire::Tls(wire) => wire.recv_exact(buffer, range).await,
        }
    }

    async fn send_all(&self, data: Gather) -> io::Result<()> {
        match self {
            EitherWire::Plain(wire) => wire.send_all(data).await,
            EitherWire::Tls(wire) => wire.send_all(data).await,
        }
    }

    async fn finish(&self) {
        match self {
            EitherWire::Plain(wire) => wire.finish().await,
            EitherWire::Tls(wire) => wire.finish().await,
        }
    }

    fn shut_down(&self) {
        match self {
            EitherWire::Plain(wire) => wire.shut_down(),
            EitherWire::Tls(wire) => wire.shut_down(),
        }
    }
}
