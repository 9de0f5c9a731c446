//! Tiny runs of every mode: that they work, that what they report is complete, that the floor does what the engine
//! does. Nothing here depends on time.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use bench::Error;
use bench::figures::Figures;
use bench::operations::Operations;
use bench::roofline::copied;
use bench::run::run;
use bench::setting::{BitmapMapping, Consistency, Setting, Skew, Work};
use bench::trace;
use engine::stripe::locks::Locks;
use layout::units::Slot;

fn slots(numbers: &[u32]) -> Vec<Slot> {
    numbers.iter().copied().map(Slot::new).collect()
}

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
    if figures.iops == 0.0 && setting.runtime < 60.0 {
        // A busy machine may do nothing in so short a time.
        return ran(&Setting { runtime: setting.runtime * 10.0, ..setting.clone() });
    }
    assert!(figures.iops > 0.0, "{setting:?}");
    assert_adds_up(&figures);
    figures
}

/// What must hold between the fields of every run.
fn assert_adds_up(figures: &Figures) {
    let Figures { requests, member, amplification, lat_ns, setting, .. } = figures;
    let (count, bytes) = (requests.reads + requests.writes, requests.read_bytes + requests.write_bytes);
    let same = |a: f64, b: f64, what: &str| {
        assert!((a - b).abs() <= 1e-9 * a.abs().max(b.abs()), "{what}: {a} and {b}: {setting:?}");
    };
    if setting.trace.is_none() {
        assert_eq!(bytes, count * setting.bs);
        same(figures.bytes_per_s, figures.iops * setting.bs as f64, "bytes and requests a second");
    }
    same(amplification.read * bytes as f64, member.read_bytes as f64, "bytes read at members");
    same(amplification.write * requests.write_bytes as f64, written(figures), "bytes written at members");
    assert!(lat_ns.p50 <= lat_ns.p99 && lat_ns.p99 <= lat_ns.p999 && lat_ns.p999 <= lat_ns.max);
    assert!(lat_ns.mean <= lat_ns.max as f64 && lat_ns.timed <= count);
    same(
        figures.cpu_s_per_gib * bytes as f64 / f64::from(1 << 30),
        figures.cpu_ns_per_op * count as f64 / 1e9,
        "processor time",
    );
    let cache = figures.parity_cache;
    same(cache.hit_rate * (cache.hits + cache.misses).max(1) as f64, cache.hits as f64, "hits");
    if let Some(roofline) = figures.roofline {
        same(roofline.ratio * roofline.bytes_per_s, figures.bytes_per_s, "the floor");
    }
    if let Some(ceiling) = figures.ceiling {
        same(ceiling.iops * ceiling.raw.operations_per_request, ceiling.raw.iops, "the ceiling");
        same(ceiling.ratio * ceiling.iops, figures.iops, "the run by its ceiling");
    }
    assert!(figures.roofline.is_none() || figures.ceiling.is_none(), "one of the two bounds a run");
    let curve = &figures.lat_curve;
    assert!(curve.is_sorted_by(|a, b| a.0 <= b.0 && a.1 < b.1));
    assert!(curve.last().is_none_or(|last| last.1 == 1.0 && last.0 == lat_ns.max));
    for shares in [figures.stages, figures.stages_alone].into_iter().flatten() {
        let json = serde_json::to_value(shares).expect("plain data");
        let all = json.as_object().expect("stages").values().filter_map(serde_json::Value::as_f64);
        same(all.sum(), 1.0, "stages");
    }
}

/// Bytes written at members for the write requests; none count without such requests.
fn written(figures: &Figures) -> f64 {
    if figures.requests.writes > 0 { figures.member.write_bytes as f64 } else { 0.0 }
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
        let setting = Setting { level: level.to_string(), fail: slots(fail), rw, bs: kib << 10, ..tiny() };
        let figures = ran(&Setting { verify: true, shards: 2, ..setting });
        let verified = figures.verified.expect("asked for");
        assert!(verified.blocks > 0, "RAID-{level}");
        assert_eq!(verified.redundant > 0, level != "0" && fail.is_empty(), "RAID-{level} without {fail:?}");
        let spares = match level {
            "5" => 1 - fail.len(),
            "6" => 2 - fail.len(),
            _ => verified.also_without.len(),
        };
        assert_eq!(verified.also_without.len(), spares, "RAID-{level} without {fail:?}");
    }
}

#[test]
fn every_consistency_policy_runs_and_is_right() {
    for level in ["5", "10"] {
        for consistency in [Consistency::None, Consistency::Resync, Consistency::Bitmap] {
            let setting = Setting { level: level.to_string(), consistency, rw: Work::RandRw, ..tiny() };
            let figures = ran(&Setting { verify: true, shards: 2, ..setting.clone() });
            assert!(figures.verified.expect("asked for").redundant > 0);
            ran(&Setting { fail: slots(&[1]), ..setting });
        }
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

/// The three systems of ScalaRAID's comparison: the same contents, and each tells its time in locks.
#[test]
fn every_kind_of_locks_keeps_the_contents_and_tells_its_time() {
    for bitmap_locks in Locks::ALL {
        let setting = Setting { consistency: Consistency::Bitmap, bitmap_locks, shards: 2, ..tiny() };
        let figures = ran(&Setting { verify: true, roofline: false, ..setting });
        assert!(figures.verified.is_some_and(|verified| verified.blocks > 0));
        let locks = figures.locks.expect("writes with a bitmap");
        let all = [locks.counters, locks.stripes];
        assert!(all.iter().all(|lock| lock.share >= 0.0 && lock.share.is_finite()), "{locks:?}");
        if bitmap_locks == Locks::Scala {
            assert!(all.iter().all(|lock| lock.wait_ns == 0.0), "there is nothing to wait for: {locks:?}");
        }
    }
    let spread =
        Setting { bitmap_mapping: BitmapMapping::Dblock, consistency: Consistency::Bitmap, ..tiny() };
    assert!(ran(&Setting { verify: true, ..spread.clone() }).verified.is_some());
    assert!(matches!(run(&Setting { level: "10".into(), ..spread }), Err(Error::Setting(_))));
    assert!(ran(&tiny()).locks.is_none(), "without a bitmap");
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
            fail: slots(fail),
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
        let mut sum = Operations::default();
        for request in &requests {
            let offset = request.offset % size;
            let bytes = request.bytes.min(size - offset);
            sum += copied(&geometry, &slots(fail), request.write, offset, bytes);
        }
        assert_eq!(figures.member, sum, "RAID-{level} without {fail:?}");
    }
}

/// A trace that writes `bytes` at each of these places.
fn trace_of_writes(folder: &Path, places: impl Iterator<Item = u64>, bytes: u64) -> PathBuf {
    let lines = places.map(|offset| format!("0,W,{offset},{bytes}\n"));
    let path = folder.join("writes.csv");
    fs::write(&path, lines.collect::<String>()).expect("written");
    path
}

/// One run of a trace from its first to its last request, all of them counted.
fn ran_once(trace: PathBuf, setting: Setting) -> Figures {
    ran(&Setting { trace: Some(trace), trace_time: true, runtime: 60.0, ..setting })
}

#[test]
fn writes_read_and_write_what_the_papers_equations_say() {
    let folder = tempfile::tempdir().expect("a folder");
    let (chunk, stripe) = (64.0, 320.0);
    for kib in [4u64, 64, 128, 192, 256, 320] {
        let path = trace_of_writes(folder.path(), (0..60).map(|stripe| stripe * (320 << 10)), kib << 10);
        let figures = ran_once(path, Setting { two_phase: false, parity_cache: 0, ..tiny() });
        let write = kib as f64;
        let read = match write {
            _ if write <= chunk => 2.0,
            _ if write < stripe / 2.0 => 1.0 + chunk / write,
            _ => stripe / write - 1.0,
        };
        let written = if write <= chunk { 2.0 } else { 1.0 + chunk / write };
        assert_eq!(figures.requests.writes, 60);
        assert!((figures.amplification.read - read).abs() < 1e-9, "{kib}K: {:?}", figures.amplification);
        assert!((figures.amplification.write - written).abs() < 1e-9, "{kib}K: {:?}", figures.amplification);
        assert_eq!(figures.engine.full_stripe_writes, if kib == 320 { 60 } else { 0 });
    }
}

#[test]
fn every_hit_in_the_parity_cache_saves_a_read() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = trace_of_writes(folder.path(), (0..300).map(|i| i % 30 * (320 << 10)), 4096);
    let setting = Setting { two_phase: false, ..tiny() };
    let with = ran_once(path.clone(), setting.clone());
    let without = ran_once(path, Setting { parity_cache: 0, ..setting });
    assert_eq!((without.member.reads, without.parity_cache.hits), (600, 0));
    assert!(with.parity_cache.hits >= 100, "{:?}", with.parity_cache);
    assert_eq!(with.member.reads + with.parity_cache.hits, 600);
    assert_eq!(with.member.writes, without.member.writes);
}

#[test]
fn members_with_a_read_cost_have_a_ceiling_of_their_own() {
    let read = Setting { member_read_us: 50, rw: Work::RandRead, runtime: 0.1, ..tiny() };
    let ceiling = ran(&read).ceiling.expect("a read cost bounds the run");
    assert_eq!((ceiling.raw.read_percent, ceiling.raw.operation_bytes), (100, 4096));
    let most = 6.0 * 1e6 / 50.0; // six members, one read after the other
    assert!(ceiling.raw.iops <= 1.1 * most, "{ceiling:?}");
    ran(&Setting { verify: true, rw: Work::RandRw, ..read });
}

#[test]
fn as_many_requests_are_served_as_are_asked_for() {
    for (members, shards, rw) in [("null:6x1G", 1, Work::RandWrite), ("memory:6x4M", 2, Work::RandRead)] {
        let setting = Setting {
            members: vec![members.to_string()],
            requests: Some(1001),
            // If these counted, the run would last longer than any test.
            runtime: 1e5,
            ramp: 1e5,
            roofline: false,
            io_uring: shards == 2,
            shards,
            rw,
            ..tiny()
        };
        let figures = ran(&setting);
        assert_eq!(figures.requests.reads + figures.requests.writes, 1001 * shards as u64, "{members}");
        assert!(figures.roofline.is_none());
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
    assert_eq!(ran(&setting).verified.expect("asked for").also_without.len(), 1);
    assert!(matches!(run(&setting), Err(Error::Occupied { .. })));
    let costly = Setting { force: true, member_read_us: 10, ..setting.clone() };
    assert!(matches!(run(&costly), Err(Error::Setting(_))), "files have a cost of their own");
    let unverified = Setting { force: true, verify: false, rw: Work::RandWrite, ..setting };
    let ceiling = ran(&unverified).ceiling.expect("files have one");
    assert_eq!((ceiling.raw.operations_per_request, ceiling.raw.read_percent), (4.0, 50));
}

#[test]
fn settings_without_sense_are_refused() {
    let cases = [
        Setting { level: "7".to_string(), ..tiny() },
        Setting { level: "five".to_string(), ..tiny() },
        Setting { requests: Some(0), ..tiny() },
        Setting { members: vec!["null:6x4M".to_string()], verify: true, ..tiny() },
        Setting { members: vec!["null:6x4M".to_string()], member_read_us: 10, ..tiny() },
        Setting { chunk: 5000, ..tiny() },
        Setting { bs: 1000, ..tiny() },
        Setting { bs: 1 << 30, ..tiny() },
        Setting { fail: slots(&[0, 1]), ..tiny() },
        Setting { fail: slots(&[9]), ..tiny() },
        Setting { level: "6".to_string(), fail: slots(&[2, 2]), ..tiny() },
        Setting { iodepth: 1 << 40, ..tiny() },
        Setting { shards: 1 << 20, ..tiny() },
        Setting { member_read_us: 1 << 40, ..tiny() },
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
    use bench::report::{Extent, Plan, Set, write};
    let folder = tempfile::tempdir().expect("a folder");
    let names =
        ["straid-fig12", "straid-fig13", "straid-fig15", "straid-fig18", "straid-fig20", "straid-table5"];
    let traces = folder.path().join("traces");
    fs::create_dir(&traces).expect("a folder");
    trace_of_all_kinds(&traces);
    let plan = Plan {
        set: Set::OnMachine(Extent::Quick),
        measured: Vec::new(),
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
    // Every finding of the paper has one of these runs beside it.
    assert!(text.contains("<th>the paper</th><th>here</th>"));
    assert!(!text.contains("were not made"), "{text}");
    for axis in
        ["latency, us", "requests in flight on each shard", "capacity", "share of time", "bytes a byte"]
    {
        let plots = fs::read_dir(&plan.output).expect("plots").flatten();
        let has = |path: PathBuf| fs::read_to_string(path).is_ok_and(|plot| plot.contains(axis));
        assert!(
            plots
                .map(|entry| entry.path())
                .filter(|path| path.extension().is_some_and(|end| end == "svg"))
                .any(has),
            "{axis}"
        );
    }
    let json = fs::read(plan.output.join("figures.json")).expect("figures");
    let json: serde_json::Value = serde_json::from_slice(&json).expect("JSON");
    assert!(json.as_array().is_some_and(|runs| runs.len() > 25));
    let unknown = Plan { only: vec!["straid-fig99".to_string()], ..plan };
    assert!(matches!(write(&unknown, &|_| {}), Err(Error::Setting(_))));
}

#[test]
fn a_report_of_draid_has_the_papers_claims_beside_its_own_figures() {
    use bench::report::{Plan, Set, write};
    let folder = tempfile::tempdir().expect("a folder");
    let measured = folder.path().join("measured.json");
    let point = r#"{"experiment": "fig10", "panel": "RAID-5", "series": "peer", "x": "4K", "bytes_per_s": 18300000.0,
        "latency_us": 7000.0, "sent": 1.06, "received": 0.04, "rate_mbit": 200}"#;
    fs::write(&measured, format!("[{point}]")).expect("a file");
    let plan = Plan {
        set: Set::Draid,
        only: vec!["fig17a".to_string()],
        measured: vec![measured.clone()],
        traces: None,
        output: folder.path().join("report"),
        runtime: None,
        member_bytes: None,
    };
    let text = fs::read_to_string(write(&plan, &|_| {}).expect("a report")).expect("a page");
    for words in [
        "fig17a-1.svg",
        "fig17a-4.svg",
        "near the optimum at every width",
        "(as in the paper)",
        "<td>18.3</td>",
    ] {
        assert!(text.contains(words), "{words}: {text}");
    }
    let unknown = Plan { only: vec!["straid-fig10".to_string()], ..plan.clone() };
    assert!(matches!(write(&unknown, &|_| {}), Err(Error::Setting(words)) if words.contains("fig17b")));
    fs::write(&measured, "{}").expect("a file");
    assert!(matches!(write(&plan, &|_| {}), Err(Error::Setting(words)) if words.contains("bench-draid")));
}

#[test]
fn a_table_has_its_rows() {
    use bench::table::{Plan, Table, measure};
    let plan = Plan {
        method: bench::table::Method { runs: 1, runtime_s: 0.01, member_bytes: 4 << 20 },
        shards: vec![1],
        only: Some("RAID-5 randwrite 4K".to_string()),
        all: false,
        peers: vec![
            "fixed=echo 1000".parse().expect("a peer"),
            "large only=test $TWILL_BS -gt 4096 || exit 77; echo 1".parse().expect("a peer"),
        ],
    };
    let table = measure(&plan, &|_| {}).expect("a table");
    assert_eq!(table.rows.len(), 3, "also with and without a parity cache");
    assert!(Table::words(&table).contains("| RAID-5 randwrite 4K | 1 |"));
    let [peer] = &table.rows[0].peers[..] else { panic!("one of them does such work: {:?}", table.rows[0]) };
    let ratio = table.rows[0].kiops.median / peer.kiops.median;
    assert!(peer.kiops.median == 1.0 && (peer.ratio.median / ratio - 1.0).abs() < 1e-9, "{peer:?}");
    let words = Table::words(&table);
    assert!(words.contains("fixed is `echo 1000`") && words.contains("| fixed: kIOPS |"), "{words}");
    let broken = Plan { peers: vec!["broken=exit 3".parse().expect("a peer")], ..plan.clone() };
    assert!(matches!(measure(&broken, &|_| {}), Err(Error::Peer { name, .. }) if name == "broken"));
    assert!(table.rows[1].ratio.is_none() && table.rows[0].ratio.is_some());
    assert!(table.goals.iter().any(|goal| goal.name.contains("parity cache")));
    let unknown = Plan { only: Some("RAID-7".to_string()), ..plan };
    assert!(matches!(measure(&unknown, &|_| {}), Err(Error::Setting(_))));
}

/// StRAID 4.3: what arrives while a stripe waits joins it. The paper's engine read 0.137 of what was written.
#[test]
fn a_sequential_stream_is_written_as_whole_stripes() {
    for (level, bs_kib) in [("5", 64), ("6", 64), ("5", 128)] {
        let setting = Setting {
            level: level.to_string(),
            rw: Work::Write,
            bs: bs_kib << 10,
            iodepth: 32,
            members: vec!["memory:6x16M".to_string()],
            runtime: 0.2,
            ..tiny()
        };
        let read = ran(&setting).amplification.read;
        assert!(read <= 0.05, "RAID-{level}, {bs_kib} KiB: {read} bytes read for each written");
    }
}
