//! What one operation costs: `cargo bench -p twill-host --bench devices [-- SECONDS [FILE...]]`.
//!
//! Nanoseconds are those in which the thread ran, so that other work on the machine does not count; IOPS are by the clock.
//! Memory members at queue depth 32, beside the plain copies that they make; random 4 KiB reads and writes of files.
//! Run by `cargo test` it does a few operations of each, to see that it works.

use engine::buffer::{Buffer, Slice};
use engine::device::Device;
use host::device::{DeviceSpec, HostDevice, OpenOptions, SharedDevice};
use host::shard::{ShardContext, ShardOptions, Shards};
use layout::units::DeviceOffset;
use std::cell::Cell;
use std::rc::Rc;
use std::time::{Duration, Instant};

const DEPTH: usize = 32;

#[derive(Clone, Copy, PartialEq)]
enum Work {
    Read,
    Write,
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|word| !word.starts_with("--")).collect();
    let is_bench = std::env::args().any(|word| word == "--bench");
    let seconds = arguments.first().and_then(|word| word.parse().ok()).unwrap_or(2.0);
    let time = Duration::from_secs_f64(if is_bench { seconds } else { 0.01 });
    let size = if is_bench { "memory:1G" } else { "memory:8M" };
    let shards = Shards::start(1, &ShardOptions::default(), |_| {}).expect("a shard");
    let memory = DeviceSpec::parse(size).expect("a size")[0].open(&OpenOptions::default()).expect("mapped");
    if let SharedDevice::Memory(memory) = &memory
        && let Err(error) = memory.populate()
    {
        println!("memory is not populated first: {error}");
    }
    for bytes in [512, 4096, 65536] {
        for span in [64 * bytes as u64, memory.info().size_bytes] {
            println!("memory of {span} bytes, {bytes}-byte operations at depth {DEPTH}:");
            println!("  plain copies  {}", line(&copies(span as usize, bytes, time), bytes));
            for (name, work) in [("reads", Work::Read), ("writes", Work::Write)] {
                println!("  {name:<13} {}", line(&measure(&shards, &memory, work, bytes, span, time), bytes));
            }
        }
    }
    for path in arguments.iter().skip(1).filter(|_| is_bench) {
        let file = DeviceSpec::parse(path).expect("a path")[0].open(&OpenOptions::default()).expect("opened");
        println!("{path}: 4 KiB at depth {DEPTH}:");
        for (name, work) in [("reads", Work::Read), ("writes", Work::Write)] {
            println!(
                "  {name:<13} {}",
                line(&measure(&shards, &file, work, 4096, file.info().size_bytes, time), 4096)
            );
        }
    }
    shards.stop().expect("no panic");
}

/// What was done in what time.
struct Figures {
    operations: u64,
    cpu: Duration,
    wall: Duration,
}

fn line(figures: &Figures, bytes: usize) -> String {
    let each = figures.cpu.as_nanos() as f64 / figures.operations.max(1) as f64;
    let iops = figures.operations as f64 / figures.wall.as_secs_f64();
    format!("{each:9.1} ns, {:6.2} GB/s of CPU time, {iops:9.0} IOPS", bytes as f64 / each)
}

/// Random operations on a shard: how many, in what time.
fn measure(
    shards: &Shards,
    device: &SharedDevice,
    work: Work,
    bytes: usize,
    span: u64,
    time: Duration,
) -> Figures {
    let device = device.clone();
    let job = async move |context: ShardContext| {
        let (device, start, cpu) = (device.attach(&context.ring), Instant::now(), cpu_time());
        let (count, over) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(false)));
        let tasks: Vec<_> = (0..DEPTH)
            .map(|task| {
                let job = operate(context.clone(), device.clone(), work, bytes, span, task, &count, &over);
                context.executor.spawn_with_result(job)
            })
            .collect();
        context.ring.sleep(time).await;
        over.set(true);
        engine::executor::join_all(tasks).await;
        Figures { operations: count.get(), cpu: cpu_time() - cpu, wall: start.elapsed() }
    };
    shards.run_on(0, job).expect("no panic")
}

#[allow(clippy::too_many_arguments)]
fn operate(
    context: ShardContext,
    device: HostDevice,
    work: Work,
    bytes: usize,
    span: u64,
    task: usize,
    count: &Rc<Cell<u64>>,
    over: &Rc<Cell<bool>>,
) -> impl Future<Output = ()> + 'static {
    let (count, over, places) = (Rc::clone(count), Rc::clone(over), span / bytes as u64);
    async move {
        let mut random = Random(task as u64 * 77 + 1);
        let mut buffer = context.pool.take(bytes);
        let data: Slice = context.pool.take(bytes).freeze();
        while !over.get() {
            let offset = random.below(places) * bytes as u64;
            match work {
                Work::Read => {
                    let (back, result) = device.read(DeviceOffset::new(offset), buffer).await;
                    result.expect("read");
                    buffer = back;
                }
                Work::Write => device
                    .write(DeviceOffset::new(offset), data.clone().into(), false)
                    .await
                    .expect("written"),
            }
            count.set(count.get() + 1);
        }
    }
}

/// The copies alone: the same bytes between the same amounts of memory.
fn copies(span: usize, bytes: usize, time: Duration) -> Figures {
    let memory = vec![1u8; span];
    let mut targets: Vec<Buffer> = (0..DEPTH).map(|_| Buffer::new(bytes)).collect();
    let (mut random, mut count, start, cpu) = (Random(5), 0, Instant::now(), cpu_time());
    while start.elapsed() < time {
        for target in &mut targets {
            let place = random.below((span / bytes) as u64) as usize * bytes;
            target.bytes_mut().copy_from_slice(&memory[place..place + bytes]);
            count += 1;
        }
    }
    Figures { operations: count, cpu: cpu_time() - cpu, wall: start.elapsed() }
}

/// Time that this thread ran: other work on the machine does not count.
fn cpu_time() -> Duration {
    let status = std::fs::read_to_string("/proc/thread-self/schedstat").expect("a kernel with statistics");
    Duration::from_nanos(status.split(' ').next().and_then(|ns| ns.parse().ok()).expect("nanoseconds first"))
}

struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        ((u128::from(self.0) * u128::from(bound)) >> 64) as u64
    }
}
