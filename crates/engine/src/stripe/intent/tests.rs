//! Write intent with a bitmap, driven by hand: what a write waits for, what a flusher may clear.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::task::{Context, Poll, Wake, Waker};

use layout::geometry::{Geometry, Layout, Level};

use layout::md_bitmap::Mapping;

use super::bits::CHUNKS_MAX;
use super::*;
use crate::members::MemberState;
use crate::stages::Unwatched;

const CHUNK: u64 = 1 << 20;

#[derive(Default)]
struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, SeqCst);
    }
}

fn members() -> Members {
    let geometry =
        Geometry::new(Level::Raid5, Layout::default_for(Level::Raid5), 3, 64 << 10, 1 << 30).unwrap();
    Members::new(geometry, &[MemberState::InSync; 3], Box::new(|_| {}))
}

/// One poll of a future; ready or not.
fn poll<T>(future: impl Future<Output = T>) -> Poll<T> {
    pin!(future).poll(&mut Context::from_waker(Waker::noop()))
}

fn open(locks: Locks) -> Intent {
    let intent = Intent::with_bitmap(Mapping::contiguous(CHUNK as u32), true, locks);
    intent.load_bits([(0, false)]);
    intent
}

fn try_mark(intent: &Intent, range: Range<u64>) -> Option<Marked<'_>> {
    intent.try_mark(Unwatched(0), &range).ok()
}

#[test]
fn a_write_waits_until_its_bits_are_durable_and_is_woken() {
    let watch = Unwatched(0);
    for locks in Locks::ALL {
        let (intent, members) =
            (Intent::with_bitmap(Mapping::contiguous(CHUNK as u32), true, locks), members());
        let woken = Arc::new(Woken::default());
        let waker = Waker::from(Arc::clone(&woken));
        let mut mark = pin!(intent.mark(watch, &members, 3 * CHUNK - 1..5 * CHUNK + 1));
        assert!(mark.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        let Poll::Ready(Some(mut wanted)) = poll(intent.bits_wanted()) else {
            panic!("the flusher hears of it")
        };
        wanted.sort_unstable();
        assert_eq!(wanted, [2, 3, 4, 5], "every chunk that the range touches");
        intent.bits_written(&wanted[..3]);
        assert!(woken.0.swap(false, SeqCst));
        assert!(
            mark.as_mut().poll(&mut Context::from_waker(&waker)).is_pending(),
            "one is still not durable"
        );
        assert!(poll(intent.bits_wanted()).is_pending(), "it is wanted already");
        intent.bits_written(&wanted[3..]);
        assert!(woken.0.load(SeqCst));
        assert!(matches!(mark.as_mut().poll(&mut Context::from_waker(&waker)), Poll::Ready(Ok(_))));
    }
}

#[test]
fn a_write_waits_for_the_superblocks_too() {
    let watch = Unwatched(0);
    for locks in Locks::ALL {
        let (intent, members) =
            (Intent::with_bitmap(Mapping::contiguous(CHUNK as u32), false, locks), members());
        intent.load_bits([(0, false)]);
        let mut mark = pin!(intent.mark(watch, &members, 0..512));
        let mut context = Context::from_waker(Waker::noop());
        assert!(mark.as_mut().poll(&mut context).is_pending());
        assert!(
            intent.wants_dirty() && poll(intent.bits_wanted()).is_pending(),
            "only the superblocks are missing"
        );
        intent.dirty_written();
        let Poll::Ready(Ok(marked)) = mark.as_mut().poll(&mut context) else { panic!("it goes ahead") };
        assert!(!intent.try_close(), "a write is on its way");
        drop(marked);
        assert!(intent.try_close());
        assert!(try_mark(&intent, 0..512).is_none(), "the gate is closed");
        intent.reopen();
        assert!(try_mark(&intent, 0..512).is_some());
        intent.lost();
        assert!(matches!(poll(intent.mark(watch, &members, 0..512)), Poll::Ready(Err(_))));
    }
}

#[test]
fn a_bit_is_idle_after_two_looks_without_a_write() {
    for locks in Locks::ALL {
        let intent = open(locks);
        drop(try_mark(&intent, 0..1).expect("ready"));
        assert!(intent.take_idle_bits(false).is_empty(), "it was written since the last look");
        drop(try_mark(&intent, 0..1).expect("ready"));
        assert!(intent.take_idle_bits(false).is_empty(), "and again");
        let held = try_mark(&intent, 0..1).expect("ready");
        for _ in 0..3 {
            assert!(intent.take_idle_bits(false).is_empty(), "a write is on its way");
        }
        drop(held);
        intent.take_idle_bits(false);
        assert_eq!(intent.take_idle_bits(false), [0]);
        assert!(
            try_mark(&intent, 0..1).is_none(),
            "the bit is being cleared: a write that comes has to ask for it"
        );
        intent.bits_written(&[0]);
        assert!(try_mark(&intent, 0..1).is_some());
    }
}

#[test]
fn chunks_that_wait_for_a_resync_keep_their_bits() {
    for locks in Locks::ALL {
        let intent = Intent::with_bitmap(Mapping::contiguous(CHUNK as u32), true, locks);
        intent.load_bits([(3, true), (5, false), (9, true)]);
        assert_eq!(intent.next_to_resync(0, 64 * CHUNK), Some(3 * CHUNK));
        assert_eq!(intent.next_to_resync(3 * CHUNK + 17, 64 * CHUNK), Some(3 * CHUNK + 17));
        assert_eq!(intent.next_marked(4 * CHUNK, 64 * CHUNK), Some(5 * CHUNK));
        assert_eq!(intent.next_to_resync(4 * CHUNK, 9 * CHUNK), None, "9 is beyond the end");
        let idle = |keep| [intent.take_idle_bits(keep), intent.take_idle_bits(keep)].concat();
        assert_eq!(idle(true), [5]);
        intent.resynced(0..4 * CHUNK - 1, false);
        assert_eq!(intent.next_to_resync(0, 64 * CHUNK), Some(3 * CHUNK), "its end was not reached");
        intent.resynced(4 * CHUNK - 1..9 * CHUNK + 1, true);
        assert_eq!(intent.next_to_resync(0, 64 * CHUNK), None, "the last one is cut off by the end");
        assert_eq!(idle(true), [3, 9]);
    }
}

#[test]
fn far_chunks_have_words_of_their_own_and_memory_grows_with_what_is_written() {
    for locks in Locks::ALL {
        let intent = Intent::with_bitmap(Mapping::contiguous(CHUNK as u32), true, locks);
        let untouched = intent.bitmap_memory_bytes();
        let chunks = [0, 1, 15, 16, 1023, 1024, 16383, 16384, CHUNKS_MAX - 1];
        intent.load_bits(chunks.map(|chunk| (chunk, true)));
        for chunk in chunks {
            assert_eq!(intent.next_to_resync(chunk * CHUNK, (chunk + 1) * CHUNK), Some(chunk * CHUNK));
        }
        let all = [intent.take_idle_bits(false), intent.take_idle_bits(false)].concat();
        assert_eq!(all, chunks, "no more and no fewer");
        assert!(untouched < 4 << 10 && intent.bitmap_memory_bytes() < 1 << 20);
    }
}

/// Eight bits over 32 stripes.
#[test]
fn a_spread_bit_stands_for_stripes_all_over() {
    let mapping = Mapping::spread(CHUNK as u32, 4 * CHUNK as u32, 32 * CHUNK);
    for locks in Locks::ALL {
        let (watch, members) = (Unwatched(0), members());
        let intent = Intent::with_bitmap(mapping, true, locks);
        let mut mark = pin!(intent.mark(watch, &members, 7 * CHUNK..9 * CHUNK));
        let mut context = Context::from_waker(Waker::noop());
        assert!(mark.as_mut().poll(&mut context).is_pending());
        let Poll::Ready(Some(wanted)) = poll(intent.bits_wanted()) else { panic!("the flusher hears of it") };
        assert_eq!(wanted, [7, 0], "stripe 8 belongs to bit 0 again");
        intent.bits_written(&wanted);
        assert!(matches!(mark.as_mut().poll(&mut context), Poll::Ready(Ok(_))));
        assert!(try_mark(&intent, 24 * CHUNK..25 * CHUNK).is_some(), "bit 0 is durable");
        assert!(try_mark(&intent, 25 * CHUNK..26 * CHUNK).is_none());
        let all = try_mark(&intent, 15 * CHUNK..17 * CHUNK).expect("bits 7 and 0");
        assert!(intent.any_write());
        drop(all);
        assert!(!intent.any_write());
    }
}

#[test]
fn a_spread_bit_is_synced_with_its_last_stripe() {
    let mapping = Mapping::spread(CHUNK as u32, 4 * CHUNK as u32, 30 * CHUNK);
    for locks in Locks::ALL {
        let intent = Intent::with_bitmap(mapping, true, locks);
        intent.load_bits([(1, true), (5, true), (6, false)]);
        let next = |from: u64| Some(intent.next_to_resync(from * CHUNK, 30 * CHUNK)? / CHUNK);
        assert_eq!(
            [next(0), next(2), next(6), next(10), next(29)],
            [Some(1), Some(5), Some(9), Some(13), Some(29)]
        );
        assert_eq!(intent.next_to_resync(2 * CHUNK, 5 * CHUNK), None, "none of these");
        assert_eq!(intent.next_marked(6 * CHUNK, 30 * CHUNK), Some(6 * CHUNK));
        intent.resynced(0..25 * CHUNK, false);
        assert_eq!(next(0), Some(1), "stripe 25 is the last of bit 1");
        intent.resynced(25 * CHUNK..26 * CHUNK, false);
        assert_eq!(next(0), Some(5));
        intent.resynced(26 * CHUNK..30 * CHUNK, true);
        assert_eq!(next(0), None);
    }
}

/// Seed 621213: the bitmap could not be written, and the next superblocks said clean over what was written before.
#[test]
fn what_was_written_before_intents_were_lost_stays_dirty() {
    let members = members();
    let intent = Intent::new(1, true, true);
    let watch = Unwatched(0);
    assert!(matches!(poll(intent.mark(watch, &members, 0..CHUNK)), Poll::Ready(Ok(_))));
    intent.lost();
    assert!(intent.wants_dirty() && !intent.try_close());
    assert!(matches!(poll(intent.mark(watch, &members, 0..CHUNK)), Poll::Ready(Err(_))));
}
