//! Arrays that are written over and over, so that reclaim works: experiments 8 and 9.

use std::rc::Rc;

use engine::log::config::{MapLimits, ReclaimOptions};
use engine::log::reclaim::choose::ReclaimPolicy;
use engine::zone_device::timing::DriveModel;
use layout::geometry::Level;
use layout::zoned::Carrier;
use serde::Serialize;

use super::array::Array;
use super::clients::Ended;
use super::drive::Keeps;
use super::machine::Machine;
use super::members::{Members, Served};
use super::places::{Places, WritePlaces};
use super::speed::{BLOCK_KIB, Mode};
use crate::timeline::Timeline;

pub(super) const DEPTH: u32 = 64;
/// Blocks of a group of the map.
const GROUP_BLOCKS: u64 = 512;

/// An array that was filled and written over `times` times before it is measured.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Aged {
    /// How zones are written.
    pub mode: Mode,
    /// Open segments with small and with large chunks.
    pub open: [u8; 2],
    /// KiB of a small chunk, and of a large one.
    pub chunk_kib: [u16; 2],
    /// Stripes of a group.
    pub group: u16,
    /// KiB of a request.
    pub request_kib: u16,
    /// Where writes go.
    pub places: Places,
    /// Room for what is overwritten, in hundredths of the array's size.
    pub reserve_percent: u64,
    /// Which segments are emptied first.
    #[serde(serialize_with = "policy_words")]
    pub policy: ReclaimPolicy,
    /// Memory has room for the map divided by this.
    pub map_parts: u64,
    /// Zones of each drive.
    pub zones: u32,
    /// Blocks of a zone.
    pub zone_blocks: u32,
}

pub(super) fn policy_words<S: serde::Serializer>(
    policy: &ReclaimPolicy,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.collect_str(policy)
}

/// What came of it.
pub(super) struct Outcome {
    pub(super) ended: Vec<Ended>,
    pub(super) elapsed_ns: u64,
    /// Blocks written for each that clients wrote, parity and mapping blocks apart.
    pub(super) write_amplification: f64,
}

impl Aged {
    fn array(&self) -> Array {
        Array {
            level: Level::Raid5,
            members: 4,
            mode: self.mode,
            access: self.mode.access(),
            carrier: Carrier::Oob,
            open: self.open,
            chunk_blocks: self.chunk_kib.map(|kib| kib / BLOCK_KIB),
            group: self.group,
            zones: self.zones,
            zone_blocks: self.zone_blocks,
        }
    }

    pub(super) fn logical_blocks(&self) -> u64 {
        self.array().logical_blocks(self.reserve_percent)
    }

    /// Writes `requests` times to an array that was filled, if so, and written over `times` times.
    pub(super) fn run(&self, fill: bool, before: u64, requests: u64) -> Outcome {
        let (own, logical, time) = (*self, self.logical_blocks(), Timeline::new());
        let mut config = self.array().config(logical);
        config.reclaim = ReclaimOptions { policy: self.policy, idle_ns: None };
        let groups = logical.div_ceil(GROUP_BLOCKS) / self.map_parts;
        let limit = (self.map_parts > 1).then_some(groups as usize);
        config.map_limits = MapLimits { groups: limit, changed: None };
        let members = Members::new(config, DriveModel::Zn540, Keeps::Metadata, &time);
        Machine::run(&time, |machine| async move {
            let served = members.serve(&machine).await;
            if fill {
                served.fill(&machine, logical).await;
            }
            let writes = Rc::new(WritePlaces::new(own.places, logical, own.request_kib.into()));
            write(&served, &machine, &writes, before).await;
            let (totals, began_ns) = (served.shared.space.totals(), machine.time.now_ns());
            let ended = write(&served, &machine, &writes, requests).await;
            let after = served.shared.space.totals();
            let user = (after.user_blocks - totals.user_blocks) as f64;
            let moved = (after.moved_blocks - totals.moved_blocks) as f64;
            let elapsed_ns = machine.time.now_ns() - began_ns;
            Outcome { ended, elapsed_ns, write_amplification: (user + moved) / user }
        })
    }
}

async fn write(served: &Served, machine: &Machine, places: &Rc<WritePlaces>, requests: u64) -> Vec<Ended> {
    let (places, mut left) = (Rc::clone(places), requests);
    let next = move || {
        left = left.checked_sub(1)?;
        Some(places.next())
    };
    served.work(machine, DEPTH, next).await
}
