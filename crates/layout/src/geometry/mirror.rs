//! Where the copies of RAID-1 and RAID-10 are.
//!
//! RAID-10's rules are those of `__raid10_find_phys`, `setup_geo` and `calc_sectors` in the kernel's
//! `drivers/md/raid10.c`; `tests/kernel.rs` holds them against what the kernel wrote.

use smallvec::SmallVec;

use super::error::GeometryError;
use super::level::{FarSets, Raid10Layout};
use crate::units::{MemberOffset, Slot};

/// Copies held in line; a layout with more copies than this uses the heap.
const COPIES_INLINE: usize = 4;

/// One copy of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CopyPlace {
    /// The member it is on.
    pub member: Slot,
    /// Where in the member's data area.
    pub member_offset: MemberOffset,
}

/// All copies of a run that is contiguous on every member that holds it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Copies {
    /// Where the copies are, each on a member of its own. The first is md's first choice.
    pub places: SmallVec<[CopyPlace; COPIES_INLINE]>,
    /// Bytes in the run.
    pub len: u64,
}

/// A RAID-10 layout on a given number of members of a given size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Raid10 {
    members: u32,
    near: u32,
    far: u32,
    offset: bool,
    /// Members that the far copies of a chunk rotate over.
    far_set_members: u32,
    /// Chunks of a member before its first far copy (`far`) or to the next row (`offset`).
    stride_chunks: u64,
    array_chunks: u64,
}

impl Raid10 {
    pub(super) fn new(layout: Raid10Layout, members: u32, member_chunks: u64) -> Result<Self, GeometryError> {
        let copies = layout.copies();
        if copies < 2 || copies > members {
            return Err(GeometryError::Copies { copies, members });
        }
        let (near, far) = (u32::from(layout.near), u32::from(layout.far));
        let far_set_members = match layout.far_sets {
            FarSets::None => members,
            FarSets::Old => members / far,
            FarSets::Fixed => far * near,
        };
        let row_chunks = member_chunks / u64::from(far);
        let array_chunks =
            row_chunks.checked_mul(u64::from(members)).ok_or(GeometryError::TooLarge)? / u64::from(near);
        let stride_chunks = if layout.offset { 1 } else { row_chunks };
        let geometry =
            Self { members, near, far, offset: layout.offset, far_set_members, stride_chunks, array_chunks };
        if layout.far_sets != FarSets::None || (near > 1 && far > 1) {
            geometry.check_no_collision(layout)?;
        }
        Ok(geometry)
    }

    /// Some combinations make the kernel put two chunks on one place: near copies that straddle the end of a row of
    /// offset copies, or of a far set. Such an array would lose data under md too.
    fn check_no_collision(&self, layout: Raid10Layout) -> Result<(), GeometryError> {
        // As many chunks as there are members fill whole rows, and then it all repeats further down.
        let chunks = self.array_chunks.min(u64::from(self.members));
        let mut places: Vec<(Slot, u64)> = (0..chunks).flat_map(|chunk| self.chunk_places(chunk)).collect();
        places.sort_unstable();
        places.dedup();
        let distinct = places.len() as u64 == chunks * u64::from(self.copies_count());
        let mirrored = (0..chunks).all(|chunk| {
            let places = self.chunk_places(chunk);
            places.iter().enumerate().all(|(i, place)| places[..i].iter().all(|other| other.0 != place.0))
        });
        if distinct && mirrored {
            return Ok(());
        }
        Err(GeometryError::CopiesCollide { layout, members: self.members })
    }

    pub(super) fn array_chunks(&self) -> u64 {
        self.array_chunks
    }

    pub(super) fn copies_count(&self) -> u32 {
        self.near * self.far
    }

    /// Whether a run goes on over the end of a chunk on the same members: every row is one chunk.
    pub(super) fn is_whole_mirror(&self) -> bool {
        self.near == self.members
    }

    /// Member and chunk row of each copy, in the kernel's order.
    pub(super) fn chunk_places(&self, array_chunk: u64) -> SmallVec<[(Slot, u64); COPIES_INLINE]> {
        let place = array_chunk * u64::from(self.near);
        let mut member = (place % u64::from(self.members)) as u32;
        let mut row = place / u64::from(self.members);
        if self.offset {
            row *= u64::from(self.far);
        }
        let mut places = SmallVec::new();
        for _ in 0..self.near {
            let mut far_member = member;
            let mut far_row = row;
            places.push((Slot::new(far_member), far_row));
            for _ in 1..self.far {
                far_member = self.far_member(far_member);
                far_row += self.stride_chunks;
                places.push((Slot::new(far_member), far_row));
            }
            member += 1;
            if member == self.members {
                member = 0;
                row += 1;
            }
        }
        places
    }

    /// The member with the next far copy of what `member` holds.
    fn far_member(&self, member: u32) -> u32 {
        let set = self.far_set_members;
        let next = member + self.near;
        let last_set_start = (self.members / set - 1) * set;
        let last_set_members = set + self.members % set;
        if !self.members.is_multiple_of(set) && next > last_set_start {
            (next - last_set_start) % last_set_members + last_set_start
        } else {
            next % set + member / set * set
        }
    }

    pub(super) fn survives(&self, failed: impl Fn(Slot) -> bool) -> bool {
        // The members of a chunk's copies repeat after at most as many chunks as there are members.
        (0..u64::from(self.members).min(self.array_chunks))
            .all(|chunk| self.chunk_places(chunk).iter().any(|(member, _)| !failed(*member)))
    }
}

/// The copies of a chunk run, as byte addresses.
pub(super) fn places_at(
    raid10: &Raid10,
    array_chunk: u64,
    chunk_bytes: u64,
    chunk_offset: u64,
) -> SmallVec<[CopyPlace; COPIES_INLINE]> {
    raid10
        .chunk_places(array_chunk)
        .into_iter()
        .map(|(member, row)| CopyPlace {
            member,
            member_offset: MemberOffset::new(row * chunk_bytes + chunk_offset),
        })
        .collect()
}
