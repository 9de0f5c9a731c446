//! How long a start takes after a crash, and what memory, by the size of the members and by what was written to them: members that
//! keep nothing but what is not zeroes ([`super::sparse`]), so that those of a petabyte are there. The engine is as it is. Drives take
//! the times of the model; beside stands what the computer that ran this took, which depends on it.

use std::rc::Rc;
use std::time::Instant;

use engine::log::config::MapLimits;
use engine::zone_device::timing::DriveModel;
use serde::Serialize;

use super::array::Array;
use super::clients::Request;
use super::drive::Keeps;
use super::machine::Machine;
use super::members::{BLOCK, Members, Served};
use super::speed::Mode;
use crate::timeline::Timeline;

const GIB: u64 = 1 << 30;
/// Blocks of a zone: 256 MiB, as those of software zones are at most.
const ZONE_BLOCKS: u32 = 65_536;
/// What `create` takes for small writes.
const CHUNK_KIB: u16 = 32;
const RESERVE_PERCENT: u64 = 25;
const MEMBERS: u8 = 4;
/// What is written after the checkpoint, before the crash.
const AFTER_BYTES: u64 = GIB / 2;
/// Whole stripes.
const REQUEST_BYTES: u64 = 768 << 10;
const DEPTH: u32 = 4;

/// One start.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Point {
    /// GiB of all members together.
    pub members_gib: u64,
    /// GiB that clients wrote, in order: in the end an orderly stop, another start, and half of one more.
    pub written_gib: u64,
    /// Drives choose the places of records.
    pub is_append: bool,
    /// The stop wrote a checkpoint.
    pub checkpoints: bool,
}

/// What it took.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Row {
    /// Which it is.
    pub point: Point,
    /// Seconds that the drives took, by the model.
    pub drive_seconds: f64,
    /// Reads of all drives.
    pub reads: u64,
    /// MiB that these read.
    pub read_mib: u64,
    /// Seconds of the computer that ran this, drives in memory included.
    pub computer_seconds: f64,
    /// MiB by which the program's memory grew at most meanwhile.
    pub memory_mib: u64,
    /// Segments that were there.
    pub segments: usize,
    /// Of which nothing but the headers was read.
    pub left_out: usize,
    /// Groups of the map that memory keeps something of: all others were never written.
    pub groups_there: u64,
}

impl Row {
    /// A line of the table.
    pub fn words(&self) -> String {
        let columns = self.columns();
        let [size, written, mode, checkpoints, rest @ ..] = &columns;
        let figures: String = rest.iter().map(|figure| format!("{figure:>11}")).collect();
        format!("{size:<9}{written:>8}  {mode:<10}{checkpoints:<13}{figures}")
    }

    /// A line of a table of Markdown.
    pub fn markdown(&self) -> String {
        format!("| {} |", self.columns().join(" | "))
    }

    fn columns(&self) -> [String; 11] {
        let Point { members_gib, written_gib, is_append, checkpoints } = self.point;
        [
            size(members_gib),
            size(written_gib),
            (if is_append { "appended" } else { "in order" }).to_owned(),
            (if checkpoints { "checkpoints" } else { "none" }).to_owned(),
            format!("{:.3}", self.drive_seconds),
            self.reads.to_string(),
            self.read_mib.to_string(),
            format!("{:.2}", self.computer_seconds),
            self.memory_mib.to_string(),
            format!("{} of {}", self.left_out, self.segments),
            self.groups_there.to_string(),
        ]
    }
}

fn size(gib: u64) -> String {
    match gib {
        gib if gib >= 1 << 20 && gib.is_multiple_of(1 << 20) => format!("{} PiB", gib >> 20),
        gib if gib >= 1 << 10 && gib.is_multiple_of(1 << 10) => format!("{} TiB", gib >> 10),
        gib => format!("{gib} GiB"),
    }
}

/// The heading of the lines of [`Row::words`].
pub fn heading() -> String {
    let figures = ["drives s", "reads", "MiB read", "computer s", "memory MiB", "left out", "groups"];
    let figures: String = figures.iter().map(|figure| format!("{figure:>11}")).collect();
    format!("{:<9}{:>8}  {:<10}{:<13}{figures}", "members", "written", "zones", "map")
}

/// The heading of the lines of [`Row::markdown`].
pub fn markdown_heading() -> String {
    let figures =
        "drives, s | reads | MiB read | computer, s | memory, MiB | segments left out | groups of the map";
    format!("| members | written | zones | map | {figures} |\n|{}", "---|".repeat(11))
}

/// All points: arrays of one size each of which more was written, then larger and larger ones of which as much was.
pub fn points(written_gib: u64, largest_gib: u64) -> Vec<Point> {
    let written = [written_gib / 4, written_gib / 2, written_gib].map(|written| (100, written));
    let sizes = [1 << 10, 10 << 10, 100 << 10, 1 << 20].into_iter().filter(|size| *size <= largest_gib);
    let arrays: Vec<(u64, u64)> = written.into_iter().chain(sizes.map(|size| (size, written_gib))).collect();
    let ways = [(false, false), (false, true), (true, false), (true, true)];
    let point = |(is_append, checkpoints), (members_gib, written_gib)| Point {
        members_gib,
        written_gib,
        is_append,
        checkpoints,
    };
    ways.into_iter().flat_map(|way| arrays.iter().map(move |array| point(way, *array))).collect()
}

impl Point {
    fn array(&self) -> Array {
        let zones = self.members_gib * GIB / u64::from(MEMBERS) / (u64::from(ZONE_BLOCKS) * BLOCK);
        let mode = if self.is_append { Mode::ZAPRAID } else { Mode::ZoneWrite };
        Array::of_one_segment(mode, CHUNK_KIB, (zones as u32, ZONE_BLOCKS))
    }
}

/// Writes, stops, starts, writes on, crashes, and measures the next start.
pub fn run(point: &Point) -> Row {
    let array = point.array();
    let logical = array.logical_blocks(RESERVE_PERCENT);
    let written = (point.written_gib * GIB).min(logical * BLOCK - AFTER_BYTES);
    let mut config = array.config(logical);
    let changed = point.checkpoints.then_some(usize::MAX); // the stop's is the only one
    config.map_limits = MapLimits { groups: None, changed };
    let time = Timeline::new();
    let members = Members::new(config, DriveModel::Zn540, Keeps::Metadata, &time);
    let own = Rc::clone(&members);
    Machine::run(&time, |machine| async move {
        let served = own.serve(&machine).await;
        write(&served, &machine, 0, written).await;
        served.set.stop().await.expect("nothing fails");
    });
    let own = Rc::clone(&members);
    Machine::run(&time, |machine| async move {
        let served = own.serve(&machine).await;
        write(&served, &machine, written, AFTER_BYTES).await;
    });
    let (reads, memory, began) = (members.reads(), Resident::now(), Instant::now());
    let own = Rc::clone(&members);
    let (drive_ns, computer_seconds, report, groups_there) = Machine::run(&time, |machine| async move {
        let began_ns = machine.time.now_ns();
        let started = own.start(&machine).await.expect("nothing fails");
        let took = (machine.time.now_ns() - began_ns, began.elapsed().as_secs_f64());
        (took.0, took.1, started.report, started.shared.map.groups_there().count() as u64)
    });
    let after = members.reads();
    Row {
        point: *point,
        drive_seconds: drive_ns as f64 / 1e9,
        reads: after.0 - reads.0,
        read_mib: (after.1 - reads.1) >> 20,
        computer_seconds,
        memory_mib: memory.grown_bytes() >> 20,
        segments: report.segments,
        left_out: report.left_out,
        groups_there,
    }
}

async fn write(served: &Served, machine: &Machine, first_byte: u64, bytes: u64) {
    let mut offsets = (first_byte..first_byte + bytes).step_by(REQUEST_BYTES as usize);
    let next = move || {
        let offset = offsets.next()?;
        let bytes = REQUEST_BYTES.min(first_byte + bytes - offset);
        Some(Request { is_read: false, offset, bytes })
    };
    served.work(machine, DEPTH, next).await;
}

/// The program's memory at a moment, in bytes. Where the system does not say it, nothing.
struct Resident {
    bytes: u64,
}

impl Resident {
    /// From here on the system notes the most.
    fn now() -> Self {
        // Its peak begins anew here (proc(5), clear_refs).
        let _ = std::fs::write("/proc/self/clear_refs", "5");
        Resident { bytes: Self::of("VmRSS:") }
    }

    fn grown_bytes(&self) -> u64 {
        Self::of("VmHWM:").saturating_sub(self.bytes)
    }

    fn of(what: &str) -> u64 {
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix(what)).unwrap_or_default();
        line.trim().trim_end_matches(" kB").parse::<u64>().unwrap_or(0) << 10
    }
}
