//! I/O commands: from a submission queue entry to what a namespace can be asked for. All of it is pure.

use smallvec::SmallVec;
use zerocopy::FromBytes;

use crate::command::{DatasetRange, Direction, FABRICS, FLAGS_SGL, SGL_IN_CAPSULE, SGL_TRANSPORT, Sqe, io};
use crate::pdu::Unverified;
use crate::status::Status;

/// A namespace, as far as commands are checked against it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Its size in blocks.
    pub blocks: u64,
    /// Bytes of a block, as a power of two.
    pub block_shift: u32,
    /// No command may change it.
    pub read_only: bool,
    /// Bytes that one command may move.
    pub transfer_bytes_max: u32,
}

/// What a command asks of a namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// Read a range.
    Read {
        /// Offset in bytes.
        offset: u64,
        /// Length in bytes.
        bytes: u32,
    },
    /// Write a range with the data that comes.
    Write {
        /// Offset in bytes.
        offset: u64,
        /// Length in bytes.
        bytes: u32,
        /// Durable before it is completed.
        fua: bool,
    },
    /// Make completed writes durable.
    Flush,
    /// Make a range read as zeroes.
    WriteZeroes {
        /// Offset in bytes.
        offset: u64,
        /// Length in bytes.
        bytes: u64,
        /// The space may be freed.
        may_unmap: bool,
        /// Durable before it is completed.
        fua: bool,
    },
    /// Ranges are no longer needed: those of the data that comes, if `discard`; otherwise hints that are passed over.
    Dataset {
        /// Bytes of the data: there may be room for more ranges.
        bytes: u32,
        /// How many ranges the data begins with.
        ranges: usize,
        /// They are no longer needed.
        discard: bool,
    },
}

impl Request {
    /// Bytes of data that the host sends.
    #[must_use]
    pub fn data_out_bytes(&self) -> u32 {
        match self {
            Request::Write { bytes, .. } | Request::Dataset { bytes, .. } => *bytes,
            _ => 0,
        }
    }

    /// Bytes of data that the host gets.
    #[must_use]
    pub fn data_in_bytes(&self) -> u32 {
        if let Request::Read { bytes, .. } = self { *bytes } else { 0 }
    }
}

/// Namespace id that stands for all.
pub const ALL_NAMESPACES: u32 = u32::MAX;
/// Ranges that one Dataset Management command may name.
pub const DATASET_RANGES_MAX: usize = 256;

const DATASET_BYTES_MAX: u32 = (DATASET_RANGES_MAX * size_of::<DatasetRange>()) as u32;
const FUA: u32 = 1 << 30;
const PROTECTION: u32 = 0xf << 26;
const MAY_UNMAP: u32 = 1 << 25;
const DATASET_DISCARD: u32 = 1 << 2;
const FUSED: u8 = 0x03;
const DATA_POINTER: u8 = 0xc0;

/// Checks what all commands have: how the data is described, and that it stands where the descriptor says. Returns the bytes
/// of data that the descriptor speaks of.
///
/// # Errors
/// What the command is completed with.
pub fn check_data(sqe: &Unverified<Sqe>, in_capsule_bytes: u32) -> Result<u32, Status> {
    let sqe = sqe.as_received();
    if sqe.flags & FUSED != 0 || sqe.flags & DATA_POINTER != FLAGS_SGL && sqe.opcode != FABRICS {
        return Err(Status::INVALID_FIELD);
    }
    let length = sqe.sgl.length.get();
    match sqe.sgl.identifier {
        SGL_IN_CAPSULE => {
            if sqe.direction() != Direction::ToController {
                return Err(Status::INVALID_SGL_TYPE);
            }
            if sqe.sgl.address.get() != 0 {
                return Err(Status::INVALID_SGL_OFFSET);
            }
            if length != in_capsule_bytes {
                return Err(Status::INVALID_SGL_LENGTH);
            }
            Ok(length)
        }
        // Data in the capsule that no descriptor speaks of.
        _ if in_capsule_bytes > 0 => Err(Status::INVALID_SGL_TYPE),
        SGL_TRANSPORT => Ok(length),
        // A command without data need not describe any.
        _ if sqe.direction() == Direction::None => Ok(0),
        _ => Err(Status::INVALID_SGL_TYPE),
    }
}

/// Checks a command against the namespace that it names. `data_bytes` is what [`check_data`] returned.
///
/// # Errors
/// What the command is completed with.
pub fn check(sqe: &Unverified<Sqe>, shape: &Shape, data_bytes: u32) -> Result<Request, Status> {
    let sqe = sqe.as_received();
    let word12 = sqe.cdw12.get();
    let request = match sqe.opcode {
        io::FLUSH => return Ok(Request::Flush),
        io::READ => {
            let (offset, bytes) = transfer(sqe, shape, data_bytes)?;
            return Ok(Request::Read { offset, bytes });
        }
        io::WRITE => {
            let (offset, bytes) = transfer(sqe, shape, data_bytes)?;
            Request::Write { offset, bytes, fua: word12 & FUA != 0 }
        }
        io::WRITE_ZEROES => {
            let (offset, bytes) = range(sqe.slba(), blocks(word12), shape)?;
            if word12 & PROTECTION != 0 {
                return Err(Status::INVALID_FIELD);
            }
            Request::WriteZeroes { offset, bytes, may_unmap: word12 & MAY_UNMAP != 0, fua: word12 & FUA != 0 }
        }
        io::DATASET_MANAGEMENT => {
            let ranges = (sqe.cdw10.get() & 0xff) + 1;
            let bytes = ranges * size_of::<DatasetRange>() as u32;
            // Linux sends room for 256 ranges, however few there are.
            if data_bytes < bytes || data_bytes > DATASET_BYTES_MAX {
                return Err(Status::INVALID_SGL_LENGTH);
            }
            let discard = sqe.cdw11.get() & DATASET_DISCARD != 0;
            let request = Request::Dataset { bytes: data_bytes, ranges: ranges as usize, discard };
            if !discard {
                return Ok(request);
            }
            request
        }
        _ => return Err(Status::INVALID_OPCODE),
    };
    if shape.read_only { Err(Status::NAMESPACE_WRITE_PROTECTED) } else { Ok(request) }
}

fn blocks(word12: u32) -> u64 {
    u64::from(word12 & 0xffff) + 1
}

/// A range of blocks in bytes, if it lies inside the namespace.
fn range(slba: u64, blocks: u64, shape: &Shape) -> Result<(u64, u64), Status> {
    let end = slba.checked_add(blocks).filter(|end| *end <= shape.blocks);
    match end {
        Some(_) => Ok((slba << shape.block_shift, blocks << shape.block_shift)),
        None => Err(Status::LBA_OUT_OF_RANGE),
    }
}

fn transfer(sqe: &Sqe, shape: &Shape, data_bytes: u32) -> Result<(u64, u32), Status> {
    let word12 = sqe.cdw12.get();
    // There is no protection information here that could be checked or made.
    if word12 & PROTECTION != 0 {
        return Err(Status::INVALID_FIELD);
    }
    let (offset, bytes) = range(sqe.slba(), blocks(word12), shape)?;
    if bytes > u64::from(shape.transfer_bytes_max) {
        return Err(Status::INVALID_FIELD);
    }
    if bytes != u64::from(data_bytes) {
        return Err(Status::INVALID_SGL_LENGTH);
    }
    Ok((offset, data_bytes))
}

/// Ranges of bytes that are no longer needed.
pub type Discards = SmallVec<[(u64, u64); 4]>;

/// The first `ranges` ranges of the data of a Dataset Management command, in bytes.
///
/// # Errors
/// What the command is completed with: nothing is discarded then.
pub fn dataset_ranges(data: &[u8], ranges: usize, shape: &Shape) -> Result<Discards, Status> {
    let all = <[DatasetRange]>::ref_from_bytes(data).map_err(|_| Status::INVALID_SGL_LENGTH)?;
    let named = all.get(..ranges).ok_or(Status::INVALID_SGL_LENGTH)?;
    named
        .iter()
        .filter(|each| each.blocks.get() > 0)
        .map(|each| range(each.slba.get(), u64::from(each.blocks.get()), shape))
        .collect()
}
