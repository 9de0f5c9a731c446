//! NVMe over TCP without I/O, clock or randomness of its own.
#![forbid(unsafe_code)]

pub mod auth;
mod hash;
pub mod names;
pub mod psk;
pub mod reservation;
mod secret_text;
pub mod status;
mod wire_struct;

pub use hash::HashFunction;
pub use secret_text::KeyTextError;
