//! NVMe over TCP without I/O, clock or randomness of its own.
#![forbid(unsafe_code)]

pub mod auth;
mod hash;
pub mod psk;
mod secret_text;

pub use hash::HashFunction;
pub use secret_text::KeyTextError;
