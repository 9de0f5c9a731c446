//! `ssdsim` by itself; the commands are those of [`ssdsim::cli`].

#![forbid(unsafe_code)]

use std::process::ExitCode;

use clap::Parser;
use ssdsim::cli::{Command, execute};

/// The RAID-enabled SSD of the adaptive-parity paper, trace-driven.
#[derive(Debug, Parser)]
#[command(name = "ssdsim", version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

fn main() -> ExitCode {
    match execute(&Arguments::parse().command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("ssdsim: {error}");
            ExitCode::FAILURE
        }
    }
}
