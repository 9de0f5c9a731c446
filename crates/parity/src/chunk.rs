//! What operations are given: chunks, as a caller or as a kernel sees them.

/// Every length is a multiple of this many bytes.
pub const ALIGNMENT: usize = 64;

/// The most data chunks of a stripe. Q could tell 255 apart; Linux md stops at 254.
pub const DATA_CHUNKS_MAX: usize = 254;

/// A data chunk before and after a write.
#[derive(Clone, Copy, Debug)]
pub struct Change<'a> {
    /// The chunk's place in the stripe: its coefficient in Q is g^`index`.
    pub index: usize,
    /// What the chunk held.
    pub old: &'a [u8],
    /// What the chunk will hold.
    pub new: &'a [u8],
}

/// A source of bytes, with or without its index.
pub(crate) trait Chunk {
    fn bytes(&self) -> &[u8];
}

impl Chunk for &[u8] {
    #[inline(always)]
    fn bytes(&self) -> &[u8] {
        self
    }
}

impl Chunk for (usize, &[u8]) {
    #[inline(always)]
    fn bytes(&self) -> &[u8] {
        self.1
    }
}
