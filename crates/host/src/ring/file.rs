//! An open file or block device as one ring knows it.

use std::cell::RefCell;
use std::os::fd::{AsRawFd, OwnedFd};
use std::rc::Rc;
use std::sync::Arc;

use super::lane::Lane;
use super::late::LateWrites;
use super::system_call::Descriptor;

/// An open file or block device. Every operation on it holds a handle, so it stays open until the last one has completed.
pub(crate) struct RingFile {
    pub fd: Arc<OwnedFd>,
    /// Opened for direct I/O.
    pub direct: bool,
    /// Whether its driver takes registered memory: ublk's does not.
    pub takes_fixed: bool,
    pub registered: Option<Rc<RegisteredFile>>,
    /// Shared by all shards that reach the device.
    pub late: Arc<LateWrites>,
    pub(super) lane: RefCell<Lane>,
}

impl RingFile {
    pub(super) fn new(
        fd: Arc<OwnedFd>,
        registered: Option<RegisteredFile>,
        direct: bool,
        late: Arc<LateWrites>,
    ) -> Rc<Self> {
        let (registered, lane) = (registered.map(Rc::new), RefCell::default());
        Rc::new(RingFile { fd, direct, takes_fixed: true, registered, late, lane })
    }

    /// The same file for operations that are made one after the other, in the order of their start: writes of one zone. The
    /// kernel may hand an operation to a thread of its own, so two that are sent at once may change places.
    pub fn in_order(&self) -> Rc<Self> {
        Rc::new(RingFile {
            fd: Arc::clone(&self.fd),
            direct: self.direct,
            takes_fixed: self.takes_fixed,
            registered: self.registered.clone(),
            late: Arc::clone(&self.late),
            lane: RefCell::new(Lane::new(1)),
        })
    }

    /// The generic device of an NVMe namespace, for commands of NVMe's own. `late` is that of the namespace's block device.
    pub fn nvme(fd: Arc<OwnedFd>, late: Arc<LateWrites>) -> Rc<Self> {
        let lane = RefCell::default();
        Rc::new(RingFile { fd, direct: true, takes_fixed: false, registered: None, late, lane })
    }

    /// A character device: its driver copies to and from any memory but registered buffers.
    ///
    /// It is not among the registered files. Up to Linux 6.12 a ring lets go of registered files in the order in which they
    /// were removed, each after all operations that had begun by then on any of them: a command that waits for its driver
    /// would hold every member that is removed meanwhile.
    pub fn character_device(fd: Arc<OwnedFd>) -> Rc<Self> {
        let (late, lane) = (Arc::default(), RefCell::default());
        Rc::new(RingFile { fd, direct: false, takes_fixed: false, registered: None, late, lane })
    }

    pub(super) fn descriptor(&self) -> Descriptor {
        match &self.registered {
            Some(registered) => Descriptor::Registered(registered.index, self.fd.as_raw_fd()),
            None => Descriptor::Plain(self.fd.as_raw_fd()),
        }
    }

    /// Whether this is a block device that has become smaller than `end` bytes. One that was pulled out has none left.
    pub(super) fn has_shrunk_below(&self, end: u64) -> bool {
        let is_block = rustix::fs::fstat(&*self.fd)
            .is_ok_and(|stat| rustix::fs::FileType::from_raw_mode(stat.st_mode).is_block_device());
        // Every transfer names its offset: no one uses the descriptor's own position.
        is_block && rustix::fs::seek(&*self.fd, rustix::fs::SeekFrom::End(0)).is_ok_and(|size| size < end)
    }
}

/// An index in the ring's table of registered files. The drop hands it back, so that the table's file is closed.
pub(crate) struct RegisteredFile {
    pub(super) index: u32,
    pub(super) released: Rc<RefCell<Vec<u32>>>,
}

impl Drop for RegisteredFile {
    fn drop(&mut self) {
        self.released.borrow_mut().push(self.index);
    }
}
