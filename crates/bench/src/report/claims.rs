//! What the paper found, beside what was found here.

use super::measured::Measured;
use crate::figures::{Figures, Shares};

/// A finding of the paper, and how to say what these runs found.
pub(super) struct Claim {
    /// The paper's, with its number.
    pub(super) paper: &'static str,
    /// Ours; none if the runs that it needs were not made.
    pub(super) here: fn(&Found<'_>) -> Option<String>,
}

/// The runs of an experiment.
pub(super) struct Found<'a>(pub(super) &'a [Measured]);

impl Found<'_> {
    fn at(&self, panel: &str, series: &str, x: &str) -> Option<&Figures> {
        let is_it = |m: &&Measured| m.panel == panel && m.series == series && m.x == x;
        self.0.iter().find(is_it).map(|measured| &measured.figures)
    }

    /// The greatest throughput of a series, in GB/s.
    fn best(&self, panel: &str, series: &str) -> Option<f64> {
        let of_series = self.0.iter().filter(|m| m.panel == panel && m.series == series);
        of_series.map(|measured| measured.figures.bytes_per_s / 1e9).reduce(f64::max)
    }

    /// The last place of a series.
    fn last(&self, panel: &str, series: &str) -> Option<&Figures> {
        let is_it = |m: &&Measured| m.panel == panel && m.series == series;
        self.0.iter().rfind(is_it).map(|measured| &measured.figures)
    }
}

pub(super) const WRITES: &[Claim] = &[
    Claim {
        paper: "RAID-5 writes peak at 2.0 GB/s with 4 KiB, 6.0 GB/s with 64 KiB, 11.4 GB/s with 1 MiB, at 64 threads on \
                six SSDs that write 15.6 GB/s together",
        here: |found| {
            let best = |panel| found.best(panel, "RAID-5 randwrite");
            let (small, medium, large) = (best("4K")?, best("64K")?, best("1M")?);
            Some(format!(
                "random writes peak at {small:.2}, {medium:.2} and {large:.2} GB/s on six members in memory"
            ))
        },
    },
    Claim {
        paper: "RAID-6 writes of 1 MiB peak at 10.4 GB/s, 0.91 of RAID-5's",
        here: |found| {
            let (raid6, raid5) =
                (found.best("1M", "RAID-6 randwrite")?, found.best("1M", "RAID-5 randwrite")?);
            Some(format!("{raid6:.2} GB/s, {:.2} of RAID-5's", raid6 / raid5))
        },
    },
    Claim {
        paper: "throughput grows with threads up to what the devices bear; EPLOG's, with one lock, does not",
        here: |found| {
            let (one, more) =
                (found.at("4K", "RAID-5 randwrite", "1")?, found.at("4K", "RAID-5 randwrite", "2")?);
            Some(format!("two shards do {:.2} times what one does at 4 KiB", more.iops / one.iops))
        },
    },
];

pub(super) const READS: &[Claim] = &[Claim {
    paper: "reads of StRAID and md differ by less than 5 %: RAID costs reads nothing",
    here: |found| {
        let ratio = |panel| Some(found.at(panel, "RAID-5 randread", "1")?.roofline?.cpu_ratio);
        let (small, medium, large) = (ratio("4K")?, ratio("64K")?, ratio("1M")?);
        Some(format!(
            "random reads on one shard, by plain copies of the same bytes: {small:.2} at 4 KiB, {medium:.2} at 64 KiB, \
             {large:.2} at 1 MiB"
        ))
    },
}];

pub(super) const LATENCIES: &[Claim] = &[Claim {
    paper: "at 64 threads mean latencies are 69 to 76 % below md's, the 99th percentile 22 to 67 % below",
    here: |found| {
        let line = |size: &str| {
            let figures = found.at("", &format!("randwrite {size}"), "64")?.lat_ns;
            Some(format!("{size}: mean {:.0} us, p99 {:.0} us", figures.mean / 1e3, figures.p99 as f64 / 1e3))
        };
        Some(format!(
            "with 64 in flight on each shard {}, {}, {} (md stands beside Twill in the virtual machine's tests only)",
            line("4K")?,
            line("64K")?,
            line("1M")?
        ))
    },
}];

pub(super) const STAGES: &[Claim] = &[
    Claim {
        paper: "XOR and I/O are 76 % of a partial write's processor time; what handles the stripe is the rest",
        here: |found| work_share(found, "RAID-5 64K"),
    },
    Claim {
        paper: "XOR 22.5 % and I/O 62.6 % of a full stripe's",
        here: |found| work_share(found, "RAID-5 full"),
    },
    Claim {
        paper: "locks are 5.1 % of a partial write's time, 1.3 % of a full stripe's",
        here: |found| {
            let share = |x| found.at("", "randwrite", x).and_then(|figures| figures.stages_alone);
            let handling = |shares: Shares| 100.0 * (shares.claim + shares.complete);
            let (partial, full) = (share("RAID-5 64K")?, share("RAID-5 full")?);
            Some(format!(
                "claim and release of the stripe: {:.1} % and {:.1} %, alone",
                handling(partial),
                handling(full)
            ))
        },
    },
];

fn work_share(found: &Found<'_>, x: &str) -> Option<String> {
    let shares = found.at("", "randwrite", x)?.stages_alone?;
    let percent = |share: f64| 100.0 * share;
    Some(format!(
        "alone: pre-read {:.0} %, parity {:.0} %, write {:.0} %, together {:.0} %",
        percent(shares.pre_read),
        percent(shares.parity),
        percent(shares.write),
        percent(shares.pre_read + shares.parity + shares.write)
    ))
}

pub(super) const AMPLIFICATION: &[Claim] = &[
    Claim {
        paper: "sequential writes with 64 threads read 13.7 % of what is written (md 1.1 %): two-phase submission gathers \
                most of a stripe before it reads",
        here: |found| {
            let read = |x| Some(100.0 * found.at("", "64 in flight", x)?.amplification.read);
            Some(format!(
                "with 64 in flight {:.1} % at 4 KiB, {:.1} % at 64 KiB",
                read("write 4K")?,
                read("write 64K")?
            ))
        },
    },
    Claim {
        paper: "random writes read and write as Eq. 1 and 2 say, as md's: 2 and 2 up to a chunk",
        here: |found| {
            let figures = found.at("", "1 in flight", "randwrite 4K")?.amplification;
            Some(format!("4 KiB, one in flight: reads {:.2}, writes {:.2}", figures.read, figures.write))
        },
    },
    Claim {
        paper: "with one thread sequential writes read half of what md's do, by the parity cache",
        here: |found| {
            let figures = found.at("", "1 in flight", "write 4K")?;
            Some(format!(
                "4 KiB, one in flight: reads {:.2}, {:.0} % hits",
                figures.amplification.read,
                100.0 * figures.parity_cache.hit_rate
            ))
        },
    },
];

pub(super) const CHUNKS: &[Claim] = &[Claim {
    paper: "a chunk of 8 KiB makes 64 KiB full stripes: 11.8 GB/s, 1.9 times a chunk of 64 KiB",
    here: |found| {
        let throughput = |x| Some(found.at("by chunk", "1 shards", x)?.bytes_per_s);
        let (full, partial) = (throughput("8K")?, throughput("64K")?);
        Some(format!("one shard: {:.2} GB/s, {:.2} times", full / 1e9, full / partial))
    },
}];

pub(super) const TRACES: &[Claim] = &[Claim {
    paper: "RAID-5 is 10 to 15 % faster than RAID-6 on all traces",
    here: |found| {
        let of = |level: &str| -> Vec<f64> {
            found.0.iter().filter(|m| m.panel == level).map(|m| m.figures.bytes_per_s).collect()
        };
        let (raid5, raid6) = (of("RAID-5"), of("RAID-6"));
        let ratios: Vec<f64> = raid5.iter().zip(&raid6).map(|(five, six)| five / six).collect();
        let mean = ratios.iter().sum::<f64>() / ratios.len() as f64;
        (!ratios.is_empty())
            .then(|| format!("{:.0} % on average over {} traces", 100.0 * (mean - 1.0), ratios.len()))
    },
}];

pub(super) const TWO_PHASE: &[Claim] = &[
    Claim {
        paper: "two-phase submission makes sequential writes of 64 KiB 3.5 times as fast at 64 threads",
        here: |found| {
            let (with, without) = (found.last("", "64K with")?, found.last("", "64K without")?);
            Some(format!("{:.2} times with 64 in flight", with.bytes_per_s / without.bytes_per_s))
        },
    },
    Claim {
        paper: "full-stripe writes of 1 MiB gain less than 4 %",
        here: |found| {
            let (with, without) = (found.last("", "1M with")?, found.last("", "1M without")?);
            Some(format!("{:+.1} %", 100.0 * (with.bytes_per_s / without.bytes_per_s - 1.0)))
        },
    },
];

pub(super) const CACHES: &[Claim] = &[
    Claim {
        paper: "39 % hits with 4 MiB, 55 % with 64 MiB, 57 % with 256 MiB",
        here: |found| {
            let hits = |x| Some(100.0 * found.at("", "reads take 20 us", x)?.parity_cache.hit_rate);
            Some(format!("{:.0} %, {:.0} %, {:.0} %", hits("4M")?, hits("64M")?, hits("256M")?))
        },
    },
    Claim {
        paper: "64 MiB: 16 % more throughput than none, 14 % less is read",
        here: |found| {
            let at = |x| found.at("", "reads take 20 us", x);
            let (none, some) = (at("0M")?, at("64M")?);
            let change = |of: fn(&Figures) -> f64| 100.0 * (of(some) / of(none) - 1.0);
            Some(format!(
                "where reads take 20 us {:+.0} % throughput, {:+.0} % read for each byte written",
                change(|figures| figures.bytes_per_s),
                change(|figures| figures.amplification.read)
            ))
        },
    },
];

pub(super) const DEGRADED: &[Claim] = &[
    Claim { paper: "degraded reads are as fast as md's", here: |found| degraded(found, "randread") },
    Claim {
        paper: "degraded writes are 50 to 70 % faster than md's: they are written as healthy ones are",
        here: |found| degraded(found, "randwrite"),
    },
];

fn degraded(found: &Found<'_>, panel: &str) -> Option<String> {
    let ratio = |size: &str| {
        let at = |health: &str| found.at(panel, &format!("{size} {health}"), "1");
        Some(at("degraded")?.bytes_per_s / at("healthy")?.bytes_per_s)
    };
    Some(format!(
        "one shard, degraded by healthy: {:.2} at 64 KiB, {:.2} at 1 MiB",
        ratio("64K")?,
        ratio("1M")?
    ))
}

pub(super) const LOCKS: &[Claim] = &[
    Claim {
        paper: "HemiRAID writes full stripes 1.31 times as fast as md with 17 threads, 1.40 times with 33",
        here: |found| faster(found, "hemi"),
    },
    Claim {
        paper: "ScalaRAID writes full stripes 1.9 times as fast as md on 2+1 SSDs, 1.6 times on 6+1",
        here: |found| faster(found, "scala"),
    },
];

/// Throughput by orig's with the most shards.
fn faster(found: &Found<'_>, series: &str) -> Option<String> {
    let ratio = |panel| {
        let (one, orig) = (found.last(panel, series)?, found.last(panel, "orig")?);
        Some((one.bytes_per_s / orig.bytes_per_s, one.setting.shards))
    };
    let ((full, shards), (small, _)) = (ratio("full stripes")?, ratio("4K")?);
    Some(format!("{full:.2} times with {shards} shards, {small:.2} times for random writes of 4 KiB"))
}

pub(super) const LOCK_TIMES: &[Claim] = &[
    Claim {
        paper: "locks take 3.5 % of md's time with 3 threads, 30.8 % with 33",
        here: |found| lock_time(found, "orig"),
    },
    Claim {
        paper: "HemiRAID takes 97.8 % off the time in locks over stripes; that over the counters is left",
        here: |found| lock_time(found, "hemi"),
    },
    Claim {
        paper: "ScalaRAID has 3.2 % left in locks over stripes, 0.5 % in those over counters",
        here: |found| lock_time(found, "scala"),
    },
];

fn lock_time(found: &Found<'_>, series: &str) -> Option<String> {
    let figures = found.last("4K", series)?;
    let (locks, percent) = (figures.locks?, |share: f64| 100.0 * share);
    Some(format!(
        "{:.1} % over stripes and {:.1} % over counters with {} shards, random writes of 4 KiB",
        percent(locks.stripes.share),
        percent(locks.counters.share),
        figures.setting.shards
    ))
}
