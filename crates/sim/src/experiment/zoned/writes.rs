//! Random writes to a new array: experiments 1, 3, 4, 6 and 7.

use engine::zone_device::timing::DriveModel;
use layout::geometry::Level;
use layout::zoned::Carrier;
use serde::Serialize;

use super::array::Array;
use super::clients::Request;
use super::drive::Keeps;
use super::machine::Machine;
use super::members::{BLOCK, Members};
use super::speed::{BLOCK_KIB, Mode, Sizes, Speed};
use crate::random::Random;
use crate::timeline::Timeline;

/// The paper's depth.
pub(super) const DEPTH: u32 = 64;
/// Blocks of a zone: the ZN540's 1077 MiB.
pub(super) const ZONE_BLOCKS: u32 = 1077 << 8;
pub(super) const ZONES: u32 = 16;
/// Blocks of the array: much fewer than its zones hold, so that nothing is reclaimed.
pub(super) const LOGICAL_BLOCKS: u64 = 1 << 20;

/// Random writes to a new array, a fixed number of them in flight.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Writes {
    /// Level.
    #[serde(serialize_with = "level_words")]
    pub level: Level,
    /// Members.
    pub members: u8,
    /// How zones are written.
    pub mode: Mode,
    /// Open segments with small and with large chunks (Ns and Nl).
    pub open: [u8; 2],
    /// KiB of a small chunk, and of a large one.
    pub chunk_kib: [u16; 2],
    /// KiB of a request. 0: three of four have 4 KiB, and one 16 KiB.
    pub request_kib: u16,
    /// Requests in flight.
    pub depth: u32,
    /// Whether the drive is FEMU's rather than the ZN540.
    pub is_femu: bool,
}

impl Writes {
    fn array(&self) -> Array {
        Array {
            level: self.level,
            members: self.members,
            mode: self.mode,
            access: self.mode.access(),
            carrier: Carrier::Oob,
            open: self.open,
            chunk_blocks: self.chunk_blocks(),
            group: self.mode.group().unwrap_or(0),
            zones: ZONES,
            zone_blocks: ZONE_BLOCKS,
        }
    }

    pub(super) fn chunk_blocks(&self) -> [u16; 2] {
        self.chunk_kib.map(|kib| kib / BLOCK_KIB)
    }

    /// The lengths of the requests, in order.
    pub(super) fn sizes(&self, seed: u64) -> Sizes {
        Sizes::new(self.request_kib, seed)
    }

    pub(super) fn drive(&self) -> DriveModel {
        if self.is_femu { DriveModel::Femu } else { DriveModel::Zn540 }
    }

    pub(super) fn data_chunks(&self) -> u8 {
        self.array().data_chunks()
    }
}

/// Writes `requests` times, with the engine.
pub(super) fn run(point: &Writes, requests: u64) -> Speed {
    let (point, time) = (*point, Timeline::new());
    let members = Members::new(point.array().config(LOGICAL_BLOCKS), point.drive(), Keeps::States, &time);
    let ended = Machine::run(&time, |machine| async move {
        let served = members.serve(&machine).await;
        let (sizes, random, mut left) = (point.sizes(3), Random::new(1), requests);
        let next = move || {
            left = left.checked_sub(1)?;
            let blocks = sizes.next_blocks();
            let offset = random.below(LOGICAL_BLOCKS / blocks) * blocks * BLOCK;
            Some(Request { is_read: false, offset, bytes: blocks * BLOCK })
        };
        served.work(&machine, point.depth, next).await
    });
    Speed::of(&ended)
}

fn level_words<S: serde::Serializer>(level: &Level, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(level)
}
