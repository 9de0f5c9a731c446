//! The NBD server at its socket: by a client that says anything byte by byte, and by the clients people use.

mod clients;
mod memory;
mod raw;
mod serving;
mod tls;
