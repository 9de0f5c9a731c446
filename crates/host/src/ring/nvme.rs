//! Commands of NVMe's own, through the generic device of a namespace: Zone Append, writes and reads with metadata, and
//! changes of zones. What they carry, how they look on the wire, and what their status means.
//!
//! Invariants:
//! - A command owns its data and metadata until its completion was seen, as every operation does.
//! - A command is sent once. One that was aborted may have been carried out, an append at a place that no answer tells: it has
//!   failed, and is not repeated.

use engine::buffer::{Buffer, Gather, Slice};
use engine::device::DeviceErrorKind;
use engine::zone_device::ZoneChange;

use super::system_call::{Descriptor, NvmeWire, SystemCall, Vectors};

/// Force unit access: bit 30 of dword 12 of a write and of an append.
const FUA: u32 = 1 << 30;

/// Statuses become results below every error number: `STATUS_BASE - status`.
const STATUS_BASE: i32 = -0x1_0000;

/// Status code type and status code, without the bits that say whether to retry and whether there is more to know.
const STATUS_MASK: i32 = 0x7ff;

/// What a command does.
#[derive(Debug)]
pub(crate) enum NvmeIo {
    /// Writes where the drive likes, in the zone that begins at the address.
    Append {
        data: Gather,
        metadata: Option<Slice>,
        fua: bool,
    },
    Write {
        data: Gather,
        metadata: Option<Slice>,
        fua: bool,
    },
    Read {
        data: Buffer,
        metadata: Buffer,
    },
    Change(ZoneChange),
}

/// A command with all that it owns.
#[derive(Debug)]
pub(crate) struct NvmeCommand {
    pub io: NvmeIo,
    pub namespace: u32,
    /// The address: a logical block.
    pub first_block: u64,
    /// Logical blocks that are moved; 0 for a change of a zone.
    pub blocks: u32,
    /// Where that is on the device, and how long, in bytes: for messages.
    pub offset_bytes: u64,
    pub bytes: u64,
    /// What the drive answers: of an append, the first logical block that it wrote.
    pub answer: u64,
    wire: NvmeWire,
}

impl NvmeCommand {
    pub fn new(io: NvmeIo, namespace: u32, (first_block, blocks): (u64, u32), at: (u64, u64)) -> Box<Self> {
        let (offset_bytes, bytes) = at;
        let (answer, wire) = (0, NvmeWire::default());
        Box::new(NvmeCommand { io, namespace, first_block, blocks, offset_bytes, bytes, answer, wire })
    }

    pub fn changes_contents(&self) -> bool {
        !matches!(self.io, NvmeIo::Read { .. })
    }

    pub fn describe(&self) -> (&'static str, u64, u64) {
        let name = match &self.io {
            NvmeIo::Append { .. } => "append",
            NvmeIo::Write { .. } => "write",
            NvmeIo::Read { .. } => "read",
            NvmeIo::Change(change) => change.name(),
        };
        (name, self.offset_bytes, self.bytes)
    }

    /// The buffers of a read.
    pub fn into_buffers(self) -> (Buffer, Buffer) {
        match self.io {
            NvmeIo::Read { data, metadata } => (data, metadata),
            _ => unreachable!("only reads have buffers to give back"),
        }
    }

    /// The call. `vectors` belongs to the slot.
    pub(super) fn call(&mut self, fd: Descriptor, vectors: &mut Option<Box<Vectors>>) -> SystemCall {
        let block = [self.first_block as u32, (self.first_block >> 32) as u32];
        let count = self.blocks.wrapping_sub(1) & 0xffff;
        let wire = &mut self.wire;
        *wire = NvmeWire { namespace: self.namespace, ..NvmeWire::default() };
        let mut vectored = false;
        let dwords_12_and_13 = match &mut self.io {
            NvmeIo::Append { data, metadata, fua } | NvmeIo::Write { data, metadata, fua } => {
                vectored = put_data(wire, data, metadata.as_ref(), vectors);
                [count | if *fua { FUA } else { 0 }, 0]
            }
            NvmeIo::Read { data, metadata } => {
                wire.address = data.bytes_mut().as_mut_ptr() as u64;
                wire.data_length = length(data.len());
                wire.metadata = metadata.bytes_mut().as_mut_ptr() as u64;
                wire.metadata_bytes = length(metadata.len());
                [count, 0]
            }
            NvmeIo::Change(change) => [0, action(*change)],
        };
        wire.opcode = opcode(&self.io);
        wire.dwords_10 = [block[0], block[1], dwords_12_and_13[0], dwords_12_and_13[1], 0, 0];
        SystemCall::Nvme { fd, command: &raw const *wire, vectored }
    }
}

/// Names the memory of a write. Returns whether it is a list of pieces.
fn put_data(
    wire: &mut NvmeWire,
    data: &Gather,
    metadata: Option<&Slice>,
    vectors: &mut Option<Box<Vectors>>,
) -> bool {
    if let Some(metadata) = metadata {
        wire.metadata = metadata.bytes().as_ptr() as u64;
        wire.metadata_bytes = length(metadata.len());
    }
    if let [slice] = data.slices() {
        wire.address = slice.bytes().as_ptr() as u64;
        wire.data_length = length(slice.len());
        return false;
    }
    let pieces = &Vectors::list(vectors, data, 0).pieces;
    wire.address = pieces.as_ptr() as u64;
    wire.data_length = length(pieces.len());
    true
}

fn length(length: usize) -> u32 {
    u32::try_from(length).expect("a command is shorter than 4 GiB")
}

/// The opcode in NVMe's command sets.
fn opcode(io: &NvmeIo) -> u8 {
    match io {
        NvmeIo::Write { .. } => 0x01,
        NvmeIo::Read { .. } => 0x02,
        NvmeIo::Change(_) => 0x79,
        NvmeIo::Append { .. } => 0x7d,
    }
}

/// The action of a Zone Management Send, in dword 13.
fn action(change: ZoneChange) -> u32 {
    match change {
        ZoneChange::Close => 1,
        ZoneChange::Finish => 2,
        ZoneChange::Open => 3,
        ZoneChange::Reset => 4,
    }
}

/// The result of an operation, of what the driver says: 0, a negated error number, or a status.
pub(super) fn outcome(result: i32) -> i32 {
    if result <= 0 {
        return result;
    }
    tracing::debug!(status = format!("{result:#x}"), "a drive refused a command");
    STATUS_BASE - (result & STATUS_MASK)
}

/// What the drive's status means, if a result is one. None: it is an error number.
pub(super) fn kind_of(result: i32) -> Option<DeviceErrorKind> {
    let status = STATUS_BASE - result;
    if !(0..=STATUS_MASK).contains(&status) {
        return None;
    }
    Some(match status {
        // Generic: invalid opcode, field, namespace or format; beyond the last block; too large a command.
        0x01 => DeviceErrorKind::Unsupported,
        0x02 | 0x0b | 0x0d | 0x80 => DeviceErrorKind::Invalid,
        0x81 => DeviceErrorKind::NoSpace,
        // Of the Zoned Namespaces command set: boundary error and full; read-only, offline and transition; invalid write; active and open.
        0x1b8 | 0x1b9 => DeviceErrorKind::ZoneFull,
        0x1ba | 0x1bb | 0x1bf => DeviceErrorKind::ZoneState,
        0x1bc => DeviceErrorKind::NotAtPointer,
        0x1bd | 0x1be => DeviceErrorKind::TooManyOpen,
        // Media errors, aborted commands, paths that failed, and all that is not known here.
        _ => DeviceErrorKind::Io,
    })
}

/// The result of an operation that is refused as a drive would, for this reason.
pub(crate) fn refusal(kind: DeviceErrorKind) -> i32 {
    STATUS_BASE
        - match kind {
            DeviceErrorKind::Unsupported => 0x01,
            DeviceErrorKind::Invalid => 0x02,
            DeviceErrorKind::NoSpace => 0x81,
            DeviceErrorKind::ZoneFull => 0x1b9,
            DeviceErrorKind::ZoneState => 0x1ba,
            DeviceErrorKind::NotAtPointer => 0x1bc,
            DeviceErrorKind::TooManyOpen => 0x1bd,
            DeviceErrorKind::Io
            | DeviceErrorKind::Gone
            | DeviceErrorKind::Timeout
            | DeviceErrorKind::Fenced => 0x281,
        }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wire(io: NvmeIo, blocks: u32) -> (NvmeWire, bool, Option<Box<Vectors>>) {
        let mut vectors = None;
        let mut command = NvmeCommand::new(io, 3, (0x1_2345_6789, blocks), (0, 0));
        let SystemCall::Nvme { vectored, .. } = command.call(Descriptor::Plain(7), &mut vectors) else {
            panic!("a command")
        };
        (command.wire, vectored, vectors)
    }

    #[test]
    fn an_append_names_its_zone_its_length_and_its_memory() {
        let (data, metadata) = (Slice::from_bytes(&[1; 8192]), Slice::from_bytes(&[2; 128]));
        let io = NvmeIo::Append { data: data.clone().into(), metadata: Some(metadata.clone()), fua: true };
        let (wire, vectored, _) = wire(io, 2);
        assert!(!vectored);
        assert_eq!((wire.opcode, wire.namespace), (0x7d, 3));
        assert_eq!(wire.dwords_10, [0x2345_6789, 1, 0x4000_0001, 0, 0, 0]);
        assert_eq!((wire.address, wire.data_length), (data.bytes().as_ptr() as u64, 8192));
        assert_eq!((wire.metadata, wire.metadata_bytes), (metadata.bytes().as_ptr() as u64, 128));
    }

    #[test]
    fn several_pieces_make_a_list() {
        let data: Gather = [[1u8; 4096], [2; 4096]].iter().map(|bytes| Slice::from_bytes(bytes)).collect();
        let (wire, vectored, vectors) = wire(NvmeIo::Write { data, metadata: None, fua: false }, 2);
        let pieces = &vectors.expect("a list").pieces;
        assert!(vectored && pieces.len() == 2);
        assert_eq!((wire.opcode, wire.address, wire.data_length), (0x01, pieces.as_ptr() as u64, 2));
        assert_eq!((wire.dwords_10[2], wire.metadata, wire.metadata_bytes), (1, 0, 0));
    }

    #[test]
    fn changes_have_their_action() {
        for (change, action) in
            [(ZoneChange::Close, 1), (ZoneChange::Finish, 2), (ZoneChange::Open, 3), (ZoneChange::Reset, 4)]
        {
            let (wire, ..) = wire(NvmeIo::Change(change), 0);
            assert_eq!((wire.opcode, wire.dwords_10[2], wire.dwords_10[3]), (0x79, 0, action));
            assert_eq!((wire.address, wire.data_length), (0, 0));
        }
    }

    #[test]
    fn a_refusal_comes_back_as_its_kind() {
        use DeviceErrorKind::{
            Invalid, Io, NoSpace, NotAtPointer, TooManyOpen, Unsupported, ZoneFull, ZoneState,
        };
        for kind in [Unsupported, Invalid, NoSpace, ZoneFull, ZoneState, NotAtPointer, TooManyOpen, Io] {
            assert_eq!(kind_of(refusal(kind)), Some(kind));
        }
    }

    #[test]
    fn each_status_has_its_kind() {
        for (status, kind) in [
            (0x41bc, DeviceErrorKind::NotAtPointer),
            (0x41b9, DeviceErrorKind::ZoneFull),
            (0x41b8, DeviceErrorKind::ZoneFull),
            (0x41ba, DeviceErrorKind::ZoneState),
            (0x41bf, DeviceErrorKind::ZoneState),
            (0x41bd, DeviceErrorKind::TooManyOpen),
            (0x1be, DeviceErrorKind::TooManyOpen),
            (0x4002, DeviceErrorKind::Invalid),
            (0x281, DeviceErrorKind::Io),
        ] {
            assert_eq!(kind_of(outcome(status)), Some(kind), "{status:#x}");
        }
        for errno in [libc::EINTR, libc::EIO, libc::ETIMEDOUT, 4095] {
            assert_eq!((outcome(-errno), kind_of(-errno)), (-errno, None));
        }
        assert_eq!((outcome(0), kind_of(i32::MIN), kind_of(i32::MIN + 1)), (0, None, None));
    }
}
