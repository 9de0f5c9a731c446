//! The load: threads that write and read at random places, no two at one block at a time.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use parking_lot::Mutex;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::content::{AlignedBuffer, BLOCK_BYTES, Content};
use super::device::{Place, WRONG_DATA, offset, open};
use super::state::{Least, State};

/// What the load is like.
#[derive(clap::Args)]
pub struct Load {
    /// Threads, each with one request in flight
    #[arg(long, default_value_t = 8)]
    jobs: u32,
    /// How long
    #[arg(long, default_value_t = 60.0)]
    seconds: f64,
    /// Largest request in blocks of 4 KiB; sizes are from 1 on, small ones more often
    #[arg(long, default_value_t = 64)]
    largest: u32,
    /// One request in this many is a flush
    #[arg(long, default_value_t = 64)]
    flush_every: u32,
    /// Reads among 100 requests; each is compared with what was acknowledged
    #[arg(long, default_value_t = 20)]
    reads: u32,
    /// Stay in the first blocks, this many
    #[arg(long)]
    blocks: Option<u32>,
}

struct Writer<'a> {
    device: File,
    state: State,
    content: Content,
    load: &'a Load,
    blocks: u32,
    /// Requests in flight: first block and count.
    busy: Mutex<Vec<(u32, u32)>>,
    failed: AtomicBool,
    wrong: AtomicU64,
    done: AtomicU64,
}

pub fn write(place: &Place, load: &Load) -> Result<ExitCode> {
    let (device, blocks) = open(&place.device, true)?;
    let state = State::open(&place.state, blocks)?;
    let writer = Writer {
        device,
        state,
        content: Content { seed: place.seed },
        load,
        blocks: load.blocks.unwrap_or(blocks).min(blocks),
        busy: Mutex::default(),
        failed: AtomicBool::new(false),
        wrong: AtomicU64::new(0),
        done: AtomicU64::new(0),
    };
    let end = Instant::now() + Duration::from_secs_f64(load.seconds);
    std::thread::scope(|scope| {
        for job in 0..load.jobs {
            let writer = &writer;
            scope.spawn(move || {
                if let Err(error) = writer.job(u64::from(job), end) {
                    println!("{error:#}");
                    writer.failed.store(true, Ordering::Relaxed);
                }
            });
        }
    });
    println!("{} requests", writer.done.load(Ordering::Relaxed));
    Ok(match (writer.wrong.load(Ordering::Relaxed), writer.failed.load(Ordering::Relaxed)) {
        (0, false) => ExitCode::SUCCESS,
        (0, true) => ExitCode::FAILURE,
        _ => ExitCode::from(WRONG_DATA),
    })
}

impl Writer<'_> {
    /// One thread, until the time is over or a request of any thread failed.
    fn job(&self, job: u64, end: Instant) -> Result<()> {
        let mut random = StdRng::seed_from_u64(self.content.seed << 8 | job);
        let mut buffer = AlignedBuffer::new(self.load.largest as usize * BLOCK_BYTES);
        while Instant::now() < end && !self.failed.load(Ordering::Relaxed) {
            if random.random_ratio(1, self.load.flush_every) {
                let acknowledged = self.state.acknowledged();
                self.device.sync_data().context("flush")?;
                self.state.flushed(&acknowledged)?;
            }
            let (first, count) = self.claim(&mut random);
            let bytes = &mut buffer.bytes()[..count as usize * BLOCK_BYTES];
            let result = if random.random_ratio(self.load.reads, 100) {
                self.read(first, bytes)
            } else {
                self.write(first, count, bytes)
            };
            self.busy.lock().retain(|&busy| busy != (first, count));
            result?;
            self.done.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Blocks that no other thread uses now.
    fn claim(&self, random: &mut StdRng) -> (u32, u32) {
        loop {
            let most = random.random_range(1..=self.load.largest.min(self.blocks));
            let count = random.random_range(1..=most);
            let first = random.random_range(0..=self.blocks - count);
            let mut busy = self.busy.lock();
            if busy.iter().all(|&(other, length)| first + count <= other || other + length <= first) {
                busy.push((first, count));
                return (first, count);
            }
        }
    }

    fn write(&self, first: u32, count: u32, bytes: &mut [u8]) -> Result<()> {
        let generations = self.state.issue(first, count)?;
        self.content.fill(bytes, first, &generations);
        self.device.write_all_at(bytes, offset(first)).with_context(|| format!("writing block {first}"))?;
        self.state.acknowledge(first, &generations)
    }

    fn read(&self, first: u32, bytes: &mut [u8]) -> Result<()> {
        self.device.read_exact_at(bytes, offset(first)).with_context(|| format!("reading block {first}"))?;
        for (block, bytes) in (first..).zip(bytes.chunks_exact(BLOCK_BYTES)) {
            let (from, to) = self.state.allowed(block, Least::Acknowledged);
            let holds = self.content.generation(bytes, block);
            if !holds.as_ref().is_ok_and(|generation| (from..=to).contains(generation)) {
                println!("block {block} reads {holds:?}, should be generation {from} to {to}");
                self.wrong.fetch_add(1, Ordering::Relaxed);
            }
        }
        Ok(())
    }
}
