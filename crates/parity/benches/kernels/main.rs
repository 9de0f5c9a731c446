//! Throughput of every kernel, and of ISA-L where Debian's `libisal2` is installed: `cargo bench -p twill-parity`.
//!
//! Words behind `--` pick the lines that hold them all: `cargo bench -p twill-parity -- delta 64`.
//!
//! A figure is GB/s of chunks read, the median of five runs; the contenders take turns within a run, so that
//! whatever else the machine does meets all of them. `+-` is half of the range of the five, in per cent of the
//! median. A run is the median of its batches, which keeps a preemption out of it.
//!
//! `cargo test` runs all of it at a tiny size; that run, like each timed one, first checks that all contenders give
//! the same bytes.

mod isal;

use std::time::{Duration, Instant};

use parity::{Change, Kernel};

use isal::Isal;

/// Data chunks of the stripes.
const WIDTH: usize = 8;
/// The coefficient of the changed chunk, and the first lost one.
const INDEX: usize = 5;
const RUNS: usize = 5;
const PAGE: usize = 4096;

/// What is measured: `sources` chunks in, `outputs` chunks out.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Operation {
    EncodeP,
    EncodePq,
    EncodeQ,
    UpdateP,
    UpdatePq,
    DeltaPq,
    RecoverFromP,
    RecoverFromQ,
    RecoverTwo,
}

use Operation::{
    DeltaPq, EncodeP, EncodePq, EncodeQ, RecoverFromP, RecoverFromQ, RecoverTwo, UpdateP, UpdatePq,
};

/// Name, sources, outputs, whether the outputs are read too.
const OPERATIONS: [(Operation, &str, usize, usize, bool); 9] = [
    (EncodeP, "encode_p", WIDTH, 1, false),
    (EncodePq, "encode_pq", WIDTH, 2, false),
    (EncodeQ, "encode_q", WIDTH, 1, false),
    (UpdateP, "update_p", 2, 1, true),
    (UpdatePq, "update_pq", 2, 2, true),
    (DeltaPq, "delta_pq of 3 chunks", 3 * 2 + 2, 2, false),
    (RecoverFromP, "recover_data_from_p", WIDTH, 1, false),
    (RecoverFromQ, "recover_data_from_q", WIDTH, 1, false),
    (RecoverTwo, "recover_two_data", WIDTH, 2, false),
];

/// A memory situation: the length of a chunk, and how much memory the stripes walk through.
struct Heat {
    name: &'static str,
    chunk: usize,
    /// 0 for a single stripe.
    arena: usize,
}

const HEATS: [Heat; 4] = [
    Heat { name: "hot, 4 KiB (L1)", chunk: 4 << 10, arena: 0 },
    Heat { name: "hot, 64 KiB (L2)", chunk: 64 << 10, arena: 0 },
    Heat { name: "cold, 64 KiB of 1 GiB", chunk: 64 << 10, arena: 1 << 30 },
    Heat { name: "cold, one call of 1 GiB", chunk: 0, arena: 1 << 30 },
];

const TINY_HEATS: [Heat; 2] = [
    Heat { name: "hot, 4 KiB", chunk: 4 << 10, arena: 0 },
    Heat { name: "cold, 4 KiB of 1 MiB", chunk: 4 << 10, arena: 1 << 20 },
];

fn main() {
    // Cargo says `--bench` only to `cargo bench`.
    let full = std::env::args().any(|argument| argument == "--bench");
    let words: Vec<_> = std::env::args().skip(1).filter(|argument| !argument.starts_with('-')).collect();
    let (heats, runs, batch) = match full {
        true => (HEATS.as_slice(), RUNS, Duration::from_millis(1)),
        false => (TINY_HEATS.as_slice(), 1, Duration::ZERO),
    };
    let isal = Isal::open();
    if let Err(reason) = &isal {
        println!("skipped: comparison with ISA-L: {reason}");
    }
    println!(
        "GB/s of chunks read, {WIDTH} data chunks, median of {runs}; best kernel: {}",
        parity::kernel_name()
    );
    for heat in heats {
        println!("\n{}", heat.name);
        let wanted = |line: &str| words.iter().all(|word| line.contains(word));
        for operation in OPERATIONS {
            if wanted(&format!("{} {}", heat.name, operation.1)) {
                measure(&operation, heat, isal.as_ref().ok(), runs, batch);
            }
        }
    }
}

/// One line of the table.
fn measure(
    &(operation, name, sources, outputs, in_place): &(Operation, &str, usize, usize, bool),
    heat: &Heat,
    isal: Option<&Isal>,
    runs: usize,
    batch: Duration,
) {
    let chunks = sources + outputs;
    let chunk = if heat.chunk == 0 { heat.arena / chunks / PAGE * PAGE } else { heat.chunk };
    let stripes = (heat.arena / (chunk * chunks)).max(1);
    let mut arena = Arena::new(stripes * chunks * chunk);
    let mut stripes = arena.stripes(chunk, sources, outputs);
    let mut contenders: Vec<_> = Kernel::available().map(Contender::Kernel).collect();
    contenders.extend(isal.map(|isal| Contender::Isal(isal, isal.prepare(operation, chunk))));
    check_agreement(operation, &mut contenders, &mut stripes[0]);
    let read = chunk * (sources + if in_place { outputs } else { 0 });
    let mut figures = vec![Vec::new(); contenders.len()];
    for _ in 0..runs {
        for (contender, figures) in contenders.iter_mut().zip(&mut figures) {
            let seconds = run(operation, contender, &mut stripes, batch, chunk);
            figures.push(read as f64 / seconds / 1e9);
        }
    }
    print_line(name, &contenders, &mut figures);
}

/// Seconds a stripe: the median of the run's batches, each of which takes about `batch`.
fn run(
    operation: Operation,
    contender: &mut Contender,
    stripes: &mut [Stripe],
    batch: Duration,
    chunk: usize,
) -> f64 {
    const BATCHES: usize = 31;
    let mut figures = Vec::new();
    if stripes.len() == 1 && chunk < 1 << 20 {
        let stripe = &mut stripes[0];
        let mut calls = 1;
        // Warm up while finding how many calls make a batch.
        while time(|| (0..calls).for_each(|_| contender.call(operation, stripe))) < batch {
            calls *= 2;
        }
        for _ in 0..BATCHES {
            let elapsed = time(|| (0..calls).for_each(|_| contender.call(operation, stripe)));
            figures.push(elapsed.as_secs_f64() / f64::from(calls));
        }
    } else {
        for stripes in stripes.chunks_mut(stripes.len().div_ceil(BATCHES)) {
            let count = stripes.len();
            let elapsed = time(|| stripes.iter_mut().for_each(|stripe| contender.call(operation, stripe)));
            figures.push(elapsed.as_secs_f64() / count as f64);
        }
    }
    median(&mut figures)
}

fn time(work: impl FnOnce()) -> Duration {
    let start = Instant::now();
    work();
    start.elapsed()
}

fn median(figures: &mut [f64]) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures[figures.len() / 2]
}

fn print_line(name: &str, contenders: &[Contender], figures: &mut [Vec<f64>]) {
    print!("  {name:<21}");
    let mut best_and_isal = [0.0; 2];
    for (contender, figures) in contenders.iter().zip(figures) {
        let middle = median(figures);
        let spread = (figures[figures.len() - 1] - figures[0]) / 2.0 / middle * 100.0;
        best_and_isal[usize::from(matches!(contender, Contender::Isal(..)))] = middle;
        print!("  {} {middle:6.1} +-{spread:2.0}%", contender.name());
    }
    match best_and_isal {
        [best, isal] if isal > 0.0 => println!("  ratio {:.2}", best / isal),
        _ => println!(),
    }
}

enum Contender<'a> {
    Kernel(Kernel),
    Isal(&'a Isal, isal::Prepared),
}

impl Contender<'_> {
    fn name(&self) -> &'static str {
        match self {
            Self::Kernel(kernel) => kernel.name(),
            Self::Isal(..) => "isa-l",
        }
    }

    fn call(&mut self, operation: Operation, stripe: &mut Stripe) {
        match self {
            Self::Kernel(kernel) => call_kernel(*kernel, operation, stripe),
            Self::Isal(isal, prepared) => isal.call(prepared, operation, stripe),
        }
    }
}

fn call_kernel(kernel: Kernel, operation: Operation, stripe: &mut Stripe) {
    let s = &stripe.sources;
    match (operation, stripe.outputs.as_mut_slice()) {
        (EncodeP, [p]) => kernel.encode_p(s, p),
        (EncodePq, [p, q]) => kernel.encode_pq(s, p, q),
        (EncodeQ, [q]) => kernel.encode_q(s, q),
        (UpdateP, [p]) => kernel.update_p(s[0], s[1], p),
        (UpdatePq, [p, q]) => kernel.update_pq(INDEX, s[0], s[1], p, q),
        (DeltaPq, [p, q]) => {
            let changes = [0, 1, 2].map(|i| Change { index: INDEX - i, old: s[2 * i], new: s[2 * i + 1] });
            kernel.delta_pq(&changes, s[6], s[7], p, q);
        }
        (RecoverFromP, [out]) => kernel.recover_data_from_p(&s[..WIDTH - 1], s[WIDTH - 1], out),
        (RecoverFromQ, [out]) => {
            let known: [_; WIDTH - 1] = std::array::from_fn(|i| (known_index(i, &[INDEX]), s[i]));
            kernel.recover_data_from_q(&known, s[WIDTH - 1], INDEX, out);
        }
        (RecoverTwo, [x, y]) => {
            let lost = [INDEX, INDEX + 1];
            let known: [_; WIDTH - 2] = std::array::from_fn(|i| (known_index(i, &lost), s[i]));
            kernel.recover_two_data(&known, s[WIDTH - 2], s[WIDTH - 1], (lost[0], lost[1]), (x, y));
        }
        _ => unreachable!("the table of operations counts the outputs"),
    }
}

/// The index of the `i`-th chunk that is not lost.
fn known_index(i: usize, lost: &[usize]) -> usize {
    (0..WIDTH).filter(|index| !lost.contains(index)).nth(i).expect("enough chunks")
}

fn check_agreement(operation: Operation, contenders: &mut [Contender], stripe: &mut Stripe) {
    let before: Vec<Vec<u8>> = stripe.outputs.iter().map(|output| output.to_vec()).collect();
    let mut expected: Option<Vec<Vec<u8>>> = None;
    for contender in contenders {
        for (output, before) in stripe.outputs.iter_mut().zip(&before) {
            output.copy_from_slice(before);
        }
        contender.call(operation, stripe);
        match &expected {
            None => expected = Some(stripe.outputs.iter().map(|output| output.to_vec()).collect()),
            Some(expected) => assert!(stripe.outputs == *expected, "{} differs", contender.name()),
        }
    }
}

/// Page-aligned memory, written, so that every page is there.
struct Arena {
    bytes: Vec<u8>,
    start: usize,
    len: usize,
}

impl Arena {
    fn new(len: usize) -> Self {
        let mut bytes = vec![0u8; len + PAGE];
        let mut state = 1u64;
        for bytes in bytes.as_chunks_mut::<8>().0 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            *bytes = (state ^ state >> 29).to_le_bytes();
        }
        let start = bytes.as_ptr().align_offset(PAGE);
        Self { bytes, start, len }
    }

    fn stripes(&mut self, chunk: usize, sources: usize, outputs: usize) -> Vec<Stripe<'_>> {
        let bytes = &mut self.bytes[self.start..][..self.len];
        bytes
            .chunks_exact_mut(chunk * (sources + outputs))
            .map(|bytes| Stripe::new(bytes, chunk, sources))
            .collect()
    }
}

/// The chunks of one call.
struct Stripe<'a> {
    sources: Vec<&'a [u8]>,
    outputs: Vec<&'a mut [u8]>,
}

impl<'a> Stripe<'a> {
    fn new(bytes: &'a mut [u8], chunk: usize, sources: usize) -> Self {
        let (sources, outputs) = bytes.split_at_mut(sources * chunk);
        Self {
            sources: sources.chunks_exact(chunk).collect(),
            outputs: outputs.chunks_exact_mut(chunk).collect(),
        }
    }
}
