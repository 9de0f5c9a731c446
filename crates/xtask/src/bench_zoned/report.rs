//! The tables of `bench-zoned`.

use super::runs::{Application, Cut, Report, Run};
use crate::figures::{median, with_range};

const NOTES: &str = "\
`cargo xtask vm bench-zoned --publish` writes this section (`--quick`: fewer rows and settings; `--json` for all runs; `--part` for one of the
three parts). All programs are in one machine under QEMU without KVM, where everything is slow, and take turns row by row and round by
round: the ratios count, not the rates. The emulator makes the processor's CRC-32C bit by bit, so the machine has none and checksums are made with
tables: that is still dearer here, beside a copy or an XOR, than on a processor, and Twill and btrfs checksum every block where md and F2FS do not. fio with io_uring, depth 32, one job, direct. Medians of all rounds, in brackets least and greatest; ratios are
those of each round. *r+w*: bytes read and written at the members by bytes of requests, from `/sys/block/*/stat`. Members are in
memory, where a random write costs what one in order costs, and which reclaim nothing of their own.
";

const MEMBERS: &str = "\
### Ordinary devices: md and zoned arrays

RAID-5 over four members of 128 MiB (3 + 1), RAID-6 over six (4 + 2), each program with null_blk devices of its own. Twill has zones of 1 MiB,
a reserve of 25 or 100 %, serves by ublk, and leaves idle reclaim off, so that it does nothing while others are measured. md has chunks of 64 KiB, and
of its settings (`group_thread_count`/`stripe_cache_size`) the best of the row counts, which the cell names; its arrays with a bitmap or a journal read
as the one without. *filled*: the whole array is written once in order, before each run of random writes too. *aged*: then twice the capacity
in random writes of 4 KiB (Twill; memory does not age md), and before each run of sequential writes once more, of which a run makes one pass at most.
*degraded*: filled, a member failed, and Twill has nothing left to move.
";

const CUTS: &str = "\
### After a cut

Under random writes of 4 KiB to a tenth of the array all members stop at one moment (device-mapper), and come back with what was written until
then. Times are from the start of `mdadm --assemble` or `twill serve` until the block device is there, and until no stripe waits for
a resync; bytes are those at the members until then. md's resync is not throttled, and its bitmap has chunks of 1 MiB, clear before each cut. Times
and bytes of a resync grow with the members, those of a bitmap's with what is marked, of Twill's start with what was written since the checkpoint.
";

const FILES: &str = "\
### Zoned devices: file systems

Four null_blk devices of 256 MiB with zones of 4 MiB that have to be written in order, F2FS with a conventional one of 64 MiB beside, and a file
that takes 60 % of what each file system has room for. Twill's arrays have ext4 on them. A run of writes has a fixed amount and ends with fsync. *aged*: after
twice the file's size in random writes of 64 KiB. btrfs (single) and F2FS lose data with a device, as Twill does at RAID-0; RAID-5 does not.
";

const APPLICATIONS: &str = "\
### Zoned devices that take time: applications

The same file systems over the same kinds of devices, whose every command takes so long that devices and not the processors are what is measured; a
figure for which the processors were busy for more than 70 % of its time is none. *sqlite-N*: so many databases of SQLite (journal WAL, synchronous FULL),
each with one client that inserts rows of 1 KiB, a transaction each: a stand-in for the paper's MySQL. *files*: 16 writers of 64 KiB at random in
one file, each of which calls fsync after ten, as Sysbench's file writes do after a hundred. *r+w*: KiB read and written at the members for each
transaction or write.
";
/// Most hundredths of the processors' time that a figure of devices may have taken.
const BUSY_PERCENT_MAX: u32 = 70;

/// Peers that no machine of this project can run, and why.
const NOT_HERE: &[(&str, &str)] = &[
    (
        "RAIZN",
        "it is patches for Linux 5.15, and this kernel is another; ZapRAID's experiment 1 above has a stand-in",
    ),
    ("ZRAID", "it is patches for Linux 5.15, and needs drives with ZRWA"),
    ("ZapRAID as released", "it needs SPDK with zoned NVMe drives to itself"),
    ("dm-zoned", "no Debian package has dmzadm, which formats its devices"),
    ("md and dm-raid on zoned devices", "their superblocks are written in place, which such devices refuse"),
];

pub(super) fn text(report: &Report) -> String {
    let quick = if report.quick { "`--quick`, " } else { "" };
    let (kernel, host) = (&report.kernel, &report.host);
    let mut text = format!(
        "{NOTES}\n{quick}{} s a run, {} rounds; Linux {kernel}, emulated on {host}.\n",
        report.seconds, report.rounds
    );
    if !report.members.is_empty() {
        text += &format!("\n{MEMBERS}\n{}", members(&rows(&report.members)));
    }
    if !report.cuts.is_empty() {
        text += &format!("\n{CUTS}\n{}", cuts(&report.cuts));
    }
    if !report.files.is_empty() {
        text += &format!("\n{FILES}\n{}", files(&rows(&report.files)));
    }
    if !report.applications.is_empty() {
        let takes_us = 20 * u64::from(report.slow_by);
        text +=
            &format!("\n{APPLICATIONS}\nA command takes {takes_us} us (`--slow-by {}`).\n\n", report.slow_by);
        text += &applications(&report.applications);
    }
    text + &not_run(report)
}

/// Runs under the same conditions, of all programs.
struct Row<'a> {
    at: &'a Run,
    runs: Vec<&'a Run>,
}

fn rows(runs: &[Run]) -> Vec<Row<'_>> {
    let mut rows: Vec<Row<'_>> = Vec::new();
    let key = |run: &Run| (run.level.clone(), run.state.clone(), run.rw.clone(), run.bs.clone());
    for run in runs {
        match rows.iter_mut().find(|row| key(row.at) == key(run)) {
            Some(row) => row.runs.push(run),
            None => rows.push(Row { at: run, runs: vec![run] }),
        }
    }
    rows
}

impl Row<'_> {
    /// The runs of one program in one setting: that with the best median among those that count.
    fn best(&self, counts: impl Fn(&str) -> bool) -> Option<Figure<'_>> {
        let mut figures: Vec<Figure<'_>> = Vec::new();
        for run in self.runs.iter().filter(|run| counts(&run.who)) {
            match figures.iter_mut().find(|figure| figure.is_of(run)) {
                Some(figure) => figure.runs.push(run),
                None => figures.push(Figure { runs: vec![run] }),
            }
        }
        figures.into_iter().max_by(|a, b| a.iops().total_cmp(&b.iops()))
    }

    fn of(&self, who: &str) -> Option<Figure<'_>> {
        self.best(|one| one == who)
    }

    fn ratio(&self, who: &str, to: impl Fn(&str) -> bool) -> Vec<f64> {
        let (Some(own), Some(other)) = (self.of(who), self.best(to)) else { return Vec::new() };
        own.runs.iter().zip(&other.runs).map(|(own, other)| own.iops / other.iops).collect()
    }

    fn work(&self) -> String {
        format!("{} {}", self.at.rw, self.at.bs)
    }
}

struct Figure<'a> {
    runs: Vec<&'a Run>,
}

impl Figure<'_> {
    fn is_of(&self, run: &Run) -> bool {
        self.runs.first().is_some_and(|first| (&first.who, &first.setting) == (&run.who, &run.setting))
    }

    fn iops(&self) -> f64 {
        median(self.runs.iter().map(|run| run.iops))
    }

    fn p99_ms(&self) -> f64 {
        median(self.runs.iter().map(|run| run.p99_us / 1000.0))
    }

    /// Requests a second, with the setting if there are several.
    fn rate(&self) -> String {
        let setting = self.runs.first().map_or("-", |run| &run.setting);
        let rate = spread(self.runs.iter().map(|run| run.iops), 0);
        if setting == "-" { rate } else { format!("{rate}, {setting}") }
    }

    /// Bytes read and written at the members by bytes of requests.
    fn moved(&self) -> String {
        let sum = |of: fn(&Run) -> u64| self.runs.iter().map(|run| of(run)).sum::<u64>() as f64;
        let user = sum(|run| run.user_bytes);
        let by_user = |bytes: f64| if user > 0.0 { bytes / user } else { f64::NAN };
        format!(
            "{:.2}+{:.2}",
            by_user(sum(|run| run.member_read_bytes)),
            by_user(sum(|run| run.member_written_bytes))
        )
    }
}

/// The median, and the least and the greatest if they differ, with so many digits behind the point.
fn spread(values: impl Iterator<Item = f64> + Clone, digits: usize) -> String {
    let text = |value: f64| format!("{value:.digits$}");
    let least = text(values.clone().fold(f64::INFINITY, f64::min));
    let most = text(values.clone().fold(0.0, f64::max));
    let range = if least == most { String::new() } else { format!(" ({least} to {most})") };
    text(median(values)) + &range
}

fn cell(text: Option<String>) -> String {
    text.unwrap_or_else(|| "-".into())
}

fn line(cells: &[String]) -> String {
    format!("| {} |\n", cells.join(" | "))
}

fn table(head: &[String], lines: impl Iterator<Item = Vec<String>>) -> String {
    let below = format!("|{}\n", "---|".repeat(head.len()));
    lines.fold(line(head) + &below, |text, cells| text + &line(&cells))
}

fn is_md(who: &str) -> bool {
    who.starts_with("md")
}

const MD: [&str; 3] = ["md", "md-bitmap", "md-journal"];
const TWILL: [&str; 2] = ["twill-25", "twill-100"];

fn title(who: &str) -> String {
    match who.split_once('-') {
        Some(("twill", reserve)) => format!("twill, {reserve} %"),
        Some((program, with)) => format!("{program}, {with}"),
        None => who.to_owned(),
    }
}

fn members(rows: &[Row<'_>]) -> String {
    let at = |row: &Row<'_>| vec![row.at.level.clone(), row.at.state.clone(), row.work()];
    let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
    let mut head = words(&["RAID", "array", "work, requests a second"]);
    head.extend(MD.map(title));
    head.extend(TWILL.iter().flat_map(|who| [title(who), "by md's best".into()]));
    let rates = table(
        &head,
        rows.iter().map(|row| {
            let mut cells = at(row);
            cells.extend(MD.map(|who| cell(row.of(who).map(|of| of.rate()))));
            for who in TWILL {
                cells.extend([cell(row.of(who).map(|of| of.rate())), with_range(row.ratio(who, is_md))]);
            }
            cells
        }),
    );
    let mut head = words(&["RAID", "array", "work", "p99 of md's best, ms"]);
    head.extend(TWILL.map(title));
    head.extend(MD.iter().chain(&TWILL).map(|who| format!("r+w {}", title(who))));
    let costs = table(
        &head,
        rows.iter().map(|row| {
            let p99 = |of: Figure<'_>| format!("{:.1}", of.p99_ms());
            let mut cells = at(row);
            cells.push(cell(row.best(is_md).map(p99)));
            cells.extend(TWILL.map(|who| cell(row.of(who).map(p99))));
            cells.extend(MD.iter().chain(&TWILL).map(|who| cell(row.of(who).map(|of| of.moved()))));
            cells
        }),
    );
    format!("{rates}\n{costs}\n{}", won_and_lost(rows))
}

/// Where a zoned array is the slower one, and by how much.
fn won_and_lost(rows: &[Row<'_>]) -> String {
    let head = ["beside md's best", "rows", "slower in", "slowest", "at", "fastest", "at"].map(str::to_owned);
    let place = |row: &Row<'_>| format!("RAID-{} {} {}", row.at.level, row.at.state, row.work());
    table(
        &head,
        TWILL.iter().filter_map(|who| {
            let ratios: Vec<(f64, &Row<'_>)> = rows
                .iter()
                .map(|row| (median(row.ratio(who, is_md).into_iter()), row))
                .filter(|(ratio, _)| ratio.is_finite())
                .collect();
            let least = ratios.iter().min_by(|a, b| a.0.total_cmp(&b.0))?;
            let most = ratios.iter().max_by(|a, b| a.0.total_cmp(&b.0))?;
            let slower = ratios.iter().filter(|(ratio, _)| *ratio < 1.0).count();
            let figure = |(ratio, _): &(f64, &Row<'_>)| format!("{ratio:.2}");
            Some(vec![
                title(who),
                ratios.len().to_string(),
                slower.to_string(),
                figure(least),
                place(least.1),
                figure(most),
                place(most.1),
            ])
        }),
    )
}

fn cuts(cuts: &[Cut]) -> String {
    let head = ["RAID", "array", "serves after ms", "no resync after ms", "MiB read", "MiB written"]
        .map(str::to_owned);
    let mut arrays: Vec<(&str, &str)> = Vec::new();
    for cut in cuts {
        if !arrays.contains(&(&cut.level, &cut.who)) {
            arrays.push((&cut.level, &cut.who));
        }
    }
    table(
        &head,
        arrays.into_iter().map(|(level, who)| {
            let of = |what: fn(&Cut) -> f64, digits| {
                spread(cuts.iter().filter(|cut| cut.level == level && cut.who == who).map(what), digits)
            };
            vec![
                level.to_owned(),
                title(who),
                of(|cut| cut.serves_us as f64 / 1e3, 0),
                of(|cut| cut.clean_us as f64 / 1e3, 0),
                of(|cut| cut.member_read_bytes as f64 / f64::from(1 << 20), 1),
                of(|cut| cut.member_written_bytes as f64 / f64::from(1 << 20), 1),
            ]
        }),
    )
}

/// All of them, in the order in which they first come.
fn each_once<'a>(words: impl Iterator<Item = &'a String>) -> Vec<&'a str> {
    let mut all: Vec<&str> = Vec::new();
    for one in words {
        if !all.contains(&one.as_str()) {
            all.push(one);
        }
    }
    all
}

fn is_own(who: &str) -> bool {
    who.starts_with("twill")
}

/// The name of a file system.
fn name(who: &str) -> String {
    match who.split_once('-') {
        Some(("twill", level)) => format!("ext4, twill RAID-{level}"),
        Some(("f2fs", _)) => "F2FS".to_owned(),
        _ => title(who),
    }
}

/// Columns of file systems: their rates, Twill's by the best other, and what members moved.
fn heads(programs: &[&str], own: &[&str]) -> Vec<String> {
    let rates = programs.iter().map(|who| name(who));
    let ratios = own.iter().map(|who| format!("{} by the best other", name(who)));
    rates.chain(ratios).chain(programs.iter().map(|who| format!("r+w {}", name(who)))).collect()
}

fn applications(all: &[Application]) -> String {
    let programs = each_once(all.iter().map(|one| &one.who));
    let own: Vec<&str> = programs.iter().copied().filter(|who| is_own(who)).collect();
    let mut head = vec!["work, transactions or writes a second".to_owned()];
    head.extend(heads(&programs, &own));
    head.push("processors busy, most".to_owned());
    let rate = |one: &Application| one.ended as f64 / one.took_ms as f64 * 1e3;
    let lines = each_once(all.iter().map(|one| &one.work)).into_iter().map(|work| {
        let runs = |who: &str| -> Vec<&Application> {
            all.iter().filter(|one| one.work == work && one.who == who).collect()
        };
        let is_measured = |runs: &[&Application]| {
            !runs.is_empty()
                && median(runs.iter().map(|one| one.busy_percent.into())) <= BUSY_PERCENT_MAX.into()
        };
        let rates = |who: &str| -> Option<Vec<f64>> {
            let runs = runs(who);
            is_measured(&runs).then(|| runs.into_iter().map(rate).collect())
        };
        let mut cells = vec![work.to_owned()];
        cells.extend(programs.iter().map(|who| cell(rates(who).map(|rates| spread(rates.into_iter(), 1)))));
        let others = programs.iter().filter(|who| !is_own(who)).filter_map(|who| rates(who));
        let best = others.max_by(|a, b| median(a.iter().copied()).total_cmp(&median(b.iter().copied())));
        cells.extend(own.iter().map(|who| {
            let ratios = rates(who)
                .zip(best.as_ref())
                .map(|(own, best)| own.iter().zip(best).map(|(own, best)| own / best).collect());
            with_range(ratios.unwrap_or_default())
        }));
        cells.extend(programs.iter().map(|who| {
            let runs = runs(who);
            let ended: u64 = runs.iter().map(|one| one.ended).sum();
            let kib = |bytes: fn(&Application) -> u64| {
                runs.iter().map(|one| bytes(one)).sum::<u64>() as f64 / 1024.0 / ended as f64
            };
            cell((ended > 0).then(|| {
                format!("{:.1}+{:.1}", kib(|one| one.member_read_bytes), kib(|one| one.member_written_bytes))
            }))
        }));
        let busiest = all.iter().filter(|one| one.work == work).map(|one| one.busy_percent).max();
        cells.push(cell(busiest.map(|percent| format!("{percent} %"))));
        cells
    });
    table(&head, lines)
}

fn files(rows: &[Row<'_>]) -> String {
    let programs = each_once(rows.iter().flat_map(|row| &row.runs).map(|run| &run.who));
    let own: Vec<&str> = programs.iter().copied().filter(|who| is_own(who)).collect();
    let mut head = vec!["file system".to_owned(), "work, requests a second".to_owned()];
    head.extend(heads(&programs, &own));
    table(
        &head,
        rows.iter().map(|row| {
            let mut cells = vec![row.at.state.clone(), row.work()];
            cells.extend(programs.iter().map(|who| cell(row.of(who).map(|of| of.rate()))));
            cells.extend(own.iter().map(|who| with_range(row.ratio(who, |other| !is_own(other)))));
            cells.extend(programs.iter().map(|who| cell(row.of(who).map(|of| of.moved()))));
            cells
        }),
    )
}

fn not_run(report: &Report) -> String {
    let found = report.not_run.iter().map(|one| vec![one.what.clone(), one.reason.clone()]);
    let known = NOT_HERE.iter().map(|(what, reason)| vec![(*what).to_owned(), (*reason).to_owned()]);
    let head = ["not run", "reason"].map(str::to_owned);
    format!("\n### Not run\n\n{}", table(&head, found.chain(known)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(who: &str, setting: &str, iops: f64) -> Run {
        Run {
            level: "5".into(),
            state: "aged".into(),
            rw: "randwrite".into(),
            bs: "4k".into(),
            who: who.into(),
            setting: setting.into(),
            iops,
            p99_us: 3000.0,
            member_read_bytes: 2 * 4096,
            member_written_bytes: 6 * 4096,
            user_bytes: 2 * 4096,
        }
    }

    fn of(members: Vec<Run>) -> String {
        text(&Report { rounds: 2, seconds: 1, members, ..Report::default() })
    }

    #[test]
    fn a_row_compares_each_reserve_with_the_best_of_all_of_md_round_by_round() {
        let text = of(vec![
            one("md", "0/256", 90.0),
            one("md", "4/4096", 100.0),
            one("md-bitmap", "4/4096", 80.0),
            one("twill-25", "-", 50.0),
            one("twill-100", "-", 150.0),
            one("md", "0/256", 190.0),
            one("md", "4/4096", 200.0),
            one("md-bitmap", "4/4096", 70.0),
            one("twill-25", "-", 60.0),
            one("twill-100", "-", 220.0),
        ]);
        let row = "| 5 | aged | randwrite 4k | 200 (100 to 200), 4/4096 | 80 (70 to 80), 4/4096 | - | 60 (50 to 60) \
                   | 0.50 (0.30 to 0.50) | 220 (150 to 220) | 1.50 (1.10 to 1.50) |";
        assert!(text.contains(row), "{text}");
        assert!(
            text.contains("| 3.0 | 3.0 | 3.0 | 1.00+3.00 | 1.00+3.00 | - | 1.00+3.00 | 1.00+3.00 |"),
            "{text}"
        );
        let lost =
            "| twill, 25 % | 1 | 1 | 0.50 | RAID-5 aged randwrite 4k | 0.50 | RAID-5 aged randwrite 4k |";
        assert!(text.contains(lost), "{text}");
        assert!(text.contains("| twill, 100 % | 1 | 0 | 1.50 |"), "{text}");
    }

    #[test]
    fn cuts_are_medians_with_their_range() {
        let cut = |who: &str, clean_us| Cut {
            level: "5".into(),
            who: who.into(),
            serves_us: 500_000,
            clean_us,
            member_read_bytes: 3 << 20,
            member_written_bytes: 1 << 20,
        };
        let cuts =
            vec![cut("md", 2_000_000), cut("twill-25", 500_000), cut("md", 4_000_000), cut("md", 3_000_000)];
        let text = text(&Report { cuts, ..Report::default() });
        assert!(text.contains("| 5 | md | 500 | 3000 (2000 to 4000) | 3.0 | 1.0 |"), "{text}");
        assert!(text.contains("| 5 | twill, 25 % | 500 | 500 | 3.0 | 1.0 |"), "{text}");
    }

    #[test]
    fn files_compare_with_the_best_other_file_system_and_what_did_not_run_is_named() {
        let file = |who: &str, iops| Run { level: "-".into(), ..one(who, "-", iops) };
        let files = vec![file("btrfs-single", 10.0), file("f2fs-single", 40.0), file("twill-5", 20.0)];
        let not_run =
            vec![super::super::runs::NotRun { what: "btrfs-raid1".into(), reason: "no profile".into() }];
        let text = text(&Report { files, not_run, ..Report::default() });
        assert!(text.contains("| aged | randwrite 4k | 10 | 40 | 20 | 0.50 (0.50 to 0.50) |"), "{text}");
        assert!(text.contains("| btrfs-raid1 | no profile |"), "{text}");
        assert!(text.contains("| RAIZN |"), "{text}");
    }

    #[test]
    fn applications_compare_with_the_best_other_and_busy_processors_are_no_figure() {
        let one = |who: &str, took_ms, busy_percent| Application {
            work: "sqlite-8".into(),
            who: who.into(),
            ended: 100,
            took_ms,
            busy_percent,
            member_read_bytes: 0,
            member_written_bytes: 409_600,
        };
        let applications =
            vec![one("btrfs-single", 4000, 20), one("f2fs-single", 500, 71), one("twill-5", 1000, 30)];
        let text = text(&Report { applications, slow_by: 250, ..Report::default() });
        assert!(text.contains("A command takes 5000 us"), "{text}");
        let row =
            "| sqlite-8 | 25.0 | - | 100.0 | 4.00 (4.00 to 4.00) | 0.0+4.0 | 0.0+4.0 | 0.0+4.0 | 71 % |";
        assert!(text.contains(row), "{text}");
    }

    #[test]
    fn runs_of_two_times_are_one_table_only_in_one_setting() {
        let report = |kernel: &str| Report {
            kernel: kernel.into(),
            rounds: 3,
            members: vec![one("md", "0/256", 1.0)],
            ..Report::default()
        };
        let both = report("7").join(report("7")).expect("one setting");
        assert_eq!((both.rounds, both.members.len()), (6, 2));
        assert!(report("7").join(report("8")).is_err());
    }
}
