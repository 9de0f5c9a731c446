//! Where writes of an aged array go.

use serde::Serialize;

use super::clients::Request;
use super::members::BLOCK;
use crate::random::Random;

/// What is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Places {
    /// All alike.
    Uniform,
    /// Four of five writes go to a fifth of the array.
    HotCold,
    /// By Zipf's law with the exponent 0.99.
    Zipf,
    /// In order, from the first to the last and again.
    Sequential,
}

impl Places {
    /// For a table.
    pub(super) fn words(self) -> &'static str {
        match self {
            Places::Uniform => "uniform",
            Places::HotCold => "80 % to a fifth",
            Places::Zipf => "Zipf 0.99",
            Places::Sequential => "sequential",
        }
    }
}

/// Where writes go.
pub(super) struct WritePlaces {
    places: Places,
    random: Random,
    /// Places of requests.
    units: u64,
    unit_bytes: u64,
    written: std::cell::Cell<u64>,
    /// For Zipf: which share of all writes goes to the most written places up to each.
    shares: Vec<f64>,
    /// Has no divisor in common with the number of places, so that its multiples reach each.
    stride: u64,
}

impl WritePlaces {
    pub(super) fn new(places: Places, logical: u64, request_kib: u64) -> Self {
        let unit_bytes = request_kib << 10;
        let units = logical * BLOCK / unit_bytes;
        let mut shares = Vec::new();
        if places == Places::Zipf {
            let mut sum = 0.0;
            for rank in 1..=units {
                sum += (rank as f64).powf(-0.99);
                shares.push(sum);
            }
            shares.iter_mut().for_each(|share| *share /= sum);
        }
        let stride = (7_368_787..).find(|stride| gcd(*stride, units) == 1).expect("a prime is among them");
        WritePlaces { places, random: Random::new(7), units, unit_bytes, written: 0.into(), shares, stride }
    }

    pub(super) fn next(&self) -> Request {
        let written = self.written.replace(self.written.get() + 1);
        let hot = self.units / 5;
        let unit = match self.places {
            Places::Uniform => self.random.below(self.units),
            Places::HotCold if self.random.percent(80) => self.spread(self.random.below(hot)),
            Places::HotCold => self.spread(hot + self.random.below(self.units - hot)),
            Places::Zipf => {
                let drawn = self.random.below(1 << 53) as f64 / (1u64 << 53) as f64;
                self.spread(self.shares.partition_point(|share| *share < drawn) as u64)
            }
            Places::Sequential => written % self.units,
        };
        Request { is_read: false, offset: unit * self.unit_bytes, bytes: self.unit_bytes }
    }

    /// What is written often is not side by side.
    fn spread(&self, rank: u64) -> u64 {
        (u128::from(rank) * u128::from(self.stride) % u128::from(self.units)) as u64
    }
}

fn gcd(first: u64, second: u64) -> u64 {
    if second == 0 { first } else { gcd(second, first % second) }
}
