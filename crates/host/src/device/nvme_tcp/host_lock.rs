//! The lock by which processes of one machine agree which of them has a member: what a killed process left reserved is taken
//! back by the next one, unless a living one holds the lock.

use std::fs::{self, File};
use std::io;
use std::path::Path;

use rustix::fs::FlockOperation;

/// Held as long as it lives.
#[derive(Debug)]
pub(super) struct HostLock(#[allow(dead_code)] File);

impl HostLock {
    /// Takes the lock of a namespace. None: another process has it.
    pub fn take(folder: &Path, namespace: (u64, u64)) -> io::Result<Option<HostLock>> {
        fs::create_dir_all(folder)?;
        let path = folder.join(format!("member-{:016x}.lock", namespace.1));
        let file = File::options().create(true).append(true).open(path)?;
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Some(HostLock(file))),
            Err(rustix::io::Errno::WOULDBLOCK) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }
}
