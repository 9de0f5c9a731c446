//! Why a command was not done: what is wrong, with which member, and what would help, for people and as JSON.

use std::fmt;
use std::io;
use std::path::Path;

use host::device::nvme_tcp::RemoteAddress;
use host::device::{OpenError, OpenErrorKind};
use serde::{Deserialize, Serialize};

use crate::exit::ExitKind;
use crate::plain::plain;

/// One thing that is wrong with one member.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Problem {
    /// What to match on.
    pub kind: ExitKind,
    /// The member, as it was named on the command line.
    pub member: String,
    /// What is wrong.
    pub what: String,
    /// What would help.
    pub help: Option<String>,
}

impl Problem {
    /// Something wrong with `member`.
    pub fn new(kind: ExitKind, member: &Path, what: impl Into<String>) -> Self {
        Problem { kind, member: member.display().to_string(), what: what.into(), help: None }
    }

    /// An operation of the system failed.
    pub fn from_io(member: &Path, doing: &str, error: &io::Error) -> Self {
        let kind = ExitKind::from(error.kind());
        let problem = Problem::new(kind, member, format!("cannot {doing}: {error}"));
        match kind {
            ExitKind::Permission => problem.help("run as its owner or as root"),
            ExitKind::NotFound => problem.help("lsblk lists the block devices of this machine"),
            _ => problem,
        }
    }

    /// Why an array does not say how it is.
    pub fn of_array(name: &str, Failure { kind, message, help, problems, .. }: Failure) -> Self {
        let more = problems.iter().map(|problem| format!("; {}: {}", problem.member, problem.what));
        let what = more.fold(message, |what, more| what + &more);
        let what = what.strip_prefix(&format!("{name} ")).map(ToOwned::to_owned).unwrap_or(what);
        Problem { kind, member: name.to_owned(), what, help }
    }

    /// Adds what would help.
    #[must_use]
    pub fn help(self, help: impl Into<String>) -> Self {
        Problem { help: Some(help.into()), ..self }
    }
}

/// Why a device cannot be used, for a person.
pub fn open_problem(path: &Path, error: &OpenError) -> Problem {
    let kind = match error.kind {
        OpenErrorKind::NotFound => ExitKind::NotFound,
        OpenErrorKind::Permission => ExitKind::Permission,
        OpenErrorKind::InUse => ExitKind::MemberInUse,
        OpenErrorKind::WrongType => ExitKind::NotAMember,
        OpenErrorKind::TooSmall => ExitKind::Damaged,
        _ => ExitKind::IoError,
    };
    // The member's name stands before the reason already.
    let problem = Problem::new(kind, path, error.reason.clone());
    match kind {
        _ if path.to_str().is_some_and(RemoteAddress::is_one) => problem,
        ExitKind::MemberInUse => problem.help("twill status and lsblk say who uses it: stop that first"),
        ExitKind::NotFound => problem.help("lsblk lists the block devices of this machine"),
        ExitKind::Permission => problem.help("run as its owner or as root"),
        ExitKind::NotAMember => problem.help("name a file or a block device"),
        _ => problem,
    }
}

/// Why a command was not done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub struct Failure {
    /// What to match on; decides the exit code.
    pub kind: ExitKind,
    /// What is wrong.
    pub message: String,
    /// What would help.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub help: Option<String>,
    /// What is wrong with which member.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub problems: Vec<Problem>,
    /// The command's answer, printed already, contains all this: `--json` prints one document, not two.
    #[serde(skip)]
    pub answered: bool,
    /// Another process has printed it on standard error already.
    #[serde(skip)]
    pub said: bool,
}

impl Failure {
    /// A failure that is not about one member.
    pub fn new(kind: ExitKind, message: impl Into<String>) -> Self {
        Failure {
            kind,
            message: message.into(),
            help: None,
            problems: Vec::new(),
            answered: false,
            said: false,
        }
    }

    /// Nobody can connect to `place`: another program has it, or what the system says.
    pub fn cannot_listen(place: impl fmt::Display, error: &io::Error) -> Self {
        let kind = match error.kind() {
            io::ErrorKind::AddrInUse => ExitKind::AlreadyExists,
            other => ExitKind::from(other),
        };
        Failure::new(kind, format!("cannot listen at {place}: {error}"))
    }

    /// An operation of the system failed.
    pub fn from_io(doing: &str, path: &Path, error: &io::Error) -> Self {
        Failure::new(error.kind().into(), format!("cannot {doing} {}: {error}", path.display()))
    }

    /// Adds what would help.
    #[must_use]
    pub fn help(self, help: impl Into<String>) -> Self {
        Failure { help: Some(help.into()), ..self }
    }

    /// The answer, printed already, contains it too.
    #[must_use]
    pub fn answered(self) -> Self {
        Failure { answered: true, ..self }
    }

    /// It has been printed on standard error already.
    #[must_use]
    pub fn said(self) -> Self {
        Failure { said: true, ..self }
    }

    /// Members that cannot be taken. What `--force` cannot change decides the kind.
    pub fn from_problems(message: impl Into<String>, problems: Vec<Problem>) -> Self {
        let kind = problems
            .iter()
            .map(|problem| problem.kind)
            .find(|kind| *kind != ExitKind::NeedsForce)
            .unwrap_or(ExitKind::NeedsForce);
        Failure { kind, message: message.into(), help: None, problems, answered: false, said: false }
    }

    /// As `--json` prints it.
    pub fn to_json(&self) -> serde_json::Value {
        let mut error = serde_json::to_value(self).expect("a failure is plain data");
        error["exit_code"] = self.kind.code().into();
        serde_json::json!({ "error": error })
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&plain(&self.message))?;
        for Problem { member, what, help, .. } in &self.problems {
            write!(f, "\n  {}: {}", plain(member), plain(what))?;
            if let Some(help) = help {
                write!(f, "; {}", plain(help))?;
            }
        }
        if let Some(help) = &self.help {
            write!(f, "\n  {}", plain(help))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_force_cannot_change_decides_the_kind() {
        let member = Path::new("a");
        let forced = Problem::new(ExitKind::NeedsForce, member, "has a file system");
        let small = Problem::new(ExitKind::BadGeometry, member, "is too small");
        assert_eq!(Failure::from_problems("no", vec![forced.clone()]).kind, ExitKind::NeedsForce);
        assert_eq!(Failure::from_problems("no", vec![forced, small]).kind, ExitKind::BadGeometry);
    }

    #[test]
    fn a_failure_names_member_and_help() {
        let problem =
            Problem::new(ExitKind::NeedsForce, Path::new("a"), "has a file system").help("try --force");
        let failure = Failure::from_problems("nothing was written", vec![problem]).help("or others");
        assert_eq!(
            failure.to_string(),
            "nothing was written\n  a: has a file system; try --force\n  or others"
        );
        assert_eq!(failure.to_json()["error"]["exit_code"], 3);
        let path = Problem::new(ExitKind::NotFound, Path::new("a\n\u{1b}[2J"), "is not there");
        assert_eq!(
            Failure::from_problems("no", vec![path]).to_string(),
            "no\n  a\\n\\u{1b}[2J: is not there"
        );
        let back: Failure = serde_json::from_value(failure.to_json()["error"].clone()).unwrap();
        assert_eq!(back, failure);
    }
}
