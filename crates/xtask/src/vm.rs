//! Runs `scripts/vm/vm`, and tells whether this machine can: QEMU, its helpers and a kernel.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context, Result};

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

/// Passes `arguments` on to `scripts/vm/vm` and returns the status of the command in the machine.
pub fn run(root: &Path, arguments: &[String]) -> Result<ExitCode> {
    if let Some(reason) = unavailable(root) {
        eprintln!("xtask vm: {reason}");
        return Ok(ExitCode::from(125));
    }
    let status =
        Command::new(script(root, "vm")).args(arguments).status().context("cannot start scripts/vm/vm")?;
    Ok(ExitCode::from(status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(125)))
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

/// A script of `scripts/vm`.
pub fn script(root: &Path, name: &str) -> PathBuf {
    root.join("scripts/vm").join(name)
}

fn on_path(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let system = ["/usr/sbin", "/sbin"].map(PathBuf::from);
    std::env::split_paths(&path).chain(system).any(|folder| folder.join(program).is_file())
}
