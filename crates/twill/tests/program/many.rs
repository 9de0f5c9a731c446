//! `serve --all`: many arrays in one process. They share its threads, and one that hangs, fails or stops holds up none of the others.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::{UnixDatagram, UnixListener};
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::FlockOperation;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::nbd::{Client, FUA};
use crate::targets::Target;
use crate::world::{MEMBER_BYTES, Run, World};

const ARRAYS: usize = 10;
const MEMBERS: usize = 3;
const BLOCK: usize = 4096;
const PATIENCE: Duration = Duration::from_secs(60);
/// The status of an array takes milliseconds; on a machine that is busy with other tests it may take more.
const PROMPT: Duration = Duration::from_secs(1);

/// A `serve --all` in the foreground.
struct Daemon<'a> {
    world: &'a World,
    process: Child,
    announcement: Value,
}

impl<'a> Daemon<'a> {
    /// Serves until it has said what it serves.
    fn start(world: &'a World, arguments: &[&str]) -> Self {
        let mut command = world.command();
        command.args(["serve", "--all", "--json"]).args(arguments);
        Self::spawn(world, command)
    }

    fn spawn(world: &'a World, mut command: std::process::Command) -> Self {
        let log = File::options().create(true).append(true).open(world.path("server.log")).expect("a log");
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log);
        let mut process = command.spawn().expect("the program");
        let mut stdout = BufReader::new(process.stdout.take().expect("a pipe"));
        let mut said = String::new();
        while !said.ends_with("\n}\n") {
            let read = stdout.read_line(&mut said).expect("readable");
            assert!(read > 0, "it does not serve: {:?}, {said}", process.wait());
        }
        let announcement = serde_json::from_str(&said).expect("JSON");
        Daemon { world, process, announcement }
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.process), signal).expect("it runs");
    }

    /// Waits for the process to end by itself.
    fn end(&mut self) -> Option<i32> {
        let start = Instant::now();
        loop {
            if let Some(status) = self.process.try_wait().expect("a child") {
                return status.code();
            }
            assert!(start.elapsed() < PATIENCE, "the daemon goes on: {}", self.log());
            thread::sleep(Duration::from_millis(10));
        }
    }

    /// Ends it in order.
    fn stop(mut self) {
        self.signal(Signal::TERM);
        assert_eq!(self.end(), Some(0), "{}", self.log());
    }

    /// How many threads have each name. The kernel's own of a ring come and go.
    fn threads(&self) -> BTreeMap<String, usize> {
        let mut threads = BTreeMap::new();
        for task in fs::read_dir(format!("/proc/{}/task", self.process.id())).expect("it runs").flatten() {
            let name = fs::read_to_string(task.path().join("comm")).unwrap_or_default();
            let name = name.trim();
            if !name.is_empty() && !name.starts_with("iou-") {
                *threads.entry(name.to_owned()).or_default() += 1;
            }
        }
        threads
    }

    fn files(&self) -> usize {
        fs::read_dir(format!("/proc/{}/fd", self.process.id())).expect("it runs").count()
    }

    fn log(&self) -> String {
        fs::read_to_string(self.world.path("server.log")).unwrap_or_default()
    }
}

impl Drop for Daemon<'_> {
    fn drop(&mut self) {
        let _ended = self.process.kill();
        let _status = self.process.wait();
    }
}

fn name(array: usize) -> String {
    format!("a{array}")
}

/// Makes arrays `a0`, `a1` and so on, with members `a0-m0` and so on in the folder `d`.
fn make(world: &World, count: usize) {
    fs::create_dir(world.path("d")).expect("a folder");
    for array in 0..count {
        let members: Vec<String> =
            (0..MEMBERS).map(|m| world.member(&format!("d/a{array}-m{m}"), MEMBER_BYTES)).collect();
        // What clears the bits looks around a while after the stop.
        let create = ["create", "--level", "5", "--bitmap", "internal", "--name", &name(array)];
        world.twill(&create, &members).succeeds();
    }
}

fn client(world: &World, array: &str) -> Client {
    Client::connect(&world.path(&format!("run/{array}.nbd"))).expect("served")
}

fn block(version: u64) -> Vec<u8> {
    version.to_le_bytes().repeat(BLOCK / 8)
}

fn run(world: &World, words: &[&str]) -> Run {
    world.twill::<&str>(words, &[])
}

/// Runs a command, which must be prompt, and says how long it took.
fn prompt(world: &World, words: &[&str]) -> Duration {
    let start = Instant::now();
    run(world, words).succeeds();
    let took = start.elapsed();
    assert!(took < PROMPT, "{words:?} took {took:?}");
    took
}

#[test]
fn ten_arrays_share_the_threads_of_one_process_and_are_found_by_any_name() {
    let world = World::new();
    make(&world, ARRAYS);
    let daemon = Daemon::start(&world, &["--scan", "d", "--shards", "2"]);
    assert_eq!(daemon.announcement["arrays"].as_array().expect("a list").len(), ARRAYS);
    let threads = daemon.threads();
    let shards: usize = threads.iter().filter(|(name, _)| name.starts_with("twill-")).map(|(_, n)| n).sum();
    assert_eq!(shards, 2, "{threads:?}");
    let listed = run(&world, &["list", "--json"]).succeeds().json();
    for array in 0..ARRAYS {
        let one = &listed["served"][array];
        assert_eq!(one["pid"], daemon.process.id(), "{listed:#}");
        let uuid = one["uuid"].as_str().expect("a UUID");
        let member = format!("d/{}-m1", name(array));
        for word in [&name(array), uuid, &uuid.replace(':', "").to_uppercase(), &member] {
            let detail = run(&world, &["detail", "--json", word]).succeeds().json();
            assert_eq!(detail["name"], *name(array), "{word}");
        }
        let mut client = client(&world, &name(array));
        assert_eq!(client.write(0, &block(array as u64), FUA).unwrap(), 0);
    }
    for array in 0..ARRAYS {
        assert_eq!(client(&world, &name(array)).read(0, BLOCK as u32).unwrap().unwrap(), block(array as u64));
    }
    // An array that comes and goes leaves nothing behind, neither a thread nor a descriptor.
    let files = daemon.files();
    for word in ["a3", "d/a3-m0", "a3", "d/a3-m2", "a3"] {
        run(&world, &["stop", "a3"]).succeeds();
        run(&world, &["status", "a3"]).fails(8);
        // Its members are free at once.
        for member in ["d/a3-m0", "d/a3-m1", "d/a3-m2"] {
            let file = File::open(world.path(member)).expect("there");
            let lock = rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive);
            assert_eq!(lock, Ok(()), "{member} is held after the stop");
        }
        run(&world, &["start", word]).succeeds();
    }
    let start = Instant::now();
    let count = |threads: &BTreeMap<String, usize>| threads.values().sum::<usize>();
    while count(&daemon.threads()) > count(&threads) || daemon.files() > files {
        let (threads_now, files_now) = (daemon.threads(), daemon.files());
        assert!(
            start.elapsed() < PATIENCE,
            "{threads:?} and {files} files became {threads_now:?} and {files_now}"
        );
        thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(client(&world, "a3").read(0, BLOCK as u32).unwrap().unwrap(), block(3));
    let again = run(&world, &["start", "a3"]).fails(9);
    assert!(again.stderr.contains("a3 is served already"), "{again:?}");
    run(&world, &["start", "--all"]).succeeds();
    run(&world, &["start", "nothing"]).fails(4);
    // A process that does not answer at all is waited for once, not once for each array.
    daemon.signal(Signal::STOP);
    let start = Instant::now();
    let hangs = run(&world, &["list"]).fails(7);
    let took = start.elapsed();
    daemon.signal(Signal::CONT);
    println!("ten arrays of a process that does not answer are listed after {took:?}");
    assert!(took < Duration::from_secs(9), "{took:?}");
    for array in (0..ARRAYS).map(name) {
        let says = format!("{array}: does not answer within 3 s (pid {})", daemon.process.id());
        assert!(hangs.stderr.contains(&says), "{hangs:?}");
    }
    assert_eq!(
        run(&world, &["list", "--json"]).succeeds().json()["served"].as_array().map(Vec::len),
        Some(ARRAYS)
    );
    daemon.stop();
    assert_eq!(fs::read_dir(world.path("run")).expect("a folder").count(), 0, "all sockets are gone");
    for array in 0..ARRAYS {
        let members: Vec<String> = (0..MEMBERS).map(|m| format!("d/a{array}-m{m}")).collect();
        let examined = world.twill(&["examine", "--json"], &members).succeeds().json();
        assert_eq!(examined["members"][0]["superblock"]["clean"], true, "{examined:#}");
    }
}

/// Members of `hung` are on targets, one of which is stopped, and does not answer any more.
#[test]
fn an_array_with_a_member_that_hangs_holds_up_none_of_the_others() {
    let world = World::new();
    make(&world, ARRAYS - 1);
    let targets: Vec<Target<'_>> =
        ["t0", "t1", "t2"].iter().map(|file| Target::start(&world, &[file])).collect();
    let members: Vec<String> = targets.iter().flat_map(Target::members).collect();
    let create = ["create", "--level", "5", "--name", "hung", "--bitmap", "internal", "--assume-clean"];
    world.twill(&create, &members).succeeds();
    // Long enough that all of this is over before the member fails.
    let daemon = Daemon::start(&world, &["--scan", "d", "--shards", "2", "--member-time-limit", "20"]);
    world.twill(&["serve", "--join"], &members).succeeds();
    let mut writer = client(&world, "hung");
    assert_eq!(writer.write(0, &block(1), 0).unwrap(), 0);
    targets[1].signal(Signal::STOP);
    let waiting = thread::spawn(move || {
        let start = Instant::now();
        let whole: Vec<u8> = block(2).repeat(64);
        (writer.write(0, &whole, FUA).unwrap(), start.elapsed())
    });
    thread::sleep(Duration::from_millis(300));
    let mut slowest = Duration::ZERO;
    for array in (0..ARRAYS - 1).map(name) {
        slowest = slowest.max(prompt(&world, &["status", &array]));
        slowest = slowest.max(prompt(&world, &["detail", &format!("d/{array}-m1")]));
        let start = Instant::now();
        assert_eq!(client(&world, &array).write(0, &block(7), FUA).unwrap(), 0);
        assert!(start.elapsed() < PROMPT, "a write to {array} took {:?}", start.elapsed());
    }
    slowest = slowest.max(prompt(&world, &["list"]));
    // A stop that waits for the member does not hold them up either.
    let stopping = {
        let mut command = world.command();
        command.args(["stop", "--force", "hung"]).stdout(Stdio::null()).stderr(Stdio::null());
        command.spawn().expect("the program")
    };
    thread::sleep(Duration::from_millis(300));
    for array in (0..ARRAYS - 1).map(name) {
        slowest = slowest.max(prompt(&world, &["status", &array]));
    }
    run(&world, &["stop", "a0"]).succeeds();
    run(&world, &["start", "a0"]).succeeds();
    println!("slowest status beside a member that hangs: {slowest:?}");
    let start = Instant::now();
    let says = run(&world, &["status", "hung"]);
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
    let pid = format!("(pid {})", daemon.process.id());
    assert!(
        says.code == 8 && says.stderr.contains("hung is being stopped") && says.stderr.contains(&pid),
        "{says:?}"
    );
    targets[1].signal(Signal::CONT);
    let (error, took) = waiting.join().expect("no panic");
    println!("the write to the array with the member that hung: error {error} after {took:?}");
    let stopped = stopping.wait_with_output().expect("it ends");
    assert!(stopped.status.success(), "{stopped:?}: {}", daemon.log());
    // A start that meets it hangs by itself.
    targets[1].signal(Signal::STOP);
    let mut joining = world.command();
    joining.args(["serve", "--join"]).args(&members).stdout(Stdio::null()).stderr(Stdio::null());
    let mut joining = joining.spawn().expect("the program");
    thread::sleep(Duration::from_millis(300));
    for array in (0..ARRAYS - 1).map(name) {
        prompt(&world, &["status", &array]);
    }
    run(&world, &["stop", "a1"]).succeeds();
    targets[1].signal(Signal::CONT);
    assert!(joining.wait().expect("it ends").success(), "{}", daemon.log());
    prompt(&world, &["status", "hung"]);
    // The process has attached its members, which makes them no device for its other arrays.
    let taken = run(&world, &["add", "--array", "a2", "--force", &members[0]]).fails(6);
    assert!(taken.stderr.contains("is a member of an array that this process serves"), "{taken:?}");
    daemon.stop();
}

/// The stop of a caller waits for a member, for longer than a start may; a signal does not end the process in the middle of it.
#[test]
fn a_signal_waits_for_a_stop_that_is_under_way() {
    let world = World::new();
    make(&world, 1);
    let targets: Vec<Target<'_>> =
        ["t0", "t1", "t2"].iter().map(|file| Target::start(&world, &[file])).collect();
    let members: Vec<String> = targets.iter().flat_map(Target::members).collect();
    let create = ["create", "--level", "5", "--name", "hung", "--bitmap", "internal", "--assume-clean"];
    world.twill(&create, &members).succeeds();
    let mut daemon = Daemon::start(&world, &["--scan", "d", "--shards", "2", "--member-time-limit", "40"]);
    world.twill(&["serve", "--join"], &members).succeeds();
    assert_eq!(client(&world, "hung").write(0, &block(1), 0).unwrap(), 0);
    targets[1].signal(Signal::STOP);
    let mut stopping = world.command();
    stopping.args(["stop", "--force", "hung"]).stdout(Stdio::null()).stderr(Stdio::null());
    let stopping = stopping.spawn().expect("the program");
    thread::sleep(Duration::from_millis(500));
    daemon.signal(Signal::TERM);
    thread::sleep(Duration::from_secs(12));
    assert!(daemon.process.try_wait().expect("a child").is_none(), "it ended: {}", daemon.log());
    targets[1].signal(Signal::CONT);
    assert_eq!(daemon.end(), Some(0), "{}", daemon.log());
    assert!(stopping.wait_with_output().expect("it ends").status.success(), "{}", daemon.log());
    assert!(!daemon.log().contains("hangs"), "{}", daemon.log());
    let says = world.twill(&["examine", "--json"], &members).succeeds().stdout;
    assert!(says.contains("clean") && !says.contains("\"clean\": false"), "{says}");
}

#[test]
fn arrays_come_and_go_while_others_are_written_and_all_are_back_after_a_kill() {
    let world = World::new();
    make(&world, 4);
    let mut daemon = Daemon::start(&world, &["--scan", "d", "--shards", "2"]);
    let is_over = Arc::new(AtomicBool::new(false));
    let mut busy = client(&world, "a0");
    let writer = {
        let is_over = Arc::clone(&is_over);
        thread::spawn(move || {
            let mut version = 0;
            while !is_over.load(SeqCst) {
                version += 1;
                for at in 0..16 {
                    assert_eq!(busy.write(at * 5 * BLOCK as u64, &block(version), 0).unwrap(), 0);
                }
            }
            assert_eq!(busy.flush().unwrap(), 0);
            (busy, version)
        })
    };
    let more: Vec<String> = (0..2).map(|m| world.member(&format!("late-m{m}"), MEMBER_BYTES)).collect();
    world.twill(&["create", "--level", "1", "--name", "late"], &more).succeeds();
    for round in 0..3 {
        for array in ["a1", "a2", "a3"] {
            run(&world, &["stop", array]).succeeds();
        }
        let joined =
            world.twill(&["serve", "--join", "--unix", "late.nbd", "--json"], &more).succeeds().json();
        assert_eq!(joined["arrays"][0]["pid"], daemon.process.id(), "{joined:#}");
        let mut late = Client::connect(&world.path("late.nbd")).expect("served");
        assert_eq!(late.write(0, &block(round + 1), FUA).unwrap(), 0);
        drop(late);
        let all = run(&world, &["start", "--all", "--json"]).succeeds().json();
        assert_eq!(all["arrays"].as_array().map(Vec::len), Some(3), "{all:#}");
        run(&world, &["stop", "late"]).succeeds();
    }
    // On one of the two shards, and then on the other.
    for _ in 0..2 {
        world.twill(&["serve", "--join", "--unix", "late.nbd", "--shards", "1"], &more).succeeds();
        let mut late = Client::connect(&world.path("late.nbd")).expect("served");
        assert_eq!(late.write(BLOCK as u64, &block(1), FUA).unwrap(), 0);
        drop(late);
        run(&world, &["stop", "--force", "late"]).succeeds();
    }
    world.twill(&["serve", "--join", "--unix", "late.nbd"], &more).succeeds();
    is_over.store(true, SeqCst);
    let (mut busy, version) = writer.join().expect("no error");
    for at in 0..16 {
        assert_eq!(busy.read(at * 5 * BLOCK as u64, BLOCK as u32).unwrap().unwrap(), block(version));
    }
    for array in 1..4 {
        assert_eq!(client(&world, &name(array)).write(0, &block(100 + array as u64), FUA).unwrap(), 0);
    }
    daemon.process.kill().expect("it runs");
    daemon.process.wait().expect("a child");
    let daemon = Daemon::start(&world, &["--scan", "d", "--shards", "2"]);
    assert_eq!(daemon.announcement["arrays"].as_array().map(Vec::len), Some(4), "{:#}", daemon.announcement);
    assert_eq!(client(&world, "a0").read(0, BLOCK as u32).unwrap().unwrap(), block(version));
    for array in 1..4 {
        assert_eq!(
            client(&world, &name(array)).read(0, BLOCK as u32).unwrap().unwrap(),
            block(100 + array as u64)
        );
    }
    world.twill(&["serve", "--join", "--unix", "late.nbd"], &more).succeeds();
    let mut late = Client::connect(&world.path("late.nbd")).expect("served");
    assert_eq!(late.read(0, BLOCK as u32).unwrap().unwrap(), block(3));
    drop(late);
    run(&world, &["start", "a0"]).fails(9);
    daemon.stop();
}

fn uuid(world: &World, array: usize) -> String {
    let examined = run(world, &["examine", "--json", &format!("d/a{array}-m0")]).succeeds().json();
    examined["members"][0]["superblock"]["array_uuid"].as_str().expect("a UUID").to_owned()
}

/// A configuration of arrays whose members are in the folder `d`.
fn configure(world: &World, text: &str) {
    let folder = world.path("d");
    let defaults = format!("[defaults]\nscan = [{folder:?}]\nread-only = true\nwait-members = 0\n\n");
    fs::write(world.path("twill.toml"), defaults + text).expect("written");
}

const CONFIGURED: [&str; 4] = ["--config", "twill.toml", "--shards", "2"];

#[test]
fn the_configuration_says_which_arrays_are_served_and_how() {
    let world = World::new();
    make(&world, 4);
    let (folder, hidden) = (world.path("d"), world.path("hidden"));
    fs::create_dir(&hidden).expect("a folder");
    let late = ["a2-m0", "a2-m1"];
    for member in late {
        fs::rename(folder.join(member), hidden.join(member)).expect("moved");
    }
    let first = world.path("first.nbd");
    configure(
        &world,
        &format!(
            "[array.a0]\nread-only = false\nunix = [{first:?}]\nexport-name = \"first\"\n\n\
             [array.\"{}\"]\nshards = 1\n\n[array.a2]\n",
            uuid(&world, 1)
        ),
    );
    let mut daemon = Daemon::start(&world, &CONFIGURED);
    let served = daemon.announcement["arrays"].as_array().expect("a list");
    let names: Vec<&str> = served.iter().filter_map(|array| array["name"].as_str()).collect();
    assert_eq!(names, ["a0", "a1"], "a3 is not listed");
    assert_eq!(daemon.announcement["not_served"][0]["member"], "a2", "{:#}", daemon.announcement);
    let mut client = Client::connect(&first).expect("served");
    assert_eq!(client.write(0, &block(1), 0).unwrap(), 0);
    drop(client);
    let a1 = run(&world, &["status", "--json", "a1"]).succeeds().json();
    assert_eq!((&a1["arrays"][0]["read_only"], &a1["arrays"][0]["shards"]), (&true.into(), &1.into()));
    // The one that did not start is told by every command, and by the monitor.
    for command in ["list", "status"] {
        let said = run(&world, &[command]).fails(5);
        assert!(said.stderr.contains("a2: is not served: the array does not start"), "{said:?}");
        assert!(said.stdout.contains("a0") && said.stdout.contains("a1"), "{said:?}");
    }
    let monitor = run(&world, &["monitor", "--once"]).succeeds();
    assert!(monitor.stdout.contains("a2 is not served: the array does not start"), "{monitor:?}");
    // Its members come late.
    for member in late {
        fs::rename(hidden.join(member), folder.join(member)).expect("moved");
    }
    let start = Instant::now();
    while run(&world, &["status", "a2"]).code != 0 {
        assert!(start.elapsed() < PATIENCE, "it is not tried again: {}", daemon.log());
        thread::sleep(Duration::from_millis(100));
    }
    daemon.signal(Signal::TERM);
    assert_eq!(daemon.end(), Some(0), "in the end all were served: {}", daemon.log());
}

#[test]
fn a_configuration_that_has_changed_counts_from_the_next_start_on() {
    let world = World::new();
    make(&world, 2);
    let metrics = TcpListener::bind("127.0.0.1:0").and_then(|port| port.local_addr()).expect("a port");
    let text = format!("[array.a0]\nmetrics = \"{metrics}\"\n");
    configure(&world, &text);
    let daemon = Daemon::start(&world, &CONFIGURED);
    // What an array had is free when it has stopped, the address of its metrics too.
    for _ in 0..2 {
        let mut page = String::new();
        let mut stream = TcpStream::connect(metrics).expect("metrics");
        stream.write_all(b"GET /metrics HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").expect("written");
        stream.read_to_string(&mut page).expect("readable");
        assert!(page.contains("twill_array_state{array=\"a0\""), "{page}");
        run(&world, &["stop", "a0"]).succeeds();
        let start = Instant::now();
        while TcpListener::bind(metrics).is_err() {
            assert!(start.elapsed() < PATIENCE, "the address stays taken");
            thread::sleep(Duration::from_millis(20));
        }
        run(&world, &["start", "a0"]).succeeds();
    }
    let text = text + "read-only = false\n[array.a1]\n";
    configure(&world, &text);
    let all = run(&world, &["start", "--all", "--json"]).succeeds().json();
    let started = all["arrays"].as_array().expect("a list");
    assert_eq!((started.len(), &started[0]["name"]), (1, &"a1".into()), "{all:#}");
    let is_read_only =
        || run(&world, &["status", "--json", "a0"]).succeeds().json()["arrays"][0]["read_only"].clone();
    assert_eq!(is_read_only(), true);
    run(&world, &["stop", "a0"]).succeeds();
    run(&world, &["start", "a0"]).succeeds();
    assert_eq!(is_read_only(), false);
    configure(&world, &(text + "shard = 1\n"));
    let said = run(&world, &["start", "--all"]).fails(2);
    let file = world.path("twill.toml");
    let line = format!("{}:10: twill serve has no option shard; is shards meant?", file.display());
    assert!(said.stderr.contains(&line), "{said:?}");
    prompt(&world, &["status", "a0"]);
    daemon.stop();
}

#[test]
fn a_start_that_failed_is_told_by_the_exit_code_at_the_end() {
    let world = World::new();
    make(&world, 2);
    // One array under two names is served once.
    configure(&world, &format!("[array.a0]\n[array.\"{}\"]\n", uuid(&world, 0)));
    let mut daemon = Daemon::start(&world, &CONFIGURED);
    assert_eq!(daemon.announcement["arrays"].as_array().map(Vec::len), Some(1), "{:#}", daemon.announcement);
    daemon.signal(Signal::TERM);
    assert_eq!(daemon.end(), Some(9), "{}", daemon.log());
    for member in 0..2 {
        fs::remove_file(world.path(&format!("d/a1-m{member}"))).expect("removed");
    }
    let mut daemon = Daemon::start(&world, &["--scan", "d", "--shards", "1", "--wait-members", "0"]);
    assert_eq!(daemon.announcement["arrays"][0]["name"], "a0");
    daemon.signal(Signal::TERM);
    assert_eq!(daemon.end(), Some(5));
    assert!(daemon.log().contains("not every array was served"), "{}", daemon.log());
}

#[test]
fn a_configuration_that_is_wrong_is_refused_with_its_lines() {
    let world = World::new();
    make(&world, 1);
    let file = world.path("twill.toml");
    fs::write(&file, "[defaults]\nublk = 1\n[array.a0]\nre-ad = true\nshards = 1000\nforce = true\n")
        .expect("written");
    let at = |line: usize, what: &str| format!("{}:{line}: {what}", file.display());
    let says = [
        at(2, "ublk with a number cannot hold for every array"),
        at(4, "twill serve has no option re-ad; is re-add meant?"),
        at(5, "invalid value '1000' for '--shards <N>'"),
        at(6, "force gives something up"),
    ];
    let says: Vec<&str> = says.iter().map(String::as_str).collect();
    let words = ["serve", "--all", "--config", "twill.toml"];
    world.refused::<&str>(2, &says, &words, &[]);
    assert!(world.names_next_step(&words));
    fs::write(&file, "[array.a0\n").expect("written");
    world.refused::<&str>(2, &[&at(1, "")], &words, &[]);
    world.refused::<&str>(8, &["nothing.toml"], &["serve", "--all", "--config", "nothing.toml"], &[]);
    world.refused::<&str>(
        2,
        &["--all: unix cannot hold for every array"],
        &["serve", "--all", "--unix", "x"],
        &[],
    );
    world.refused::<&str>(2, &["cannot be used with"], &["serve", "--all", "m0"], &[]);
    for words in [&["start", "a0"][..], &["serve", "--join", "--scan", "d"]] {
        world.refused::<&str>(8, &["twill serve --all is not running"], words, &[]);
        assert!(world.names_next_step(words));
    }
}

/// It says only with the status which array it has.
#[test]
fn a_server_of_an_earlier_version_is_found_by_any_name() {
    let world = World::new();
    make(&world, 1);
    let daemon = Daemon::start(&world, &["--scan", "d", "--shards", "1"]);
    let mut status = run(&world, &["detail", "--json", "a0"]).succeeds().json();
    daemon.stop();
    status["name"] = "old".into();
    let listener = UnixListener::bind(world.path("run/old.sock")).expect("a socket");
    let answering = status.clone();
    thread::spawn(move || {
        for mut caller in listener.incoming().flatten() {
            let mut line = String::new();
            while BufReader::new(&caller).read_line(&mut line).is_ok_and(|bytes| bytes > 0) {
                let call: Value = serde_json::from_str(&line).expect("JSON");
                let result = match call["method"].as_str() {
                    Some("ping") => json!({ "version": "0.1.0", "pid": 1 }),
                    _ => answering.clone(),
                };
                let answer = json!({ "jsonrpc": "2.0", "id": call["id"], "result": result });
                writeln!(caller, "{answer}").expect("written");
                line.clear();
            }
        }
    });
    for word in ["old", status["uuid"].as_str().expect("a UUID"), "d/a0-m2"] {
        let found = run(&world, &["detail", "--json", word]).succeeds().json();
        assert_eq!(found["name"], "old", "{word}");
    }
}

#[test]
fn a_manager_hears_that_all_are_served_and_nothing_of_the_stop_of_one() {
    let world = World::new();
    make(&world, 3);
    let socket = UnixDatagram::bind(world.path("notify")).expect("a socket");
    socket.set_read_timeout(Some(PATIENCE)).expect("set");
    // What is said of arrays that have just been started comes in between.
    let next = || loop {
        let mut message = [0; 512];
        let bytes = socket.recv(&mut message).ok()?;
        let text = String::from_utf8_lossy(&message[..bytes]).into_owned();
        if !text.starts_with("STATUS=") {
            return Some(text);
        }
    };
    let mut command = world.command();
    command.env("NOTIFY_SOCKET", world.path("notify"));
    command.args(["serve", "--all", "--json", "--shards", "1", "--scan", "d"]);
    let mut daemon = Daemon::spawn(&world, command);
    let ready = next().expect("a datagram");
    let wanted = format!("READY=1\nMAINPID={}\nSTATUS=served: a0, a1, a2", daemon.process.id());
    assert_eq!(ready, wanted);
    run(&world, &["stop", "a1"]).succeeds();
    socket.set_nonblocking(true).expect("set");
    assert_eq!(next(), None, "the process goes on");
    socket.set_nonblocking(false).expect("set");
    let second = run(&world, &["serve", "--all", "--scan", "d"]).fails(9);
    assert!(second.stderr.contains("serves all arrays already"), "{second:?}");
    daemon.signal(Signal::TERM);
    assert!(next().expect("a datagram").starts_with("STOPPING=1"));
    assert_eq!(daemon.end(), Some(0));
}
