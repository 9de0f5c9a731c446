//! `cargo xtask nbd-device`: the kernel's NBD client over netlink, with what nbd-client 3.24 cannot ask for: requests that
//! wait for a new connection when all have gone, and that connection.

use std::os::fd::{AsRawFd, OwnedFd};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink};

use crate::nbd_client::Connection;

/// What `cargo xtask nbd-device` does.
#[derive(clap::Subcommand)]
pub enum Action {
    /// Make /dev/nbdN of an export
    Connect {
        #[command(flatten)]
        place: Place,
        /// Seconds that requests wait when no connection is left
        #[arg(long, default_value_t = 600)]
        patience: u64,
        /// Seconds after which a request goes to another connection
        #[arg(long, default_value_t = 30)]
        timeout: u64,
    },
    /// Give /dev/nbdN new connections for those that have gone
    Reconnect {
        #[command(flatten)]
        place: Place,
    },
}

/// The device and the export behind it.
#[derive(clap::Args)]
pub struct Place {
    /// N
    #[arg(long)]
    number: u32,
    /// The server's unix socket
    #[arg(long)]
    socket: PathBuf,
    #[arg(long)]
    export: String,
    #[arg(long, default_value_t = 1)]
    connections: usize,
}

/// Does it; the connections are the kernel's then.
pub fn run(action: &Action) -> Result<ExitCode> {
    let (Action::Connect { place, .. } | Action::Reconnect { place }) = action;
    let open = || Connection::open(&place.socket, &place.export);
    let connections: Vec<Connection> = (0..place.connections).map(|_| open()).collect::<Result<_>>()?;
    let first = connections.first().context("--connections is 0")?;
    let mut message = attribute(attributes::INDEX, &place.number.to_ne_bytes());
    let command = match action {
        Action::Connect { patience, timeout, .. } => {
            message.extend(attribute(attributes::SIZE_BYTES, &first.bytes.to_ne_bytes()));
            message.extend(attribute(attributes::BLOCK_SIZE_BYTES, &4096u64.to_ne_bytes()));
            message.extend(attribute(attributes::SERVER_FLAGS, &u64::from(first.flags).to_ne_bytes()));
            message.extend(attribute(attributes::TIMEOUT_S, &timeout.to_ne_bytes()));
            message.extend(attribute(attributes::DEAD_CONNECTION_TIMEOUT_S, &patience.to_ne_bytes()));
            CONNECT
        }
        Action::Reconnect { .. } => RECONFIGURE,
    };
    message.extend(sockets(&connections));
    let kernel = Kernel::open()?;
    let family = kernel.family("nbd")?;
    kernel.ask(family, command, &message).with_context(|| format!("/dev/nbd{}", place.number))?;
    Ok(ExitCode::SUCCESS)
}

/// `linux/nbd-netlink.h`.
mod attributes {
    pub const INDEX: u16 = 1;
    pub const SIZE_BYTES: u16 = 2;
    pub const BLOCK_SIZE_BYTES: u16 = 3;
    pub const TIMEOUT_S: u16 = 4;
    pub const SERVER_FLAGS: u16 = 5;
    pub const SOCKETS: u16 = 7;
    pub const DEAD_CONNECTION_TIMEOUT_S: u16 = 8;
    /// In a list of sockets.
    pub const SOCKET: u16 = 1;
    /// In a socket.
    pub const DESCRIPTOR: u16 = 1;
}
const CONNECT: u8 = 1;
const RECONFIGURE: u8 = 3;

fn sockets(connections: &[Connection]) -> Vec<u8> {
    let one = |connection: &Connection| {
        let descriptor = attribute(attributes::DESCRIPTOR, &connection.stream.as_raw_fd().to_ne_bytes());
        attribute(attributes::SOCKET, &descriptor)
    };
    attribute(attributes::SOCKETS, &connections.iter().flat_map(one).collect::<Vec<u8>>())
}

/// Length, kind, value, and zeroes up to the next multiple of four.
fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
    let length = u16::try_from(value.len() + 4).expect("a short value");
    let mut bytes = [length.to_ne_bytes(), kind.to_ne_bytes()].concat();
    bytes.extend(value);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

/// A generic netlink socket.
struct Kernel(OwnedFd);

impl Kernel {
    fn open() -> Result<Self> {
        let (family, kind) = (AddressFamily::NETLINK, SocketType::RAW);
        let socket = rustix::net::socket_with(family, kind, SocketFlags::CLOEXEC, Some(netlink::GENERIC));
        Ok(Self(socket.context("netlink")?))
    }

    /// The number of a family.
    fn family(&self, name: &str) -> Result<u16> {
        const CONTROLLER: u16 = 16;
        const GET_FAMILY: u8 = 3;
        const FAMILY_ID: u16 = 1;
        const FAMILY_NAME: u16 = 2;
        let name_and_zero = [name.as_bytes(), &[0]].concat();
        let answer = self.ask(CONTROLLER, GET_FAMILY, &attribute(FAMILY_NAME, &name_and_zero));
        let answer = answer.with_context(|| format!("is the module {name} loaded?"))?;
        let mut rest = answer.as_slice();
        while let [a, b, c, d, value @ ..] = rest {
            let length = usize::from(u16::from_ne_bytes([*a, *b]));
            if let (FAMILY_ID, [low, high, ..]) = (u16::from_ne_bytes([*c, *d]), value) {
                return Ok(u16::from_ne_bytes([*low, *high]));
            }
            rest = rest.get(length.max(4).next_multiple_of(4)..).unwrap_or_default();
        }
        bail!("the kernel does not say which netlink family {name} is")
    }

    /// The attributes of the answer; nothing if the kernel only acknowledges.
    fn ask(&self, family: u16, command: u8, attributes: &[u8]) -> Result<Vec<u8>> {
        const REQUEST_AND_ACKNOWLEDGE: u16 = 1 | 4;
        const ERROR: u16 = 2;
        let length = u32::try_from(20 + attributes.len())?;
        let mut message = length.to_ne_bytes().to_vec();
        message.extend(family.to_ne_bytes());
        message.extend(REQUEST_AND_ACKNOWLEDGE.to_ne_bytes());
        message.extend([0; 8]); // sequence and port
        message.extend([command, 1, 0, 0]);
        message.extend(attributes);
        rustix::net::send(&self.0, &message, SendFlags::empty())?;
        let mut answer = Vec::new();
        loop {
            let mut buffer = vec![0; 1 << 16];
            let (received, _) = rustix::net::recv(&self.0, &mut buffer, RecvFlags::empty())?;
            let mut rest = &buffer[..received];
            while let [a, b, c, d, e, f, ..] = rest {
                let length = u32::from_ne_bytes([*a, *b, *c, *d]) as usize;
                let (one, after) = rest.split_at_checked(length.max(20)).context("half a netlink message")?;
                if u16::from_ne_bytes([*e, *f]) == ERROR {
                    return match i32::from_ne_bytes(one[16..20].try_into().expect("four bytes")) {
                        0 => Ok(answer),
                        error => Err(std::io::Error::from_raw_os_error(-error).into()),
                    };
                }
                answer = one[20..].to_vec();
                rest = after;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_are_padded_but_say_their_own_length() {
        assert_eq!(attribute(7, &[1, 2, 3, 4, 5]), [&[9, 0, 7, 0, 1, 2, 3, 4, 5][..], &[0; 3]].concat());
    }
}
