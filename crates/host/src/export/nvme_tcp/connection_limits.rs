//! Limits of one connection, and where they come from.

/// Commands in flight on a queue: what the kernel's host asks for by itself.
pub(super) const COMMANDS: usize = 128;
/// Bytes of data that stand in a capsule of the admin queue, as the specification has it.
pub(super) const ADMIN_IN_CAPSULE_BYTES: u32 = 8192;
/// Bytes of data that stand in a capsule of an I/O queue, as the kernel's target has it.
pub(super) const IN_CAPSULE_BYTES: u32 = 16 << 10;
/// Bytes of one H2CData.
pub(super) const H2C_DATA_BYTES_MAX: u32 = 256 << 10;
/// Bytes that one R2T asks for: all that a command may move, since its buffer is there when it is sent.
pub(super) const R2T_BYTES_MAX: u32 = 1 << 20;
/// Bytes of data that the commands of one connection may hold.
pub(super) const HELD_BYTES_MAX: usize = 16 << 20;
/// One command may move 2 to the power of this many 4 KiB.
pub(super) const TRANSFER_LOG2: u8 = 8;
/// The same in bytes.
pub(super) const TRANSFER_BYTES_MAX: u32 = 4096 << TRANSFER_LOG2;

/// Ops of one attach that may be out at a time: their contributions fit in one queue of a peer, so that none waits for a slot
/// that another one holds until its op is complete (F-I10).
pub(super) const OPS_IN_FLIGHT: u16 = 120;

const _: () = assert!((OPS_IN_FLIGHT as usize) < COMMANDS);
const _: () = assert!(R2T_BYTES_MAX >= TRANSFER_BYTES_MAX && HELD_BYTES_MAX >= TRANSFER_BYTES_MAX as usize);
// Data in capsules is taken in whatever is held already: a queue full of it is little beside the rest.
const _: () = assert!(COMMANDS * IN_CAPSULE_BYTES as usize <= HELD_BYTES_MAX / 4);
