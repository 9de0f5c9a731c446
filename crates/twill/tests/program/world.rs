//! A temporary folder with members, and the program run on it.

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::fs::FileExt as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::nbd::Client;

/// Size of a member unless a test says otherwise.
pub const MEMBER_BYTES: u64 = 12 << 20;

/// Longest that anything here may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// A folder of its own.
pub struct World {
    pub folder: TempDir,
}

/// How a run ended.
#[derive(Debug)]
pub struct Run {
    pub code: i32,
    pub stdout: String,
    pub stderr: String,
}

impl World {
    pub fn new() -> Self {
        World { folder: tempfile::Builder::new().prefix("twill-").tempdir().expect("a temporary folder") }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Sparse files `m0`, `m1` and so on.
    pub fn members(&self, count: usize) -> Vec<String> {
        (0..count).map(|i| self.member(&format!("m{i}"), MEMBER_BYTES)).collect()
    }

    pub fn member(&self, name: &str, bytes: u64) -> String {
        File::create(self.path(name)).and_then(|file| file.set_len(bytes)).expect("a sparse file");
        name.to_owned()
    }

    /// A RAID-5 over `count` members named `test`.
    pub fn array(&self, count: usize) -> Vec<String> {
        self.array_of("5", count)
    }

    /// An array named `test` of any level.
    pub fn array_of(&self, level: &str, count: usize) -> Vec<String> {
        let members = self.members(count);
        self.twill(&["create", "--level", level, "--name", "test"], &members).succeeds();
        members
    }

    /// A client of the array that is served here.
    pub fn client(&self) -> Client {
        Client::connect(&self.path("nbd.sock")).expect("served")
    }

    pub fn command(&self) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_twill"));
        command
            .current_dir(self.folder.path())
            .env("TWILL_RUNTIME_DIR", self.path("run"))
            .env("TWILL_STATE_DIR", self.path("state"))
            .env_remove("RUST_LOG");
        command
    }

    /// Runs the program in the folder.
    pub fn twill<S: AsRef<str>>(&self, arguments: &[&str], members: &[S]) -> Run {
        let members = members.iter().map(AsRef::as_ref);
        let output =
            self.command().args(arguments).args(members).stdin(Stdio::null()).output().expect("the program");
        Run {
            code: output.status.code().unwrap_or(-1),
            stdout: String::from_utf8(output.stdout).expect("UTF-8"),
            stderr: String::from_utf8(output.stderr).expect("UTF-8"),
        }
    }

    /// Runs the program, which must refuse with this code, say all these words, and change nothing in the folder.
    pub fn refused<S: AsRef<str>>(&self, code: i32, says: &[&str], arguments: &[&str], members: &[S]) -> Run {
        let before = self.contents();
        let run = self.twill(arguments, members);
        assert_eq!(run.code, code, "{arguments:?}: {run:?}");
        for words in says {
            assert!(run.stderr.contains(words), "{words:?} is not in {}", run.stderr);
        }
        assert!(before == self.contents(), "refused, but something was changed: {arguments:?}");
        run
    }

    /// Whether what a command line is refused with has a next step, or each of its problems has.
    pub fn names_next_step(&self, words: &[&str]) -> bool {
        let run = self.twill(&[words, &["--json"]].concat(), &[] as &[&str]);
        let Ok(answer) = serde_json::from_str::<Value>(&run.stdout) else { return false };
        let error = match &answer["error"] {
            Value::Null => return true, // an answer with all that is known, and an exit code
            error => error,
        };
        let problems = error["problems"].as_array().map_or(&[][..], Vec::as_slice);
        let all_help = problems.iter().all(|problem| problem["help"].is_string());
        error["help"].is_string() || !problems.is_empty() && all_help
    }

    /// Every file of the folder.
    pub fn contents(&self) -> Vec<(PathBuf, Vec<u8>)> {
        let mut files: Vec<_> = fs::read_dir(self.folder.path())
            .expect("the folder")
            .map(|entry| entry.expect("an entry").path())
            .filter(|path| path.is_file())
            .map(|path| (path.clone(), fs::read(&path).unwrap_or_default()))
            .collect();
        files.sort();
        files
    }

    pub fn bytes(&self, name: &str, offset: u64, bytes: usize) -> Vec<u8> {
        let mut data = vec![0; bytes];
        File::open(self.path(name)).and_then(|file| file.read_exact_at(&mut data, offset)).expect("readable");
        data
    }

    pub fn write(&self, name: &str, offset: u64, bytes: &[u8]) {
        let file = File::options().write(true).open(self.path(name));
        file.and_then(|file| file.write_all_at(bytes, offset)).expect("writable");
    }

    /// A GPT partition table as a partition tool leaves it: protective MBR, header and backup.
    pub fn partition(&self, member: &str, bytes: u64) {
        self.write(member, 450, &[0xee]);
        self.write(member, 510, &[0x55, 0xaa]);
        let tables = [(512, 1, bytes / 512 - 1), (bytes - 512, bytes / 512 - 1, 1)];
        for (at, own, other) in tables {
            let mut header = b"EFI PART\0\0\x01\0\x5c\0\0\0".to_vec();
            header.resize(512, 0);
            header[24..32].copy_from_slice(&u64::to_le_bytes(own));
            header[32..40].copy_from_slice(&u64::to_le_bytes(other));
            self.write(member, at, &header);
        }
    }

    /// Flips all bits of one byte.
    pub fn damage(&self, name: &str, offset: u64) {
        let byte = self.bytes(name, offset, 1)[0];
        self.write(name, offset, &[!byte]);
    }

    /// Serves the members in the foreground until it announces itself.
    pub fn serve(&self, arguments: &[&str], members: &[String]) -> Server<'_> {
        let mut process = self
            .command()
            .args(["serve", "--json", "--unix", "nbd.sock"])
            .args(if arguments.contains(&"--control") { &[] } else { &["--control", "control.sock"][..] })
            .args(if arguments.contains(&"--shards") { &[] } else { &["--shards", "1"][..] })
            .args(arguments)
            .args(members)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(File::options().create(true).append(true).open(self.path("server.log")).expect("a log"))
            .spawn()
            .expect("the program");
        let mut stdout = BufReader::new(process.stdout.take().expect("a pipe"));
        let mut said = String::new();
        while !said.ends_with("\n}\n") {
            if stdout.read_line(&mut said).expect("readable") == 0 {
                let log = fs::read_to_string(self.path("server.log")).unwrap_or_default();
                panic!("it does not serve: {:?}, {said}{log}", process.wait());
            }
        }
        let announcement: Value = serde_json::from_str(&said).expect("JSON");
        assert!(announcement.get("error").is_none(), "it does not serve: {said}");
        Server { world: self, process, announcement }
    }
}

/// A server in the foreground.
pub struct Server<'a> {
    world: &'a World,
    pub process: Child,
    pub announcement: Value,
}

impl Server<'_> {
    /// A command to the server.
    pub fn twill(&self, arguments: &[&str]) -> Run {
        let (command, rest) = arguments.split_first().expect("a command");
        let all: Vec<&str> =
            [*command, "--control", "control.sock"].into_iter().chain(rest.iter().copied()).collect();
        self.world.twill::<&str>(&all, &[])
    }

    pub fn status(&self) -> Value {
        let run = self.twill(&["status", "--json"]);
        assert!(matches!(run.code, 0 | 20), "20: stripes are in doubt; {run:?}");
        run.json()["arrays"][0].clone()
    }

    /// Waits until the status is as it should be.
    pub fn wait_for(&self, what: &str, reached: impl Fn(&Value) -> bool) {
        let start = Instant::now();
        while !reached(&self.status()) {
            assert!(start.elapsed() < PATIENCE, "timed out waiting for {what}: {:#}", self.status());
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// A line to the control socket and the line that it answers.
    pub fn call_raw(&self, line: &str) -> Value {
        let mut stream = UnixStream::connect(self.world.path("control.sock")).expect("the control socket");
        writeln!(stream, "{line}").expect("writable");
        let mut answer = String::new();
        BufReader::new(stream).read_line(&mut answer).expect("readable");
        serde_json::from_str(&answer).expect("JSON")
    }

    pub fn call(&self, method: &str, params: &Value) -> Value {
        self.call_raw(&json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).to_string())
    }

    pub fn stop(mut self) {
        self.twill(&["stop", "--force"]).succeeds(); // clients of the test may be connected
        assert_eq!(self.end(), Some(0));
    }

    /// Waits for the process to end by itself.
    pub fn end(&mut self) -> Option<i32> {
        let start = Instant::now();
        loop {
            if let Some(status) = self.process.try_wait().expect("a child") {
                return status.code();
            }
            assert!(start.elapsed() < PATIENCE, "the server goes on");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    pub fn log(&self) -> String {
        fs::read_to_string(self.world.path("server.log")).expect("a log")
    }
}

impl Drop for Server<'_> {
    fn drop(&mut self) {
        let _ended = self.process.kill();
        let _status = self.process.wait();
    }
}

impl Run {
    /// It ended with this exit code.
    pub fn fails(self, code: i32) -> Self {
        assert_eq!(self.code, code, "{self:?}");
        self
    }

    pub fn succeeds(self) -> Self {
        assert_eq!(self.code, 0, "{self:?}");
        self
    }

    pub fn json(&self) -> Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// Every name in the JSON answer, as `members[].superblock.events`: programs rely on them.
    pub fn names(&self) -> Vec<String> {
        let mut names = Vec::new();
        collect(&self.json(), "", &mut names);
        names.sort();
        names.dedup();
        names
    }
}

fn collect(value: &Value, at: &str, names: &mut Vec<String>) {
    match value {
        Value::Object(map) => {
            map.iter().for_each(|(name, value)| collect(value, &format!("{at}.{name}"), names));
        }
        Value::Array(list) => list.iter().for_each(|value| collect(value, &format!("{at}[]"), names)),
        _ => names.push(at.trim_start_matches('.').to_owned()),
    }
}

/// Whether the device with this name is the member in a slot.
pub fn has_taken(status: &Value, slot: usize, name: &str) -> bool {
    status["members"][slot]["path"].as_str().is_some_and(|path| path.ends_with(name))
}

/// Whether a tool that some checks compare with is installed; says so if not.
pub fn tool(name: &str) -> Option<PathBuf> {
    let places = ["/usr/sbin", "/sbin", "/usr/bin", "/bin"].map(|folder| Path::new(folder).join(name));
    let found = places.into_iter().find(|path| path.exists());
    if found.is_none() {
        eprintln!("{name} is not installed: not compared with it");
    }
    found
}

/// All that a tool prints.
pub fn output_of(program: &Path, arguments: &[&Path]) -> String {
    let mut process = Command::new(program)
        .args(arguments)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("a tool");
    let mut text = String::new();
    process.stdout.take().expect("a pipe").read_to_string(&mut text).expect("UTF-8");
    process.wait().expect("a child");
    text
}
