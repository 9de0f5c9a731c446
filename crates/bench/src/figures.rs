//! What a run found: one JSON object, or lines for a person.

use std::fmt::Write as _;

use engine::counters::CounterTotals;
use engine::stages::Stage;
use engine::stripe::parity_cache::CacheCounters;
use serde::Serialize;

use crate::ceiling::Raw;
use crate::histogram::Histogram;
use crate::limits::Limits;
use crate::locks::{LockFigures, LockTotals};
use crate::machine::Machine;
use crate::operations::Operations;
use crate::setting::{Consistency, Setting};
use crate::shard::ShardFigures;
use layout::units::Slot;

/// Points of the latency curve that are kept.
const CURVE_POINTS: usize = 100;

/// What a run found.
#[derive(Clone, Debug, Serialize)]
pub struct Figures {
    /// Requests a second.
    pub iops: f64,
    /// Bytes of requests a second.
    pub bytes_per_s: f64,
    /// How long requests took, in nanoseconds.
    pub lat_ns: Latency,
    /// Processor time of the shards for each GiB of requests, in seconds.
    pub cpu_s_per_gib: f64,
    /// Processor time of the shards for each request, in nanoseconds: steadier than IOPS on a busy machine.
    pub cpu_ns_per_op: f64,
    /// What was done at the members.
    pub member: Operations,
    /// Bytes at the members for each byte of requests.
    pub amplification: Amplification,
    /// The parity cache.
    pub parity_cache: CacheFigures,
    /// Share of a stripe write's time by stage, other requests' turns included.
    pub stages: Option<Shares>,
    /// The same with one request in flight: what is work rather than waiting.
    pub stages_alone: Option<Shares>,
    /// The time of writes in locks, or in what stands in their place; with a bitmap.
    pub locks: Option<LockFigures>,
    /// The floor of the same requests.
    pub roofline: Option<Roofline>,
    /// What the members allow, where they are more than memory.
    pub ceiling: Option<Ceiling>,
    /// What the engine counted.
    pub engine: EngineFigures,
    /// Requests measured.
    pub requests: Operations,
    /// Seconds measured.
    pub seconds: f64,
    /// What `--verify` has checked.
    pub verified: Option<Verified>,
    /// The distribution of latencies: nanoseconds, and the share of requests that took no longer.
    pub lat_curve: Vec<(u64, f64)>,
    /// What was asked.
    pub setting: Setting,
    /// The machine.
    pub machine: Machine,
}

/// Latencies in nanoseconds.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Latency {
    /// Mean.
    pub mean: f64,
    /// Half of all took no longer.
    pub p50: u64,
    /// 99 of 100 took no longer.
    pub p99: u64,
    /// 999 of 1000 took no longer.
    pub p999: u64,
    /// The longest of those that were timed.
    pub max: u64,
    /// How many were timed.
    pub timed: u64,
}

/// Bytes at the members for each byte of requests.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Amplification {
    /// Bytes read at members, for each byte of all requests.
    pub read: f64,
    /// Bytes written at members, for each byte of writes; 0 without writes.
    pub write: f64,
}

/// The parity cache.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct CacheFigures {
    /// Share of stripe writes that found parity.
    pub hit_rate: f64,
    /// Stripe writes that did.
    pub hits: u64,
    /// Stripe writes that did not.
    pub misses: u64,
}

/// Shares of a stripe write's time; they add up to 1.
#[derive(Clone, Copy, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Shares {
    /// Becoming the stripe's owner.
    pub claim: f64,
    /// Waiting for others to join, or for the owner.
    pub wait: f64,
    /// Reading old data and parity.
    pub pre_read: f64,
    /// Making parity.
    pub parity: f64,
    /// Writing.
    pub write: f64,
    /// Telling everyone.
    pub complete: f64,
}

/// The run beside its floor.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Roofline {
    /// Bytes of requests a second at the floor.
    pub bytes_per_s: f64,
    /// The run's bytes a second by the floor's.
    pub ratio: f64,
    /// The run's bytes for each second of processor time by the floor's: steadier on a busy machine.
    pub cpu_ratio: f64,
}

/// The run beside what its members allow.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Ceiling {
    /// The members' own operations.
    pub raw: Raw,
    /// Requests a second that these allow.
    pub iops: f64,
    /// The run's requests a second by that.
    pub ratio: f64,
}

/// What the engine counted.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct EngineFigures {
    /// Stripe writes done.
    pub stripe_writes: u64,
    /// Requests that joined another's stripe write.
    pub joined_writes: u64,
    /// Stripe writes that had all data.
    pub full_stripe_writes: u64,
    /// Segments by read-modify-write.
    pub rmw: u64,
    /// Segments by reconstruct-write.
    pub rcw: u64,
    /// Reads reconstructed from other members.
    pub reconstructed_reads: u64,
}

/// What was checked after the run.
#[derive(Clone, Debug, Serialize)]
pub struct Verified {
    /// Blocks that were written and hold what they should.
    pub blocks: u64,
    /// Stripes, or pieces of mirrors, whose redundancy was right at the members, read past the engine.
    pub redundant: u64,
    /// Slots that failed afterwards, one after the other, and all blocks were read again without them.
    pub also_without: Vec<Slot>,
}

type StageNs = [u64; Stage::ALL.len()];

/// Where the time of writes to stripes went.
pub(crate) struct Times {
    /// By stage, as they ran.
    pub(crate) together: StageNs,
    /// By stage, with one request in flight.
    pub(crate) alone: StageNs,
    pub(crate) locks: LockTotals,
}

impl Figures {
    pub(crate) fn new(
        setting: &Setting,
        machine: Machine,
        shards: &[ShardFigures],
        cache: (CacheCounters, CacheCounters),
        times: &Times,
        limits: Limits,
        verified: Option<Verified>,
    ) -> Self {
        let sum = |of: fn(&ShardFigures) -> u64| shards.iter().map(of).sum::<u64>();
        let counted = |of: fn(&CounterTotals) -> u64| {
            shards.iter().map(|shard| of(&shard.end.counts) - of(&shard.start.counts)).sum::<u64>()
        };
        let seconds =
            |shard: &ShardFigures| ((shard.end.wall_ns - shard.start.wall_ns) as f64 / 1e9).max(1e-9);
        let rate =
            |of: fn(&ShardFigures) -> u64| shards.iter().map(|s| of(s) as f64 / seconds(s)).sum::<f64>();
        let all_seconds = shards.iter().map(seconds).sum::<f64>().max(1e-9);
        let stripe_writes = counted(|counts| counts.stripe_writes + counts.joined_writes);
        let cpu_ns = sum(|shard| shard.end.cpu_ns - shard.start.cpu_ns) as f64;
        let mut latency = Histogram::default();
        shards.iter().for_each(|shard| latency.merge(&shard.latency));
        let mut requests = Operations::default();
        shards.iter().for_each(|shard| requests += shard.requests);
        let bytes = requests.bytes().max(1) as f64;
        let member = Operations {
            reads: counted(|counts| counts.member_reads),
            writes: counted(|counts| counts.member_writes),
            read_bytes: counted(|counts| counts.member_read_bytes),
            write_bytes: counted(|counts| counts.member_write_bytes),
        };
        let bytes_per_s = rate(|shard| shard.requests.bytes());
        let iops = rate(|shard| shard.requests.count());
        Figures {
            iops,
            bytes_per_s,
            lat_ns: Latency::of(&latency),
            cpu_s_per_gib: cpu_ns / 1e9 / (bytes / f64::from(1 << 30)),
            cpu_ns_per_op: cpu_ns / requests.count().max(1) as f64,
            member,
            amplification: Amplification::of(&member, &requests),
            parity_cache: CacheFigures::of(&cache.0, &cache.1),
            stages: Shares::of(times.together),
            stages_alone: Shares::of(times.alone),
            locks: match setting.consistency {
                Consistency::Bitmap => LockFigures::of(&times.locks, stripe_writes as f64 / all_seconds),
                _ => None,
            },
            ceiling: limits.raw.map(|raw| Ceiling::of(raw, iops)),
            roofline: limits.floor.map(|floor| Roofline {
                bytes_per_s: floor.bytes_per_s,
                ratio: bytes_per_s / floor.bytes_per_s.max(1.0),
                cpu_ratio: bytes / (cpu_ns / 1e9).max(1e-9) / floor.bytes_per_cpu_s.max(1.0),
            }),
            engine: EngineFigures::of(counted),
            requests,
            seconds: shards.iter().map(seconds).fold(0.0, f64::max),
            verified,
            lat_curve: latency.curve(CURVE_POINTS),
            setting: setting.clone(),
            machine,
        }
    }

    /// Lines for a person.
    pub fn words(&self) -> String {
        let (mut text, gb) = (String::new(), |bytes: f64| bytes / 1e9);
        let us = |ns: f64| ns / 1e3;
        let Latency { mean, p50, p99, p999, max, .. } = self.lat_ns;
        let mut line = |name: &str, value: String| {
            let _infallible = writeln!(text, "{name:<15} {value}");
        };
        line("iops", format!("{:.0}", self.iops));
        line("throughput", format!("{:.3} GB/s", gb(self.bytes_per_s)));
        line(
            "latency",
            format!(
                "mean {:.1} us, p50 {:.1}, p99 {:.1}, p99.9 {:.1}, max {:.0}",
                us(mean),
                us(p50 as f64),
                us(p99 as f64),
                us(p999 as f64),
                us(max as f64)
            ),
        );
        line(
            "processor",
            format!("{:.0} ns a request, {:.4} s a GiB", self.cpu_ns_per_op, self.cpu_s_per_gib),
        );
        let Operations { reads, writes, .. } = self.member;
        line("members", format!("{reads} reads, {writes} writes"));
        let Amplification { read, write } = self.amplification;
        line("amplification", format!("{read:.3} read, {write:.3} written"));
        line("parity cache", format!("{:.1} % hits", 100.0 * self.parity_cache.hit_rate));
        for (name, shares) in [("stages", &self.stages), ("stages alone", &self.stages_alone)] {
            if let Some(shares) = shares {
                line(name, shares.words());
            }
        }
        if let Some(locks) = &self.locks {
            line("locks", format!("{}: {}", self.setting.bitmap_locks, locks.words()));
        }
        line("roofline", self.roofline.map_or_else(|| "n/a".to_string(), |roofline| roofline.words()));
        if let Some(ceiling) = &self.ceiling {
            line("ceiling", ceiling.words());
        }
        if let Some(Verified { blocks, redundant, also_without }) = &self.verified {
            let without = format!("also without slots {also_without:?}");
            line("verified", format!("{blocks} blocks, {without}; redundancy of {redundant} stripes"));
        }
        let Machine { cpu, cores, kernel, load_before, .. } = &self.machine;
        line("machine", format!("{cpu}, {cores} cores, Linux {kernel}, load {load_before}"));
        text
    }
}

impl Latency {
    pub(crate) fn of(histogram: &Histogram) -> Self {
        Latency {
            mean: histogram.mean(),
            p50: histogram.quantile(0.5),
            p99: histogram.quantile(0.99),
            p999: histogram.quantile(0.999),
            max: histogram.max(),
            timed: histogram.count(),
        }
    }
}

impl Amplification {
    fn of(member: &Operations, requests: &Operations) -> Self {
        let all = requests.bytes().max(1) as f64;
        let write = member.write_bytes as f64 / requests.write_bytes.max(1) as f64;
        Amplification {
            read: member.read_bytes as f64 / all,
            write: if requests.writes > 0 { write } else { 0.0 },
        }
    }
}

impl EngineFigures {
    fn of(counted: impl Fn(fn(&CounterTotals) -> u64) -> u64) -> Self {
        EngineFigures {
            stripe_writes: counted(|counts| counts.stripe_writes),
            joined_writes: counted(|counts| counts.joined_writes),
            full_stripe_writes: counted(|counts| counts.full_stripe_writes),
            rmw: counted(|counts| counts.rmw),
            rcw: counted(|counts| counts.rcw),
            reconstructed_reads: counted(|counts| counts.reconstructed_reads),
        }
    }
}

impl CacheFigures {
    fn of(before: &CacheCounters, after: &CacheCounters) -> Self {
        let (hits, misses) = (after.hits - before.hits, after.misses - before.misses);
        CacheFigures { hit_rate: hits as f64 / (hits + misses).max(1) as f64, hits, misses }
    }
}

impl Shares {
    fn of(ns: StageNs) -> Option<Self> {
        let total = ns.iter().sum::<u64>();
        let share = |stage: Stage| ns[stage as usize] as f64 / total.max(1) as f64;
        (total > 0).then(|| Shares {
            claim: share(Stage::Claim),
            wait: share(Stage::Wait),
            pre_read: share(Stage::PreRead),
            parity: share(Stage::Parity),
            write: share(Stage::Write),
            complete: share(Stage::Complete),
        })
    }

    fn words(&self) -> String {
        let percent = |share: f64| format!("{:.0} %", 100.0 * share);
        format!(
            "claim {}, wait {}, pre-read {}, parity {}, write {}, complete {}",
            percent(self.claim),
            percent(self.wait),
            percent(self.pre_read),
            percent(self.parity),
            percent(self.write),
            percent(self.complete)
        )
    }
}

impl Ceiling {
    fn of(raw: Raw, iops: f64) -> Self {
        let allowed = raw.iops / raw.operations_per_request;
        Ceiling { raw, iops: allowed, ratio: iops / allowed.max(1e-9) }
    }

    fn words(&self) -> String {
        let Ceiling { raw, iops, ratio } = self;
        format!(
            "{iops:.0} iops; ratio {ratio:.2}; members alone do {:.0} operations of {} bytes a second, {} % reads, and \
             a request needs {:.2}",
            raw.iops, raw.operation_bytes, raw.read_percent, raw.operations_per_request
        )
    }
}

impl Roofline {
    fn words(&self) -> String {
        let Roofline { bytes_per_s, ratio, cpu_ratio } = self;
        format!("{:.3} GB/s; ratio {ratio:.2}, by processor time {cpu_ratio:.2}", bytes_per_s / 1e9)
    }
}
