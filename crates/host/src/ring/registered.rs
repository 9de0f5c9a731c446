//! The ring's tables of registered files and buffers: which indices are free. What is registered is not looked up or
//! pinned for each operation.
//!
//! Invariant: an index is reused only after the last operation that names it has completed. Files hand theirs back when
//! their last handle is dropped, drivers theirs when their queue has ended; those of the pool stay.

use engine::buffer::{FixedRegion, Pool};
use std::cell::RefCell;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::rc::Rc;
use std::sync::Arc;

use super::backend::Backend;
use super::file::RegisteredFile;

/// Indices kept for foreign buffers: those of the requests of 32 block devices, which a process may serve for as many arrays.
const FOREIGN_BUFFERS: usize = 4096;

pub(super) struct RegisteredFiles {
    free: Vec<u32>,
    /// Handed back, and not yet emptied.
    released: Rc<RefCell<Vec<u32>>>,
}

impl RegisteredFiles {
    pub fn new(backend: &Backend) -> Self {
        RegisteredFiles { free: (0..backend.files()).rev().collect(), released: Rc::default() }
    }

    /// Registers a file if the table has room and the system allows it.
    pub fn register(&mut self, backend: &Backend, fd: &OwnedFd) -> Option<RegisteredFile> {
        self.empty_released(backend);
        let index = self.free.pop()?;
        if let Err(error) = backend.set_file(index, fd.as_raw_fd()) {
            tracing::info!(%error, "a file is not registered: its descriptor is looked up for each operation");
            self.free.push(index);
            return None;
        }
        Some(RegisteredFile { index, released: Rc::clone(&self.released) })
    }

    /// Empties the table's places that were handed back, which closes their files.
    pub fn empty_released(&mut self, backend: &Backend) {
        while let Some(index) = self.released.borrow_mut().pop() {
            if let Err(error) = backend.set_file(index, -1) {
                tracing::warn!(index, %error, "a registered file stays open until the shard ends");
                continue;
            }
            self.free.push(index);
        }
    }
}

#[derive(Default)]
pub(super) struct RegisteredBuffers {
    /// The pool whose fixed memory is registered.
    pub pool: Option<Arc<Pool>>,
    /// Free indices for foreign buffers, behind those of the pool.
    foreign: Vec<u16>,
}

impl RegisteredBuffers {
    /// Registers the pool's fixed memory, and indices behind it that stay empty until a driver fills them.
    pub fn register(
        &mut self,
        backend: &Backend,
        pool: &Arc<Pool>,
        regions: &[FixedRegion],
    ) -> io::Result<()> {
        let Backend::Kernel(kernel) = backend else { return Err(io::ErrorKind::Unsupported.into()) };
        let empty = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };
        let register = |own: &[FixedRegion], foreign: usize| {
            let piece = |region: &FixedRegion| libc::iovec {
                iov_base: region.address as *mut _,
                iov_len: region.bytes,
            };
            let own = own.iter().map(piece);
            let pieces: Vec<libc::iovec> = own.chain(std::iter::repeat_n(empty, foreign)).collect();
            // SAFETY: fixed memory is never freed while its pool lives, and this struct keeps the pool from here on.
            unsafe { kernel.register_buffers(&pieces) }
        };
        let foreign_from = |first: usize| {
            let indices = first..first + FOREIGN_BUFFERS;
            indices.rev().map(|index| u16::try_from(index).expect("a small table")).collect()
        };
        if register(regions, FOREIGN_BUFFERS).is_ok() {
            self.foreign = foreign_from(regions.len());
        } else if let Err(error) = register(regions, 0) {
            // Too little memory may be locked. Foreign buffers do not count.
            if register(&[], FOREIGN_BUFFERS).is_ok() {
                self.foreign = foreign_from(0);
            }
            return Err(error);
        }
        self.pool = Some(Arc::clone(pool));
        Ok(())
    }

    /// Takes `count` indices for foreign buffers. None: fewer are free.
    pub fn take_foreign(&mut self, count: u16) -> Option<Vec<u16>> {
        let left = self.foreign.len().checked_sub(usize::from(count))?;
        Some(self.foreign.split_off(left))
    }

    /// Takes indices back that no driver fills any more.
    pub fn give_foreign(&mut self, indices: impl Iterator<Item = u16>) {
        self.foreign.extend(indices);
    }
}
