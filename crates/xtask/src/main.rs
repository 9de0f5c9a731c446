//! `cargo xtask`: the project's own checks and the machines its kernel tests run in.
//!
//! Everything here works on the checkout that it was built from, whatever the current folder is.
#![forbid(unsafe_code)]

mod bench_beside;
mod bench_fabric;
mod bench_machine;
mod bench_md;
mod bench_target;
mod bench_zoned;
mod blocks;
mod drives;
mod figures;
mod files;
mod fio;
mod fuzz;
mod instructions;
mod kernel_tests;
mod machine;
mod md_compatibility;
mod models;
mod mutants;
mod nbd_client;
mod nbd_device;
mod package;
mod power_cuts;
mod replay;
mod section;
mod tidy;
mod vm;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(name = "cargo xtask", about = "Tidy, models, mutants, kernel tests, crash replay")]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Check the rules of ARCHITECTURE.md that no compiler checks
    Tidy(tidy::Arguments),
    /// Run a command as root inside a real kernel under QEMU; scripts/vm/README.md has the options
    #[command(disable_help_flag = true)]
    Vm {
        /// Options of scripts/vm/vm, then `--`, then the command
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// Run tests/vm/*.sh, each in a machine of its own
    KernelTests(kernel_tests::Arguments),
    /// Write and check blocks that tell what a crash lost
    #[command(subcommand)]
    Blocks(blocks::Action),
    /// Compare parity made at the host with parity made among targets, over links of a limited rate
    BenchFabric(bench_fabric::Arguments),
    /// Compare which target puts a lost chunk together, over links of one rate or of two
    BenchLostReads(bench_fabric::lost_reads::Arguments),
    /// Measure what the figures of the dRAID paper show, over links of a limited rate
    BenchDraid(bench_fabric::draid::Arguments),
    /// Compare what clients of an array see beside one whose member hangs, and beside one that works
    BenchBeside(bench_beside::Arguments),
    /// Compare an array as a virtual machine's disk by vhost-user-blk and by NBD
    BenchMachine(bench_machine::Arguments),
    /// Compare what a target of NVMe/TCP does on one core with other targets, and with plain sockets
    BenchTarget(bench_target::Arguments),
    /// Serve drives that lose their write cache at a power cut
    #[command(subcommand)]
    Drives(drives::Action),
    /// Connect the kernel's NBD client so that it waits for a server that comes back
    #[command(subcommand)]
    NbdDevice(nbd_device::Action),
    /// Write files and check that a crash lost none that was flushed
    #[command(subcommand)]
    Files(files::Action),
    /// Fuzz what reads bytes from members and clients, guided by the code that it reaches
    ///
    /// Example: cargo xtask fuzz superblock --seconds 600
    Fuzz(fuzz::Arguments),
    /// Count the instructions of one request under callgrind, and compare with crates/xtask/instructions.toml
    ///
    /// Example: cargo xtask instructions --only 'write 4K' --json
    Instructions(instructions::Arguments),
    /// Run every model of what cores share under model checkers, which choose the order of threads
    ///
    /// Example: cargo xtask models stripe_table::model:: --schedules 1000000
    Models(models::Arguments),
    /// Put one-line bugs in, one at a time, and say which suite catches which
    ///
    /// Example: cargo xtask mutants wake-up --json
    Mutants(mutants::Arguments),
    /// Make the Debian package, with man pages and completions
    ///
    /// Example: cargo xtask package && apt install ./target/debian/twill_*.deb
    Package(package::Arguments),
    /// Make the image a drive would hold after a power cut that loses its write cache
    Replay(replay::Arguments),
}

fn main() -> ExitCode {
    let root = root();
    let result = match Arguments::parse().command {
        Command::Tidy(arguments) => tidy::run(&root, &arguments),
        Command::Vm { arguments } => vm::run(&root, &arguments),
        Command::KernelTests(arguments) => kernel_tests::run(&root, &arguments),
        Command::Blocks(action) => blocks::run(&action),
        Command::BenchFabric(arguments) => bench_fabric::run(&root, &arguments),
        Command::BenchLostReads(arguments) => bench_fabric::lost_reads::run(&root, &arguments),
        Command::BenchDraid(arguments) => bench_fabric::draid::run(&root, &arguments),
        Command::BenchBeside(arguments) => bench_beside::run(&root, &arguments),
        Command::BenchMachine(arguments) => bench_machine::run(&root, &arguments),
        Command::BenchTarget(arguments) => bench_target::run(&root, &arguments),
        Command::Drives(action) => drives::run(&action),
        Command::NbdDevice(action) => nbd_device::run(&action),
        Command::Files(action) => files::run(&action),
        Command::Fuzz(arguments) => fuzz::run(&root, &arguments),
        Command::Instructions(arguments) => instructions::run(&root, &arguments),
        Command::Models(arguments) => models::run(&root, &arguments),
        Command::Mutants(arguments) => mutants::run(&root, &arguments),
        Command::Package(arguments) => package::run(&root, &arguments),
        Command::Replay(arguments) => replay::run(&arguments),
    };
    result.unwrap_or_else(|error| {
        eprintln!("xtask: {error:#}");
        ExitCode::FAILURE
    })
}

/// The checkout's root: two folders above this crate.
fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().nth(2).expect("crates/xtask lies two folders below the root").to_path_buf()
}
