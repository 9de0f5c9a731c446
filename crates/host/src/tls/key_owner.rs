//! Whose a key is, and how a server finds one.

use nvme_tcp::names::Nqn;
use nvme_tcp::psk::TlsPsk;

/// Whose key a server was shown: the host, and what it wants to connect to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PskPeer {
    pub host: Nqn,
    pub subsystem: Nqn,
}

/// By an identity, the key and whose it is; none: it is not known.
pub(crate) type FindKey = dyn Fn(&[u8]) -> Option<(TlsPsk, PskPeer)> + Send + Sync;
