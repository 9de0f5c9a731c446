//! The buffers of requests outside of the engine's process, as a kernel has them for a block device.

use engine::buffer::{Buffer, Gather};
use engine::foreign_buffer::{ForeignBuffer, Lease};
use std::cell::RefCell;

/// What the buffers of requests under way hold, by index.
#[derive(Default)]
pub(crate) struct ForeignBuffers {
    contents: RefCell<Vec<Option<Buffer>>>,
}

impl ForeignBuffers {
    /// A zeroed buffer for a request of `bytes` bytes.
    pub(crate) fn register(&self, bytes: usize) -> ForeignBuffer {
        let contents = &mut *self.contents.borrow_mut();
        let free = contents.iter().position(Option::is_none).unwrap_or(contents.len());
        contents.resize_with(contents.len().max(free + 1), || None);
        contents[free] = Some(Buffer::new(bytes));
        ForeignBuffer::new(u16::try_from(free).expect("few requests at once"))
    }

    /// A device fills the leased part.
    pub(crate) fn fill(&self, lease: &Lease, bytes: &[u8]) {
        let start = usize::try_from(lease.offset_bytes()).expect("inside a request");
        let buffer = &mut self.contents.borrow_mut()[usize::from(lease.index())];
        let buffer = buffer.as_mut().expect("a request waits for the return of its buffer");
        buffer.bytes_mut()[start..start + bytes.len()].copy_from_slice(bytes);
    }

    /// The request is over: what its buffer holds.
    pub(crate) fn take(&self, buffer: &ForeignBuffer) -> Gather {
        let contents = self.contents.borrow_mut()[usize::from(buffer.index())].take();
        contents.expect("taken once").freeze().into()
    }
}
