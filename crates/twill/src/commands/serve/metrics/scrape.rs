//! One answer to Prometheus, in the text of OpenMetrics.

use std::fmt;

use engine::foreground::Latencies;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::{Registry, Unit};
use serde::Serialize;

use crate::status::{ArrayStatus, MemberStatus, RebuildStatus};

/// All metrics of an array.
pub fn text(status: ArrayStatus, latencies: Option<Latencies>) -> String {
    let labels = [("array".into(), status.name.clone().into()), ("uuid".into(), status.uuid.clone().into())];
    let mut registry = Registry::with_prefix_and_labels("twill", labels.into_iter());
    registry.register_collector(Box::new(Scrape { status, latencies }));
    let mut text = String::new();
    encode(&mut text, &registry).expect("a text grows");
    text
}

#[derive(Debug)]
struct Scrape {
    status: ArrayStatus,
    latencies: Option<Latencies>,
}

/// Names and values of labels.
type Labels = Vec<(&'static str, String)>;

impl Collector for Scrape {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        self.array(&mut encoder)?;
        self.members(&mut encoder)?;
        self.works(&mut encoder)?;
        self.zones(&mut encoder)?;
        for (name, value) in &self.status.counters {
            let help = "What the array did since it is served: `counters` of `twill status --json`";
            counter(&mut encoder, name, help, *value)?;
        }
        self.durations(&mut encoder)
    }
}

impl Scrape {
    fn array(&self, to: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let status = &self.status;
        let labels: Labels = vec![
            ("level", status.level.clone()),
            ("metadata", status.metadata.clone()),
            ("state", status.state.clone()),
        ];
        gauges(to, "array_state", "1, with what the array is in mdadm's words", &[(labels, 1.0)])?;
        for (name, help, value) in [
            ("array_size_bytes", "Bytes that clients see", status.size_bytes as f64),
            ("array_members", "Members, spares not counted", f64::from(status.raid_devices)),
            ("array_members_working", "Members that are in sync", status.working() as f64),
            ("array_degraded", "Members are missing or being rebuilt", is(status.degraded)),
            ("array_failed", "Too many members are gone", is(status.failed)),
            ("array_losing_data", "A member fails that the array cannot do without", is(status.failing)),
            ("array_clean", "Superblocks say that no write is under way", is(status.clean)),
            ("array_stripes_in_doubt", "Stripes of which reads are errors", status.stripes_in_doubt as f64),
            (
                "array_redo_log_in_force",
                "Stripe writes go to the redo log first",
                is(status.redo_log == "in-force"),
            ),
            (
                "array_started_seconds",
                "When it is served since, in seconds since 1970",
                status.started_unix_s as f64,
            ),
        ] {
            gauges(to, name, help, &[(Labels::new(), value)])?;
        }
        if let Some(bitmap) = &status.bitmap {
            gauges(
                to,
                "bitmap_bits",
                "Bits of the write-intent bitmap",
                &[(Labels::new(), bitmap.bits as f64)],
            )?;
            gauges(to, "bitmap_bits_set", "Bits that are set", &[(Labels::new(), bitmap.bits_set as f64)])?;
        }
        let connections: Vec<(Labels, f64)> = status
            .exports
            .iter()
            .map(|export| (vec![("export", export.uri.clone())], export.connections as f64))
            .collect();
        gauges(to, "connections", "Clients that are connected", &connections)
    }

    fn members(&self, to: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let states: Vec<(Labels, f64)> = self
            .status
            .members
            .iter()
            .map(|member| {
                let mut labels = labels_of(member);
                labels.push(("state", in_json(member.state)));
                (labels, 1.0)
            })
            .collect();
        gauges(to, "member_state", "1, with what the member is to the array", &states)?;
        let of_each = |value: &dyn Fn(&MemberStatus) -> f64| -> Vec<(Labels, f64)> {
            self.status.members.iter().map(|member| (labels_of(member), value(member))).collect()
        };
        let ns = |ns: u64| ns as f64 / 1e9;
        type Of = fn(&MemberStatus) -> u64;
        let counts: [(&str, &str, Of); 4] = [
            ("member_errors", "I/O errors since the array is served", |member| member.errors),
            ("member_corrected_reads", "Read errors that were corrected by writing, ever", |member| {
                member.corrected_reads
            }),
            ("member_bad_block_bytes", "Bytes in its bad-block log", |member| member.bad_block_bytes),
            ("member_recovered_bytes", "Bytes that are rebuilt", |member| member.recovered_bytes),
        ];
        for (name, help, value) in counts {
            gauges(to, name, help, &of_each(&|member| value(member) as f64))?;
        }
        let reads = of_each(&|member| ns(member.read_latency_ns));
        gauges(
            to,
            "member_read_latency_seconds",
            "Average of recent reads; 0 where it is not measured",
            &reads,
        )?;
        let writes = of_each(&|member| ns(member.write_latency_ns));
        gauges(to, "member_write_latency_seconds", "Average of recent writes, likewise", &writes)
    }

    fn works(&self, to: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let all = self
            .status
            .works
            .iter()
            .chain(self.status.rebuild.iter().filter(|_| self.status.works.is_empty()));
        let kind = |work: &RebuildStatus| -> Labels { vec![("kind", in_json(work.kind))] };
        let of_each = |value: &dyn Fn(&RebuildStatus) -> u64| -> Vec<(Labels, f64)> {
            all.clone().map(|work| (kind(work), value(work) as f64)).collect()
        };
        gauges(
            to,
            "rebuild_done_bytes",
            "Bytes done of a resync, recovery or check",
            &of_each(&|work| work.done_bytes),
        )?;
        gauges(to, "rebuild_total_bytes", "Bytes in all", &of_each(&|work| work.total_bytes))?;
        gauges(to, "rebuild_bytes_per_second", "Mean speed", &of_each(&|work| work.bytes_per_s))?;
        let Some(scrub) = &self.status.scrub else { return Ok(()) };
        let found = [(Labels::new(), scrub.mismatch_sectors as f64)];
        gauges(to, "scrub_mismatch_sectors", "What the last check found, as md's mismatch_cnt", &found)
    }

    fn zones(&self, to: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let Some(zoned) = &self.status.zoned else { return Ok(()) };
        for (name, help, value) in [
            ("zones_free", "Free zones of the member with the fewest", zoned.free_zones as f64),
            ("zones_open", "Open and closed zones of the member with the most", f64::from(zoned.open_zones)),
            ("segments", "Segments that hold something", zoned.segments as f64),
            ("segments_degraded", "Segments that lack a column", zoned.degraded_segments as f64),
            (
                "segments_narrow",
                "Segments to be rewritten since members were added",
                zoned.narrow_segments as f64,
            ),
            ("live_bytes", "Bytes that the map names", zoned.live_bytes as f64),
            (
                "reclaim_active",
                "1 while reclaim makes room",
                f64::from(!["", "nothing"].contains(&zoned.reclaiming.as_str())),
            ),
            (
                "write_amplification_ratio",
                "Blocks written for each that clients wrote, since the array is served",
                zoned.write_amplification_percent as f64 / 100.0,
            ),
            ("map_memory_bytes", "Bytes of the map that are in memory", zoned.map_in_memory_bytes as f64),
            (
                "map_changed_bytes",
                "Bytes of the map that changed since the newest checkpoint",
                zoned.map_changed_bytes as f64,
            ),
        ] {
            gauges(to, name, help, &[(Labels::new(), value)])?;
        }
        counter(to, "map_blocks_read", "Blocks of the map that were read", zoned.map_blocks_read)?;
        counter(to, "map_blocks_written", "Blocks of the map that were written", zoned.map_blocks_written)?;
        counter(to, "checkpoints", "Checkpoints of the map", zoned.checkpoints_written)?;
        counter(to, "blocks_written", "Blocks of 4 KiB that clients wrote", zoned.client_blocks)?;
        counter(to, "blocks_moved", "Blocks of 4 KiB that reclaim moved", zoned.moved_blocks)?;
        counter(to, "segments_emptied", "Segments that reclaim emptied", zoned.emptied_segments)
    }

    /// Requests by how long they took.
    fn durations(&self, to: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let Some(latencies) = &self.latencies else { return Ok(()) };
        let bounds = latencies.by_powers_of_two();
        let count = bounds.iter().map(|(_, count)| count).sum();
        let seconds = |bound: u64| if bound == u64::MAX { f64::INFINITY } else { bound as f64 / 1e9 };
        // A request counts with three quarters of its bound: what it took lies between half of it and all.
        let finite = bounds.iter().filter(|(bound, _)| *bound != u64::MAX);
        let sum = finite.map(|(bound, count)| seconds(*bound) * 0.75 * *count as f64).sum();
        let buckets: Vec<(f64, u64)> =
            bounds.iter().map(|(bound, count)| (seconds(*bound), *count)).collect();
        let help = "Requests of clients; the sum is an estimate from the buckets";
        let mut metric =
            to.encode_descriptor("request_duration", help, Some(&Unit::Seconds), MetricType::Histogram)?;
        metric.encode_histogram::<NoLabelSet>(sum, count, &buckets, None)
    }
}

fn is(is: bool) -> f64 {
    if is { 1.0 } else { 0.0 }
}

fn labels_of(member: &MemberStatus) -> Labels {
    let slot = member.slot.map_or_else(String::new, |slot| slot.to_string());
    vec![("slot", slot), ("device", member.path.clone().unwrap_or_default())]
}

/// A state or kind as `status --json` calls it.
fn in_json(value: impl Serialize) -> String {
    let value = serde_json::to_value(value).expect("plain data");
    value.as_str().unwrap_or_default().to_owned()
}

fn gauges(to: &mut DescriptorEncoder<'_>, name: &str, help: &str, values: &[(Labels, f64)]) -> fmt::Result {
    if values.is_empty() {
        return Ok(());
    }
    let mut family = to.encode_descriptor(name, help, None, MetricType::Gauge)?;
    for (labels, value) in values {
        ConstGauge::new(*value).encode(family.encode_family(labels)?)?;
    }
    Ok(())
}

fn counter(to: &mut DescriptorEncoder<'_>, name: &str, help: &str, value: u64) -> fmt::Result {
    let metric = to.encode_descriptor(name, help, None, MetricType::Counter)?;
    ConstCounter::new(value).encode(metric)
}
