//! The kernel's interface, `linux/ublk_cmd.h`: numbers and structures, nothing else. Integers are in the machine's order.

use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

/// Commands on `/dev/ublk-control`, each with a [`ControlCommand`].
pub mod control {
    use super::{ControlCommand, READ, READ_WRITE, encode};
    use std::mem::size_of;

    const fn command(direction: u32, number: u32) -> u32 {
        encode(direction, number, size_of::<ControlCommand>())
    }

    /// Makes a device; the buffer is a [`super::DeviceInfo`].
    pub const ADD: u32 = command(READ_WRITE, 0x04);
    /// Deletes a stopped device; waits until no process has its character device open.
    pub const DELETE: u32 = command(READ_WRITE, 0x05);
    /// Shows the block device; waits until every queue fetches. `data` is the server's process.
    pub const START: u32 = command(READ_WRITE, 0x06);
    /// Takes the block device away, also while it is in use.
    pub const STOP: u32 = command(READ_WRITE, 0x07);
    /// Sets [`super::Parameters`].
    pub const SET_PARAMETERS: u32 = command(READ_WRITE, 0x08);
    /// Reads [`super::Parameters`].
    pub const GET_PARAMETERS: u32 = command(READ, 0x09);
    /// Reads a [`super::DeviceInfo`].
    pub const GET_INFO: u32 = command(READ, 0x02);
    /// A new server takes over from one that has ended.
    pub const START_RECOVERY: u32 = command(READ_WRITE, 0x10);
    /// The new server fetches: requests go on. `data` is its process.
    pub const END_RECOVERY: u32 = command(READ_WRITE, 0x11);
    /// Reads the driver's features, 64 bits.
    pub const GET_FEATURES: u32 = command(READ, 0x13);
    /// Gives the server no further request, and waits for those that it has; the next server gets those that come from now on.
    /// `data` is the longest wait in milliseconds, 0 for any.
    pub const QUIESCE: u32 = command(READ_WRITE, 0x16);
    /// As [`STOP`], but only if no process has the block device open.
    pub const TRY_STOP: u32 = command(READ_WRITE, 0x17);
}

/// Commands on `/dev/ublkcN`, each with an [`IoCommand`].
pub mod io {
    use super::{IoCommand, READ_WRITE, encode};
    use std::mem::size_of;

    /// Asks for the first request of a tag.
    pub const FETCH: u32 = encode(READ_WRITE, 0x20, size_of::<IoCommand>());
    /// Gives the result of a request, and asks for the next one.
    pub const COMMIT_AND_FETCH: u32 = encode(READ_WRITE, 0x21, size_of::<IoCommand>());
}

const READ: u32 = 2;
const READ_WRITE: u32 = 3;

/// The kernel's `_IOC`, with ublk's letter.
const fn encode(direction: u32, number: u32, bytes: usize) -> u32 {
    direction << 30 | (bytes as u32) << 16 | (b'u' as u32) << 8 | number
}

/// Features, as asked for in [`DeviceInfo::flags`] and as the driver reports them.
pub mod feature {
    /// Memory of requests can be registered with the server's ring (Linux 6.15).
    pub const SUPPORT_ZERO_COPY: u64 = 1 << 0;
    /// The device outlives its server, and waits for the next one.
    pub const USER_RECOVERY: u64 = 1 << 3;
    /// Requests that the server left are sent to the next one, not failed.
    pub const USER_RECOVERY_REISSUE: u64 = 1 << 4;
    /// Commands are encoded as those of `ioctl` (Linux 6.4).
    pub const IOCTL_ENCODE: u64 = 1 << 6;
    /// The server reads and writes a request's data at its character device (Linux 6.5).
    pub const USER_COPY: u64 = 1 << 7;
    /// The driver registers the memory of each request that the server fetches (Linux 6.16).
    pub const AUTO_BUFFERS: u64 = 1 << 11;
    /// [`super::control::QUIESCE`] is there (Linux 6.16).
    pub const QUIESCE: u64 = 1 << 12;
    /// [`super::control::TRY_STOP`] is there.
    pub const SAFE_STOP: u64 = 1 << 17;
}

/// States of a device, in [`DeviceInfo::state`]. In the others it is served, or waits for its next server.
pub mod state {
    /// It has no block device: not started yet, or stopped.
    pub const DEAD: u16 = 0;
}

/// What a request asks for: the low byte of [`IoDescriptor::op_flags`].
pub mod op {
    /// Read.
    pub const READ: u8 = 0;
    /// Write.
    pub const WRITE: u8 = 1;
    /// Make completed writes durable.
    pub const FLUSH: u8 = 2;
    /// A range is no longer needed.
    pub const DISCARD: u8 = 3;
    /// Make a range read as zeroes.
    pub const WRITE_ZEROES: u8 = 5;
}

/// How: the other bits of [`IoDescriptor::op_flags`].
pub mod op_flag {
    /// Durable on completion.
    pub const FUA: u32 = 1 << 13;
    /// The request's memory could not be registered.
    pub const NOT_REGISTERED: u32 = 1 << 17;
    /// Zeroes keep their space.
    pub const NO_UNMAP: u32 = 1 << 15;
}

/// Result of a fetch whose device or queue is being stopped: `-ENODEV`.
pub const ABORTED: i32 = -19;

/// The kernel's sectors are of 512 bytes, whatever the device's.
pub const SECTOR_BYTES: u64 = 512;

/// Largest request in bytes that the driver has room for.
pub const REQUEST_BYTES_MAX: u32 = 32 << 20;

/// Most requests of a queue.
pub const DEPTH_MAX: u16 = 4096;

/// What a command says in its entry's field for an address, where requests come with [`feature::AUTO_BUFFERS`]: the index
/// under which the driver registers the next request's memory, and that the request comes without if it cannot.
pub const fn auto_buffer(index: u16) -> u64 {
    const FALLBACK: u64 = 1;
    index as u64 | FALLBACK << 16
}

/// No index: the request's memory is not registered.
pub const NO_BUFFER: u16 = u16::MAX;

/// Where a queue's descriptors lie in the character device, to be mapped.
pub const fn descriptors_offset(queue: u16) -> u64 {
    queue as u64 * (DEPTH_MAX as u64 * size_of::<IoDescriptor>() as u64)
}

/// Where the data of a request lies in the character device, to be read and written.
pub const fn data_offset(queue: u16, tag: u16) -> u64 {
    0x8000_0000 + ((queue as u64) << 41 | (tag as u64) << 25)
}

/// A command to the control device.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ControlCommand {
    /// Number of the device; -1 for any.
    pub device: u32,
    /// Number of the queue; -1 for none.
    pub queue: u16,
    /// Length of the buffer in bytes.
    pub bytes: u16,
    /// Address of the buffer.
    pub address: u64,
    /// A value that needs no buffer.
    pub data: u64,
    /// For devices of unprivileged users: 0 here.
    pub path_bytes: u16,
    /// Zero.
    pub reserved: [u16; 3],
}

/// A device as the driver keeps it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct DeviceInfo {
    /// Queues.
    pub queues: u16,
    /// Requests of each queue.
    pub depth: u16,
    /// One of [`state`].
    pub state: u16,
    /// Zero.
    pub reserved0: u16,
    /// Largest request in bytes.
    pub request_bytes_max: u32,
    /// Number of the device; -1 to have one chosen.
    pub number: u32,
    /// The process that serves it.
    pub server_process: i32,
    /// Zero.
    pub reserved1: u32,
    /// Bits of [`feature`].
    pub flags: u64,
    /// The server's own, kept by the driver.
    pub server_flags: u64,
    /// The user that made it.
    pub owner_user: u32,
    /// The user's group.
    pub owner_group: u32,
    /// Zero.
    pub reserved2: [u64; 2],
}

/// What a block device is like. The driver reads the parts that [`Parameters::parts`] names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Parameters {
    /// Length of this structure in bytes.
    pub bytes: u32,
    /// Bits of [`part`].
    pub parts: u32,
    /// Bits of [`attribute`].
    pub attributes: u32,
    /// Logarithm of the logical block in bytes.
    pub logical_block_shift: u8,
    /// Logarithm of the physical block in bytes.
    pub physical_block_shift: u8,
    /// Logarithm of the optimal size in bytes: only powers of two can be given.
    pub io_opt_shift: u8,
    /// Logarithm of the least good size in bytes.
    pub io_min_shift: u8,
    /// Largest request in sectors.
    pub request_sectors_max: u32,
    /// No request crosses a multiple of it; 0 for none.
    pub chunk_sectors: u32,
    /// Size in sectors.
    pub sectors: u64,
    /// Boundaries that memory of a request does not cross.
    pub memory_boundary_mask: u64,
    /// Start of the first unit of discard in bytes.
    pub discard_alignment: u32,
    /// Unit of discard in bytes.
    pub discard_granularity: u32,
    /// Largest discard in sectors.
    pub discard_sectors_max: u32,
    /// Largest range of zeroes in sectors.
    pub zeroes_sectors_max: u32,
    /// Ranges in a discard.
    pub discard_segments_max: u16,
    /// Zero.
    pub reserved0: u16,
    /// Numbers of the device nodes, read only.
    pub nodes: [u32; 4],
    /// Of zoned devices.
    pub zoned: [u32; 8],
    /// Of memory.
    pub alignment: [u32; 2],
    /// Zero.
    pub reserved1: u32,
    /// Boundary that a segment of memory does not cross, less one.
    pub segment_boundary_mask: u64,
    /// Largest segment of memory in bytes.
    pub segment_bytes_max: u32,
    /// Most segments of memory of a request.
    pub segments_max: u16,
    /// Zero.
    pub reserved2: u16,
}

/// Parts of [`Parameters`].
pub mod part {
    /// Sizes.
    pub const BASIC: u32 = 1 << 0;
    /// Discard and zeroes.
    pub const DISCARD: u32 = 1 << 1;
    /// Segments of memory (Linux 6.15; earlier kernels ignore it).
    pub const SEGMENT: u32 = 1 << 5;
}

/// Attributes of a block device.
pub mod attribute {
    /// No writes.
    pub const READ_ONLY: u32 = 1 << 0;
    /// Completed writes need a flush to be durable.
    pub const VOLATILE_CACHE: u32 = 1 << 2;
    /// Writes can be durable on completion.
    pub const FUA: u32 = 1 << 3;
}

/// A request as the driver shows it in mapped memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct IoDescriptor {
    /// [`op`] in the low byte, [`op_flag`] above.
    pub op_flags: u32,
    /// Length in sectors.
    pub sectors: u32,
    /// Start in sectors.
    pub start_sector: u64,
    /// Unused: data is copied at the character device.
    pub address: u64,
}

/// A command of a queue: it fits in an entry of 64 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, IntoBytes, Immutable)]
#[repr(C)]
pub struct IoCommand {
    /// Number of the queue.
    pub queue: u16,
    /// Number of the request in the queue.
    pub tag: u16,
    /// Bytes done, or a negated error number.
    pub result: i32,
    /// Unused: data is copied at the character device.
    pub address: u64,
}

impl DeviceInfo {
    /// All zeroes.
    pub fn empty() -> Self {
        DeviceInfo::new_zeroed()
    }
}

const _: () = assert!(size_of::<ControlCommand>() == 32);
const _: () = assert!(size_of::<DeviceInfo>() == 64);
const _: () = assert!(size_of::<Parameters>() == 136);
const _: () = assert!(size_of::<IoDescriptor>() == 24);
const _: () = assert!(size_of::<IoCommand>() == crate::ring::system_call::COMMAND_BYTES);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_those_of_the_header() {
        // As a C compiler makes them of the macros in linux/ublk_cmd.h.
        assert_eq!(control::ADD, 0xc020_7504);
        assert_eq!(control::GET_INFO, 0x8020_7502);
        assert_eq!(control::QUIESCE, 0xc020_7516);
        assert_eq!(control::TRY_STOP, 0xc020_7517);
        assert_eq!(io::FETCH, 0xc010_7520);
        assert_eq!(io::COMMIT_AND_FETCH, 0xc010_7521);
        // ublk_auto_buf_reg_to_sqe_addr() of index 321 and UBLK_AUTO_BUF_REG_FALLBACK.
        assert_eq!(auto_buffer(321), 0x1_0141);
    }

    #[test]
    fn offsets_are_those_of_the_header() {
        assert_eq!(descriptors_offset(2), 2 * 4096 * 24);
        assert_eq!(data_offset(0, 0), 0x8000_0000);
        assert_eq!(data_offset(1, 3), 0x8000_0000 + (1 << 41) + (3 << 25));
    }
}
