//! Tiny runs of every mode: that they work, that what they report is complete, that the floor does what the engine
//! does. Nothing here depends on time.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use bench::Error;
use bench::figures::Figures;
use bench::roofline::{Copied, copied};
use bench::run::run;
use bench::setting::{Consistency, Setting, Skew, Work};
use bench::trace;

fn tiny() -> Setting {
    Setting {
        members: vec!["memory:6x4M".to_string()],
        runtime: 0.02,
        ramp: 0.0,
        iodepth: 8,
        ..Setting::default()
    }
}

fn ran(setting: &Setting) -> Figures {
    let figures = run(setting).unwrap_or_else(|error| panic!("{error}: {setting:?}"));
    assert!(figures.iops > 0.0, "{setting:?}");
    figures
}

#[test]
fn every_level_and_work_runs_beside_its_floor() {
    let works = [Work::Read, Work::Write, Work::RandRead, Work::RandWrite, Work::Rw, Work::RandRw];
    for level in ["0", "1", "4", "5", "6", "10"] {
        for rw in works {
            let figures = ran(&Setting { level: level.to_string(), rw, ..tiny() });
            let roofline = figures.roofline.expect("members are memory");
            assert!(roofline.ratio > 0.0 && roofline.cpu_ratio > 0.0);
            assert_eq!(
                figures.requests.reads > 0,
                !matches!(rw, Work::Write | Work::RandWrite),
                "{level} {rw:?}"
            );
        }
    }
}

#[test]
fn contents_are_right_on_every_level_also_degraded() {
    let cases: [(&str, &[u32], Work, u64); 8] = [
        ("0", &[], Work::RandRw, 4),
        ("1", &[], Work::RandRw, 4),
        ("10", &[1], Work::RandRw, 8),
        ("5", &[], Work::RandRw, 4),
        ("5", &[3], Work::RandWrite, 64),
        ("6", &[], Work::Write, 64),
        ("6", &[2], Work::RandRw, 4),
        ("6", &[0, 1], Work::RandRw, 320),
    ];
    for (level, fail, rw, kib) in cases {
        let setting = Setting { level: level.to_string(), fail: fail.to_vec(), rw, bs: kib << 10, ..tiny() };
        let figures = ran(&Setting { verify: true, shards: 2, ..setting });
        let verified = figures.verified.expect("asked for");
        assert!(verified.blocks > 0, "RAID-{level}");
        let spares = match level {
            "5" => 1 - fail.len(),
            "6" => 2 - fail.len(),
            _ => verified.also_without.len(),
        };
        assert_eq!(verified.also_without.len(), spares, "RAID-{level} without {fail:?}");
    }
}

#[test]
fn the_object_has_every_field() {
    let figures = ran(&Setting { consistency: Consistency::Resync, skew: Skew::Zipf(0.99), ..tiny() });
    let json = serde_json::to_value(&figures).expect("plain data");
    let fields = [
        "/iops",
        "/bytes_per_s",
        "/lat_ns/mean",
        "/lat_ns/p50",
        "/lat_ns/p99",
        "/lat_ns/p999",
        "/lat_ns/max",
        "/cpu_s_per_gib",
        "/cpu_ns_per_op",
        "/member/reads",
        "/member/writes",
        "/member/read_bytes",
        "/member/write_bytes",
        "/amplification/read",
        "/amplification/write",
        "/parity_cache/hit_rate",
        "/stages/claim",
        "/stages/wait",
        "/stages/pre-read",
        "/stages/parity",
        "/stages/write",
        "/stages/complete",
        "/stages_alone/write",
        "/roofline/bytes_per_s",
        "/roofline/ratio",
        "/roofline/cpu_ratio",
        "/setting/iodepth",
        "/setting/chunk",
        "/setting/two_phase",
        "/setting/parity_cache",
        "/machine/cores",
    ];
    for field in fields {
        assert!(
            json.pointer(field).is_some_and(serde_json::Value::is_number) || field.ends_with("two_phase"),
            "{field}"
        );
    }
    for (field, value) in
        [("/setting/rw", "randwrite"), ("/setting/consistency", "resync"), ("/setting/level", "5")]
    {
        assert_eq!(json.pointer(field).and_then(|v| v.as_str()), Some(value), "{field}");
    }
    let stages = json["stages"].as_object().expect("stages");
    let sum: f64 = stages.values().filter_map(serde_json::Value::as_f64).sum();
    assert!((sum - 1.0).abs() < 1e-9, "{stages:?}");
    assert!(json.pointer("/machine/cpu").is_some() && json.pointer("/machine/kernel").is_some());
    for word in ["iops", "latency", "roofline", "machine"] {
        assert!(figures.words().contains(word), "{}", figures.words());
    }
}

/// A trace of requests of all kinds, and what the floor copies for them.
fn trace_of_all_kinds(folder: &Path) -> PathBuf {
    let (mut text, mut seed) = (String::new(), 1u64);
    let mut random = |below: u64| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) % below
    };
    for _ in 0..400 {
        let op = if random(3) > 0 { 'W' } else { 'R' };
        let bytes = [512, 4096, 12_288, 65_536, 262_144, 327_680, 1 << 20][random(7) as usize];
        text += &format!("0,{op},{},{bytes}\n", random(16 << 11) * 512);
    }
    let path = folder.join("all.csv");
    fs::write(&path, text).expect("written");
    path
}

#[test]
fn the_floor_copies_what_the_engine_copies() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = trace_of_all_kinds(folder.path());
    let requests = trace::read(&path).expect("a trace");
    let cases: [(&str, &[u32]); 9] = [
        ("0", &[]),
        ("1", &[]),
        ("10", &[]),
        ("5", &[]),
        ("5", &[2]),
        ("6", &[]),
        ("6", &[1]),
        ("6", &[0, 3]),
        ("4", &[5]),
    ];
    for (level, fail) in cases {
        let setting = Setting {
            level: level.to_string(),
            fail: fail.to_vec(),
            trace: Some(path.clone()),
            trace_time: true,
            two_phase: false,
            parity_cache: 0,
            runtime: 60.0,
            ..tiny()
        };
        let figures = ran(&setting);
        let geometry = setting.geometry(6, 4 << 20).expect("an array");
        let size = geometry.array_bytes();
        let mut sum = Copied::default();
        for request in &requests {
            let offset = request.offset % size;
            let bytes = request.bytes.min(size - offset);
            let one = copied(&geometry, fail, request.write, offset, bytes);
            sum.reads += one.reads;
            sum.read_bytes += one.read_bytes;
            sum.writes += one.writes;
            sum.write_bytes += one.write_bytes;
        }
        let member = figures.member;
        let engine = Copied {
            reads: member.reads,
            read_bytes: member.read_bytes,
            writes: member.writes,
            write_bytes: member.write_bytes,
        };
        assert_eq!(engine, sum, "RAID-{level} without {fail:?}");
    }
}

#[test]
fn traces_are_replayed_fast_in_time_and_verified() {
    let folder = tempfile::tempdir().expect("a folder");
    let trace = Some(trace_of_all_kinds(folder.path()));
    ran(&Setting { trace: trace.clone(), shards: 2, ..tiny() });
    ran(&Setting { trace: trace.clone(), verify: true, ..tiny() });
    let figures = ran(&Setting { trace, trace_time: true, shards: 2, runtime: 60.0, ..tiny() });
    assert_eq!(figures.requests.reads + figures.requests.writes, 400);
    let wrong = folder.path().join("wrong.csv");
    fs::write(&wrong, "0,R,0,512\n1,R,0,5x\n").expect("written");
    let error = run(&Setting { trace: Some(wrong), ..tiny() }).unwrap_err();
    assert!(matches!(error, Error::Trace { line: 2, .. }), "{error}");
}

#[test]
fn files_are_members_unless_they_hold_something() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = |slot: usize| folder.path().join(format!("m{slot}")).display().to_string();
    let members: Vec<String> = (0..4).map(path).collect();
    for member in &members {
        File::create(member).and_then(|file| file.set_len(2 << 20)).expect("a sparse file");
    }
    let setting = Setting { members, verify: true, rw: Work::RandRw, ..tiny() };
    assert!(ran(&setting).roofline.is_none());
    assert!(matches!(run(&setting), Err(Error::Occupied { .. })));
    ran(&Setting { force: true, ..setting });
}

#[test]
fn settings_without_sense_are_refused() {
    let cases = [
        Setting { level: "7".to_string(), ..tiny() },
        Setting { level: "five".to_string(), ..tiny() },
        Setting { chunk: 5000, ..tiny() },
        Setting { bs: 1000, ..tiny() },
        Setting { bs: 1 << 30, ..tiny() },
        Setting { fail: vec![0, 1], ..tiny() },
        Setting { fail: vec![9], ..tiny() },
        Setting { iodepth: 0, ..tiny() },
        Setting { verify: true, bs: 512, ..tiny() },
        Setting { members: vec!["memory:0x1M".to_string()], ..tiny() },
    ];
    for setting in cases {
        assert!(matches!(run(&setting), Err(Error::Setting(_))), "{setting:?}");
    }
}

#[test]
fn a_report_of_tiny_runs_has_plots_of_every_kind() {
    use bench::report::{Extent, Plan, write};
    let folder = tempfile::tempdir().expect("a folder");
    let names = ["straid-fig13", "straid-fig18", "straid-fig20", "straid-table5"];
    let traces = folder.path().join("traces");
    fs::create_dir(&traces).expect("a folder");
    trace_of_all_kinds(&traces);
    let plan = Plan {
        extent: Extent::Quick,
        only: names.map(str::to_string).to_vec(),
        traces: Some(traces),
        output: folder.path().join("report"),
        runtime: Some(0.004),
        member_bytes: Some(8 << 20),
    };
    let page = write(&plan, &|_| {}).expect("a report");
    let text = fs::read_to_string(page).expect("a page");
    for name in names {
        assert!(text.contains(&format!("{name}-1.svg")), "{name}");
        let plot = fs::read_to_string(plan.output.join(format!("{name}-1.svg"))).expect("a plot");
        assert!(plot.contains("<svg") && plot.contains("</svg>"), "{name}");
    }
    let json = fs::read(plan.output.join("figures.json")).expect("figures");
    let json: serde_json::Value = serde_json::from_slice(&json).expect("JSON");
    assert!(json.as_array().is_some_and(|runs| runs.len() > 25));
    let unknown = Plan { only: vec!["straid-fig99".to_string()], ..plan };
    assert!(matches!(write(&unknown, &|_| {}), Err(Error::Setting(_))));
}

#[test]
fn a_table_has_its_rows() {
    use bench::table::{Plan, Table, measure};
    let plan = Plan {
        runs: 1,
        runtime: 0.01,
        member_bytes: 4 << 20,
        shards: vec![1],
        only: Some("RAID-5 randwrite 4K".to_string()),
    };
    let table = measure(&plan, &|_| {}).expect("a table");
    assert_eq!(table.rows.len(), 1);
    assert!(Table::words(&table).contains("| RAID-5 randwrite 4K | 1 |"));
}
