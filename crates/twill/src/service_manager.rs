//! What a service manager hears: systemd's `sd_notify`, one datagram to the socket that `NOTIFY_SOCKET` names.
//!
//! There is no watchdog: it would have to say that members answer and clients are served, and a thread of its own knows neither.

use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// Clients are served from now on; `status` is a line for `systemctl status`.
pub fn ready(status: &str) {
    send(&format!("READY=1\nMAINPID={}\nSTATUS={}", std::process::id(), one_line(status)));
}

/// A line for `systemctl status`.
pub fn status(status: &str) {
    send(&format!("STATUS={}", one_line(status)));
}

/// The stop has begun and is not called off any more.
pub fn stopping() {
    send("STOPPING=1\nSTATUS=stopping: superblocks are being written");
}

fn send(state: &str) {
    let Some(socket) = std::env::var_os("NOTIFY_SOCKET").filter(|socket| !socket.is_empty()) else { return };
    if let Err(error) = send_to(&socket, state) {
        tracing::warn!("cannot tell the service manager at {}: {error}", socket.display());
    }
}

/// A path, or after an @ a name without a file.
fn send_to(socket: &OsStr, state: &str) -> io::Result<()> {
    let address = match socket.as_bytes() {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name)?,
        path => SocketAddr::from_pathname(OsStr::from_bytes(path))?,
    };
    let from = UnixDatagram::unbound()?;
    // A manager that hangs holds up no stop.
    from.set_nonblocking(true)?;
    from.send_to_addr(state.as_bytes(), &address).map(drop)
}

/// A new line would begin another field.
fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn received(by: &UnixDatagram) -> String {
        let mut message = [0; 256];
        let bytes = by.recv(&mut message).unwrap();
        String::from_utf8_lossy(&message[..bytes]).into_owned()
    }

    #[test]
    fn a_datagram_reaches_a_path_and_an_abstract_name() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("notify");
        let listener = UnixDatagram::bind(&path).unwrap();
        send_to(path.as_os_str(), "READY=1").unwrap();
        assert_eq!(received(&listener), "READY=1");
        let name = format!("twill-test-{}", std::process::id());
        let listener = UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
        send_to(OsStr::new(&format!("@{name}")), "STOPPING=1").unwrap();
        assert_eq!(received(&listener), "STOPPING=1");
        assert!(send_to(OsStr::new("/nowhere/notify"), "READY=1").is_err());
    }

    #[test]
    fn a_status_is_one_line() {
        assert_eq!(one_line("a\nREADY=0  b"), "a READY=0 b");
    }
}
