//! The control socket of a served array: JSON-RPC 2.0, one object a line, over a unix socket that only its owner may
//! use. What the methods are is in `docs/cli.md`.

mod client;
mod folders;
mod identity;
mod protocol;
mod server;

pub use client::{Asked, Client, Which, ask_all, connect, served, sockets};
pub use folders::{file_name, own_folder, state_folder};
pub use identity::{Identity, ServedState};
pub use protocol::CallError;
pub use server::{Handler, Server, answer_line};
