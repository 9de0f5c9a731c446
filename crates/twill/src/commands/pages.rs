//! What a package has beside the program, made from the command line's own definition: man pages and completions of shells.

use std::io;
use std::path::{Path, PathBuf};

use clap::Args;
use clap_complete::Shell;

use super::output::Output;
use crate::failure::Failure;

/// Arguments of `completions`.
#[derive(Debug, Args)]
#[command(after_help = "Example: Tab completes commands and options from the next shell on
  twill completions bash > ~/.local/share/bash-completion/completions/twill")]
pub struct CompletionsArguments {
    /// Which shell.
    pub shell: Shell,
}

/// Arguments of `man-pages`.
#[derive(Debug, Args)]
#[command(after_help = "Example: a page for the program and one for each command
  twill man-pages /usr/local/share/man/man1 && man twill-create")]
pub struct ManPagesArguments {
    /// A folder that is there.
    #[arg(value_name = "FOLDER")]
    pub folder: PathBuf,
}

/// Prints the completions of a shell.
///
/// # Errors
/// They cannot be written.
pub fn completions(
    arguments: &CompletionsArguments,
    mut program: clap::Command,
    output: Output,
) -> Result<(), Failure> {
    let mut script = Vec::new();
    clap_complete::generate(arguments.shell, &mut program, "twill", &mut script);
    output.line(String::from_utf8_lossy(&script).trim_end_matches('\n'))
}

/// Writes a man page for the program and one for each command.
///
/// # Errors
/// What the system says.
pub fn man_pages(arguments: &ManPagesArguments, program: clap::Command) -> Result<(), Failure> {
    let folder = &arguments.folder;
    write_pages(folder, program).map_err(|error| Failure::from_io("write man pages to", folder, &error))
}

fn write_pages(folder: &Path, program: clap::Command) -> io::Result<()> {
    clap_mangen::generate_to(program.disable_help_subcommand(true), folder)
}
