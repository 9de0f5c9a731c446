//! Sockets to listen at: TCP addresses, and Unix sockets with a path. Several servers may use one path: the socket of a dead
//! server is replaced, that of a living one never, and at the end a server removes only the socket that it has made.

use std::fs::{self, File, Metadata, Permissions, TryLockError};
use std::io::{self, ErrorKind};
use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use rustix::net;

use crate::killed_server;

/// How long to wait for another server that holds the folder's lock. A process that holds it longer is not a server.
const FOLDER_LIMIT: Duration = Duration::from_secs(1);

/// Listens at a TCP address. A server that was killed a moment ago may still have it: that is waited for.
///
/// # Errors
/// What the system says; `AddrInUse` if another program listens there.
pub fn listen_tcp(address: SocketAddr) -> io::Result<TcpListener> {
    killed_server::when_free(
        |error: &io::Error| error.kind() == ErrorKind::AddrInUse,
        || TcpListener::bind(address),
    )
}

/// The name of a socket. Dropping it removes the socket's file, unless another socket has taken its place. It must be dropped
/// before the socket is closed: until then no server replaces the file, and no other file has its inode.
#[derive(Debug)]
pub struct SocketName {
    path: PathBuf,
    identity: (u64, u64),
}

/// Who may connect to a Unix socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SocketAccess {
    /// Permissions of its file.
    pub mode: u32,
    /// Group of its file, by number; none: that of the process.
    pub group: Option<u32>,
}

impl SocketAccess {
    /// The user who serves.
    pub const OWNER: SocketAccess = SocketAccess { mode: 0o600, group: None };
}

/// Listens at a path, with this access from the first moment on and for at most `backlog` clients that wait. A socket on
/// which no server listens any more is replaced; anything else stays.
///
/// # Errors
/// `AddrInUse` if something is there, and what else the system says.
pub fn listen(path: &Path, access: SocketAccess, backlog: i32) -> io::Result<(SocketName, OwnedFd)> {
    let _alone = lock_folder(path);
    remove_dead(path)?;
    let flags = net::SocketFlags::CLOEXEC;
    let socket = net::socket_with(net::AddressFamily::UNIX, net::SocketType::STREAM, flags, None)?;
    net::bind(&socket, &net::SocketAddrUnix::new(path)?)?;
    let name = SocketName { path: path.to_owned(), identity: identity(&fs::symlink_metadata(path)?) };
    // No client can connect before `listen`, so none gets in before the permissions are right.
    if access.group.is_some() {
        std::os::unix::fs::chown(path, None, access.group)?;
    }
    fs::set_permissions(path, Permissions::from_mode(access.mode))?;
    net::listen(&socket, backlog)?;
    Ok((name, socket))
}

impl SocketName {
    /// The path of the socket.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for SocketName {
    fn drop(&mut self) {
        let _alone = lock_folder(&self.path);
        if fs::symlink_metadata(&self.path).is_ok_and(|found| identity(&found) == self.identity) {
            let _best_effort = fs::remove_file(&self.path);
        }
    }
}

fn identity(metadata: &Metadata) -> (u64, u64) {
    (metadata.dev(), metadata.ino())
}

fn remove_dead(path: &Path) -> io::Result<()> {
    let is_socket = fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket());
    if is_socket && UnixStream::connect(path).is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused)
    {
        fs::remove_file(path)?;
    }
    Ok(())
}

/// Locks the folder. Otherwise two servers that start together both find a dead socket, and the later one removes the socket
/// of the earlier one. None: the folder cannot be locked, and that may happen.
fn lock_folder(path: &Path) -> Option<File> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let folder = File::open(folder).ok()?;
    let since = Instant::now();
    loop {
        match folder.try_lock() {
            Ok(()) => return Some(folder),
            Err(TryLockError::WouldBlock) if since.elapsed() < FOLDER_LIMIT => {
                thread::sleep(Duration::from_millis(5));
            }
            Err(_) => return None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dead_socket_is_replaced_and_nothing_else() {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let path = folder.path().join("socket");
        let (name, socket) = listen(&path, SocketAccess::OWNER, 1).expect("free");
        assert_eq!(fs::metadata(&path).expect("there").permissions().mode() & 0o777, 0o600);
        assert_eq!(listen(&path, SocketAccess::OWNER, 1).expect_err("in use").kind(), ErrorKind::AddrInUse);
        fs::remove_file(&path).expect("there");
        let (other, others) = listen(&path, SocketAccess::OWNER, 1).expect("its name was taken away");
        drop((name, socket));
        assert!(UnixStream::connect(&path).is_ok(), "the name of another was removed");
        std::mem::forget(other); // of a server that was killed
        drop(others);
        let kept = listen(&path, SocketAccess::OWNER, 1).expect("a dead one is replaced");
        drop(kept);
        assert!(!path.exists(), "left behind");
        fs::write(&path, "a letter").expect("written");
        assert_eq!(listen(&path, SocketAccess::OWNER, 1).expect_err("a file").kind(), ErrorKind::AddrInUse);
        assert_eq!(fs::read_to_string(&path).expect("read"), "a letter");
    }

    #[test]
    fn of_many_that_start_at_once_one_listens() {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let path = folder.path().join("socket");
        for _ in 0..50 {
            let (name, _) = listen(&path, SocketAccess::OWNER, 1).expect("free");
            std::mem::forget(name); // of a server that was killed
            let listening: Vec<_> = thread::scope(|scope| {
                let servers = [(); 8].map(|()| scope.spawn(|| listen(&path, SocketAccess::OWNER, 8).ok()));
                servers.into_iter().filter_map(|server| server.join().expect("no panic")).collect()
            });
            assert_eq!(listening.len(), 1);
        }
    }
}
