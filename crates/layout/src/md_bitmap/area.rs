//! A bitmap with its bits, as it lies on a member.

use super::{BitmapSuper, SUPER_BYTES};
use crate::md_superblock::SuperblockError;

/// The unit in which a bitmap is written: changing one bit costs one page.
pub const PAGE_BYTES: usize = 4096;

/// A checked bitmap: its superblock and its bits.
#[derive(Clone, Debug)]
pub struct Bitmap {
    superblock: BitmapSuper,
    /// Superblock and bits, padded to whole pages. The superblock's bytes here are not used.
    bytes: Vec<u8>,
}

impl Bitmap {
    /// A bitmap whose bits are all set, or all clear.
    #[must_use]
    pub fn new(superblock: BitmapSuper, set: bool) -> Self {
        let bytes = to_usize(superblock.bitmap_bytes()).next_multiple_of(PAGE_BYTES);
        Self { superblock, bytes: vec![if set { 0xff } else { 0 }; bytes] }
    }

    /// Checks the superblock and takes the bits behind it. `uuid` and `room_bytes` are those of [`BitmapSuper::parse`].
    ///
    /// # Errors
    /// As [`BitmapSuper::parse`]; [`SuperblockError::Truncated`] if `bytes` are fewer than
    /// [`BitmapSuper::bitmap_bytes`].
    pub fn parse(bytes: &[u8], uuid: [u8; 16], room_bytes: u64) -> Result<Self, SuperblockError> {
        let superblock = BitmapSuper::parse(bytes, uuid, room_bytes)?;
        let needed = to_usize(superblock.bitmap_bytes());
        if bytes.len() < needed {
            return Err(SuperblockError::Truncated { found: bytes.len(), needed });
        }
        let mut bytes = bytes[..needed].to_vec();
        bytes.resize(needed.next_multiple_of(PAGE_BYTES), 0);
        Ok(Self { superblock, bytes })
    }

    /// Its superblock.
    #[must_use]
    pub fn superblock(&self) -> &BitmapSuper {
        &self.superblock
    }

    /// Its superblock, for changes.
    pub fn superblock_mut(&mut self) -> &mut BitmapSuper {
        &mut self.superblock
    }

    /// Whether a bit is set.
    ///
    /// # Panics
    /// If there is no such bit.
    #[must_use]
    pub fn is_set(&self, bit: u64) -> bool {
        let (byte, mask) = self.place(bit);
        self.bytes[byte] & mask != 0
    }

    /// Sets or clears a bit and returns the page that it is in.
    ///
    /// # Panics
    /// If there is no such bit.
    pub fn set(&mut self, bit: u64, on: bool) -> usize {
        let (byte, mask) = self.place(bit);
        if on {
            self.bytes[byte] |= mask;
        } else {
            self.bytes[byte] &= !mask;
        }
        byte / PAGE_BYTES
    }

    /// The bits that are set, in order.
    pub fn set_bits(&self) -> impl Iterator<Item = u64> + '_ {
        let bytes = (0u64..).zip(&self.bytes[SUPER_BYTES..]).filter(|(_, byte)| **byte != 0);
        let bits = bytes.flat_map(|(at, byte)| {
            (0..8).filter(move |bit| byte >> bit & 1 == 1).map(move |bit| at * 8 + bit)
        });
        let end = self.superblock.bits();
        bits.take_while(move |bit| *bit < end)
    }

    /// Sets every bit that is set in `other`, a bitmap of the same shape.
    pub fn unite(&mut self, other: &Self) {
        assert_eq!(self.bytes.len(), other.bytes.len(), "bitmaps of one shape");
        self.bytes[SUPER_BYTES..]
            .iter_mut()
            .zip(&other.bytes[SUPER_BYTES..])
            .for_each(|(own, other)| *own |= other);
    }

    /// Whether each bit stands for the same bytes in both.
    #[must_use]
    pub fn has_shape_of(&self, other: &Self) -> bool {
        let shape = |bitmap: &Self| {
            let superblock = &bitmap.superblock;
            (superblock.chunk_bytes(), superblock.sync_size(), superblock.mapping())
        };
        shape(self) == shape(other)
    }

    /// The number of pages of [`PAGE_BYTES`]. [`Bitmap::page`] may return less of the last one.
    #[must_use]
    pub fn pages(&self) -> usize {
        self.bytes.len() / PAGE_BYTES
    }

    /// The bytes to write at `page * PAGE_BYTES` from the start of the bitmap, on a device of logical blocks of
    /// `block_bytes`. The first page holds the superblock.
    #[must_use]
    pub fn page(&self, page: usize, block_bytes: usize) -> Vec<u8> {
        let end = to_usize(self.superblock.bitmap_bytes()).next_multiple_of(block_bytes);
        let range = page * PAGE_BYTES..((page + 1) * PAGE_BYTES).min(end.max(SUPER_BYTES));
        let mut bytes = self.bytes[range].to_vec();
        if page == 0 {
            bytes[..SUPER_BYTES].copy_from_slice(&self.superblock.encode());
        }
        bytes
    }

    fn place(&self, bit: u64) -> (usize, u8) {
        assert!(bit < self.superblock.bits(), "bit {bit} of {}", self.superblock.bits());
        let (byte, mask) = self.superblock.bit_place(bit);
        (to_usize(byte), mask)
    }
}

fn to_usize(bytes: u64) -> usize {
    usize::try_from(bytes).expect("a bitmap fits in memory")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::Sectors;

    fn bitmap(bits: u64, set: bool) -> Bitmap {
        Bitmap::new(BitmapSuper::new([7; 16], Sectors(bits * 8), 4096), set)
    }

    #[test]
    fn what_is_set_comes_back_from_its_pages() {
        let mut written = bitmap(100_000, false);
        for bit in [0, 7, 8, 30_719, 30_720, 99_999] {
            assert!(!written.is_set(bit));
            assert_eq!(written.set(bit, true), (256 + bit as usize / 8) / 4096);
        }
        written.set(8, false);
        let bytes: Vec<u8> = (0..written.pages()).flat_map(|page| written.page(page, 512)).collect();
        assert_eq!(bytes.len() as u64, written.superblock().bitmap_bytes().next_multiple_of(512));
        let read = Bitmap::parse(&bytes, [7; 16], bytes.len() as u64).unwrap();
        assert_eq!(read.set_bits().collect::<Vec<_>>(), [0, 7, 30_719, 30_720, 99_999]);
        assert!(read.has_shape_of(&written));
    }

    #[test]
    fn bits_beyond_the_last_are_not_bits() {
        let all = bitmap(13, true);
        assert_eq!(all.set_bits().collect::<Vec<_>>(), (0..13).collect::<Vec<_>>());
        assert!(std::panic::catch_unwind(|| all.is_set(13)).is_err());
        let short = all.page(0, 512);
        assert_eq!(short.len(), 512);
        assert!(matches!(
            Bitmap::parse(&short[..257], [7; 16], 4096),
            Err(SuperblockError::Truncated { .. })
        ));
    }

    #[test]
    fn two_bitmaps_unite() {
        let (mut one, mut other) = (bitmap(64, false), bitmap(64, false));
        one.set(3, true);
        other.set(60, true);
        one.unite(&other);
        assert_eq!(one.set_bits().collect::<Vec<_>>(), [3, 60]);
    }
}
