//! Where the program logs: to standard error, to the file of `--log`, and as a daemon without one to the system's log (the journal,
//! or another syslog), or to a file of this machine where there is none.

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use tracing::Level;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::{self, MakeWriter};
use tracing_subscriber::prelude::*;

use crate::arguments::{Arguments, Command, LogFormat};
use crate::control;
use crate::failure::Failure;
use crate::own_files::open_log;

/// Where the system takes messages: journald listens there, as other syslogs do.
const SYSTEM_LOG: &str = "/dev/log";

/// The file, in the folder of what outlives servers, where there is no system log.
const DEFAULT_FILE: &str = "twill.log";

/// Where lines go. There is one in a process.
#[derive(Clone)]
pub struct Log(Arc<Mutex<Target>>);

enum Target {
    StandardError,
    File { path: PathBuf, file: File, members: Vec<PathBuf> },
    System(UnixDatagram),
}

static LOG: std::sync::OnceLock<Log> = std::sync::OnceLock::new();

/// Begins to log as the command line has it. Warnings are always logged; `RUST_LOG` overrides -v.
///
/// # Errors
/// The file of `--log` cannot be opened.
pub fn begin(arguments: &Arguments) -> Result<(), Failure> {
    let serve = match &arguments.command {
        Command::Serve(serve) => Some(serve),
        _ => None,
    };
    let level = match (arguments.verbose, serve) {
        (0, None) => Level::WARN,
        (0, Some(_)) | (1, _) => Level::INFO,
        _ => Level::TRACE,
    };
    let wanted = std::env::var("RUST_LOG").ok().filter(|wanted| !wanted.is_empty());
    let wanted = wanted.and_then(|wanted| wanted.parse().ok());
    let filter = wanted.unwrap_or_else(|| Targets::new().with_default(level));
    let target = match serve.and_then(|serve| Some((serve, serve.log.as_ref()?))) {
        Some((serve, path)) => Target::open(path, &serve.choice.members)?,
        None => Target::StandardError,
    };
    let log = LOG.get_or_init(|| Log(Arc::new(Mutex::new(target)))).clone();
    // A log whose reader has gone must not panic, least of all on a shard.
    let lines = fmt::layer().with_writer(log).with_target(false).log_internal_errors(false);
    let all = tracing_subscriber::registry();
    match arguments.log_format {
        LogFormat::Text => all.with(lines.with_ansi(false).with_filter(filter)).init(),
        LogFormat::Json => all.with(lines.json().with_filter(filter)).init(),
    }
    Ok(())
}

/// The daemon lets go of standard error: what went there goes to the system's log from now on, or to a file.
pub fn leave_terminal() {
    let Some(Log(target)) = LOG.get() else { return };
    let mut target = target.lock();
    if matches!(*target, Target::StandardError) {
        let default = || Target::open(&control::state_folder()?.join(DEFAULT_FILE), &[]).ok();
        if let Some(other) = Target::system(Path::new(SYSTEM_LOG)).or_else(default) {
            *target = other;
        }
    }
}

/// Opens the log's file again: the old one was moved away, as logrotate does.
pub fn reopen() {
    let Some(Log(target)) = LOG.get() else { return };
    let reopened = {
        let mut target = target.lock();
        let Target::File { path, members, .. } = &*target else { return };
        Target::open(&path.clone(), &members.clone()).map(|again| *target = again)
    };
    match reopened {
        Ok(()) => tracing::info!("the log was opened again"),
        Err(failure) => tracing::warn!("the log goes on in the file that it had: {failure}"),
    }
}

impl Target {
    fn open(path: &Path, members: &[PathBuf]) -> Result<Self, Failure> {
        if let Some(folder) = path.parent()
            && path.file_name() == Some(DEFAULT_FILE.as_ref())
        {
            let _there = std::fs::create_dir_all(folder); // the open says what is wrong
        }
        let file = open_log(path, members)?;
        let path = std::path::absolute(path).unwrap_or_else(|_| path.to_path_buf());
        Ok(Target::File { path, file, members: members.to_vec() })
    }

    fn system(socket: &Path) -> Option<Self> {
        let to = UnixDatagram::unbound().ok()?;
        to.connect(socket).ok()?;
        // A system log that hangs holds up no shard.
        to.set_nonblocking(true).ok()?;
        Some(Target::System(to))
    }
}

impl<'a> MakeWriter<'a> for Log {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}

impl Write for Log {
    /// Takes one line, as the subscriber writes it.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        match &mut *self.0.lock() {
            Target::StandardError => io::stderr().write(line),
            Target::File { file, .. } => file.write(line),
            Target::System(socket) => socket.send(&system_message(line)).map(|_| line.len()),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A line as syslog wants it: `<PRIORITY>twill[PROCESS]: MESSAGE`. The system adds the time.
fn system_message(line: &[u8]) -> Vec<u8> {
    const DAEMON: u32 = 3 << 3;
    let text = String::from_utf8_lossy(line);
    let text = text.trim_end();
    let (time, rest) = text.split_once(' ').unwrap_or(("", text));
    let message = if time.ends_with('Z') { rest.trim_start() } else { text };
    let has = |level: &str| message.starts_with(level) || message.contains(&format!("\"level\":\"{level}\""));
    let severity = match () {
        () if has("ERROR") => 3,
        () if has("WARN") => 4,
        () if has("INFO") => 6,
        () => 7,
    };
    format!("<{}>twill[{}]: {message}", DAEMON | severity, std::process::id()).into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_system_log_gets_priority_name_and_message() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        assert!(Target::system(&path).is_none(), "nobody listens");
        let listener = UnixDatagram::bind(&path).unwrap();
        let mut log = Log(Arc::new(Mutex::new(Target::system(&path).unwrap())));
        let own = std::process::id();
        for (line, wanted) in [
            (
                "2026-11-25T09:00:00.1Z  WARN member 1 failed\n",
                format!("<28>twill[{own}]: WARN member 1 failed"),
            ),
            ("2026-11-25T09:00:00.1Z ERROR x\n", format!("<27>twill[{own}]: ERROR x")),
            ("2026-11-25T09:00:00.1Z  INFO serving\n", format!("<30>twill[{own}]: INFO serving")),
            ("{\"level\":\"WARN\"}\n", format!("<28>twill[{own}]: {{\"level\":\"WARN\"}}")),
            ("no time\n", format!("<31>twill[{own}]: no time")),
        ] {
            log.write_all(line.as_bytes()).unwrap();
            let mut message = [0; 200];
            let bytes = listener.recv(&mut message).unwrap();
            assert_eq!(String::from_utf8_lossy(&message[..bytes]), wanted);
        }
    }
}
