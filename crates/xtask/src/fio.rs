//! What fio answers with `--output-format=json`, as far as benchmarks here use it.

use std::collections::BTreeMap;

use serde::Deserialize;

/// A whole answer.
#[derive(Deserialize)]
pub struct Answer {
    jobs: Vec<Job>,
}

/// What one run came to, in the direction that it used.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Rates {
    /// Requests a second.
    pub iops: f64,
    pub bytes_per_s: f64,
    /// 99 % of the requests were completed within this.
    pub p99_us: f64,
    /// Of all requests, without those of the ramp.
    pub bytes: u64,
}

#[derive(Deserialize)]
struct Job {
    read: Direction,
    write: Direction,
}

#[derive(Deserialize)]
struct Direction {
    iops: f64,
    bw_bytes: f64,
    #[serde(default)]
    io_bytes: u64,
    total_ios: u64,
    clat_ns: CompletionLatency,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct CompletionLatency {
    percentile: BTreeMap<String, f64>,
}

impl Answer {
    /// Of the first job: with `--group_reporting` all report as one. Without a job all is zero.
    pub fn rates(&self) -> Rates {
        let Some(job) = self.jobs.first() else { return Rates::default() };
        let used = if job.write.total_ios > 0 { &job.write } else { &job.read };
        Rates {
            iops: used.iops,
            bytes_per_s: used.bw_bytes,
            p99_us: used.clat_ns.percentile.get("99.000000").copied().unwrap_or(0.0) / 1000.0,
            bytes: used.io_bytes,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_direction_that_was_used_counts() {
        let used = r#"{"iops":10.5,"bw_bytes":43008,"io_bytes":86016,"total_ios":21,"clat_ns":{"percentile":{"99.000000":5000}}}"#;
        let none = r#"{"iops":0,"bw_bytes":0,"total_ios":0,"clat_ns":{"min":0}}"#;
        let rates = |read, write| {
            let text = format!(r#"{{"fio version":"3","jobs":[{{"read":{read},"write":{write}}}]}}"#);
            serde_json::from_str::<Answer>(&text).expect("an answer").rates()
        };
        let wanted = Rates { iops: 10.5, bytes_per_s: 43008.0, p99_us: 5.0, bytes: 86016 };
        assert_eq!(rates(used, none), wanted);
        assert_eq!(rates(none, used), wanted);
        assert_eq!(rates(none, none), Rates::default());
    }
}
