//! The queue of future events.
//!
//! An event is one 64-bit word, its time above its code, so that the heap compares words, and two events at one time
//! come in the order of their codes: the run depends on nothing but its inputs. At most one event for each chip and
//! one for each channel are outstanding, so the heap is some forty words.

use std::{cmp::Reverse, collections::BinaryHeap};

use crate::queue::Wake;

const CODE_BITS: u32 = 14;
const CHIP_BITS: u32 = 8;
const CHANNEL_BITS: u32 = 4;

/// Latest time an event can have: 13 days.
pub const TIME_MAX_NS: u64 = u64::MAX >> CODE_BITS;

/// What happens, and where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// When.
    pub time_ns: u64,
    /// What.
    pub wake: Wake,
    /// On which channel.
    pub channel: usize,
    /// On which chip; 0 for what concerns the channel.
    pub chip: usize,
}

/// Events by time.
#[derive(Clone, Debug, Default)]
pub struct Events {
    heap: BinaryHeap<Reverse<u64>>,
}

impl Events {
    /// Adds an event.
    #[inline]
    pub fn add(&mut self, event: Event) {
        assert!(event.time_ns <= TIME_MAX_NS, "simulated time ran out");
        let code = (event.wake as u64) << (CHIP_BITS + CHANNEL_BITS)
            | (event.channel as u64) << CHIP_BITS
            | event.chip as u64;
        self.heap.push(Reverse(event.time_ns << CODE_BITS | code));
    }

    /// Time of the next event, [`u64::MAX`] if there is none.
    #[inline]
    pub fn next_ns(&self) -> u64 {
        self.heap.peek().map_or(u64::MAX, |word| word.0 >> CODE_BITS)
    }

    /// Takes the next event.
    #[inline]
    pub fn take(&mut self) -> Option<Event> {
        let Reverse(word) = self.heap.pop()?;
        let wake = match word >> (CHIP_BITS + CHANNEL_BITS) & 3 {
            0 => Wake::Sensed,
            1 => Wake::Done,
            _ => Wake::Collected,
        };
        Some(Event {
            time_ns: word >> CODE_BITS,
            wake,
            channel: (word >> CHIP_BITS & 0xF) as usize,
            chip: (word & 0xFF) as usize,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_come_back_by_time_and_whole() {
        let mut events = Events::default();
        let event = |time_ns, wake, channel, chip| Event { time_ns, wake, channel, chip };
        let given = [
            event(TIME_MAX_NS, Wake::Collected, 15, 0),
            event(7, Wake::Done, 3, 255),
            event(7, Wake::Sensed, 9, 2),
        ];
        given.iter().for_each(|&event| events.add(event));
        assert_eq!(events.next_ns(), 7);
        let taken: Vec<Event> = std::iter::from_fn(|| events.take()).collect();
        assert_eq!(taken, [given[2], given[1], given[0]]);
    }
}
