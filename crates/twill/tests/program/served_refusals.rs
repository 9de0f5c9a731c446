//! The message table of served arrays: wrong and dangerous command lines as a new operator would type them, while an array is
//! served. Each is refused with what is wrong, with which device by its path, and the next step, and changes no byte of any file.

use std::fs;
use std::path::PathBuf;

use crate::world::{MEMBER_BYTES, Server, World};

/// The command line, its exit code, and words that it must say: what, which device, the next step.
type Row = (&'static str, i32, &'static [&'static str]);

/// A RAID-5 named `test` of `m0` to `m2`, all in sync. `o0` to `o2` are another array that is not served, `p0` and `p1` one that
/// another server has; `n0` is new; `fs` holds a file system, `gpt` a partition table, `one` a single byte.
const WHOLE: &[Row] = &[
    ("fail", 2, &["<MEMBER>"]),
    ("fail m9", 8, &["m9 is not a member of the array", "twill detail"]),
    ("fail 7", 8, &["7 is not a member of the array", "twill detail"]),
    ("fail n0", 8, &["n0 is not a member of the array", "twill detail"]),
    ("fail test", 8, &["test is not a member of the array", "twill detail"]),
    ("fail test m0", 2, &["unexpected argument 'm0'", "Usage"]),
    ("fail o0", 8, &["o0 is not a member of the array"]),
    ("fail --array other m0", 8, &["no array named \"other\"", "served: ", "test"]),
    ("fail --control gone.sock m0", 8, &["gone.sock", "twill list"]),
    ("fail --control m0 m0", 8, &["no array is served with the control socket m0", "twill list"]),
    ("fail --control folder m0", 8, &["folder"]),
    (
        "fail --control run/test.sock --array other m0",
        8,
        &["test.sock is \"test\", not \"other\"", "leave out"],
    ),
    ("remove m0", 6, &["m0", "is in use", "twill fail"]),
    ("remove 0", 6, &["m0", "(slot 0)", "is in use", "twill fail"]),
    ("remove n0", 8, &["n0 is not a member of the array", "twill detail"]),
    ("remove --force m0", 2, &["unexpected argument '--force'"]),
    ("add m0", 6, &["m0", "is a member of this array already", "in slot 0"]),
    ("add ./m0", 6, &["m0", "is a member of this array already"]),
    ("add --force m1", 6, &["m1", "is a member of this array already"]),
    ("add fs", 3, &["fs", "XFS", "--force"]),
    ("add gpt", 3, &["gpt", "GPT partition table", "--force"]),
    ("add one", 3, &["one", "is a file with data", "--force"]),
    ("add o0", 3, &["o0", "md superblock 1.2 of array", "other", "--force"]),
    ("add --force p0", 6, &["p0", "in use"]),
    ("add small", 10, &["small", "needs", "larger device"]),
    ("add --force small", 10, &["small", "needs", "larger device"]),
    ("add empty", 10, &["empty", "larger device"]),
    ("add folder", 4, &["folder", "is a folder", "name a file"]),
    ("add /dev/null", 4, &["/dev/null", "is neither a file nor a block device"]),
    ("add gone", 8, &["gone", "lsblk"]),
    ("add link", 8, &["link"]),
    ("add test n0", 2, &["unexpected argument 'n0'"]),
    ("re-add n0", 4, &["n0", "has no md superblock", "twill add"]),
    ("re-add m0", 6, &["m0", "in slot 0 already", "twill detail"]),
    ("re-add o0", 4, &["o0", "belongs to another array", "twill examine"]),
    ("re-add gone", 8, &["gone"]),
    ("re-add folder", 4, &["folder"]),
    ("replace m0", 8, &["no spare", "--with DEVICE"]),
    ("replace m0 --with m1", 6, &["m1", "is a member of this array already"]),
    ("replace m0 --with m0", 6, &["m0", "is a member of this array already"]),
    ("replace m9 --with n0", 8, &["m9 is not a member of the array", "twill detail"]),
    ("replace m0 --with small", 10, &["small", "larger device"]),
    ("replace m0 --with fs", 3, &["fs", "XFS", "--force"]),
    ("replace m0 --with o0", 3, &["o0", "md superblock", "--force"]),
    ("replace m0 --with gone", 8, &["gone"]),
    ("replace m0 n0", 2, &["unexpected argument 'n0'"]),
    ("replace --force m0", 2, &["--with"]),
    ("check other", 8, &["no array named \"other\"", "test"]),
    ("repair --control gone.sock", 8, &["gone.sock", "twill list"]),
    ("scrub pause", 8, &["no check or repair", "twill check"]),
    ("scrub resume", 8, &["no check or repair", "twill check"]),
    ("scrub cancel", 8, &["no check or repair", "twill check"]),
    ("scrub report", 8, &["never checked", "twill check"]),
    ("scrub stop", 2, &["cancel"]),
    ("set", 2, &["--update-policy"]),
    ("set --rate -5", 2, &["no size"]),
    ("set --rate 1M --rate-min 2M", 2, &["--rate-min 2 MiB", "--rate 1 MiB"]),
    ("set --update-policy fastest", 2, &["fewest-reads", "adaptive"]),
    ("set --avoid-slow maybe", 2, &["on or off"]),
    ("set --p99-budget 5", 2, &["--p99-budget"]),
    ("set --rate 1M other", 8, &["no array named \"other\""]),
    ("accept-doubt", 2, &["--all"]),
    ("accept-doubt --all", 6, &["no member is missing", "twill status"]),
    ("accept-doubt --stripes 9999999", 2, &["stripe 9999999 is beyond the last one", "twill status"]),
    ("accept-doubt --stripes 9-3", 2, &["before the first"]),
    ("status other", 8, &["no array named \"other\"", "test"]),
    ("status --wait other", 8, &["no array named \"other\"", "test"]),
    ("status --wait --control gone.sock", 8, &["gone.sock", "twill list"]),
    ("detail n0", 8, &["no array named \"n0\"", "test"]),
    ("events other", 8, &["no array named \"other\"", "test"]),
    ("stop other", 8, &["no array named \"other\"", "test"]),
    ("stop --control gone.sock", 8, &["gone.sock", "twill list"]),
    ("serve m0 m1 m2", 9, &["test is served already, by process", "m0", "m1", "m2", "twill stop"]),
    ("serve --force m0 m1", 9, &["test is served already, by process", "m0", "twill stop"]),
    ("serve --control s0 m0 m1 m2", 6, &["m0: in use", "m1", "m2", "twill status"]),
    ("serve --scan .", 13, &["3 arrays", "test", "other", "--uuid or --name"]),
    ("serve --name test --scan .", 9, &["test is served already", "m0", "twill stop"]),
    (
        "serve --control run/test.sock o0 o1 o2",
        9,
        &["test.sock", "control socket of an array that is served"],
    ),
    (
        "serve --control s0 --unix nbd.sock o0 o1 o2",
        9,
        &["nbd.sock", "is served there", "name another place"],
    ),
    ("serve --control s0 --unix one o0 o1 o2", 9, &["one", "is there already", "name another place"]),
    ("serve --control s0 --pid-file m0 o0 o1 o2", 6, &["m0", "name another file"]),
    ("serve --control s0 --log m0 o0 o1 o2", 6, &["m0", "name another file"]),
    ("serve --control s0 o0 o1 m2", 13, &["2 arrays", "--uuid or --name"]),
    ("assemble m0 m1 m2", 6, &["m0", "locked by another program"]),
    ("create --level 1 m0 n0", 6, &["m0", "locked by another program", "twill status"]),
    ("create --level 1 --force m0 n0", 6, &["m0", "locked by another program", "twill status"]),
    ("rename new m0 m1 m2", 6, &["m0", "locked by another program", "twill status"]),
    ("rename new o0 m0", 13, &["2 arrays"]),
    ("zero-superblock m0", 6, &["m0", "locked by another program", "twill status"]),
    ("zero-superblock --force m0", 6, &["m0", "locked by another program", "twill status"]),
    ("zero-superblock n0", 4, &["n0", "has no md superblock"]),
    ("correct-size m0", 6, &["m0", "locked by another program", "twill status"]),
    (
        "grow --bitmap internal m0 m1 m2",
        6,
        &["m0", "locked by another program", "twill status", "while it is stopped"],
    ),
    ("grow --bitmap internal test", 8, &["test", "--scan --name"]),
    ("grow --raid-devices 4", 2, &["does not reshape"]),
    ("grow test --raid-devices=4", 2, &["does not reshape"]),
    ("--grow /dev/md0 --raid-devices=4 --add /dev/sdd", 2, &["twill stop md0", "mdadm --grow /dev/md0"]),
    ("delete test", 2, &["unrecognized subcommand 'delete'"]),
    ("restart test", 2, &["unrecognized subcommand 'restart'"]),
    ("mount test", 2, &["unrecognized subcommand 'mount'"]),
];

/// The same RAID-5 after `m2` failed.
const DEGRADED: &[Row] = &[
    ("fail m1", 14, &["m1", "would be lost without it", "twill add"]),
    ("fail --force m1", 14, &["m1", "would be lost without it", "twill add"]),
    ("fail 0", 14, &["m0", "(slot 0)", "twill add"]),
    ("remove m1", 6, &["m1", "is in use", "would be lost without it"]),
    ("add m2", 6, &["m2", "failed", "twill remove"]),
    ("add --force m2", 6, &["m2", "failed", "twill remove"]),
    ("re-add m2", 19, &["m2", "without a bitmap", "twill remove failed", "twill add"]),
    ("replace m2 --with n0", 6, &["m2", "is not in sync", "twill add"]),
    ("replace 2 --with n0", 6, &["m2", "(slot 2)", "is not in sync", "twill add"]),
    ("check", 6, &["members are missing", "m2", "twill add"]),
    ("repair", 6, &["members are missing", "m2", "twill add"]),
    ("status --test", 21, &["degraded: ", "twill add"]),
    ("status --wait --test", 21, &["degraded: ", "twill add"]),
];

/// A RAID-0 of `m0` to `m2`.
const RAID0: &[Row] = &[
    ("fail m0", 14, &["m0", "would be lost without it", "RAID-0"]),
    ("add n0", 10, &["n0", "RAID-0", "twill create"]),
    ("add --force n0", 10, &["n0", "RAID-0", "twill create"]),
    ("re-add m0", 6, &["m0", "already"]),
    ("remove m0", 6, &["m0", "is in use", "would be lost without it"]),
    ("replace m0 --with n0", 12, &["m0", "no redundancy", "copy"]),
    ("check", 12, &["neither parity nor copies", "backup"]),
    ("repair", 12, &["neither parity nor copies", "backup"]),
    ("accept-doubt --all", 6, &["twill status"]),
    ("set --avoid-slow on", 12, &["--avoid-slow", "RAID-0"]),
];

/// The RAID-5, served read-only.
const READ_ONLY: &[Row] = &[
    ("add n0", 6, &["n0", "read-only", "without --read-only"]),
    ("re-add n0", 6, &["n0", "read-only", "without --read-only"]),
    ("replace m0 --with n0", 6, &["m0", "read-only", "without --read-only"]),
    ("repair", 6, &["read-only", "without --read-only"]),
    ("accept-doubt --all", 15, &["read-only", "without --read-only"]),
    ("remove m0", 6, &["m0", "is in use"]),
];

/// `test` and `second` are served.
const TWO: &[Row] = &[
    ("check", 13, &["several arrays are served", "second", "test"]),
    ("stop", 13, &["several arrays are served", "second", "test"]),
    ("stop third", 8, &["no array named \"third\"", "second", "test"]),
    ("fail m0", 13, &["several arrays are served", "second", "test", "--array"]),
    ("fail --array second m0", 8, &["m0 is not a member of the array"]),
    ("add n0", 13, &["several arrays are served", "--array"]),
    ("add --array test p0", 6, &["p0"]),
    ("replace m0 --with n0", 13, &["several arrays are served", "--array"]),
    ("set --rate 5M", 13, &["several arrays are served"]),
    ("events", 13, &["several arrays are served"]),
    ("detail", 13, &["several arrays are served"]),
    ("status --wait", 13, &["several arrays are served"]),
];

/// A client is connected to `test`.
const CONNECTED: &[Row] = &[
    ("stop", 18, &["1 client is connected", "nbd.sock", "twill stop --force"]),
    ("stop test", 18, &["1 client is connected", "nbd.sock", "twill stop --force"]),
    ("stop --keep-device", 18, &["1 client is connected", "twill stop --force"]),
];

/// `test` is a mirror of `m0` and `m1`.
const MIRROR: &[Row] = &[
    ("replace m0 --with small", 10, &["small", "larger device"]),
    ("repair --trust-data --restart other", 8, &["no array named \"other\""]),
    ("serve m0", 9, &["test is served already", "m0", "m1", "twill stop"]),
    ("set --rate-min 9X", 2, &["no size"]),
];

/// A zoned array of `z0` to `z3` at level 5, of which `z3` failed.
const ZONED: &[Row] = &[
    ("fail z0", 14, &["z0", "would be lost without it", "serve it with them"]),
    ("fail 0", 14, &["z0", "(slot 0)", "would be lost without it"]),
    ("remove z0", 6, &["z0", "is in use", "twill fail"]),
    ("add n0", 10, &["n0", "and the members of the array have", "at least as many zones"]),
    ("add --force n0", 10, &["n0", "and the members of the array have", "at least as many zones"]),
    ("add d0", 3, &["d0", "is a file with data", "--force"]),
    ("add z0", 6, &["z0", "is a device of this array already", "twill remove failed"]),
    ("add nope", 8, &["nope", "cannot open"]),
    ("re-add n0", 4, &["n0", "no superblock of a zoned array", "twill add"]),
    ("re-add z0", 6, &["z0", "is a device of this array already"]),
    ("replace z0 --with n0", 12, &["z0", "is not for this zoned array", "twill fail, then twill add"]),
    ("repair --trust-data", 12, &["is not for this zoned array", "twill repair"]),
    ("set --rate 1M", 12, &["is not for this zoned array", "twill status"]),
    ("accept-doubt --all", 12, &["is not for this zoned array", "twill status"]),
    ("scrub pause", 8, &["no check or repair", "twill check"]),
    ("status --test", 21, &["degraded: ", "test"]),
    ("stop other", 8, &["no array named \"other\"", "test"]),
];

/// Files that lie around.
fn bystanders(world: &World) {
    for name in ["n0", "fs", "gpt", "one", "o0", "o1", "o2"] {
        world.member(name, MEMBER_BYTES);
    }
    world.write("fs", 0, b"XFSB");
    world.partition("gpt", MEMBER_BYTES);
    world.write("one", 9 << 20, b"x");
    world.member("small", 1 << 20);
    world.member("empty", 0);
    fs::create_dir(world.path("folder")).expect("a folder");
    std::os::unix::fs::symlink("nowhere", world.path("link")).expect("a link");
    world.twill(&["create", "--level", "5", "--name", "other"], &["o0", "o1", "o2"]).succeeds();
}

/// What must not change: every file but the log of the server.
fn files(world: &World) -> Vec<(PathBuf, Vec<u8>)> {
    let mut files = world.contents();
    files.retain(|(path, _)| path.extension().is_none_or(|extension| extension != "log"));
    files
}

/// Tries every row, and says which did not do as it should.
fn try_all(world: &World, rows: &[Row]) {
    let mut wrong = Vec::new();
    let before = files(world);
    for (line, code, says) in rows {
        let words: Vec<&str> = line.split(' ').collect();
        let run = world.twill::<&str>(&words, &[]);
        let missing: Vec<&&str> = says.iter().filter(|word| !run.stderr.contains(**word)).collect();
        if run.code != *code || !missing.is_empty() {
            wrong.push(format!("{line}: code {} for {code}, lacks {missing:?}: {}", run.code, run.stderr));
        }
        if *code != 2 && !world.names_next_step(&words) {
            wrong.push(format!("{line}: no next step: {}", run.stderr));
        }
        let after = files(world);
        let changed = before.iter().zip(&after).filter(|(before, after)| before != after);
        let changed: Vec<_> = changed.map(|((path, _), _)| path.file_name().unwrap_or_default()).collect();
        assert!(changed.is_empty() && before.len() == after.len(), "{line} changed {changed:?}");
    }
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), rows.len(), wrong.join("\n"));
}

fn served<'a>(world: &'a World, options: &[&str], members: &[String]) -> Server<'a> {
    world.serve(&[&["--control", "run/test.sock"], options].concat(), members)
}

#[test]
fn while_a_whole_array_is_served() {
    let (world, elsewhere) = (World::new(), World::new());
    let members = world.array(3);
    bystanders(&world);
    let others: Vec<String> = ["p0", "p1"].map(|name| world.member(name, MEMBER_BYTES)).into();
    world.twill(&["create", "--level", "1"], &others).succeeds();
    let paths: Vec<String> = others.iter().map(|name| world.path(name).display().to_string()).collect();
    let _other = elsewhere.serve(&[], &paths);
    let _server = served(&world, &[], &members);
    try_all(&world, WHOLE);
}

#[test]
fn while_a_degraded_array_is_served() {
    let world = World::new();
    let members = world.array(3);
    bystanders(&world);
    let _server = served(&world, &[], &members);
    world.twill::<&str>(&["fail", "m2"], &[]).succeeds();
    try_all(&world, DEGRADED);
}

#[test]
fn while_an_array_without_redundancy_is_served() {
    let world = World::new();
    let members = world.array_of("0", 3);
    bystanders(&world);
    let _server = served(&world, &[], &members);
    try_all(&world, RAID0);
}

#[test]
fn while_an_array_is_served_read_only() {
    let world = World::new();
    let members = world.array(3);
    bystanders(&world);
    let _server = served(&world, &["--read-only"], &members);
    try_all(&world, READ_ONLY);
}

#[test]
fn while_two_arrays_are_served() {
    let (world, elsewhere) = (World::new(), World::new());
    let members = world.array(3);
    bystanders(&world);
    let others: Vec<String> = ["p0", "p1"].map(|name| world.member(name, MEMBER_BYTES)).into();
    world.twill(&["create", "--level", "1", "--name", "second"], &others).succeeds();
    let paths: Vec<String> = others.iter().map(|name| world.path(name).display().to_string()).collect();
    let _second = elsewhere.serve(&[], &paths);
    let _server = served(&world, &[], &members);
    let link = world.path("run").join("second.sock");
    std::os::unix::fs::symlink(elsewhere.path("control.sock"), link).expect("a link");
    try_all(&world, TWO);
}

#[test]
fn while_a_client_is_connected() {
    let world = World::new();
    let members = world.array(3);
    let _server = served(&world, &[], &members);
    let _client = world.client();
    try_all(&world, CONNECTED);
}

#[test]
fn while_a_zoned_array_is_served() {
    let world = World::new();
    world.member("n0", MEMBER_BYTES);
    let data = world.member("d0", 2 * MEMBER_BYTES);
    world.write(&data, 5 << 20, b"something");
    let members: Vec<String> = (0..4).map(|i| world.member(&format!("z{i}"), 2 * MEMBER_BYTES)).collect();
    let arguments =
        ["create", "--metadata", "zoned", "--zone-size", "512K", "--level", "5", "--name", "test"];
    world.twill(&arguments, &members).succeeds();
    let _server = served(&world, &[], &members);
    world.twill::<&str>(&["fail", "z3"], &[]).succeeds();
    try_all(&world, ZONED);
}

#[test]
fn while_a_mirror_is_served() {
    let world = World::new();
    let members = world.array_of("1", 2);
    bystanders(&world);
    let _server = served(&world, &[], &members);
    try_all(&world, MIRROR);
}
