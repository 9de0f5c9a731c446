//! Any other program that does the work of a row: its command is run in turns with Twill's own runs, and says how many operations
//! it did. What it is and whether it copies as much is its caller's matter.

use std::process::{Command, Stdio};
use std::str::FromStr;

use serde::Serialize;

use super::spread::Spread;
use super::works::{MEMBERS, Task};
use crate::Error;
use crate::setting::Setting;

/// The exit code of a peer that does not do the work of a row.
const NOT_DONE: i32 = 77;

/// A peer and the command that runs it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PeerCommand {
    /// Its name in the table.
    pub name: String,
    /// What a shell runs for each run of each row. It is told the work in its environment, and the last line that it prints is the number of
    /// operations that it did in a second.
    pub command: String,
}

impl FromStr for PeerCommand {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parts = text.split_once('=').filter(|(name, command)| !name.is_empty() && !command.is_empty());
        let (name, command) = parts.ok_or("a peer is NAME=COMMAND")?;
        Ok(PeerCommand { name: name.to_owned(), command: command.to_owned() })
    }
}

/// A peer's runs of a row, beside those of Twill.
#[derive(Clone, Debug, Serialize)]
pub struct Peer {
    /// Which one.
    pub name: String,
    /// Thousands of operations a second.
    pub kiops: Spread,
    /// Twill's by the peer's, of runs that were made one after the other.
    pub ratio: Spread,
}

impl Peer {
    /// Of rounds: operations a second of Twill and of the peer in each. None: it did not do the work in every one.
    pub(super) fn of(name: &str, ours: &[f64], theirs: &[Option<f64>]) -> Option<Peer> {
        let theirs: Vec<f64> = theirs.iter().copied().collect::<Option<_>>()?;
        let ratios = ours.iter().zip(&theirs).map(|(ours, theirs)| ours / theirs).collect();
        Some(Peer {
            name: name.to_owned(),
            kiops: Spread::of(theirs.iter().map(|iops| iops / 1e3).collect()),
            ratio: Spread::of(ratios),
        })
    }
}

impl PeerCommand {
    /// Runs it once for a row. None: it does not do such work.
    pub(super) fn run(
        &self,
        task: &Task,
        setting: &Setting,
        member_bytes: u64,
    ) -> Result<Option<f64>, Error> {
        let failed = |reason: String| Error::Peer { name: self.name.clone(), reason };
        let mut command = Command::new("sh");
        command.arg("-c").arg(&self.command).stdin(Stdio::null());
        for (name, value) in [
            ("TWILL_ROW", task.name.to_owned()),
            ("TWILL_LEVEL", setting.level.clone()),
            ("TWILL_RW", setting.rw.name().to_owned()),
            ("TWILL_BS", setting.bs.to_string()),
            ("TWILL_CHUNK", setting.chunk.to_string()),
            ("TWILL_IODEPTH", setting.iodepth.to_string()),
            ("TWILL_CORES", setting.shards.to_string()),
            ("TWILL_SECONDS", setting.runtime.to_string()),
            ("TWILL_MEMBERS", MEMBERS.to_string()),
            ("TWILL_MEMBER_BYTES", member_bytes.to_string()),
        ] {
            command.env(name, value);
        }
        let output = command.output().map_err(|error| failed(error.to_string()))?;
        if output.status.code() == Some(NOT_DONE) {
            return Ok(None);
        }
        let last = |bytes: &[u8]| {
            let text = String::from_utf8_lossy(bytes);
            text.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or_default().trim().to_owned()
        };
        if !output.status.success() {
            return Err(failed(format!("{}: {}", output.status, last(&output.stderr))));
        }
        let said = last(&output.stdout);
        match said.parse::<f64>() {
            Ok(iops) if iops.is_finite() && iops > 0.0 => Ok(Some(iops)),
            _ => Err(failed(format!("its last line is {said:?}, and not a number of operations a second"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::works::WORKS;
    use super::*;

    fn run(command: &str) -> Result<Option<f64>, Error> {
        let peer: PeerCommand = format!("other={command}").parse().expect("a peer");
        let task = &WORKS[0];
        let setting = task.setting(&Setting::default());
        peer.run(task, &setting, 1 << 20)
    }

    #[test]
    fn a_peer_is_told_the_work_and_says_what_it_did() {
        let said =
            run("echo noise; echo $TWILL_BS; echo; test $TWILL_RW = randwrite && test $TWILL_LEVEL = 5");
        assert_eq!(said.expect("it runs"), Some(4096.0));
        assert_eq!(run("exit 77").expect("it runs"), None);
        for (command, words) in [
            ("echo none", "not a number"),
            ("echo -5", "not a number"),
            ("echo broken >&2; exit 3", "broken"),
        ] {
            let error = run(command).expect_err("it says nothing").to_string();
            assert!(error.contains(words) && error.contains("other"), "{error}");
        }
        "no command".parse::<PeerCommand>().expect_err("no name");
    }

    /// A slow moment of the machine meets both runs of a round, so the ratio is of rounds.
    #[test]
    fn ratios_are_of_runs_beside_each_other() {
        let peer = Peer::of("p", &[100.0, 50.0, 200.0], &[Some(50.0), Some(25.0), Some(100.0)]).expect("all");
        assert_eq!((peer.ratio.least, peer.ratio.median, peer.ratio.greatest), (2.0, 2.0, 2.0));
        assert_eq!(peer.kiops.median, 0.05);
        assert!(Peer::of("p", &[100.0], &[None]).is_none());
    }
}
