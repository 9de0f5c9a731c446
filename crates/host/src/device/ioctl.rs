//! The block device calls that have no safe wrapper.

use std::os::fd::{AsRawFd, BorrowedFd};

/// `BLKDISCARD` of `linux/fs.h`: `_IO(0x12, 119)`.
const BLKDISCARD: libc::Ioctl = 0x1277;

/// Tells a block device that a range is no longer needed. Returns 0 or a negated error number.
pub(super) fn discard(device: BorrowedFd<'_>, offset_bytes: u64, bytes: u64) -> i32 {
    let range = [offset_bytes, bytes];
    // SAFETY: BLKDISCARD reads two u64 from the address, which outlives the call.
    match unsafe { libc::ioctl(device.as_raw_fd(), BLKDISCARD, range.as_ptr()) } {
        0 => 0,
        _ => -std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO),
    }
}
