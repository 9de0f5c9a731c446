//! The discovery log page: which subsystems there are, and where.
//!
//! An entry is a hint: what is found by it still has to prove what it is.

use std::fmt;

use byte_struct::byte_struct;
use zerocopy::little_endian::{U16, U64};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

use crate::names::{Nqn, NqnError};

byte_struct! {
    struct RawHeader, 1024 bytes {
        0   8     generation: U64,
        8   8     entries: U64,
        16  2     format: U16,
        18  1006  reserve: bytes,
    }
}

byte_struct! {
    struct RawEntry, 1024 bytes {
        0    1    transport: u8,
        1    1    family: u8,
        2    1    subsystem_type: u8,
        3    1    requirements: u8,
        4    2    port: U16,
        6    2    controller: U16,
        8    2    admin_queue: U16,
        10   2    flags: U16,
        12   20   reserve: bytes,
        32   32   service: bytes,
        64   192  reserve2: bytes,
        256  256  nqn: bytes,
        512  256  address: bytes,
        768  1    security: u8,
        769  255  reserve3: bytes,
    }
}

/// Bytes of the page before its first entry, and of each entry.
pub const ENTRY_BYTES: usize = 1024;
/// Entries that an initiator reads; what is beyond is not looked at.
pub const ENTRIES_MAX: usize = 1024;

const TRANSPORT_TCP: u8 = 3;
const FAMILY_IPV4: u8 = 1;
const FAMILY_IPV6: u8 = 2;
const SECURE_REQUIRED: u8 = 1;
/// Without TLS nothing is said: nvme-cli takes "not required" for an offer of TLS, and then fails because it has no key.
const SECURE_NOT_SPECIFIED: u8 = 0;
const SECURITY_TLS13: u8 = 2;
const DYNAMIC_CONTROLLER: u16 = 0xffff;
const ADMIN_QUEUE_ENTRIES: u16 = 32;

/// What an entry leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SubsystemType {
    /// Another discovery subsystem.
    Referral,
    /// Namespaces.
    Nvm,
    /// This discovery subsystem itself.
    CurrentDiscovery,
}

const TYPES: [(u8, SubsystemType); 3] =
    [(1, SubsystemType::Referral), (2, SubsystemType::Nvm), (3, SubsystemType::CurrentDiscovery)];

/// One way to a subsystem over TCP.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct DiscoveryEntry {
    /// What it leads to.
    pub subsystem_type: SubsystemType,
    /// Its number on the server.
    pub port: u16,
    /// The subsystem.
    pub nqn: Nqn,
    /// An address of IP version 4 or 6, without brackets.
    pub address: core::net::IpAddr,
    /// The TCP port.
    pub service: u16,
    /// TLS has to be used.
    pub tls: bool,
}

/// The page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiscoveryLog {
    /// Counts changes: a page that is read in pieces is whole if this is the same before and after.
    pub generation: u64,
    /// The entries.
    pub entries: Vec<DiscoveryEntry>,
    /// What is wrong with entries that are left out: other transports, and entries that make no sense.
    pub left_out: Vec<EntryError>,
}

/// Why an entry is left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EntryError {
    /// Another transport than TCP.
    #[error("transport {0}, only TCP (3) is used")]
    Transport(u8),
    /// A type of subsystem that is not known.
    #[error("subsystem type {0}, which is not known")]
    SubsystemType(u8),
    /// The name is none.
    #[error("the subsystem's name is not one: {0}")]
    Name(#[from] NqnError),
    /// The address is none.
    #[error("the address is no IP address of its family")]
    Address,
    /// The port is none.
    #[error("the service is no TCP port")]
    Service,
}

/// Why bytes are no discovery log page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DiscoveryError {
    /// The page goes on beyond what was read: read this many bytes.
    #[error("the page has {bytes} bytes, more than were read")]
    Longer {
        /// Bytes of the page, or of as much of it as is read.
        bytes: usize,
    },
    /// A format that is not known.
    #[error("the page has format {0}, only 0 is known")]
    Format(u16),
}

impl DiscoveryLog {
    /// The page.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut raw = RawHeader::new_zeroed();
        raw.generation.set(self.generation);
        raw.entries.set(self.entries.len() as u64);
        let mut bytes = raw.as_bytes().to_vec();
        self.entries.iter().for_each(|entry| bytes.extend_from_slice(entry.raw().as_bytes()));
        bytes
    }

    /// Reads the page, at most [`ENTRIES_MAX`] entries of it.
    ///
    /// # Errors
    /// [`DiscoveryError`].
    pub fn parse(bytes: &[u8]) -> Result<DiscoveryLog, DiscoveryError> {
        let longer = |bytes| DiscoveryError::Longer { bytes };
        let (raw, rest) = RawHeader::ref_from_prefix(bytes).map_err(|_| longer(ENTRY_BYTES))?;
        if raw.format.get() != 0 {
            return Err(DiscoveryError::Format(raw.format.get()));
        }
        let count = usize::try_from(raw.entries.get()).map_or(ENTRIES_MAX, |count| count.min(ENTRIES_MAX));
        let (raw_entries, _) = <[RawEntry]>::ref_from_prefix_with_elems(rest, count)
            .map_err(|_| longer(ENTRY_BYTES * (1 + count)))?;
        let (mut entries, mut left_out) = (Vec::new(), Vec::new());
        for raw in raw_entries {
            match DiscoveryEntry::parse(raw) {
                Ok(entry) => entries.push(entry),
                Err(error) => left_out.push(error),
            }
        }
        Ok(DiscoveryLog { generation: raw.generation.get(), entries, left_out })
    }
}

impl DiscoveryEntry {
    fn raw(&self) -> RawEntry {
        let mut raw = RawEntry::new_zeroed();
        raw.transport = TRANSPORT_TCP;
        raw.family = if self.address.is_ipv4() { FAMILY_IPV4 } else { FAMILY_IPV6 };
        raw.subsystem_type =
            TYPES.iter().find(|(_, known)| *known == self.subsystem_type).map_or(0, |(number, _)| *number);
        raw.requirements = if self.tls { SECURE_REQUIRED } else { SECURE_NOT_SPECIFIED };
        raw.port.set(self.port);
        raw.controller.set(DYNAMIC_CONTROLLER);
        raw.admin_queue.set(ADMIN_QUEUE_ENTRIES);
        fill(&mut raw.service, &self.service);
        raw.nqn = self.nqn.to_field();
        fill(&mut raw.address, &self.address);
        raw.security = if self.tls { SECURITY_TLS13 } else { 0 };
        raw
    }

    fn parse(raw: &RawEntry) -> Result<DiscoveryEntry, EntryError> {
        if raw.transport != TRANSPORT_TCP {
            return Err(EntryError::Transport(raw.transport));
        }
        let known = TYPES.iter().find(|(number, _)| *number == raw.subsystem_type);
        let (_, subsystem_type) = known.ok_or(EntryError::SubsystemType(raw.subsystem_type))?;
        let address: core::net::IpAddr =
            text(&raw.address).and_then(|text| text.parse().ok()).ok_or(EntryError::Address)?;
        let family_fits = match raw.family {
            FAMILY_IPV4 => address.is_ipv4(),
            FAMILY_IPV6 => address.is_ipv6(),
            _ => false,
        };
        if !family_fits {
            return Err(EntryError::Address);
        }
        let service = text(&raw.service).and_then(|text| text.parse().ok()).filter(|port| *port != 0);
        Ok(DiscoveryEntry {
            subsystem_type: *subsystem_type,
            port: raw.port.get(),
            nqn: Nqn::from_field(&raw.nqn)?,
            address,
            service: service.ok_or(EntryError::Service)?,
            tls: raw.requirements & 0b11 == SECURE_REQUIRED,
        })
    }
}

/// ASCII, spaces behind it, as the specification has these two fields.
fn fill(field: &mut [u8], value: &dyn fmt::Display) {
    field.fill(b' ');
    let text = value.to_string();
    field[..text.len()].copy_from_slice(text.as_bytes());
}

/// Text of a field that ends with spaces, or with a zero as some targets write it.
fn text(field: &[u8]) -> Option<&str> {
    let end = field.iter().position(|byte| *byte == 0).unwrap_or(field.len());
    std::str::from_utf8(&field[..end]).ok().map(str::trim)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log() -> DiscoveryLog {
        let entry = |subsystem_type, nqn, address: &str, tls| DiscoveryEntry {
            subsystem_type,
            port: 1,
            nqn: Nqn::new(nqn).unwrap(),
            address: address.parse().unwrap(),
            service: 4420,
            tls,
        };
        DiscoveryLog {
            generation: 3,
            entries: vec![
                entry(SubsystemType::CurrentDiscovery, crate::names::DISCOVERY_NQN, "192.0.2.1", false),
                entry(SubsystemType::Nvm, "nqn.2026-11.test:a", "2001:db8::1", true),
            ],
            left_out: Vec::new(),
        }
    }

    #[test]
    fn what_is_encoded_parses_to_the_same() {
        let bytes = log().encode();
        assert_eq!(bytes.len(), 3 * ENTRY_BYTES);
        assert_eq!(
            (bytes[0], bytes[8], bytes[1024], bytes[1025], bytes[1026], bytes[1027]),
            (3, 2, 3, 1, 3, 0)
        );
        assert_eq!(&bytes[1056..1062], b"4420  ");
        assert_eq!(&bytes[1536..1546], b"192.0.2.1 ");
        assert_eq!(DiscoveryLog::parse(&bytes), Ok(log()));
        for end in [0, 1, 1023, 1024, 2047, 3071] {
            assert!(
                matches!(DiscoveryLog::parse(&bytes[..end]), Err(DiscoveryError::Longer { .. })),
                "{end}"
            );
        }
        assert_eq!(DiscoveryLog::parse(&bytes[..1024]), Err(DiscoveryError::Longer { bytes: bytes.len() }));
    }

    #[test]
    fn entries_that_make_no_sense_are_left_out_and_named() {
        let good = log().encode();
        let with = |at: usize, bytes: &[u8]| {
            let mut changed = good.clone();
            changed[1024 + at..1024 + at + bytes.len()].copy_from_slice(bytes);
            let log = DiscoveryLog::parse(&changed).unwrap();
            assert_eq!((log.entries.len(), log.left_out.len()), (1, 1));
            log.left_out[0]
        };
        assert_eq!(with(0, &[1]), EntryError::Transport(1));
        assert_eq!(with(1, &[2]), EntryError::Address);
        assert_eq!(with(2, &[0]), EntryError::SubsystemType(0));
        assert_eq!(with(32, b"0    "), EntryError::Service);
        assert_eq!(with(32, b"65536"), EntryError::Service);
        assert_eq!(with(256, b"x"), EntryError::Name(NqnError::Beginning));
        assert_eq!(with(512, b"host.example"), EntryError::Address);
        assert_eq!(with(512, b"\xff"), EntryError::Address);
    }

    #[test]
    fn a_page_cannot_ask_for_more_than_is_read() {
        let mut bytes = log().encode();
        bytes[8..16].copy_from_slice(&[0xff; 8]);
        let bytes_max = ENTRY_BYTES * (1 + ENTRIES_MAX);
        assert_eq!(DiscoveryLog::parse(&bytes), Err(DiscoveryError::Longer { bytes: bytes_max }));
        bytes[16] = 1;
        assert_eq!(DiscoveryLog::parse(&bytes), Err(DiscoveryError::Format(1)));
    }
}
