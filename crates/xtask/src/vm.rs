//! `cargo xtask vm`: a command in a machine, or one of the long runs that have names.

use std::path::Path;
use std::process::{Command, ExitCode};

use anyhow::{Context, Result};
use clap::Parser;

use crate::{bench_md, bench_zoned, machine, md_compatibility, power_cuts};

/// What `cargo xtask vm` does besides running a command.
#[derive(Parser)]
#[command(name = "cargo xtask vm")]
enum Named {
    /// Try every row of tests/vm/md-compatibility.table and write docs/md-compatibility.md
    MdCompatibility(md_compatibility::Arguments),
    /// Run md and twill in turn over the same members, and print both and the ratio
    BenchMd(bench_md::Arguments),
    /// Run zoned arrays in turn with md, and with file systems that know zones, and print all and the ratios
    BenchZoned(bench_zoned::Arguments),
    /// Cut the power under load, many times, and check after each
    PowerCuts(power_cuts::Arguments),
}

/// The first words of the commands of [`Named`]; anything else is an option of `scripts/vm/vm`.
const NAMED: &[&str] = &["md-compatibility", "bench-md", "bench-zoned", "power-cuts"];

/// Runs a named command, or passes `arguments` on to `scripts/vm/vm` and returns the status of the command in the
/// machine.
pub fn run(root: &Path, arguments: &[String]) -> Result<ExitCode> {
    let named = arguments.first().filter(|first| NAMED.contains(&first.as_str()));
    let named = named.map(|_| {
        let words = std::iter::once("cargo xtask vm".to_owned()).chain(arguments.iter().cloned());
        Named::parse_from(words)
    });
    if let Some(reason) = machine::unavailable(root) {
        eprintln!("xtask vm: {reason}");
        return Ok(ExitCode::from(125));
    }
    match named {
        Some(Named::MdCompatibility(arguments)) => return md_compatibility::run(root, &arguments),
        Some(Named::BenchMd(arguments)) => return bench_md::run(root, &arguments),
        Some(Named::BenchZoned(arguments)) => return bench_zoned::run(root, &arguments),
        Some(Named::PowerCuts(arguments)) => return power_cuts::run(root, &arguments),
        None => {}
    }
    let status = Command::new(machine::script(root, "vm"))
        .args(arguments)
        .status()
        .context("cannot start scripts/vm/vm")?;
    Ok(ExitCode::from(status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(125)))
}
