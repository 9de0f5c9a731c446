//! Random numbers for workloads: cheap, seeded, the same on every run.

/// xorshift64: a few instructions a number.
#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

impl Random {
    /// A stream of its own for each seed.
    pub(crate) fn new(seed: u64) -> Self {
        Random(mix(seed.wrapping_add(1)) | 1)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// A number below `bound`.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(bound)) >> 64) as u64
    }

    /// A number from 0 to 1.
    pub(crate) fn share(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// Spreads the bits of a number (splitmix64's last step).
pub(crate) fn mix(number: u64) -> u64 {
    let mut z = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Zipf's law: place k of `places` is drawn with weight 1 / k^`theta`. Drawing is by rejection inversion (Hoermann and
/// Derflinger 1996), which needs no table.
#[derive(Clone, Copy, Debug)]
pub struct Zipf {
    places: f64,
    theta: f64,
    first: f64,
    last: f64,
    shortcut: f64,
}

impl Zipf {
    /// A law over `places` places; `theta` is above 0.
    pub fn new(places: u64, theta: f64) -> Self {
        let places = places.max(1) as f64;
        let first = area(1.5, theta) - 1.0;
        let shortcut = 2.0 - inverse(area(2.5, theta) - weight(2.0, theta), theta);
        Zipf { places, theta, first, last: area(places + 0.5, theta), shortcut }
    }

    /// A place from 0 on, the most frequent one first; `share` gives numbers from 0 to 1.
    pub fn draw(&self, mut share: impl FnMut() -> f64) -> u64 {
        loop {
            let u = self.last + share() * (self.first - self.last);
            let x = inverse(u, self.theta);
            let k = x.round().clamp(1.0, self.places);
            if k - x <= self.shortcut || u >= area(k + 0.5, self.theta) - weight(k, self.theta) {
                return k as u64 - 1;
            }
        }
    }
}

fn weight(x: f64, theta: f64) -> f64 {
    x.powf(-theta)
}

/// The integral of the weight from 1 to `x`.
fn area(x: f64, theta: f64) -> f64 {
    let log = x.ln();
    log * exp_m1_over((1.0 - theta) * log)
}

fn inverse(area: f64, theta: f64) -> f64 {
    let t = (area * (1.0 - theta)).max(-1.0);
    (area * ln_1p_over(t)).exp()
}

/// (e^x - 1) / x.
fn exp_m1_over(x: f64) -> f64 {
    if x.abs() > 1e-8 { x.exp_m1() / x } else { 1.0 + x / 2.0 }
}

/// ln(1 + x) / x.
fn ln_1p_over(x: f64) -> f64 {
    if x.abs() > 1e-8 { x.ln_1p() / x } else { 1.0 - x / 2.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zipf_draws_places_by_their_weight() {
        for theta in [0.5, 0.99, 1.0, 1.2] {
            let (places, draws) = (1000u64, 200_000);
            let (zipf, mut random) = (Zipf::new(places, theta), Random::new(1));
            let mut counts = vec![0u64; places as usize];
            for _ in 0..draws {
                counts[zipf.draw(|| random.share()) as usize] += 1;
            }
            let total: f64 = (1..=places).map(|k| weight(k as f64, theta)).sum();
            for k in [1usize, 2, 3, 10] {
                let right = weight(k as f64, theta) / total * f64::from(draws);
                let got = counts[k - 1] as f64;
                assert!(
                    (got - right).abs() < 5.0 * right.sqrt() + 5.0,
                    "theta {theta}, place {k}: {got} of {right}"
                );
            }
        }
    }

    #[test]
    fn numbers_below_a_bound_reach_all_of_it() {
        let mut random = Random::new(7);
        let mut counts = [0u32; 10];
        (0..10_000).for_each(|_| counts[random.below(10) as usize] += 1);
        assert!(counts.iter().all(|count| (800..1200).contains(count)), "{counts:?}");
    }
}
