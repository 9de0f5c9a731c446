//! `cargo xtask drives`: drives with a volatile write cache, for power cuts inside one machine.
//!
//! One process serves N drives in memory over NBD at one unix socket, as exports `drive0` and so on; the kernel's NBD
//! client makes block devices of them. A power cut is one moment for all of them: what they hold afterwards is chosen
//! then, while the machine goes on with what it had, so that the array on them can be taken down in peace. At
//! `power-on` the drives hold what was chosen.
//!
//! Fault model: see [`cache`].

mod cache;
mod nbd;

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use parking_lot::RwLock;

use cache::Drive;

/// What `cargo xtask drives` does.
#[derive(clap::Subcommand)]
pub enum Action {
    /// Serve drives until killed
    Serve {
        /// How many
        #[arg(long)]
        count: usize,
        /// MiB of each
        #[arg(long)]
        mib: usize,
        /// Where NBD clients connect
        #[arg(long)]
        socket: PathBuf,
        /// Where `cut` and `power-on` connect
        #[arg(long)]
        control: PathBuf,
    },
    /// Ask whether the drives are served; status 0 if so
    Ready {
        #[arg(long)]
        control: PathBuf,
    },
    /// Choose what the drives hold after a power cut at this moment
    Cut {
        #[arg(long)]
        control: PathBuf,
        /// Which unflushed writes are lost
        #[arg(long)]
        seed: u64,
        /// FROM:TO, a file to copy at the same moment: no drive answers meanwhile
        #[arg(long)]
        copy: Vec<String>,
    },
    /// From now on the drives hold what was chosen; no client may be connected
    PowerOn {
        #[arg(long)]
        control: PathBuf,
    },
}

/// All drives. Requests share the lock, a cut has it alone: it is one moment for all.
struct Drives {
    power: RwLock<()>,
    drives: Vec<Drive>,
}

/// Serves drives, or tells those that serve what to do.
pub fn run(action: &Action) -> Result<ExitCode> {
    match action {
        Action::Serve { count, mib, socket, control } => serve(*count, *mib << 20, socket, control),
        Action::Ready { control } => say(control, "ready"),
        Action::Cut { control, seed, copy } => {
            let words: Vec<String> = copy.iter().map(|pair| format!(" {pair}")).collect();
            say(control, &format!("cut {seed}{}", words.concat()))
        }
        Action::PowerOn { control } => say(control, "power-on"),
    }
}

fn serve(count: usize, bytes: usize, socket: &Path, control: &Path) -> Result<ExitCode> {
    let drives = (0..count).map(|_| Drive::new(bytes)).collect();
    let drives = Arc::new(Drives { power: RwLock::new(()), drives });
    let clients = listen(socket)?;
    let commands = listen(control)?;
    let shared = Arc::clone(&drives);
    std::thread::spawn(move || {
        for client in clients.incoming().flatten() {
            let drives = Arc::clone(&shared);
            // A client that goes away in the middle is no failure: kernels do that.
            std::thread::spawn(move || drop(nbd::serve(&drives.drives, &drives.power, client)));
        }
    });
    for command in commands.incoming() {
        let mut command = command?;
        let mut line = String::new();
        BufReader::new(command.try_clone()?).read_line(&mut line)?;
        let answer = drives
            .obey(line.trim_end())
            .map_or_else(|error| format!("{error:#}\n"), |text| format!("ok {text}\n"));
        command.write_all(answer.as_bytes())?;
    }
    Ok(ExitCode::SUCCESS)
}

fn listen(path: &Path) -> Result<UnixListener> {
    drop(std::fs::remove_file(path));
    UnixListener::bind(path).with_context(|| path.display().to_string())
}

fn say(control: &Path, line: &str) -> Result<ExitCode> {
    let mut stream = UnixStream::connect(control).with_context(|| control.display().to_string())?;
    stream.write_all(format!("{line}\n").as_bytes())?;
    let mut answer = String::new();
    BufReader::new(stream).read_line(&mut answer)?;
    println!("{}", answer.trim_end());
    Ok(if answer.starts_with("ok") { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

impl Drives {
    fn obey(&self, line: &str) -> Result<String> {
        let words: Vec<&str> = line.split(' ').collect();
        match words.as_slice() {
            ["ready"] => Ok(String::new()),
            ["cut", seed, copies @ ..] => self.cut(seed.parse()?, copies),
            ["power-on"] => self.power_on(),
            _ => bail!("unknown command {line:?}"),
        }
    }

    fn cut(&self, seed: u64, copies: &[&str]) -> Result<String> {
        let _all_wait = self.power.write();
        for copy in copies {
            let (from, to) = copy.split_once(':').context("--copy FROM:TO")?;
            std::fs::copy(from, to).with_context(|| (*copy).to_owned())?;
        }
        let lost = (seed..).zip(&self.drives).map(|(seed, drive)| drive.cut(seed));
        let (lost, unflushed) = lost.fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
        Ok(format!("{lost} of {unflushed} unflushed writes lost or torn"))
    }

    fn power_on(&self) -> Result<String> {
        let _all_wait = self.power.write();
        self.drives.iter().try_for_each(Drive::power_on)?;
        Ok(String::new())
    }
}
