//! What a server has to authenticate hosts with: secrets, and a thread that computes.
//!
//! Diffie-Hellman takes milliseconds, which a shard has not.

use nvme_tcp::HashFunction;
use nvme_tcp::auth::{ControllerExchange, ControllerSettings, DhGroup, Names, Randomness, Secret};
use nvme_tcp::names::Nqn;
use nvme_tcp::psk::ConfiguredPsk;
use rustix::rand::{GetRandomFlags, getrandom};
use std::collections::BTreeMap;
use std::io;

use crate::keeper::Keeper;

/// Secrets of DH-HMAC-CHAP, and keys of TLS.
#[derive(Clone, Debug, Default)]
pub struct HostKeys {
    /// Of hosts: one that is named here has to prove that it has its secret, also for discovery.
    pub hosts: BTreeMap<Nqn, Secret>,
    /// The server's own, for hosts that ask for proof.
    pub controller: Option<Secret>,
    /// Of hosts: one that is named here has to use TLS with its key, on every queue, also for discovery.
    pub tls: BTreeMap<Nqn, ConfiguredPsk>,
}

/// What the queues of a server authenticate with.
pub(super) struct Authenticator {
    keys: HostKeys,
    /// It computes for all connections.
    pub thread: Keeper,
}

impl Authenticator {
    pub fn start(keys: HostKeys) -> io::Result<Self> {
        Ok(Authenticator { keys, thread: Keeper::start("twill-proof")? })
    }

    pub fn demands_proof(&self, host: &Nqn) -> bool {
        self.keys.hosts.contains_key(host)
    }

    /// The beginning of an authentication.
    ///
    /// # Errors
    /// The system gives no random bytes.
    pub fn exchange(&self, host: &Nqn, subsystem: &Nqn) -> io::Result<ControllerExchange> {
        let settings = ControllerSettings {
            names: Names { host: host.to_string(), subsystem: subsystem.to_string() },
            host_secret: self.keys.hosts.get(host).cloned(),
            secret: self.keys.controller.clone(),
            functions: HashFunction::ALL.to_vec(),
            groups: DhGroup::BY_PREFERENCE.to_vec(),
        };
        Ok(ControllerExchange::new(settings, Randomness::draw(fill)?))
    }
}

fn fill(mut bytes: &mut [u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        let made = getrandom(&mut *bytes, GetRandomFlags::empty())?;
        bytes = &mut bytes[made..];
    }
    Ok(())
}
