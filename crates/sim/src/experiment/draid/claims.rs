//! What the paper found, beside what is found here.

use super::drive::{READ_BYTES_PER_S, WRITE_BYTES_PER_S};
use super::load::LINK_BYTES_PER_S;
use super::point::{Point, State};
use crate::experiment::paper::{self, Here, Verdict};

type Row = paper::Row<Point>;
type Claim = paper::Claim<Point>;
type Found<'a> = paper::Found<'a, Point>;

/// Or peer mode reaches this much of what the drives bear.
fn or_limit(is_same: bool, shares: &[f64]) -> Verdict {
    match shares.iter().all(|share| *share >= 0.85) {
        _ if is_same => Verdict::Same,
        true => Verdict::DrivesLimit,
        false => Verdict::Not,
    }
}

const R5: &str = "RAID-5";
const R6: &str = "RAID-6";
const ANY: &str = "peer, any reducer";
/// Of the host's card, in 10^6 bytes a second.
const LINK: f64 = LINK_BYTES_PER_S as f64 / 1e6;
/// What a drive reads, likewise.
const DRIVE: f64 = READ_BYTES_PER_S as f64 / 1e6;
/// And writes.
const DRIVE_WRITES: f64 = WRITE_BYTES_PER_S as f64 / 1e6;
/// The least part of a ratio of the paper that counts as the same.
const ALIKE: f64 = 0.9;

impl paper::Found<'_, Point> {
    fn speed(&self, panel: &str, series: &str, x: &str) -> Option<f64> {
        self.at(panel, series, x).map(|measured| measured.mb_per_s)
    }

    /// Peer by host.
    fn ratio(&self, panel: &str, x: &str) -> Option<f64> {
        Some(self.speed(panel, "peer", x)? / self.speed(panel, "host", x)?)
    }

    fn speeds<'a>(&'a self, panel: &'a str, series: &'a str) -> impl Iterator<Item = f64> + 'a {
        self.line(panel, series).map(|row| row.measured.mb_per_s)
    }

    fn most(&self, panel: &str, series: &str) -> Option<f64> {
        self.speeds(panel, series).reduce(f64::max)
    }

    fn least_of(&self, panel: &str, series: &str, xs: &[&str]) -> Option<f64> {
        let speeds: Option<Vec<f64>> = xs.iter().map(|x| self.speed(panel, series, x)).collect();
        speeds?.into_iter().reduce(f64::min)
    }
}

/// What drives bear of requests of which some read and the others are read-modify-writes, in 10^6 bytes a second.
fn drives_bear(row: &Row) -> f64 {
    let parity = if row.panel == R5 { 1.0 } else { 2.0 };
    let (reads, members) = (row.point.read_percent as f64 / 100.0, f64::from(row.point.members));
    let write = (1.0 + parity) * (1.0 / DRIVE + 1.0 / DRIVE_WRITES);
    let working = members - if row.point.state == State::Whole { 0.0 } else { 1.0 };
    working / (reads / DRIVE + (1.0 - reads) * write)
}

/// The part that peer mode reaches of what the drives bear at a place, at both levels.
fn shares_of_drives(found: &Found<'_>, series: &str, x: &str) -> Option<[f64; 2]> {
    let share = |panel| {
        let row = found.line(panel, series).find(|row| row.x == x)?;
        Some(row.measured.mb_per_s / drives_bear(row))
    };
    Some([share(R5)?, share(R6)?])
}

fn are_as_good(here: &[f64], paper: &[f64]) -> bool {
    here.iter().zip(paper).all(|(here, paper)| *here >= ALIKE * paper)
}

fn gbit(mb_per_s: f64) -> f64 {
    mb_per_s * 8.0 / 1e3
}

pub(super) const READS: &[Claim] = &[Claim {
    paper: "all systems reach the card's goodput, 92 Gbit/s, from 64 KB on",
    here: |found| {
        let least = |panel, series| found.least_of(panel, series, &["64K", "128K", "256K", "512K"]);
        let all = [least(R5, "host")?, least(R5, "peer")?, least(R6, "host")?, least(R6, "peer")?];
        let least = all.into_iter().fold(f64::INFINITY, f64::min);
        let words = format!("{:.1} Gbit/s at least, in both modes at both levels", gbit(least));
        Some(Here { words, verdict: Verdict::of(least >= 0.95 * LINK) })
    },
}];

pub(super) const WRITES: &[Claim] = &[
    Claim {
        paper: "1.7x at 128 KB, RAID-6 2.3x",
        here: |found| {
            let (here, shares) = (
                [found.ratio(R5, "128K")?, found.ratio(R6, "128K")?],
                shares_of_drives(found, "peer", "128K")?,
            );
            Some(Here {
                words: format!(
                    "{:.2}x, RAID-6 {:.2}x; {:.2} and {:.2} of what the drives bear",
                    here[0], here[1], shares[0], shares[1]
                ),
                verdict: or_limit(are_as_good(&here, &[1.7, 2.3]), &shares),
            })
        },
    },
    Claim {
        paper: "flat from 256 to 1024 KB, at what eight drives bear: some 5000 MB/s, RAID-6 two thirds of that",
        here: |found| {
            let sizes = ["256K", "512K", "1024K"];
            let range = |panel| {
                let speeds: Vec<f64> = sizes.iter().filter_map(|x| found.speed(panel, "peer", x)).collect();
                let least = speeds.iter().copied().reduce(f64::min)?;
                Some((least, speeds.into_iter().fold(0.0, f64::max)))
            };
            let ((least5, most5), (least6, most6)) = (range(R5)?, range(R6)?);
            Some(Here {
                words: format!("{least5:.0} to {most5:.0} MB/s, RAID-6 {least6:.0} to {most6:.0}"),
                verdict: Verdict::of(least5 >= ALIKE * 5000.0 && least6 >= ALIKE * 5000.0 * 2.0 / 3.0),
            })
        },
    },
    Claim {
        paper: "1.5x at 2048 KB, where reconstruct-write begins",
        here: |found| {
            let here = found.ratio(R5, "2048K")?;
            // Of all seven chunks four are written, three read, and parity is written.
            let bears = 8.0 / (3.0 / 4.0 / DRIVE + 5.0 / 4.0 / DRIVE_WRITES);
            let share = found.speed(R5, "peer", "2048K")? / bears.min(LINK);
            let words = format!("{here:.2}x, at {share:.2} of what the drives or the card bear");
            Some(Here { words, verdict: or_limit(here >= ALIKE * 1.5, &[share]) })
        },
    },
    Claim {
        paper: "about the same at whole stripes (3584 KB, RAID-6 3072 KB): the host makes their parity in both",
        here: |found| {
            let (raid5, raid6) = (found.ratio(R5, "3584K")?, found.ratio(R6, "3072K")?);
            let is_same = |ratio: f64| (ratio - 1.0).abs() < 0.05;
            let words = format!("{raid5:.2}x, RAID-6 {raid6:.2}x");
            Some(Here { words, verdict: Verdict::of(is_same(raid5) && is_same(raid6)) })
        },
    },
    Claim {
        paper: "a small write crosses the host's card once; RAID over NVMe-oF needs 2 bytes out and 2 in, RAID-6 3 and 3",
        here: |found| {
            let host = |panel, series| found.at(panel, series, "128K").map(|measured| measured.host);
            let (peer5, peer6) = (host(R5, "peer")?, host(R6, "peer")?);
            let (host5, host6) = (host(R5, "host")?, host(R6, "host")?);
            Some(Here {
                words: format!(
                    "at 128 KiB {:.2} out and {:.2} in, RAID-6 {:.2} and {:.2}; by the host {:.2} and {:.2}, {:.2} and {:.2}",
                    peer5.sent,
                    peer5.received,
                    peer6.sent,
                    peer6.received,
                    host5.sent,
                    host5.received,
                    host6.sent,
                    host6.received
                ),
                verdict: Verdict::of(
                    [peer5, peer6].iter().all(|spent| spent.sent < 1.03 && spent.received < 0.03),
                ),
            })
        },
    },
];

pub(super) const WRITES_TO_FAST_DRIVES: &[Claim] = &[Claim {
    paper: "1.7x at 128 KB, RAID-6 2.3x",
    here: |found| {
        let here = [found.ratio(R5, "128K")?, found.ratio(R6, "128K")?];
        let words = format!("{:.2}x, RAID-6 {:.2}x", here[0], here[1]);
        Some(Here { words, verdict: Verdict::of(are_as_good(&here, &[1.7, 2.3])) })
    },
}];

pub(super) const CHUNKS: &[Claim] = &[
    Claim {
        paper: "up to 1.7x, RAID-6 up to 2.6x",
        here: |found| {
            let most = |panel| {
                let xs = found.line(panel, "peer").map(|row| &row.x);
                xs.filter_map(|x| found.ratio(panel, x)).reduce(f64::max)
            };
            let (raid5, raid6) = (most(R5)?, most(R6)?);
            let shares = shares_of_drives(found, "peer", "512K")?;
            let words = format!(
                "up to {raid5:.2}x, RAID-6 up to {raid6:.2}x; {:.2} and {:.2} of what the drives bear at 512 KiB",
                shares[0], shares[1]
            );
            Some(Here { words, verdict: or_limit(are_as_good(&[raid5, raid6], &[1.7, 2.6]), &shares) })
        },
    },
    Claim {
        paper: "full drive bandwidth with chunks from 128 to 1024 KB",
        here: |found| {
            let least = found.least_of(R5, "peer", &["128K", "256K", "512K", "1024K"])?;
            Some(Here {
                words: format!("{least:.0} MB/s at least"),
                verdict: Verdict::of(least >= ALIKE * 5000.0),
            })
        },
    },
];

pub(super) const WIDTHS: &[Claim] = &[
    Claim {
        paper: "linear from 4 to 18 targets, 84 Gbit/s with 18",
        here: |found| {
            let points: Vec<(f64, f64)> = found
                .line(R5, "peer")
                .map(|row| (f64::from(row.point.members), row.measured.mb_per_s))
                .collect();
            let (fit, last) = (linear_fit(&points)?, gbit(points.last()?.1));
            Some(Here {
                words: format!("r2 {fit:.4}, {last:.0} Gbit/s with 18"),
                verdict: Verdict::of(fit > 0.99 && last >= 0.95 * 84.0),
            })
        },
    },
    Claim {
        paper: "parity at the host reaches half of the goodput at best, 46 Gbit/s, with RAID-6 a third (2.3: 50 and 33.3 of 100)",
        here: |found| {
            let (raid5, raid6) = (found.most(R5, "host")?, found.most(R6, "host")?);
            // With 96 requests in flight a card rests now and then.
            let is_near = |mb_per_s: f64, share: f64| (mb_per_s / (share * LINK) - 1.0).abs() < 0.07;
            Some(Here {
                words: format!("{:.1} and {:.1} Gbit/s", gbit(raid5), gbit(raid6)),
                verdict: Verdict::of(is_near(raid5, 0.5) && is_near(raid6, 1.0 / 3.0)),
            })
        },
    },
];

pub(super) const MIXES: &[Claim] = &[Claim {
    paper: "1.4x to 1.7x at all mixes but reads alone, RAID-6 1.6x to 2.3x",
    here: |found| {
        let range = |panel| {
            let ratios: Option<Vec<f64>> =
                ["0 %", "25 %", "50 %", "75 %"].iter().map(|x| found.ratio(panel, x)).collect();
            let ratios = ratios?;
            Some((ratios.iter().copied().reduce(f64::min)?, ratios.iter().copied().reduce(f64::max)?))
        };
        let ((least5, most5), (least6, most6)) = (range(R5)?, range(R6)?);
        let shares: Option<Vec<[f64; 2]>> =
            ["0 %", "25 %", "50 %"].iter().map(|x| shares_of_drives(found, "peer", x)).collect();
        Some(Here {
            words: format!("{least5:.2}x to {most5:.2}x, RAID-6 {least6:.2}x to {most6:.2}x"),
            verdict: or_limit(are_as_good(&[least5, least6], &[1.4, 1.6]), shares?.as_flattened()),
        })
    },
}];

/// The most of both modes, and what peer mode's latency is where the other has its most.
fn loads(found: &Found<'_>, paper: [f64; 2]) -> Option<Here> {
    let most = |panel| Some((found.most(panel, "peer")?, found.most(panel, "host")?));
    let deepest = &found.line(R5, "peer").last()?.x;
    let shares = shares_of_drives(found, "peer", deepest)?;
    let ((peer5, host5), (peer6, host6)) = (most(R5)?, most(R6)?);
    Some(Here {
        words: format!(
            "{:.0} and {:.0} Gbit/s ({:.2}x), RAID-6 {:.0} and {:.0} ({:.2}x)",
            gbit(peer5),
            gbit(host5),
            peer5 / host5,
            gbit(peer6),
            gbit(host6),
            peer6 / host6
        ),
        verdict: or_limit(are_as_good(&[peer5 / host5, peer6 / host6], &paper), &shares),
    })
}

pub(super) const WRITE_LOADS: &[Claim] = &[Claim {
    paper: "up to 92 Gbit/s, and 46 by the host (2x); RAID-6 8692 MB/s, nearly 3x",
    here: |found| loads(found, [84.0 / 46.0, 8692.0 * 8.0 / 1e3 / 30.7]),
}];

pub(super) const MIXED_LOADS: &[Claim] = &[Claim {
    paper: "near 92 Gbit/s each way, and 31 by the host (up to 3x, of requests); RAID-6 15822 MB/s, nearly 3x",
    here: |found| loads(found, [2.5, 2.5]),
}];

pub(super) const DEGRADED_READS: &[Claim] = &[Claim {
    paper: "95 % of reads with all members, by the host 57 %; RAID-6 95 and 61 %",
    here: |found| {
        let share = |panel, series| {
            Some(100.0 * found.speed(panel, series, "128K")? / found.speed(panel, "host", "128K")?)
        };
        let (peer5, peer6) = (share(R5, "peer, degraded")?, share(R6, "peer, degraded")?);
        let (host5, host6) = (share(R5, "host, degraded")?, share(R6, "host, degraded")?);
        Some(Here {
            words: format!(
                "at 128 KiB {peer5:.0} %, by the host {host5:.0} %; RAID-6 {peer6:.0} and {host6:.0} %"
            ),
            verdict: Verdict::of(peer5 >= 90.0 && peer6 >= 90.0),
        })
    },
}];

pub(super) const DEGRADED_READ_WIDTHS: &[Claim] = &[Claim {
    paper: "nearer to reads with all members the more targets there are; by the host worse beyond 6 targets (RAID-6 8); up to 2.4x",
    here: |found| {
        let best_width = |panel| {
            let most = found.most(panel, "host, degraded")?;
            found.line(panel, "host, degraded").find(|row| row.measured.mb_per_s == most).map(|row| &row.x)
        };
        let last = |panel, series| found.line(panel, series).last().map(|row| row.measured.mb_per_s);
        let (peer, host) = (last(R5, "peer, degraded")?, last(R5, "host, degraded")?);
        Some(Here {
            words: format!(
                "by the host best with {} targets (RAID-6 {}); with 18 {:.2}x, at {:.2} of the link",
                best_width(R5)?,
                best_width(R6)?,
                peer / host,
                peer / LINK
            ),
            verdict: Verdict::of(peer >= 0.95 * LINK && peer / host > 1.7),
        })
    },
}];

pub(super) const LOST_READS: &[Claim] = &[Claim {
    paper: "near the optimum at every width",
    here: |found| {
        let least = |panel| found.speeds(panel, "peer").reduce(f64::min);
        let (raid5, raid6) = (least(R5)? / DRIVE, least(R6)? / DRIVE);
        Some(Here {
            words: format!("{raid5:.2} of what a drive reads, which is the limit, RAID-6 {raid6:.2}"),
            verdict: Verdict::of(raid5 >= 0.9 && raid6 >= 0.9),
        })
    },
}];

pub(super) const MIXED_CARDS: &[Claim] = &[Claim {
    paper: "the chosen reducer is 53 % faster than any",
    here: |found| {
        let gains = |panel| -> Option<(f64, f64)> {
            let of_row = |row: &Row| Some(row.measured.mb_per_s / found.speed(panel, ANY, &row.x)?);
            let gains: Option<Vec<f64>> = found.line(panel, "peer").map(of_row).collect();
            let gains = gains?;
            Some((gains.iter().copied().reduce(f64::min)?, gains.into_iter().reduce(f64::max)?))
        };
        let ((least5, most5), (least6, most6)) = (gains(R5)?, gains(R6)?);
        let percent = |gain: f64| 100.0 * (gain - 1.0);
        Some(Here {
            words: format!(
                "{:+.0} % to {:+.0} % by depth, RAID-6 {:+.0} % to {:+.0} %",
                percent(least5),
                percent(most5),
                percent(least6),
                percent(most6)
            ),
            verdict: Verdict::of(most5.min(most6) >= 1.4 && least5.min(least6) >= 0.98),
        })
    },
}];

pub(super) const DEGRADED_WRITES: &[Claim] = &[
    Claim {
        paper: "5 % below writes with all members, RAID-6 11 %",
        here: |found| {
            let loss = |panel| {
                Some(
                    1.0 - found.speed(panel, "peer, degraded", "128K")?
                        / found.speed(panel, "peer", "128K")?,
                )
            };
            let (raid5, raid6) = (100.0 * loss(R5)?, 100.0 * loss(R6)?);
            let words = format!("at 128 KiB {raid5:.0} % below, RAID-6 {raid6:.0} %");
            Some(Here { words, verdict: Verdict::of(raid5 <= 10.0 && raid6 <= 16.0) })
        },
    },
    Claim {
        paper: "up to 1.7x, RAID-6 2.6x",
        here: |found| {
            let most = |panel| {
                let ratio =
                    |row: &Row| Some(row.measured.mb_per_s / found.speed(panel, "host, degraded", &row.x)?);
                found.line(panel, "peer, degraded").filter_map(ratio).reduce(f64::max)
            };
            let (raid5, raid6) = (most(R5)?, most(R6)?);
            let shares = shares_of_drives(found, "peer, degraded", "128K")?;
            let words = format!(
                "up to {raid5:.2}x, RAID-6 {raid6:.2}x; {:.2} and {:.2} of what the drives bear at 128 KiB",
                shares[0], shares[1]
            );
            Some(Here { words, verdict: or_limit(are_as_good(&[raid5, raid6], &[1.7, 2.6]), &shares) })
        },
    },
];

/// How much of the variation a straight line explains.
fn linear_fit(points: &[(f64, f64)]) -> Option<f64> {
    let count = points.len() as f64;
    if points.len() < 3 {
        return None;
    }
    let mean = |of: fn(&(f64, f64)) -> f64| points.iter().map(of).sum::<f64>() / count;
    let (mean_x, mean_y) = (mean(|point| point.0), mean(|point| point.1));
    let sum = |of: &dyn Fn(f64, f64) -> f64| -> f64 {
        points.iter().map(|(x, y)| of(x - mean_x, y - mean_y)).sum()
    };
    let (xy, xx, yy) = (sum(&|x, y| x * y), sum(&|x, _| x * x), sum(&|_, y| y * y));
    Some(xy * xy / (xx * yy))
}
