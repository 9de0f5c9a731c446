//! The NBD server, by the protocol text: fixed newstyle, structured replies, `base:allocation`.
//!
//! The way of a client: it connects to a listener (`server`), gets a shard and a place in the table of connections
//! (`server_state`), and chooses an export in the handshake (`client`, [`negotiate`], `exports`). Then its requests
//! go to the volume: `transmission` receives them, [`check`] parses and checks them. `connection` is what other threads see
//! of it, [`protocol`] the bytes on the wire.
//!
//! In the handshake a client may begin to encrypt (`tls`): from there on all of its bytes go through another kind of
//! [`Wire`](crate::wire), and the rest is as without.
//!
//! A client cannot hurt the server or another client: `admission` decides which clients get a connection, a `watch` ends what the
//! client would keep open for ever, `memory` bounds what all requests hold together, `long_work` what goes on for a client that
//! has left.

mod admission;
pub mod check;
mod client;
mod connection;
mod exports;
mod long_work;
mod memory;
pub mod negotiate;
pub mod protocol;
mod server;
mod server_state;
mod tls;
mod transmission;
mod watch;

pub use connection::{Connection, ConnectionStatus, Totals};
pub use exports::{AddError, Export, ExportOptions, Exports};
pub use memory::Memory as RequestMemory;
pub use negotiate::TlsMode;
pub use server::{Server, ServerStatus};
pub use server_state::{Address, ExportStatus, Removal, ServerOptions};
pub use tls::{Tls, TlsError, TlsFiles};
pub use transmission::Limits;
