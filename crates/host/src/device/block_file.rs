//! A regular file or block device that is open as a member, for all shards.
//!
//! Invariants:
//! - One open file serves all shards. It is held exclusively (O_EXCL for block devices, a lock for files), so that no
//!   mount, no other array and no second process has the same member; reading for `examine` holds nothing.
//! - I/O bypasses the page cache (O_DIRECT) wherever the file system can.

use engine::buffer::Buffer;
use engine::device::DeviceInfo;
use rustix::fs::{AtFlags, FallocateFlags, FileType, FlockOperation, Mode, OFlags, StatxFlags};
use rustix::io::Errno;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use super::open::{OpenError, OpenErrorKind, OpenOptions};
use crate::ring::late::LateWrites;
use layout::units::DeviceOffset;

/// The largest unit of addressing that the engine has.
const LOGICAL_BLOCK_BYTES_MAX: u32 = 4096;

/// An open file or block device, shared by all shards.
#[derive(Debug)]
pub struct BlockFile {
    pub(super) fd: Arc<OwnedFd>,
    pub(super) info: DeviceInfo,
    is_block_device: bool,
    is_direct: bool,
    /// Of each operation.
    pub(super) time_limit: Duration,
    pub(super) late: Arc<LateWrites>,
}

impl BlockFile {
    /// Opens the regular file or block device at `path`.
    ///
    /// # Errors
    /// Why it cannot be a member.
    pub fn open(path: &Path, options: &OpenOptions) -> Result<Arc<Self>, OpenError> {
        let name = path.display().to_string();
        let system = |errno| OpenError::system(name.as_str(), errno);
        // The type first: opening a pipe would wait, and opening a terminal has side effects.
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
            tracing::warn!(
                member = name,
                "the file system has no direct I/O: transfers go through the page cache"
            );
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

    /// Whether I/O bypasses the page cache.
    pub fn is_direct(&self) -> bool {
        self.is_direct
    }

    /// Whether it is a block device, not a file.
    pub fn is_block_device(&self) -> bool {
        self.is_block_device
    }

    /// Reserves room in the file system for a part of the file, so that writes to it succeed also when the file system is full.
    /// A block device has its room.
    ///
    /// # Errors
    /// There is no room. A file system that cannot reserve any is no error.
    pub fn reserve(&self, offset: DeviceOffset, bytes: u64) -> std::io::Result<()> {
        if self.is_block_device || bytes == 0 {
            return Ok(());
        }
        match rustix::fs::fallocate(&self.fd, FallocateFlags::KEEP_SIZE, offset.get(), bytes) {
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => Ok(()),
            result => Ok(result?),
        }
    }

    /// Whether a file has lost its end since it was opened, as far as this machine knows: a file server that hangs is not asked,
    /// or the shard would wait for it without a limit.
    pub(super) fn is_cut_short(&self) -> bool {
        let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
        let size = || rustix::fs::statx(&self.fd, "", flags, StatxFlags::SIZE).map(|stat| stat.stx_size);
        !self.is_block_device && size().is_ok_and(|bytes| bytes < self.info.size_bytes)
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
    /// The file was opened for direct I/O, but the file system cannot do it.
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
    // Before Linux 6.1 the system does not say: try.
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
