//! What the scripts in the machine say of one run, with the whole answer of fio.

use anyhow::{Context, Result};
use serde::Deserialize;

use super::runs::{Application, Cut, NotRun, Report, Run};
use crate::fio::Answer;
use crate::machine::JSON;

/// Takes a line of a script: a result, or words to be printed.
pub(super) fn take(report: &mut Report, line: &str) -> Result<()> {
    let Some(json) = line.strip_prefix(JSON) else {
        println!("{line}");
        return Ok(());
    };
    match serde_json::from_str(json).with_context(|| format!("what a script said: {line:.200}"))? {
        Said::Machine { kernel } => report.kernel = kernel,
        Said::NotRun(one) => {
            eprintln!("not run: {}: {}", one.what, one.reason);
            report.not_run.push(one);
        }
        Said::Cuts(cut) => {
            eprintln!("RAID-{} {} after a cut: {} us", cut.level, cut.who, cut.clean_us);
            report.cuts.push(cut);
        }
        Said::Applications(one) => {
            eprintln!("{} {}: {} in {} ms", one.work, one.who, one.ended, one.took_ms);
            report.applications.push(one);
        }
        Said::Members(measured) => report.members.push(measured.run()),
        Said::Files(measured) => report.files.push(measured.run()),
    }
    Ok(())
}

/// A line of a script.
#[derive(Deserialize)]
#[serde(tag = "part", rename_all = "kebab-case")]
enum Said {
    Machine { kernel: String },
    NotRun(NotRun),
    Cuts(Cut),
    Members(Measured),
    Files(Measured),
    Applications(Application),
}

#[derive(Deserialize)]
struct Measured {
    #[serde(flatten)]
    run: Run,
    fio: Answer,
}

impl Measured {
    fn run(self) -> Run {
        let (mut run, rates) = (self.run, self.fio.rates());
        (run.iops, run.p99_us) = (rates.iops, rates.p99_us);
        if run.user_bytes == 0 {
            run.user_bytes = rates.bytes; // of a file, which has no counter of its own
        }
        let on = if run.level == "-" { "files".to_owned() } else { format!("RAID-{}", run.level) };
        let (state, rw, bs, who, setting) = (&run.state, &run.rw, &run.bs, &run.who, &run.setting);
        eprintln!("{on} {state} {rw} {bs} {who} {setting}: {:.0}/s", run.iops);
        run
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIO: &str = r#"{"jobs":[{"read":{"iops":0,"bw_bytes":0,"total_ios":0,"clat_ns":{}},
        "write":{"iops":7,"bw_bytes":28672,"io_bytes":28672,"total_ios":7,"clat_ns":{"percentile":{"99.000000":9000}}}}]}"#;

    fn taken(line: &str) -> Report {
        let mut report = Report::default();
        take(&mut report, &format!("{JSON}{line}")).expect("a line");
        report
    }

    #[test]
    fn the_bytes_of_a_run_are_those_of_the_device_or_else_of_fio() {
        let line = |part: &str, user: &str| {
            format!(
                r#"{{"part":"{part}","level":"5","state":"aged","rw":"randwrite","bs":"4k","who":"md","setting":"0/256",
                "member_read_bytes":1,"member_written_bytes":2{user},"fio":{FIO}}}"#
            )
        };
        let of_device = &taken(&line("members", r#","user_bytes":40960"#)).members[0];
        assert_eq!((of_device.user_bytes, of_device.iops, of_device.p99_us), (40960, 7.0, 9.0));
        assert_eq!((of_device.member_read_bytes, of_device.member_written_bytes), (1, 2));
        assert_eq!(taken(&line("files", "")).files[0].user_bytes, 28672);
    }

    #[test]
    fn cuts_reasons_and_the_machine_have_lines_of_their_own() {
        let cut = taken(
            r#"{"part":"cuts","level":"6","who":"twill-25","round":0,"serves_us":3,"clean_us":4,"member_read_bytes":5,"member_written_bytes":6}"#,
        );
        assert_eq!((cut.cuts[0].serves_us, cut.cuts[0].clean_us, cut.cuts[0].member_read_bytes), (3, 4, 5));
        let application = taken(
            r#"{"part":"applications","work":"sqlite-8","who":"twill-5","round":0,"ended":320,"took_ms":900,"busy_percent":41,"member_read_bytes":5,"member_written_bytes":6}"#,
        );
        let Application { ended, took_ms, busy_percent, .. } = application.applications[0];
        assert_eq!((ended, took_ms, busy_percent), (320, 900, 41));
        let reason = taken(r#"{"part":"not-run","what":"f2fs","reason":"no module"}"#);
        assert_eq!(reason.not_run, [NotRun { what: "f2fs".into(), reason: "no module".into() }]);
        assert_eq!(taken(r#"{"part":"machine","kernel":"7.3"}"#).kernel, "7.3");
        assert!(take(&mut Report::default(), &format!("{JSON}{{\"part\":\"other\"}}")).is_err());
    }
}
