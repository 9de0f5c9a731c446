//! Sparse contents of a device, cheap to copy, and what a block of it says.
//!
//! Every logical block that a client writes names the write it came from and its own address, and the rest of its
//! bytes follow from both. So a block read back is a whole one of a known write, zeroes, or wrong.

use std::rc::Rc;

/// The write a block came from. Zeroes are write 0.
pub(crate) type Content = u32;

const PAGE_BYTES: usize = 4096;
const MAGIC: u64 = 0x7e11_0000_0000_0000;
/// What a device holds that was never part of the array.
const FOREIGN: u64 = 0xdead_0000_0000_0000;

/// Fills `block` (its address is `number`) with what write `content` puts there.
pub(crate) fn fill(block: &mut [u8], number: u64, content: Content) {
    if content == 0 {
        block.fill(0);
        return;
    }
    paint(block, MAGIC | u64::from(content), number);
}

/// The write that a whole block came from, or None if it is torn, foreign, or of another address.
pub(crate) fn identify(block: &[u8], number: u64) -> Option<Content> {
    let head = word(block, 0);
    if head == 0 {
        return block.iter().all(|byte| *byte == 0).then_some(0);
    }
    if head & !u64::from(u32::MAX) != MAGIC || head == MAGIC {
        return None;
    }
    let mut expected = [0; PAGE_BYTES];
    let expected = &mut expected[..block.len()];
    paint(expected, head, number);
    (*block == *expected).then_some(head as u32)
}

/// What a block looks like, for a message.
pub(crate) fn describe(block: &[u8], number: u64) -> String {
    let (head, at) = (word(block, 0), word(block, 1));
    match identify(block, number) {
        Some(0) => "zeroes".to_string(),
        Some(content) => format!("write {content}"),
        None if head & !u64::from(u32::MAX) == MAGIC && at == number => {
            format!("a torn block that begins as write {}", head as u32)
        }
        None if head & !u64::from(u32::MAX) == MAGIC => format!("block {at} of write {}", head as u32),
        None if head & (0xffff << 48) == FOREIGN => format!("what device {} held before", head as u32),
        None => format!("garbage {head:016x} {at:016x}"),
    }
}

fn paint(block: &mut [u8], head: u64, number: u64) {
    let base = (head ^ number.wrapping_mul(0x9e37_79b9_7f4a_7c15)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mut value = base;
    for word in block.chunks_exact_mut(8) {
        word.copy_from_slice(&value.to_le_bytes());
        value = value.wrapping_add(0x94d0_49bb_1331_11eb);
    }
    block[..8].copy_from_slice(&head.to_le_bytes());
    block[8..16].copy_from_slice(&number.to_le_bytes());
}

fn word(block: &[u8], index: usize) -> u64 {
    u64::from_le_bytes(block[index * 8..index * 8 + 8].try_into().expect("eight bytes"))
}

/// Contents by page; a page never written is zeroes, or foreign if the device came from elsewhere.
#[derive(Clone)]
pub(crate) struct Pages {
    pages: Vec<Option<Rc<[u8; PAGE_BYTES]>>>,
    foreign: Option<u32>,
}

impl Pages {
    pub(crate) fn new(bytes: u64, foreign: Option<u32>) -> Self {
        let count = usize::try_from(bytes.div_ceil(PAGE_BYTES as u64)).expect("a small device");
        Pages { pages: vec![None; count], foreign }
    }

    /// Whether the range was never written and is zeroes.
    pub(crate) fn untouched(&self, offset: u64, bytes: u64) -> bool {
        let pages = offset / PAGE_BYTES as u64..(offset + bytes).div_ceil(PAGE_BYTES as u64);
        self.foreign.is_none() && pages.into_iter().all(|page| self.pages[page as usize].is_none())
    }

    /// The first byte of the first page in which both differ.
    pub(crate) fn differs(&self, other: &Pages) -> Option<u64> {
        let (mut own, mut others) = ([0; PAGE_BYTES], [0; PAGE_BYTES]);
        let differs = |page: &u64| {
            self.read(page * PAGE_BYTES as u64, &mut own);
            other.read(page * PAGE_BYTES as u64, &mut others);
            own != others
        };
        let page = (0..self.pages.len() as u64).find(differs);
        page.map(|page| page * PAGE_BYTES as u64)
    }

    pub(crate) fn read(&self, offset: u64, target: &mut [u8]) {
        for (page, start, range) in spans(offset, target.len()) {
            let target = &mut target[range];
            match (&self.pages[page], self.foreign) {
                (Some(bytes), _) => target.copy_from_slice(&bytes[start..start + target.len()]),
                (None, None) => target.fill(0),
                (None, Some(device)) => {
                    target.copy_from_slice(&foreign_page(device, page)[start..start + target.len()]);
                }
            }
        }
    }

    pub(crate) fn write(&mut self, offset: u64, source: &[u8]) {
        for (page, start, range) in spans(offset, source.len()) {
            let source = &source[range];
            self.page(page)[start..start + source.len()].copy_from_slice(source);
        }
    }

    pub(crate) fn zero(&mut self, offset: u64, bytes: u64) {
        for (page, start, range) in spans(offset, bytes as usize) {
            if self.pages[page].is_some() || self.foreign.is_some() {
                self.page(page)[start..start + range.len()].fill(0);
            }
        }
    }

    fn page(&mut self, page: usize) -> &mut [u8; PAGE_BYTES] {
        let foreign = self.foreign;
        Rc::make_mut(self.pages[page].get_or_insert_with(|| match foreign {
            Some(device) => Rc::new(foreign_page(device, page)),
            None => Rc::new([0; PAGE_BYTES]),
        }))
    }
}

fn foreign_page(device: u32, page: usize) -> [u8; PAGE_BYTES] {
    let mut bytes = [0; PAGE_BYTES];
    for (index, block) in bytes.chunks_exact_mut(512).enumerate() {
        paint(block, FOREIGN | u64::from(device), (page * 8 + index) as u64);
    }
    bytes
}

/// Page, start in the page and range of the request, piece by piece.
fn spans(offset: u64, bytes: usize) -> impl Iterator<Item = (usize, usize, std::ops::Range<usize>)> {
    let mut done = 0;
    std::iter::from_fn(move || {
        if done == bytes {
            return None;
        }
        let at = offset as usize + done;
        let (page, start) = (at / PAGE_BYTES, at % PAGE_BYTES);
        let length = (PAGE_BYTES - start).min(bytes - done);
        done += length;
        Some((page, start, done - length..done))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_says_where_it_came_from() {
        for bytes in [512, 4096] {
            let mut block = vec![0; bytes];
            assert_eq!(identify(&block, 7), Some(0));
            fill(&mut block, 7, 3);
            assert_eq!((identify(&block, 7), identify(&block, 8)), (Some(3), None));
            block[bytes - 1] ^= 1;
            assert_eq!(identify(&block, 7), None);
            assert!(describe(&block, 7).contains("torn"));
        }
    }

    #[test]
    fn pages_hold_what_was_written() {
        let mut pages = Pages::new(3 * 4096, Some(9));
        pages.write(4000, &[7; 200]);
        pages.zero(4100, 50);
        let mut bytes = vec![1; 300];
        pages.read(3950, &mut bytes);
        assert_eq!((bytes[50], bytes[149], bytes[150], bytes[199], bytes[249]), (7, 7, 0, 0, 7));
        assert!(!pages.untouched(8192, 512));
        let mut block = vec![0; 512];
        pages.read(8192, &mut block);
        assert!(describe(&block, 0).contains("device 9"));
    }
}
