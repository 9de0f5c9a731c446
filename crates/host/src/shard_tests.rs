//! Shards: messages, wake storms, stops and panics.

use super::{ShardContext, ShardOptions, Shards};
use crate::device::{DeviceSpec, OpenOptions};
use crate::ring::{RingBackend, RingOptions};
use crate::testing::{backends, pattern};
use engine::buffer::{Buffer, Slice};
use engine::device::Device;
use layout::units::DeviceOffset;
use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

fn options(backend: RingBackend) -> ShardOptions {
    ShardOptions { ring: RingOptions { backend, ..RingOptions::default() }, ..ShardOptions::default() }
}

#[test]
fn work_runs_where_it_was_sent() {
    for backend in backends() {
        let shards = Shards::start(3, &options(backend), |_| {}).expect("started");
        for shard in 0..3 {
            let (index, name) = shards
                .run_on(shard, async |context| {
                    context.ring.sleep(Duration::from_millis(1)).await;
                    (context.index, std::thread::current().name().map(str::to_owned))
                })
                .expect("ran");
            assert_eq!((index, name), (shard, Some(format!("twill-{shard}"))));
        }
        shards.stop().expect("no panic");
    }
}

#[test]
fn a_storm_of_wakes_across_shards_loses_none() {
    for (backend, busy_ms) in backends().into_iter().zip([0, 1]) {
        let options = ShardOptions { busy_poll: Duration::from_millis(busy_ms), ..options(backend) };
        let shards = Shards::start(4, &options, |_| {}).expect("started");
        let total = Arc::new(AtomicU64::new(0));
        let storms: Vec<_> = (0..4)
            .flat_map(|from| (0..16).map(move |task| (from, task)))
            .map(|(from, task)| {
                let (handle, total) = (shards.handle(), Arc::clone(&total));
                std::thread::spawn(move || {
                    handle.run_on(from, async move |context: ShardContext| {
                        for round in 0..250usize {
                            let to = (from + task + round) % context.shards.count();
                            let answer =
                                context.shards.call(to, async move |there| there.index + round).await;
                            assert_eq!(answer, Ok(to + round));
                            total.fetch_add(1, Ordering::Relaxed);
                        }
                    })
                })
            })
            .collect();
        for storm in storms {
            storm.join().expect("no panic").expect("ran");
        }
        assert_eq!(total.load(Ordering::Relaxed), 64 * 250);
        shards.stop().expect("no panic");
    }
}

#[test]
fn shards_share_a_memory_device() {
    let shards = Shards::start(2, &options(RingBackend::Auto), |_| {}).expect("started");
    let shared =
        DeviceSpec::parse("memory:16M").expect("a device")[0].open(&OpenOptions::default()).expect("mapped");
    let (handle, threads) = (shards.handle(), 2usize);
    let runs: Vec<_> = (0..threads)
        .map(|shard| {
            let (handle, shared) = (handle.clone(), shared.clone());
            std::thread::spawn(move || {
                handle.run_on(shard, async move |context: ShardContext| {
                    let device = shared.attach(&context.ring);
                    let left = Rc::new(Cell::new(64));
                    for task in 0..64u64 {
                        let (device, left) = (device.clone(), Rc::clone(&left));
                        let place = (task * 2 + shard as u64) * 4096;
                        context.executor.spawn(async move {
                            for round in 0..100 {
                                let contents = pattern(place ^ round, 4096);
                                device
                                    .write(
                                        DeviceOffset::new(place),
                                        Slice::from_bytes(&contents).into(),
                                        false,
                                    )
                                    .await
                                    .expect("written");
                                let (buffer, result) =
                                    device.read(DeviceOffset::new(place), Buffer::new(4096)).await;
                                result.expect("read");
                                assert!(buffer.bytes() == &contents[..]);
                            }
                            left.set(left.get() - 1);
                        });
                    }
                    while left.get() > 0 {
                        context.ring.sleep(Duration::from_millis(1)).await;
                    }
                })
            })
        })
        .collect();
    for run in runs {
        run.join().expect("no panic").expect("ran");
    }
    let crate::device::SharedDevice::Memory(memory) = shared else { panic!("memory") };
    assert_eq!((memory.counters().writes, memory.counters().read_bytes), (12_800, 12_800 * 4096));
    shards.stop().expect("no panic");
}

#[test]
fn a_stop_lets_tasks_end_and_then_drops_them() {
    for backend in backends() {
        let ended = Arc::new(AtomicU64::new(0));
        let count = Arc::clone(&ended);
        let options = ShardOptions { stop_grace: Duration::from_millis(60), ..options(backend) };
        let setup = move |context: ShardContext| {
            let (served, stuck, count) = (context.clone(), context.clone(), Arc::clone(&count));
            context.executor.spawn(async move {
                served.stopping().await;
                served.ring.sleep(Duration::from_millis(10)).await;
                count.fetch_add(1, Ordering::Relaxed);
            });
            let (left, right) = std::os::unix::net::UnixStream::pair().expect("a pair");
            context.executor.spawn(async move {
                let right = Rc::new(right.into());
                stuck.ring.recv(&right, Buffer::new(64), 0..64).await.1.expect("never");
                drop(left);
            });
        };
        let shards = Shards::start(2, &options, setup).expect("started");
        let handle = shards.handle();
        let start = Instant::now();
        shards.stop().expect("no panic");
        assert!(start.elapsed() >= Duration::from_millis(60));
        assert_eq!(ended.load(Ordering::Relaxed), 2);
        assert!(handle.run_on(0, async |_| ()).is_err(), "the shards have stopped");
    }
}

#[test]
fn a_panic_ends_one_shard_and_is_reported() {
    let shards = Shards::start(2, &options(RingBackend::Auto), |_| {}).expect("started");
    let ended: Result<(), _> = shards.run_on(1, async |context: ShardContext| {
        context.ring.sleep(Duration::from_millis(1)).await;
        panic!("as planned by the test");
    });
    assert_eq!(ended.expect_err("gone").0, 1);
    assert_eq!(shards.run_on(0, async |_| 7), Ok(7));
    let call = shards.run_on(0, async |context: ShardContext| context.shards.call(1, async |_| ()).await);
    assert_eq!(call, Ok(Err(super::ShardGone(1))));
    let failure = shards.failure().expect("reported");
    assert_eq!((failure.shard, failure.message.as_str()), (1, "as planned by the test"));
    assert_eq!(shards.stop(), Err(failure));
}

/// A server's queues and connections would hang beside a process that looks well.
#[test]
fn a_panic_ends_the_process_if_it_is_to() {
    const ASKED: &str = "TWILL_TEST_SHARD_PANIC";
    if std::env::var_os(ASKED).is_some() {
        let options = ShardOptions { abort_on_panic: true, pin: false, ..ShardOptions::default() };
        let shards = Shards::start(2, &options, |_| {}).expect("started");
        let _gone = shards.run_on(1, async |_| panic!("as the test asks"));
        std::thread::sleep(Duration::from_secs(30)); // its end comes sooner
        std::process::exit(0);
    }
    let itself = std::env::current_exe().expect("a program");
    let mut process = std::process::Command::new(itself);
    process.args(["--exact", "shard::tests::a_panic_ends_the_process_if_it_is_to", "--nocapture"]);
    let output = process.env(ASKED, "1").output().expect("started");
    let signal = std::os::unix::process::ExitStatusExt::signal(&output.status);
    assert_eq!(signal, Some(libc::SIGABRT), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("as the test asks"), "{output:?}");
}

#[test]
fn an_array_sees_a_part_of_the_shards_numbered_from_its_own_first() {
    let shards = Shards::start(3, &options(RingBackend::Auto), |_| {}).expect("started");
    for (first, count, wanted) in [(0, 3, &[0, 1, 2][..]), (2, 3, &[2, 0, 1]), (1, 1, &[1]), (5, 2, &[2, 0])]
    {
        let part = shards.part(first, count);
        assert_eq!(part.count(), count);
        for (number, index) in wanted.iter().enumerate() {
            let own = part.clone();
            let there = part.run_on(number, async move |context| (context.index, own.number_of(&context)));
            assert_eq!(there, Ok((*index, number)), "{count} from {first}");
        }
    }
    shards.stop().expect("no panic");
}

#[test]
fn what_has_ended_is_not_called_when_its_shard_stops() {
    let shards = Shards::start(1, &options(RingBackend::Auto), |_| {}).expect("started");
    let (there, gone) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    fn count(calls: &AtomicU64) {
        calls.fetch_add(1, Ordering::SeqCst);
    }
    for calls in [&there, &gone] {
        let calls = Arc::downgrade(calls);
        shards.run_on(0, async move |context| context.at_stop(calls, count)).expect("ran");
    }
    drop(gone);
    shards.stop().expect("no panic");
    assert_eq!(there.load(Ordering::SeqCst), 1);
}
