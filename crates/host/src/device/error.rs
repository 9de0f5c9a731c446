//! Why a device was not opened.

use rustix::io::Errno;
use std::io;
use std::path::PathBuf;

/// What kind of refusal it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OpenErrorKind {
    /// There is no such file or device.
    NotFound,
    /// This user may not open it.
    Permission,
    /// A mount, another array or another process holds it, or it is given twice.
    InUse,
    /// Neither a regular file nor a block device.
    WrongType,
    /// It is smaller than a device must be.
    TooSmall,
    /// It cannot be written.
    ReadOnly,
    /// The device is not there any more, or has no medium.
    Gone,
    /// Anything else the system says.
    System,
}

/// A device that was not opened.
#[derive(Debug, thiserror::Error)]
#[error("{name}: {reason}")]
pub struct OpenError {
    /// What to match on.
    pub kind: OpenErrorKind,
    /// The path, or the words of the specification.
    pub name: String,
    /// What is wrong and what would help, without the system's words.
    pub reason: String,
    /// What the system said.
    #[source]
    pub source: Option<io::Error>,
}

impl OpenError {
    /// A refusal of our own.
    pub(super) fn refuse(kind: OpenErrorKind, name: impl Into<String>, reason: impl Into<String>) -> Self {
        OpenError { kind, name: name.into(), reason: reason.into(), source: None }
    }

    /// A refusal of the system.
    pub(super) fn system(name: impl Into<String>, errno: Errno) -> Self {
        let (kind, reason) = match errno {
            Errno::NOENT | Errno::NOTDIR => (OpenErrorKind::NotFound, "no such file or device"),
            Errno::ACCESS | Errno::PERM => {
                (OpenErrorKind::Permission, "permission denied: run as a user who may write it")
            }
            Errno::BUSY | Errno::AGAIN | Errno::TXTBSY => {
                (OpenErrorKind::InUse, "in use: mounted, part of another array, or opened by another process")
            }
            Errno::ROFS => (OpenErrorKind::ReadOnly, "on a read-only file system or device"),
            Errno::NXIO | Errno::NODEV | Errno::NOMEDIUM => {
                (OpenErrorKind::Gone, "the device is gone or has no medium")
            }
            _ => (OpenErrorKind::System, "cannot be opened"),
        };
        OpenError { kind, name: name.into(), reason: reason.into(), source: Some(errno.into()) }
    }
}

/// Words that do not name devices.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SpecError {
    /// No device is named.
    #[error("an empty device name")]
    Empty,
    /// The number before the `x` is not a count of devices.
    #[error("{text}: {count:?} is not a number of devices from 1 to {max}", max = super::spec::DEVICES_MAX)]
    Count {
        /// All of the words.
        text: String,
        /// The part that is wrong.
        count: String,
    },
    /// Not a size.
    #[error("{text:?} is not a size: a number of bytes, or a number with K, M, G, T or P (powers of 1024)")]
    Size {
        /// The part that is wrong.
        text: String,
    },
    /// The size does not fit in 64 bits.
    #[error("{text:?} is too large a size")]
    TooLarge {
        /// The part that is wrong.
        text: String,
    },
}

impl OpenError {
    /// The path of a file or device that was not opened.
    pub fn path(&self) -> PathBuf {
        PathBuf::from(&self.name)
    }
}
