//! What every block of the array must hold. Only one request at a time uses a block, so that its contents are known
//! exactly.

use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

use engine::buffer::Gather;

use crate::random::mix;
use crate::workload::Request;

/// A block: the unit that carries its offset and generation.
pub(crate) const BLOCK: u64 = 4096;

const BUSY: u32 = 1 << 31;

/// The generation that each block holds; 0 is zeroes.
pub(crate) struct Expected {
    blocks: Box<[AtomicU32]>,
}

impl Expected {
    pub(crate) fn new(size: u64) -> Self {
        Expected { blocks: (0..size / BLOCK).map(|_| AtomicU32::new(0)).collect() }
    }

    /// Takes the blocks of a request. False, and nothing taken, if another request has one of them.
    pub(crate) fn take(&self, request: &Request) -> bool {
        let blocks = self.of(request);
        for (taken, block) in blocks.iter().enumerate() {
            if block.fetch_or(BUSY, SeqCst) & BUSY != 0 {
                for block in &blocks[..taken] {
                    block.fetch_and(!BUSY, SeqCst);
                }
                return false;
            }
        }
        true
    }

    /// Gives blocks back; after a write they hold the next generation.
    pub(crate) fn give_back(&self, request: &Request) {
        for block in self.of(request) {
            let generation = block.load(SeqCst) & !BUSY;
            block.store(if request.write { generation + 1 } else { generation }, SeqCst);
        }
    }

    /// Fills `data` with what a taken request writes.
    pub(crate) fn fill(&self, request: &Request, data: &mut [u8]) {
        let first = request.offset / BLOCK;
        for (block, part) in (first..).zip(data.chunks_exact_mut(BLOCK as usize)) {
            fill(block, self.generation(block) + 1, part);
        }
    }

    /// Compares what was read from `offset` on with what must be there.
    pub(crate) fn check(&self, offset: u64, data: &[u8]) -> Result<(), String> {
        let mut wanted = vec![0; BLOCK as usize];
        for (block, part) in (offset / BLOCK..).zip(data.chunks_exact(BLOCK as usize)) {
            let generation = self.generation(block);
            fill(block, generation, &mut wanted);
            if part != &wanted[..] {
                let word = |at: usize| u64::from_le_bytes(part[at..at + 8].try_into().expect("eight bytes"));
                return Err(format!(
                    "the block at {} should have generation {generation}; it says offset {}, generation {}",
                    block * BLOCK,
                    word(0),
                    word(8)
                ));
            }
        }
        Ok(())
    }

    /// Blocks written so far.
    pub(crate) fn written(&self) -> u64 {
        self.blocks.iter().filter(|block| block.load(SeqCst) & !BUSY > 0).count() as u64
    }

    fn generation(&self, block: u64) -> u32 {
        self.blocks[block as usize].load(SeqCst) & !BUSY
    }

    fn of(&self, request: &Request) -> &[AtomicU32] {
        let (first, count) = (request.offset / BLOCK, request.bytes / BLOCK);
        &self.blocks[first as usize..(first + count) as usize]
    }
}

/// Offset and generation, then words that follow from both.
fn fill(block: u64, generation: u32, data: &mut [u8]) {
    if generation == 0 {
        data.fill(0);
        return;
    }
    let seed = mix(block << 32 | u64::from(generation));
    for (at, word) in (0u64..).zip(data.chunks_exact_mut(8)) {
        let value = match at {
            0 => block * BLOCK,
            1 => u64::from(generation),
            _ => seed.wrapping_mul(at | 1).rotate_left(29),
        };
        word.copy_from_slice(&value.to_le_bytes());
    }
}

/// What was read, in one piece.
pub(crate) fn flat(gather: &Gather) -> Vec<u8> {
    let mut bytes = vec![0; gather.len()];
    gather.copy_to(&mut bytes);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stale_a_misplaced_and_a_torn_block_are_found() {
        let expected = Expected::new(8 * BLOCK);
        let request = Request { write: true, offset: 2 * BLOCK, bytes: 2 * BLOCK };
        let mut data = vec![0; 2 * BLOCK as usize];
        assert!(
            expected.take(&request)
                && !expected.take(&Request { offset: 3 * BLOCK, bytes: BLOCK, ..request })
        );
        expected.fill(&request, &mut data);
        assert!(expected.check(2 * BLOCK, &data).is_err(), "not there yet");
        expected.give_back(&request);
        assert_eq!(expected.check(2 * BLOCK, &data), Ok(()));
        assert!(expected.check(3 * BLOCK, &data[..BLOCK as usize]).is_err(), "misplaced");
        data[8191] ^= 1;
        assert!(expected.check(2 * BLOCK, &data).unwrap_err().contains("at 12288"), "torn");
        assert_eq!(expected.check(0, &vec![0; BLOCK as usize]), Ok(()));
        assert_eq!(expected.written(), 2);
    }
}
