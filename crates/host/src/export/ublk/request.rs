//! From the driver's descriptor to a request that the volume can be given, and from the volume's errors to the kernel's:
//! pure.

use engine::error::VolumeError;

use super::protocol::{IoDescriptor, REQUEST_BYTES_MAX, SECTOR_BYTES, op, op_flag};

/// A request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// Read into the request.
    Read {
        /// Start in bytes.
        offset_bytes: u64,
        /// Length in bytes.
        bytes: u32,
        /// Its memory is registered, if the driver registers any.
        registered: bool,
    },
    /// Write what the request carries.
    Write {
        /// Start in bytes.
        offset_bytes: u64,
        /// Length in bytes.
        bytes: u32,
        /// Durable on completion.
        fua: bool,
    },
    /// Make completed writes durable.
    Flush,
    /// A range is no longer needed.
    Discard {
        /// Start in bytes.
        offset_bytes: u64,
        /// Length in bytes.
        bytes: u64,
    },
    /// Make a range read as zeroes.
    WriteZeroes {
        /// Start in bytes.
        offset_bytes: u64,
        /// Length in bytes.
        bytes: u64,
        /// The space may be freed.
        may_unmap: bool,
        /// Durable on completion.
        fua: bool,
    },
}

/// Parses a request.
///
/// # Errors
/// The negated error number that answers it: the block device does not offer such a request.
pub fn parse(descriptor: &IoDescriptor) -> Result<Request, i32> {
    let IoDescriptor { op_flags, sectors, start_sector, .. } = *descriptor;
    let operation = op_flags.to_le_bytes()[0];
    if operation == op::FLUSH {
        return Ok(Request::Flush); // a flush has no range: the kernel fills in sector -1
    }
    let offset_bytes = start_sector.checked_mul(SECTOR_BYTES).ok_or(-libc::EINVAL)?;
    let bytes = u64::from(sectors) * SECTOR_BYTES;
    let carried =
        || u32::try_from(bytes).ok().filter(|bytes| *bytes <= REQUEST_BYTES_MAX).ok_or(-libc::EINVAL);
    let fua = op_flags & op_flag::FUA != 0;
    Ok(match operation {
        op::READ => {
            let registered = op_flags & op_flag::NOT_REGISTERED == 0;
            Request::Read { offset_bytes, bytes: carried()?, registered }
        }
        op::WRITE => Request::Write { offset_bytes, bytes: carried()?, fua },
        op::DISCARD => Request::Discard { offset_bytes, bytes },
        op::WRITE_ZEROES => {
            let may_unmap = op_flags & op_flag::NO_UNMAP == 0;
            Request::WriteZeroes { offset_bytes, bytes, may_unmap, fua }
        }
        _ => return Err(-libc::EOPNOTSUPP),
    })
}

/// The error number that a program gets from the block device. The block layer turns those that it does not know into `EIO`.
pub fn errno(error: &VolumeError) -> i32 {
    match error {
        VolumeError::OutOfRange { .. } | VolumeError::Misaligned { .. } => libc::EINVAL,
        VolumeError::NoSpace { .. } => libc::ENOSPC,
        VolumeError::ReadOnly => libc::EPERM,
        VolumeError::Io { .. }
        | VolumeError::Unreadable { .. }
        | VolumeError::Stopping
        | VolumeError::Fenced => libc::EIO,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(op_flags: u32, start_sector: u64, sectors: u32) -> Result<Request, i32> {
        parse(&IoDescriptor { op_flags, sectors, start_sector, address: 0 })
    }

    #[test]
    fn requests_are_parsed() {
        let (offset_bytes, bytes) = (8 * 512, 4096);
        let zeroes = |may_unmap, fua| {
            Ok(Request::WriteZeroes { offset_bytes, bytes: u64::from(bytes), may_unmap, fua })
        };
        let table = [
            (0, Ok(Request::Read { offset_bytes, bytes, registered: true })),
            (1 << 17, Ok(Request::Read { offset_bytes, bytes, registered: false })),
            (1, Ok(Request::Write { offset_bytes, bytes, fua: false })),
            (1 | 1 << 13, Ok(Request::Write { offset_bytes, bytes, fua: true })),
            (1 | 1 << 11 | 1 << 8, Ok(Request::Write { offset_bytes, bytes, fua: false })),
            (2, Ok(Request::Flush)),
            (3, Ok(Request::Discard { offset_bytes, bytes: u64::from(bytes) })),
            (5, zeroes(true, false)),
            (5 | 1 << 15, zeroes(false, false)),
            (5 | 1 << 13, zeroes(true, true)),
            (4, Err(-libc::EOPNOTSUPP)),
            (13, Err(-libc::EOPNOTSUPP)),
        ];
        for (op_flags, expected) in table {
            assert_eq!(parsed(op_flags, 8, 8), expected, "{op_flags:#x}");
        }
    }

    #[test]
    fn a_request_that_no_device_offers_is_refused() {
        assert_eq!(parsed(0, u64::MAX, 8), Err(-libc::EINVAL));
        assert_eq!(parsed(2, u64::MAX, 0), Ok(Request::Flush), "a flush has no range");
        assert_eq!(parsed(1, 0, 65537), Err(-libc::EINVAL), "longer than the driver's room for data");
        assert_eq!(
            parsed(3, 0, u32::MAX),
            Ok(Request::Discard { offset_bytes: 0, bytes: 512 * u64::from(u32::MAX) })
        );
    }
}
