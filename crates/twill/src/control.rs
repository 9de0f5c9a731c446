//! The control socket of a served array: JSON-RPC 2.0, one object a line, over a unix socket that only its owner may
//! use. What the methods are is in `docs/cli.md`.

mod client;
mod folders;
mod protocol;
mod server;

pub use client::{Client, Which, connect, served, sockets};
pub use folders::{file_name, own_folder, state_folder};
pub use protocol::CallError;
pub use server::{Handler, Server, answer_line};
