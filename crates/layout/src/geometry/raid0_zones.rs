//! RAID-0 over members of different sizes: zones, each striped over the members that reach that far.
//!
//! The rules are those of `create_strip_zones` and `map_sector` in the kernel's `drivers/md/raid0.c`.

use super::Geometry;
use super::error::GeometryError;
use super::level::{Layout, Level};
use super::limits::{check_chunk, check_members, raid0_member_share};
use crate::units::{ArrayOffset, MemberOffset, Slot};

/// A RAID-0 whose members may differ in size.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Raid0Zones {
    chunk_bytes: u64,
    layout: Layout,
    array_bytes: u64,
    zones: Vec<Zone>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Zone {
    /// Where the zone begins, in the array and on each of its members.
    array_chunk: u64,
    member_chunk: u64,
    /// Where it ends in the array.
    array_chunk_end: u64,
    /// The members that reach into it, in the array's order.
    members: Vec<Slot>,
}

impl Raid0Zones {
    /// Zones over members with data areas of `member_bytes`, each rounded down to chunks.
    ///
    /// # Errors
    /// As [`super::Geometry::new`]; [`GeometryError::ZonesNeedLayout`] if there is more than one zone and `layout`
    /// does not say which of md's two rules places them.
    pub fn new(layout: Layout, chunk_bytes: u32, member_bytes: &[u64]) -> Result<Self, GeometryError> {
        let level = Level::Raid0;
        if !layout.fits(level) {
            return Err(GeometryError::UnknownLayout { level, layout: layout.to_string() });
        }
        check_members(level, layout, u32::try_from(member_bytes.len()).unwrap_or(u32::MAX))?;
        check_chunk(level, chunk_bytes)?;
        let chunks: Vec<u64> = member_bytes.iter().map(|bytes| bytes / u64::from(chunk_bytes)).collect();
        if let Some(short) = chunks.iter().position(|chunks| *chunks == 0) {
            return Err(GeometryError::MemberTooSmall { member_bytes: member_bytes[short], chunk_bytes });
        }
        let total = member_bytes.iter().try_fold(0u64, |sum, bytes| sum.checked_add(*bytes));
        if total.is_none_or(|total| total > i64::MAX as u64) {
            return Err(GeometryError::TooLarge);
        }
        let zones = zones_over(&chunks);
        if zones.len() > 1 && layout == Layout::Unset {
            return Err(GeometryError::ZonesNeedLayout);
        }
        let share = |chunks: &u64| raid0_member_share(chunks * u64::from(chunk_bytes), chunk_bytes);
        let array_bytes = chunks.iter().map(share).sum();
        Ok(Self { chunk_bytes: u64::from(chunk_bytes), layout, array_bytes, zones })
    }

    /// The one zone of a RAID-0 whose members are all of the size that its geometry says.
    #[must_use]
    pub fn of_equal(geometry: &Geometry) -> Self {
        let chunks = geometry.member_bytes() / u64::from(geometry.chunk_bytes());
        Self {
            chunk_bytes: u64::from(geometry.chunk_bytes()),
            layout: geometry.layout(),
            array_bytes: geometry.array_bytes(),
            zones: zones_over(&vec![chunks; geometry.members() as usize]),
        }
    }

    /// The array's geometry, apart from where the chunks of later zones are.
    #[must_use]
    pub fn geometry(&self) -> Geometry {
        let members = self.zones.first().map_or(0, |zone| zone.members.len() as u32);
        let last = self.zones.last().expect("an array has a zone");
        let width = last.members.len() as u64;
        let member_chunks = last.member_chunk + (last.array_chunk_end - last.array_chunk) / width;
        Geometry {
            level: Level::Raid0,
            layout: self.layout,
            members,
            chunk_bytes: self.chunk_bytes as u32,
            member_bytes: member_chunks * self.chunk_bytes,
            array_bytes: self.array_bytes,
            data_chunks: members,
            raid10: None,
        }
    }

    /// Bytes that a user of the array sees.
    #[must_use]
    pub fn array_bytes(&self) -> u64 {
        self.array_bytes
    }

    /// Zones; 1 if the members are equal.
    #[must_use]
    pub fn zones(&self) -> usize {
        self.zones.len()
    }

    /// Member, offset in its data area and bytes up to the end of the chunk, for a byte of the array.
    ///
    /// # Panics
    /// If `array_offset` is beyond the end of the array.
    #[must_use]
    pub fn locate(&self, array_offset: ArrayOffset) -> (Slot, MemberOffset, u64) {
        let array_offset = array_offset.get();
        assert!(array_offset < self.array_bytes, "offset {array_offset} is beyond the end of the array");
        let array_chunk = array_offset / self.chunk_bytes;
        let chunk_offset = array_offset % self.chunk_bytes;
        let after = self.zones.partition_point(|zone| zone.array_chunk_end <= array_chunk);
        let zone = self.zones.get(after).expect("the zones reach at least to the end of the array");
        let width = zone.members.len() as u64;
        let zone_chunk = array_chunk - zone.array_chunk;
        // Before 3.14 the member came from the array's chunk, not the zone's: data would be elsewhere.
        let turn = if self.layout == Layout::Raid0Original { array_chunk } else { zone_chunk };
        let member = zone.members[(turn % width) as usize];
        let member_chunk = zone.member_chunk + zone_chunk / width;
        let offset = MemberOffset::new(member_chunk * self.chunk_bytes + chunk_offset);
        (member, offset, self.chunk_bytes - chunk_offset)
    }
}

fn zones_over(chunks: &[u64]) -> Vec<Zone> {
    let mut ends = chunks.to_vec();
    ends.sort_unstable();
    ends.dedup();
    let mut zones = Vec::with_capacity(ends.len());
    let (mut array_chunk, mut member_chunk) = (0, 0);
    for end in ends {
        let reaches = |(slot, chunks): (Slot, &u64)| (*chunks > member_chunk).then_some(slot);
        let members: Vec<Slot> = Slot::all().zip(chunks).filter_map(reaches).collect();
        let array_chunk_end = array_chunk + (end - member_chunk) * members.len() as u64;
        zones.push(Zone { array_chunk, member_chunk, array_chunk_end, members });
        (array_chunk, member_chunk) = (array_chunk_end, end);
    }
    zones
}
