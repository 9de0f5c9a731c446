//! NVMe over TCP without I/O, clock or randomness of its own.
#![forbid(unsafe_code)]

pub mod auth;
pub mod command;
pub mod digest;
mod hash;
pub mod names;
pub mod pdu;
pub mod psk;
pub mod reservation;
mod secret_text;
pub mod session;
pub mod status;
pub mod target;
mod wire_struct;

pub use hash::HashFunction;
pub use secret_text::KeyTextError;
