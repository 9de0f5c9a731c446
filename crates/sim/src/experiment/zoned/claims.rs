//! What the paper found, beside what is found here.

use super::places::Places;
use super::points::{
    APPEND_ONLY, CRASH, DRIVE, LOADS, LOST, ONE_4K, ONE_16K, ONE_THREE, OWN_KIB, RAIZN, REQUESTS_KIB, SMALL,
    TWO_TWO, WHOLE, WRITTEN, sized,
};
use super::speed::{Mode, Speed};
use super::work::{Point, WANTED};
use crate::experiment::paper::{self, Here, Verdict};

type Claim = paper::Claim<Point>;
type Found<'a> = paper::Found<'a, Point>;

impl paper::Found<'_, Point> {
    fn speed(&self, panel: &str, series: &str, x: &str) -> Option<&Speed> {
        self.at(panel, series, x)?.speed.as_ref()
    }

    fn mib(&self, panel: &str, series: &str, x: &str) -> Option<f64> {
        Some(self.speed(panel, series, x)?.mib_per_s)
    }

    /// By how many hundredths one mode is above another at a place.
    fn above(&self, panel: &str, x: &str, one: Mode, other: Mode) -> Option<f64> {
        Some(percent(self.mib(panel, &one.words(), x)?, self.mib(panel, &other.words(), x)?))
    }

    fn zapraid_above_writes(&self, panel: &str, x: &str) -> Option<f64> {
        self.above(panel, x, Mode::ZAPRAID, Mode::ZoneWrite)
    }

    fn seconds(&self, panel: &str, series: &str, x: &str) -> Option<f64> {
        self.at(panel, series, x)?.seconds
    }

    /// The panel, where an experiment has one alone, or the first.
    fn panel(&self) -> Option<&str> {
        Some(&self.rows().first()?.panel)
    }
}

fn percent(here: f64, other: f64) -> f64 {
    100.0 * (here / other - 1.0)
}

fn is_near(here: f64, paper: f64, within: f64) -> bool {
    (here - paper).abs() <= within
}

fn not_modelled(words: String) -> Option<Here> {
    Some(Here { words, verdict: Verdict::NotModelled })
}

fn here(words: String, is_same: bool) -> Option<Here> {
    Some(Here { words, verdict: Verdict::of(is_same) })
}

/// Not the paper's: the engine beside an event simulation of the drives.
const ENGINE: Claim = Claim {
    paper: "(beside what the drives' times alone allow)",
    here: |found| {
        let shares = || found.rows().iter().filter_map(|row| row.measured.share());
        let least = shares().reduce(f64::min)?;
        let most = shares().fold(0.0, f64::max);
        here(format!("{:.1} to {:.1} % of it", 100.0 * least, 100.0 * most), least >= WANTED)
    },
};

pub(super) const MODES: &[Claim] = &[
    Claim {
        paper: "ZapRAID over ZoneWrite +72.8 %, +77.2 % at 4 and 8 KiB, equal at 16 (910.8 to 1574.2 MiB/s; 2961.2 MiB/s at 8 KiB)",
        here: |found| {
            let above = |x| found.zapraid_above_writes(WHOLE, x);
            let (four, eight, sixteen) = (above("4K")?, above("8K")?, above("16K")?);
            let speed = |mode: Mode, x| found.mib(WHOLE, &mode.words(), x);
            here(
                format!(
                    "{four:+.1} %, {eight:+.1} %, {sixteen:+.1} % ({:.1} to {:.1} MiB/s; {:.1})",
                    speed(Mode::ZoneWrite, "4K")?,
                    speed(Mode::ZAPRAID, "4K")?,
                    speed(Mode::ZAPRAID, "8K")?
                ),
                four >= 45.0 && eight >= 45.0 && is_near(sixteen, 0.0, 10.0),
            )
        },
    },
    Claim {
        paper: "median latency -43.8 %, -44.5 % at 4 and 8 KiB; 95th percentile -36.4 %, -34.1 %",
        here: |found| {
            let change = |x, of: fn(&Speed) -> f64| {
                let at = |mode: Mode| found.speed(WHOLE, &mode.words(), x).map(of);
                Some(percent(at(Mode::ZAPRAID)?, at(Mode::ZoneWrite)?))
            };
            let medians = [change("4K", |one| one.median_us)?, change("8K", |one| one.median_us)?];
            let p95s = [change("4K", |one| one.p95_us)?, change("8K", |one| one.p95_us)?];
            here(
                format!("{:+.1} %, {:+.1} %; {:+.1} %, {:+.1} %", medians[0], medians[1], p95s[0], p95s[1]),
                medians.iter().all(|change| *change <= -35.0) && p95s.iter().all(|change| *change <= -30.0),
            )
        },
    },
    Claim {
        paper: "95th percentile 3.80 times that of ZoneWrite at 16 KiB",
        here: |found| {
            let at = |mode: Mode| Some(found.speed(WHOLE, &mode.words(), "16K")?.p95_us);
            not_modelled(format!("{:.2} times", at(Mode::ZAPRAID)? / at(Mode::ZoneWrite)?))
        },
    },
    Claim {
        paper: "equal to ZoneAppend",
        here: |found| {
            let above = |x| found.above(WHOLE, x, Mode::ZAPRAID, APPEND_ONLY);
            let all = [above("4K")?, above("8K")?, above("16K")?];
            let words = format!("{:+.1} %, {:+.1} %, {:+.1} %", all[0], all[1], all[2]);
            here(words, all.iter().all(|above| is_near(*above, 0.0, 5.0)))
        },
    },
    Claim {
        paper: "the authors' stand-in for RAIZN is much slower than all others",
        here: |found| {
            let times =
                |x| Some(found.mib(WHOLE, &Mode::ZoneWrite.words(), x)? / found.mib(WHOLE, RAIZN, x)?);
            let all = [times("4K")?, times("8K")?, times("16K")?];
            let words = format!(
                "zone write {:.2}, {:.2}, {:.2} times as fast at 4, 8 and 16 KiB",
                all[0], all[1], all[2]
            );
            here(words, all.iter().all(|times| *times > 1.5))
        },
    },
    Claim {
        paper: "requests of 4 KiB: 95th percentile 50.7 % higher at chunks of 16 KiB than at 8",
        here: |found| {
            let at = |x| Some(found.speed(SMALL, &Mode::ZAPRAID.words(), x)?.p95_us);
            not_modelled(format!("{:+.1} %", percent(at("16K")?, at("8K")?)))
        },
    },
    ENGINE,
];

pub(super) const READS: &[Claim] = &[Claim {
    paper: "normal reads and lost ones, of static mapping and of groups, are within 6 % in throughput and latency",
    here: |found| {
        let (mut apart, mut slowest) = (0.0f64, 0.0f64);
        for x in ["4K", "8K", "16K"] {
            let normal = found.speed("", "normal", x)?;
            for series in ["lost, static mapping", "lost, groups"] {
                let lost = found.speed("", series, x)?;
                apart = apart.max(percent(normal.mib_per_s, lost.mib_per_s).abs());
                slowest = slowest.max(percent(lost.p95_us, normal.p95_us));
            }
        }
        here(
            format!("throughput within {apart:.1} %, 95th percentile {slowest:+.1} % at most"),
            apart <= 10.0 && slowest <= 10.0,
        )
    },
}];

pub(super) const GROUPS: &[Claim] = &[
    Claim {
        paper: "writes 1.43 and 1.59 times as fast with groups of 256 as of 4, at 4 and 8 KiB, and stable from there on",
        here: |found| {
            let at = |chunk, x| found.mib(WRITTEN, chunk, x);
            let gain = |chunk| Some(at(chunk, "256")? / at(chunk, "4")?);
            let after = |chunk| Some(percent(at(chunk, "4096")?, at(chunk, "256")?));
            let (four, eight) = (gain("4K")?, gain("8K")?);
            let after = after("4K")?.abs().max(after("8K")?.abs());
            here(
                format!("{four:.2} and {eight:.2} times, then within {after:.1} %"),
                four >= 1.3 && eight >= 1.4 && after <= 5.0,
            )
        },
    },
    Claim {
        paper: "almost unchanged at 16 KiB",
        here: |found| {
            let at = |x| found.mib(WRITTEN, "16K", x);
            not_modelled(format!("{:.2} times", at("256")? / at("4")?))
        },
    },
    Claim {
        paper: "the median of lost reads grows with the group: by 13.2 to 24.7 % at 4096, 21.6 times without groups, by looking up the table",
        here: |found| {
            let at = |x| Some(found.speed(LOST, "4K", x)?.median_us);
            let change = percent(at("512")?, at("4")?);
            // Looking up scans the group, which takes a processor a fraction of a microsecond.
            not_modelled(format!("{change:+.1} % from 4 to 512: processors take no time here"))
        },
    },
    ENGINE,
];

pub(super) const LEVELS: &[Claim] = &[
    Claim {
        paper: "ZapRAID over ZoneWrite +71.5 to 72.1 %, +75.8 to 76.4 %, +5.3 to 5.7 % at 4, 8 and 16 KiB, at all five levels",
        here: |found| {
            let range = |chunk: u16| {
                let panel = format!("chunks of {chunk} KiB");
                let all: Option<Vec<f64>> = ["0", "01", "4", "5", "6"]
                    .iter()
                    .map(|x| found.zapraid_above_writes(&panel, x))
                    .collect();
                let all = all?;
                let least = all.iter().copied().reduce(f64::min)?;
                Some((least, all.into_iter().reduce(f64::max)?))
            };
            let (four, eight, sixteen) = (range(4)?, range(8)?, range(16)?);
            here(
                format!(
                    "{:+.1} to {:.1} %, {:+.1} to {:.1} %, {:+.1} to {:.1} %",
                    four.0, four.1, eight.0, eight.1, sixteen.0, sixteen.1
                ),
                four.0 >= 45.0 && eight.0 >= 45.0 && sixteen.0 >= -5.0,
            )
        },
    },
    ENGINE,
];

const MIB: [f64; 3] = [256.0, 512.0, 1024.0];

/// Seconds for each 100 GiB between the smallest array and the largest.
fn per_100_gib(found: &Found<'_>, panel: &str, series: &str) -> Option<f64> {
    let at = |mib: f64| found.seconds(panel, series, &format!("{mib} MiB"));
    Some((at(MIB[2])? - at(MIB[0])?) / (MIB[2] - MIB[0]) * 1024.0 * 100.0)
}

pub(super) const RECOVERIES: &[Claim] = &[
    Claim {
        paper: "a start after a crash takes time in proportion: 1.51 s for each 100 GiB at 4 KiB, mostly of processors",
        here: |found| {
            let per = per_100_gib(found, CRASH, "groups")?;
            here(format!("{per:.2} s for each 100 GiB, of drives alone, without checkpoints"), per > 0.0)
        },
    },
    Claim {
        paper: "(the paper has no checkpoints)",
        here: |found| {
            let per = |series| per_100_gib(found, CRASH, series);
            let (groups, order) = (per("groups, checkpoints")?, per("in order, checkpoints")?);
            let without = per("in order")?;
            here(
                format!(
                    "zones of 8 MiB written in order: {without:.2} s for each 100 GiB without, {order:.2} s with them, for their headers; appended to: \
                     {groups:.2} s with them"
                ),
                order < 0.6 * without,
            )
        },
    },
    Claim {
        paper: "a drive is made again in proportion; 18.1 to 22.2 % faster at 8 KiB than at 4, 22.1 to 23.8 % at 16",
        here: |found| {
            let per = |series| per_100_gib(found, DRIVE, series);
            let (four, eight, sixteen) = (per("4K")?, per("8K")?, per("16K")?);
            let ratio = found.seconds(DRIVE, "4K", "1024 MiB")? / found.seconds(DRIVE, "4K", "256 MiB")?;
            here(
                format!(
                    "four times the array takes {ratio:.2} times as long; {:+.1} %, {:+.1} %",
                    percent(eight, four),
                    percent(sixteen, four)
                ),
                eight <= 0.85 * four && sixteen <= eight && is_near(ratio, 4.0, 0.4),
            )
        },
    },
    Claim {
        paper: "81.3 s for each 100 GiB at 4 KiB",
        here: |found| {
            let per = |series| per_100_gib(found, DRIVE, series);
            let (four, own) = (per("4K")?, per(&format!("{OWN_KIB}K"))?);
            here(
                format!(
                    "{four:.1} s, since all columns are written again, and not only the lost one; {own:.1} s with records of 128 KiB"
                ),
                four <= 1.1 * 81.3,
            )
        },
    },
];

pub(super) const DEPTHS: &[Claim] = &[
    Claim {
        paper: "16 in flight instead of 4: 3.52, 3.57 and 2.08 times, at 4, 8 and 16 KiB",
        here: |found| {
            let gain = |chunk| Some(found.mib("ZN540", chunk, "16")? / found.mib("ZN540", chunk, "4")?);
            let all = [gain("4K")?, gain("8K")?, gain("16K")?];
            let words = format!("{:.2}, {:.2}, {:.2} times", all[0], all[1], all[2]);
            here(words, all[0] >= 2.8 && all[1] >= 2.8 && all[2] >= 1.8)
        },
    },
    Claim {
        paper: "FEMU, 6+1: 58.3, 114.0, 224.2 MiB/s with 4 in flight; 1745.5, 2384.6, 2554.2 with 128 (seven drives in twelve virtual cores)",
        here: |found| {
            let at = |x| {
                let of = |chunk| found.mib("FEMU, 6+1", chunk, x);
                Some([of("4K")?, of("8K")?, of("16K")?])
            };
            let (few, many) = (at("4")?, at("128")?);
            let words = |all: [f64; 3]| format!("{:.1}, {:.1}, {:.1}", all[0], all[1], all[2]);
            let enough = few.iter().zip([58.3, 114.0, 224.2]).all(|(here, paper)| *here >= paper)
                && many.iter().zip([1745.5, 2384.6, 2554.2]).all(|(here, paper)| *here >= paper);
            here(format!("{}; {}", words(few), words(many)), enough)
        },
    },
    ENGINE,
];

const SEGMENTS: [&str; 5] = ["4,0", "3,1", "2,2", "1,3", "0,4"];

/// In how many of the twenty cells a mode reaches so much of the better of writes and appends, and the least that it reaches.
fn cells(found: &Found<'_>, mode: Mode) -> Option<(usize, f64)> {
    let (mut good, mut least) = (0, f64::INFINITY);
    for panel in REQUESTS_KIB.map(sized) {
        for x in SEGMENTS {
            let speed = |mode: Mode| found.mib(&panel, &mode.words(), x);
            let share = speed(mode)? / speed(Mode::ZoneWrite)?.max(speed(APPEND_ONLY)?);
            good += usize::from(share >= WANTED);
            least = least.min(share);
        }
    }
    Some((good, least))
}

pub(super) const HYBRIDS: &[Claim] = &[
    Claim {
        paper: "one small segment, requests of 4 KiB: ZoneAppend +65.7 % over ZoneWrite",
        here: |found| {
            let above = found.above(&sized(4), "1,3", APPEND_ONLY, Mode::ZoneWrite)?;
            here(format!("{above:+.1} %"), above >= 45.0)
        },
    },
    Claim {
        paper: "one small segment, requests of 16 KiB: ZoneWrite +27.2 % over ZoneAppend",
        here: |found| {
            let above = found.above(&sized(16), "1,3", Mode::ZoneWrite, APPEND_ONLY)?;
            not_modelled(format!("{above:+.1} %: three zones reach what the drives move"))
        },
    },
    Claim {
        paper: "ZapRAID the best or like it in all 20 cells",
        here: |found| {
            let ((good, least), (own, own_least)) =
                (cells(found, Mode::ZAPRAID)?, cells(found, Mode::Twill)?);
            here(
                format!(
                    "twill at least 95 % of the best in {own} of 20, {:.1} % at least; the paper's rule in {good}, {:.1} %",
                    100.0 * own_least,
                    100.0 * least
                ),
                own == 20,
            )
        },
    },
    ENGINE,
];

pub(super) const RESERVES: &[Claim] = &[
    Claim {
        paper: "throughput rises with the reserve, and with skewed and sequential writes",
        here: |found| {
            let speed = |series, x| found.mib(ONE_16K.0, series, x);
            let gain = |series| Some(speed(series, "100")? / speed(series, "20")?);
            let [_, (uniform, ..), (skewed, ..), (sequential, ..)] = LOADS;
            let small = gain(LOADS[0].0)?;
            let order = [speed(uniform, "25")?, speed(skewed, "25")?, speed(sequential, "25")?];
            here(
                format!(
                    "100 % instead of 20: {small:.2} times at 4 KiB, {:.2} at 64; at 25 % uniform {:.0}, skewed {:.0}, sequential {:.0} MiB/s",
                    gain(uniform)?,
                    order[0],
                    order[1],
                    order[2]
                ),
                small > 1.2 && gain(uniform)? > 1.2 && order[0] < order[1] && order[1] < order[2],
            )
        },
    },
    Claim {
        paper: "four open segments are faster than one",
        here: |found| {
            let mut least = f64::INFINITY;
            for (series, ..) in LOADS {
                let of = |panel| found.mib(panel, series, "25");
                least = least.min(of(TWO_TWO.0)? / of(ONE_4K.0)?);
            }
            here(format!("{least:.2} times at least one of chunks of 4 KiB, reserve 25 %"), least >= 1.0)
        },
    },
    Claim {
        paper: "(write amplification of uniform writes of 4 KiB, bounds of the design: 2.9, 1.8 and 1.3 at reserves of 25, 50 and 100 %)",
        here: |found| {
            let at = |x| found.at(TWO_TWO.0, LOADS[0].0, x)?.write_amplification;
            let all = [at("25")?, at("50")?, at("100")?];
            let words = format!("{:.2}, {:.2}, {:.2}", all[0], all[1], all[2]);
            here(words, all.iter().zip([2.9, 1.8, 1.3]).all(|(here, bound)| *here <= bound))
        },
    },
];

pub(super) const MAPS: &[Claim] = &[Claim {
    paper: "half of the map in memory: -59.2 % at 4 KiB, -16.8 % at 64 KiB, -4.0 % skewed, -3.6 % sequential",
    here: |found| {
        let change = |(series, ..): (&str, u16, Places)| {
            let at = |x| found.mib(TWO_TWO.0, series, x);
            Some(percent(at("1/2")?, at("all")?))
        };
        let all: Option<Vec<f64>> = LOADS.into_iter().map(change).collect();
        let all = all?;
        here(
            format!("{:+.1} %, {:+.1} %, {:+.1} %, {:+.1} %", all[0], all[1], all[2], all[3]),
            all.iter().zip([-59.2, -16.8, -4.0, -3.6]).all(|(here, paper)| *here >= paper - 2.0),
        )
    },
}];

pub(super) const CLOUDS: &[Claim] = &[
    Claim {
        paper: "one segment: ZapRAID over ZoneWrite +69.4 % at 4 KiB, +6.4 % at 16, equal to ZoneAppend",
        here: |found| {
            let panel = found.panel()?;
            let (four, sixteen) =
                (found.zapraid_above_writes(panel, ONE_4K.0)?, found.zapraid_above_writes(panel, ONE_16K.0)?);
            let append = found.above(panel, ONE_4K.0, Mode::ZAPRAID, APPEND_ONLY)?;
            here(
                format!("{four:+.1} %, {sixteen:+.1} %; {append:+.1} % over ZoneAppend"),
                four >= 40.0 && sixteen >= -5.0 && is_near(append, 0.0, 5.0),
            )
        },
    },
    Claim {
        paper: "(2,2): all alike; (1,3): ZapRAID +25.3 % over ZoneWrite",
        here: |found| {
            let panel = found.panel()?;
            let (two, one) = (
                found.zapraid_above_writes(panel, TWO_TWO.0)?,
                found.zapraid_above_writes(panel, ONE_THREE.0)?,
            );
            let own = found.above(panel, TWO_TWO.0, Mode::Twill, Mode::ZoneWrite)?;
            here(format!("{two:+.1} % (twill {own:+.1} %); {one:+.1} %"), own >= -5.0 && one >= 10.0)
        },
    },
];

pub(super) const FILES: &[Claim] = &[
    Claim {
        paper: "one segment: ZapRAID over ZoneWrite +76.9 % at 4 KiB, +15.3 % at 16",
        here: |found| {
            let panel = found.panel()?;
            let (four, sixteen) =
                (found.zapraid_above_writes(panel, ONE_4K.0)?, found.zapraid_above_writes(panel, ONE_16K.0)?);
            here(format!("{four:+.1} %, {sixteen:+.1} %"), four >= 45.0 && sixteen >= -5.0)
        },
    },
    Claim {
        paper: "(2,2): all alike; (1,3): ZapRAID +16.3 % over ZoneAppend",
        here: |found| {
            let panel = found.panel()?;
            let two = found.zapraid_above_writes(panel, TWO_TWO.0)?;
            let one = found.above(panel, ONE_THREE.0, Mode::ZAPRAID, APPEND_ONLY)?;
            here(format!("{two:+.1} % over ZoneWrite; {one:+.1} %"), two.abs() <= 10.0 && one >= -5.0)
        },
    },
];

pub(super) const DATABASES: &[Claim] = &[Claim {
    paper: "one segment of 4 KiB: ZapRAID +16.0 % over ZoneWrite; otherwise all alike",
    here: |found| {
        let panel = found.panel()?;
        let above = |x| found.zapraid_above_writes(panel, x);
        let four = above(ONE_4K.0)?;
        let others = [above(ONE_16K.0)?, above(TWO_TWO.0)?, above(ONE_THREE.0)?];
        here(
            format!("{four:+.1} %; {:+.1} %, {:+.1} %, {:+.1} %", others[0], others[1], others[2]),
            four >= 10.0 && others.iter().all(|above| is_near(*above, 0.0, 10.0)),
        )
    },
}];
