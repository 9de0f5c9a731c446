//! `twill target` over files of the world: served, paused, killed and started again.

use std::fs::File;
use std::io::{BufRead as _, BufReader};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::proxy::Proxy;
use crate::world::World;

/// Of a member, where a test does not say.
pub const MEMBER_BYTES: u64 = 64 << 20;
pub const PATIENCE: Duration = Duration::from_secs(60);

/// A `twill target` over files of the world.
pub struct Target<'a> {
    world: &'a World,
    files: Vec<String>,
    /// Which hosts may connect, and how.
    access: Vec<String>,
    pub port: u16,
    /// The link to it, if a test cuts that.
    link: Option<Proxy>,
    pub process: Child,
}

impl<'a> Target<'a> {
    /// Serves these files as namespaces of subsystems with their names, at a port that is free.
    pub fn start(world: &'a World, files: &[&str]) -> Self {
        Self::of(world, files, MEMBER_BYTES)
    }

    /// The same with files of this size.
    pub fn of(world: &'a World, files: &[&str], bytes: u64) -> Self {
        Self::with_access(world, files, bytes, &["--allow-any"])
    }

    /// The same for hosts that these arguments let in.
    pub fn with_access(world: &'a World, files: &[&str], bytes: u64, access: &[&str]) -> Self {
        for file in files {
            world.member(file, bytes);
        }
        let owned = |words: &[&str]| words.iter().map(ToString::to_string).collect::<Vec<String>>();
        let (files, access) = (owned(files), owned(access));
        let (process, port) = Target::spawn(world, &files, &access, 0);
        Target { world, files, access, port, link: None, process }
    }

    /// The same behind a link that can be cut.
    pub fn linked(world: &'a World, file: &str, bytes: u64) -> Self {
        let mut target = Self::of(world, &[file], bytes);
        target.link = Some(Proxy::to(target.port));
        target
    }

    fn spawn(world: &World, files: &[String], access: &[String], port: u16) -> (Child, u16) {
        let served: Vec<String> =
            files.iter().map(|file| format!("{file}=nqn.2026-11.test:{file}")).collect();
        let log = File::options().create(true).append(true).open(world.path("target.log")).expect("a log");
        let mut process = world
            .command()
            .args(["target", "--reservations-new", "--shards", "1", "--json", "--listen"])
            .arg(format!("127.0.0.1:{port}"))
            .args(access)
            .args(served)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()
            .expect("the program");
        let mut stdout = BufReader::new(process.stdout.take().expect("a pipe"));
        let mut said = String::new();
        while !said.ends_with("\n}\n") {
            let read = stdout.read_line(&mut said).expect("readable");
            assert!(read > 0, "the target does not start: {:?}, {said}", process.wait());
        }
        let announced: Value = serde_json::from_str(&said).expect("JSON");
        let address = announced["listening"][0].as_str().expect("an address");
        let port = address.rsplit(':').next().and_then(|port| port.parse().ok()).expect("a port");
        (process, port)
    }

    pub fn members(&self) -> Vec<String> {
        let port = self.link.as_ref().map_or(self.port, |link| link.port);
        let name = |file: &String| format!("nvme://127.0.0.1:{port}/nqn.2026-11.test:{file}");
        self.files.iter().map(name).collect()
    }

    /// Cuts the connections of hosts and of other targets to it.
    pub fn cut(&self) {
        self.link().cut();
    }

    /// The link to it.
    pub fn link(&self) -> &Proxy {
        self.link.as_ref().expect("it has a link")
    }

    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.process), signal).expect("it runs");
    }

    pub fn kill(&mut self) {
        self.process.kill().expect("it runs");
        self.process.wait().expect("a child");
    }

    pub fn restart(&mut self) {
        let start = Instant::now();
        loop {
            // The files of a killed process stay locked for a moment.
            let free = |file: &String| {
                let file = File::open(self.world.path(file)).expect("there");
                rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive).is_ok()
            };
            if self.files.iter().all(free) {
                break;
            }
            assert!(start.elapsed() < PATIENCE, "the killed target still holds its files");
            std::thread::sleep(Duration::from_millis(20));
        }
        (self.process, _) = Target::spawn(self.world, &self.files, &self.access, self.port);
    }
}

impl Drop for Target<'_> {
    fn drop(&mut self) {
        let _ended = self.process.kill();
        let _status = self.process.wait();
    }
}

/// A signal that stops a process reaches its threads one after the other: until then they go on, rightly.
pub fn wait_until_stopped(process: u32) {
    let start = Instant::now();
    let is_stopped = |task: std::fs::DirEntry| {
        let stat = std::fs::read_to_string(task.path().join("stat")).unwrap_or_default();
        stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with('T'))
    };
    let tasks = || std::fs::read_dir(format!("/proc/{process}/task")).expect("it runs").flatten();
    while !tasks().all(is_stopped) {
        assert!(start.elapsed() < PATIENCE, "it does not stop");
        std::thread::sleep(Duration::from_millis(5));
    }
}
