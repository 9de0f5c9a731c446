//! Which chunks of a stripe: data chunks by index, P and Q.

/// A chunk of a stripe: 0 to 253 is a data chunk by index, then come [`P`] and [`Q`].
pub type Chunk = u8;

/// The parity chunk P.
pub const P: Chunk = 254;
/// The parity chunk Q.
pub const Q: Chunk = 255;

/// The data chunk with this index.
pub(crate) fn data_chunk(index: u32) -> Chunk {
    let chunk = Chunk::try_from(index).expect("at most 254 data chunks");
    assert!(chunk < P, "at most 254 data chunks");
    chunk
}

/// A set of chunks of one stripe.
#[derive(Clone, Copy, PartialEq, Eq, Default, Hash)]
pub struct ChunkSet([u64; 4]);

impl ChunkSet {
    /// No chunk.
    pub const EMPTY: ChunkSet = ChunkSet([0; 4]);

    /// The data chunks 0 to `count` - 1.
    pub fn first(count: u32) -> Self {
        assert!(count <= u32::from(P), "at most 254 data chunks");
        let word = |w: u32| match count.saturating_sub(w * 64) {
            0 => 0,
            bits if bits >= 64 => u64::MAX,
            bits => (1 << bits) - 1,
        };
        ChunkSet([word(0), word(1), word(2), word(3)])
    }

    /// Just this chunk.
    pub fn one(chunk: Chunk) -> Self {
        let mut set = ChunkSet::EMPTY;
        set.insert(chunk);
        set
    }

    /// Adds `chunk`.
    pub fn insert(&mut self, chunk: Chunk) {
        self.0[usize::from(chunk >> 6)] |= 1 << (chunk & 63);
    }

    /// Whether `chunk` is in the set.
    pub fn contains(&self, chunk: Chunk) -> bool {
        self.0[usize::from(chunk >> 6)] >> (chunk & 63) & 1 == 1
    }

    /// Whether the set has no chunk.
    pub fn is_empty(&self) -> bool {
        self.0 == [0; 4]
    }

    /// How many chunks there are.
    pub fn len(&self) -> u32 {
        self.0.iter().map(|word| word.count_ones()).sum()
    }

    fn zip(self, other: ChunkSet, op: impl Fn(u64, u64) -> u64) -> ChunkSet {
        ChunkSet(std::array::from_fn(|i| op(self.0[i], other.0[i])))
    }

    /// Chunks in either set.
    pub fn or(self, other: ChunkSet) -> ChunkSet {
        self.zip(other, |a, b| a | b)
    }

    /// Chunks in both sets.
    pub fn and(self, other: ChunkSet) -> ChunkSet {
        self.zip(other, |a, b| a & b)
    }

    /// Chunks of this set that are not in `other`.
    pub fn without(self, other: ChunkSet) -> ChunkSet {
        self.zip(other, |a, b| a & !b)
    }

    /// The chunks in ascending order.
    pub fn iter(self) -> impl Iterator<Item = Chunk> {
        (0u8..4).flat_map(move |w| {
            let mut word = self.0[usize::from(w)];
            std::iter::from_fn(move || {
                let bit = u8::try_from(word.trailing_zeros()).ok().filter(|&bit| bit < 64)?;
                word &= word - 1;
                Some(w * 64 + bit)
            })
        })
    }
}

impl FromIterator<Chunk> for ChunkSet {
    fn from_iter<T: IntoIterator<Item = Chunk>>(chunks: T) -> Self {
        let mut set = ChunkSet::EMPTY;
        chunks.into_iter().for_each(|chunk| set.insert(chunk));
        set
    }
}

impl std::fmt::Debug for ChunkSet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let name = |chunk| match chunk {
            P => "P".to_string(),
            Q => "Q".to_string(),
            data => data.to_string(),
        };
        write!(f, "{{{}}}", self.iter().map(name).collect::<Vec<_>>().join(" "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_of_any_width() {
        for count in [0, 1, 63, 64, 65, 128, 254] {
            let set = ChunkSet::first(count);
            assert_eq!(set.len(), count);
            assert!(set.iter().map(u32::from).eq(0..count));
        }
        let set: ChunkSet = [3, 200, P, Q].into_iter().collect();
        assert_eq!(set.iter().collect::<Vec<_>>(), [3, 200, P, Q]);
        assert_eq!(set.without(ChunkSet::one(P)).and(ChunkSet::first(10)), ChunkSet::one(3));
    }
}
