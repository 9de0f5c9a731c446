//! Secrets of DH-HMAC-CHAP, as `nvme gen-dhchap-key` writes them.

use zeroize::Zeroizing;

use crate::hash::HashFunction;
use crate::secret_text::{self, KeyTextError};

const PREFIX: &str = "DHHC-1";
const SEED: &[u8] = b"NVMe-over-Fabrics";

/// The secret of a host, or of a subsystem.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret {
    /// By which the key of one NQN is made; `None`: the secret is the key.
    transformed_by: Option<HashFunction>,
    key: Zeroizing<Vec<u8>>,
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Secret({:?}, {} bytes)", self.transformed_by, self.key.len())
    }
}

impl Secret {
    /// A secret of random bytes chosen by the caller: 32, 48 or 64, as many as the hash function's digest if there is one.
    ///
    /// # Errors
    /// [`KeyTextError::Length`].
    pub fn new(transformed_by: Option<HashFunction>, key: &[u8]) -> Result<Secret, KeyTextError> {
        let fits = match transformed_by {
            None => matches!(key.len(), 32 | 48 | 64),
            Some(function) => key.len() == function.digest_bytes(),
        };
        if !fits {
            return Err(KeyTextError::Length {
                found: key.len(),
                expected: "32, 48 or 64, and as many as the hash function makes",
            });
        }
        Ok(Secret { transformed_by, key: Zeroizing::new(key.to_vec()) })
    }

    /// Reads `DHHC-1:HH:BASE64:`.
    ///
    /// # Errors
    /// [`KeyTextError`] names the first thing that is wrong.
    pub fn parse(text: &str) -> Result<Secret, KeyTextError> {
        let (number, key) = secret_text::parse(text, PREFIX)?;
        let transformed_by = match number {
            0 => None,
            number => Some(HashFunction::from_id(number).ok_or(KeyTextError::HashFunction)?),
        };
        Secret::new(transformed_by, &key)
    }

    /// Its text.
    #[must_use]
    pub fn to_text(&self) -> Zeroizing<String> {
        secret_text::format(PREFIX, self.transformed_by.map_or(0, HashFunction::id), &self.key)
    }

    /// The key that the owner of the secret, named `nqn`, authenticates with.
    pub(crate) fn key_of(&self, nqn: &str) -> Zeroizing<Vec<u8>> {
        match self.transformed_by {
            None => self.key.clone(),
            Some(function) => function.hmac(&self.key, &[nqn.as_bytes(), SEED]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counting(bytes: u8) -> Vec<u8> {
        (1..=bytes).collect()
    }

    /// What `nvme gen-dhchap-key --secret=0102... --hmac=0` of nvme-cli 2.3 prints.
    #[test]
    fn the_text_is_that_of_nvme_cli() {
        for (bytes, text) in [
            (32, "DHHC-1:00:AQIDBAUGBwgJCgsMDQ4PEBESExQVFhcYGRobHB0eHyAl7OaH:"),
            (48, "DHHC-1:00:AQIDBAUGBwgJCgsMDQ4PEBESExQVFhcYGRobHB0eHyAhIiMkJSYnKCkqKywtLi8wyg3Bcw==:"),
            (
                64,
                "DHHC-1:00:AQIDBAUGBwgJCgsMDQ4PEBESExQVFhcYGRobHB0eHyAhIiMkJSYnKCkqKywtLi8wMTIzNDU2Nzg5Ojs8PT4/QJn7gCg=:",
            ),
        ] {
            let secret = Secret::new(None, &counting(bytes)).expect("a secret");
            assert_eq!(secret.to_text().as_str(), text);
            assert_eq!(Secret::parse(text), Ok(secret));
        }
    }

    /// With `--hmac` and `--nqn` that command prints the key that the NQN's owner would make of the secret.
    #[test]
    fn keys_are_transformed_as_nvme_cli_does() {
        let nqn = "nqn.2014-08.org.nvmexpress:uuid:11111111-2222-3333-4444-555555555555";
        for (function, bytes, text) in [
            (HashFunction::Sha256, 32, "DHHC-1:01:Q8JsbVDwmjTQcit9JVD/hST6cy0KrdhDyCa2XmuYUk5aKgna:"),
            (
                HashFunction::Sha384,
                48,
                "DHHC-1:02:I6AlIxVinEcQoLaI2yTJ2e9PzsYf/ZT6vMgoEhRUbQsLvD6HHgI3X3lSwIcVBx9c0BnynQ==:",
            ),
            (
                HashFunction::Sha512,
                64,
                "DHHC-1:03:rIqbWUnofDxPV53W9pxA/qEhcZDRIxLyiZ05soyM+UUHVK88otHv7V8veTgHQP1w+aYMsflu0m/+ehLTwGv/tLvY5Zs=:",
            ),
        ] {
            let secret = Secret::new(Some(function), &counting(bytes)).expect("a secret");
            let printed = Secret::parse(text).expect(text);
            assert_eq!((printed.transformed_by, &printed.key), (Some(function), &secret.key_of(nqn)));
        }
    }

    #[test]
    fn what_is_no_secret_is_refused_and_none_is_printed() {
        for text in
            ["", "DHHC-1", "DHHC-1:", "DHHC-1:::", "DHHC-2:00:AAAA:", "DHHC-1:00:AAAA", "DHHC-1:00:AAAAAA==:"]
        {
            assert!(Secret::parse(text).is_err(), "{text}");
        }
        // Its length is another function's.
        assert!(Secret::new(Some(HashFunction::Sha512), &[1; 32]).is_err());
        let secret = Secret::new(None, &[0xab; 32]).expect("a secret");
        assert_eq!(format!("{secret:?}"), "Secret(None, 32 bytes)");
    }
}
