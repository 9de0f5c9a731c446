//! A server for a test, on a unix socket in a folder of its own.

use crate::memory::Memory;
use host::export::nbd::{Address, ExportOptions, Server, ServerOptions, Tls};
use host::shard::{ShardOptions, Shards};
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

pub const MIB: usize = 1 << 20;

pub struct Serving {
    pub server: Server,
    pub folder: tempfile::TempDir,
    pub socket: PathBuf,
    pub memory: Arc<Memory>,
    /// Dropped last: their end waits for the connections'.
    pub shards: Shards,
}

impl Serving {
    /// Serves 64 MiB of numbered words in blocks of 512 bytes as the one export, "data".
    pub fn start() -> Self {
        let memory = Memory::new(64 * MIB, 512);
        memory.fill();
        Self::of(memory, ServerOptions::default())
    }

    pub fn of(memory: Memory, options: ServerOptions) -> Self {
        Self::with_tls(memory, options, None)
    }

    pub fn with_tls(memory: Memory, options: ServerOptions, tls: Option<Arc<Tls>>) -> Self {
        let shards = Shards::start(2, &ShardOptions { pin: false, ..ShardOptions::default() }, |_| {})
            .expect("two shards");
        let server = Server::sharing(shards.handle(), options, options.memory(), tls);
        let memory = Arc::new(memory);
        let about = ExportOptions { description: "for tests".to_owned(), ..ExportOptions::default() };
        server.exports().add("data", about, Memory::opener(&memory)).expect("a new name");
        let folder = tempfile::tempdir().expect("a temporary folder");
        let socket = folder.path().join("nbd");
        server.listen(&Address::Unix(socket.clone())).expect("a unix socket");
        Serving { server, folder, socket, memory, shards }
    }

    /// URI of an export.
    pub fn uri(&self, name: &str) -> String {
        format!("nbd+unix:///{name}?socket={}", self.socket.display())
    }

    /// Waits until no connection is open.
    pub fn wait_until_idle(&self) {
        self.wait_until("idle", |serving| serving.server.status().connections.is_empty());
    }

    pub fn wait_until(&self, what: &str, done: impl Fn(&Self) -> bool) {
        for _ in 0..1000 {
            if done(self) {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        panic!("not {what} after ten seconds: {:#?}", self.server.status());
    }
}

/// Whether a program is installed; says so if it is not.
pub fn have(program: &str) -> bool {
    let found = std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default())
        .any(|folder| folder.join(program).is_file());
    if !found {
        eprintln!("skipped: {program} is not installed");
    }
    found
}

/// Runs a program, which must succeed, and returns what it wrote to its standard output.
pub fn run(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output().expect("the program starts");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {arguments:?}: {}\n{text}{errors}", output.status);
    text
}
