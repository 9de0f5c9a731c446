//! TLS without I/O: the `wire` that carries its records, whichever library makes them, and connections with keys that both ends
//! share beforehand (`psk`), which NVMe/TCP has and nothing else here.
//!
//! NBD's certificates are rustls's work ([nbd::tls](crate::export::nbd)); keys are OpenSSL's, since rustls has none
//! (docs/decisions/2026-11-28-nvme-tls.md). `unsafe` stands in `openssl_keys`, nowhere else.

pub(crate) mod acceptor;
pub(crate) mod either;
pub(crate) mod failures;
pub(crate) mod key_owner;
#[allow(unsafe_code)]
mod openssl_keys;
pub(crate) mod psk;
pub(crate) mod wire;
