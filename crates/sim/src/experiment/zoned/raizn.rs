//! RAIZN as ZapRAID's experiment 1 has it, by the rules of its authors' stand-in: requests fill a single segment in order; one that leaves
//! a stripe unfinished also appends a whole chunk of partial parity to a log zone of the drive that has the stripe's parity, and until both
//! have returned the segment takes no other request. The one that fills a stripe writes the parity, and the next need not wait for it.
//! It is an event simulation of the drives: what their times allow.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use engine::zone_device::timing::{DriveTiming, Timed};

use super::members::BLOCK;
use super::speed::Speed;
use super::writes::Writes;

/// The zone of each drive that takes stripes, and that which takes partial parity.
const DATA: u32 = 0;
const PARTIAL_PARITY: u32 = 1;

struct Segment {
    drives: Vec<DriveTiming>,
    data_chunks: u64,
    chunk_blocks: u64,
    stripe: usize,
    /// Blocks that the stripe has.
    filled: u64,
}

impl Segment {
    /// Writes a request. When it has returned, and when the next may come.
    fn write(&mut self, now_ns: u64, mut blocks: u64) -> (u64, u64) {
        let (mut returned_ns, mut next_ns) = (now_ns, now_ns);
        while blocks > 0 {
            let piece = blocks.min(self.chunk_blocks - self.filled % self.chunk_blocks);
            let column = (self.filled / self.chunk_blocks) as usize;
            returned_ns = returned_ns.max(self.send(now_ns, column, Timed::Write(DATA, piece * BLOCK)));
            blocks -= piece;
            self.filled += piece;
            let (parity, chunk_bytes) = (self.data_chunks as usize, self.chunk_blocks * BLOCK);
            if self.filled == self.data_chunks * self.chunk_blocks {
                returned_ns = returned_ns.max(self.send(now_ns, parity, Timed::Write(DATA, chunk_bytes)));
                (self.stripe, self.filled) = (self.stripe + 1, 0);
            } else if blocks == 0 {
                let partial = Timed::Append(PARTIAL_PARITY, chunk_bytes);
                returned_ns = returned_ns.max(self.send(now_ns, parity, partial));
                next_ns = returned_ns;
            }
        }
        (returned_ns, next_ns)
    }

    /// Columns move on by a drive with each stripe.
    fn send(&mut self, now_ns: u64, column: usize, operation: Timed) -> u64 {
        let drive = (self.stripe + column) % self.drives.len();
        self.drives[drive].done_at_ns(now_ns, operation)
    }
}

/// Runs a point of one segment to its end.
pub(super) fn run(point: &Writes, requests: u64) -> Speed {
    let drives = (0..point.members).map(|_| DriveTiming::new(point.drive(), 2, 1)).collect();
    let [chunk_blocks, _] = point.chunk_blocks().map(u64::from);
    let data_chunks = point.data_chunks().into();
    let mut segment = Segment { drives, data_chunks, chunk_blocks, stripe: 0, filled: 0 };
    let sizes = point.sizes(1);
    let mut arrivals: BinaryHeap<Reverse<u64>> = (0..point.depth).map(|_| Reverse(0)).collect();
    let (mut latencies_ns, mut bytes, mut begins_ns, mut takes_ns) = (Vec::new(), 0, 0, 0);
    for request in 0..requests {
        let Reverse(since_ns) = arrivals.pop().expect("a client follows each that has ended");
        let blocks = sizes.next_blocks();
        let now_ns = since_ns.max(takes_ns);
        let (returned_ns, next_ns) = segment.write(now_ns, blocks);
        takes_ns = next_ns;
        arrivals.push(Reverse(returned_ns));
        if request < requests / 10 {
            begins_ns = returned_ns;
        } else {
            latencies_ns.push(returned_ns - since_ns);
            bytes += blocks * BLOCK;
        }
    }
    let ended_ns = arrivals.into_iter().map(|Reverse(at_ns)| at_ns).max().unwrap_or_default();
    Speed::new(latencies_ns, bytes, ended_ns - begins_ns)
}

#[cfg(test)]
mod tests {
    use super::super::points;
    use super::*;

    /// Of a stripe of three chunks two requests wait for an append each, and the third for nothing that was sent before.
    #[test]
    fn partial_parity_holds_up_all_but_the_last_request_of_a_stripe() {
        let point = Writes { depth: 64, ..points::BASE };
        let mut alone = DriveTiming::new(point.drive(), 2, 1);
        let append_ns = alone.done_at_ns(0, Timed::Append(PARTIAL_PARITY, BLOCK));
        let speed = run(&point, 3000);
        let stripe_ns = 3.0 * BLOCK as f64 / (speed.mib_per_s * 1_048_576.0) * 1e9;
        assert!(
            (2.0 * append_ns as f64..2.5 * append_ns as f64).contains(&stripe_ns),
            "{stripe_ns} ns a stripe"
        );
        let long = run(&Writes { request_kib: 12, ..point }, 1000);
        assert!(long.mib_per_s > 3.0 * speed.mib_per_s, "whole stripes log nothing: {long:?}, {speed:?}");
    }
}
