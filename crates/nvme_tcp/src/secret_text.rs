//! Keys as text: `PREFIX:HH:BASE64:`, where HH names a hash function and the last four bytes are a CRC-32 of the others.
//! DH-HMAC-CHAP secrets and TLS keys are written so.

use base64ct::{Base64, Encoding};
use crc_fast::CrcAlgorithm;
use zeroize::Zeroizing;

/// Why a text is not a key. The text itself is in no message: it may be nearly the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyTextError {
    /// Another kind of key, or none.
    #[error("it does not begin with {expected}:")]
    Prefix {
        /// What it should begin with.
        expected: &'static str,
    },
    /// Colons are missing or there are too many.
    #[error("it is not of the form PREFIX:HH:BASE64:, with a colon at the end")]
    Form,
    /// The two digits name no hash function that such a key may have.
    #[error("its hash function is none of the numbers that such a key may have")]
    HashFunction,
    /// Not base64 with its padding.
    #[error("the key is not base64")]
    Base64,
    /// A key of another length.
    #[error("the key has {found} bytes, expected {expected}")]
    Length {
        /// Bytes without the CRC.
        found: usize,
        /// What it may be.
        expected: &'static str,
    },
    /// A typing error, or a key cut short.
    #[error("its CRC-32 is {found:#010x}, but that of the key is {expected:#010x}: it was not copied whole")]
    Crc {
        /// What it says.
        found: u32,
        /// What the bytes make.
        expected: u32,
    },
}

/// A text longer than this is no key.
const TEXT_BYTES_MAX: usize = 256;
const CRC_BYTES: usize = 4;

/// The number of the hash function and the key in `text`. Space around it is left out.
///
/// # Errors
/// [`KeyTextError`] names the first thing that is wrong.
pub(crate) fn parse(text: &str, prefix: &'static str) -> Result<(u8, Zeroizing<Vec<u8>>), KeyTextError> {
    let rest = text.trim().strip_prefix(prefix).and_then(|rest| rest.strip_prefix(':'));
    let rest = rest.ok_or(KeyTextError::Prefix { expected: prefix })?;
    let body = rest.strip_suffix(':').ok_or(KeyTextError::Form)?;
    let (number, encoded) = body.split_once(':').ok_or(KeyTextError::Form)?;
    if encoded.contains(':') || encoded.len() > TEXT_BYTES_MAX {
        return Err(KeyTextError::Form);
    }
    let number = match number.as_bytes() {
        [b'0', digit @ b'0'..=b'9'] => digit - b'0',
        _ => return Err(KeyTextError::HashFunction),
    };
    let decoded = Zeroizing::new(Base64::decode_vec(encoded).map_err(|_| KeyTextError::Base64)?);
    let Some((key, crc)) = decoded.split_last_chunk::<CRC_BYTES>() else {
        return Err(KeyTextError::Length { found: 0, expected: "a key and its CRC-32" });
    };
    let (found, expected) = (u32::from_le_bytes(*crc), crc32(key));
    if found != expected {
        return Err(KeyTextError::Crc { found, expected });
    }
    Ok((number, Zeroizing::new(key.to_vec())))
}

/// The text of a key.
pub(crate) fn format(prefix: &str, number: u8, key: &[u8]) -> Zeroizing<String> {
    let mut bytes = Zeroizing::new(Vec::with_capacity(key.len() + CRC_BYTES));
    bytes.extend_from_slice(key);
    bytes.extend_from_slice(&crc32(key).to_le_bytes());
    let encoded = Zeroizing::new(Base64::encode_string(&bytes));
    Zeroizing::new(format!("{prefix}:{number:02}:{}:", encoded.as_str()))
}

fn crc32(bytes: &[u8]) -> u32 {
    u32::try_from(crc_fast::checksum(CrcAlgorithm::Crc32IsoHdlc, bytes)).expect("a CRC of 32 bits")
}
