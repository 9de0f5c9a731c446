//! The simulator against what is known without it: a timeline by hand, queueing theory, conservation, determinism.

use std::path::Path;

use rand::{Rng, SeedableRng, rngs::SmallRng};
use ssdsim::{
    device::{Device, Timing},
    generate::{generate, profile},
    outcome::Outcome,
    policy::{Chooser, Policy},
    simulator::{Acknowledge, Behaviour, ParityStart, Simulator},
    trace::{Request, Trace},
    warmup::WarmUp,
};

/// Table II's times with all pages at LDPC level 0 and a bus that takes `bus_ns`.
fn plain_timing(bus_ns: u64) -> Timing {
    Timing { ldpc_decay: 0.0, bus_ns, ..Device::table_ii(5).timing }
}

fn trace_of(requests: Vec<Request>) -> Trace {
    Trace { name: "t".into(), requests }
}

fn request(time_us: u64, write: bool, page: u64, pages: u32) -> Request {
    Request { time_ns: time_us * 1000, offset: page * 8192, length: pages * 8192, write }
}

/// Fills `device` without collecting, then runs `trace`.
fn run(device: &Device, behaviour: Behaviour, policy: Policy, trace: &Trace) -> Outcome {
    let mut simulator = Simulator::new(device, behaviour, 1).expect("a possible device");
    simulator.warm_up(WarmUp { random: 0.0, trace: 0.0 }, trace, 1);
    simulator.run(trace, &Chooser::new(policy))
}

fn small() -> Device {
    Device { over_provision: 0.5, timing: plain_timing(20_000), ..Device::table_ii(5).with_blocks(16) }
}

/// One channel, two chips, no parity, bus 20 us, read 45 us, program 700 us. The fill put logical page p on plane
/// p % 8, so pages 0 to 3 are on chip 0 and 4 to 7 on chip 1; writes take chips in turn, starting at chip 0.
///
/// | time (us) | chip 0 | chip 1 | bus |
/// |---|---|---|---|
/// | 0 | R0 senses to 45 | R4 senses to 45 | |
/// | 45 | | | R0 to 65, then R4 to 85 |
/// | 50 | W waits for chip 0 | | |
/// | 60 | R1 waits too, and goes first | | |
/// | 65 | R1 senses to 110 | | |
/// | 110 | | | R1 to 130 |
/// | 130 | W goes over the bus, programs to 850 | | W to 150 |
/// | 200 | R2 waits for the program, senses 850 to 895 | | R2 895 to 915 |
#[test]
fn one_channel_follows_the_timeline_by_hand() {
    let device = Device { channels: 1, chips: 2, ..small() };
    let trace = trace_of(vec![
        request(0, false, 0, 1),
        request(0, false, 4, 1),
        request(50, true, 9, 1),
        request(60, false, 1, 1),
        request(200, false, 2, 1),
    ]);
    let outcome = run(&device, Behaviour::default(), Policy::Baseline, &trace);
    // Responses of reads: 65, 85, 130 - 60, 915 - 200; of the write: 850 - 50.
    assert_eq!(outcome.read.mean_ns, (65.0 + 85.0 + 70.0 + 715.0) * 1000.0 / 4.0);
    assert_eq!(outcome.read.max_ns, 715_000);
    assert_eq!(outcome.write.max_ns, 800_000);
    assert_eq!(outcome.end_ns, 915_000);
    // Waiting at each completion: at 65 the write and R1; at 85 the write, R1 being sensed; at 130 and 850 one each.
    assert_eq!(outcome.channels[0].blocked, 2 + 1 + 1 + 1);
}

/// A single-page update of an idle 5+1 stripe: data 20 + 700, two pre-reads 45 + 20 side by side, XOR 19, parity 720.
#[test]
fn a_small_write_takes_data_pre_reads_xor_and_parity() {
    let trace = trace_of(vec![request(0, true, 7, 1)]);
    let after = run(&small(), Behaviour::default(), Policy::Baseline, &trace);
    assert_eq!(after.write.max_ns, (720 + 65 + 19 + 720) * 1000);
    let with = Behaviour { parity_start: ParityStart::WithData, ..Behaviour::default() };
    // Now the parity path is 65 + 19 + 720, and the data write that waits for its own pre-read ends before it.
    assert_eq!(run(&small(), with, Policy::Baseline, &trace).write.max_ns, (65 + 19 + 720) * 1000);
    let early = Behaviour { acknowledge: Acknowledge::Buffer, ..Behaviour::default() };
    assert_eq!(run(&small(), early, Policy::Baseline, &trace).write.max_ns, 1000);
}

/// A full stripe needs no pre-read: XOR 19 us, then parity 720, beside the data.
#[test]
fn a_full_stripe_reads_nothing() {
    let trace = trace_of(vec![request(0, true, 5, 5)]);
    let outcome = run(&small(), Behaviour::default(), Policy::Adaptive, &trace);
    assert_eq!((outcome.choices.full, outcome.choices.pre_reads), (1, 0));
    assert_eq!(outcome.write.max_ns, (19 + 720) * 1000);
    assert_eq!(outcome.channels.iter().map(|channel| channel.programs).sum::<u64>(), 6);
}

/// Poisson reads on one channel that serves one page at a time, each in 45 us: M/D/1, mean response
/// s (1 + ρ / (2 (1 - ρ))).
#[test]
fn a_serial_channel_is_an_m_d_1_queue() {
    let device = Device { channels: 1, timing: plain_timing(0), ..small() }.with_serial_channels();
    for load in [0.3, 0.6, 0.8] {
        let mut rng = SmallRng::seed_from_u64(9);
        let mut time = 0.0;
        let mut draw = |_| {
            time += -(1.0 - rng.random::<f64>()).ln() * 45_000.0 / load;
            let page = rng.random_range(0..device.logical_pages() as u64);
            Request { time_ns: time as u64, offset: page * 8192, length: 8192, write: false }
        };
        let trace = trace_of((0..400_000).map(&mut draw).collect());
        let outcome = run(&device, Behaviour::default(), Policy::Baseline, &trace);
        let theory = 45_000.0 * (1.0 + load / (2.0 * (1.0 - load)));
        assert!(
            (outcome.read.mean_ns / theory - 1.0).abs() < 0.02,
            "{load}: {} {theory}",
            outcome.read.mean_ns
        );
    }
}

/// Programs of one chip's planes share a program time; of one plane they do not.
#[test]
fn planes_program_together() {
    let device = Device { channels: 1, chips: 1, ..small() };
    let burst = trace_of((0..5).map(|page| request(0, true, page, 1)).collect());
    // The first write starts at once and alone; the next four share the second program.
    let outcome = run(&device, Behaviour::default(), Policy::Baseline, &burst);
    assert_eq!(outcome.end_ns, (720 + 4 * 20 + 700) * 1000);
    let one_by_one = Device { multi_plane: 1, ..device };
    let outcome = run(&one_by_one, Behaviour::default(), Policy::Baseline, &burst);
    assert_eq!(outcome.end_ns, 5 * 720 * 1000);
}

/// Every request ends once, busy times add up (asserted at the end of every run), what was read and programmed is
/// what the requests and the choices ask for, in every mode.
#[test]
fn work_is_conserved() {
    let device = Device::table_ii(5).with_blocks(32);
    let trace = generate(profile("Ali_1").expect("it is listed"), 20_000, 3);
    for policy in Policy::ALL {
        for parity_start in [ParityStart::AfterData, ParityStart::WithData] {
            for acknowledge in [Acknowledge::Flash, Acknowledge::Buffer] {
                let behaviour = Behaviour { parity_start, acknowledge };
                let mut simulator = Simulator::new(&device, behaviour, 1).expect("a possible device");
                simulator.warm_up(WarmUp::default(), &trace, 1);
                let outcome = simulator.run(&trace, &Chooser::new(policy));
                assert_eq!(outcome.requests, 20_000);
                let pages = |write| -> u64 {
                    let of = trace.requests.iter().filter(|request| request.write == write);
                    let pages =
                        |r: &Request| (r.offset + u64::from(r.length) - 1) / 8192 - r.offset / 8192 + 1;
                    of.map(pages).sum()
                };
                let programs: u64 = outcome.channels.iter().map(|channel| channel.programs).sum();
                let reads: u64 = outcome.channels.iter().map(|channel| channel.reads).sum();
                assert_eq!(programs, pages(true) + outcome.choices.updates());
                assert_eq!(reads, pages(false) - outcome.buffer_reads + outcome.choices.pre_reads);
                assert!(outcome.channels.iter().all(|channel| channel.collections > 0), "steady state");
            }
        }
    }
}

#[test]
fn a_seed_makes_one_outcome() {
    let device = Device::table_ii(7).with_blocks(32);
    let trace = generate(profile("Ali_0").expect("it is listed"), 5_000, 3);
    let outcome = |seed| {
        let mut simulator = Simulator::new(&device, Behaviour::default(), seed).expect("a possible device");
        simulator.warm_up(WarmUp::default(), &trace, seed);
        simulator.run(&trace, &Chooser::new(Policy::Adaptive))
    };
    assert_eq!(outcome(1), outcome(1));
    assert_ne!(outcome(1), outcome(2));
}

/// A buffer smaller than the burst holds writes at the host; none is lost, and reads of pages under way come from it.
#[test]
fn a_full_buffer_holds_writes_back() {
    let device = Device { buffer_pages: 64, ..small() };
    let mut requests: Vec<Request> = (0..100).map(|i| request(0, true, i * 7, 4)).collect();
    requests.push(request(1, false, 0, 1));
    let outcome = run(&device, Behaviour::default(), Policy::Adaptive, &trace_of(requests));
    assert!(outcome.held_writes > 50, "{}", outcome.held_writes);
    assert_eq!((outcome.requests, outcome.buffer_reads), (101, 1));
}

/// Replays the first requests of a trace file; the figures must be sane.
fn replay(path: &Path) {
    let device = Device::table_ii(5).with_blocks(64);
    let mut trace = Trace::read(path).unwrap_or_else(|error| panic!("{error}"));
    trace.requests.truncate(5_000);
    let mut simulator = Simulator::new(&device, Behaviour::default(), 1).expect("a possible device");
    simulator.warm_up(WarmUp { random: 0.5, trace: 0.5 }, &trace, 1);
    let outcome = simulator.run(&trace, &Chooser::new(Policy::Adaptive));
    assert_eq!(outcome.requests, trace.requests.len() as u64, "{}", trace.name);
    assert!(outcome.all.mean_ns > 900.0 && outcome.all.p999_ns >= outcome.all.p99_ns, "{}", trace.name);
}

/// 300 requests of the Ali_1 stand-in, written by `ssdsim generate`.
#[test]
fn the_sample_trace_runs() {
    replay(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/sample.csv.zst"));
}

/// The genuine traces are not part of the project; where they are, each must parse, finish and give sane figures.
#[test]
fn genuine_traces_run() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/traces");
    let Ok(entries) = std::fs::read_dir(&folder) else {
        println!("skipped: no traces at ../shared/traces");
        return;
    };
    for path in entries.map(|entry| entry.expect("an entry").path()) {
        if path.to_string_lossy().ends_with(".csv.zst") {
            replay(&path);
        }
    }
}
