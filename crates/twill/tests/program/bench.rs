//! `bench`: every figure that it promises is there, contents are right while it runs, and what cannot work is refused
//! before minutes of measuring.

use std::fs;

use serde_json::Value;

use crate::targets::Target;
use crate::world::{Run, World};

/// A short run on members of memory.
const SHORT: [&str; 5] = ["bench", "--members=memory:6x64M", "--runtime=0.2", "--ramp=0.05", "--json"];

fn bench(world: &World, arguments: &[&str]) -> Run {
    world.twill::<&str>(&[&SHORT, arguments].concat(), &[]).succeeds()
}

#[test]
fn every_figure_is_there_and_is_one() {
    let world = World::new();
    let run = bench(&world, &["--rw", "randrw", "--rwmixread", "50", "--bs", "16K", "--iodepth", "8"]);
    let names = run.names();
    for name in [
        "iops",
        "bytes_per_s",
        "lat_ns.mean",
        "lat_ns.p50",
        "lat_ns.p99",
        "lat_ns.p999",
        "lat_ns.max",
        "cpu_s_per_gib",
        "member.reads",
        "member.writes",
        "member.read_bytes",
        "member.write_bytes",
        "amplification.read",
        "amplification.write",
        "roofline.bytes_per_s",
        "roofline.ratio",
    ] {
        assert!(names.iter().any(|known| known == name), "{name}: {names:?}");
        let figure = run.json().pointer(&format!("/{}", name.replace('.', "/"))).and_then(Value::as_f64);
        assert!(figure.is_some_and(|figure| figure > 0.0), "{name}: {run:?}");
    }
    for stage in ["claim", "wait", "pre-read", "parity", "write", "complete"] {
        assert!(names.contains(&format!("stages.{stage}")), "{stage}: {names:?}");
    }
    // Half of the requests write 16 KiB in a chunk: old and new of data and parity, and what is read.
    let figure = |name: &str| run.json().pointer(name).and_then(Value::as_f64).expect("a figure");
    assert!((1.8..=2.05).contains(&figure("/amplification/write")), "{run:?}");
}

#[test]
fn members_on_other_machines_are_written_if_that_is_asked_for() {
    let world = World::new();
    // Memory of the target, of three sizes so that their names differ; and the same of files.
    let memory = Target::start(&world, &["memory:64M", "memory:65M", "memory:66M"]);
    let files = Target::start(&world, &["a", "b", "c"]);
    for target in [&memory, &files] {
        let members = format!("--members={}", target.members().join(","));
        let base = ["bench", &members, "--runtime=0.2", "--ramp=0.05", "--json", "--no-roofline"];
        let refused = world.twill::<&str>(&[&base[..], &["--rw", "randread"]].concat(), &[]).fails(3);
        assert!(refused.stdout.contains("--force does it nevertheless"), "{refused:?}");
        for more in
            [&["--rw", "randrw", "--bs", "16K", "--verify"][..], &["--rw", "randread", "--level", "0"]]
        {
            let run = world.twill::<&str>(&[&base[..], &["--force"], more].concat(), &[]).succeeds();
            assert!(run.json()["member"]["reads"].as_u64().is_some_and(|reads| reads > 0), "{run:?}");
            assert!(!run.stderr.contains("grace period"), "its tasks end with the array: {run:?}");
        }
    }
    let kept = fs::read_dir(world.path("state")).expect("a folder").flatten();
    let kept = kept.filter(|file| file.path().extension().is_none()).count();
    assert_eq!(kept, 3, "reservations of memory end with its target");
}

#[test]
fn contents_are_right_whatever_is_written_and_whichever_member_is_missing() {
    let world = World::new();
    for arguments in [
        &["--rw", "randwrite", "--bs", "4K", "--parity-cache", "1M"][..],
        &["--rw", "randrw", "--bs", "64K", "--fail", "0"],
        &["--level", "6", "--rw", "randrw", "--bs", "24K", "--fail", "0,1"],
        &["--rw", "randrw", "--bs", "320K", "--shards", "2"],
        &["--rw", "write", "--bs", "64K", "--two-phase", "off", "--consistency", "bitmap"],
    ] {
        let run = bench(&world, &[arguments, &["--verify", "--no-roofline"]].concat());
        assert!(run.json()["iops"].as_f64().is_some_and(|iops| iops > 0.0), "{run:?}");
    }
}

#[test]
fn a_page_without_a_place_for_the_table_is_refused_before_anything_is_measured() {
    let world = World::new();
    fs::write(world.path("page.md"), "# a page\n").unwrap();
    let table = |page: &'static str| ["bench", "table", "--markdown", page];
    world.refused::<&str>(2, &["page.md", "it has no lines"], &table("page.md"), &[]);
    let missing = world.refused::<&str>(8, &["none.md", "No such file"], &table("none.md"), &[]);
    assert!(!missing.stderr.contains("run 1"), "measured before it was refused: {missing:?}");
}

#[test]
fn a_write_to_a_zoned_array_has_a_price_beside_its_floor() {
    let world = World::new();
    let small = ["bench", "zoned", "--members=memory:4x64M", "--zone-size=1M", "--runs=1", "--json"];
    for (more, shards) in [(&["--runtime=0.02"][..], 2), (&["--runtime=0.2", "--aged", "--shards=1"], 1)] {
        let run = world.twill::<&str>(&[&small, more].concat(), &[]).succeeds().json();
        let rows = run["rows"].as_array().expect("rows");
        assert_eq!(rows.len(), shards, "{run}");
        for row in rows {
            let figure = |name: &str| row[name]["median"].as_f64().unwrap_or_else(|| panic!("{name}: {row}"));
            assert!(figure("kiops") > 0.0 && figure("p99_us") >= figure("p50_us"), "{row}");
            assert!(figure("cpu_ns_per_op") > 0.0 && figure("floor_ns_per_op") > 0.0, "{row}");
            // Three data blocks of four, less the descriptors; more where stripes are not full.
            assert!(figure("write_amplification") >= 1.4, "{row}");
            if more.contains(&"--aged") {
                assert!(figure("emptied_segments") > 0.0, "reclaim works meanwhile: {row}");
            }
        }
    }
    for (says, arguments) in [
        ("all of memory", &["--members", "file"][..]),
        ("--bs 512: a multiple of 4K", &["--bs", "512"]),
        ("--rw: write or randwrite", &["--rw", "randread"]),
        ("are at least 1", &["--iodepth", "0"]),
        ("are at least 1", &["--shards", "1,0"]),
        ("--runtime and --ramp are seconds", &["--runtime", "0"]),
        ("makes no zoned array", &["--level", "6", "--members=memory:2x64M"]),
        ("memory:0 has 4 zones", &["--members=memory:4x128M"]),
    ] {
        world.refused::<&str>(2, &[says], &[&["bench", "zoned"], arguments].concat(), &[]);
    }
}

#[test]
fn a_setting_that_makes_no_run_is_refused_by_name() {
    let world = World::new();
    fs::write(world.path("bad.csv"), "no trace\n").unwrap();
    for (code, says, arguments) in [
        (2, "raid6 takes 4 to 256 members, not 2", &["--members=memory:2x64M", "--level", "6"][..]),
        (
            2,
            "299 data chunks in a stripe with parity are more than Twill runs",
            &["--members=memory:300x64M"],
        ),
        (2, "does not survive the loss of slots 0, 1", &["--fail", "0,1"]),
        (2, "--fail 9, but slots are 0 to 5", &["--fail", "9"]),
        (2, "bad.csv, line 1: ", &["--trace", "bad.csv"]),
        (8, "none.csv: ", &["--trace", "none.csv"]),
        (2, "--bs 1000: a multiple of 512", &["--bs", "1000"]),
        (2, "--rwmixread 101", &["--rw", "randrw", "--rwmixread", "101"]),
        (2, "--parity-cache: 67108864 MiB are more than half", &["--parity-cache", "64T"]),
        (2, "--shards 1 with --iodepth 100000000", &["--iodepth", "100000000"]),
        (10, "1024 bytes, but a member has at least 4096", &["--members=memory:6x1K"]),
    ] {
        let members: &[&str] =
            if arguments[0].starts_with("--members") { &[] } else { &["--members=memory:6x64M"] };
        world.refused::<&str>(code, &[says], &[&["bench"], members, arguments].concat(), &[]);
    }
}
