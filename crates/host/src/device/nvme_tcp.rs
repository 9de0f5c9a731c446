//! Members on other machines: namespaces of any NVMe/TCP target.
//!
//! The way to one: its [address] is resolved, a `wire` opened, its `controller` connected, authenticated and enabled, and
//! the namespace reserved for this host (`fencing`, carried out by `association`). Then it is a `member`: its `keeper`, a
//! thread, holds the association, and each shard has a `queue` of its own, through its ring.

mod address;
mod association;
mod controller;
mod fencing;
mod group;
mod host_lock;
mod keeper;
mod member;
mod open;
mod operations;
mod options;
mod peer;
mod peer_group;
mod port;
mod queue;
mod shard_queue;
mod transfer;
mod vendor;
mod wire;

pub use address::{AddressError, DISCOVERY_PORT, PORT, Portal, RemoteAddress, SCHEME};
pub use association::AttachError;
pub use controller::ConnectError;
pub use fencing::Holder;
pub use member::{RemoteEvent, RemoteMember, RemoteState, RemoteStatus};
pub use open::{Attached, LookedAt, discover, look_at, open_error};
pub(crate) use options::random as random_bytes;
pub use options::{KEEP_ALIVE, RemoteOptions, TIME_LIMIT};
pub use peer_group::PeerGroup;
pub use queue::{RemoteDevice, VendorDone};
pub use vendor::{Sent, VendorCommand, VendorReply};
pub use wire::WireError;
