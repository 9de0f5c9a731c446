//! The table of `bench-md`, and which goals it meets.

use super::runs::{Report, Run};

const NOTES: &str = "\
`cargo xtask vm bench-md --publish` writes this section (`--quick`: fewer settings of md and fewer rows; `--json` for all
runs). Each of six members (RAID-5 5+1, RAID-6 4+2, chunk 64 KiB) is cut in three parts: md, `twill serve --ublk` and
`twill bench` in process have one part each and take turns, row by row and round by round, in one machine under QEMU without
KVM, where everything is equally slow. fio with io_uring, depth 32 a job. *best*: the best of
`group_thread_count`/`stripe_cache_size` for that row. *ceiling*: a ublk device with nothing behind it at the same request
size, through the same export, data copied. *engine*: `twill bench` with as many shards as the server and as many requests in
flight as fio, without the redo log. *degraded*: `twill serve` closes the write hole: it logs each write before it touches the
stripe (of whole stripes at RAID-5 only the missing chunk); md does not, nor does `twill serve --no-redo-log`
(*degraded, no log*). *r+w*: bytes read and written at the members, divided by bytes of requests, from `/sys/block/*/stat`,
ramp included. *p99* in microseconds. Medians of all rounds; in brackets least and greatest.
";

pub(super) fn text(report: &Report) -> String {
    let rows = rows(report);
    let mut text = format!(
        "{NOTES}\nLinux {}, {} s a run, {} rounds.\n",
        report.kernel,
        report.seconds,
        report.rounds.max(1)
    );
    let head = "| RAID | work | jobs | array | md default | md best | twill | twill/best | ceiling | twill/ceiling | engine | engine/best | p99 md | p99 twill | r+w md | r+w twill |";
    let mut members = "";
    for row in &rows {
        let of = &row.twill.median.members;
        if of != members {
            members = of;
            text += &format!("\nMembers: {members}\n\n{head}\n{}|\n", "|---".repeat(16));
        }
        text += &row.line();
    }
    text + &goals(&rows)
}

/// The runs of one program in one setting.
struct Group<'a> {
    median: &'a Run,
    least: f64,
    greatest: f64,
}

/// Everything that ran under the same conditions as these runs of Twill.
struct Row<'a> {
    twill: Group<'a>,
    default: Option<Group<'a>>,
    best: Option<Group<'a>>,
    ceiling: Option<Group<'a>>,
    engine: Option<Group<'a>>,
}

fn group<'a>(runs: impl Iterator<Item = &'a Run>) -> Option<Group<'a>> {
    let mut runs: Vec<&Run> = runs.collect();
    runs.sort_by(|a, b| a.iops.total_cmp(&b.iops));
    let (least, greatest) = (runs.first()?.iops, runs.last()?.iops);
    Some(Group { median: runs[(runs.len() - 1) / 2], least, greatest })
}

fn rows(report: &Report) -> Vec<Row<'_>> {
    let mut rows: Vec<Row<'_>> = Vec::new();
    for run in report.runs.iter().filter(|run| run.who == "twill") {
        if !rows.iter().any(|row| is_same(row.twill.median, run)) {
            rows.extend(row(report, run));
        }
    }
    rows
}

fn row<'a>(report: &'a Report, twill: &'a Run) -> Option<Row<'a>> {
    let of = |who: &str| {
        let runs = report.runs.iter().filter(|run| is_same(run, twill));
        group(runs.filter(|run| run.who == who))
    };
    let ceiling = report.runs.iter().filter(|run| run.who == "ceiling" && is_same_work(run, twill));
    let mut settings: Vec<&str> = report.runs.iter().map(|run| run.who.as_str()).collect();
    settings.retain(|who| who.starts_with("md "));
    settings.sort_unstable();
    settings.dedup();
    let md = settings.into_iter().filter_map(of);
    Some(Row {
        twill: of("twill")?,
        default: of("md 0/256"),
        best: md.max_by(|a, b| a.median.iops.total_cmp(&b.median.iops)),
        ceiling: group(ceiling),
        engine: of("engine"),
    })
}

fn is_same_work(a: &Run, b: &Run) -> bool {
    a.members == b.members && a.rw == b.rw && a.bs == b.bs && a.jobs == b.jobs
}

fn is_same(a: &Run, b: &Run) -> bool {
    is_same_work(a, b) && a.level == b.level && a.health == b.health && a.bitmap == b.bitmap
}

impl Row<'_> {
    fn line(&self) -> String {
        let run = self.twill.median;
        let setting = self
            .best
            .as_ref()
            .map_or(String::new(), |best| format!(" ({})", best.median.who.trim_start_matches("md ")));
        let spread = match self.twill.least < self.twill.greatest {
            true => format!(" ({:.0} to {:.0})", self.twill.least, self.twill.greatest),
            false => String::new(),
        };
        let cells = [
            run.level.clone(),
            format!("{} {}", run.rw, run.bs),
            run.jobs.to_string(),
            self.array(),
            figure(self.default.as_ref()),
            figure(self.best.as_ref()) + &setting,
            figure(Some(&self.twill)) + &spread,
            shown(self.by_best()),
            figure(self.ceiling.as_ref()),
            shown(self.by_ceiling()),
            figure(self.engine.as_ref()),
            shown(self.engine_by_best()),
            p99(self.best.as_ref()),
            p99(Some(&self.twill)),
            amplification(self.best.as_ref()),
            amplification(Some(&self.twill)),
        ];
        format!("| {} |\n", cells.join(" | "))
    }

    fn array(&self) -> String {
        let run = self.twill.median;
        let bitmap = if run.bitmap == "none" { "" } else { ", bitmap" };
        match self.is_unlogged() {
            true => format!("degraded, no log{bitmap}"),
            false => format!("{}{bitmap}", run.health),
        }
    }

    fn name(&self) -> String {
        let run = self.twill.median;
        format!(
            "RAID-{} {} {}, {} jobs, {}, {}",
            run.level,
            run.rw,
            run.bs,
            run.jobs,
            self.array(),
            run.members
        )
    }

    fn by_best(&self) -> Option<f64> {
        ratio(Some(&self.twill), self.best.as_ref())
    }

    fn by_ceiling(&self) -> Option<f64> {
        ratio(Some(&self.twill), self.ceiling.as_ref())
    }

    fn engine_by_best(&self) -> Option<f64> {
        ratio(self.engine.as_ref(), self.best.as_ref())
    }

    fn is_read(&self) -> bool {
        self.twill.median.rw == "randread"
    }

    /// Whether degraded stripes were written as md does it, without a log.
    fn is_unlogged(&self) -> bool {
        self.twill.median.health.ends_with("-unlogged")
    }

    fn is_small_write(&self) -> bool {
        !self.is_read() && self.twill.median.bs == "4k"
    }

    /// By md's best, where this is a write of 64 KiB or more to an array in this health and the transport lets so much through.
    fn large_write_by_best(&self, health: &str, times: f64) -> Option<f64> {
        let counts = !self.is_read() && !self.is_small_write() && self.twill.median.health == health;
        self.by_best().filter(|_| counts && !self.is_bound(times))
    }

    /// Whether twice md's best is more than the transport lets through: then the transport decides, not the array.
    fn is_bound(&self, times: f64) -> bool {
        ratio(self.ceiling.as_ref(), self.best.as_ref()).is_some_and(|room| room < times)
    }
}

/// A goal of the comparison: the rows that it is about, what is compared there, and how much it should be at least.
struct Goal {
    text: &'static str,
    wanted: f64,
    of: fn(&Row<'_>) -> Option<f64>,
}

const GOALS: [Goal; 7] = [
    Goal {
        text: "64 KiB and larger writes by md's best, where the transport allows it",
        wanted: 2.0,
        of: |row| row.large_write_by_best("clean", 2.0),
    },
    Goal {
        text: "the same, degraded, logged",
        wanted: 1.5,
        of: |row| row.large_write_by_best("degraded", 1.5),
    },
    Goal {
        text: "the same, degraded, without the log as md is",
        wanted: 1.5,
        of: |row| row.large_write_by_best("degraded-unlogged", 1.5),
    },
    Goal {
        text: "writes of 4 KiB by the transport's ceiling",
        wanted: 0.9,
        of: |row| row.by_ceiling().filter(|_| row.is_small_write()),
    },
    Goal {
        text: "writes of 4 KiB in process by md's best",
        wanted: 1.5,
        of: |row| row.engine_by_best().filter(|_| row.is_small_write()),
    },
    Goal {
        text: "reads by the transport's ceiling",
        wanted: 0.9,
        of: |row| row.by_ceiling().filter(|_| row.is_read()),
    },
    Goal {
        text: "p99 of md's best by p99",
        wanted: 1.0,
        of: |row| {
            let (md, own) = (row.best.as_ref()?.median.p99_us, row.twill.median.p99_us);
            (own > 0.0).then(|| md / own)
        },
    },
];

fn goals(rows: &[Row<'_>]) -> String {
    let mut text = "\n| to reach | wanted | rows that do | least | at |\n|---|---|---|---|---|\n".to_owned();
    for goal in &GOALS {
        let found: Vec<(f64, &Row<'_>)> =
            rows.iter().filter_map(|row| Some(((goal.of)(row)?, row))).collect();
        let Some((least, at)) = found.iter().min_by(|a, b| a.0.total_cmp(&b.0)) else { continue };
        let met = found.iter().filter(|(ratio, _)| *ratio >= goal.wanted).count();
        let (name, wanted, all) = (goal.text, goal.wanted, found.len());
        text += &format!("| {name} | {wanted:.1} | {met} of {all} | {least:.2} | {} |\n", at.name());
    }
    text
}

fn figure(group: Option<&Group<'_>>) -> String {
    group.map_or("-".into(), |group| format!("{:.0}", group.median.iops))
}

fn ratio(a: Option<&Group<'_>>, b: Option<&Group<'_>>) -> Option<f64> {
    let (a, b) = (a?.median.iops, b?.median.iops);
    (b > 0.0).then(|| a / b)
}

fn shown(ratio: Option<f64>) -> String {
    ratio.map_or("-".into(), |ratio| format!("{ratio:.2}"))
}

fn p99(group: Option<&Group<'_>>) -> String {
    group.map_or("-".into(), |group| format!("{:.0}", group.median.p99_us))
}

/// Bytes at the members by bytes of requests.
fn amplification(group: Option<&Group<'_>>) -> String {
    let Some(run) = group.map(|group| group.median).filter(|run| run.user_bytes > 0) else {
        return "-".into();
    };
    let by_user = |bytes: u64| bytes as f64 / run.user_bytes as f64;
    format!("{:.2}+{:.2}", by_user(run.member_read_bytes), by_user(run.member_written_bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(who: &str, iops: f64) -> Run {
        let of_array = who != "ceiling";
        let word = |word: &str| if of_array { word.to_owned() } else { "-".to_owned() };
        Run {
            members: "null_blk".into(),
            level: word("5"),
            rw: "randwrite".into(),
            bs: "4k".into(),
            jobs: 1,
            health: word("clean"),
            bitmap: word("none"),
            who: who.into(),
            iops,
            bytes_per_s: iops * 4096.0,
            p99_us: 7.0,
            member_read_bytes: 2 * 4096 * 10,
            member_written_bytes: 2 * 4096 * 10,
            user_bytes: 4096 * 10,
        }
    }

    fn report(runs: &[Run]) -> Report {
        Report { kernel: "7".into(), seconds: 1, rounds: 1, runs: runs.to_vec() }
    }

    #[test]
    fn a_row_compares_with_the_best_of_md_and_with_the_ceiling() {
        let mut runs = vec![
            one("ceiling", 400.0),
            one("md 0/256", 50.0),
            one("twill", 200.0),
            one("md 4/256", 100.0),
            one("engine", 300.0),
        ];
        let text = text(&report(&runs));
        let row = "| 5 | randwrite 4k | 1 | clean | 50 | 100 (4/256) | 200 | 2.00 | 400 | 0.50 | 300 | 3.00 | 7 | 7 | 2.00+2.00 | 2.00+2.00 |";
        assert!(text.contains(row), "{text}");
        runs.push(Run { health: "degraded".into(), ..one("md 2/256", 999.0) });
        assert!(super::text(&report(&runs)).contains("| 100 (4/256) |"), "a degraded run is another row's");
    }

    #[test]
    fn degraded_writes_with_a_log_and_without_are_rows_and_goals_of_their_own() {
        let of =
            |health: &str, who: &str, iops| Run { bs: "64k".into(), health: health.into(), ..one(who, iops) };
        let runs = [
            of("degraded", "md 0/256", 100.0),
            of("degraded", "twill", 50.0),
            of("degraded-unlogged", "md 0/256", 110.0),
            of("degraded-unlogged", "twill", 220.0),
        ];
        let text = text(&report(&runs));
        assert!(text.contains("| 1 | degraded | 100 | 100 (0/256) | 50 | 0.50 |"), "{text}");
        assert!(text.contains("| 1 | degraded, no log | 110 | 110 (0/256) | 220 | 2.00 |"), "{text}");
        assert!(text.contains("| the same, degraded, logged | 1.5 | 0 of 1 | 0.50 |"), "{text}");
        assert!(
            text.contains("| the same, degraded, without the log as md is | 1.5 | 1 of 1 | 2.00 |"),
            "{text}"
        );
    }

    #[test]
    fn medians_count_and_the_best_setting_is_that_with_the_best_median() {
        let runs = [
            [one("md 0/256", 100.0), one("twill", 150.0), one("md 4/256", 300.0)],
            [one("md 0/256", 120.0), one("twill", 90.0), one("md 4/256", 80.0)],
            [one("md 0/256", 110.0), one("twill", 120.0), one("md 4/256", 90.0)],
        ];
        let text = text(&report(&runs.concat()));
        assert!(text.contains("| 110 | 110 (0/256) | 120 (90 to 150) | 1.09 |"), "{text}");
    }

    #[test]
    fn runs_of_several_times_are_one_table_if_they_are_of_one_kernel() {
        let first = report(&[one("md 0/256", 100.0), one("twill", 150.0)]);
        let of_nvme = |run: Run| Run { members: "nvme".into(), ..run };
        let rounds =
            [one("md 0/256", 300.0), one("twill", 250.0), one("md 0/256", 200.0), one("twill", 200.0)];
        let second = [&rounds[..], &[of_nvme(one("twill", 9.0))]].concat();
        let both = first.join(report(&second)).expect("one kernel");
        let text = text(&both.only(&["null_blk"]));
        assert!(text.contains("| 200 | 200 (0/256) | 200 (150 to 250) | 1.00 |"), "{text}");
        assert!(!text.contains("Members: nvme"), "{text}");
        let other = Report { kernel: "8".into(), ..report(&second) };
        assert!(report(&second).join(other).is_err());
    }

    #[test]
    fn goals_name_the_row_that_is_furthest_from_them() {
        let write = |who: &str, iops| Run { bs: "64k".into(), ..one(who, iops) };
        let runs = [
            one("ceiling", 400.0),
            one("md 0/256", 100.0),
            one("twill", 200.0),
            one("engine", 150.0),
            write("ceiling", 190.0),
            write("md 0/256", 100.0),
            write("twill", 170.0),
        ];
        let text = text(&report(&runs));
        assert!(text.contains("| writes of 4 KiB by the transport's ceiling | 0.9 | 0 of 1 | 0.50 | RAID-5 randwrite 4k, 1 jobs, clean, null_blk |"), "{text}");
        assert!(text.contains("| writes of 4 KiB in process by md's best | 1.5 | 1 of 1 | 1.50 |"), "{text}");
        assert!(!text.contains("64 KiB and larger"), "the transport lets no twice of md through");
    }
}
