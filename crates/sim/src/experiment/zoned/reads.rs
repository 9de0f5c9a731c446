//! Reads with a member missing, one at a time: experiment 2, and what a group costs them in 3.

use engine::zone_device::timing::DriveModel;
use layout::geometry::Level;
use layout::zoned::Carrier;
use serde::Serialize;

use super::array::{Array, group_within};
use super::clients::Request;
use super::drive::Keeps;
use super::machine::Machine;
use super::members::{BLOCK, Members};
use super::speed::{BLOCK_KIB, Mode, Speed};
use crate::random::Random;
use crate::timeline::Timeline;

/// Small zones: what they hold is kept.
const ZONES: u32 = 24;
const ZONE_BLOCKS: u32 = 2048;
/// So little that there is no room for narrower segments, and nothing is moved while reads are measured.
const RESERVE_PERCENT: u64 = 2;

/// Reads as long as chunks.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Reads {
    /// How zones are written.
    pub mode: Mode,
    /// KiB of a chunk, and of a read.
    pub chunk_kib: u16,
    /// A member is missing, and only reads of what it holds count.
    pub is_degraded: bool,
}

/// Reads `requests` times, with the engine.
pub(super) fn run(point: &Reads, requests: u64) -> Speed {
    let Reads { mode, chunk_kib, is_degraded } = *point;
    let array = Array {
        level: Level::Raid5,
        members: 4,
        mode,
        access: mode.access(),
        carrier: Carrier::Oob,
        open: [1, 0],
        chunk_blocks: [chunk_kib / BLOCK_KIB; 2],
        group: mode.group().map_or(0, |group| group_within(group, chunk_kib, ZONE_BLOCKS)),
        zones: ZONES,
        zone_blocks: ZONE_BLOCKS,
    };
    let blocks = array.logical_blocks(RESERVE_PERCENT);
    let time = Timeline::new();
    let members = Members::new(array.config(blocks), DriveModel::Zn540, Keeps::Contents, &time);
    let own = std::rc::Rc::clone(&members);
    Machine::run(&time, |machine| async move {
        let served = own.serve(&machine).await;
        served.fill(&machine, blocks).await;
        served.set.stop().await.expect("nothing fails");
    });
    if is_degraded {
        members.take_out(1);
    }
    let mut ended = Machine::run(&time, |machine| async move {
        let served = members.serve(&machine).await;
        let (random, mut left, of_read) = (Random::new(1), requests, u64::from(chunk_kib / BLOCK_KIB));
        let next = move || {
            left = left.checked_sub(1)?;
            let offset = random.below(blocks / of_read) * of_read * BLOCK;
            Some(Request { is_read: true, offset, bytes: of_read * BLOCK })
        };
        served.work(&machine, 1, next).await
    });
    ended.retain(|one| one.met_reconstruction == is_degraded);
    // One at a time: others in between are left out of the time, too.
    let bytes = ended.iter().map(|one| one.bytes).sum();
    let took_ns = ended.iter().map(|one| one.took_ns).sum();
    Speed::new(ended.iter().map(|one| one.took_ns).collect(), bytes, took_ns)
}
