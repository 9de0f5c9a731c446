//! `cargo xtask bench-beside`: ten arrays in one process, one of which waits for a member that hangs in every other run: what its
//! neighbour's clients see of that, and how long the neighbour's status takes.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::figures::{Kept, median, with_range};
use crate::machine;

const PAGE: &str = "docs/performance.md";
const SECTION: &str = "bench-beside";
const ARRAYS: usize = 10;
const MEMBERS: usize = 3;
const MEMBER_BYTES: u64 = 64 << 20;
/// The target of the member that hangs listens here.
const PORT: u16 = 24420;
const NQN: &str = "nqn.2026-11.bench:beside";
const PATIENCE: Duration = Duration::from_secs(30);
/// A member that does not answer for ten seconds fails: a run is shorter.
const SECONDS_MAX: u32 = 6;

/// Arguments of `cargo xtask bench-beside`.
#[derive(clap::Args)]
#[command(
    after_help = "Example: two minutes, and the table goes into docs/performance.md\n  cargo xtask bench-beside --publish"
)]
pub struct Arguments {
    /// Seconds of each run
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=i64::from(SECONDS_MAX)))]
    seconds: u32,
    /// Rounds, in turns within each row; medians count
    #[arg(long, default_value_t = 5)]
    rounds: u32,
    /// Shards that the arrays share
    #[arg(long, default_value_t = 1)]
    shards: u16,
    /// The program under test; without it target/release/twill, built first
    #[arg(long)]
    twill: Option<PathBuf>,
    /// Figures of earlier runs.
    #[command(flatten)]
    kept: Kept,
}

/// One run of fio at the neighbour.
#[derive(Serialize, Deserialize)]
struct Point {
    /// `randread` or `randwrite`.
    work: String,
    hangs: bool,
    iops: f64,
    p99_us: f64,
    /// The slowest of the neighbour's answers to `twill status` meanwhile.
    status_ms: f64,
}

/// Runs it and prints the table.
pub fn run(root: &Path, arguments: &Arguments) -> Result<ExitCode> {
    let measure = || measure(root, arguments);
    arguments.kept.points(measure, table, &root.join(PAGE), SECTION)
}

fn measure(root: &Path, arguments: &Arguments) -> Result<Vec<Point>> {
    let twill = machine::program(root, arguments.twill.as_deref())?;
    let served = Served::start(&twill, arguments.shards)?;
    let mut points = Vec::new();
    for round in 0..arguments.rounds {
        for work in ["randread", "randwrite"] {
            for hangs in [false, true] {
                let point = served.point(work, hangs, arguments.seconds)?;
                let beside = if hangs { "a member that hangs" } else { "nine that work" };
                eprintln!("round {round}, {work} beside {beside}: 99 % within {:.0} us", point.p99_us);
                points.push(point);
                arguments.kept.keep(&points)?;
            }
        }
    }
    Ok(points)
}

/// Ten arrays in memory in one process; the last one's first member is a target's.
struct Served {
    folder: PathBuf,
    twill: PathBuf,
    target: Child,
    server: Option<Child>,
    /// Writes to the array whose member hangs.
    load: Option<Child>,
}

impl Served {
    fn start(twill: &Path, shards: u16) -> Result<Self> {
        let folder = Path::new("/dev/shm").join(format!("twill-beside-{}", std::process::id()));
        fs::create_dir_all(folder.join("run")).with_context(|| folder.display().to_string())?;
        let mut served_by = command(twill, &folder, "target.log")?;
        let drive = folder.join("drive");
        File::create(&drive)?.set_len(MEMBER_BYTES)?;
        served_by.args(["target", "--reservations-new", "--allow-any", "--shards", "1"]);
        served_by.args(["--listen", &format!("127.0.0.1:{PORT}")]).arg(format!(
            "{}={}",
            drive.display(),
            NQN
        ));
        let target = served_by.spawn().context("twill target")?;
        let mut served = Served { folder, twill: twill.to_owned(), target, server: None, load: None };
        let configuration = served.create_all()?;
        fs::write(served.folder.join("twill.toml"), configuration)?;
        let mut serve = served.command("server.log")?;
        serve.args(["serve", "--all", "--config", "twill.toml", "--shards", &shards.to_string()]);
        served.server = Some(serve.spawn().context("twill serve")?);
        served.wait_for("ten arrays", || {
            (0..ARRAYS).all(|array| served.folder.join(format!("run/{}.nbd", name(array))).exists())
        })?;
        let mut load =
            served.fio(ARRAYS - 1, "randwrite", &["--runtime=36000", "--rate_iops=200", "--iodepth=8"]);
        served.load = Some(load.stdout(Stdio::null()).stderr(Stdio::null()).spawn().context("fio")?);
        Ok(served)
    }

    /// Makes the arrays; the configuration that names them.
    fn create_all(&self) -> Result<String> {
        let mut configuration = String::new();
        for array in 0..ARRAYS {
            let mut members = Vec::new();
            for member in 0..MEMBERS {
                if (array, member) == (ARRAYS - 1, 0) {
                    members.push(format!("nvme://127.0.0.1:{PORT}/{NQN}"));
                    continue;
                }
                let path = self.folder.join(format!("{}-{member}", name(array)));
                File::create(&path)?.set_len(MEMBER_BYTES)?;
                members.push(path.display().to_string());
            }
            let create =
                ["create", "--level", "5", "--chunk", "64K", "--assume-clean", "--name", &name(array)];
            self.wait_for("a target", || {
                let made = self
                    .command("create.log")
                    .map(|mut command| command.args(create).args(&members).status());
                made.is_ok_and(|status| status.is_ok_and(|status| status.success()))
            })?;
            configuration += &format!("[array.{}]\nmembers = {members:?}\nublk = false\n", name(array));
        }
        Ok(configuration)
    }

    fn point(&self, work: &str, hangs: bool, seconds: u32) -> Result<Point> {
        let target = Pid::from_child(&self.target);
        if hangs {
            kill_process(target, Signal::STOP)?;
        }
        let measured = self.neighbour(work, seconds);
        kill_process(target, Signal::CONT)?;
        std::thread::sleep(Duration::from_millis(500)); // what has waited is made up for
        let (job, status_ms) = measured?;
        Ok(Point {
            work: work.to_owned(),
            hangs,
            iops: job["iops"].as_f64().context("a rate")?,
            p99_us: job["clat_ns"]["percentile"]["99.000000"].as_f64().context("a percentile")? / 1000.0,
            status_ms,
        })
    }

    /// What fio says of the first array, and the slowest answer to `twill status` in that time.
    fn neighbour(&self, work: &str, seconds: u32) -> Result<(Value, f64)> {
        let runtime = format!("--runtime={seconds}");
        let mut fio = self.fio(0, work, &[&runtime, "--iodepth=8", "--output-format=json"]);
        let fio = fio.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().context("fio, which apt has")?;
        let (start, mut slowest) = (Instant::now(), Duration::ZERO);
        while start.elapsed() < Duration::from_secs(seconds.into()) {
            let asked = Instant::now();
            if !self.command("status.log")?.args(["status", &name(0)]).status()?.success() {
                bail!("the neighbour is not well: see {}", self.folder.join("server.log").display());
            }
            slowest = slowest.max(asked.elapsed());
            std::thread::sleep(Duration::from_millis(500));
        }
        let output = fio.wait_with_output()?;
        let text = String::from_utf8_lossy(&output.stdout);
        let mut report: Value = serde_json::from_str(text.find('{').map_or("", |at| &text[at..]))?;
        let way = work.trim_start_matches("rand");
        Ok((report["jobs"][0][way].take(), slowest.as_secs_f64() * 1000.0))
    }

    fn fio(&self, array: usize, work: &str, more: &[&str]) -> Command {
        let socket = self.folder.join(format!("run/{}.nbd", name(array)));
        let mut fio = Command::new("fio");
        // By a thread: a process of its own would go on when fio is killed.
        fio.args(["--name=job", "--thread", "--ioengine=nbd", "--time_based", "--size=100%", "--bs=4k"]);
        fio.args([format!("--uri=nbd+unix:///?socket={}", socket.display()), format!("--rw={work}")]);
        fio.args(more).stdin(Stdio::null());
        fio
    }

    fn command(&self, log: &str) -> Result<Command> {
        command(&self.twill, &self.folder, log)
    }

    fn wait_for(&self, what: &str, mut is_there: impl FnMut() -> bool) -> Result<()> {
        let start = Instant::now();
        while !is_there() {
            if start.elapsed() > PATIENCE {
                let log = fs::read_to_string(self.folder.join("server.log")).unwrap_or_default();
                bail!("waited in vain for {what}: {log}");
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        Ok(())
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        for child in [self.load.take(), self.server.take()].iter_mut().flatten().chain([&mut self.target]) {
            let _ended = child.kill();
            let _status = child.wait();
        }
        let _gone = fs::remove_dir_all(&self.folder);
    }
}

fn command(twill: &Path, folder: &Path, log: &str) -> Result<Command> {
    let log = File::options().create(true).append(true).open(folder.join(log))?;
    let mut command = Command::new(twill);
    command.current_dir(folder).env("TWILL_RUNTIME_DIR", folder.join("run")).env("TWILL_STATE_DIR", folder);
    command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
    Ok(command)
}

fn name(array: usize) -> String {
    format!("a{array}")
}

/// The table, in Markdown.
fn table(points: &[Point]) -> String {
    let of = |work: &str, hangs: bool| -> Vec<&Point> {
        points.iter().filter(|point| point.work == work && point.hangs == hangs).collect()
    };
    let mut text = format!(
        "{ARRAYS} arrays in one process, RAID-5 of {MEMBERS} members in memory; clients of one of them over NBD, 4 KiB, depth 8, beside another one \
         that is written 200 times a second and whose member on another machine hangs or does not; medians of {} runs in turns.\n\n\
         | work | 99 % within, none hangs | 99 % within, one hangs | ratio (range) | IOPS, none hangs | IOPS, one hangs | slowest `status` |\n\
         |---|---|---|---|---|---|---|\n",
        of("randread", true).len(),
    );
    for work in ["randread", "randwrite"] {
        let (calm, beside) = (of(work, false), of(work, true));
        let figure =
            |points: &[&Point], what: fn(&Point) -> f64| median(points.iter().map(|point| what(point)));
        let ratios = calm.iter().zip(&beside).map(|(calm, beside)| beside.p99_us / calm.p99_us).collect();
        let slowest = beside.iter().map(|point| point.status_ms).fold(0.0, f64::max);
        text += &format!(
            "| {work} | {:.0} us | {:.0} us | {} | {:.0} | {:.0} | {slowest:.0} ms |\n",
            figure(&calm, |point| point.p99_us),
            figure(&beside, |point| point.p99_us),
            with_range(ratios),
            figure(&calm, |point| point.iops),
            figure(&beside, |point| point.iops),
        );
    }
    text
}
