//! Machines under QEMU, by `scripts/vm/vm`: whether one can be had here, programs for it, scripts in it.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

/// What a line begins with in which a script says a result.
pub const JSON: &str = "JSON ";

/// Programs that the machine needs, and the Debian package each comes in.
const NEEDS: &[(&str, &str)] = &[
    ("qemu-system-x86_64", "qemu-system-x86"),
    ("busybox", "busybox-static"),
    ("modprobe", "kmod"),
    ("depmod", "kmod"),
    ("cpio", "cpio"),
    ("xz", "xz-utils"),
    ("setpriv", "util-linux"),
];

/// The program under test: `path`, or target/release/twill, built first.
pub fn program(root: &Path, path: Option<&Path>) -> Result<PathBuf> {
    if let Some(path) = path {
        return path.canonicalize().with_context(|| format!("--twill {}", path.display()));
    }
    build(root, &["--package", "twill-raid"], "twill")
}

/// Builds with these words of `cargo build --release`; the path of what comes out, below target/release.
pub fn build(root: &Path, words: &[&str], program: &str) -> Result<PathBuf> {
    let status = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
        .args(["build", "--quiet", "--release"])
        .args(words)
        .current_dir(root)
        .status()
        .context("cannot start cargo")?;
    if !status.success() {
        bail!("{program} does not build; `cargo build --release {}` says why", words.join(" "));
    }
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
    Ok(target.join("release").join(program))
}

/// The command that runs a script of tests/vm in the machine that its `# vm:` line asks for, with `TWILL` and `XTASK` set
/// to the programs, and more `variables`.
pub fn script_command(root: &Path, path: &Path, twill: &Path, variables: &[&str]) -> Result<Command> {
    let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
    let mut command = Command::new(script(root, "vm"));
    command
        .args(machine_options(&text).unwrap_or_default())
        .args(["--", "env"])
        .arg(format!("TWILL={}", twill.display()))
        .arg(format!("XTASK={}", std::env::current_exe().context("the path of xtask")?.display()))
        .args(variables)
        .args(["bash", "-euo", "pipefail"])
        .arg(path)
        .current_dir(root);
    Ok(command)
}

/// The words after `# vm:`; a script without that line is a library of the others.
pub fn machine_options(script: &str) -> Option<Vec<&str>> {
    script.lines().find_map(|line| line.strip_prefix("# vm:")).map(|words| words.split_whitespace().collect())
}

/// Runs a script of tests/vm, hands over its lines of JSON and prints the others behind `label`; its status and the
/// last line.
pub fn run_script(
    root: &Path,
    (path, words): (&str, &[String]),
    twill: &Path,
    variables: &[&str],
    label: &str,
    mut take_json: impl FnMut(&str) -> Result<()>,
) -> Result<(i32, String)> {
    let mut last = String::new();
    let status = lines(script_command(root, &root.join(path), twill, variables)?.args(words), |line| {
        line.clone_into(&mut last);
        match line.strip_prefix(JSON) {
            Some(json) => take_json(json),
            None => {
                println!("{label}{line}");
                Ok(())
            }
        }
    })?;
    Ok((status, last))
}

/// Runs a script of scripts/vm in a machine with these options, for hours if need be; hands over its output line by line, and
/// returns its status.
pub fn run_benchmark(
    root: &Path,
    options: &[&str],
    variables: &[String],
    (name, words): (&str, &[&str]),
    take: impl FnMut(&str) -> Result<()>,
) -> Result<i32> {
    let mut command = Command::new(script(root, "vm"));
    command.args(["--timeout", "43200"]).args(options).args(["--", "env"]).args(variables);
    command.arg("bash").arg(script(root, name)).args(words);
    lines(&mut command, take)
}

/// Runs `scripts/vm/vm`, hands over its output line by line, and returns its status.
pub fn lines(command: &mut Command, mut take: impl FnMut(&str) -> Result<()>) -> Result<i32> {
    let mut child = command.stdout(Stdio::piped()).spawn().context("cannot start scripts/vm/vm")?;
    let output = child.stdout.take().expect("a pipe was asked for");
    for line in BufReader::new(output).lines() {
        take(&line?)?;
    }
    Ok(child.wait()?.code().unwrap_or(125))
}

/// Why no machine can be started here, with what would help; `None` when one can. Fetches the kernel if need be.
pub fn unavailable(root: &Path) -> Option<String> {
    let missing: Vec<&str> =
        NEEDS.iter().filter(|(program, _)| !on_path(program)).map(|(_, package)| *package).collect();
    if !missing.is_empty() {
        return Some(format!("no machine can be started: apt-get install {}", missing.join(" ")));
    }
    match Command::new(script(root, "fetch-kernel")).stderr(Stdio::piped()).stdout(Stdio::null()).output() {
        Ok(output) if output.status.success() => None,
        Ok(output) => {
            let text = String::from_utf8_lossy(&output.stderr);
            let last = text.lines().last().unwrap_or("fetch-kernel failed without a word");
            Some(format!("no kernel to boot: {last}"))
        }
        Err(error) => Some(format!("no kernel to boot: cannot start scripts/vm/fetch-kernel: {error}")),
    }
}

/// The processor that emulates the machines, and its kernel, as pages name it: `AMD EPYC, 2 cores, Linux 6.18`.
pub fn host() -> String {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    host_of(&read("/proc/cpuinfo"), &read("/proc/sys/kernel/osrelease"))
}

fn host_of(cpuinfo: &str, release: &str) -> String {
    let models = || cpuinfo.lines().filter(|line| line.starts_with("model name"));
    let model =
        models().next().and_then(|line| line.split_once(": ")).map_or("a processor", |(_, model)| model);
    let version: Vec<&str> = release.trim().splitn(3, '.').take(2).collect();
    format!("{model}, {} cores, Linux {}", models().count(), version.join("."))
}

/// A script of `scripts/vm`.
pub fn script(root: &Path, name: &str) -> PathBuf {
    root.join("scripts/vm").join(name)
}

/// Whether a program is here.
pub fn on_path(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let system = ["/usr/sbin", "/sbin"].map(PathBuf::from);
    std::env::split_paths(&path).chain(system).any(|folder| folder.join(program).is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_host_is_named_by_its_processor() {
        let core = "processor\t: 0\nmodel name\t: AMD EPYC 9R14\nmodel\t: 17\n";
        assert_eq!(host_of(&core.repeat(2), "6.18.44-fc\n"), "AMD EPYC 9R14, 2 cores, Linux 6.18");
        assert_eq!(host_of("", ""), "a processor, 0 cores, Linux ");
    }

    #[test]
    fn a_script_names_its_machine() {
        let script = "#!/bin/bash\n# vm: --mem 2G --nvme 6:64M\necho\n";
        assert_eq!(machine_options(script), Some(vec!["--mem", "2G", "--nvme", "6:64M"]));
        assert_eq!(machine_options("#!/bin/bash\n"), None, "a library is no test");
    }
}
