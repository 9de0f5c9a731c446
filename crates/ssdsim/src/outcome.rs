//! What a run measured, while it runs ([`Measures`]) and when it is over ([`Outcome`]).

use serde::Serialize;

use crate::{
    cost::Routine,
    device::Device,
    metrics::{Choices, Histogram, Latency, chi_square_uniform, coefficient_of_variation},
    policy::{Chooser, Policy},
    queue::{Channel, Op, Usage},
    raid::PreReads,
    trace::Trace,
};

/// Counters and histograms of a run under way.
#[derive(Clone, Debug)]
pub(crate) struct Measures {
    pub(crate) arrived: u64,
    pub(crate) held: u64,
    pub(crate) buffer_reads: u64,
    reads: Histogram,
    writes: Histogram,
    channels: Vec<Histogram>,
    blocked: Vec<u64>,
    choices: Choices,
    end_ns: u64,
}

impl Measures {
    pub(crate) fn new(channels: usize) -> Measures {
        Measures {
            arrived: 0,
            held: 0,
            buffer_reads: 0,
            reads: Histogram::default(),
            writes: Histogram::default(),
            channels: vec![Histogram::default(); channels],
            blocked: vec![0; channels],
            choices: Choices::default(),
            end_ns: 0,
        }
    }

    #[inline]
    pub(crate) fn finished(&mut self, channel: usize, op: &Op, now: u64) {
        self.channels[channel].record(now - op.queued_ns);
        self.end_ns = now;
    }

    /// A host request is done: its response time, and step 1 of the paper's cv, the requests now enqueued on each
    /// channel.
    #[inline]
    pub(crate) fn completed(&mut self, response_ns: u64, write: bool, channels: &[Channel]) {
        if write {
            self.writes.record(response_ns);
        } else {
            self.reads.record(response_ns);
        }
        for (sum, channel) in self.blocked.iter_mut().zip(channels) {
            *sum += u64::from(channel.waiting());
        }
    }

    pub(crate) fn completed_total(&self) -> u64 {
        self.reads.total() + self.writes.total()
    }

    #[inline]
    pub(crate) fn count_choice(&mut self, sets: PreReads, chosen: Routine, fewest: Routine) {
        let choices = &mut self.choices;
        choices.pre_reads += u64::from(match chosen {
            Routine::Rmw => sets.rmw.count_ones(),
            Routine::Rcw => sets.rcw.count_ones(),
        });
        if chosen != fewest {
            choices.adjusted += 1;
        } else if chosen == Routine::Rmw {
            choices.rmw += 1;
        } else {
            choices.rcw += 1;
            choices.full += u64::from(sets.rcw == 0);
        }
    }
}

/// One channel's part of an [`Outcome`].
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ChannelOutcome {
    /// Requests found waiting, summed over the completions of host requests.
    pub blocked: u64,
    /// The same for each completed request: the paper's average number of blocked requests.
    pub blocked_mean: f64,
    /// Time from queue to done of all operations on the channel.
    pub latency: Latency,
    /// Reads started.
    pub reads: u64,
    /// Pages programmed.
    pub programs: u64,
    /// Collections.
    pub collections: u64,
    /// Pages moved.
    pub gc_moves: u64,
    /// Share of the run in which a collection stopped the channel.
    pub gc_share: f64,
    /// Share of the run in which an average chip sensed or programmed.
    pub chip_busy_share: f64,
}

/// Results of a run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Outcome {
    /// Trace.
    pub trace: String,
    /// Stripe, such as `5+1`.
    pub stripe: String,
    /// Policy.
    pub policy: Policy,
    /// Host requests done.
    pub requests: u64,
    /// Flash operations done: pages read and programmed, collections' moves not counted.
    pub flash_ops: u64,
    /// Simulated time from the trace's start to the last completion.
    pub end_ns: u64,
    /// Response times of reads.
    pub read: Latency,
    /// Response times of writes.
    pub write: Latency,
    /// Response times of all requests.
    pub all: Latency,
    /// How parity updates were made.
    pub choices: Choices,
    /// Coefficient of variation of the mean number of blocked requests over the channels.
    pub cv: f64,
    /// χ² of the blocked requests on the channels against equal shares.
    pub chi_square: f64,
    /// Probability of a χ² at least as large if blocked requests were spread evenly.
    pub chi_square_p: f64,
    /// Pages programmed, moves included, for each page written for the host or for parity.
    pub write_amplification: f64,
    /// Writes that waited for buffer pages.
    pub held_writes: u64,
    /// Page reads served from the buffer.
    pub buffer_reads: u64,
    /// The channels.
    pub channels: Vec<ChannelOutcome>,
}

impl Outcome {
    /// Response times in milliseconds as tables show them: means of all requests, of reads and of writes, then of all
    /// the 99th, 99.9th and 99.99th percentile.
    pub(crate) fn latencies_ms(&self) -> [f64; 6] {
        let Latency { mean_ns, p99_ns, p999_ns, p9999_ns, .. } = self.all;
        let means = [mean_ns, self.read.mean_ns, self.write.mean_ns];
        let [mean, read, write] = means.map(|ns| ns / 1e6);
        let [p99, p999, p9999] = [p99_ns, p999_ns, p9999_ns].map(|ns| ns as f64 / 1e6);
        [mean, read, write, p99, p999, p9999]
    }

    pub(crate) fn new(
        trace: &Trace,
        device: &Device,
        chooser: &Chooser,
        measures: Measures,
        channels: &[Channel],
    ) -> Outcome {
        channels.iter().for_each(|channel| check_usage(&channel.usage, device));
        let usage =
            |field: fn(&Usage) -> u64| channels.iter().map(|channel| field(&channel.usage)).sum::<u64>();
        let programs = usage(|u| u.programs);
        let (chi_square, chi_square_p) = chi_square_uniform(&measures.blocked);
        let blocked: Vec<f64> = measures.blocked.iter().map(|&sum| sum as f64).collect();
        let all = measures.reads.merged(&measures.writes);
        Outcome {
            trace: trace.name.clone(),
            stripe: stripe_name(device),
            policy: chooser.policy,
            requests: measures.completed_total(),
            flash_ops: usage(|u| u.reads) + programs,
            end_ns: measures.end_ns,
            read: Latency::from(&measures.reads),
            write: Latency::from(&measures.writes),
            all: Latency::from(&all),
            cv: coefficient_of_variation(&blocked),
            chi_square,
            chi_square_p,
            write_amplification: if programs == 0 {
                1.0
            } else {
                (programs + usage(|u| u.gc_moves)) as f64 / programs as f64
            },
            held_writes: measures.held,
            buffer_reads: measures.buffer_reads,
            channels: (0..channels.len())
                .map(|i| channel_outcome(&measures, &channels[i], i, device))
                .collect(),
            choices: measures.choices,
        }
    }
}

/// Stripe of `device` as the paper writes it.
pub fn stripe_name(device: &Device) -> String {
    if device.channels == 1 { "1".to_string() } else { format!("{}+1", device.data_chunks()) }
}

fn channel_outcome(measures: &Measures, channel: &Channel, index: usize, device: &Device) -> ChannelOutcome {
    let usage = &channel.usage;
    let run_ns = measures.end_ns.max(1) as f64;
    ChannelOutcome {
        blocked: measures.blocked[index],
        blocked_mean: measures.blocked[index] as f64 / measures.completed_total().max(1) as f64,
        latency: Latency::from(&measures.channels[index]),
        reads: usage.reads,
        programs: usage.programs,
        collections: usage.collections,
        gc_moves: usage.gc_moves,
        gc_share: usage.gc_ns as f64 / run_ns,
        chip_busy_share: (usage.sense_ns + usage.program_ns) as f64 / device.chips as f64 / run_ns,
    }
}

/// Busy time must be the sum of what was done, or an operation was lost or counted twice.
fn check_usage(usage: &Usage, device: &Device) {
    let timing = &device.timing;
    assert_eq!(usage.bus_ns, (usage.reads + usage.programs) * timing.bus_ns, "bus time");
    assert_eq!(usage.program_ns, usage.program_commands * timing.write_ns, "program time");
    let gc_ns = usage.gc_sense_ns + usage.gc_moves * timing.write_ns + usage.gc_erases * timing.erase_ns;
    assert_eq!(usage.gc_ns, gc_ns, "collection time");
}
