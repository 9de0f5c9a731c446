//! Linux below the engine: the ring that carries I/O, the shards that run the engine, devices for members, and the
//! exports that clients use.
//!
//! `unsafe` stands in `ring/` (what the kernel reads and writes, and the memory of memory devices), `device/ioctl.rs` and
//! `export/ublk/kernel.rs` (what the ublk driver shares) and `tls/openssl_keys.rs` (callbacks of OpenSSL), nowhere else.
#![deny(unsafe_code)]

pub mod array;
pub mod balance;
pub mod buffer;
pub mod busy;
pub mod call;
pub mod device;
pub mod export;
mod fabric_wire;
mod keeper;
pub mod killed_server;
pub mod machine;
mod receiver;
#[allow(unsafe_code)]
pub mod ring;
pub mod shard;
mod shard_writes;
pub mod socket;
#[cfg(test)]
mod testing;
mod tls;
pub mod volumes;
mod wire;
pub mod zoned_array;
