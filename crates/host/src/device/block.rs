//! Regular files and block devices as members.
//!
//! Invariants:
//! - One open file serves all shards. It is held exclusively (O_EXCL for block devices, a lock for files), so that no
//!   mount, no other array and no second process has the same member; reading for `examine` holds nothing.
//! - I/O goes past the page cache (O_DIRECT) wherever the file system can.
//!
//! A file that somebody cuts short is noticed by reads past its end, and by writes before they make it long again with a
//! hole where data was: its size is asked for before each, which costs a fraction of a microsecond. The moment between
//! the question and the write is left.

use engine::buffer::{Buffer, Gather, Slice};
use engine::device::{Device, DeviceInfo, ReadForeign};
use engine::foreign_buffer::Lease;
use rustix::fs::{AtFlags, FallocateFlags, FileType, FlockOperation, Mode, OFlags, StatxFlags};
use rustix::io::Errno;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;
use std::rc::Rc;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use super::ioctl;
use super::open::{OpenError, OpenErrorKind, OpenOptions};
use crate::ring::file::RingFile;
use crate::ring::in_flight::InFlight;
use crate::ring::late::LateWrites;
use crate::ring::op::{MISPLACED, Op, PAST_END};
use crate::ring::{DeviceDone, DeviceRead, Ring};

/// Bytes of zeroes kept for members that cannot zero a range themselves.
const ZEROES_BYTES: usize = 1 << 20;

/// The largest unit of addressing that the engine has.
const LOGICAL_BLOCK_BYTES_MAX: u32 = 4096;

/// An open file or block device, shared by all shards.
#[derive(Debug)]
pub struct BlockFile {
    fd: Arc<OwnedFd>,
    info: DeviceInfo,
    is_block_device: bool,
    is_direct: bool,
    time_limit: Duration,
    late: Arc<LateWrites>,
}

impl BlockFile {
    /// Opens the regular file or block device at `path`.
    ///
    /// # Errors
    /// Why it cannot be a member.
    pub fn open(path: &Path, options: &OpenOptions) -> Result<Arc<Self>, OpenError> {
        let name = path.display().to_string();
        let system = |errno| OpenError::system(name.as_str(), errno);
        // The type first: opening a pipe would wait, opening a terminal would do worse.
        let is_block_device = check_type(&name, rustix::fs::stat(path).map_err(system)?.st_mode)?;
        let (fd, mut is_direct) = open_file(path, options, is_block_device).map_err(system)?;
        let stat = rustix::fs::fstat(&fd).map_err(system)?;
        if check_type(&name, stat.st_mode)? != is_block_device {
            return Err(OpenError::refuse(OpenErrorKind::WrongType, name, "replaced while it was opened"));
        }
        if !is_block_device {
            let lock = match options.read_only {
                true => FlockOperation::NonBlockingLockShared,
                false => FlockOperation::NonBlockingLockExclusive,
            };
            rustix::fs::flock(&fd, lock).map_err(system)?;
        }
        let unit = match logical_block(&fd, is_block_device, is_direct).map_err(system)? {
            Unit::Bytes(unit) => unit,
            Unit::NotDirect => {
                let flags = rustix::fs::fcntl_getfl(&fd).map_err(system)?;
                rustix::fs::fcntl_setfl(&fd, flags - OFlags::DIRECT).map_err(system)?;
                is_direct = false;
                512
            }
        };
        if !is_direct && options.direct {
            tracing::warn!(member = name, "no direct I/O here: transfers go through the page cache");
        }
        let size_bytes = size(&fd, is_block_device, stat.st_size.cast_unsigned(), unit).map_err(system)?;
        if size_bytes < options.bytes_min.max(u64::from(unit)) {
            let reason = format!("{size_bytes} bytes, but a member has at least {}", options.bytes_min);
            return Err(OpenError::refuse(OpenErrorKind::TooSmall, name, reason));
        }
        // A hole in a file reads as zeroes. Block devices promise nothing since Linux 4.12.
        let info =
            DeviceInfo { size_bytes, logical_block_bytes: unit, discard_zeroes: !is_block_device, name };
        let time_limit = options.time_limit;
        let late = Arc::default();
        Ok(Arc::new(BlockFile { fd: Arc::new(fd), info, is_block_device, is_direct, time_limit, late }))
    }

    /// Size and abilities.
    pub fn info(&self) -> &DeviceInfo {
        &self.info
    }

    /// Whether I/O goes past the page cache.
    pub fn is_direct(&self) -> bool {
        self.is_direct
    }

    /// Whether it is a block device, not a file.
    pub fn is_block_device(&self) -> bool {
        self.is_block_device
    }

    /// Has the file system keep room for a part of the file, so that writes there need none when it is full. A block device
    /// has it.
    ///
    /// # Errors
    /// There is no room. File systems that cannot keep any are no error: nothing is known of them.
    pub fn reserve(&self, offset_bytes: u64, bytes: u64) -> std::io::Result<()> {
        if self.is_block_device || bytes == 0 {
            return Ok(());
        }
        match rustix::fs::fallocate(&self.fd, FallocateFlags::KEEP_SIZE, offset_bytes, bytes) {
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => Ok(()),
            result => Ok(result?),
        }
    }

    /// Whether a file has lost its end since it was opened.
    fn is_cut_short(&self) -> bool {
        let size = || rustix::fs::fstat(&self.fd).map(|stat| stat.st_size.cast_unsigned());
        !self.is_block_device && size().is_ok_and(|bytes| bytes < self.info.size_bytes)
    }

    /// This shard's way to the device.
    pub fn attach(self: &Arc<Self>, ring: &Ring) -> BlockDevice {
        let on_ring = Some(ring.open_file(&self.fd, self.is_direct, &self.late));
        BlockDevice { inner: Rc::new(Inner { file: Arc::clone(self), ring: ring.clone(), on_ring }) }
    }
}

fn check_type(name: &str, mode: u32) -> Result<bool, OpenError> {
    match FileType::from_raw_mode(mode) {
        FileType::RegularFile => Ok(false),
        FileType::BlockDevice => Ok(true),
        other => {
            let reason = format!("a {other:?}, not a regular file or block device");
            Err(OpenError::refuse(OpenErrorKind::WrongType, name, reason))
        }
    }
}

/// Opens with O_DIRECT, or without where the file system refuses it.
fn open_file(path: &Path, options: &OpenOptions, is_block_device: bool) -> Result<(OwnedFd, bool), Errno> {
    let mut flags = OFlags::CLOEXEC | if options.read_only { OFlags::RDONLY } else { OFlags::RDWR };
    if is_block_device {
        flags |= OFlags::EXCL;
    }
    if options.direct {
        match rustix::fs::open(path, flags | OFlags::DIRECT, Mode::empty()) {
            Err(Errno::INVAL | Errno::OPNOTSUPP) => {}
            result => return result.map(|fd| (fd, true)),
        }
    }
    rustix::fs::open(path, flags, Mode::empty()).map(|fd| (fd, false))
}

enum Unit {
    Bytes(u32),
    /// Opened for direct I/O, which does not work here after all.
    NotDirect,
}

fn logical_block(fd: &OwnedFd, is_block_device: bool, is_direct: bool) -> Result<Unit, Errno> {
    if is_block_device {
        return Ok(Unit::Bytes(rustix::fs::ioctl_blksszget(fd)?.max(512)));
    }
    if !is_direct {
        return Ok(Unit::Bytes(512));
    }
    let asked = StatxFlags::from_bits_retain(libc::STATX_DIOALIGN);
    if let Ok(statx) = rustix::fs::statx(fd, "", AtFlags::EMPTY_PATH, asked)
        && statx.stx_mask & libc::STATX_DIOALIGN != 0
    {
        let unit = statx.stx_dio_offset_align.max(statx.stx_dio_mem_align).max(512);
        let is_usable = statx.stx_dio_offset_align > 0 && unit <= LOGICAL_BLOCK_BYTES_MAX;
        return Ok(if is_usable { Unit::Bytes(unit) } else { Unit::NotDirect });
    }
    // Before Linux 6.1 nobody says: try.
    let mut probe = Buffer::new(4096);
    for unit in [512, LOGICAL_BLOCK_BYTES_MAX] {
        match rustix::io::pread(fd, &mut probe.bytes_mut()[..unit as usize], 0) {
            Err(Errno::INVAL) => {}
            Err(error) => return Err(error),
            Ok(_) => return Ok(Unit::Bytes(unit)),
        }
    }
    Ok(Unit::NotDirect)
}

fn size(fd: &OwnedFd, is_block_device: bool, file_bytes: u64, unit: u32) -> Result<u64, Errno> {
    let bytes = match is_block_device {
        true => rustix::fs::seek(fd, rustix::fs::SeekFrom::End(0))?,
        false => file_bytes,
    };
    Ok(bytes - bytes % u64::from(unit))
}

/// A file or block device as one shard sees it. Clones are handles to the same.
#[derive(Clone)]
pub struct BlockDevice {
    inner: Rc<Inner>,
}

struct Inner {
    file: Arc<BlockFile>,
    ring: Ring,
    /// Present until the drop, which lets go of it before it asks the ring to close it.
    on_ring: Option<Rc<RingFile>>,
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.on_ring = None;
        self.ring.close_files();
    }
}

impl Device for BlockDevice {
    type Read = DeviceRead;
    type Done = DeviceDone;

    fn info(&self) -> &DeviceInfo {
        &self.inner.file.info
    }

    fn read(&self, offset_bytes: u64, buffer: Buffer) -> DeviceRead {
        let bytes = buffer.len() as u64;
        let op = Op::Read { file: self.on_ring(), buffer, offset: offset_bytes, done: 0, fixed: None };
        DeviceRead(self.start(op, offset_bytes, bytes))
    }

    fn write(&self, offset_bytes: u64, data: Gather, fua: bool) -> DeviceDone {
        let bytes = data.len() as u64;
        let is_cut_short = self.inner.file.is_cut_short();
        let op = Op::Write { file: self.on_ring(), data, offset: offset_bytes, done: 0, fixed: None, fua };
        if is_cut_short {
            return DeviceDone(self.inner.ring.refuse(op, PAST_END));
        }
        DeviceDone(self.start(op, offset_bytes, bytes))
    }

    fn flush(&self) -> DeviceDone {
        let op = Op::Flush { file: self.on_ring() };
        DeviceDone(self.inner.ring.start_timed(op, self.inner.file.time_limit))
    }

    fn discard(&self, offset_bytes: u64, bytes: u64) -> DeviceDone {
        if self.inner.file.is_block_device {
            return self.discard_blocks(offset_bytes, bytes);
        }
        let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        let op = Op::Allocate { file: self.on_ring(), mode, offset: offset_bytes, bytes, zeroes: None };
        DeviceDone(self.start(op, offset_bytes, bytes))
    }

    fn write_zeroes(&self, offset_bytes: u64, bytes: u64, may_unmap: bool) -> DeviceDone {
        let action = if may_unmap { libc::FALLOC_FL_PUNCH_HOLE } else { libc::FALLOC_FL_ZERO_RANGE };
        let (mode, zeroes) = (action | libc::FALLOC_FL_KEEP_SIZE, Some(zeroes()));
        let op = Op::Allocate { file: self.on_ring(), mode, offset: offset_bytes, bytes, zeroes };
        DeviceDone(self.start(op, offset_bytes, bytes))
    }
}

impl ReadForeign for BlockDevice {
    fn read_into(&self, offset_bytes: u64, bytes: usize, target: Lease) -> Option<DeviceDone> {
        if !self.inner.ring.uses_io_uring() {
            return None;
        }
        let op = Op::ReadInto { file: self.on_ring(), target, offset: offset_bytes, bytes, done: 0 };
        Some(DeviceDone(self.start(op, offset_bytes, bytes as u64)))
    }
}

impl BlockDevice {
    fn start(&self, op: Op, offset: u64, bytes: u64) -> InFlight {
        match self.info().allows(offset, bytes) {
            true => self.inner.ring.start_timed(op, self.inner.file.time_limit),
            false => self.inner.ring.refuse(op, MISPLACED),
        }
    }

    /// The discard of a block device is an ioctl: a helper thread makes it.
    fn discard_blocks(&self, offset: u64, bytes: u64) -> DeviceDone {
        let Inner { file, ring, .. } = &*self.inner;
        let op = Op::Discard { file: self.on_ring(), offset, bytes };
        if !self.info().allows(offset, bytes) {
            return DeviceDone(ring.refuse(op, MISPLACED));
        }
        if file.late.any() {
            return DeviceDone(ring.refuse(op, -libc::ETIMEDOUT));
        }
        let fd = Arc::clone(&file.fd);
        let number = fd.as_raw_fd();
        let job = Box::new(move || ioctl::discard(fd.as_fd(), offset, bytes));
        DeviceDone(ring.start_helped(op, file.time_limit, number, job))
    }

    fn on_ring(&self) -> Rc<RingFile> {
        Rc::clone(self.inner.on_ring.as_ref().expect("present until the drop"))
    }
}

/// Zeroes to write, made once for the process.
fn zeroes() -> Slice {
    static ZEROES: OnceLock<Slice> = OnceLock::new();
    ZEROES.get_or_init(|| Buffer::new(ZEROES_BYTES).freeze()).clone()
}
