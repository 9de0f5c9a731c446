//! Bringing a device to steady state before anything is measured.
//!
//! Every page is written once, in order. Then uniform random overwrites use up the free blocks and turn the spare
//! space over, so that every plane collects and its blocks are as mixed as those of a device in use. Then the
//! trace's own writes, repeated as needed, turn the spare space over again, so that the blocks hold what this
//! workload leaves behind. None of it takes simulated time.

use rand::{Rng, SeedableRng, rngs::SmallRng};
use serde::{Deserialize, Serialize};

use crate::{queue::Channel, simulator::Simulator, trace::Trace};

/// How much to write in each phase, in multiples of the spare space (over-provisioned pages).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct WarmUp {
    /// Uniform random overwrites.
    pub random: f64,
    /// Writes of the trace.
    pub trace: f64,
}

impl Default for WarmUp {
    fn default() -> WarmUp {
        WarmUp { random: 1.0, trace: 1.0 }
    }
}

impl Simulator {
    /// Fills and ages the device. A `trace` without writes ages it by random overwrites only.
    pub fn warm_up(&mut self, amount: WarmUp, trace: &Trace, seed: u64) {
        let stripes = self.device().stripes() as u32;
        let planes = self.device().channel_planes();
        let spare = self.device().channel_pages() as f64 - f64::from(stripes);
        let mut rng = SmallRng::seed_from_u64(seed);
        for channel in &mut self.channels {
            (0..stripes).for_each(|stripe| channel.write_untimed(stripe, stripe as usize % planes));
            for _ in 0..(spare * amount.random) as u64 {
                // A random plane, or all planes of a channel would fill in step and collect one after the other.
                channel.write_untimed(rng.random_range(0..stripes), rng.random_range(0..planes));
            }
        }
        if trace.requests.iter().any(|request| request.write) {
            self.age_by_trace((spare * amount.trace) as u64 * self.channels.len() as u64, trace);
        }
    }

    /// Writes the trace's pages, and a parity page for each stripe touched, until `budget` pages are written.
    fn age_by_trace(&mut self, budget: u64, trace: &Trace) {
        let layout = self.layout();
        let planes = self.device().channel_planes();
        let mut turns = vec![0; self.channels.len()];
        let mut put = |channels: &mut [Channel], channel: u32, stripe: u32| {
            let turn = &mut turns[channel as usize];
            *turn = (*turn + 1) % planes;
            channels[channel as usize].write_untimed(stripe, *turn);
        };
        let logical = self.device().logical_pages() as u32;
        let mut written = 0;
        for request in trace.requests.iter().filter(|request| request.write).cycle() {
            if written >= budget {
                return;
            }
            let (first, count) = self.pages_of(request);
            let mut last_stripe = None;
            for page in (0..count).map(|i| (first + i) % logical) {
                let (stripe, chunk) = layout.place(page);
                put(&mut self.channels, layout.data_channel(stripe, chunk), stripe);
                written += 1;
                if layout.has_parity() && last_stripe != Some(stripe) {
                    put(&mut self.channels, layout.parity_channel(stripe), stripe);
                    written += 1;
                }
                last_stripe = Some(stripe);
            }
        }
    }
}
