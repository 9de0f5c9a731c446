//! Coverage-guided fuzzing of what reads bytes from members and clients. Its targets call the same entries as the ordinary
//! tests, which also run whatever the corpora have kept.

use std::path::Path;
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context, Result, bail};

/// Targets, and the test whose inputs they begin with.
const TARGETS: &[(&str, &str, &str)] = &[
    ("superblock", "twill-layout", "readers"),
    ("bitmap", "twill-layout", "readers"),
    ("bad_blocks", "twill-layout", "readers"),
    ("redo_log", "twill-layout", "readers"),
    ("generations", "twill-layout", "readers"),
    ("zoned_superblock", "twill-layout", "readers"),
    ("zoned_segment", "twill-layout", "readers"),
    ("zoned_map", "twill-layout", "readers"),
    ("nvme_to_target", "twill-nvme-tcp", "streams"),
    ("nvme_to_host", "twill-nvme-tcp", "streams"),
    ("nvme_identify", "twill-nvme-tcp", "readers"),
    ("nvme_log_pages", "twill-nvme-tcp", "readers"),
    ("nvme_reservations", "twill-nvme-tcp", "readers"),
    ("nvme_authentication", "twill-nvme-tcp", "readers"),
    ("nvme_key_texts", "twill-nvme-tcp", "readers"),
    ("nvme_fabric", "twill-nvme-tcp", "readers"),
    ("nbd_connection", "twill-host", "nbd_bytes"),
    ("nbd_requests", "twill-host", "nbd_bytes"),
    ("control", "twill-raid", "control_lines"),
];
/// Longer inputs reach nothing more, and are slow.
const INPUT_BYTES_MAX: u32 = 16 << 10;

/// What `cargo xtask fuzz` was asked to do.
#[derive(clap::Args)]
pub struct Arguments {
    /// Only these; without a name all, one after another
    targets: Vec<String>,
    /// Seconds for each target
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// Afterwards keep in fuzz/corpus only what reaches code that nothing else there reaches
    #[arg(long)]
    minimise: bool,
}

/// Fuzzes; fails if a target does.
pub fn run(root: &Path, arguments: &Arguments) -> Result<ExitCode> {
    let unknown = |name: &&String| !TARGETS.iter().any(|(target, ..)| target == name);
    if let Some(name) = arguments.targets.iter().find(unknown) {
        let known: Vec<&str> = TARGETS.iter().map(|(target, ..)| *target).collect();
        bail!("there is no target {name:?}; there are: {}", known.join(" "));
    }
    let has_fuzz = fuzz(root, &["--version"]).stdout(Stdio::null()).stderr(Stdio::null()).status();
    if !has_fuzz.is_ok_and(|status| status.success()) {
        bail!(
            "cargo-fuzz or the nightly compiler is missing: rustup toolchain install nightly; cargo install cargo-fuzz"
        );
    }
    let wanted = |target: &str| arguments.targets.is_empty() || arguments.targets.iter().any(|t| t == target);
    let mut code = ExitCode::SUCCESS;
    let mut seeded = None;
    for (target, package, test) in TARGETS.iter().filter(|(target, ..)| wanted(target)) {
        // Targets of one test stand side by side: it writes the seeds of all of them.
        if seeded.replace(test) != Some(test) {
            write_seeds(root, package, test)?;
        }
        let (seconds, longest) =
            (format!("-max_total_time={}", arguments.seconds), format!("-max_len={INPUT_BYTES_MAX}"));
        println!("== {target}, {} s", arguments.seconds);
        let run = ["run", target, "--", &seconds, &longest, "-print_final_stats=1", "-verbosity=1"];
        if !fuzz(root, &run).status().context("cargo fuzz")?.success() {
            println!("{target}: FAILED; the input lies in fuzz/artifacts/{target}");
            code = ExitCode::FAILURE;
        } else if arguments.minimise {
            fuzz(root, &["cmin", target]).status().context("cargo fuzz cmin")?;
        }
    }
    Ok(code)
}

fn fuzz(root: &Path, words: &[&str]) -> Command {
    let mut cargo = Command::new("cargo");
    // Cargo tells its children which compiler it is; this one is to be another.
    cargo.env_remove("RUSTUP_TOOLCHAIN").env_remove("CARGO").env_remove("CARGO_TARGET_DIR");
    cargo.current_dir(root).args(["+nightly", "fuzz"]).args(words);
    cargo
}

/// The inputs of the ordinary tests, as files for the fuzzer.
fn write_seeds(root: &Path, package: &str, test: &str) -> Result<()> {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(root).env("TWILL_FUZZ_SEEDS", root.join("fuzz/corpus"));
    cargo.args(["test", "--quiet", "--package", package, "--test", test]).stdout(Stdio::null());
    if !cargo.status().context("cargo test")?.success() {
        bail!("the ordinary test {test} fails: its inputs are where the fuzzer begins");
    }
    Ok(())
}
