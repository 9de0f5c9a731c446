//! A zoned block device that is open as a member, for all shards: sizes and limits of its zones, as the system says them.

use engine::device::DeviceInfo;
use engine::zone_device::{Zone, ZoneAccess, ZonedInfo};
use rustix::fs::FlockOperation;
use rustix::io::Errno;
use std::fs::OpenOptions as FileOptions;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::super::block_file::BlockFile;
use super::super::ioctl;
use super::super::open::{OpenError, OpenErrorKind, OpenOptions};
use super::report::zone_of;
use crate::ring::Ring;

/// How the zones of a drive are to be written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AccessChoice {
    /// By appends where the drive and the system can, else in order.
    #[default]
    Auto,
    /// By appends.
    Append,
    /// In order, through the block device.
    InOrder,
}

/// An open zoned block device, shared by all shards.
#[derive(Debug)]
pub struct ZonedFile {
    pub(super) file: Arc<BlockFile>,
    pub(super) info: DeviceInfo,
    pub(super) zoned: ZonedInfo,
    /// The capacity of each zone.
    pub(super) capacities_bytes: Box<[u64]>,
    /// Present where zones are written by appends.
    pub(super) nvme: Option<NvmeFile>,
}

/// The generic device of an NVMe namespace. It is locked as long as any command on it has not ended, also those of a process
/// that was killed: whoever opens the member next does not meet them.
#[derive(Debug)]
pub(super) struct NvmeFile {
    pub fd: Arc<OwnedFd>,
    pub namespace: u32,
    metadata_bytes: u32,
}

impl ZonedFile {
    /// Opens the zoned block device at `path`.
    ///
    /// # Errors
    /// Why it cannot be a zoned member.
    pub fn open(path: &Path, options: &OpenOptions, choice: AccessChoice) -> Result<Arc<Self>, OpenError> {
        let file = BlockFile::open(path, options)?;
        Self::with_file(path, file, options, choice).map(Arc::new)
    }

    fn with_file(
        path: &Path,
        file: Arc<BlockFile>,
        options: &OpenOptions,
        choice: AccessChoice,
    ) -> Result<Self, OpenError> {
        let name = file.info().name.clone();
        let refuse = |reason: &str| OpenError::refuse(OpenErrorKind::WrongType, name.as_str(), reason);
        let zone_bytes = match file.is_block_device() {
            true => ioctl::zone_bytes(file.fd.as_fd()).unwrap_or(0),
            false => 0,
        };
        if zone_bytes == 0 {
            return Err(refuse("not a zoned device: give a zone size for software zones"));
        }
        let queue = Queue::of(&file).ok_or_else(|| {
            refuse("a partition of a zoned device: zones belong to the whole device, use that")
        })?;
        let count = file.info().size_bytes / zone_bytes;
        let count = u32::try_from(count).map_err(|_| refuse("more than 2^32 zones"))?;
        let zones = read_zones(&file, 0, count, zone_bytes)
            .map_err(|errno| OpenError::system(name.as_str(), Errno::from_raw_os_error(-errno)))?;
        let capacities_bytes: Box<[u64]> = zones.iter().map(|zone| zone.capacity_bytes).collect();
        let least = capacities_bytes.iter().copied().min().filter(|least| *least > 0);
        let (Some(capacity_bytes), true) = (least, zones.len() == count as usize) else {
            return Err(refuse("its report of zones is not whole"));
        };
        let nvme = match choice {
            AccessChoice::InOrder => None,
            AccessChoice::Append => Some(NvmeFile::open(path, &file, options)?),
            AccessChoice::Auto => match NvmeFile::open(path, &file, options) {
                Ok(nvme) => Some(nvme),
                Err(error) if error.kind == OpenErrorKind::InUse => return Err(error),
                Err(error) => {
                    tracing::info!(%error, "zones are written in order, not by appends");
                    None
                }
            },
        };
        let zoned = ZonedInfo {
            access: if nvme.is_some() { ZoneAccess::Append } else { ZoneAccess::Sequential },
            zones: count,
            zone_bytes,
            capacity_bytes,
            record_bytes_max: queue.record_bytes_max(nvme.is_some()),
            metadata_bytes: nvme.as_ref().map_or(0, |nvme| nvme.metadata_bytes),
            open_max: queue.limit("max_open_zones"),
            active_max: queue.limit("max_active_zones"),
        };
        let size_bytes = u64::from(count) * zone_bytes;
        let info = DeviceInfo { size_bytes, ..file.info().clone() };
        Ok(ZonedFile { file, info, zoned, capacities_bytes, nvme })
    }

    /// Size and name.
    pub fn info(&self) -> &DeviceInfo {
        &self.info
    }

    /// Sizes and limits of its zones.
    pub fn zoned(&self) -> &ZonedInfo {
        &self.zoned
    }

    /// Whether its zones are written by appends.
    pub fn appends(&self) -> bool {
        self.nvme.is_some()
    }
}

/// Asks the device for `count` zones from `first` on. Fails with a negated error number.
pub(super) fn read_zones(
    file: &BlockFile,
    first: u32,
    count: u32,
    zone_bytes: u64,
) -> Result<Vec<Zone>, i32> {
    if count == 0 {
        return Ok(Vec::new());
    }
    let raw = ioctl::report_zones(file.fd.as_fd(), u64::from(first) * zone_bytes, count)?;
    let zones: Option<Vec<Zone>> = raw.iter().map(|raw| zone_of(raw, zone_bytes)).collect();
    let zones = zones.filter(|zones| (first..).zip(zones).all(|(number, zone)| zone.number == number));
    zones.ok_or(-libc::EPROTO)
}

impl NvmeFile {
    /// Opens the generic device beside the block device of a namespace.
    fn open(path: &Path, file: &BlockFile, options: &OpenOptions) -> Result<Self, OpenError> {
        let name = path.display().to_string();
        let refuse = |reason: &str| OpenError::refuse(OpenErrorKind::WrongType, name.as_str(), reason);
        let system = |errno: i32| OpenError::system(name.as_str(), Errno::from_raw_os_error(-errno));
        let namespace = ioctl::nvme_namespace(file.fd.as_fd())
            .map_err(|_| refuse("not an NVMe namespace: its zones are written in order only"))?;
        let format = Format::read(file, namespace).map_err(system)?;
        if format.is_extended {
            return Err(refuse(
                "its metadata is interleaved with the data: format it with separate metadata",
            ));
        }
        let generic = generic_device(path).ok_or_else(|| refuse("its generic device is not there"))?;
        let opened = FileOptions::new()
            .read(true)
            .write(!options.read_only)
            .custom_flags(libc::O_CLOEXEC)
            .open(&generic)
            .map_err(|error| system(-error.raw_os_error().unwrap_or(libc::EIO)))?;
        if ioctl::nvme_namespace(opened.as_fd()) != Ok(namespace) {
            return Err(refuse("its generic device is that of another namespace"));
        }
        let lock = match options.read_only {
            true => FlockOperation::NonBlockingLockShared,
            false => FlockOperation::NonBlockingLockExclusive,
        };
        rustix::fs::flock(&opened, lock)
            .map_err(|errno| OpenError::system(generic.display().to_string(), errno))?;
        if !Ring::can_do_nvme() {
            return Err(refuse(
                "no io_uring for NVMe commands: it takes Linux 5.19 and a system that allows it",
            ));
        }
        let fd = Arc::new(OwnedFd::from(opened));
        Ok(NvmeFile { fd, namespace, metadata_bytes: format.metadata_bytes })
    }
}

/// The path of the generic device of the namespace at `path`: `/dev/ng0n1` of `/dev/nvme0n1`.
fn generic_device(path: &Path) -> Option<PathBuf> {
    let real = path.canonicalize().ok()?;
    let numbers = real.file_name()?.to_str()?.strip_prefix("nvme")?;
    Some(real.with_file_name(format!("ng{numbers}")))
}

/// How a namespace is formatted.
struct Format {
    metadata_bytes: u32,
    /// Metadata follows each block in the same transfer.
    is_extended: bool,
}

impl Format {
    fn read(file: &BlockFile, namespace: u32) -> Result<Self, i32> {
        let answer = ioctl::nvme_identify(file.fd.as_fd(), namespace)?;
        Self::parse(&answer, file.info().logical_block_bytes).ok_or(-libc::EPROTO)
    }

    /// Reads the answer to Identify Namespace: FLBAS at 26, LBA formats of 4 bytes from 128 on. None: its blocks are not
    /// those of the block device.
    fn parse(answer: &[u8; 4096], logical_block_bytes: u32) -> Option<Self> {
        let flbas = answer[26];
        let format = usize::from(flbas & 0xf | (flbas >> 1) & 0x30);
        let entry = &answer[128 + 4 * format..][..4];
        let block_bytes = 1u32.checked_shl(u32::from(entry[2]))?;
        (block_bytes == logical_block_bytes).then(|| Format {
            metadata_bytes: u32::from(u16::from_le_bytes([entry[0], entry[1]])),
            is_extended: flbas & 0x10 != 0 && entry[..2] != [0, 0],
        })
    }
}

/// The limits of a block device in sysfs.
struct Queue(PathBuf);

impl Queue {
    /// None: it is a partition.
    fn of(file: &BlockFile) -> Option<Self> {
        let device = rustix::fs::fstat(&*file.fd).ok()?.st_rdev;
        let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
        let folder = PathBuf::from(format!("/sys/dev/block/{major}:{minor}/queue"));
        folder.is_dir().then_some(Queue(folder))
    }

    fn number(&self, name: &str) -> Option<u64> {
        std::fs::read_to_string(self.0.join(name)).ok()?.trim().parse().ok()
    }

    /// A limit of zones: 0 is none.
    fn limit(&self, name: &str) -> Option<u32> {
        self.number(name).and_then(|number| u32::try_from(number).ok()).filter(|number| *number > 0)
    }

    /// Most bytes of one command, of pieces that are pages.
    fn record_bytes_max(&self, appends: bool) -> u32 {
        let moved = self.number("max_hw_sectors_kb").map(|kib| kib * 1024);
        let pieces = self.number("max_segments").map(|pages| pages * 4096);
        let appended = self.number("zone_append_max_bytes").filter(|_| appends);
        let least = [moved, pieces, appended].into_iter().flatten().min().unwrap_or(128 << 10);
        let whole = least - least % 4096;
        u32::try_from(whole.clamp(4096, 1 << 30)).expect("at most 2^30")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_with_and_without_metadata() {
        let mut answer = [0; 4096];
        answer[128..140].copy_from_slice(&[0, 0, 9, 0, 0, 0, 12, 0, 64, 0, 12, 0]);
        for (flbas, unit, expected) in [
            (0, 512, Some((0, false))),
            (0, 4096, None),
            (1, 4096, Some((0, false))),
            (2, 4096, Some((64, false))),
            (0x12, 4096, Some((64, true))),
            (0x11, 4096, Some((0, false))), // no metadata to interleave
        ] {
            answer[26] = flbas;
            let found =
                Format::parse(&answer, unit).map(|format| (format.metadata_bytes, format.is_extended));
            assert_eq!(found, expected, "FLBAS {flbas:#x}");
        }
        answer[26] = 0x63; // the fifty-first format is there, and empty
        assert!(Format::parse(&answer, 512).is_none());
    }

    #[test]
    fn an_ordinary_file_is_not_zoned() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        file.as_file().set_len(1 << 20).expect("sized");
        let error = ZonedFile::open(file.path(), &OpenOptions::default(), AccessChoice::Auto);
        let error = error.expect_err("not zoned");
        assert_eq!(error.kind, OpenErrorKind::WrongType);
        assert!(error.to_string().contains("software zones"), "{error}");
    }
}
