//! How long a start takes after a crash, and how long a member takes to be made again: experiment 5.

use engine::log::config::MapLimits;
use engine::zone_device::timing::DriveModel;
use serde::Serialize;

use super::array::Array;
use super::drive::Keeps;
use super::machine::Machine;
use super::members::{BLOCK, Members};
use super::speed::Mode;
use crate::timeline::Timeline;

const ZONE_BLOCKS: u32 = 2048;
const RESERVE_PERCENT: u64 = 25;
/// Groups of the map that may change before a checkpoint is due.
const CHANGED_GROUPS: usize = 32;

/// What is recovered from.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Loss {
    /// The program ended where it was.
    Crash {
        /// Checkpoints of the map were written.
        checkpoints: bool,
    },
    /// An empty drive replaces one.
    Drive,
}

/// An array that was written once, in order.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Recovery {
    /// What was lost.
    pub loss: Loss,
    /// How zones are written.
    pub mode: Mode,
    /// KiB of a chunk.
    pub chunk_kib: u16,
    /// MiB that were written: the whole array.
    pub mib: u64,
}

/// Seconds that it takes.
pub(super) fn run(point: &Recovery) -> f64 {
    let Recovery { loss, mode, chunk_kib, mib } = *point;
    let blocks = (mib << 20) / BLOCK;
    let of_zones = |zones| Array::of_one_segment(mode, chunk_kib, (zones, ZONE_BLOCKS));
    let fits = |array: &Array| array.logical_blocks(RESERVE_PERCENT) >= blocks;
    let array = (16..).map(of_zones).find(fits).expect("enough zones hold everything");
    let changed = (loss == Loss::Crash { checkpoints: true }).then_some(CHANGED_GROUPS);
    let mut config = array.config(blocks);
    config.map_limits = MapLimits { groups: None, changed };
    let time = Timeline::new();
    let members = Members::new(config, DriveModel::Zn540, Keeps::Contents, &time);
    let own = std::rc::Rc::clone(&members);
    Machine::run(&time, |machine| async move {
        let served = own.serve(&machine).await;
        served.fill(&machine, blocks).await;
        if loss == Loss::Drive {
            served.set.stop().await.expect("nothing fails");
        }
    });
    let took_ns = match loss {
        Loss::Crash { .. } => Machine::run(&time, |machine| async move {
            let began_ns = machine.time.now_ns();
            members.serve(&machine).await;
            machine.time.now_ns() - began_ns
        }),
        Loss::Drive => {
            members.take_out(1);
            Machine::run(&time, |machine| async move {
                let served = members.serve(&machine).await;
                members.rebuild(&machine, &served, 1).await
            })
        }
    };
    took_ns as f64 / 1e9
}
