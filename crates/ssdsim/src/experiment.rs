//! Runs that belong together: one trace, one warmed-up device, several policies.

use crate::{
    Error,
    device::Device,
    outcome::Outcome,
    policy::{BPU_THRESHOLDS, Chooser, ModelView, Policy},
    simulator::{Behaviour, Simulator},
    trace::Trace,
    warmup::WarmUp,
};

/// Everything but the trace and the policy.
#[derive(Clone, Debug)]
pub struct Setup {
    /// The device.
    pub device: Device,
    /// How it behaves.
    pub behaviour: Behaviour,
    /// How it is brought to steady state.
    pub warm_up: WarmUp,
    /// What Adaptive sees.
    pub view: ModelView,
    /// BPU's thresholds.
    pub bpu: [u32; 3],
    /// Seed of the pages' LDPC levels and of the warm-up.
    pub seed: u64,
}

impl Setup {
    /// The paper's device and order of work, stripe of `data` data chunks.
    pub fn paper(data: usize, seed: u64) -> Setup {
        Setup {
            device: Device::table_ii(data),
            behaviour: Behaviour::default(),
            warm_up: WarmUp::default(),
            view: ModelView::default(),
            bpu: BPU_THRESHOLDS,
            seed,
        }
    }

    /// Warms one device up and replays `trace` on a copy of it under each of `policies`.
    ///
    /// # Errors
    /// [`Error::Device`] if the device is impossible.
    pub fn simulate(&self, trace: &Trace, policies: &[Policy]) -> Result<Vec<Outcome>, Error> {
        let warm = self.warmed(trace)?;
        Ok(policies.iter().map(|&policy| warm.clone().run(trace, &self.chooser(policy))).collect())
    }

    /// A device warmed up for `trace`.
    ///
    /// # Errors
    /// [`Error::Device`] if the device is impossible.
    pub fn warmed(&self, trace: &Trace) -> Result<Simulator, Error> {
        let mut simulator = Simulator::new(&self.device, self.behaviour, self.seed)?;
        simulator.warm_up(self.warm_up, trace, self.seed);
        Ok(simulator)
    }

    /// The chooser of `policy` with this setup's parameters.
    pub fn chooser(&self, policy: Policy) -> Chooser {
        Chooser { policy, view: self.view, bpu: self.bpu }
    }

    /// Trains BPU: the thresholds with the least mean response on `trace`, by trying a grid.
    ///
    /// # Errors
    /// [`Error::Device`] if the device is impossible.
    pub fn train_bpu(&self, trace: &Trace) -> Result<Vec<([u32; 3], f64)>, Error> {
        let warm = self.warmed(trace)?;
        let mut tried = Vec::new();
        for same in [0, 2, 8] {
            for few in [0, 2, 4, 8, 16, 32, 64] {
                for many in [8, 64] {
                    let bpu = [same, few, many];
                    let chooser = Chooser { bpu, ..self.chooser(Policy::Bpu) };
                    tried.push((bpu, warm.clone().run(trace, &chooser).all.mean_ns));
                }
            }
        }
        tried.sort_by(|a, b| a.1.total_cmp(&b.1));
        Ok(tried)
    }
}
