//! What `bench zoned` is asked to measure.

use engine::log::config::MapLimits;
use engine::log::reclaim::choose::ReclaimPolicy;
use layout::geometry::Level;
use layout::zoned::Columns;

use crate::Error;
use crate::setting::Setting;

/// What to measure.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Rounds; the median counts.
    pub runs: usize,
    /// Threads that serve: each number in turn, in every round.
    pub shards: Vec<usize>,
    /// Members of memory, level, what requests do, how many are in flight on each shard, and for how long.
    pub array: Setting,
    /// Bytes of a software zone.
    pub zone_bytes: u64,
    /// Room for what is overwritten, in hundredths of the array's size.
    pub reserve_percent: u32,
    /// What the map may take.
    pub map_limits: MapLimits,
    /// Which segments are emptied first.
    pub reclaim: ReclaimPolicy,
    /// How many times the array is written over before it is measured, so that reclaim works meanwhile. 0: it is new.
    pub aged: u64,
}

/// The columns of a level over this number of members.
pub(super) fn columns(level: &str, members: usize) -> Result<Columns, Error> {
    let wrong = || Error::Setting(format!("level {level} over {members} members makes no zoned array"));
    let level: Level = level.parse().map_err(|_| wrong())?;
    u8::try_from(members).ok().and_then(|width| Columns::new(level, width)).ok_or_else(wrong)
}
