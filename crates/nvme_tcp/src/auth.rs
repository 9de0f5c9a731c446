//! DH-HMAC-CHAP: how host and controller prove to each other that they have a secret, on each queue right after Connect.
//!
//! Host and controller are state machines: a message goes in, one comes out. Random bytes are handed in.
//!
//! - The host proves first. A controller proves only to a host that has proved, and only if the host asks.
//! - What is proved covers both names, the transaction and the challenge, so an answer is of no use elsewhere.
//! - A host without a secret here goes through the same messages and fails at the same place as one with a wrong secret.

mod controller;
mod group;
mod host;
mod message;
mod response;
mod secret;
mod transfer;

pub use controller::{ControllerExchange, ControllerSettings};
pub use group::{DhGroup, DhKeys, NotOfTheGroup, PRIVATE_BYTES};
pub use host::{HostExchange, HostSettings, HostStep};
pub use message::{Challenge, Failure, MESSAGE_BYTES_MAX, Message, Negotiate, Offer, Reply};
pub use response::{CHALLENGE_BYTES, Names, Randomness};
pub use secret::Secret;
pub use transfer::{CONNECT_REQUIRES_AUTHENTICATION, TRANSFER_BYTES_MAX, transfer, transfer_bytes};
