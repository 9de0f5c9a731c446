//! What a run measures: response times, blocked requests, choices, and statistics over them.

use serde::Serialize;

/// Sub-buckets of each power of two in a [`Histogram`], as a power of two: values are kept to 1/128.
const SUB_BITS: u32 = 7;

/// Log-linear histogram of nanoseconds with a relative error under 0.8 %.
///
/// 4-byte counts and no more buckets than times can take keep all of a run's histograms in the second-level cache:
/// with three-digit HDR histograms they alone cost a fifth of the run.
#[derive(Clone, Debug)]
pub struct Histogram {
    counts: Vec<u32>,
    total: u64,
    sum: u128,
    max: u64,
}

impl Default for Histogram {
    fn default() -> Histogram {
        Histogram { counts: vec![0; Histogram::bucket(u64::MAX >> 8) + 1], total: 0, sum: 0, max: 0 }
    }
}

impl Histogram {
    /// Counts one value.
    #[inline]
    pub fn record(&mut self, value: u64) {
        self.counts[Histogram::bucket(value)] += 1;
        self.total += 1;
        self.sum += u128::from(value);
        self.max = self.max.max(value);
    }

    /// Values counted.
    pub fn total(&self) -> u64 {
        self.total
    }

    /// Exact mean, 0 when empty.
    pub fn mean(&self) -> f64 {
        if self.total == 0 { 0.0 } else { self.sum as f64 / self.total as f64 }
    }

    /// Upper edge of the bucket that holds the `quantile` (0 to 1), 0 when empty.
    pub fn quantile(&self, quantile: f64) -> u64 {
        let rank = ((quantile * self.total as f64).ceil() as u64).clamp(1, self.total.max(1));
        let mut seen = 0;
        for (bucket, &count) in self.counts.iter().enumerate() {
            seen += u64::from(count);
            if seen >= rank {
                return Histogram::upper_edge(bucket).min(self.max);
            }
        }
        self.max
    }

    /// The values of both.
    pub fn merged(&self, other: &Histogram) -> Histogram {
        let counts = self.counts.iter().zip(&other.counts).map(|(a, b)| a + b).collect();
        let (total, sum) = (self.total + other.total, self.sum + other.sum);
        Histogram { counts, total, sum, max: self.max.max(other.max) }
    }

    #[inline]
    fn bucket(value: u64) -> usize {
        let exponent = (63 - (value | 1).leading_zeros()).saturating_sub(SUB_BITS);
        ((u64::from(exponent) << SUB_BITS) + (value >> exponent)) as usize
    }

    fn upper_edge(bucket: usize) -> u64 {
        let exponent = (bucket >> SUB_BITS).saturating_sub(1);
        let offset = bucket - (exponent << SUB_BITS);
        ((offset as u64 + 1) << exponent) - 1
    }
}

/// Summary of a [`Histogram`], times in nanoseconds.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Latency {
    /// Values.
    pub count: u64,
    /// Mean.
    pub mean_ns: f64,
    /// Median.
    pub p50_ns: u64,
    /// 99th percentile.
    pub p99_ns: u64,
    /// 99.9th percentile.
    pub p999_ns: u64,
    /// 99.99th percentile.
    pub p9999_ns: u64,
    /// Largest.
    pub max_ns: u64,
    /// Times at each 0.0005 from 0.9900 to 1.0000: the span of the paper's tail figures.
    pub tail_ns: Vec<u64>,
}

impl From<&Histogram> for Latency {
    fn from(histogram: &Histogram) -> Latency {
        Latency {
            count: histogram.total(),
            mean_ns: histogram.mean(),
            p50_ns: histogram.quantile(0.5),
            p99_ns: histogram.quantile(0.99),
            p999_ns: histogram.quantile(0.999),
            p9999_ns: histogram.quantile(0.9999),
            max_ns: histogram.max,
            tail_ns: (0..=20).map(|i| histogram.quantile(0.99 + f64::from(i) * 0.0005)).collect(),
        }
    }
}

/// How parity updates were made (the paper's Fig. 6).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Choices {
    /// RMW, which has no more pre-reads.
    pub rmw: u64,
    /// RCW, which has fewer pre-reads; full stripes included.
    pub rcw: u64,
    /// Of `rcw`: full stripes, where there is nothing to choose.
    pub full: u64,
    /// The routine that Baseline would not have taken.
    pub adjusted: u64,
    /// Pre-reads of all updates.
    pub pre_reads: u64,
}

impl Choices {
    /// Parity updates.
    pub fn updates(&self) -> u64 {
        self.rmw + self.rcw + self.adjusted
    }
}

/// Coefficient of variation: standard deviation (of the whole population) over mean; 0 for a mean of 0.
pub fn coefficient_of_variation(values: &[f64]) -> f64 {
    let n = values.len() as f64;
    let mean = values.iter().sum::<f64>() / n;
    if mean == 0.0 {
        return 0.0;
    }
    let variance = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / n;
    variance.sqrt() / mean
}

/// Pearson's χ² of `counts` against equal shares, and the probability of one at least as large under uniformity.
pub fn chi_square_uniform(counts: &[u64]) -> (f64, f64) {
    let expected = counts.iter().sum::<u64>() as f64 / counts.len() as f64;
    if expected == 0.0 || counts.len() < 2 {
        return (0.0, 1.0);
    }
    let chi2 = counts.iter().map(|&count| (count as f64 - expected).powi(2) / expected).sum::<f64>();
    (chi2, upper_gamma((counts.len() - 1) as f64 / 2.0, chi2 / 2.0))
}

/// Regularised upper incomplete gamma function Q(a, x): by series below a + 1, by Lentz's continued fraction above.
fn upper_gamma(a: f64, x: f64) -> f64 {
    if x <= 0.0 {
        return 1.0;
    }
    let scale = (a * x.ln() - x - ln_gamma(a)).exp();
    if x < a + 1.0 {
        let (mut term, mut sum, mut n) = (1.0 / a, 1.0 / a, a);
        while term > sum * 1e-15 {
            n += 1.0;
            term *= x / n;
            sum += term;
        }
        return 1.0 - scale * sum;
    }
    let mut b = x + 1.0 - a;
    let mut c = 1e300;
    let mut d = 1.0 / b;
    let mut h = d;
    for i in 1..500 {
        let i = f64::from(i);
        let an = -i * (i - a);
        b += 2.0;
        d = 1.0 / (an * d + b);
        c = b + an / c;
        h *= d * c;
        if (d * c - 1.0).abs() < 1e-14 {
            break;
        }
    }
    scale * h
}

/// ln Γ(a) for the half-integers a degree of freedom gives: by Γ(a) = (a - 1) Γ(a - 1) down to Γ(1/2) or Γ(1).
fn ln_gamma(mut a: f64) -> f64 {
    let mut sum = 0.0;
    while a > 1.0 {
        a -= 1.0;
        sum += a.ln();
    }
    if a == 0.5 { sum + std::f64::consts::PI.sqrt().ln() } else { sum }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_within_the_stated_error() {
        let mut histogram = Histogram::default();
        (1..=100_000u64).for_each(|v| histogram.record(v * 977));
        for q in [0.001, 0.5, 0.99, 0.999] {
            let exact = q * 100_000.0 * 977.0;
            assert!((histogram.quantile(q) as f64 / exact - 1.0).abs() < 0.008, "{q}");
        }
        assert_eq!(histogram.quantile(1.0), 97_700_000);
        assert!((histogram.mean() - 50_000.5 * 977.0).abs() < 1.0);
    }

    #[test]
    fn buckets_are_contiguous() {
        for bucket in 0..5000 {
            let edge = Histogram::upper_edge(bucket);
            assert_eq!(Histogram::bucket(edge), bucket);
            assert_eq!(Histogram::bucket(edge + 1), bucket + 1);
        }
    }

    #[test]
    fn chi_square_matches_tables() {
        let (chi2, p) = chi_square_uniform(&[10, 20, 30, 40, 50, 60]);
        assert!((chi2 - 50.0).abs() < 1e-9);
        assert!((p - 1.386e-9).abs() < 1e-11, "{p}");
        // 11.070 is the 5 % point at 5 degrees of freedom, 14.067 at 7.
        assert!((upper_gamma(2.5, 11.070 / 2.0) - 0.05).abs() < 1e-4);
        assert!((upper_gamma(3.5, 14.067 / 2.0) - 0.05).abs() < 1e-4);
        assert!((upper_gamma(2.5, 1.0) - 0.849_145).abs() < 1e-5);
    }

    #[test]
    fn cv_is_deviation_over_mean() {
        assert!((coefficient_of_variation(&[2.0, 4.0, 4.0, 4.0, 5.0, 5.0, 7.0, 9.0]) - 0.4).abs() < 1e-12);
        assert!(coefficient_of_variation(&[3.0; 6]).abs() < 1e-12);
    }
}
