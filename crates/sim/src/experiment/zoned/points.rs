//! The points of the paper's figures.

use layout::geometry::Level;

use super::aged::Aged;
use super::places::Places;
use super::reads::Reads;
use super::recovery::{Loss, Recovery};
use super::replay::{Replay, Trace};
use super::speed::{GROUP_MAX, Mode};
use super::work::{Point, Work};
use super::writes::{DEPTH, Writes};
use engine::log::reclaim::choose::ReclaimPolicy;

/// Place on its line, and the point.
pub(super) type Placed = (String, Point);

const CHUNKS: [u16; 3] = [4, 8, 16];
/// Groups as long as segments are the paper's ZoneAppend-Only.
pub(super) const APPEND_ONLY: Mode = Mode::Append { group: GROUP_MAX };
const MODES: [Mode; 4] = [Mode::ZoneWrite, APPEND_ONLY, Mode::ZAPRAID, Mode::Twill];
/// A write of the first experiment.
pub(super) const BASE: Writes = Writes {
    level: Level::Raid5,
    members: 4,
    mode: Mode::ZAPRAID,
    open: [1, 0],
    chunk_kib: [4; 2],
    request_kib: 4,
    depth: DEPTH,
    is_femu: false,
};

/// The series of [`super::raizn`].
pub(super) const RAIZN: &str = "raizn";
pub(super) const WHOLE: &str = "requests as long as chunks";
pub(super) const SMALL: &str = "requests of 4 KiB";
pub(super) const WRITTEN: &str = "writes";
pub(super) const LOST: &str = "reads of what is lost";
pub(super) const CRASH: &str = "start after a crash";
pub(super) const DRIVE: &str = "a drive made again";
/// Settings of segments: their name, how many of each kind, and KiB of their chunks.
pub(super) type Setting = (&'static str, [u8; 2], [u16; 2]);
pub(super) const ONE_4K: Setting = ("one of 4 KiB", [1, 0], [4, 4]);
pub(super) const ONE_16K: Setting = ("one of 16 KiB", [1, 0], [16, 16]);
pub(super) const TWO_TWO: Setting = ("2 of 8, 2 of 16 KiB", [2, 2], [8, 16]);
pub(super) const ONE_THREE: Setting = ("1 of 8, 3 of 16 KiB", [1, 3], [8, 16]);

fn kib(kib: u16) -> String {
    format!("{kib}K")
}

fn writes(panel: &str, series: String, x: String, own: Writes) -> Placed {
    (x, Point { panel: panel.to_owned(), series, work: Work::Writes(own) })
}

/// Experiment 1.
pub(super) fn modes() -> Vec<Placed> {
    let mut points = Vec::new();
    for mode in MODES {
        for chunk in CHUNKS {
            let own = Writes { mode, chunk_kib: [chunk; 2], ..BASE };
            points.push(writes(WHOLE, mode.words(), kib(chunk), Writes { request_kib: chunk, ..own }));
            points.push(writes(SMALL, mode.words(), kib(chunk), own));
        }
    }
    for chunk in CHUNKS {
        let own = Writes { chunk_kib: [chunk; 2], ..BASE };
        for (panel, request_kib) in [(WHOLE, chunk), (SMALL, own.request_kib)] {
            let work = Work::Raizn(Writes { request_kib, ..own });
            let (panel, series) = (panel.to_owned(), RAIZN.to_owned());
            points.push((kib(chunk), Point { panel, series, work }));
        }
    }
    points
}

fn read(panel: &str, series: String, x: String, own: Reads) -> Placed {
    (x, Point { panel: panel.to_owned(), series, work: Work::Reads(own) })
}

/// Experiment 2.
pub(super) fn reads() -> Vec<Placed> {
    let mut points = Vec::new();
    for chunk_kib in CHUNKS {
        let ways = [
            ("normal", Mode::ZAPRAID, false),
            ("lost, static mapping", Mode::ZoneWrite, true),
            ("lost, groups", Mode::ZAPRAID, true),
        ];
        for (series, mode, is_degraded) in ways {
            points.push(read("", series.to_owned(), kib(chunk_kib), Reads { mode, chunk_kib, is_degraded }));
        }
    }
    points
}

/// Experiment 3.
pub(super) fn groups() -> Vec<Placed> {
    let mut points = Vec::new();
    for chunk in CHUNKS {
        for group in [4, 16, 64, 256, 1024, 4096] {
            let (mode, chunk_kib) = (Mode::Append { group }, [chunk; 2]);
            let own = Writes { mode, chunk_kib, request_kib: chunk, ..BASE };
            points.push(writes(WRITTEN, kib(chunk), group.to_string(), own));
        }
    }
    // Zones whose contents are kept are small: the last is a quarter of one.
    for group in [4, 16, 64, 256, 512] {
        let own = Reads { mode: Mode::Append { group }, chunk_kib: 4, is_degraded: true };
        points.push(read(LOST, kib(4), group.to_string(), own));
    }
    points
}

/// Experiment 4.
pub(super) fn levels() -> Vec<Placed> {
    let levels = [
        (Level::Raid0, "0"),
        (Level::Raid10, "01"),
        (Level::Raid4, "4"),
        (Level::Raid5, "5"),
        (Level::Raid6, "6"),
    ];
    let mut points = Vec::new();
    for chunk in CHUNKS {
        for mode in [Mode::ZoneWrite, Mode::ZAPRAID] {
            for (level, x) in levels {
                let own = Writes { level, mode, chunk_kib: [chunk; 2], request_kib: chunk, ..BASE };
                points.push(writes(&format!("chunks of {chunk} KiB"), mode.words(), x.to_owned(), own));
            }
        }
    }
    points
}

/// KiB of the records that `create` takes for large writes, and for what is moved.
pub(super) const OWN_KIB: u16 = 128;

/// Experiment 5.
pub(super) fn recoveries() -> Vec<Placed> {
    let mut points = Vec::new();
    let mut add = |panel: &str, series: String, (loss, mode, chunk_kib), mib: u64| {
        let work = Work::Recovery(Recovery { loss, mode, chunk_kib, mib });
        points.push((format!("{mib} MiB"), Point { panel: panel.to_owned(), series, work }));
    };
    for mib in [256, 512, 1024] {
        let ways = [("groups", Mode::ZAPRAID), ("in order", Mode::ZoneWrite)];
        for ((words, mode), checkpoints) in ways.into_iter().flat_map(|way| [(way, false), (way, true)]) {
            let series = if checkpoints { format!("{words}, checkpoints") } else { words.to_owned() };
            add(CRASH, series, (Loss::Crash { checkpoints }, mode, 4), mib);
        }
        for chunk in CHUNKS.into_iter().chain([OWN_KIB]) {
            add(DRIVE, kib(chunk), (Loss::Drive, Mode::ZAPRAID, chunk), mib);
        }
    }
    points
}

/// Experiment 6.
pub(super) fn depths() -> Vec<Placed> {
    let drives = [("ZN540", false, 4, [4, 8, 16, 64]), ("FEMU, 6+1", true, 7, [4, 16, 64, 128])];
    let mut points = Vec::new();
    for (panel, is_femu, members, depths) in drives {
        for chunk in CHUNKS {
            for depth in depths {
                // The paper says 4 KiB of FEMU's, but what it measured doubles with the chunk.
                let chunk_kib = [chunk; 2];
                let own = Writes { members, depth, is_femu, chunk_kib, request_kib: chunk, ..BASE };
                points.push(writes(panel, kib(chunk), depth.to_string(), own));
            }
        }
    }
    points
}

/// The panel of requests of one size in experiment 7.
pub(super) fn sized(request_kib: u16) -> String {
    if request_kib > 0 {
        format!("requests of {request_kib} KiB")
    } else {
        "75 % of 4, 25 % of 16 KiB".to_owned()
    }
}

pub(super) const REQUESTS_KIB: [u16; 4] = [4, 8, 16, 0];

/// Experiment 7: four open segments with chunks of 8 and 16 KiB, as many of each kind as the paper has.
pub(super) fn hybrids() -> Vec<Placed> {
    let mut points = Vec::new();
    for request_kib in REQUESTS_KIB {
        for mode in MODES {
            for small in (0..=4).rev() {
                let open = [small, 4 - small];
                let own = Writes { mode, open, chunk_kib: [8, 16], request_kib, ..BASE };
                points.push(writes(
                    &sized(request_kib),
                    mode.words(),
                    format!("{},{}", open[0], open[1]),
                    own,
                ));
            }
        }
    }
    points
}

/// The paper's four workloads of experiments 8 and 9.
pub(super) const LOADS: [(&str, u16, Places); 4] = [
    ("4 KiB, uniform", 4, Places::Uniform),
    ("64 KiB, uniform", 64, Places::Uniform),
    ("64 KiB, skewed", 64, Places::Zipf),
    ("64 KiB, sequential", 64, Places::Sequential),
];

fn aged(mode: Mode, (_, open, chunk_kib): Setting, (request_kib, places): (u16, Places)) -> Aged {
    // Small groups: a segment has whole ones, and what is left of its zones would be more room in reserve than is said.
    const ZONE_BLOCKS: u32 = 2048;
    const GROUP: u16 = 32;
    Aged {
        mode,
        open,
        chunk_kib,
        group: GROUP,
        request_kib,
        places,
        reserve_percent: 50,
        policy: ReclaimPolicy::Greedy,
        map_parts: 1,
        zones: 72,
        zone_blocks: ZONE_BLOCKS,
    }
}

/// Experiment 8.
pub(super) fn reserves() -> Vec<Placed> {
    let settings = [ONE_4K, ONE_16K, TWO_TWO].map(|setting| (setting, Mode::ZAPRAID, setting.0.to_owned()));
    let twill = (TWO_TWO, Mode::Twill, format!("{}, twill", TWO_TWO.0));
    let mut points = Vec::new();
    for (setting, mode, panel) in settings.into_iter().chain([twill]) {
        for (series, request_kib, places) in LOADS {
            for reserve_percent in [20, 25, 50, 100] {
                let own = Aged { reserve_percent, ..aged(mode, setting, (request_kib, places)) };
                let (panel, series) = (panel.clone(), series.to_owned());
                points.push((reserve_percent.to_string(), Point { panel, series, work: Work::Aged(own) }));
            }
        }
    }
    points
}

/// Experiment 9.
pub(super) fn maps() -> Vec<Placed> {
    let mut points = Vec::new();
    for (series, request_kib, places) in LOADS {
        for (map_parts, x) in [(1, "all"), (2, "1/2"), (4, "1/4")] {
            // With few groups one is let go at a time, and its block takes a stripe of its own.
            let own = Aged { map_parts, zones: 216, ..aged(Mode::ZAPRAID, TWO_TWO, (request_kib, places)) };
            let (panel, series) = (TWO_TWO.0.to_owned(), series.to_owned());
            points.push((x.to_owned(), Point { panel, series, work: Work::Aged(own) }));
        }
    }
    points
}

/// A trace in the four settings of segments.
pub(super) fn replayed(trace: &Trace, depth: u32) -> Vec<Placed> {
    let mut points = Vec::new();
    for mode in MODES {
        for (x, open, chunk_kib) in [ONE_4K, ONE_16K, TWO_TWO, ONE_THREE] {
            let work = Work::Replay(Replay { trace: trace.clone(), mode, open, chunk_kib, depth });
            let (panel, series) = (trace.name().to_owned(), mode.words());
            points.push((x.to_owned(), Point { panel, series, work }));
        }
    }
    points
}

/// Experiment 10.
pub(super) fn clouds() -> Vec<Placed> {
    replayed(&Trace::cloud(), DEPTH)
}

/// Experiment 11: Sysbench keeps 128 requests in flight.
pub(super) fn files() -> Vec<Placed> {
    replayed(&Trace::files(), 128)
}

/// Experiment 12: 32 connections, most of which wait for locks, the log or a page.
pub(super) fn databases() -> Vec<Placed> {
    replayed(&Trace::database(), 8)
}
