//! What a service manager hears of a server: READY once clients are served, STOPPING once the stop is certain.

use std::os::unix::net::UnixDatagram;
use std::process::Stdio;
use std::time::Duration;

use crate::world::World;

/// A manager's socket, and the next datagram that comes to it.
fn manager(world: &World) -> (UnixDatagram, impl Fn() -> String + '_) {
    let socket = UnixDatagram::bind(world.path("notify")).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let listener = socket.try_clone().unwrap();
    let next = move || {
        let mut message = [0; 512];
        let bytes = listener.recv(&mut message).expect("a datagram");
        String::from_utf8_lossy(&message[..bytes]).into_owned()
    };
    (socket, next)
}

#[test]
fn a_manager_hears_of_readiness_and_of_the_stop() {
    let world = World::new();
    let members = world.array(3);
    let (_socket, next) = manager(&world);
    let mut server = world
        .command()
        .env("NOTIFY_SOCKET", world.path("notify"))
        .args(["serve", "--shards", "1"])
        .args(&members)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let ready = next();
    assert!(
        ready.starts_with(&format!("READY=1\nMAINPID={}\nSTATUS=test is served: nbd", server.id())),
        "{ready}"
    );
    world.twill::<&str>(&["status"], &[]).succeeds();
    world.twill(&["stop"], &["test"]).succeeds();
    let stopping = next();
    assert!(stopping.starts_with("STOPPING=1\n"), "{stopping}");
    assert!(server.wait().unwrap().success());
}

#[test]
fn a_refused_stop_is_none() {
    let world = World::new();
    let members = world.array(3);
    let (socket, next) = manager(&world);
    let notify = world.path("notify");
    let mut daemon = world.command();
    daemon.env("NOTIFY_SOCKET", &notify).args(["serve", "--daemon", "--shards", "1", "--unix", "nbd.sock"]);
    assert!(daemon.args(&members).stdout(Stdio::null()).stderr(Stdio::null()).status().unwrap().success());
    assert!(next().starts_with("READY=1\nMAINPID="));
    let client = world.client();
    assert_eq!(world.twill(&["stop"], &["test"]).code, 18);
    socket.set_nonblocking(true).unwrap();
    assert!(socket.recv(&mut [0; 64]).is_err(), "the array goes on");
    drop(client);
    world.twill(&["stop", "--force"], &["test"]).succeeds();
    socket.set_nonblocking(false).unwrap();
    assert!(next().starts_with("STOPPING=1"));
}

/// A start that is refused says so by its exit code, and never that it is ready.
#[test]
fn an_array_that_does_not_start_is_never_ready() {
    let world = World::new();
    let members = world.array(3);
    let (socket, _next) = manager(&world);
    let mut server = world.command();
    server.env("NOTIFY_SOCKET", world.path("notify")).args(["serve"]).args(&members[..1]);
    let code = server.stdout(Stdio::null()).stderr(Stdio::null()).status().unwrap().code();
    assert_eq!(code, Some(5));
    socket.set_nonblocking(true).unwrap();
    assert!(socket.recv(&mut [0; 64]).is_err());
}
