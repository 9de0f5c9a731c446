//! The attach report: what a target knows of the attach that a host has at a namespace.

use byte_struct::byte_struct;
use zerocopy::FromBytes;
use zerocopy::little_endian::{U16, U32, U64};

use super::VERSION;

/// Bytes of the report.
pub const REPORT_BYTES: usize = size_of::<RawReport>();
/// Name, offset and size of each of its fields, for the check of `docs/formats.md`.
pub const REPORT_FIELDS: &[(&str, usize, usize)] = RawReport::FIELDS;

const MAGIC: [u8; 8] = *b"TwReport";

byte_struct! {
    struct RawReport, 64 bytes {
        0   8   magic: bytes,
        8   2   version: U16,
        10  2   reserve: bytes,
        12  4   handle: U32,
        16  4   reached: U32,
        20  4   ops_open: U32,
        24  8   boot_id: U64,
        32  8   key: U64,
        40  8   ledger: U64,
        48  8   credit_bytes: U64,
        56  8   reserve2: bytes,
    }
}

/// What a target knows of an attach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttachReport {
    /// What the target knows the attach by.
    pub handle: u32,
    /// Members that the target can send contributions to now, a bit for each index; its own bit is set.
    pub reached: u32,
    /// Ops that are not retired.
    pub ops_open: u32,
    /// The target's boot id, as its capability has it.
    pub boot_id: u64,
    /// Reservation key of the attach.
    pub key: u64,
    /// The ledger of the namespace, complete or not; 0: there is none, or it has ended.
    pub ledger: u64,
    /// Bytes of memory that the target gives for the attach's ops; 0: none, or the members are not known yet.
    pub credit_bytes: u64,
}

impl AttachReport {
    /// The report's bytes.
    #[must_use]
    pub fn encode(&self) -> [u8; REPORT_BYTES] {
        let raw = RawReport {
            magic: MAGIC,
            version: VERSION.into(),
            reserve: [0; 2],
            handle: self.handle.into(),
            reached: self.reached.into(),
            ops_open: self.ops_open.into(),
            boot_id: self.boot_id.into(),
            key: self.key.into(),
            ledger: self.ledger.into(),
            credit_bytes: self.credit_bytes.into(),
            reserve2: [0; 8],
        };
        zerocopy::transmute!(raw)
    }

    /// Reads a report; none if it is none, or of another version.
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Option<AttachReport> {
        let (raw, _) = RawReport::ref_from_prefix(bytes).ok()?;
        (raw.magic == MAGIC && raw.version.get() == VERSION).then(|| AttachReport {
            handle: raw.handle.get(),
            reached: raw.reached.get(),
            ops_open: raw.ops_open.get(),
            boot_id: raw.boot_id.get(),
            key: raw.key.get(),
            ledger: raw.ledger.get(),
            credit_bytes: raw.credit_bytes.get(),
        })
    }
}
