//! Runs `tests/vm/*.sh`, each in a machine of its own, and counts.
//!
//! A script says what its machine needs in a line `# vm: OPTIONS` (those of scripts/vm/vm), and about how long it takes in a line
//! `# takes: N s`. In the machine it runs with
//! `TWILL` set to the program under test; status 0 is a pass, 77 a skip (the last line of output says why). A script whose
//! last line is `N passed, N failed, N skipped` counts as that many, any other as one.

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Mutex;
use std::time::Instant;

use anyhow::{Context, Result, bail};

use crate::machine;

/// The status by which a script says that it cannot run here, as in automake.
const SKIPPED: i32 = 77;

/// The status of a machine whose time was over.
const TIMED_OUT: i32 = 124;

/// The status of a machine that did not start or did not live to the end.
const MACHINE_STOPPED: i32 = 125;

/// What `cargo xtask kernel-tests` was asked to do.
#[derive(clap::Args)]
pub struct Arguments {
    /// Only scripts whose name contains one of these
    names: Vec<String>,
    /// The program under test; without it target/release/twill, built first
    #[arg(long)]
    twill: Option<PathBuf>,
    /// Fail instead of skipping where QEMU or the kernel cannot be had
    #[arg(long)]
    require: bool,
    /// Run the long cases too, of which others test the most
    #[arg(long)]
    all: bool,
    /// Show the output of tests that pass, too
    #[arg(long)]
    verbose: bool,
    /// Machines at a time; without it as many as there are cores, and 4 GiB of memory each
    #[arg(long)]
    jobs: Option<NonZeroUsize>,
}

/// Memory that a machine may take.
const MACHINE_KIB: u64 = 4 << 20;

/// Runs the chosen scripts, several at a time, and prints `N passed, N failed, N skipped` last.
pub fn run(root: &Path, arguments: &Arguments) -> Result<ExitCode> {
    let scripts = scripts(root, &arguments.names)?;
    if scripts.is_empty() {
        bail!("no script in tests/vm has a name with {}", arguments.names.join(" or "));
    }
    if let Some(reason) = machine::unavailable(root) {
        println!("kernel tests skipped: {reason}");
        let (failed, skipped) = if arguments.require { (scripts.len(), 0) } else { (0, scripts.len()) };
        return Ok(summary(&Counts { passed: 0, failed, skipped }));
    }
    let twill = machine::program(root, arguments.twill.as_deref())?;
    let total = Mutex::new(Counts::default());
    let left = Mutex::new(scripts.iter());
    let next = || left.lock().expect("no thread panics").next();
    let work = || -> Result<()> {
        while let Some(script) = next() {
            let counts = run_one(root, script, &twill, arguments)?;
            total.lock().expect("no thread panics").add(&counts);
        }
        Ok(())
    };
    let jobs = arguments.jobs.unwrap_or_else(jobs).get().min(scripts.len());
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..jobs).map(|_| scope.spawn(work)).collect();
        threads.into_iter().try_for_each(|thread| thread.join().expect("no thread panics"))
    })?;
    let total = total.into_inner().expect("no thread panics");
    if total.skipped > 0 && !arguments.all {
        println!("long cases are skipped here: cargo xtask kernel-tests --all");
    }
    Ok(summary(&total))
}

/// A machine for each core, as far as the memory goes.
fn jobs() -> NonZeroUsize {
    let cores = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
    let memory = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let machines = available_kib(&memory).map_or(1, |kib| kib / MACHINE_KIB);
    NonZeroUsize::new(cores.min(usize::try_from(machines).unwrap_or(cores))).unwrap_or(NonZeroUsize::MIN)
}

fn available_kib(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim().strip_suffix("kB")?.trim().parse().ok()
}

/// Runs one script, prints how it went and returns what it counted.
fn run_one(root: &Path, script: &Path, twill: &Path, arguments: &Arguments) -> Result<Counts> {
    let name = script.file_stem().unwrap_or_default().to_string_lossy();
    let start = Instant::now();
    let (mut status, mut output) = boot(root, script, twill, arguments.all)?;
    // Cases that hang are ended and say so: here the machine itself did, its emulation or its way to this host's files.
    let hung = status == TIMED_OUT && Counts::none_said(&output);
    if hung || is_emulation_fault(status, &output) {
        let what = if hung {
            "no case ended"
        } else {
            "the emulation ran an instruction that the kernel was patching"
        };
        print!("again   {name}: {what}; once more\n{}", indented(&output));
        (status, output) = boot(root, script, twill, arguments.all)?;
    }
    let seconds = start.elapsed().as_secs();
    let last = output.trim_end().lines().last().unwrap_or_default();
    let mut told = match status {
        0 => format!("ok      {name} ({seconds} s) {last}\n"),
        SKIPPED => format!("skipped {name}: {last}\n"),
        status => format!("FAILED  {name} (status {status}, {seconds} s)\n"),
    };
    if arguments.verbose || !matches!(status, 0 | SKIPPED) {
        told += &indented(&output);
    }
    print!("{told}"); // at once: others are running
    Ok(Counts::of(status, last))
}

/// Whether the machine died of a breakpoint without an owner: TCG with threads may run the `int3` that the kernel puts
/// in place of an instruction while it patches it, after the patch is over.
fn is_emulation_fault(status: i32, output: &str) -> bool {
    status == MACHINE_STOPPED && output.contains("Oops: int3")
}

fn indented(output: &str) -> String {
    output.lines().map(|line| format!("    {line}\n")).collect()
}

/// How many cases went how.
#[derive(Debug, Default, PartialEq, Eq)]
struct Counts {
    passed: usize,
    failed: usize,
    skipped: usize,
}

impl Counts {
    /// What a script with this status and this last line counts as.
    fn of(status: i32, last: &str) -> Self {
        let mut counts = Self::parse(last).unwrap_or_default();
        match status {
            SKIPPED => counts.skipped = counts.skipped.max(1),
            0 if counts == Self::default() => counts.passed = 1,
            0 => {}
            _ => counts.failed = counts.failed.max(1),
        }
        counts
    }

    /// Whether no case has ended in this output.
    fn none_said(output: &str) -> bool {
        !output.lines().any(|line| ["ok ", "FAILED ", "skipped "].iter().any(|word| line.starts_with(word)))
    }

    /// Reads `N passed, N failed, N skipped`.
    fn parse(line: &str) -> Option<Self> {
        let mut words = line.split(", ");
        let mut next = |word: &str| words.next()?.strip_suffix(word)?.trim_end().parse().ok();
        Some(Self { passed: next("passed")?, failed: next("failed")?, skipped: next("skipped")? })
    }

    fn add(&mut self, other: &Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
    }
}

/// The scripts with such a name. The long ones come first, so that no machine is idle at the end.
fn scripts(root: &Path, names: &[String]) -> Result<Vec<PathBuf>> {
    let folder = root.join("tests/vm");
    let mut scripts = Vec::new();
    for entry in std::fs::read_dir(&folder).with_context(|| folder.display().to_string())? {
        let path = entry?.path();
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        if path.extension().is_none_or(|extension| extension != "sh") {
            continue;
        }
        let text = std::fs::read_to_string(&path)?;
        let is_wanted = names.is_empty() || names.iter().any(|wanted| name.contains(wanted));
        if machine::machine_options(&text).is_some() && is_wanted {
            scripts.push((std::cmp::Reverse(seconds(&text)), path));
        }
    }
    scripts.sort();
    Ok(scripts.into_iter().map(|(_, path)| path).collect())
}

/// About how long a script takes, by its line `# takes: N s`.
fn seconds(script: &str) -> u64 {
    let line = script.lines().find_map(|line| line.strip_prefix("# takes:"));
    line.and_then(|line| line.trim().strip_suffix(" s")?.parse().ok()).unwrap_or(0)
}

fn boot(root: &Path, script: &Path, twill: &Path, all: bool) -> Result<(i32, String)> {
    let variables: &[&str] = if all { &["TWILL_ALL_CASES=1"] } else { &[] };
    let output = machine::script_command(root, script, twill, variables)?
        .output()
        .context("cannot start scripts/vm/vm")?;
    let mut text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.push_str(&String::from_utf8_lossy(&output.stderr));
    Ok((output.status.code().unwrap_or(125), text))
}

fn summary(total: &Counts) -> ExitCode {
    println!("{} passed, {} failed, {} skipped", total.passed, total.failed, total.skipped);
    if total.failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_that_is_available() {
        let told = "MemTotal:       25165824 kB\nMemFree:         1000 kB\nMemAvailable:   12582912 kB\n";
        assert_eq!(available_kib(told), Some(12 << 20));
        assert_eq!(available_kib(""), None);
    }

    #[test]
    fn a_machine_that_hung_has_said_of_no_case_how_it_ended() {
        assert!(Counts::none_said("vm: timed out after 1800 s\n[ 0.036] tsc: Unable to calibrate\n"));
        assert!(!Counts::none_said("ok      fsx (54 s)\nvm: timed out after 1800 s\n"));
        assert!(!Counts::none_said("FAILED  fsx (status 143, 600 s)\n"));
    }

    #[test]
    fn a_machine_runs_again_after_a_fault_of_its_emulation_only() {
        assert!(is_emulation_fault(
            125,
            "vm: the machine stopped before the command ended\n[ 1.1] Oops: int3: 0000 [#1]\n"
        ));
        assert!(!is_emulation_fault(125, "[ 90.5] Oops: general protection fault: 0000 [#1]\n"));
        assert!(!is_emulation_fault(1, "FAILED  fsx: Oops: int3\n"));
    }

    #[test]
    fn a_script_counts_as_its_cases_or_as_one() {
        let counts = |passed, failed, skipped| Counts { passed, failed, skipped };
        assert_eq!(Counts::of(0, "11 passed, 0 failed, 2 skipped"), counts(11, 0, 2));
        assert_eq!(Counts::of(1, "10 passed, 1 failed, 0 skipped"), counts(10, 1, 0));
        assert_eq!(Counts::of(0, "done"), counts(1, 0, 0));
        assert_eq!(Counts::of(124, "timed out"), counts(0, 1, 0));
        assert_eq!(Counts::of(SKIPPED, "this kernel has no brd"), counts(0, 0, 1));
    }
}
