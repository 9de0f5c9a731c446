//! Mutations of good inputs, for tests of everything that reads bytes from members, other machines, files and people.

#[path = "corpus.rs"]
mod corpus;

const MUTATIONS: u64 = 2000;

struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % n.max(1)
    }
}

/// Feeds `entry` each good input, and then mutations of it: flipped bits, words that are often wrong, cut ends.
/// What a fuzzer kept under `name` comes first.
pub fn mutate(name: &str, seeds: &[Vec<u8>], entry: fn(&[u8])) {
    corpus::run(name, seeds, entry);
    const WORDS: [u64; 8] = [0, 1, 0x7f, 0xff, 0x7fff_ffff, 0xffff_ffff, 1 << 63, u64::MAX];
    let mut random = Random(1);
    for seed in seeds {
        entry(seed);
        for _ in 0..MUTATIONS {
            let mut bytes = seed.clone();
            for _ in 0..1 + random.below(4) {
                // Most often the first fields; now and then anything.
                let reach = if random.below(4) == 0 { bytes.len() } else { bytes.len().min(320) };
                let at = random.below(reach);
                let width = [1, 2, 4, 8][random.below(4)].min(bytes.len() - at);
                match random.below(4) {
                    0 => bytes[at] ^= 1 << random.below(8),
                    1 => bytes[at] = random.below(256) as u8,
                    _ => {
                        let word = WORDS[random.below(WORDS.len())].to_le_bytes();
                        bytes[at..at + width].copy_from_slice(&word[..width]);
                    }
                }
            }
            if random.below(16) == 0 {
                bytes.truncate(random.below(bytes.len()));
            }
            if bytes.is_empty() {
                continue;
            }
            entry(&bytes);
        }
    }
}
