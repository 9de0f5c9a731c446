//! How much memory the places of sealed append segments may take, which their footers say too.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};

use super::places::HeldPlaces;
use super::segment::Segment;
use crate::sync::sequential::Mutex;

/// Memory for places that footers say too: those of 2000 zones of 256 MiB with records of 32 KiB in four columns, or of 200 of
/// which a column is lost.
const PLACES_BYTES_MAX: usize = 256 << 20;

/// The segments whose places memory has, though footers say them.
#[derive(Default)]
pub struct PlacesInMemory {
    held: Mutex<InMemory>,
}

#[derive(Default)]
struct InMemory {
    segments: VecDeque<(Weak<Segment>, usize)>,
    bytes: usize,
}

impl PlacesInMemory {
    /// A segment is sealed, with every column: memory has its places, and may let go of them.
    pub fn sealed(&self, segment: &Arc<Segment>) {
        let Some(held) = &segment.places else { return };
        held.may_go();
        if let Some(places) = held.in_memory() {
            self.add(segment, places.bytes());
        }
    }

    /// Memory has the places of a segment. Those that it has had for longest go, if it has too many.
    pub fn add(&self, segment: &Arc<Segment>, bytes: usize) {
        let mut held = self.held.lock();
        held.segments.push_back((Arc::downgrade(segment), bytes));
        held.bytes += bytes;
        while held.bytes > PLACES_BYTES_MAX && held.segments.len() > 1 {
            let Some((oldest, bytes)) = held.segments.pop_front() else { return };
            held.bytes -= bytes;
            let oldest = oldest.upgrade();
            oldest.iter().flat_map(|segment| &segment.places).for_each(HeldPlaces::let_go);
        }
    }

    /// Bytes of places that memory has, though footers say them: of segments that are gone, too, for a while.
    pub fn bytes(&self) -> usize {
        self.held.lock().bytes
    }
}
