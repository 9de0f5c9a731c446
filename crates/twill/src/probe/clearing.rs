//! What `--force` clears of a member's former contents, and what it leaves.

use std::ops::Range;

use layout::geometry::Level;
use layout::md_superblock::Superblock;

use super::signatures::Signature;

/// Cleared from the start of a member up to its data area, at most.
const HEAD_BYTES_MAX: u64 = 1 << 20;

/// What becomes of former contents under a new superblock.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Clearing {
    /// Ranges to clear, in bytes of the device. md superblocks are not among them: they are cleared wherever they are.
    pub ranges: Vec<Range<u64>>,
    /// What is cleared.
    pub erased: Vec<String>,
    /// What stays, and where: the data area is left alone, since `--assume-clean` relies on its contents.
    pub stays: Vec<String>,
}

impl Clearing {
    /// Decides for a member with this new superblock.
    pub fn of(found: &[Signature], superblock: &Superblock) -> Self {
        let mut clearing = Clearing::default();
        if found.is_empty() {
            return clearing;
        }
        let data = data_area(superblock);
        let head = 0..data.start.min(HEAD_BYTES_MAX);
        for Signature { words, place, is_md } in found {
            match place {
                _ if *is_md => clearing.erased.push(words.clone()),
                None => clearing.stays.push(format!("{words}, if it is not before the data area")),
                Some(place) if place.start < data.end && data.start < place.end => {
                    clearing.stays.push(format!("{words} at byte {}", place.start));
                }
                Some(place) => {
                    clearing.erased.push(words.clone());
                    if place.end > head.end {
                        clearing.ranges.push(place.clone());
                    }
                }
            }
        }
        clearing.erased.dedup();
        clearing.ranges.extend((!head.is_empty()).then_some(head));
        clearing
    }
}

/// What the array uses of the member for data and parity.
fn data_area(superblock: &Superblock) -> Range<u64> {
    let used = if superblock.level() == Level::Raid0 { superblock.data_size() } else { superblock.size() };
    let start = superblock.data_offset().bytes();
    start..start + used.bytes()
}
