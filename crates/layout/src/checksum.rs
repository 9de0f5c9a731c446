//! CRC-32C, the checksum of Twill's own formats.

/// CRC-32C over bytes that arrive in pieces.
#[derive(Debug)]
pub struct Checksum(crc_fast::Digest);

impl Default for Checksum {
    fn default() -> Self {
        Checksum(crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc32Iscsi))
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
        let mut sum = Checksum::default();
        sum.add(bytes);
        sum.value()
    }
}
