//! The hash functions of authentication and of TLS keys, and what is made of them: digest, HMAC, HKDF.

use hkdf::Hkdf;
use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest, Sha256, Sha384, Sha512};
use zeroize::Zeroizing;

/// A hash function that NVMe names by a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum HashFunction {
    /// Number 1, 32 bytes.
    Sha256,
    /// Number 2, 48 bytes.
    Sha384,
    /// Number 3, 64 bytes.
    Sha512,
}

impl HashFunction {
    /// All, the longest digest first.
    pub const ALL: [HashFunction; 3] = [HashFunction::Sha512, HashFunction::Sha384, HashFunction::Sha256];

    /// The function of a number; `None` if there is none.
    #[must_use]
    pub fn from_id(id: u8) -> Option<HashFunction> {
        HashFunction::ALL.into_iter().find(|function| function.id() == id)
    }

    /// Its number on the wire and in the text of a key.
    #[must_use]
    pub fn id(self) -> u8 {
        match self {
            HashFunction::Sha256 => 1,
            HashFunction::Sha384 => 2,
            HashFunction::Sha512 => 3,
        }
    }

    /// Bytes of a digest.
    #[must_use]
    pub fn digest_bytes(self) -> usize {
        match self {
            HashFunction::Sha256 => 32,
            HashFunction::Sha384 => 48,
            HashFunction::Sha512 => 64,
        }
    }

    /// The digest of `message`.
    #[must_use]
    pub fn digest(self, message: &[u8]) -> Zeroizing<Vec<u8>> {
        Zeroizing::new(match self {
            HashFunction::Sha256 => Sha256::digest(message).to_vec(),
            HashFunction::Sha384 => Sha384::digest(message).to_vec(),
            HashFunction::Sha512 => Sha512::digest(message).to_vec(),
        })
    }

    /// HMAC of the parts, one behind the other.
    #[must_use]
    pub fn hmac(self, key: &[u8], parts: &[&[u8]]) -> Zeroizing<Vec<u8>> {
        Zeroizing::new(match self {
            HashFunction::Sha256 => fed::<Hmac<Sha256>>(key, parts).finalize().into_bytes().to_vec(),
            HashFunction::Sha384 => fed::<Hmac<Sha384>>(key, parts).finalize().into_bytes().to_vec(),
            HashFunction::Sha512 => fed::<Hmac<Sha512>>(key, parts).finalize().into_bytes().to_vec(),
        })
    }

    /// If `code` is the HMAC of the parts. The time that it takes does not depend on where they differ.
    #[must_use]
    pub fn hmac_is(self, key: &[u8], parts: &[&[u8]], code: &[u8]) -> bool {
        match self {
            HashFunction::Sha256 => fed::<Hmac<Sha256>>(key, parts).verify_slice(code).is_ok(),
            HashFunction::Sha384 => fed::<Hmac<Sha384>>(key, parts).verify_slice(code).is_ok(),
            HashFunction::Sha512 => fed::<Hmac<Sha512>>(key, parts).verify_slice(code).is_ok(),
        }
    }

    /// HKDF (RFC 5869): extract from `secret` without salt, then expand to `bytes` bytes.
    ///
    /// # Panics
    /// If `bytes` is more than 255 digests.
    #[must_use]
    pub fn hkdf(self, secret: &[u8], info: &[u8], bytes: usize) -> Zeroizing<Vec<u8>> {
        let mut key = Zeroizing::new(vec![0; bytes]);
        let expanded = match self {
            HashFunction::Sha256 => Hkdf::<Sha256>::new(None, secret).expand(info, &mut key),
            HashFunction::Sha384 => Hkdf::<Sha384>::new(None, secret).expand(info, &mut key),
            HashFunction::Sha512 => Hkdf::<Sha512>::new(None, secret).expand(info, &mut key),
        };
        expanded.expect("a key of at most 255 digests");
        key
    }
}

fn fed<M: Mac + KeyInit>(key: &[u8], parts: &[&[u8]]) -> M {
    let mut mac = <M as KeyInit>::new_from_slice(key).expect("HMAC takes a key of any length");
    parts.iter().for_each(|part| mac.update(part));
    mac
}
