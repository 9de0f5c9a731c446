//! How the program ends: every kind of outcome, its exit code, its name in JSON, and what it means. One table, which
//! `docs/exit-codes.md` repeats and a test compares.

use engine::array::assemble::Refusal;
use std::fmt;
use std::process::ExitCode;

use serde::{Deserialize, Serialize};

/// A kind of outcome. Its number is the exit code; neither is ever given another meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[repr(u8)]
pub enum ExitKind {
    /// Done.
    Ok = 0,
    /// A mistake of Twill's own.
    Internal = 1,
    /// The command line is wrong. clap uses this code too.
    Usage = 2,
    /// Refused because something could be lost; `--force` does it nevertheless.
    NeedsForce = 3,
    /// A file or device is no member of an array, or not of this one.
    NotAMember = 4,
    /// Too few members to run the array.
    NotEnoughMembers = 5,
    /// A member is in use, or not in the state that the command needs.
    MemberInUse = 6,
    /// The system could not read or write.
    IoError = 7,
    /// No such array is served, or there is no such file or member.
    NotFound = 8,
    /// It is there already.
    AlreadyExists = 9,
    /// Level, layout, chunk, sizes or number of members make no array.
    BadGeometry = 10,
    /// A member's superblock is damaged, or the member is cut short.
    Damaged = 11,
    /// The array has a feature that Twill does not run.
    Unsupported = 12,
    /// More than one array, or one member twice, fits what was asked for.
    Ambiguous = 13,
    /// The array would be lost.
    WouldLoseData = 14,
    /// The system does not allow it.
    Permission = 15,
    /// A check found blocks that do not agree, or a repair left some.
    Mismatch = 16,
    /// The kernel lacks what is asked for.
    NoDriver = 17,
    /// The array is in use: its block device, or clients are connected.
    DeviceInUse = 18,
    /// A member lacks more than the bitmap tells.
    LacksMore = 19,
    /// Stripes of the array are in doubt.
    InDoubt = 20,
    /// Members of the array are missing; its data is all there.
    Degraded = 21,
    /// Too many members of the array are gone, or it is losing data.
    Failed = 22,
    /// Stripes would be in doubt without a member; `--force` does it nevertheless.
    WouldDoubt = 23,
    /// A signal ended it, or what it waited for was paused or cancelled.
    Interrupted = 130,
}

impl ExitKind {
    /// Every kind with its name and a line for a person, in the order of the codes.
    pub const TABLE: [(Self, &str, &str); 25] = [
        (Self::Ok, "ok", "Done."),
        (Self::Internal, "internal", "A mistake of Twill's own. Please report it."),
        (Self::Usage, "usage", "The command line is wrong."),
        (
            Self::NeedsForce,
            "needs-force",
            "Refused because something could be lost; `--force` does it nevertheless.",
        ),
        (Self::NotAMember, "not-a-member", "A file or device is no member of an array, or not of this one."),
        (Self::NotEnoughMembers, "not-enough-members", "Too few members to run the array."),
        (
            Self::MemberInUse,
            "member-in-use",
            "A member is in use, or not in the state that the command needs.",
        ),
        (Self::IoError, "io-error", "The system could not read or write."),
        (Self::NotFound, "not-found", "No such array is served, or there is no such file or member."),
        (Self::AlreadyExists, "already-exists", "It is there already."),
        (
            Self::BadGeometry,
            "bad-geometry",
            "Level, layout, chunk, sizes or number of members make no array.",
        ),
        (Self::Damaged, "damaged", "A member's superblock is damaged, or the member is cut short."),
        (Self::Unsupported, "unsupported", "The array has a feature that Twill does not run."),
        (Self::Ambiguous, "ambiguous", "More than one array, or one member twice, fits what was asked for."),
        (Self::WouldLoseData, "would-lose-data", "The array would be lost; `--force` changes nothing."),
        (Self::Permission, "permission", "The system does not allow it."),
        (Self::Mismatch, "mismatch", "A check found blocks that do not agree, or a repair left some."),
        (Self::NoDriver, "no-driver", "The kernel lacks what is asked for, or its module is not loaded."),
        (
            Self::DeviceInUse,
            "device-in-use",
            "The array is in use: its block device, or clients are connected.",
        ),
        (
            Self::LacksMore,
            "lacks-more",
            "A member that was away lacks more than the bitmap tells: it has to be added and rebuilt.",
        ),
        (
            Self::InDoubt,
            "in-doubt",
            "Stripes of the array are in doubt: what missing members held there cannot be read.",
        ),
        (
            Self::Degraded,
            "degraded",
            "`status --test`: members of the array are missing or being rebuilt; its data is all there.",
        ),
        (
            Self::Failed,
            "failed",
            "`status --test`: too many members of the array are gone, or it is losing data.",
        ),
        (
            Self::WouldDoubt,
            "would-doubt",
            "Refused because stripes would be in doubt without the member; `--force` does it nevertheless.",
        ),
        (
            Self::Interrupted,
            "interrupted",
            "A signal ended it before it was done, or the check that it waited for was paused or cancelled.",
        ),
    ];

    /// The exit code.
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// The kind with this exit code.
    pub fn from_code(code: u8) -> Option<Self> {
        Self::TABLE.into_iter().map(|(kind, ..)| kind).find(|kind| kind.code() == code)
    }

    fn name(self) -> &'static str {
        Self::TABLE.iter().find(|(kind, ..)| *kind == self).expect("every kind has a row").1
    }
}

impl fmt::Display for ExitKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Why the engine does not start an array.
impl From<&Refusal> for ExitKind {
    fn from(refusal: &Refusal) -> Self {
        match refusal {
            Refusal::Features(_) | Refusal::ZonesNeedLayout | Refusal::TooWide { .. } => {
                ExitKind::Unsupported
            }
            Refusal::NotEnoughMembers { .. } => ExitKind::NotEnoughMembers,
            Refusal::Split { .. } => ExitKind::NeedsForce,
            Refusal::Geometry(_) => ExitKind::BadGeometry,
        }
    }
}

impl From<ExitKind> for ExitCode {
    fn from(kind: ExitKind) -> Self {
        ExitCode::from(kind.code())
    }
}

impl From<std::io::ErrorKind> for ExitKind {
    fn from(kind: std::io::ErrorKind) -> Self {
        match kind {
            std::io::ErrorKind::NotFound => ExitKind::NotFound,
            std::io::ErrorKind::PermissionDenied | std::io::ErrorKind::ReadOnlyFilesystem => {
                ExitKind::Permission
            }
            std::io::ErrorKind::AlreadyExists => ExitKind::AlreadyExists,
            std::io::ErrorKind::ResourceBusy => ExitKind::MemberInUse,
            std::io::ErrorKind::Interrupted => ExitKind::Interrupted,
            _ => ExitKind::IoError,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_names_are_those_of_the_table() {
        for (kind, name, _) in ExitKind::TABLE {
            assert_eq!(serde_json::to_value(kind).unwrap(), name);
            assert_eq!(ExitKind::from_code(kind.code()), Some(kind));
        }
    }

    #[test]
    fn the_page_repeats_the_table() {
        let page = include_str!("../../../docs/exit-codes.md");
        let rows: Vec<String> = ExitKind::TABLE
            .iter()
            .map(|(kind, name, meaning)| format!("| {} | `{name}` | {meaning} |", kind.code()))
            .collect();
        let found: Vec<&str> =
            page.lines().filter(|line| line.starts_with("| ") && line.contains('`')).collect();
        assert_eq!(found, rows);
    }
}
