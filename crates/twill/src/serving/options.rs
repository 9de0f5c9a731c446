//! How an array is served.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use engine::log::config::{MapLimits, ReclaimOptions};
use engine::members::load::UpdatePolicy;
use engine::stripe::redo::RedoContents;
use host::export::nbd::Tls;
use host::socket::SocketAccess;

use super::nvme_tcp::NvmeTcpOptions;
use crate::remote_arguments::{Fabric, Reducers};

/// How an array is served.
#[derive(Clone, Debug)]
pub struct ServeOptions {
    /// Threads, each with a ring.
    pub shards: usize,
    /// Parity kept in memory, in bytes; 0 turns it off.
    pub parity_cache_bytes: usize,
    /// What the map of a zoned array may take.
    pub map_limits: MapLimits,
    /// How a zoned array reclaims.
    pub reclaim: ReclaimOptions,
    /// Writes that arrive together share one stripe write.
    pub two_phase: bool,
    /// How writes choose what to read for new parity.
    pub update_policy: UpdatePolicy,
    /// Reads of a member that is far slower than the others are reconstructed.
    pub avoid_slow: bool,
    /// No intent is recorded before a stripe changes (the policy `none`).
    pub no_consistency: bool,
    /// What is logged of stripes before they are written while members are missing; None: nothing.
    pub redo_log: Option<RedoContents>,
    /// Where the parity of members on other machines is made.
    pub fabric: Fabric,
    /// Which target puts a lost chunk together.
    pub reducers: Reducers,
    /// No write is accepted, nothing is written to members.
    pub read_only: bool,
    /// A busy shard hands writes of its clients to shards with time.
    pub balance: bool,
    /// Members read straight into the requests of the block device, if the kernel can.
    pub zero_copy: bool,
    /// Unix sockets to listen on.
    pub unix: Vec<PathBuf>,
    /// Who may connect to the Unix sockets, that of a virtual machine included.
    pub unix_access: SocketAccess,
    /// Serve to a virtual machine at this Unix socket.
    pub vhost_user: Option<PathBuf>,
    /// TCP addresses to listen on.
    pub tcp: Vec<SocketAddr>,
    /// With what NBD clients may or must encrypt.
    pub tls: Option<Arc<Tls>>,
    /// Serve to NVMe/TCP hosts.
    pub nvme_tcp: Option<NvmeTcpOptions>,
    /// Serve as a block device, with this number if there is one.
    pub ublk: Option<Option<u32>>,
    /// Name that clients ask for; the array is the default export too.
    pub export_name: String,
    /// Arrays of this group share their spares.
    pub spare_group: Option<String>,
    /// Past the page cache wherever the file system can.
    pub direct: bool,
}
