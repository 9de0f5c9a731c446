//! `sim experiment draid`: the dRAID paper's figures at the paper's scale, with the engine as it is and the targets' own state
//! machines, on network cards and drives that take the paper's times. Virtual time, so that a point is the same on any machine;
//! processors take none. What came out is in `docs/draid.md`.

mod claims;
mod drive;
mod load;
mod point;
mod rack;
mod row;

use layout::geometry::Level;

use super::paper;
pub use point::{Cards, Drives, Mode, Point, State};
pub use row::{Measured, Spent};

/// One of them.
pub type Experiment = paper::Experiment<Point>;
/// What came of one of its points.
pub type Row = paper::Row<Point>;

/// All of them, in the paper's order.
pub const ALL: &[Experiment] = &[
    Experiment {
        name: "fig9",
        figures: "9 and 22",
        title: "Reads by size, six targets",
        places: "bytes of a read",
        points: point::reads_by_size,
        claims: claims::READS,
    },
    Experiment {
        name: "fig10",
        figures: "10 and 23",
        title: "Writes by size, eight targets, chunk 512 KiB",
        places: "bytes of a write",
        points: point::writes_by_size,
        claims: claims::WRITES,
    },
    Experiment {
        name: "fig10-fast",
        figures: "10 and 23, with drives that are no limit",
        title: "Writes by size, eight targets, chunk 512 KiB, drives four times as fast",
        places: "bytes of a write",
        points: point::writes_by_size_to_fast_drives,
        claims: claims::WRITES_TO_FAST_DRIVES,
    },
    Experiment {
        name: "fig11",
        figures: "11 and 24",
        title: "Writes of 128 KiB by chunk, eight targets",
        places: "chunk",
        points: point::writes_by_chunk,
        claims: claims::CHUNKS,
    },
    Experiment {
        name: "fig12",
        figures: "12 and 25",
        title: "Writes of 128 KiB by width",
        places: "targets",
        points: point::by_width,
        claims: claims::WIDTHS,
    },
    Experiment {
        name: "fig13",
        figures: "13 and 26",
        title: "Reads among writes of 128 KiB, eight targets",
        places: "requests that read",
        points: point::mixes,
        claims: claims::MIXES,
    },
    Experiment {
        name: "fig14a",
        figures: "14a and 27a",
        title: "Latency against load, writes of 128 KiB, 18 targets",
        places: "requests in flight",
        points: || point::loads(0),
        claims: claims::WRITE_LOADS,
    },
    Experiment {
        name: "fig14b",
        figures: "14b and 27b",
        title: "Latency against load, half reads, half writes of 128 KiB, 18 targets",
        places: "requests in flight",
        points: || point::loads(50),
        claims: claims::MIXED_LOADS,
    },
    Experiment {
        name: "fig15",
        figures: "15 and 28",
        title: "Reads by size with a member missing, eight targets",
        places: "bytes of a read",
        points: point::degraded_reads_by_size,
        claims: claims::DEGRADED_READS,
    },
    Experiment {
        name: "fig16",
        figures: "16 and 29",
        title: "Reads of 128 KiB with a member missing, by width",
        places: "targets",
        points: point::degraded_reads_by_width,
        claims: claims::DEGRADED_READ_WIDTHS,
    },
    Experiment {
        name: "fig17a",
        figures: "17a",
        title: "Reads of 128 KiB of a missing member alone, by width",
        places: "targets",
        points: point::lost_reads_by_width,
        claims: claims::LOST_READS,
    },
    Experiment {
        name: "fig17b",
        figures: "17b",
        title: "Reads of 128 KiB of a missing member alone, half of the targets behind 25 Gbit/s",
        places: "requests in flight",
        points: point::lost_reads_over_mixed_cards,
        claims: claims::MIXED_CARDS,
    },
    Experiment {
        name: "fig18",
        figures: "18 and 30",
        title: "Writes by size with a member missing and no redo log, eight targets",
        places: "bytes of a write",
        points: point::degraded_writes_by_size,
        claims: claims::DEGRADED_WRITES,
    },
];

impl paper::Point for Point {
    type Measured = Measured;

    fn panel(&self) -> String {
        if self.level == Level::Raid5 { "RAID-5" } else { "RAID-6" }.to_owned()
    }

    fn series(&self) -> String {
        let mode = match self.mode {
            Mode::Host => "host",
            Mode::Peer => "peer",
            Mode::PeerRandom => "peer, any reducer",
        };
        match self.state {
            State::Degraded => format!("{mode}, degraded"),
            State::Whole | State::AllLost => mode.to_owned(),
        }
    }

    fn measure(&self) -> Measured {
        load::run(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::paper::Verdict;

    fn speed(point: Point) -> f64 {
        load::run(&point).mb_per_s
    }

    /// With many chunks under way at once a target that is slow holds up those that others put together, too.
    #[test]
    fn the_chosen_reducer_is_never_slower_than_any() {
        let placed = point::lost_reads_over_mixed_cards();
        let chosen = placed.iter().filter(|(_, point)| point.mode == Mode::Peer);
        for (depth, point) in chosen.filter(|(depth, _)| depth == "1" || depth == "32") {
            let random = Point { mode: Mode::PeerRandom, ..*point };
            let (chosen, random) = (speed(*point), speed(random));
            assert!(chosen > 0.98 * random, "{} depth {depth}: {chosen:.0} of {random:.0} MB/s", point.level);
        }
    }

    #[test]
    fn writes_cross_the_hosts_card_once_also_with_a_member_missing() {
        for (x, point) in point::degraded_writes_by_size().iter().filter(|(x, _)| x == "16K") {
            let measured = load::run(point);
            let most = match (point.mode, point.state) {
                (Mode::Host, _) => continue,
                (_, State::Whole) => 1.02,
                // New contents of the missing chunk are made part of each parity here.
                (_, _) => 1.0 + 0.125 * f64::from(point.level == Level::Raid6) + 0.02,
            };
            assert!(measured.host.sent < most, "{} {x}: {:?}", point.level, measured.host);
        }
    }

    #[test]
    fn a_point_is_the_same_each_time_and_claims_know_their_rows() {
        let experiment = ALL.iter().find(|one| one.name == "fig17b").expect("it is one");
        let rows = experiment.run(2);
        let (x, point) = &(experiment.points)()[1];
        let again = experiment.row(x, point);
        assert_eq!(paper::table(&[again]), paper::table(&rows[1..2]));
        let here = experiment.claims[0].here(&rows).expect("the rows are there");
        assert_eq!(here.verdict, Verdict::Same, "{}", here.words);
        assert!(experiment.claims[0].here(&[]).is_none());
    }
}
