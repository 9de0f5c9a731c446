//! What the script in the machine says of one run, with the whole answer of the program that made it.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use serde::Deserialize;

use super::runs::{Report, Run};
use crate::fio;
use crate::machine::JSON;

/// Takes a line of the script: a run, what the machine is, or words to be printed.
pub(super) fn take(report: &mut Report, line: &str) -> Result<()> {
    let Some(json) = line.strip_prefix(JSON) else {
        println!("{line}");
        return Ok(());
    };
    match serde_json::from_str::<Said>(json) {
        Ok(said) => {
            let run = said.run();
            eprintln!(
                "{} RAID-{} {} {} x{} {} {}: {:.0}/s",
                run.members, run.level, run.rw, run.bs, run.jobs, run.health, run.who, run.iops
            );
            report.runs.push(run);
        }
        Err(_) => {
            let machine: BTreeMap<String, String> =
                serde_json::from_str(json).context("scripts/vm/bench-md")?;
            report.kernel = machine.get("kernel").cloned().unwrap_or_default();
        }
    }
    Ok(())
}

/// A line of the script.
#[derive(Deserialize)]
struct Said {
    #[serde(flatten)]
    run: Run,
    #[serde(flatten)]
    answer: Answer,
}

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum Answer {
    Fio(fio::Answer),
    Bench(Bench),
}

#[derive(Deserialize)]
struct Bench {
    iops: f64,
    bytes_per_s: f64,
    lat_ns: Latency,
    member: Members,
    requests: Requests,
}

#[derive(Deserialize)]
struct Latency {
    p99: f64,
}

#[derive(Deserialize)]
struct Members {
    read_bytes: u64,
    write_bytes: u64,
}

#[derive(Deserialize)]
struct Requests {
    read_bytes: u64,
    write_bytes: u64,
}

impl Said {
    fn run(self) -> Run {
        let mut run = self.run;
        match self.answer {
            Answer::Fio(fio) => {
                let rates = fio.rates();
                (run.iops, run.bytes_per_s, run.p99_us) = (rates.iops, rates.bytes_per_s, rates.p99_us);
            }
            Answer::Bench(bench) => {
                (run.iops, run.bytes_per_s) = (bench.iops, bench.bytes_per_s);
                run.p99_us = bench.lat_ns.p99 / 1000.0;
                (run.member_read_bytes, run.member_written_bytes) =
                    (bench.member.read_bytes, bench.member.write_bytes);
                run.user_bytes = bench.requests.read_bytes + bench.requests.write_bytes;
            }
        }
        run
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SETTING: &str =
        r#""members":"nvme","level":"6","rw":"randread","bs":"4k","jobs":2,"health":"clean","bitmap":"none""#;

    fn run(rest: &str) -> Run {
        let said: Said = serde_json::from_str(&format!("{{{SETTING},{rest}}}")).expect("a line");
        said.run()
    }

    #[test]
    fn the_direction_that_fio_used_counts() {
        let read =
            r#"{"iops":10.5,"bw_bytes":43008,"total_ios":21,"clat_ns":{"percentile":{"99.000000":5000}}}"#;
        let none = r#"{"iops":0,"bw_bytes":0,"total_ios":0,"clat_ns":{"min":0}}"#;
        let members = r#""who":"twill","member_read_bytes":8192,"member_written_bytes":0,"user_bytes":4096"#;
        let run = run(&format!(
            r#"{members},"fio":{{"fio version":"3","jobs":[{{"read":{read},"write":{none}}}]}}"#
        ));
        assert_eq!((run.iops, run.bytes_per_s, run.p99_us), (10.5, 43008.0, 5.0));
        assert_eq!((run.member_read_bytes, run.user_bytes, run.jobs), (8192, 4096, 2));
    }

    #[test]
    fn the_engine_counts_its_members_itself() {
        let members = r#""who":"engine","member_read_bytes":0,"member_written_bytes":0,"user_bytes":0"#;
        let bench = r#"{"iops":7,"bytes_per_s":28672,"lat_ns":{"p99":2000},"member":{"read_bytes":2,"write_bytes":3},"requests":{"read_bytes":4,"write_bytes":1}}"#;
        let run = run(&format!(r#"{members},"bench":{bench}"#));
        assert_eq!((run.iops, run.p99_us, run.member_read_bytes, run.member_written_bytes), (7.0, 2.0, 2, 3));
        assert_eq!(run.user_bytes, 5);
    }
}
