//! NVMe over TCP without I/O, clock or randomness of its own.
#![forbid(unsafe_code)]

pub mod ana;
pub mod auth;
pub mod command;
pub mod controller;
pub mod discovery;
pub mod events;
pub mod features;
mod hash;
pub mod host_command;
pub mod identify;
pub mod initiator;
pub mod log_page;
pub mod names;
pub mod pdu;
pub mod psk;
pub mod reservation;
mod secret_text;
pub mod session;
pub mod status;
pub mod subsystem;
pub mod target;
pub mod vendor;

pub use hash::HashFunction;
pub use secret_text::KeyTextError;
