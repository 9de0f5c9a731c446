//! Models of the bitmap's write intent (invariants 2 and 3): threads stand for shards and the flusher, shuttle chooses
//! which thread runs.

use std::sync::Arc;
use std::sync::atomic::AtomicBool as Flag;

use layout::geometry::{Geometry, Layout, Level};
use shuttle::future::block_on;

use super::*;
use crate::members::MemberState;
use crate::stages::Unwatched;
use crate::sync::models::{self, threads};

const CHUNK: u64 = 1 << 20;

/// Tries a model with each kind of locks.
fn check(model: impl Fn(Locks) + Clone + Send + Sync + 'static) {
    for locks in Locks::ALL {
        let model = model.clone();
        models::check(move || model(locks));
    }
}

struct Disk {
    intent: Intent,
    members: Members,
    bits: [Flag; 2],
}

impl Disk {
    fn new(locks: Locks) -> Arc<Self> {
        let layout = Layout::default_for(Level::Raid5);
        let geometry = Geometry::new(Level::Raid5, layout, 3, 64 << 10, 1 << 30).expect("an array");
        let members = Members::new(geometry, &[MemberState::InSync; 3], Box::new(|_| {}));
        Arc::new(Disk {
            intent: Intent::with_bitmap(Mapping::contiguous(CHUNK as u32), true, locks),
            members,
            bits: Default::default(),
        })
    }

    /// While a write is in flight, the bits of all its chunks are on the disk.
    fn write(&self, range: Range<u64>) {
        let chunks = range.start / CHUNK..range.end.div_ceil(CHUNK);
        let watch = Unwatched(0);
        let marked = block_on(self.intent.mark(watch, &self.members, range));
        let marked = marked.unwrap_or_else(|_| panic!("nothing is lost"));
        for _ in 0..2 {
            assert!(chunks.clone().all(|chunk| self.bits[chunk as usize].load(SeqCst)), "invariant 2");
            shuttle::thread::yield_now();
        }
        drop(marked);
    }

    /// Makes bits durable as they are wanted.
    fn flush(&self) {
        while let Some(wanted) = block_on(self.intent.bits_wanted()) {
            self.clear();
            for chunk in &wanted {
                self.bits[*chunk as usize].store(true, SeqCst);
            }
            shuttle::thread::yield_now();
            self.intent.bits_written(&wanted);
            self.clear();
        }
    }

    fn clear(&self) {
        for chunk in self.intent.take_idle_bits(false) {
            shuttle::thread::yield_now();
            self.bits[chunk as usize].store(false, SeqCst);
        }
    }
}

/// No write goes ahead while one of its bits is not on the disk, and every write comes to an end.
#[test]
fn a_bit_is_on_disk_while_a_write_is_on_its_way() {
    check(|locks| {
        let disk = Disk::new(locks);
        let inside = Arc::clone(&disk);
        let flusher = Arc::clone(&disk);
        let flusher = shuttle::thread::spawn(move || flusher.flush());
        threads(2, move |shard| {
            inside.write(shard as u64 * CHUNK..(shard as u64 + 1) * CHUNK);
            inside.write(0..2 * CHUNK);
        });
        disk.intent.stop_flusher();
        flusher.join().expect("no panic");
    });
}

/// While the gate is closed no write is in flight, and a write that begins then waits until the gate is open again.
#[test]
fn a_closed_gate_has_no_writes_behind_it() {
    check(|locks| {
        let disk = Disk::new(locks);
        disk.intent.load_bits([(0, false), (1, false)]);
        disk.bits.iter().for_each(|bit| bit.store(true, SeqCst));
        let inside = Arc::clone(&disk);
        let closing = Arc::clone(&disk);
        let closer = shuttle::thread::spawn(move || {
            for _ in 0..3 {
                if closing.intent.try_close() {
                    closing.bits.iter().for_each(|bit| bit.store(false, SeqCst));
                    shuttle::thread::yield_now();
                    closing.bits.iter().for_each(|bit| bit.store(true, SeqCst));
                    closing.intent.reopen();
                }
                shuttle::thread::yield_now();
            }
        });
        threads(2, move |shard| inside.write(shard as u64 * CHUNK..2 * CHUNK));
        closer.join().expect("no panic");
    });
}
