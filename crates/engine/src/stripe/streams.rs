//! Who writes sequentially: a write that begins where an earlier one ended.

use std::cell::Cell;

/// Streams that are remembered: more jobs than write sequentially on one shard at a time.
pub const STREAMS: usize = 16;

/// Where the streams of one shard, or of one client, ended last.
#[derive(Default)]
pub struct Streams {
    /// In the array's bytes.
    ends: [Cell<u64>; STREAMS],
    next: Cell<usize>,
}

/// What a write continues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Noted {
    /// The stream, below [`STREAMS`]; another one has the number when it is forgotten.
    pub stream: usize,
    /// An earlier write ended where this one starts.
    pub goes_on: bool,
}

impl Streams {
    /// Notes a write of the array's bytes from `start` to `end`.
    pub fn note(&self, start: u64, end: u64) -> Noted {
        let known = self.ending_at(start);
        let stream = known.unwrap_or_else(|| self.oldest());
        self.ends[stream].set(end);
        Noted { stream, goes_on: known.is_some() }
    }

    /// A stream that was elsewhere so far goes on here.
    pub fn expect(&self, start: u64) {
        if self.ending_at(start).is_none() {
            self.ends[self.oldest()].set(start);
        }
    }

    fn ending_at(&self, place: u64) -> Option<usize> {
        self.ends.iter().position(|stream| stream.get() == place)
    }

    fn oldest(&self) -> usize {
        let oldest = self.next.get();
        self.next.set((oldest + 1) % STREAMS);
        oldest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_is_known_by_where_its_last_write_ended() {
        let streams = Streams::default();
        let goes_on = |start, end| streams.note(start, end).goes_on;
        assert!(!goes_on(4096, 8192), "the first of a stream");
        assert!(!goes_on(1 << 20, 2 << 20), "another stream");
        assert!(goes_on(8192, 12288));
        assert!(!goes_on(8192, 12288), "again, not on");
        for other in 10..10 + STREAMS as u64 {
            streams.note(other << 30, (other << 30) + 1);
        }
        assert!(!goes_on(12288, 16384), "forgotten for newer ones");
    }

    #[test]
    fn a_stream_that_comes_from_elsewhere_is_known_when_it_is_expected() {
        let streams = Streams::default();
        streams.expect(4096);
        streams.expect(4096);
        assert_eq!(streams.note(4096, 8192), Noted { stream: 0, goes_on: true });
        assert_eq!(streams.note(8192, 12288), Noted { stream: 0, goes_on: true });
        assert_eq!(streams.note(4096, 8192), Noted { stream: 1, goes_on: false }, "expected once");
    }
}
