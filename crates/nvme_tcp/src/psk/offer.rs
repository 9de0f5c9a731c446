//! What a client of TLS offers before anything is proven: identities of keys. A server answers to those whose host it has a key
//! of, whatever subsystem they name: that the names are those of Connect is for the connection to see.

use crate::hash::HashFunction;
use crate::names::Nqn;

use super::{ConfiguredPsk, TlsPsk};

/// Identities of one client that are looked at: hosts offer one, or one for each hash function and derivation.
pub const IDENTITIES_MAX: usize = 8;

/// The longest identity: both names, a digest of 48 bytes, and what stands between.
pub const IDENTITY_BYTES_MAX: usize = 600;

/// The names in an identity.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PskIdentity {
    /// Of the cipher suite.
    pub function: HashFunction,
    /// Whose key it is.
    pub host: Nqn,
    /// What the host wants to connect to.
    pub subsystem: Nqn,
}

impl PskIdentity {
    /// Reads an identity: `NVMe0R01 HOST SUBSYSTEM` or `NVMe1R01 HOST SUBSYSTEM DIGEST`. None: it is of no NVMe/TCP host.
    #[must_use]
    pub fn parse(identity: &str) -> Option<PskIdentity> {
        if identity.len() > IDENTITY_BYTES_MAX {
            return None;
        }
        let mut words = identity.split(' ');
        let (start, host, subsystem) = (words.next()?, words.next()?, words.next()?);
        let (has_digest, function) = match start {
            "NVMe0R01" => (false, HashFunction::Sha256),
            "NVMe0R02" => (false, HashFunction::Sha384),
            "NVMe1R01" => (true, HashFunction::Sha256),
            "NVMe1R02" => (true, HashFunction::Sha384),
            _ => return None,
        };
        if words.next().is_some() != has_digest || words.next().is_some() {
            return None;
        }
        Some(PskIdentity { function, host: Nqn::new(host).ok()?, subsystem: Nqn::new(subsystem).ok()? })
    }
}

impl ConfiguredPsk {
    /// The key of TLS that has this identity between these names, by whichever derivation; none: it is of another key.
    #[must_use]
    pub fn with_identity(&self, identity: &str, names: &PskIdentity) -> Option<TlsPsk> {
        let keys = self.tls_psks(names.host.as_str(), names.subsystem.as_str());
        keys.into_iter().find(|key| key.identity == identity)
    }
}

/// The identities in the extension `pre_shared_key` of a ClientHello (RFC 8446, 4.2.11), at most [`IDENTITIES_MAX`]. None: the
/// extension makes no sense.
#[must_use]
pub fn offered_identities(extension: &[u8]) -> Option<Vec<&[u8]>> {
    /// An age follows each, which says nothing for a key that was not made by TLS itself.
    const AGE_BYTES: usize = 4;
    let (mut list, _binders) = take(extension)?;
    let mut identities = Vec::new();
    while !list.is_empty() && identities.len() < IDENTITIES_MAX {
        let (identity, rest) = take(list)?;
        identities.push(identity);
        list = rest.get(AGE_BYTES..)?;
    }
    Some(identities)
}

/// Bytes behind their length in two bytes, and what follows them.
fn take(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, rest) = bytes.split_first_chunk::<2>()?;
    rest.split_at_checked(usize::from(u16::from_be_bytes(*length)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key() -> ConfiguredPsk {
        ConfiguredPsk::new(Some(HashFunction::Sha384), &[7; 48]).expect("a key")
    }

    #[test]
    fn every_identity_that_a_host_may_offer_leads_to_its_key() {
        for offered in key().tls_psks("nqn.2026-11.test:h", "nqn.2026-11.test:s") {
            let names = PskIdentity::parse(&offered.identity).expect("an identity");
            assert_eq!(names.host.as_str(), "nqn.2026-11.test:h");
            assert_eq!(names.subsystem.as_str(), "nqn.2026-11.test:s");
            assert_eq!(names.function, HashFunction::Sha384);
            assert_eq!(key().with_identity(&offered.identity, &names), Some(offered));
        }
        let other = ConfiguredPsk::new(Some(HashFunction::Sha384), &[8; 48]).expect("a key");
        let offered = &other.tls_psks("nqn.2026-11.test:h", "nqn.2026-11.test:s")[0].identity;
        let names = PskIdentity::parse(offered).expect("an identity");
        assert_eq!(key().with_identity(offered, &names), None, "its digest is of another key");
    }

    #[test]
    fn what_is_no_identity_of_a_host_is_none() {
        let long = format!("NVMe1R01 nqn.h nqn.s {}", "A".repeat(IDENTITY_BYTES_MAX));
        for text in [
            "",
            "Client_identity",
            "NVMe1R01 nqn.h nqn.s",
            "NVMe0R01 nqn.h nqn.s digest",
            "NVMe1R03 nqn.h nqn.s digest",
            "NVMe2R01 nqn.h nqn.s digest",
            "NVMe1R01  nqn.s digest",
            "NVMe1R01 nqn.h nqn.s digest ",
            "NVMe1R01 host nqn.s digest",
            &long,
        ] {
            assert_eq!(PskIdentity::parse(text), None, "{text}");
        }
    }

    #[test]
    fn identities_are_taken_from_the_extension() {
        let entry =
            |identity: &[u8]| [&(identity.len() as u16).to_be_bytes()[..], identity, &[0; 4]].concat();
        let extension = |entries: &[Vec<u8>]| {
            let list = entries.concat();
            [&(list.len() as u16).to_be_bytes()[..], &list, &[0, 33, 32], &[9; 32]].concat()
        };
        let two = extension(&[entry(b"first"), entry(b"second")]);
        assert_eq!(offered_identities(&two), Some(vec![&b"first"[..], b"second"]));
        let many = extension(&vec![entry(b"x"); IDENTITIES_MAX + 5]);
        assert_eq!(offered_identities(&many).map(|all| all.len()), Some(IDENTITIES_MAX));
        let list_bytes = 2 + 11 + 12;
        for end in 0..list_bytes {
            assert_eq!(offered_identities(&two[..end]), None, "cut at {end}");
        }
        // The list ends in the middle of an entry.
        assert_eq!(offered_identities(&[0, 4, 0, 1, b'x', 0]), None);
    }
}
