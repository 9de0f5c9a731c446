//! The paper's figures as lists of what to measure.

use super::key_value;
use super::load::Load;
use super::objects;
use crate::bench_fabric::rack::Array;

/// Width of the paper's arrays where nothing else is said.
const TARGETS: usize = 8;
/// A quarter of the paper's chunk, so that whole stripes are small enough for links of 200 Mbit/s.
const SMALL_CHUNK_KIB: u32 = 128;
const KIB: u32 = 128;
const WIDTHS: [usize; 4] = [4, 6, 8, 10];
const BOTH_LEVELS: &[u32] = &[5, 6];
const BOTH_MODES: &[&str] = &["host", "peer"];
const PEER_BY_HOST: &[(&str, &str)] = &[("peer", "host")];

/// One of the paper's figures, or two: of RAID-5, and of RAID-6.
pub struct Experiment {
    pub name: &'static str,
    pub figures: &'static str,
    pub title: &'static str,
    /// What the paper says.
    pub claim: &'static str,
    /// How this differs from what the paper measured.
    pub here: &'static str,
    /// Series whose ratio is shown.
    pub ratios: &'static [(&'static str, &'static str)],
    /// The targets' links have this part of the rate of the host's.
    pub narrower: u32,
    /// Whether the paper says that throughput grows in a line with x.
    pub linear: bool,
    levels: &'static [u32],
    modes: &'static [&'static str],
    /// Each with what it adds to the names of series.
    states: &'static [(State, &'static str)],
    /// Along the x axis, by level.
    places: fn(u32) -> Vec<Place>,
    /// Those of a quick run.
    quick: &'static [&'static str],
}

/// Of the array, while clients work.
#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Healthy,
    /// One member has failed.
    Degraded,
    /// One member has failed, and writes are not logged.
    NoRedoLog,
}

/// On the x axis.
struct Place {
    x: String,
    targets: usize,
    chunk_kib: u32,
    load: Load,
}

/// One point to measure.
pub struct Case {
    pub panel: String,
    pub series: String,
    pub x: String,
    pub array: Array,
    pub degraded: bool,
    pub load: Load,
}

impl Experiment {
    /// What this machine lacks for it.
    pub fn missing(&self) -> Option<String> {
        (self.name.starts_with("fig19")).then(key_value::missing).flatten()
    }

    /// All points, those of one array in a row, and of these the ones with all members first.
    pub fn cases(&self, quick: bool) -> Vec<Case> {
        let mut cases: Vec<Case> = Vec::new();
        for &level in self.levels {
            for &mode in self.modes {
                let wanted = |place: &Place| !quick || self.quick.contains(&&*place.x);
                for place in (self.places)(level).into_iter().filter(wanted) {
                    cases.extend(self.states.iter().map(|state| case(level, mode, &place, *state)));
                }
            }
        }
        let mut arrays: Vec<Array> = Vec::new();
        for case in &cases {
            if !arrays.contains(&case.array) {
                arrays.push(case.array);
            }
        }
        cases.sort_by_key(|case| (arrays.iter().position(|array| *array == case.array), case.degraded));
        cases
    }
}

fn case(level: u32, mode: &'static str, place: &Place, (state, suffix): (State, &str)) -> Case {
    let redo_log = state != State::NoRedoLog;
    let chunk_kib = place.chunk_kib;
    Case {
        panel: format!("RAID-{level}"),
        series: format!("{mode}{suffix}"),
        x: place.x.clone(),
        array: Array { chunk_kib, redo_log, ..Array::new(place.targets, level, mode) },
        degraded: state != State::Healthy,
        load: place.load,
    }
}

impl Place {
    fn new(x: String, load: Load) -> Self {
        Place { x, targets: TARGETS, chunk_kib: 512, load }
    }
}

fn size_name(kib: u32) -> String {
    if kib.is_multiple_of(1024) { format!("{}M", kib / 1024) } else { format!("{kib}K") }
}

fn sizes(reads_percent: u32, sizes_kib: &[u32]) -> Vec<Place> {
    let place = |&kib: &u32| Place::new(size_name(kib), Load::Random { kib, reads_percent });
    sizes_kib.iter().map(place).collect()
}

/// Writes up to a whole stripe.
fn writes_by_size(level: u32) -> Vec<Place> {
    let stripe_kib = (TARGETS as u32 + 4 - level) * SMALL_CHUNK_KIB;
    let mut places = sizes(0, &[4, 16, 32, 64, 128, 256, 512]);
    let load = Load::Random { kib: stripe_kib, reads_percent: 0 };
    places.push(Place::new("whole stripe".to_owned(), load));
    places.iter_mut().for_each(|place| place.chunk_kib = SMALL_CHUNK_KIB);
    places
}

fn chunks(_level: u32) -> Vec<Place> {
    let load = Load::Random { kib: KIB, reads_percent: 0 };
    let place = |chunk_kib| Place { chunk_kib, ..Place::new(size_name(chunk_kib), load) };
    [32, 64, 128, 256, 512, 1024].map(place).into()
}

fn widths(load: Load) -> Vec<Place> {
    WIDTHS.map(|targets| Place { targets, ..Place::new(targets.to_string(), load) }).into()
}

fn mixes(_level: u32) -> Vec<Place> {
    let load = |reads_percent| Load::Random { kib: KIB, reads_percent };
    [0, 25, 50, 75, 100].map(|reads| Place::new(format!("{reads} %"), load(reads))).into()
}

fn object_workloads(_level: u32) -> Vec<Place> {
    let place = |workload| Place::new(format!("{workload:?}"), Load::Objects(workload));
    objects::WORKLOADS.map(place).into()
}

fn key_value_workloads(_level: u32) -> Vec<Place> {
    let place = |workload| Place::new(format!("{workload:?}"), Load::KeyValue(workload));
    key_value::WORKLOADS.map(place).into()
}

const HEALTHY: &[(State, &str)] = &[(State::Healthy, "")];
const DEGRADED: &[(State, &str)] = &[(State::Degraded, "")];
/// With and without the log.
const DEGRADED_BOTH: &[(State, &str)] = &[(State::Degraded, ""), (State::NoRedoLog, ", no log")];
const PEER_BY_HOST_BOTH: &[(&str, &str)] = &[("peer", "host"), ("peer, no log", "host, no log")];

/// An experiment whose fields are what most have.
const USUAL: Experiment = Experiment {
    name: "",
    figures: "",
    title: "",
    claim: "",
    here: "",
    ratios: PEER_BY_HOST,
    narrower: 1,
    linear: false,
    levels: BOTH_LEVELS,
    modes: BOTH_MODES,
    states: HEALTHY,
    places: mixes,
    quick: &[],
};

/// All experiments, in the order of the paper's figures.
pub const EXPERIMENTS: &[Experiment] = &[
    Experiment {
        name: "fig09",
        figures: "9, 22",
        title: "random reads by size",
        claim: "from 64 KB on all systems reach the link's goodput, 92 of 100 Gbit/s",
        here: "8 targets, the paper 6",
        places: |_| sizes(100, &[4, 16, 64, 128, 256, 1024]),
        quick: &["4K", "128K"],
        ..USUAL
    },
    Experiment {
        name: "fig10",
        figures: "10, 23",
        title: "random writes by size",
        claim: "1.7 times at 128 KB (RAID-6 2.3), no faster up to 1 MB, where its drives are the limit; 1.5 times where stripes are \
                reconstructed (2 MB); equal at whole stripes",
        here: "a chunk of 128 KiB, a quarter of the paper's: 32K, 256K, 512K and the whole stripe stand for its 128 KB, 1 MB, 2 MB and \
               3.5 MB",
        ratios: &[("peer", "host"), ("auto", "peer")],
        modes: &["host", "peer", "auto"],
        places: writes_by_size,
        quick: &["4K", "32K", "128K", "512K", "whole stripe"],
        ..USUAL
    },
    Experiment {
        name: "fig11",
        figures: "11, 24",
        title: "random writes of 128 KiB by chunk",
        claim: "up to 1.7 times, its drives' limit from a chunk of 128 KB on; RAID-6 up to 2.6 times",
        here: "",
        places: chunks,
        quick: &["32K", "128K", "1M"],
        ..USUAL
    },
    Experiment {
        name: "fig12",
        figures: "12, 25",
        title: "random writes of 128 KiB by width",
        claim: "linear from 4 to 18 targets, up to 84 of 92 Gbit/s; parity at the host stops at half the link",
        here: "4 to 10 targets whose links have a fifth of the rate of the host's: they are the limit that drives are in the paper",
        narrower: 5,
        linear: true,
        places: |_| widths(Load::Random { kib: KIB, reads_percent: 0 }),
        quick: &["4", "6", "8", "10"],
        ..USUAL
    },
    Experiment {
        name: "fig13",
        figures: "13, 26",
        title: "reads and writes of 128 KiB by the share of reads",
        claim: "1.4 to 1.7 times, but for reads alone; RAID-6 1.6 to 2.3",
        here: "",
        places: mixes,
        quick: &["0 %", "50 %", "100 %"],
        ..USUAL
    },
    Experiment {
        name: "fig15",
        figures: "15, 28",
        title: "random reads by size, one member failed",
        claim: "95 % of what all members give; with parity at the host 57 % (RAID-6 95 %, 61 %)",
        here: "",
        ratios: &[("peer", "host"), ("host", "host, all members"), ("peer", "peer, all members")],
        states: &[(State::Healthy, ", all members"), (State::Degraded, "")],
        places: |_| sizes(100, &[4, 16, 64, 128, 256]),
        quick: &["4K", "128K"],
        ..USUAL
    },
    Experiment {
        name: "fig16",
        figures: "16, 29",
        title: "random reads of 128 KiB by width, one member failed",
        claim: "up to 2.4 times; nearer to what all members give the more targets there are, while parity at the host gets worse from 6 \
                (RAID-6 8) on",
        here: "4 to 10 targets, the paper up to 18",
        states: DEGRADED,
        places: |_| widths(Load::Random { kib: KIB, reads_percent: 100 }),
        quick: &["4", "6", "8", "10"],
        ..USUAL
    },
    Experiment {
        name: "fig17a",
        figures: "17a",
        title: "reads of lost chunks alone by width",
        claim: "near the limit at every width",
        here: "4 to 10 targets, the paper up to 18",
        levels: &[5],
        states: DEGRADED,
        places: |_| widths(Load::LostReads { kib: KIB }),
        quick: &["4", "6", "8", "10"],
        ..USUAL
    },
    Experiment {
        name: "fig18",
        figures: "18, 30",
        title: "random writes by size, one member failed",
        claim: "5 % less than with all members, 1.7 times parity at the host; RAID-6 11 % less, at the host 23 %, 2.6 times",
        here: "with the redo log, which the paper's system does not have, and with `--no-redo-log`",
        ratios: &[
            ("peer", "host"),
            ("peer, no log", "host, no log"),
            ("peer", "peer, all members"),
            ("host, no log", "host, all members"),
        ],
        states: &[(State::Healthy, ", all members"), (State::Degraded, ""), (State::NoRedoLog, ", no log")],
        places: |_| sizes(0, &[4, 16, 64, 128]),
        quick: &["4K", "128K"],
        ..USUAL
    },
    Experiment {
        name: "fig19a",
        figures: "19a",
        title: "RocksDB",
        claim: "A 1.27 times, F 1.28 times",
        here: "db_bench of RocksDB on ext4, the export by nbdfuse and a loop device, where the paper has BlobFS; F reads and writes in every \
               request",
        levels: &[5],
        places: key_value_workloads,
        quick: &["A", "F"],
        ..USUAL
    },
    Experiment {
        name: "fig19b",
        figures: "19b",
        title: "RocksDB, one member failed",
        claim: "more than with all members, in every workload",
        here: "as figure 19a",
        levels: &[5],
        ratios: PEER_BY_HOST_BOTH,
        states: DEGRADED_BOTH,
        places: key_value_workloads,
        quick: &["A", "F"],
        ..USUAL
    },
    Experiment {
        name: "fig20",
        figures: "20",
        title: "objects of 128 KiB",
        claim: "A 1.7 times, F 1.5 times, B, C and D little",
        here: "a store of our own in place of the paper's, which is not published: an object's key says where it lies; 32 clients, keys drawn \
               evenly",
        levels: &[5],
        places: object_workloads,
        quick: &["A", "B", "C", "D", "F"],
        ..USUAL
    },
    Experiment {
        name: "fig21",
        figures: "21",
        title: "objects of 128 KiB, one member failed",
        claim: "B, C and D 2.35 times",
        here: "as figure 20",
        levels: &[5],
        ratios: PEER_BY_HOST_BOTH,
        states: DEGRADED_BOTH,
        places: object_workloads,
        quick: &["A", "B", "C", "D", "F"],
        ..USUAL
    },
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn points_of_one_array_come_in_a_row_and_no_member_has_to_come_back() {
        for experiment in EXPERIMENTS {
            let cases = experiment.cases(false);
            let mut gone: Vec<Array> = Vec::new();
            for pair in cases.windows(2) {
                if pair[0].array == pair[1].array {
                    assert!(pair[1].degraded || !pair[0].degraded, "{}", experiment.name);
                } else {
                    gone.push(pair[0].array);
                    assert!(!gone.contains(&pair[1].array), "{}", experiment.name);
                }
            }
        }
    }

    #[test]
    fn ratios_are_of_series_that_are_measured_and_quick_runs_are_part_of_full_ones() {
        for experiment in EXPERIMENTS {
            let cases = experiment.cases(false);
            for (above, below) in experiment.ratios {
                for name in [above, below] {
                    assert!(cases.iter().any(|case| case.series == *name), "{}: {name}", experiment.name);
                }
            }
            let places = (experiment.places)(5);
            assert!(
                experiment.quick.iter().all(|x| places.iter().any(|place| place.x == *x)),
                "{}",
                experiment.name
            );
            assert!(!experiment.cases(true).is_empty(), "{}", experiment.name);
        }
    }

    #[test]
    fn a_whole_stripe_is_what_the_level_leaves_for_data() {
        let last = |level| match writes_by_size(level).last().map(|place| place.load) {
            Some(Load::Random { kib, .. }) => kib,
            _ => 0,
        };
        assert_eq!((last(5), last(6)), (7 * 128, 6 * 128));
    }
}
