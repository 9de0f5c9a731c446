//! The export as a virtio block device of a virtual machine (vhost-user-blk): the guest's requests come in its own memory, without
//! the monitor between.
//!
//! The way of a request: the guest kicks, the ring's task finds what is available (`ring`) → head and data are copied into memory of
//! this process and checked (`request`) → the volume executes it → data and status are copied back, and the guest is called.
//!
//! - The monitor sets memory and rings up over a socket (`server`, `frontend`); the messages are the `vhost` crate's, descriptor
//!   chains `virtio-queue`'s. Rings run on the shards, beside members' I/O.
//! - The device outlives its server: what was under way when that was killed is noted in memory that the monitor keeps
//!   (`in_flight`), and the next server carries it out again (`chains`).
//! - Why not `vhost-user-backend`: docs/decisions/2026-11-27-vhost-user.md.

mod chains;
mod frontend;
mod in_flight;
mod request;
mod ring;
mod server;

pub use server::{Identity, Server};
