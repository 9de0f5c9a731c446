//! fio as the load from outside.

use std::ffi::OsString;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::Error;

/// A job of fio.
#[derive(Clone, Debug)]
pub(super) struct Job<'a> {
    /// read, write, randread or randwrite.
    pub(super) rw: &'a str,
    pub(super) bs: u64,
    pub(super) iodepth: usize,
    /// Seconds that are measured.
    pub(super) runtime: f64,
    /// Seconds before that.
    pub(super) ramp: f64,
    /// Where and how: ioengine and its options.
    pub(super) target: Vec<OsString>,
}

/// What fio found.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Found {
    pub(super) iops: f64,
    /// Operations done while it measured.
    pub(super) operations: f64,
}

impl Job<'_> {
    /// Runs it in `folder`, where fio puts its state files.
    pub(super) fn run(&self, folder: &Path) -> Result<Found, Error> {
        let mut command = Command::new("fio");
        command
            .current_dir(folder)
            .args(["--name=twill", "--output-format=json", "--time_based", "--group_reporting", "--thread"])
            .args(["--randrepeat=0", "--norandommap", "--random_generator=tausworthe64"])
            .arg(format!("--rw={}", self.rw))
            .arg(format!("--bs={}", self.bs))
            .arg(format!("--iodepth={}", self.iodepth))
            .arg(format!("--runtime={}ms", (self.runtime * 1e3).ceil()))
            .arg(format!("--ramp_time={}ms", (self.ramp * 1e3).ceil()))
            .args(&self.target)
            .stdin(Stdio::null());
        let output = command.output().map_err(|source| super::not_started("fio", &source))?;
        let text = String::from_utf8_lossy(&output.stdout);
        let errors = String::from_utf8_lossy(&output.stderr);
        if !output.status.success() {
            return Err(Error::Program {
                name: "fio",
                reason: errors.lines().chain(text.lines()).take(3).collect::<Vec<_>>().join("; "),
            });
        }
        parse(&text, self.rw.ends_with("read")).ok_or_else(|| Error::Program {
            name: "fio",
            reason: format!("its report is not understood: {text}"),
        })
    }
}

/// Reads fio's report; before it there may be lines of other kinds.
fn parse(text: &str, read: bool) -> Option<Found> {
    let json: Value = serde_json::from_str(&text[text.find('{')?..]).ok()?;
    let job = json.get("jobs")?.get(0)?;
    let side = job.get(if read { "read" } else { "write" })?;
    let number = |name: &str| side.get(name)?.as_f64();
    (job.get("error")?.as_u64()? == 0)
        .then_some(Found { iops: number("iops")?, operations: number("total_ios")? })
        .filter(|found| found.operations > 0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_are_read_and_failures_are_none() {
        let report = |error: u32| {
            format!(
                "note: something\n{{\"jobs\": [{{\"error\": {error}, \"read\": {{\"iops\": 5.5, \"total_ios\": 11}}, \
                 \"write\": {{\"iops\": 0, \"total_ios\": 0}}}}]}}"
            )
        };
        assert_eq!(parse(&report(0), true), Some(Found { iops: 5.5, operations: 11.0 }));
        assert_eq!(parse(&report(0), false), None, "nothing was written");
        assert_eq!(parse(&report(5), true), None);
        assert_eq!(parse("fio: bad option", true), None);
    }
}
