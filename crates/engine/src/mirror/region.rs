//! The two units of a mirror: regions, which a write owns, and runs, which are contiguous on each member that holds a copy.

use smallvec::SmallVec;
use std::ops::Range;

use crate::code::rows::{Rows, cut_at_blocks};
use crate::error::VolumeError;
use crate::limits::{BLOCK_BYTES, REGION_BYTES};
use crate::members::port::MemberRead;
use crate::stripe::stripe_table::Claim;
use crate::stripe::unit_number::UnitNumber;
use layout::geometry::{CopyPlace, Geometry};
use layout::units::ArrayOffset;

/// A region, by its number: [`REGION_BYTES`] of the array.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Region(pub(crate) u64);

impl Region {
    /// The region of a byte of the array.
    pub(super) fn of(offset: ArrayOffset) -> Self {
        Region(offset.get() / REGION_BYTES)
    }

    /// The regions from this one to `last`.
    pub(super) fn to(self, last: Region) -> impl Iterator<Item = Region> {
        (self.0..=last.0).map(Region)
    }

    /// The bytes of the array in the region.
    pub(super) fn bytes(self, array_bytes: u64) -> Range<ArrayOffset> {
        let end = ((self.0 + 1) * REGION_BYTES).min(array_bytes);
        ArrayOffset::new(self.0 * REGION_BYTES)..ArrayOffset::new(end)
    }
}

impl From<Region> for UnitNumber {
    fn from(region: Region) -> Self {
        UnitNumber::new(region.0)
    }
}

/// A region, and the proof that the caller owns it. Dropping it releases the region.
pub(super) struct OwnedRegion(Claim);

impl OwnedRegion {
    /// The region of a claim: the stripe table knows regions by their numbers.
    pub(super) fn of(claim: Claim) -> Self {
        OwnedRegion(claim)
    }

    pub(super) fn region(&self) -> Region {
        Region(self.0.unit().get())
    }
}

/// A part of the array that is contiguous on each member that holds a copy.
pub(super) struct Run {
    /// From the start of the array.
    pub(super) offset: ArrayOffset,
    pub(super) places: SmallVec<[CopyPlace; 4]>,
    pub(super) bytes: usize,
}

impl Run {
    /// A part of it.
    pub(super) fn part(&self, start: usize, bytes: usize) -> Run {
        let mut places = self.places.clone();
        places.iter_mut().for_each(|place| place.member_offset += start as u64);
        Run { offset: self.offset + start as u64, places, bytes }
    }

    /// The run cut at block boundaries, as ranges counted from its start.
    pub(super) fn blocks(&self) -> impl Iterator<Item = Rows> + use<> {
        // Chunks are whole blocks, so every copy has its block boundaries at the same offsets.
        let first = (self.places[0].member_offset.get() % BLOCK_BYTES as u64) as u32;
        let end = first + u32::try_from(self.bytes).expect("a request is below 4 GiB");
        cut_at_blocks(Rows { start: first, end })
            .map(move |rows| Rows { start: rows.start - first, end: rows.end - first })
    }

    /// The member read of one copy.
    pub(super) fn read_of(&self, place: &CopyPlace) -> MemberRead {
        MemberRead { slot: place.member, offset: place.member_offset, bytes: self.bytes }
    }
}

/// A range of the array, cut where its copies move to other members.
pub(super) fn runs(geometry: &Geometry, offset: ArrayOffset, bytes: u64) -> SmallVec<[Run; 1]> {
    let mut runs = SmallVec::new();
    let mut at = offset;
    while at < offset + bytes {
        let copies = geometry.copies(at, offset + bytes - at);
        let length = usize::try_from(copies.len).expect("a request fits in memory");
        runs.push(Run { offset: at, places: copies.places.into_iter().collect(), bytes: length });
        at += copies.len;
    }
    runs
}

/// How many regions an array has.
pub(crate) fn region_count(geometry: &Geometry) -> u64 {
    geometry.array_bytes().div_ceil(REGION_BYTES)
}

/// The runs of an owned region.
pub(super) fn runs_of(region: &OwnedRegion, geometry: &Geometry) -> SmallVec<[Run; 1]> {
    let range = region.region().bytes(geometry.array_bytes());
    runs(geometry, range.start, range.end - range.start)
}

/// The first and the last region that a range touches.
pub(super) fn regions(offset: ArrayOffset, bytes: u64) -> (Region, Region) {
    (Region::of(offset), Region::of(offset + (bytes - 1)))
}

pub(super) fn no_copy(places: &[CopyPlace]) -> VolumeError {
    let members: Vec<String> = places.iter().map(|place| place.member.to_string()).collect();
    VolumeError::Io { reason: format!("no copy is left: members {} are missing", members.join(", ")) }
}
