//! The NVMe/TCP server: subsystems with namespaces over volumes, for hosts that were allowed.
//!
//! The way of a host: it connects to a listener ([`Server`]), gets a shard, begins TLS or does not (`opening`), and says by its
//! first command which queue of which subsystem the connection is (`connection`). Its admin queue makes an `association`, which its I/O queues join; the end of
//! any of them ends all. Commands of an I/O queue go to a `namespace`, those of peer mode to the `fabric`, received by [receiver](crate::receiver) and answered by `outgoing`. What
//! is on the wire is the crate `nvme_tcp`; here are sockets, memory and time.

mod aborts;
mod admin;
mod association;
mod authentication;
mod authenticator;
mod boot_id;
mod connection;
mod connection_limits;
mod device_volume;
mod fabric;
mod gate;
mod hearers;
mod link;
mod namespace;
mod opening;
mod outgoing;
mod reservation_file;
mod reservation_work;
mod running;
mod server;
mod server_state;
mod subsystems;

pub use association::ConnectedHost;
pub use authenticator::HostKeys;
pub use device_volume::DeviceVolume;
pub use reservation_file::{KeptReservations, ReservationFileError};
pub use server::{Server, ServerStatus};
pub use server_state::ServerOptions;
pub use subsystems::{NewNamespace, NewSubsystem, SubsystemError, Subsystems};
