//! How fast a resync, recovery or scrub may go, as a pure decision: bytes and times in, a pause out.
//!
//! Maximum and minimum are md's `speed_limit_max` and `speed_limit_min`. Between them the latency of clients decides, if an
//! operator set a budget for its 99th percentile: above the budget the speed halves, below it the speed grows by an eighth of
//! the maximum. Without clients, or without a budget, the work runs at the maximum.

/// What an operator allows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Most bytes of a member in a second; 0 is no limit.
    pub rate_max: u64,
    /// Least bytes of a member in a second, whatever the budget says.
    pub rate_min: u64,
    /// The clients' 99th percentile that the work may cause, in nanoseconds; 0 is no budget.
    pub p99_budget_ns: u64,
}

/// The speed that a budget starts from where there is no maximum: 8 GiB a second.
const RATE_START: u64 = 8 << 30;
/// The least that a budget leaves if no minimum is set: md's default, 1 MB a second.
const RATE_LEAST: u64 = 1_000_000;
/// Fewer requests of clients than this say nothing about a percentile.
const REQUESTS_MIN: u64 = 20;

/// The state of one array's throttle. All its works share it.
#[derive(Clone, Debug, Default)]
pub struct Throttle {
    limits: Limits,
    /// The speed that the clients' budget allows, in bytes a second; 0: not known yet.
    rate: u64,
    /// When the next batch may begin.
    next_ns: u64,
}

impl Throttle {
    /// New limits, from now on.
    pub fn set(&mut self, limits: Limits) {
        if limits != self.limits {
            *self = Throttle { limits, ..Throttle::default() };
        }
    }

    /// What the clients had since the last call: the number of their requests, and the 99th percentile of their latency.
    pub fn clients(&mut self, requests: u64, p99_ns: u64) {
        let Limits { rate_max, rate_min, p99_budget_ns } = self.limits;
        let most = if rate_max == 0 { RATE_START } else { rate_max };
        let least = if rate_min == 0 { RATE_LEAST.min(most) } else { rate_min.min(most) };
        let rate = if self.rate == 0 { most } else { self.rate };
        self.rate = match p99_budget_ns {
            0 => 0,
            _ if requests < REQUESTS_MIN => most,
            budget_ns if p99_ns > budget_ns => (rate / 2).max(least),
            _ => (rate + most / 8).min(most),
        };
    }

    /// Bytes a second that are allowed now; `None` is no limit.
    pub fn rate(&self) -> Option<u64> {
        match (self.rate, self.limits.rate_max) {
            (0, 0) => None,
            (0, most) => Some(most),
            (rate, _) => Some(rate),
        }
    }

    /// How long to wait after a batch of `bytes` that ended at `now_ns`.
    pub fn pause_ns(&mut self, now_ns: u64, bytes: u64) -> u64 {
        let Some(rate) = self.rate() else { return 0 };
        let takes_ns = u128::from(bytes) * 1_000_000_000 / u128::from(rate.max(1));
        // Speed that quiet times did not use is not saved up.
        let begin_ns = self.next_ns.max(now_ns.saturating_sub(BURST_NS));
        self.next_ns = begin_ns.saturating_add(u64::try_from(takes_ns).unwrap_or(u64::MAX));
        self.next_ns.saturating_sub(now_ns)
    }
}

/// The most time that later batches make up after one that took too long.
const BURST_NS: u64 = 50_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    const MB: u64 = 1_000_000;
    const MS: u64 = 1_000_000;

    fn throttle(rate_max: u64, rate_min: u64, p99_budget_ns: u64) -> Throttle {
        let mut throttle = Throttle::default();
        throttle.set(Limits { rate_max, rate_min, p99_budget_ns });
        throttle
    }

    #[test]
    fn no_limit_is_no_pause() {
        let mut throttle = throttle(0, 0, 0);
        throttle.clients(1000, 99 * MS);
        assert_eq!((throttle.rate(), throttle.pause_ns(5, 1 << 30)), (None, 0));
    }

    #[test]
    fn the_mean_is_the_rate_however_long_batches_take() {
        let mut throttle = throttle(100 * MB, 0, 0);
        let (mut now_ns, mut bytes) = (1_000_000_000, 0);
        let start_ns = now_ns;
        for batch in 0..200 {
            now_ns += if batch % 2 == 0 { MS } else { 12 * MS };
            now_ns += throttle.pause_ns(now_ns, MB);
            bytes += MB;
        }
        let rate = bytes * 1_000_000_000 / (now_ns - start_ns);
        assert!((97 * MB..=106 * MB).contains(&rate), "{rate}");
    }

    #[test]
    fn quiet_times_are_not_saved_up() {
        let mut throttle = throttle(100 * MB, 0, 0);
        throttle.pause_ns(0, MB);
        let now_ns = 3_600_000_000_000;
        let pauses: Vec<u64> = (0..20).map(|_| throttle.pause_ns(now_ns, MB)).collect();
        assert_eq!((pauses[4], pauses[19]), (0, 150 * MS));
    }

    /// Requests and 99th percentiles by turn -> the rate after each.
    #[test]
    fn table_of_budgets() {
        let mut throttle = throttle(80 * MB, 4 * MB, 10 * MS);
        let steps = [
            (0, 0, 80),
            (1000, 9 * MS, 80),
            (1000, 11 * MS, 40),
            (1000, 50 * MS, 20),
            (1000, 50 * MS, 10),
            (1000, 50 * MS, 5),
            (1000, 50 * MS, 4),
            (1000, 50 * MS, 4),
            (1000, 10 * MS, 14),
            (1000, MS, 24),
            (19, 900 * MS, 80),
        ];
        for (step, (requests, p99_ns, rate)) in steps.into_iter().enumerate() {
            throttle.clients(requests, p99_ns);
            assert_eq!(throttle.rate(), Some(rate * MB), "step {step}");
        }
    }
}
