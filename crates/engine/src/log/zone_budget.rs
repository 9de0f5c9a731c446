//! How many zones of a member are open or active at once (Z-I9): a pure count, asked before a zone is written that is not
//! active yet. Members whose drive has no limit take any number.
//!
//! Zones are opened by writing, never explicitly, so a zone that has data and is not full is active, and counts as open: the
//! drive may close it by itself, but the next write opens it again.

/// Zones that stay free for what must never wait: the superblock log, and a segment that takes over while another is being
/// closed.
const SUPERBLOCK_ZONES: u32 = 1;
const CHANGING_ZONES: u32 = 1;
/// Kept for recovery, which writes a stripe anew where its column has no room left.
const RECOVERY_ZONES: u32 = 1;

/// The smaller of a drive's limits of open and of active zones. None: no limit.
pub fn limit(open_max: Option<u32>, active_max: Option<u32>) -> Option<u32> {
    open_max.into_iter().chain(active_max).min()
}

/// Zones that a member needs at once for this many open segments.
pub fn wanted(open_segments: u32) -> u32 {
    open_segments + SUPERBLOCK_ZONES + CHANGING_ZONES + RECOVERY_ZONES
}

/// The member's drive cannot keep enough zones open.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{open_segments} open segments need {wanted} zones at once, and the drive allows {limit}")]
pub struct LimitTooLow {
    /// Segments that were asked for.
    pub open_segments: u32,
    /// Zones that they need.
    pub wanted: u32,
    /// Zones that the drive allows.
    pub limit: u32,
}

/// Whether a member's drive can keep this many segments open.
///
/// # Errors
/// It cannot.
pub fn check(open_segments: u32, limit: Option<u32>) -> Result<(), LimitTooLow> {
    let wanted = wanted(open_segments);
    match limit {
        Some(limit) if limit < wanted => Err(LimitTooLow { open_segments, wanted, limit }),
        _ => Ok(()),
    }
}

/// For what a zone becomes active.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// A segment for user writes: leaves room for the others.
    User,
    /// A segment of recovery or reclaim, which user writes wait for.
    Recovery,
    /// A segment for mapping blocks, which are written elsewhere where a drive has no zone to spare.
    Map,
}

/// The active zones of each member, counted.
#[derive(Clone, Debug)]
pub struct ZoneBudget {
    /// Segments that user writes have open at once.
    open_segments: u32,
    members: Vec<Count>,
}

#[derive(Clone, Debug)]
struct Count {
    limit: Option<u32>,
    active: u32,
}

impl ZoneBudget {
    /// Members with these limits, each with its superblock zone active, of an array of which user writes have this many segments
    /// open.
    pub fn new(limits: impl IntoIterator<Item = Option<u32>>, open_segments: u32) -> Self {
        let count = |limit| Count { limit, active: SUPERBLOCK_ZONES };
        ZoneBudget { open_segments, members: limits.into_iter().map(count).collect() }
    }

    /// Whether each of `members` may have one more active zone.
    pub fn may_take(&self, members: &[usize], purpose: Purpose) -> bool {
        let kept = match purpose {
            Purpose::User | Purpose::Map => RECOVERY_ZONES,
            Purpose::Recovery => 0,
        };
        // One more open segment than users have: else one of theirs might wait for ever for a zone that this one keeps.
        let is_spare = |limit| purpose != Purpose::Map || check(self.open_segments + 1, Some(limit)).is_ok();
        let fits =
            |count: &Count| count.limit.is_none_or(|limit| count.active + kept < limit && is_spare(limit));
        members.iter().all(|&member| fits(&self.members[member]))
    }

    /// Takes one active zone on each of `members`, or on none.
    pub fn take(&mut self, members: &[usize], purpose: Purpose) -> bool {
        let may = self.may_take(members, purpose);
        if may {
            members.iter().for_each(|&member| self.members[member].active += 1);
        }
        may
    }

    /// Another device has a member's slot: its superblock zone alone is active.
    pub fn exchange(&mut self, member: usize, limit: Option<u32>) {
        self.members[member] = Count { limit, active: SUPERBLOCK_ZONES };
    }

    /// Counts a zone that was found active, whether or not there is room.
    pub fn found(&mut self, member: usize) {
        self.members[member].active += 1;
    }

    /// A zone of a member is full, or empty, and no longer active.
    pub fn give_back(&mut self, member: usize) {
        let count = &mut self.members[member];
        assert!(count.active > SUPERBLOCK_ZONES, "a zone is given back that was taken");
        count.active -= 1;
    }

    /// Active zones of a member.
    pub fn active(&self, member: usize) -> u32 {
        self.members[member].active
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Z-I9, by taking more than there is, in any order of purposes.
    #[test]
    fn the_limit_is_never_exceeded_and_recovery_always_has_a_zone() {
        let mut budget = ZoneBudget::new([Some(5), Some(4), None], 1);
        let all = [0, 1, 2];
        assert!(budget.take(&all, Purpose::User) && budget.take(&all, Purpose::User));
        assert!(!budget.take(&all, Purpose::User), "the second member keeps its last for recovery");
        assert_eq!([budget.active(0), budget.active(1), budget.active(2)], [3, 3, 3], "none was taken");
        assert!(budget.take(&all, Purpose::Recovery));
        assert!(!budget.take(&all, Purpose::Recovery));
        assert!(!budget.take(&[0], Purpose::User) && budget.take(&[0], Purpose::Recovery));
        budget.give_back(1);
        assert!(budget.take(&[1, 2], Purpose::Recovery) && budget.active(1) == 4);
    }

    /// Else a segment of clients might wait for a zone that nothing gives back.
    #[test]
    fn mapping_blocks_take_a_zone_only_beside_all_that_clients_may_open() {
        for (limit, may) in [(Some(wanted(2)), false), (Some(wanted(3)), true), (None, true)] {
            let mut budget = ZoneBudget::new([limit], 2);
            assert_eq!(budget.take(&[0], Purpose::Map), may, "{limit:?}");
            assert!(budget.take(&[0], Purpose::User) && budget.take(&[0], Purpose::User));
            assert!(budget.take(&[0], Purpose::Recovery));
        }
    }

    #[test]
    fn a_drive_with_too_few_zones_is_refused_by_number() {
        assert_eq!(check(2, limit(Some(8), Some(5))), Ok(()));
        let error = check(2, limit(Some(4), Some(5))).expect_err("too few");
        assert_eq!(error.to_string(), "2 open segments need 5 zones at once, and the drive allows 4");
        assert_eq!(check(1000, limit(None, None)), Ok(()));
    }
}
