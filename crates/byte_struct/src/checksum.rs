//! CRC-32C, the checksum of Twill's own formats and the digest of NVMe over TCP.

use crc_fast::CrcAlgorithm::Crc32Iscsi;

/// CRC-32C over bytes that arrive in pieces.
#[derive(Debug)]
pub struct Checksum(crc_fast::Digest);

impl Default for Checksum {
    fn default() -> Self {
        Checksum(crc_fast::Digest::new(Crc32Iscsi))
    }
}

impl Checksum {
    /// Adds the next bytes.
    pub fn add(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// The checksum of all bytes so far.
    #[must_use]
    pub fn value(&self) -> u32 {
        self.0.finalize() as u32
    }

    /// The checksum of these bytes.
    #[must_use]
    pub fn of(bytes: &[u8]) -> u32 {
        crc_fast::checksum(Crc32Iscsi, bytes) as u32
    }

    /// The checksum of these bytes, the four of them at `at` as 0: of a structure that holds its own checksum there.
    ///
    /// # Panics
    /// If there are no four bytes at `at`.
    #[must_use]
    pub fn without(bytes: &[u8], at: usize) -> u32 {
        let mut sum = Checksum::default();
        sum.add(&bytes[..at]);
        sum.add(&[0; 4]);
        sum.add(&bytes[at + 4..]);
        sum.value()
    }

    /// Writes that checksum to its place in the structure, which is complete but for it.
    ///
    /// # Panics
    /// If there are no four bytes at `at`.
    pub fn seal(bytes: &mut [u8], at: usize) {
        let sum = Checksum::without(bytes, at);
        bytes[at..at + 4].copy_from_slice(&sum.to_le_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_value_in_one_piece_and_in_several() {
        // RFC 3720, B.4: 32 bytes of zeroes; and the check value of the algorithm.
        assert_eq!(Checksum::of(&[0; 32]), 0x8a91_36aa);
        let mut sum = Checksum::default();
        sum.add(b"1234");
        sum.add(b"56789");
        assert_eq!(sum.value(), 0xe306_9283);
        assert_eq!(
            Checksum::without(&[7; 32], 3),
            Checksum::of(&[[7; 3].as_slice(), &[0; 4], &[7; 25]].concat())
        );
        let mut sealed = [7; 32];
        Checksum::seal(&mut sealed, 3);
        assert_eq!(sealed[3..7], Checksum::without(&sealed, 3).to_le_bytes());
    }
}
