//! A model of the change between all stripes and samples, beside owners that take and put: invariant 5.

use super::*;
use crate::code::chunk_set::P;
use crate::sync::models::{check, threads};
use layout::units::Stripe;

const ROWS: Rows = Rows { start: 0, end: 4096 };

/// Writes of each of two owners.
const WRITES: u8 = 20;

/// Writes of one stripe by owners one after the other: each finds what the last one wrote, or nothing.
#[test]
fn what_is_found_is_what_was_written_last() {
    check(|| {
        let cache = ParityCache::new(SHARDS * 2 * 4096);
        let of_sample = |is_sample: bool| {
            (0..).map(Stripe::new).find(|&stripe| (cache.used(stripe) < Some(SAMPLES)) == is_sample)
        };
        let (sample, stripe) = (of_sample(true).unwrap(), of_sample(false).unwrap());
        let written = Mutex::new(0);
        let slices: Vec<Slice> = (0..=2 * WRITES).map(|byte| Slice::from_bytes(&[byte; 4096])).collect();
        threads(3, move |thread| {
            if thread == 0 {
                // Misses switch to samples; a decision without any look-up switches back.
                for _ in 0..4 {
                    cache.take(sample, ROWS, &mut Image::default());
                    cache.weigh();
                    cache.weigh();
                }
                return;
            }
            for _ in 0..WRITES {
                let mut owned = written.lock();
                let mut image = Image::default();
                cache.take(stripe, ROWS, &mut image);
                if let Some(found) = image.get(P, ROWS) {
                    assert_eq!(found[0], *owned, "what the last owner wrote");
                }
                *owned += 1;
                cache.put(stripe, P, 0, &slices[usize::from(*owned)]);
            }
        });
    });
}
