//! A histogram of latencies: 64 bins for each power of two, so that a value is right within 1.6 %.

const BITS: u32 = 6;
const BINS: usize = 1 << BITS;

/// Counts of nanoseconds.
#[derive(Clone, Debug)]
pub struct Histogram {
    counts: Vec<u64>,
    count: u64,
    sum: u64,
    max: u64,
}

impl Default for Histogram {
    fn default() -> Self {
        Histogram { counts: vec![0; BINS * (64 - BITS as usize + 1)], count: 0, sum: 0, max: 0 }
    }
}

impl Histogram {
    /// Counts a value.
    #[inline]
    pub fn add(&mut self, ns: u64) {
        self.counts[bin(ns)] += 1;
        self.count += 1;
        self.sum += ns;
        self.max = self.max.max(ns);
    }

    /// Adds all that `other` counted.
    pub fn merge(&mut self, other: &Histogram) {
        self.counts.iter_mut().zip(&other.counts).for_each(|(own, other)| *own += other);
        self.count += other.count;
        self.sum += other.sum;
        self.max = self.max.max(other.max);
    }

    /// How many values there are.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Their mean, 0 without any.
    pub fn mean(&self) -> f64 {
        self.sum as f64 / self.count.max(1) as f64
    }

    /// The largest.
    pub fn max(&self) -> u64 {
        self.max
    }

    /// The value that `share` of all values do not exceed.
    pub fn quantile(&self, share: f64) -> u64 {
        let wanted = (share * self.count as f64).ceil().max(1.0) as u64;
        let mut seen = 0;
        for (bin, count) in self.counts.iter().enumerate() {
            seen += count;
            if seen >= wanted {
                return last_of(bin).min(self.max);
            }
        }
        self.max
    }

    /// Points of the distribution function, at most `points`: a value, and the share of values up to it.
    pub fn curve(&self, points: usize) -> Vec<(u64, f64)> {
        let mut curve: Vec<(u64, f64)> = Vec::new();
        let mut seen = 0;
        for (bin, count) in self.counts.iter().enumerate().filter(|(_, count)| **count > 0) {
            seen += count;
            let share = seen as f64 / self.count as f64;
            let is_step = curve.last().is_none_or(|last| share - last.1 >= 1.0 / points as f64);
            if is_step || seen == self.count {
                curve.push((last_of(bin).min(self.max), share));
            }
        }
        curve
    }
}

fn bin(ns: u64) -> usize {
    let shift = (ns | 1).ilog2().saturating_sub(BITS);
    shift as usize * BINS + (ns >> shift) as usize
}

/// The largest value of a bin.
fn last_of(bin: usize) -> u64 {
    let shift = (bin / BINS).saturating_sub(1);
    let start = (bin - shift * BINS) as u128;
    (((start + 1) << shift) - 1) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bin_holds_its_values_closely() {
        for ns in
            (0..5000).chain((5..63).flat_map(|power| [(1u64 << power) - 1, 1 << power, 3 << (power - 1)]))
        {
            let last = last_of(bin(ns));
            assert!(last >= ns, "{ns}: {last}");
            assert!((last - ns) as f64 <= ns as f64 / 63.0, "{ns}: {last}");
            assert_eq!(bin(last), bin(ns), "{ns}");
        }
        assert!(bin(u64::MAX) < Histogram::default().counts.len());
    }

    #[test]
    fn quantiles_of_a_line() {
        let mut histogram = Histogram::default();
        (1..=10_000).for_each(|ns| histogram.add(ns));
        for share in [0.5, 0.99, 0.999] {
            let (got, right) = (histogram.quantile(share) as f64, share * 10_000.0);
            assert!((got - right).abs() <= right / 30.0, "{share}: {got}");
        }
        assert_eq!((histogram.quantile(1.0), histogram.max(), histogram.mean()), (10_000, 10_000, 5000.5));
        let curve = histogram.curve(50);
        assert!(curve.len() <= 60 && curve.is_sorted_by_key(|point| point.0));
        assert_eq!(curve.last().map(|last| last.1), Some(1.0));
    }
}
