//! Sequential streams: a write that begins where an earlier one ended belongs to one.

use std::cell::Cell;

/// Streams that are remembered: more than the jobs that write sequentially on one shard at a time.
const STREAMS: usize = 16;

/// Where the streams of one shard, or of one client, ended last.
#[derive(Default)]
pub struct Streams {
    /// In the array's bytes.
    ends: [Cell<u64>; STREAMS],
    next: Cell<usize>,
}

impl Streams {
    /// Notes a write of the array's bytes from `start` to `end`. True if an earlier write ended at `start`.
    pub fn note(&self, start: u64, end: u64) -> bool {
        let known = self.ends.iter().position(|stream| stream.get() == start);
        let at = known.unwrap_or_else(|| {
            let next = self.next.get();
            self.next.set((next + 1) % STREAMS);
            next
        });
        self.ends[at].set(end);
        known.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_is_known_by_where_its_last_write_ended() {
        let streams = Streams::default();
        assert!(!streams.note(4096, 8192), "the first of a stream");
        assert!(!streams.note(1 << 20, 2 << 20), "another stream");
        assert!(streams.note(8192, 12288));
        assert!(!streams.note(8192, 12288), "again, not on");
        for other in 10..10 + STREAMS as u64 {
            streams.note(other << 30, (other << 30) + 1);
        }
        assert!(!streams.note(12288, 16384), "forgotten for newer ones");
    }
}
