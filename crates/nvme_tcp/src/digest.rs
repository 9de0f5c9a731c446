//! CRC-32C of headers and of data.

use crc_fast::CrcAlgorithm::Crc32Iscsi;

/// Bytes of a digest on the wire.
pub const DIGEST_BYTES: usize = 4;

/// CRC-32C over bytes that arrive in pieces.
#[derive(Debug)]
pub struct Digest(crc_fast::Digest);

impl Default for Digest {
    fn default() -> Self {
        Digest(crc_fast::Digest::new(Crc32Iscsi))
    }
}

impl Digest {
    /// Adds the next bytes.
    pub fn add(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// The digest of all bytes so far.
    #[must_use]
    pub fn value(&self) -> u32 {
        self.0.finalize() as u32
    }

    /// The digest of these bytes.
    #[must_use]
    pub fn of(bytes: &[u8]) -> u32 {
        crc_fast::checksum(Crc32Iscsi, bytes) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_value_in_one_piece_and_in_several() {
        // RFC 3720, B.4: 32 bytes of zeroes; and the check value of the algorithm.
        assert_eq!(Digest::of(&[0; 32]), 0x8a91_36aa);
        let mut digest = Digest::default();
        digest.add(b"1234");
        digest.add(b"56789");
        assert_eq!(digest.value(), 0xe306_9283);
    }
}
