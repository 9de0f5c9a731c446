//! The message table: wrong and dangerous command lines as a new operator would write them. Each is refused with what is wrong, with
//! which device, and the next step, and changes no byte of any file.

use std::fs;

use crate::world::{MEMBER_BYTES, World};

/// The command line, its exit code, and words that it must say: what, which device, the next step.
type Row = (&'static str, i32, &'static [&'static str]);

/// `m0` to `m2` are an array; `n0` to `n2` are new; `fs` holds a file system, `gpt` a partition table, `one` a single byte.
const ROWS: &[Row] = &[
    ("create --level 5 m0 m1 m2", 3, &["m0", "md superblock", "--force"]),
    ("create --level 5 n0 n1 m2", 3, &["m2", "md superblock", "--force"]),
    ("create --level 5 n0 n1 fs", 3, &["fs", "XFS", "--force"]),
    ("create --level 5 n0 n1 gpt", 3, &["gpt", "GPT partition table", "--force"]),
    ("create --level 5 n0 n1 one", 3, &["one", "--force"]),
    ("create --level 5 n0 n1 n0", 13, &["n0"]),
    ("create --level 5 n0 n1 ./n0", 13, &["n0"]),
    ("create --level 5 n0 n1 link", 13, &["link"]),
    ("create --level 5 n0 n1 gone", 8, &["gone"]),
    ("create --level 5 n0 n1 folder", 4, &["folder"]),
    ("create --level 5 n0 n1 /dev/null", 4, &["/dev/null"]),
    ("create --level 5 n0 n1 small", 10, &["small"]),
    ("create --level 5 n0 n1 empty", 10, &["empty"]),
    ("create --level 5 n0 n1 large", 3, &["large", "--size"]),
    ("create --level 5 n0", 10, &["members"]),
    ("create --level 6 n0 n1 n2", 10, &["raid6 takes 4"]),
    ("create --level 7 n0 n1 n2", 10, &["level 7", "levels are"]),
    ("create n0 n1 n2", 2, &["--level"]),
    ("create --level 5", 2, &["<MEMBER>"]),
    ("create --level 5 --chunk 3K n0 n1 n2", 10, &["chunk"]),
    ("create --level 5 --chunk 1E n0 n1 n2", 10, &["chunk", "power of two"]),
    ("create --level 5 --layout f2 n0 n1 n2", 10, &["layout"]),
    ("create --level 5 --size 1T n0 n1 n2", 10, &["--size", "the most is"]),
    ("assemble n0 n1 n2", 4, &["no array on these members", "twill examine"]),
    ("assemble m0", 5, &["1 of 3"]),
    ("assemble gone", 8, &["gone"]),
    ("assemble", 2, &["no members", "--scan"]),
    ("assemble --name other m0 m1 m2", 4, &["other", "twill examine"]),
    ("assemble --uuid 12 m0 m1 m2", 2, &["12", "32 hexadecimal digits"]),
    ("serve n0 n1 n2", 4, &["n0", "no md superblock"]),
    ("serve m0 n1 n2", 5, &["1 of 3"]),
    ("serve m0 m1 --no-degraded", 5, &["slot 2", "--no-degraded"]),
    ("serve m0 m1 m2 --log m0", 6, &["--log m0", "is a member of the array", "name another file"]),
    ("serve m0 m1 m2 --pid-file m1", 6, &["--pid-file m1", "is a member of the array", "name another file"]),
    ("serve m0 m1 m2 --pid-file one", 9, &["--pid-file one", "holds something other", "name a new file"]),
    ("serve m0 m1 m2 --parity-cache 64T", 2, &["--parity-cache", "more than half", "ask for less"]),
    ("serve m0 m1 m2 --tcp nowhere", 2, &["nowhere"]),
    ("serve m0 m1 m2 --unix no/such/folder", 8, &["no/such/folder", "name another place"]),
    ("serve m0 m1 m2 --unix folder", 9, &["folder: it is a folder", "name another place"]),
    ("serve gone m1", 8, &["gone"]),
    ("examine n0", 4, &["n0", "no md superblock"]),
    ("examine gone", 8, &["gone"]),
    ("stop other", 8, &["other"]),
    ("fail m0", 8, &["no array is served", "--control"]),
    ("remove m0", 8, &["no array is served", "--control"]),
    ("add n0", 8, &["no array is served", "--control"]),
    ("re-add m0", 8, &["no array is served", "--control"]),
    ("replace m0 --with n0", 8, &["no array is served", "--control"]),
    ("check", 8, &["no array is served", "--control"]),
    ("status --control gone.sock", 8, &["gone.sock"]),
    ("crate --level 5 n0 n1 n2", 2, &["create"]),
];

#[test]
fn wrong_command_lines_are_refused_and_change_no_byte() {
    let world = World::new();
    world.array(3);
    for name in ["n0", "n1", "n2", "fs", "gpt", "one"] {
        world.member(name, MEMBER_BYTES);
    }
    world.write("fs", 0, b"XFSB");
    world.partition("gpt", MEMBER_BYTES);
    world.write("one", 9 << 20, b"x");
    world.member("small", 64 << 10);
    world.member("empty", 0);
    world.member("large", 3 * MEMBER_BYTES);
    fs::create_dir(world.path("folder")).expect("a folder");
    std::os::unix::fs::symlink("n1", world.path("link")).expect("a link");
    let before = world.contents();
    let mut wrong = Vec::new();
    for (line, code, says) in ROWS {
        let words: Vec<&str> = line.split(' ').collect();
        let run = world.twill::<&str>(&words, &[]);
        let missing: Vec<&&str> = says.iter().filter(|word| !run.stderr.contains(**word)).collect();
        if run.code != *code || !missing.is_empty() || !run.stderr.starts_with("twill: ") && run.code != 2 {
            wrong.push(format!("{line}: code {} for {code}, lacks {missing:?}: {}", run.code, run.stderr));
        }
        if *code != 2 && !world.names_next_step(&words) {
            wrong.push(format!("{line}: no next step: {}", run.stderr));
        }
        assert!(world.contents() == before, "{line} changed something");
    }
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), ROWS.len(), wrong.join("\n"));
    assert!(ROWS.len() >= 40);
}
