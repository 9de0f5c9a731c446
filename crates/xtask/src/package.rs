//! `cargo xtask package`: the Debian package, without `twill bench` and `twill ssdsim`. The program describes itself (man pages,
//! completions); cargo-deb packs.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context, Result, bail};

/// The version that is installed where there is none.
const CARGO_DEB_VERSION: &str = "3.8.0";

/// What `cargo xtask package` takes.
#[derive(clap::Args)]
pub struct Arguments {
    /// Profile that the program is built with; dev for a trial
    #[arg(long, default_value = "dist")]
    profile: String,
    /// Where the package goes [default: target/debian]
    #[arg(long)]
    output: Option<PathBuf>,
}

/// Builds the package and prints its path.
pub fn run(root: &Path, arguments: &Arguments) -> Result<ExitCode> {
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
    let tools = target.join("tools");
    find_cargo_deb(&tools)?;
    let mut build = cargo(root);
    build.args(["build", "--package", "twill-raid", "--profile", &arguments.profile]);
    if arguments.profile != "dev" {
        build.arg("--no-default-features"); // for operators; a trial has what the tests have built
    }
    build.succeed()?;
    let folder = if arguments.profile == "dev" { "debug" } else { &arguments.profile };
    describe(&target.join(folder).join("twill"), &root.join("target/package"))?;
    let mut deb = cargo(root);
    deb.args(["deb", "--quiet", "--package", "twill-raid", "--no-build", "--profile", &arguments.profile]);
    if let Some(output) = &arguments.output {
        deb.arg("--output").arg(output);
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let path = std::env::join_paths(std::iter::once(tools.join("bin")).chain(std::env::split_paths(&path)))?;
    deb.env("PATH", path).succeed()?;
    Ok(ExitCode::SUCCESS)
}

fn cargo(root: &Path) -> Command {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(root);
    cargo
}

/// Looks for cargo-deb in the checkout's tools and on PATH, and installs it where it is missing.
fn find_cargo_deb(tools: &Path) -> Result<()> {
    let is_there = |program: &Path| {
        let asked =
            Command::new(program).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
        asked.is_ok_and(|status| status.success())
    };
    if is_there(&tools.join("bin/cargo-deb")) || is_there(Path::new("cargo-deb")) {
        return Ok(());
    }
    eprintln!("installing with cargo: cargo-deb {CARGO_DEB_VERSION}");
    let mut install = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    install.args(["install", "--quiet", "--locked", "--no-default-features", "cargo-deb"]);
    install.args(["--version", CARGO_DEB_VERSION, "--root"]).arg(tools);
    install.succeed().context("without cargo-deb there is no package")
}

/// Man pages and completions, by the program itself.
fn describe(program: &Path, to: &Path) -> Result<()> {
    let man = to.join("man");
    if man.exists() {
        fs::remove_dir_all(&man)?;
    }
    fs::create_dir_all(&man)?;
    Command::new(program).arg("man-pages").arg(&man).succeed()?;
    for (shell, file) in [("bash", "twill.bash"), ("zsh", "_twill"), ("fish", "twill.fish")] {
        let said = Command::new(program).args(["completions", shell]).output()?;
        if !said.status.success() {
            bail!("{} completions {shell}: {}", program.display(), String::from_utf8_lossy(&said.stderr));
        }
        fs::write(to.join(file), said.stdout)?;
    }
    Ok(())
}

trait Succeed {
    fn succeed(&mut self) -> Result<()>;
}

impl Succeed for Command {
    /// Runs it to its end.
    fn succeed(&mut self) -> Result<()> {
        let name = self.get_program().display().to_string();
        let status = self.status().with_context(|| format!("cannot run {name}"))?;
        if !status.success() {
            bail!("{name} ended with {status}");
        }
        Ok(())
    }
}
