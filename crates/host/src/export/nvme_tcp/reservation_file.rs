//! The state file of a namespace's reservations, on this machine's disk.
//!
//! F-I9: the file is replaced, never changed in place: written beside, synced, renamed over the former, and the folder synced. A
//! file that is missing or cannot be believed is an error, because a host that was fenced might hold the namespace again.

use nvme_tcp::names::HostId;
use nvme_tcp::reservation::{Reservations, STATE_FILE_BYTES_MAX, StateFileError, Synced};
use rustix::fs::{FlockOperation, flock};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// Reservations say which hosts there are: not for every user of the machine.
const MODE: u32 = 0o640;

/// Why a namespace's reservations are not known.
#[derive(Debug, thiserror::Error)]
pub enum ReservationFileError {
    /// There is no file.
    #[error(
        "{0}: there is no such file, so it is not known which host holds the namespace; it is not served before that is decided"
    )]
    Missing(PathBuf),
    /// The file is not a whole state of this namespace.
    #[error("{path}: {error}; so it is not known which host holds the namespace, and it is not served before that is decided", path = path.display())]
    Lost {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        error: StateFileError,
    },
    /// Another process serves the namespace.
    #[error("{0}: another process has it locked, and serves the namespace")]
    InUse(PathBuf),
    /// The system does not let it be read or written.
    #[error("{path}: {error}", path = path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system says.
        error: io::Error,
    },
}

/// The reservations of a namespace, and the file that keeps them.
#[derive(Debug)]
pub struct KeptReservations {
    pub(super) state: Reservations,
    pub(super) file: ReservationFile,
}

/// A state file.
#[derive(Debug)]
pub(super) struct ReservationFile {
    path: PathBuf,
    namespace: [u8; 16],
    /// Locked as long as the namespace is served: two servers would each keep reservations that the other does not know. It is
    /// a file beside, since the state file is another one after each change. None: the namespace ends with this process, and
    /// nothing is kept.
    lock: Option<File>,
}

impl KeptReservations {
    /// Reads the state file that `folder` has for `namespace`. With `may_be_new`, a state that is missing or lost is replaced by
    /// none; one that can be believed is used even then.
    ///
    /// # Errors
    /// [`ReservationFileError`]: the namespace must not be served.
    pub fn open(
        folder: &Path,
        namespace: [u8; 16],
        may_be_new: bool,
    ) -> Result<KeptReservations, ReservationFileError> {
        let path = folder.join(format!("reservations-{}", HostId(namespace)));
        let lock = lock(folder, &path)?;
        let file = ReservationFile { path, namespace, lock: Some(lock) };
        let lost = match file.read() {
            // What was not to persist ends with the server that kept it in memory: the file has none of it.
            Ok(state) => return Ok(KeptReservations { state, file }),
            Err(error @ ReservationFileError::Io { .. }) => return Err(error),
            Err(lost) => lost,
        };
        if !may_be_new {
            return Err(lost);
        }
        let path = file.path.display();
        tracing::warn!(
            "{path}: missing or damaged; the namespace begins without reservations, as was asked for"
        );
        let state = Reservations::none();
        file.replace(&state).map_err(|error| file.failed(error))?;
        Ok(KeptReservations { state, file })
    }

    /// Those of a namespace of memory, which operators know as `name`: it ends with this process, and they with it.
    pub fn of_memory(name: &str, namespace: [u8; 16]) -> KeptReservations {
        let file = ReservationFile { path: name.into(), namespace, lock: None };
        KeptReservations { state: Reservations::none(), file }
    }
}

fn lock(folder: &Path, path: &Path) -> Result<File, ReservationFileError> {
    let beside = path.with_extension("lock");
    let failed = |error| ReservationFileError::Io { path: beside.clone(), error };
    fs::create_dir_all(folder).map_err(failed)?;
    let mut options = OpenOptions::new();
    let lock = options.write(true).create(true).truncate(false).mode(MODE).open(&beside).map_err(failed)?;
    match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(lock),
        Err(rustix::io::Errno::WOULDBLOCK) => Err(ReservationFileError::InUse(beside)),
        Err(error) => Err(failed(error.into())),
    }
}

impl ReservationFile {
    fn failed(&self, error: io::Error) -> ReservationFileError {
        ReservationFileError::Io { path: self.path.clone(), error }
    }

    fn read(&self) -> Result<Reservations, ReservationFileError> {
        let file = match File::open(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(ReservationFileError::Missing(self.path.clone()));
            }
            opened => opened.map_err(|error| self.failed(error))?,
        };
        let mut image = Vec::new();
        // One byte more than the longest shows that a file is longer.
        let most = STATE_FILE_BYTES_MAX as u64 + 1;
        file.take(most).read_to_end(&mut image).map_err(|error| self.failed(error))?;
        let lost = |error| ReservationFileError::Lost { path: self.path.clone(), error };
        Reservations::parse(&image, &self.namespace).map_err(lost)
    }

    /// Replaces the file. It is durable when this returns. Blocks, so it is not for a shard.
    ///
    /// # Errors
    /// What the system says: the file has the former state or the new one.
    pub fn replace(&self, state: &Reservations) -> io::Result<Synced> {
        let image = state.encode(&self.namespace);
        if self.lock.is_some() {
            self.write(&image)?;
        }
        Synced::after_writing(&image, &self.namespace).map_err(io::Error::other)
    }

    fn write(&self, image: &[u8]) -> io::Result<()> {
        let folder = self.path.parent().unwrap_or(Path::new("."));
        let beside = self.path.with_extension("new");
        let mut options = OpenOptions::new();
        let mut file = options.write(true).create(true).truncate(true).mode(MODE).open(&beside)?;
        file.write_all(image)?;
        file.sync_all()?;
        fs::rename(&beside, &self.path)?;
        File::open(folder)?.sync_all()
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    const NAMESPACE: [u8; 16] = [7; 16];

    #[test]
    fn a_missing_or_damaged_file_serves_no_host_until_that_is_asked_for() {
        let folder = tempfile::tempdir().unwrap();
        let open = |may_be_new| KeptReservations::open(folder.path(), NAMESPACE, may_be_new);
        assert!(matches!(open(false), Err(ReservationFileError::Missing(_))));
        let kept = open(true).unwrap();
        assert!(matches!(open(false), Err(ReservationFileError::InUse(_))), "it is served already");
        let path = kept.file.path().to_owned();
        drop(kept);
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o137, 0);
        assert_eq!(open(false).unwrap().state, Reservations::none());
        let mut image = fs::read(&path).unwrap();
        image[40] ^= 1;
        fs::write(&path, &image).unwrap();
        assert!(matches!(open(false), Err(ReservationFileError::Lost { .. })));
        fs::write(&path, vec![0; STATE_FILE_BYTES_MAX + 100]).unwrap();
        assert!(matches!(open(false), Err(ReservationFileError::Lost { .. })));
        open(true).unwrap();
        open(false).unwrap();
    }
}
