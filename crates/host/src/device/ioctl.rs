//! The calls of block devices, and of NVMe namespaces, that have no safe wrapper. Addresses and lengths are in bytes here; the
//! kernel's are in sectors of 512 bytes.

use std::os::fd::{AsRawFd, BorrowedFd};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::ring::system_call::NvmeWire;

/// `BLKDISCARD` of `linux/fs.h`: `_IO(0x12, 119)`.
const BLKDISCARD: libc::Ioctl = 0x1277;

/// `linux/blkzoned.h`, numbers 130 to 136 of `0x12`.
const BLKREPORTZONE: libc::Ioctl = 0xc010_1282;
const BLKGETZONESZ: libc::Ioctl = 0x8004_1284;

/// `linux/nvme_ioctl.h`: `_IO('N', 0x40)`, and `_IOWR('N', 0x41, struct nvme_passthru_cmd)`.
const NVME_IOCTL_ID: libc::Ioctl = 0x4e40;
const NVME_IOCTL_ADMIN_CMD: libc::Ioctl = 0xc048_4e41;

const SECTOR_BYTES: u64 = 512;

/// Zones in one call of a report: 4096 take 256 KiB.
const REPORTED_MAX: u32 = 4096;

/// `struct blk_zone`.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct RawZone {
    start_sectors: u64,
    length_sectors: u64,
    pointer_sectors: u64,
    pub kind: u8,
    pub condition: u8,
    non_sequential: u8,
    reset: u8,
    reserved: [u8; 4],
    capacity_sectors: u64,
    reserved_end: [u8; 24],
}

const _: () = assert!(size_of::<RawZone>() == 64);

impl RawZone {
    /// Where it starts, from the start of the device.
    pub fn start_bytes(&self) -> u64 {
        self.start_sectors.saturating_mul(SECTOR_BYTES)
    }

    /// Where its pointer is, from its own start. Only some conditions have one.
    pub fn pointer_bytes(&self) -> Option<u64> {
        self.pointer_sectors.checked_sub(self.start_sectors)?.checked_mul(SECTOR_BYTES)
    }

    /// Its capacity. Kernels before 5.9 do not say: it is the length there.
    fn set_capacity(&mut self, is_said: bool) {
        if !is_said {
            self.capacity_sectors = self.length_sectors;
        }
    }

    /// Its capacity.
    pub fn capacity_bytes(&self) -> u64 {
        self.capacity_sectors.saturating_mul(SECTOR_BYTES)
    }
}

/// `struct blk_zone_report`: the zones follow.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Report {
    sector: u64,
    zones: u32,
    flags: u32,
}

/// What a zoned block device does to a zone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ZoneCall {
    Reset,
    Open,
    Close,
    Finish,
}

impl ZoneCall {
    fn request(self) -> libc::Ioctl {
        match self {
            ZoneCall::Reset => 0x4010_1283,
            ZoneCall::Open => 0x4010_1286,
            ZoneCall::Close => 0x4010_1287,
            ZoneCall::Finish => 0x4010_1288,
        }
    }
}

/// Tells a block device that a range is no longer needed. Returns 0 or a negated error number.
pub(super) fn discard(device: BorrowedFd<'_>, offset_bytes: u64, bytes: u64) -> i32 {
    let range = [offset_bytes, bytes];
    // SAFETY: BLKDISCARD reads two u64 from the address, which outlives the call.
    outcome(unsafe { libc::ioctl(device.as_raw_fd(), BLKDISCARD, range.as_ptr()) })
}

/// Changes the zones of a range, which begins and ends with a zone. Returns 0 or a negated error number.
pub(super) fn change_zones(device: BorrowedFd<'_>, call: ZoneCall, offset_bytes: u64, bytes: u64) -> i32 {
    let range = [offset_bytes / SECTOR_BYTES, bytes / SECTOR_BYTES];
    // SAFETY: these calls read two u64, `struct blk_zone_range`, from the address, which outlives the call.
    outcome(unsafe { libc::ioctl(device.as_raw_fd(), call.request(), range.as_ptr()) })
}

/// The distance between two zones of a block device, 0 if it has none. Fails with a negated error number.
pub(super) fn zone_bytes(device: BorrowedFd<'_>) -> Result<u64, i32> {
    let mut sectors = 0u32;
    // SAFETY: BLKGETZONESZ writes a u32 to the address, which outlives the call.
    match outcome(unsafe { libc::ioctl(device.as_raw_fd(), BLKGETZONESZ, &raw mut sectors) }) {
        0 => Ok(u64::from(sectors) * SECTOR_BYTES),
        error => Err(error),
    }
}

/// Up to `count` zones from `offset_bytes` on, fewer if the device has no more. Fails with a negated error number.
pub(super) fn report_zones(
    device: BorrowedFd<'_>,
    offset_bytes: u64,
    count: u32,
) -> Result<Vec<RawZone>, i32> {
    /// The device says how large its zones are.
    const CAPACITY: u32 = 1;
    let (mut zones, mut sector) = (Vec::new(), offset_bytes / SECTOR_BYTES);
    while zones.len() < count as usize {
        let asked = REPORTED_MAX.min(count - zones.len() as u32);
        let bytes = size_of::<Report>() + asked as usize * size_of::<RawZone>();
        let mut memory = vec![0u64; bytes / size_of::<u64>()]; // aligned as both structures are
        let header = Report { sector, zones: asked, flags: 0 };
        header.write_to_prefix(memory.as_mut_bytes()).expect("longer than a header");
        // SAFETY: BLKREPORTZONE reads the header at the address and writes at most as many zones behind it as the header says,
        // for which there is room.
        let result = outcome(unsafe { libc::ioctl(device.as_raw_fd(), BLKREPORTZONE, memory.as_mut_ptr()) });
        if result != 0 {
            return Err(result);
        }
        let (header, rest) = Report::read_from_prefix(memory.as_bytes()).expect("longer than a header");
        let found = header.zones.min(asked) as usize;
        for zone in rest.chunks_exact(size_of::<RawZone>()).take(found) {
            let mut zone = RawZone::read_from_bytes(zone).expect("a piece of this size");
            zone.set_capacity(header.flags & CAPACITY != 0);
            sector = zone.start_sectors.saturating_add(zone.length_sectors);
            zones.push(zone);
        }
        if found < asked as usize {
            break;
        }
    }
    Ok(zones)
}

/// The number of the NVMe namespace that a descriptor belongs to. Fails with a negated error number, `ENOTTY` where it is no
/// NVMe namespace.
pub(super) fn nvme_namespace(device: BorrowedFd<'_>) -> Result<u32, i32> {
    // SAFETY: NVME_IOCTL_ID takes no argument.
    let number = unsafe { libc::ioctl(device.as_raw_fd(), NVME_IOCTL_ID) };
    u32::try_from(number).map_err(|_| outcome(number))
}

/// What an NVMe drive says of a namespace (Identify Namespace). Fails with a negated error number.
pub(super) fn nvme_identify(device: BorrowedFd<'_>, namespace: u32) -> Result<Box<[u8; 4096]>, i32> {
    let mut answer = Box::new([0u8; 4096]);
    let mut command = NvmeWire {
        opcode: 0x06,
        namespace,
        address: answer.as_mut_ptr() as u64,
        data_length: 4096,
        ..NvmeWire::default()
    };
    // SAFETY: NVME_IOCTL_ADMIN_CMD reads and writes `struct nvme_passthru_cmd`, which is laid out as the command here with its
    // last field for the result, and writes as many bytes to the data's address as the command says. Both outlive the call.
    let result = unsafe { libc::ioctl(device.as_raw_fd(), NVME_IOCTL_ADMIN_CMD, &raw mut command) };
    match result {
        0 => Ok(answer),
        1.. => Err(-libc::EIO), // the drive's own status
        _ => Err(outcome(result)),
    }
}

/// 0, or a negated error number.
fn outcome(result: i32) -> i32 {
    match result {
        0.. => 0,
        _ => -std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO),
    }
}
