//! What a block of a generation holds, and which generation a block is.

/// What blocks are made of, in bytes; the smallest write, too.
pub const BLOCK_BYTES: usize = 4096;
const MAGIC: u64 = 0x6b63_6f6c_622d_7774;
/// Alignment that direct I/O asks for on every device here.
const ALIGNMENT: usize = 4096;

/// Contents by seed, block and generation.
#[derive(Clone, Copy)]
pub struct Content {
    pub seed: u64,
}

impl Content {
    /// Fills `bytes` with blocks from `first` on, one of each of `generations`.
    pub fn fill(self, bytes: &mut [u8], first: u32, generations: &[u32]) {
        for ((block, bytes), &generation) in
            (first..).zip(bytes.chunks_exact_mut(BLOCK_BYTES)).zip(generations)
        {
            for (word, value) in bytes.chunks_exact_mut(8).zip(self.words(block, generation)) {
                word.copy_from_slice(&value.to_le_bytes());
            }
        }
    }

    /// The generation of what is there, or what is there instead.
    pub fn generation(self, bytes: &[u8], block: u32) -> Result<u32, String> {
        let word = |at: usize| u64::from_le_bytes(bytes[at * 8..at * 8 + 8].try_into().expect("eight bytes"));
        if bytes.iter().all(|&byte| byte == 0) {
            return Err("zeroes".into());
        }
        if word(0) != MAGIC ^ self.seed {
            return Err("foreign data".into());
        }
        let (there, generation) = ((word(1) >> 32) as u32, word(1) as u32);
        if there != block {
            return Err(format!("block {there} of generation {generation}"));
        }
        let differs = |(at, value): (usize, u64)| word(at) != value;
        match (0..BLOCK_BYTES / 8).zip(self.words(block, generation)).position(differs) {
            Some(at) => Err(format!("generation {generation}, and from byte {} on something else", at * 8)),
            None => Ok(generation),
        }
    }

    fn words(self, block: u32, generation: u32) -> impl Iterator<Item = u64> {
        let name = u64::from(block) << 32 | u64::from(generation);
        let mut word = name.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ self.seed | 1;
        let noise = std::iter::from_fn(move || {
            word ^= word << 13;
            word ^= word >> 7;
            word ^= word << 17;
            Some(word)
        });
        [MAGIC ^ self.seed, name].into_iter().chain(noise).take(BLOCK_BYTES / 8)
    }
}

/// Bytes that direct I/O takes.
pub struct AlignedBuffer {
    bytes: Vec<u8>,
    start: usize,
    length: usize,
}

impl AlignedBuffer {
    pub fn new(length: usize) -> Self {
        let bytes = vec![0; length + ALIGNMENT];
        let start = bytes.as_ptr().align_offset(ALIGNMENT);
        Self { bytes, start, length }
    }

    pub fn bytes(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..self.start + self.length]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_tells_its_generation_and_what_is_not_whole_is_told() {
        let content = Content { seed: 3 };
        let mut bytes = vec![0; 2 * BLOCK_BYTES];
        content.fill(&mut bytes, 10, &[4, 5]);
        let (first, second) = bytes.split_at_mut(BLOCK_BYTES);
        assert_eq!(content.generation(first, 10), Ok(4));
        assert_eq!(content.generation(second, 11), Ok(5));
        assert!(content.generation(second, 12).unwrap_err().contains("block 11"));
        assert!(Content { seed: 4 }.generation(second, 11).is_err());
        first[2048..].copy_from_slice(&second[2048..]);
        assert!(content.generation(first, 10).unwrap_err().contains("byte 2048"));
    }
}
