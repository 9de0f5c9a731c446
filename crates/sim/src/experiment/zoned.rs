//! `sim experiment zoned`: ZapRAID's experiments with the log engine as it is, on drives that take the times of the paper's Fig. 2 or
//! of FEMU. Virtual time, so that a point is the same on any machine; processors take none. Beside writes to new arrays stands what the
//! drives' times alone allow: what lies between the two is what the engine makes the drives wait. What came out is in
//! `docs/zoned.md`.

mod aged;
mod array;
mod claims;
mod clients;
mod drive;
pub mod endurance;
mod machine;
mod members;
mod model;
mod places;
mod points;
mod raizn;
mod reads;
pub mod reclaim;
mod recovery;
mod replay;
mod sparse;
mod speed;
pub mod starts;
mod work;
mod writes;

pub use self::aged::Aged;
pub use self::places::Places;
pub use self::reads::Reads;
pub use self::recovery::{Loss, Recovery};
pub use self::replay::{Replay, Trace, Traced};
pub use self::speed::{Mode, Speed};
pub use self::work::{Measured, Point, Work};
pub use self::writes::Writes;
use super::paper;

/// One of them.
pub type Experiment = paper::Experiment<Point>;
/// What came of one of its points.
pub type Row = paper::Row<Point>;

/// A trace of a real device in the settings of experiments 10 to 12.
pub fn replayed(trace: &Trace) -> Vec<(String, Point)> {
    points::replayed(trace, writes::DEPTH)
}

/// All of them, in the paper's order.
pub const ALL: &[Experiment] = &[
    Experiment {
        name: "exp1",
        figures: "6",
        title: "Random writes to one open segment, 64 in flight",
        places: "chunk",
        points: points::modes,
        claims: claims::MODES,
    },
    Experiment {
        name: "exp2",
        figures: "7",
        title: "Reads, one at a time",
        places: "chunk",
        points: points::reads,
        claims: claims::READS,
    },
    Experiment {
        name: "exp3",
        figures: "8",
        title: "Stripe groups",
        places: "stripes of a group",
        points: points::groups,
        claims: claims::GROUPS,
    },
    Experiment {
        name: "exp4",
        figures: "9",
        title: "Levels, four drives",
        places: "level",
        points: points::levels,
        claims: claims::LEVELS,
    },
    Experiment {
        name: "exp5",
        figures: "10",
        title: "Recovery of an array that was written once",
        places: "what clients see",
        points: points::recoveries,
        claims: claims::RECOVERIES,
    },
    Experiment {
        name: "exp6",
        figures: "11",
        title: "Requests in flight",
        places: "requests in flight",
        points: points::depths,
        claims: claims::DEPTHS,
    },
    Experiment {
        name: "exp7",
        figures: "12",
        title: "Four open segments, chunks of 8 and 16 KiB",
        places: "small and large segments",
        points: points::hybrids,
        claims: claims::HYBRIDS,
    },
    Experiment {
        name: "exp8",
        figures: "13",
        title: "Reclaim, by the room in reserve",
        places: "reserve, hundredths of the array",
        points: points::reserves,
        claims: claims::RESERVES,
    },
    Experiment {
        name: "exp9",
        figures: "14",
        title: "A map of which memory has room for a part",
        places: "part in memory",
        points: points::maps,
        claims: claims::MAPS,
    },
    Experiment {
        name: "exp10",
        figures: "15",
        title: "Cloud volumes",
        places: "open segments",
        points: points::clouds,
        claims: claims::CLOUDS,
    },
    Experiment {
        name: "exp11",
        figures: "16",
        title: "File writes of 64 KiB",
        places: "open segments",
        points: points::files,
        claims: claims::FILES,
    },
    Experiment {
        name: "exp12",
        figures: "17",
        title: "A relational database",
        places: "open segments",
        points: points::databases,
        claims: claims::DATABASES,
    },
];

#[cfg(test)]
mod tests {
    use super::work::{WANTED, measure_writes};
    use super::*;

    /// A gate: one of each mode, level and drive.
    #[test]
    fn the_engine_makes_drives_wait_for_nothing() {
        let all = [points::modes(), points::groups(), points::levels(), points::depths(), points::hybrids()];
        let writes = all.concat().into_iter().filter_map(|(x, point)| match point.work {
            Work::Writes(writes) => Some((x, point.panel, point.series, writes)),
            _ => None,
        });
        for (x, panel, series, writes) in writes.step_by(5) {
            let share = measure_writes(&writes, 3000).share().expect("both were measured");
            println!("{panel}, {series}, {x}: {share:.3}");
            assert!(share >= WANTED, "{panel}, {series}, {x}: {share:.3} of what the drives' times allow");
        }
    }

    /// Experiment 7: whatever the segments and requests, hybrid management is nearly as good as the better of writes and appends
    /// alone. (The paper's rule is not, on these drives: it appends whenever no other segment is idle.)
    #[test]
    fn hybrid_management_is_never_much_below_the_best() {
        for (x, point) in points::hybrids() {
            let Work::Writes(own @ Writes { mode: Mode::Twill, .. }) = point.work else { continue };
            let speed = |mode| writes::run(&Writes { mode, ..own }, 6000).mib_per_s;
            let best = speed(Mode::ZoneWrite).max(speed(points::APPEND_ONLY));
            let here = speed(Mode::Twill);
            println!("{}, segments {x}: {here:.1} of {best:.1} MiB/s", point.panel);
            assert!(
                here >= WANTED * best,
                "{}, segments {x}: {here:.1} MiB/s, the best {best:.1}",
                point.panel
            );
        }
    }

    /// Reads that were lost, both recoveries, an aged array with half of its map, and a replay: they end, and are the same each time.
    #[test]
    fn points_of_each_kind_are_the_same_each_time() {
        let lost = Reads { mode: Mode::ZAPRAID, chunk_kib: 4, is_degraded: true };
        let speed = reads::run(&lost, 400);
        assert_eq!(speed, reads::run(&lost, 400));
        assert!(speed.median_us >= 80.0, "a read takes a read of the others: {speed:?}");
        let loss = Loss::Crash { checkpoints: true };
        let crash = Recovery { loss, mode: Mode::ZoneWrite, chunk_kib: 4, mib: 32 };
        let drive = Recovery { loss: Loss::Drive, ..crash };
        assert_eq!(
            [recovery::run(&crash), recovery::run(&drive)],
            [recovery::run(&crash), recovery::run(&drive)]
        );
        let trace = Trace::new(
            "three",
            [(true, 0, 8192), (false, 4096, 100), (true, 1 << 40, 1)].into_iter().cycle().take(300),
        );
        let replay = Replay { trace, mode: Mode::Twill, open: [1, 0], chunk_kib: [4; 2], depth: 4 };
        assert_eq!(replay::run(&replay), replay::run(&replay));
    }
}
