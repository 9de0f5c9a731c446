//! Encrypted connections: the certificates of a server (`files`), the handshake (`handshake`), and the wire after it (`wire`).
//!
//! TLS is rustls without I/O: the ring carries its records. Kernel TLS was weighed and left out
//! (docs/decisions/2026-11-27-nbd-tls.md).

mod files;
mod handshake;
mod wire;

pub use files::{TlsError, TlsFiles};
pub use handshake::Tls;
pub(super) use wire::TlsWire;
