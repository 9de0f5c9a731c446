//! How a device is opened, and why it was not.

use rustix::io::Errno;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use super::nvme_tcp::RemoteOptions;

/// How devices are opened.
#[derive(Clone, Debug)]
pub struct OpenOptions {
    /// No write succeeds. Other processes may read, too, but none may have the device open for writing.
    pub read_only: bool,
    /// Transfers bypass the page cache wherever the file system can.
    pub direct: bool,
    /// Smaller devices are refused.
    pub bytes_min: u64,
    /// An operation without an answer for this long fails with [`engine::device::DeviceErrorKind::Timeout`].
    pub time_limit: Duration,
    /// How members on other machines are reached; none: they are not.
    pub remote: Option<RemoteOptions>,
}

/// A member's time to answer. Clients give up after 30 s (the kernel's SCSI and NVMe drivers, many NBD clients). A write that meets a
/// member that hangs may wait for it three times: for its own operation, and for two writes of superblocks, the one that was under
/// way and the one that says failed. Drives that try again on their own are done within 7 s.
const TIME_LIMIT: Duration = Duration::from_secs(8);

impl Default for OpenOptions {
    fn default() -> Self {
        OpenOptions { read_only: false, direct: true, bytes_min: 4096, time_limit: TIME_LIMIT, remote: None }
    }
}

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
    /// The device is gone, or has no medium.
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
    /// The path, or the text of the specification.
    pub name: String,
    /// What is wrong and what helps, without the system's own message.
    pub reason: String,
    /// The system's error.
    #[source]
    pub source: Option<io::Error>,
}

impl OpenError {
    /// The path of a file or device that was not opened.
    pub fn path(&self) -> PathBuf {
        PathBuf::from(&self.name)
    }

    /// A refusal by this program.
    pub(super) fn refuse(kind: OpenErrorKind, name: impl Into<String>, reason: impl Into<String>) -> Self {
        OpenError { kind, name: name.into(), reason: reason.into(), source: None }
    }

    /// A refusal by the system.
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
