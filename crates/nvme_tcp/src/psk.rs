//! TLS keys: their interchange text, and the two derivations to the key and the identity that TLS is given.
//!
//! *Configured* is what the text holds. *Retained* is made of it for one host, so that a key that leaks from one host says
//! nothing of another's; the text says by which hash function, or that there is none. *TLS* is made of the retained key for
//! one host and one subsystem, and has an identity that the server looks it up by.
//!
//! HKDF-Expand-Label as RFC 8446 writes it has length bytes before label and context. libnvme until late in 2025 left them
//! out; hosts with it offer another identity and key for the same text ([`Derivation`]).

use base64ct::{Base64, Encoding};
use zeroize::Zeroizing;

use crate::hash::HashFunction;
use crate::secret_text::{self, KeyTextError};

mod offer;

pub use offer::{IDENTITIES_MAX, IDENTITY_BYTES_MAX, PskIdentity, offered_identities};

const PREFIX: &str = "NVMeTLSkey-1";
const SEED: &[u8] = b"NVMe-over-Fabrics";

/// How the context of a key goes into HKDF.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Derivation {
    /// HKDF-Expand-Label of RFC 8446, as the transport specification has it.
    Rfc8446,
    /// As libnvme did it until late in 2025: the length little-endian, no length bytes before label and context.
    OldLibnvme,
}

/// Which form an identity has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IdentityVersion {
    /// `NVMe0R01 HOST SUBSYSTEM`.
    V0,
    /// `NVMe1R01 HOST SUBSYSTEM DIGEST`: names the key, too.
    V1,
}

/// A configured key.
#[derive(Clone, PartialEq, Eq)]
pub struct ConfiguredPsk {
    /// By which the retained key is made; `None`: the configured key is the retained one.
    retained_by: Option<HashFunction>,
    key: Zeroizing<Vec<u8>>,
}

impl std::fmt::Debug for ConfiguredPsk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ConfiguredPsk({:?}, {} bytes)", self.retained_by, self.key.len())
    }
}

/// A key as TLS takes it.
#[derive(Clone, PartialEq, Eq)]
pub struct TlsPsk {
    /// What client and server name it by.
    pub identity: String,
    /// 32 bytes with SHA-256, 48 with SHA-384.
    pub key: Zeroizing<Vec<u8>>,
    /// The hash function of the cipher suite.
    pub function: HashFunction,
}

impl std::fmt::Debug for TlsPsk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "TlsPsk({:?}, {:?}, {} bytes)", self.identity, self.function, self.key.len())
    }
}

impl ConfiguredPsk {
    /// A key of random bytes, 32 or 48, chosen by the caller.
    ///
    /// # Errors
    /// [`KeyTextError`]: another length, or a function that TLS keys are not made with.
    pub fn new(retained_by: Option<HashFunction>, key: &[u8]) -> Result<ConfiguredPsk, KeyTextError> {
        if retained_by == Some(HashFunction::Sha512) {
            return Err(KeyTextError::HashFunction);
        }
        if key.len() != 32 && key.len() != 48 {
            return Err(KeyTextError::Length { found: key.len(), expected: "32 or 48" });
        }
        Ok(ConfiguredPsk { retained_by, key: Zeroizing::new(key.to_vec()) })
    }

    /// Reads the interchange text, `NVMeTLSkey-1:HH:BASE64:`.
    ///
    /// # Errors
    /// [`KeyTextError`] names the first thing that is wrong.
    pub fn parse(text: &str) -> Result<ConfiguredPsk, KeyTextError> {
        let (number, key) = secret_text::parse(text, PREFIX)?;
        let retained_by = match number {
            0 => None,
            number => Some(HashFunction::from_id(number).ok_or(KeyTextError::HashFunction)?),
        };
        ConfiguredPsk::new(retained_by, &key)
    }

    /// The interchange text.
    #[must_use]
    pub fn to_text(&self) -> Zeroizing<String> {
        secret_text::format(PREFIX, self.retained_by.map_or(0, HashFunction::id), &self.key)
    }

    /// The key for TLS between one host and one subsystem; `None` if the names are too long for this derivation.
    #[must_use]
    pub fn tls_psk(
        &self,
        host_nqn: &str,
        subsystem_nqn: &str,
        version: IdentityVersion,
        derivation: Derivation,
    ) -> Option<TlsPsk> {
        let retained = match self.retained_by {
            None => self.key.clone(),
            Some(function) => {
                let info = derivation.info("HostNQN", host_nqn, self.key.len())?;
                function.hkdf(&self.key, &info, self.key.len())
            }
        };
        let by_length = if self.key.len() == 32 { HashFunction::Sha256 } else { HashFunction::Sha384 };
        let function = self.retained_by.unwrap_or(by_length);
        tls_psk(function, &retained, host_nqn, subsystem_nqn, version, derivation)
    }

    /// Every key that a host with this text may offer, the one by today's specification first: a server accepts any of them.
    #[must_use]
    pub fn tls_psks(&self, host_nqn: &str, subsystem_nqn: &str) -> Vec<TlsPsk> {
        let mut keys: Vec<TlsPsk> = Vec::new();
        for version in [IdentityVersion::V1, IdentityVersion::V0] {
            for derivation in [Derivation::Rfc8446, Derivation::OldLibnvme] {
                let Some(key) = self.tls_psk(host_nqn, subsystem_nqn, version, derivation) else { continue };
                // Version 0 identities do not tell the derivations apart: only the specification's can be served.
                if keys.iter().all(|other| other.identity != key.identity) {
                    keys.push(key);
                }
            }
        }
        keys
    }
}

/// The key of TLS made of a retained one, or of one that authentication generated; `None` if the names are too long for
/// this derivation, which takes a context of at most 255 bytes.
#[must_use]
pub fn tls_psk(
    function: HashFunction,
    retained: &[u8],
    host_nqn: &str,
    subsystem_nqn: &str,
    version: IdentityVersion,
    derivation: Derivation,
) -> Option<TlsPsk> {
    let number = function.id();
    let (identity, context) = match version {
        IdentityVersion::V0 => {
            let identity = format!("NVMe0R{number:02} {host_nqn} {subsystem_nqn}");
            (identity.clone(), identity)
        }
        IdentityVersion::V1 => {
            let parts = [host_nqn.as_bytes(), b" ", subsystem_nqn.as_bytes(), b" ", SEED];
            let digest = Base64::encode_string(&function.hmac(retained, &parts));
            let identity = format!("NVMe1R{number:02} {host_nqn} {subsystem_nqn} {digest}");
            (identity, format!("{number:02} {digest}"))
        }
    };
    let bytes = function.digest_bytes();
    let key = function.hkdf(retained, &derivation.info("nvme-tls-psk", &context, bytes)?, bytes);
    Some(TlsPsk { identity, key, function })
}

impl Derivation {
    /// What HKDF expands with; `None` if the context is longer than its length byte can say.
    fn info(self, label: &str, context: &str, bytes: usize) -> Option<Vec<u8>> {
        let length = u16::try_from(bytes).ok()?;
        let label = format!("tls13 {label}");
        let (label, context) = (label.as_bytes(), context.as_bytes());
        match self {
            Derivation::Rfc8446 => {
                let (label_bytes, context_bytes) =
                    (u8::try_from(label.len()).ok()?, u8::try_from(context.len()).ok()?);
                Some([&length.to_be_bytes(), &[label_bytes][..], label, &[context_bytes], context].concat())
            }
            Derivation::OldLibnvme => Some([&length.to_le_bytes(), label, context].concat()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: [u8; 48] = [
        0x55, 0x12, 0xdb, 0xb6, 0x73, 0x7d, 0x01, 0x06, 0xf6, 0x59, 0x75, 0xb7, 0x73, 0xdf, 0xb0, 0x11, 0xff,
        0xc3, 0x44, 0xbc, 0xf4, 0x42, 0xe2, 0xdd, 0x6d, 0x8b, 0xc4, 0x87, 0x0b, 0x5d, 0x5b, 0x03, 0xff, 0xc3,
        0x44, 0xbc, 0xf4, 0x42, 0xe2, 0xdd, 0x6d, 0x8b, 0xc4, 0x87, 0x0b, 0x5d, 0x5b, 0x03,
    ];

    fn hex(text: &str) -> Vec<u8> {
        (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).expect(text)).collect()
    }

    #[test]
    fn the_text_is_that_of_libnvme() {
        for (function, bytes, text) in [
            (HashFunction::Sha256, 32, "NVMeTLSkey-1:01:VRLbtnN9AQb2WXW3c9+wEf/DRLz0QuLdbYvEhwtdWwNf9LrZ:"),
            (
                HashFunction::Sha384,
                48,
                "NVMeTLSkey-1:02:VRLbtnN9AQb2WXW3c9+wEf/DRLz0QuLdbYvEhwtdWwP/w0S89ELi3W2LxIcLXVsDn8kXZQ==:",
            ),
        ] {
            let key = ConfiguredPsk::new(Some(function), &KEY[..bytes]).expect("a key");
            assert_eq!(key.to_text().as_str(), text);
            assert_eq!(ConfiguredPsk::parse(&format!("{text}\n")), Ok(key));
        }
    }

    #[test]
    fn what_is_no_key_is_refused_by_name() {
        let good = "NVMeTLSkey-1:01:VRLbtnN9AQb2WXW3c9+wEf/DRLz0QuLdbYvEhwtdWwNf9LrZ:";
        let cases = [
            (good.replace("NVMe", "NvMe"), KeyTextError::Prefix { expected: PREFIX }),
            (good.trim_end_matches(':').to_owned(), KeyTextError::Form),
            (good.replace(":01:", ":03:"), KeyTextError::HashFunction),
            (good.replace(":01:", ":1:"), KeyTextError::HashFunction),
            (good.replace(":01:", ":09:"), KeyTextError::HashFunction),
            (good.replace("VRL", "V!L"), KeyTextError::Base64),
            (
                good.replace("NVMeTLSkey-1:01:V", "NVMeTLSkey-1:01:W"),
                KeyTextError::Crc { found: 0xd9ba_f45f, expected: 0 },
            ),
            (
                "NVMeTLSkey-1:01::".to_owned(),
                KeyTextError::Length { found: 0, expected: "a key and its CRC-32" },
            ),
            ("NVMeTLSkey-1:01:AAAAAA==:".to_owned(), KeyTextError::Length { found: 0, expected: "32 or 48" }),
        ];
        for (text, expected) in cases {
            match (ConfiguredPsk::parse(&text), expected) {
                (Err(KeyTextError::Crc { found, .. }), KeyTextError::Crc { found: expected, .. }) => {
                    assert_eq!(found, expected);
                }
                (found, expected) => assert_eq!(found, Err(expected), "{text}"),
            }
        }
    }

    /// Identities that libnvme's own tests expect, by the specification and as older versions have them.
    #[test]
    fn identities_are_those_of_libnvme() {
        for (function, bytes, derivation, digest) in [
            (HashFunction::Sha256, 32, Derivation::Rfc8446, "iSbjiStwJ/1TrTvDlt2fjFmzvsytOJelidNnA+X5lEU="),
            (
                HashFunction::Sha384,
                48,
                Derivation::Rfc8446,
                "QhW2+Rp6RzHlNtCslyRxMnwJ11tKKhz8JCAQpQ+XUD8f9td1VeH5h53yz2wKJG1a",
            ),
            (
                HashFunction::Sha256,
                32,
                Derivation::OldLibnvme,
                "66GuqV08TsAGII39teWUfwQwizjv06Jy8jOcX3NAAzM=",
            ),
            (
                HashFunction::Sha384,
                48,
                Derivation::OldLibnvme,
                "RsKmYJ3nAn1ApjjMloJFbAkLPivONDAX/xW327YBUsn2eGShXSjCZvBaOxscLqmz",
            ),
        ] {
            let key = ConfiguredPsk::new(Some(function), &KEY[..bytes]).expect("a key");
            let tls =
                key.tls_psk("nqn.psk-test-host", "nqn.psk-test-subsys", IdentityVersion::V1, derivation);
            let tls = tls.expect("short names");
            let number = function.id();
            assert_eq!(
                tls.identity,
                format!("NVMe1R{number:02} nqn.psk-test-host nqn.psk-test-subsys {digest}")
            );
            assert_eq!(tls.key.len(), function.digest_bytes());
        }
    }

    /// What nvme-cli 2.13 with libnvme 1.13 prints: `gen-tls-key --secret`, `check-tls-key --identity`. It is one of those that leave
    /// length bytes out.
    #[test]
    fn texts_and_identities_are_those_that_nvme_cli_prints() {
        let bytes: Vec<u8> = (0..48).collect();
        for (function, length, text, digest) in [
            (
                HashFunction::Sha256,
                32,
                "NVMeTLSkey-1:01:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR:",
                "2tXNknlQw3JzGnl6A7FI/LzzlCxLj0hRyUlBkDyyqGM=",
            ),
            (
                HashFunction::Sha384,
                48,
                "NVMeTLSkey-1:02:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8gISIjJCUmJygpKissLS4vcSEgBQ==:",
                "UkwDJlOLIkmGX4OxD9sB0XbXLDf0DO5m8bWFZ12ycFTbovL+s2p65KXnkIxNkycJ",
            ),
        ] {
            let key = ConfiguredPsk::new(Some(function), &bytes[..length]).expect("a key");
            assert_eq!(key.to_text().as_str(), text);
            let number = function.id();
            let names = "nqn.2026-11.test:h nqn.2026-11.test:s";
            let identities: Vec<String> = key
                .tls_psks("nqn.2026-11.test:h", "nqn.2026-11.test:s")
                .into_iter()
                .map(|key| key.identity)
                .collect();
            assert_eq!(identities[1], format!("NVMe1R{number:02} {names} {digest}"));
            assert_eq!(identities[2], format!("NVMe0R{number:02} {names}"));
        }
    }

    /// Keys that the kernel's own tests expect of its derivation.
    #[test]
    fn tls_keys_are_those_of_the_kernel() {
        for (function, retained, digest, expected) in [
            (
                HashFunction::Sha256,
                "1733c59fa7f48fcf37f5f26fc4ff0268ad4f78e030f4f3b0bfd1d47e7bb1447a",
                "OldoKuTfKddMuyCznAZojkWD7P4D9/AtzDzLimtOxqI=",
                "3c17da628474a04d2247c4cab47968c915388193f7c071bd9489cc3666cd7cc8",
            ),
            (
                HashFunction::Sha384,
                "f14b2dd3234c459694d3bc63f8968bd6b37c2c6de849e22e118749001ce4bbe8640b9e3a748cb11ce4b1d71d359cce39",
                "cffMWk8TSS7HOQebjgYEIkrPrjWPV4JE5cdPB8WhEvY4JBW5YynKyv66XscN4A9n",
                "2774753233537b3fa50eb7d16a8e43457d85f4906c005b2236616c5d80939d0898fff15bb8b77119d2be0aac423e7590",
            ),
        ] {
            let (version, derivation) = (IdentityVersion::V1, Derivation::Rfc8446);
            let tls = tls_psk(function, &hex(retained), "hostnqn", "subsysnqn", version, derivation);
            let tls = tls.expect("short names");
            assert_eq!(tls.identity, format!("NVMe1R{:02} hostnqn subsysnqn {digest}", function.id()));
            assert_eq!(*tls.key, hex(expected));
        }
    }

    #[test]
    fn a_server_offers_each_identity_once() {
        let key = ConfiguredPsk::new(Some(HashFunction::Sha256), &KEY[..32]).expect("a key");
        let identities: Vec<String> =
            key.tls_psks("nqn.h", "nqn.s").into_iter().map(|key| key.identity).collect();
        assert_eq!(identities.len(), 3, "{identities:?}");
        assert!(
            identities[0].starts_with("NVMe1R01 ") && identities[2] == "NVMe0R01 nqn.h nqn.s",
            "{identities:?}"
        );
        // A key without a hash function for the retained one does not depend on the host: the digest is the same by both ways.
        let plain = ConfiguredPsk::new(None, &KEY).expect("a key");
        assert_eq!(plain.tls_psks("nqn.h", "nqn.s").len(), 2);
        assert_eq!(plain.tls_psks("nqn.h", "nqn.s")[0].function, HashFunction::Sha384);
        // Version 0 has both names in its context, which has one length byte.
        let long = format!("nqn.{}", "h".repeat(200));
        assert_eq!(plain.tls_psks(&long, &long).len(), 2);
        assert_eq!(plain.tls_psk(&long, &long, IdentityVersion::V0, Derivation::Rfc8446), None);
    }

    #[test]
    fn no_key_is_printed() {
        let key = ConfiguredPsk::new(None, &[0xab; 32]).expect("a key");
        assert_eq!(format!("{key:?}"), "ConfiguredPsk(None, 32 bytes)");
        let tls = &key.tls_psks("nqn.h", "nqn.s")[1];
        assert_eq!(format!("{tls:?}"), "TlsPsk(\"NVMe0R01 nqn.h nqn.s\", Sha256, 32 bytes)");
    }
}
