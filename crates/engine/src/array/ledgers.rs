//! After a host's death with all members there: which stripes it had under way, as the members' targets have recorded it
//! ([`crate::fabric::ledger`]), and parity for those. Without it a resync does all that the bitmap marks.

use layout::geometry::Geometry;
use layout::md_superblock::Superblock;
use layout::redo_log::StripeRange;
use layout::units::{Slot, Stripe};

use crate::device::Device;
use crate::events::Event;
use crate::executor::join_all;
use crate::fabric::ledger::Listed;
use crate::in_place::InPlace;
use crate::stripe::ranges::join;

/// Most stripes that are made to agree before the array is served; with more a resync does them beside clients.
const STRIPES_MAX: u64 = 16 << 10;
/// Stripes that are made to agree at a time: their round trips overlap.
const AT_ONCE: usize = 32;

/// Why ledgers are not used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotUsed {
    /// The array was stopped cleanly.
    #[error("the array was stopped cleanly, and nothing awaits a resync")]
    Clean,
    /// A member is missing or not in sync, the redo log tells of the writes, or the start is read-only or forced.
    #[error(
        "a member is missing or not in sync, the redo log tells of the writes, or the start is read-only or forced"
    )]
    Otherwise,
    /// A member's target has none that is complete.
    #[error("the target of member {0} has no complete record of the former host's writes")]
    None(Slot),
    /// Those of two members were not begun together.
    #[error("the records at the targets of members {0} and {1} are of different times")]
    Different(Slot, Slot),
    /// One does not cover the member's data.
    #[error("the record at the target of member {0} is about another part of it")]
    OtherPlace(Slot),
    /// There are too many for a start.
    #[error("{0} stripes were under way, which a resync does beside clients")]
    TooMany(u64),
}

/// The stripes of which the former host had changed something, ascending. F-I14: only if the ledgers are complete, of every member,
/// and one.
pub(in crate::array) fn stripes_under_way(
    geometry: &Geometry,
    superblocks: &[Option<Superblock>],
    found: &[Option<Listed>],
) -> Result<Vec<StripeRange>, NotUsed> {
    let (member_bytes, chunk_bytes) = (geometry.member_bytes(), u64::from(geometry.chunk_bytes()));
    let mut first: Option<(Slot, u64)> = None;
    let mut all = Vec::new();
    for (slot, superblock) in Slot::all().zip(superblocks) {
        let listed = found.get(slot.index()).and_then(Option::as_ref).ok_or(NotUsed::None(slot))?;
        let (other, id) = *first.get_or_insert((slot, listed.id));
        if listed.id != id {
            return Err(NotUsed::Different(other, slot));
        }
        let start = superblock.as_ref().ok_or(NotUsed::None(slot))?.data_start().get();
        if listed.area.start > start || listed.area.end < start + member_bytes {
            return Err(NotUsed::OtherPlace(slot));
        }
        let of_member = |at: u64| at.saturating_sub(start).min(member_bytes);
        let stripes = listed.ranges.iter().map(|range| {
            let (from, to) = (of_member(range.start), of_member(range.end));
            StripeRange { first: from / chunk_bytes, end: to.div_ceil(chunk_bytes) }
        });
        all.extend(stripes.filter(|range| range.first < range.end));
    }
    all.sort_unstable();
    let all = join(all);
    let count = all.iter().map(|range| range.end - range.first).sum();
    if count > STRIPES_MAX { Err(NotUsed::TooMany(count)) } else { Ok(all) }
}

/// Makes the parity of these stripes from their data, on disk. It may be cut short anywhere: it ends the ledgers, and a resync is
/// due. False if it could not be made, as then.
pub(in crate::array) async fn make_agree<D: Device>(set: &InPlace<D>, stripes: &[StripeRange]) -> bool {
    let each: Vec<Stripe> =
        stripes.iter().flat_map(|range| (range.first..range.end).map(Stripe::new)).collect();
    for some in each.chunks(AT_ONCE) {
        let made = join_all(some.iter().map(|stripe| Box::pin(set.resync_stripe(*stripe)))).await;
        if made.iter().any(Result::is_err) {
            return false;
        }
    }
    if !each.is_empty() && set.flush_members().await.is_err() {
        return false;
    }
    set.shared.members.report(Event::LedgersUsed { stripes: each.len() as u64 });
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use layout::geometry::{Layout, Level};
    use layout::md_superblock::{DeviceRole, MinorVersion, NewArray, NewBitmap, NewMember};

    const CHUNK: u64 = 64 << 10;

    type Found = (Geometry, Vec<Option<Superblock>>, Vec<Option<Listed>>);

    /// An array of three members whose targets list the same places of their data.
    fn found(id: u64, ranges: &[std::ops::Range<u64>]) -> Found {
        let (level, member_bytes) = (Level::Raid5, 16 << 20);
        let layout = Layout::default_for(level);
        let geometry = Geometry::new(level, layout, 3, CHUNK as u32, member_bytes).unwrap();
        let array = NewArray {
            minor: MinorVersion::V1_2,
            chunk_bytes: CHUNK as u32,
            member_bytes: Some(member_bytes),
            bitmap: NewBitmap::None,
            ..NewArray::new([7; 16], level, 3)
        };
        let member = |slot: u16| NewMember {
            device_bytes: 64 << 20,
            device_uuid: [slot as u8 + 1; 16],
            role: DeviceRole::Active(Slot::new(slot.into())),
        };
        let members: Vec<_> = (0..3).map(member).collect();
        let superblocks: Vec<_> = array.create(&members).unwrap().superblocks.into_iter().map(Some).collect();
        let listed = |superblock: &Option<Superblock>| {
            let start = superblock.as_ref().unwrap().data_start().get();
            let ranges = ranges.iter().map(|range| start + range.start..start + range.end).collect();
            Some(Listed { id, area: start..start + (16 << 20), ranges })
        };
        let all = superblocks.iter().map(listed).collect();
        (geometry, superblocks, all)
    }

    #[test]
    fn stripes_of_all_members_count_once() {
        let (geometry, superblocks, mut all) = found(5, &[0..4096, 3 * CHUNK - 512..3 * CHUNK + 512]);
        all[2].as_mut().unwrap().ranges.push(u64::MAX - 10..u64::MAX);
        let stripes = stripes_under_way(&geometry, &superblocks, &all);
        let range = |first, end| StripeRange { first, end };
        assert_eq!(stripes, Ok(vec![range(0, 1), range(2, 4)]));
    }

    #[test]
    fn what_is_not_complete_or_not_of_one_time_or_elsewhere_is_not_used() {
        let slot = |number| Slot::all().nth(number).unwrap();
        let (geometry, superblocks, all) = found(5, &[0..4096, 8192..12288]);
        let with = |change: fn(&mut Vec<Option<Listed>>)| {
            let mut all = all.clone();
            change(&mut all);
            stripes_under_way(&geometry, &superblocks, &all)
        };
        assert_eq!(with(|all| all[1] = None), Err(NotUsed::None(slot(1))));
        assert_eq!(with(|all| _ = all.pop()), Err(NotUsed::None(slot(2))));
        assert_eq!(with(|all| all[1].as_mut().unwrap().id = 6), Err(NotUsed::Different(slot(0), slot(1))));
        assert_eq!(with(|all| all[0].as_mut().unwrap().area.end -= 512), Err(NotUsed::OtherPlace(slot(0))));
        assert_eq!(with(|all| all[0].as_mut().unwrap().area.start += 512), Err(NotUsed::OtherPlace(slot(0))));
    }
}
