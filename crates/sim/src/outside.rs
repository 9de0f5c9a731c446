//! Memory outside of the engine's process, as a kernel has it for the requests of a block device.

use engine::buffer::{Buffer, Gather};
use engine::outside::{Lender, Outside};
use std::cell::RefCell;

/// The memory of requests that are under way, by place.
#[derive(Default)]
pub(crate) struct Memories {
    places: RefCell<Vec<Option<Buffer>>>,
}

impl Memories {
    /// Memory for a request of so many bytes.
    pub(crate) fn lender(&self, bytes: usize) -> Lender {
        let places = &mut *self.places.borrow_mut();
        let free = places.iter().position(Option::is_none).unwrap_or(places.len());
        places.resize_with(places.len().max(free + 1), || None);
        places[free] = Some(Buffer::new(bytes));
        Lender::new(u16::try_from(free).expect("few requests at once"))
    }

    /// A device fills a part of it.
    pub(crate) fn fill(&self, outside: &Outside, bytes: &[u8]) {
        let start = usize::try_from(outside.offset_bytes()).expect("inside a request");
        let place = usize::from(outside.place());
        let memory = &mut self.places.borrow_mut()[place];
        let memory = memory.as_mut().expect("a request is not over while anyone has a part of its memory");
        memory.bytes_mut()[start..start + bytes.len()].copy_from_slice(bytes);
    }

    /// The request is over: what its memory holds.
    pub(crate) fn take(&self, lender: &Lender) -> Gather {
        let memory = self.places.borrow_mut()[usize::from(lender.place())].take();
        memory.expect("taken once").freeze().into()
    }
}
