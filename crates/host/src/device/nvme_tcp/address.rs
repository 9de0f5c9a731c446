//! How a namespace on another machine is named: `nvme://ADDRESS[:PORT]/NQN[/NSID]`.

use std::fmt;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs as _};

use nvme_tcp::names::{Nqn, NqnError};

/// The port of NVMe/TCP subsystems.
pub const PORT: u16 = 4420;
/// The port of discovery over TCP.
pub const DISCOVERY_PORT: u16 = 8009;
/// What such a name begins with.
pub const SCHEME: &str = "nvme://";
const NAMESPACE_MAX: u32 = u32::MAX - 1;

/// A machine and a TCP port there.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Portal {
    /// An address of IP version 4, one of version 6 without brackets, or a name.
    pub host: String,
    /// The port.
    pub port: u16,
}

/// A namespace on another machine.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RemoteAddress {
    /// Where.
    pub portal: Portal,
    /// In which subsystem.
    pub nqn: Nqn,
    /// Which.
    pub namespace: u32,
}

/// Why a text names no namespace of another machine.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AddressError {
    /// There is no machine.
    #[error("no address stands before the first slash; it is {FORM}")]
    NoHost,
    /// An address of version 6 without brackets, or brackets without one.
    #[error("{0:?} is no address: one of IP version 6 stands in brackets, as [2001:db8::1]")]
    Host(String),
    /// Not a port.
    #[error("{0:?} is no TCP port from 1 to 65535")]
    Port(String),
    /// There is no subsystem.
    #[error("no subsystem is named; it is {FORM}, and `twill discover ADDRESS` lists the subsystems there")]
    NoSubsystem,
    /// The subsystem's name is none.
    #[error("{name:?} is no subsystem's name: {error}")]
    Subsystem {
        /// The name.
        name: String,
        /// What is wrong with it.
        error: NqnError,
    },
    /// Not a namespace id.
    #[error("{0:?} is no namespace: it is a number from 1 to {NAMESPACE_MAX}")]
    Namespace(String),
}

const FORM: &str = "nvme://ADDRESS[:PORT]/NQN[/NAMESPACE]";

impl Portal {
    /// Reads `ADDRESS[:PORT]`.
    ///
    /// # Errors
    /// [`AddressError`].
    pub fn parse(text: &str, default_port: u16) -> Result<Portal, AddressError> {
        if text.is_empty() {
            return Err(AddressError::NoHost);
        }
        let wrong = || AddressError::Host(text.into());
        let (host, port) = if let Some(rest) = text.strip_prefix('[') {
            let (host, after) = rest.split_once(']').ok_or_else(wrong)?;
            host.split('%').next().unwrap_or(host).parse::<std::net::Ipv6Addr>().map_err(|_| wrong())?;
            match after.strip_prefix(':') {
                Some(port) => (host, Some(port)),
                None if after.is_empty() => (host, None),
                None => return Err(wrong()),
            }
        } else {
            match text.split_once(':') {
                Some((_, port)) if port.contains(':') => return Err(wrong()),
                Some((host, port)) => (host, Some(port)),
                None => (text, None),
            }
        };
        if host.is_empty() {
            return Err(AddressError::NoHost);
        }
        if host.chars().any(|letter| letter.is_whitespace() || letter.is_control()) {
            return Err(wrong());
        }
        let port = match port {
            None => default_port,
            Some(port) => {
                let number = port.parse().ok().filter(|number| *number > 0);
                number.ok_or_else(|| AddressError::Port(port.into()))?
            }
        };
        Ok(Portal { host: host.into(), port })
    }

    /// The socket addresses that it stands for. A name is looked up, which may wait for a name server.
    ///
    /// # Errors
    /// There is no such name.
    pub fn resolve(&self) -> std::io::Result<Vec<SocketAddr>> {
        let found: Vec<SocketAddr> = (self.host.as_str(), self.port).to_socket_addrs()?.collect();
        if found.is_empty() {
            return Err(std::io::Error::new(std::io::ErrorKind::NotFound, "the name has no address"));
        }
        Ok(found)
    }

    /// Whether it can only be this machine.
    pub fn is_loopback(&self) -> bool {
        self.host == "localhost" || self.host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
    }
}

impl fmt::Display for Portal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.host.contains(':') {
            true => write!(f, "[{}]:{}", self.host, self.port),
            false => write!(f, "{}:{}", self.host, self.port),
        }
    }
}

impl RemoteAddress {
    /// Whether a text is meant to be such a name.
    pub fn is_one(text: &str) -> bool {
        text.starts_with(SCHEME)
    }

    /// Reads a name.
    ///
    /// # Errors
    /// [`AddressError`].
    pub fn parse(text: &str) -> Result<RemoteAddress, AddressError> {
        let rest = text.strip_prefix(SCHEME).unwrap_or(text);
        let (portal, name) = rest.split_once('/').unwrap_or((rest, ""));
        let portal = Portal::parse(portal, PORT)?;
        if name.is_empty() {
            return Err(AddressError::NoSubsystem);
        }
        // A subsystem's name may have slashes itself: only a number behind the last one is a namespace.
        let (nqn, namespace) = match name.rsplit_once('/') {
            Some((nqn, number)) if number.bytes().all(|byte| byte.is_ascii_digit()) => (nqn, number),
            _ => (name, "1"),
        };
        let number = namespace.parse().ok().filter(|number| (1..=NAMESPACE_MAX).contains(number));
        let namespace = number.ok_or_else(|| AddressError::Namespace(namespace.into()))?;
        let nqn = Nqn::new(nqn).map_err(|error| AddressError::Subsystem { name: nqn.to_owned(), error })?;
        Ok(RemoteAddress { portal, nqn, namespace })
    }
}

impl fmt::Display for RemoteAddress {
    /// In one spelling, so that a namespace has one name in messages.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{SCHEME}{}/{}/{}", self.portal, self.nqn, self.namespace)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_one_spelling() {
        for (text, spelled) in [
            ("nvme://127.0.0.1/nqn.2026-11.test:a", "nvme://127.0.0.1:4420/nqn.2026-11.test:a/1"),
            ("nvme://192.0.2.1:4421/nqn.2026-11.test:a/7", "nvme://192.0.2.1:4421/nqn.2026-11.test:a/7"),
            ("nvme://[2001:db8::1]/nqn.2026-11.test:a", "nvme://[2001:db8::1]:4420/nqn.2026-11.test:a/1"),
            ("nvme://[fe80::1%eth0]:9/nqn.x:a/2", "nvme://[fe80::1%eth0]:9/nqn.x:a/2"),
            ("nvme://store-1.example/nqn.x:a/b", "nvme://store-1.example:4420/nqn.x:a/b/1"),
        ] {
            let address = RemoteAddress::parse(text).expect(text);
            assert_eq!(address.to_string(), spelled);
            assert_eq!(RemoteAddress::parse(spelled), Ok(address));
        }
    }

    #[test]
    fn what_is_wrong_is_named() {
        let wrong = |text: &str| RemoteAddress::parse(text).expect_err(text);
        assert_eq!(wrong("nvme:///nqn.x:a"), AddressError::NoHost);
        assert_eq!(wrong("nvme://:4420/nqn.x:a"), AddressError::NoHost);
        assert_eq!(wrong("nvme://192.0.2.1"), AddressError::NoSubsystem);
        assert_eq!(wrong("nvme://192.0.2.1/"), AddressError::NoSubsystem);
        assert_eq!(wrong("nvme://2001:db8::1/nqn.x:a"), AddressError::Host("2001:db8::1".into()));
        assert_eq!(wrong("nvme://[2001:db8::1/nqn.x:a"), AddressError::Host("[2001:db8::1".into()));
        assert_eq!(wrong("nvme://[name]/nqn.x:a"), AddressError::Host("[name]".into()));
        for port in ["0", "65536", "x", ""] {
            assert_eq!(wrong(&format!("nvme://h:{port}/nqn.x:a")), AddressError::Port(port.into()));
        }
        for namespace in ["0", "4294967295", "99999999999"] {
            let error = AddressError::Namespace(namespace.into());
            assert_eq!(wrong(&format!("nvme://h/nqn.x:a/{namespace}")), error);
        }
        assert!(matches!(wrong("nvme://h/x:a"), AddressError::Subsystem { error: NqnError::Beginning, .. }));
    }
}
