//! Encrypted connections: the certificates of a server (`files`), the handshake (`handshake`), and the library of the
//! [wire](crate::tls::wire) after it (`records`).
//!
//! TLS is rustls without I/O: the ring carries its records. Kernel TLS was weighed and left out
//! (docs/decisions/2026-11-27-nbd-tls.md).

mod files;
mod handshake;
mod records;

pub use files::{TlsError, TlsFiles};
pub use handshake::Tls;

/// A connection under TLS.
pub(super) type TlsWire = crate::tls::wire::TlsWire<rustls::ServerConnection>;
