//! Starts of zoned arrays whose members are not as the last run left them: missing, empty, cut short, swapped, of another array,
//! stale. Every block that is read is right, or the start is refused, says why by path, and leaves every byte of every file.
//! What is not taken is never written.

use std::fs;

use serde_json::Value;

use crate::world::{Server, World};
use crate::zoned::{assert_holds, kill, write};

const MEMBER_BYTES: u64 = 12 << 20;
/// The superblock log of a member of software zones.
const LOG_BYTES: usize = 2 * (256 << 10);
const BLOCKS: u64 = 1000;
/// Blocks that are written one at a time, so that segments for small writes are used too.
const SMALL: u64 = 30;

/// An array that was killed with open segments beside sealed ones, and what its members held then.
struct Killed {
    world: World,
    members: Vec<String>,
    /// Members that the level can do without.
    losses: usize,
    files: Vec<Vec<u8>>,
}

fn create(world: &World, level: &str, name: &str, members: &[String]) {
    for member in members {
        world.member(member, MEMBER_BYTES);
    }
    let arguments =
        ["create", "--metadata", "zoned", "--zone-size", "256K", "--level", level, "--name", name];
    world.twill(&arguments, members).succeeds();
}

/// Levels 5 and 6. After as many losses as each survives three members are left.
fn levels() -> impl Iterator<Item = Killed> {
    [("5", 1), ("6", 2)].into_iter().map(|(level, losses)| Killed::new(level, losses))
}

impl Killed {
    fn new(level: &str, losses: usize) -> Self {
        let world = World::new();
        let members: Vec<String> = (0..3 + losses).map(|slot| format!("m{slot}")).collect();
        create(&world, level, "test", &members);
        serve_and_kill(&world, &members, &[1]);
        let examined = world.twill(&["examine", "--segments", "--json"], &members[..1]).succeeds().json();
        let segments = examined["members"][0]["zones"]["segments"].as_array().expect("segments");
        for state in ["sealed", "open"] {
            let is_there = segments.iter().any(|segment| segment["state"] == state);
            assert!(is_there, "no segment is {state}: {segments:#?}");
        }
        let files = members.iter().map(|name| fs::read(world.path(name)).expect("a member")).collect();
        Killed { world, members, losses, files }
    }

    /// Every member is again as it was when the array was killed.
    fn put_back(&self) {
        for (name, bytes) in self.members.iter().zip(&self.files) {
            fs::write(self.world.path(name), bytes).expect("put back");
        }
    }

    /// The members but those in these slots.
    fn without(&self, slots: &[usize]) -> Vec<String> {
        let members = self.members.iter().enumerate();
        members.filter(|(slot, _)| !slots.contains(slot)).map(|(_, name)| name.clone()).collect()
    }

    fn holds(&self, name: &str) -> Vec<u8> {
        fs::read(self.world.path(name)).expect("a member")
    }

    fn empty(&self, slot: usize) {
        fs::write(self.world.path(&self.members[slot]), vec![0; MEMBER_BYTES as usize]).expect("emptied");
    }

    /// Serves these members: every block is right, also with one more member lost where the level survives that, which shows that
    /// the start reset no zone of the others that anything maps to. After new writes and a kill the next start has those. Devices that
    /// are not taken are named, and not written.
    fn serves(&self, options: &[&str], named: &[String], not_taken: &[(&str, &str)], context: &str) {
        let before: Vec<Vec<u8>> = not_taken.iter().map(|(name, _)| self.holds(name)).collect();
        for version in 1..=2 {
            let mut server = self.world.serve(options, named);
            println!("{context}, start {version}");
            for (name, why) in not_taken {
                assert_named(&server, name, why);
            }
            assert_all_hold(&self.world, version);
            let states = server.status()["members"].clone();
            let in_sync: Vec<usize> =
                (0..self.members.len()).filter(|slot| states[*slot]["state"] == "in-sync").collect();
            if version == 1 && in_sync.len() > self.members.len() - self.losses {
                server.twill(&["fail", &in_sync[1].to_string()]).succeeds();
                assert_all_hold(&self.world, 1);
            }
            write_all(&self.world, 2);
            assert_all_hold(&self.world, 2);
            kill(&mut server);
        }
        for ((name, _), before) in not_taken.iter().zip(before) {
            assert!(before == self.holds(name), "{context}: {name} is not taken, and was written");
        }
    }

    /// Neither a decision nor a start changes a byte; both say why not, with all these words, and what to do next.
    fn refuses(&self, code: i32, says: &[&str], named: &[String], context: &str) {
        println!("{context}");
        self.world.refused(code, says, &["serve"], named);
        let words: Vec<&str> = ["serve"].into_iter().chain(named.iter().map(String::as_str)).collect();
        assert!(self.world.names_next_step(&words), "{context}: no next step");
        let before = self.world.contents();
        self.world.twill(&["assemble"], named);
        assert!(before == self.world.contents(), "{context}: assemble changed something");
    }
}

/// Serves these members for as long as it takes to write all of these versions.
fn serve_and_kill(world: &World, members: &[String], versions: &[u64]) {
    let mut server = world.serve(&[], members);
    versions.iter().for_each(|version| write_all(world, *version));
    kill(&mut server);
}

fn write_all(world: &World, version: u64) {
    let mut client = world.client();
    for block in (0..BLOCKS).step_by(100) {
        write(&mut client, block, 100, version, 0);
    }
    for block in BLOCKS..BLOCKS + SMALL {
        write(&mut client, block, 1, version, 0);
    }
    assert_eq!(client.flush().expect("served"), 0);
}

#[track_caller]
fn assert_all_hold(world: &World, version: u64) {
    let mut client = world.client();
    assert_holds(&mut client, 0, BLOCKS + SMALL, version);
    assert_holds(&mut client, BLOCKS + SMALL, 8, 0);
}

/// A warning names a device that was not taken, and says why.
#[track_caller]
fn assert_named(server: &Server<'_>, name: &str, why: &str) {
    let warnings = server.announcement["warnings"].as_array().map_or(&[][..], Vec::as_slice);
    let is_it = |warning: &Value| {
        warning
            .as_str()
            .is_some_and(|words| words.contains(&format!("{name} is not taken")) && words.contains(why))
    };
    assert!(warnings.iter().any(is_it), "{name} is not named with {why:?}: {warnings:#?}");
}

/// One after the other is not named, is not there, holds zeroes, holds nothing at all, or something else.
#[test]
fn each_member_missing_or_empty() {
    for array in levels() {
        for slot in 0..array.members.len() {
            let name = array.members[slot].as_str();
            let context = |what: &str| format!("{} of {}: {what}", name, array.members.len());
            array.put_back();
            array.serves(&[], &array.without(&[slot]), &[], &context("not named"));

            array.put_back();
            fs::remove_file(array.world.path(name)).expect("removed");
            array.refuses(8, &[name, "cannot open"], &array.members, &context("not there"));

            array.put_back();
            array.empty(slot);
            let not_taken = [(name, "no superblock")];
            array.serves(&[], &array.members, &not_taken, &context("zeroes"));

            if slot % 3 != 0 {
                continue; // the rest is the same for every slot: two of them are enough
            }
            array.put_back();
            fs::write(array.world.path(name), b"").expect("emptied");
            array.serves(&[], &array.members, &not_taken, &context("no bytes"));

            array.put_back();
            let other: Vec<u8> = b"something else ".repeat(MEMBER_BYTES as usize / 15);
            fs::write(array.world.path(name), other).expect("overwritten");
            array.serves(&[], &array.members, &not_taken, &context("something else"));

            // Its superblocks are gone, its segments are there.
            array.put_back();
            array.world.write(name, 0, &[0; LOG_BYTES]);
            array.serves(&[], &array.members, &not_taken, &context("no superblock log"));
        }
    }
}

/// A member is known by its superblock, not by its name or its place on the command line.
#[test]
fn two_members_that_swapped_names() {
    for array in levels() {
        let count = array.members.len();
        for (one, other) in [(0, 1), (0, count - 1), (2, 3)] {
            array.put_back();
            let [one, other] = [one, other].map(|slot| array.world.path(&array.members[slot]));
            let between = array.world.path("between");
            fs::rename(&one, &between).expect("renamed");
            fs::rename(&other, &one).expect("renamed");
            fs::rename(&between, &other).expect("renamed");
            array.serves(&[], &array.members, &[], &format!("{one:?} and {other:?}"));
        }
    }
}

/// A member that lost its end would lose zones: it is not taken for one that is whole.
#[test]
fn a_member_that_was_cut_short() {
    for array in levels() {
        for bytes in [MEMBER_BYTES - 4096, MEMBER_BYTES / 2, LOG_BYTES as u64] {
            array.put_back();
            let file = fs::File::options().write(true).open(array.world.path("m1")).expect("a member");
            file.set_len(bytes).expect("cut");
            array.refuses(10, &["m1", "its superblock says"], &array.members, &format!("{bytes} bytes"));
            array.serves(&[], &array.without(&[1]), &[], "without it");
        }
    }
}

/// A member of another array that is cut alike has the place of one of this.
#[test]
fn a_member_of_another_array() {
    for (array, level) in levels().zip(["5", "6"]) {
        let others: Vec<String> = (0..array.members.len()).map(|slot| format!("o{slot}")).collect();
        create(&array.world, level, "other", &others);
        serve_and_kill(&array.world, &others, &[7]);
        for slot in [0, 2] {
            array.put_back();
            let name = array.members[slot].as_str();
            fs::copy(array.world.path(&others[slot]), array.world.path(name)).expect("copied");
            let says = ["the members belong to 2 arrays", "--name", name, "other"];
            array.refuses(13, &says, &array.members, &format!("{name} of another array"));
            let not_taken = [(name, "belongs to another array, other")];
            array.serves(&["--name", "test"], &array.members, &not_taken, "by the array's name");
        }
        // So many of the other one that neither could start alone.
        array.put_back();
        for (theirs, own) in others.iter().zip(&array.members).take(array.losses + 1) {
            fs::copy(array.world.path(theirs), array.world.path(own)).expect("copied");
        }
        array.refuses(13, &["m0", "m1", "other"], &array.members, "too many of another array");
        let named: Vec<String> =
            ["--name", "test"].iter().map(ToString::to_string).chain(array.members.clone()).collect();
        array.refuses(5, &["are in sync, and 3 are needed", "m0", "m1"], &named, "too many, by name");

        // A member of an array on md's format.
        array.put_back();
        array
            .world
            .twill(&["create", "--level", "1", "--force", "--name", "mirror"], &["o0", "o1"])
            .succeeds();
        fs::copy(array.world.path("o1"), array.world.path("m1")).expect("copied");
        array.refuses(13, &["m1", "mirror", "--name"], &array.members, "a member on md's format");
        let not_taken = [("m1", "no superblock")];
        array.serves(&["--name", "test"], &array.members, &not_taken, "by name, beside one on md's format");
    }
}

/// A copy that was made of a member before the others were written without it, or with it.
#[test]
fn a_stale_member() {
    for array in levels() {
        let count = array.members.len();
        for (slot, was_there) in [(0, false), (1, true), (count - 1, false), (2, true)] {
            array.put_back();
            let present = if was_there { array.members.clone() } else { array.without(&[slot]) };
            // What its copy has is all written anew, and back at the same contents at the end.
            serve_and_kill(&array.world, &present, &[5, 1]);
            let name = array.members[slot].as_str();
            let context =
                format!("{name} is of before an epoch {} it", if was_there { "with" } else { "without" });
            fs::write(array.world.path(name), &array.files[slot]).expect("put back");
            let gone: Vec<usize> = (0..count).filter(|other| *other != slot).take(array.losses).collect();
            let says = ["members are in sync, and 3 are needed", name, "stale: ", "bring back members"];
            array.refuses(5, &says, &array.without(&gone), &format!("{context}, {gone:?} missing"));
            array.serves(&[], &array.members, &[(name, "stale: ")], &context);
        }
    }
}

/// As many as the level survives, in any way; one more is refused, and what is there stays as it is.
#[test]
fn several_members_missing_or_empty() {
    for array in levels() {
        let most: Vec<usize> = (0..array.losses).map(|at| 1 + at * 2).collect();
        let too_many: Vec<usize> = (0..=array.losses).collect();
        array.put_back();
        array.serves(&[], &array.without(&most), &[], &format!("{most:?} missing"));
        array.put_back();
        most.iter().for_each(|slot| array.empty(*slot));
        let not_taken: Vec<(&str, &str)> =
            most.iter().map(|slot| (array.members[*slot].as_str(), "no superblock")).collect();
        array.serves(&[], &array.members, &not_taken, &format!("{most:?} empty"));

        array.put_back();
        let says = ["2 of ", "are in sync, and 3 are needed", "bring back members"];
        array.refuses(5, &says, &array.without(&too_many), &format!("{too_many:?} missing"));
        too_many.iter().for_each(|slot| array.empty(*slot));
        let says = [says.as_slice(), &["m0", "m1", "has no superblock"]].concat();
        array.refuses(5, &says, &array.members, &format!("{too_many:?} empty"));
        // And they are all there again.
        array.put_back();
        array.serves(&[], &array.members, &[], "all are back");
    }
}
