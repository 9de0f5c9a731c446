//! Ledgers: what a target records of a host's writes for the host after it, and the epoch that each command names.

use std::ops::Range;

use byte_struct::byte_struct;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

use super::VERSION;
use crate::command::Sqe;
use crate::status::Status;

/// Name, offset and size of each field of a step, for the check of `docs/formats.md`.
pub const LEDGER_STEP_FIELDS: &[(&str, usize, usize)] = RawStep::FIELDS;
/// Name, offset and size of each field of a ledger's head, for the check of `docs/formats.md`.
pub const LEDGER_FIELDS: &[(&str, usize, usize)] = RawLedger::FIELDS;
/// Name, offset and size of each field of a range, for the check of `docs/formats.md`.
pub const LEDGER_RANGE_FIELDS: &[(&str, usize, usize)] = RawRange::FIELDS;
/// Bytes of the data of a step.
pub const LEDGER_STEP_BYTES: usize = size_of::<RawStep>();
/// Most ranges of a ledger.
pub const LEDGER_RANGES_MAX: usize = 16 << 10;

const MAGIC: [u8; 8] = *b"TwLedger";
const BEGIN: u8 = 0;
const COMPLETE: u8 = 1;
const EPOCH_BITS: u32 = 48;

byte_struct! {
    struct RawStep, 64 bytes {
        0   8   magic: bytes,
        8   2   version: U16,
        10  1   step: u8,
        11  5   reserve: bytes,
        16  8   id: U64,
        24  8   key: U64,
        32  8   area_slba: U64,
        40  8   area_blocks: U64,
        48  16  reserve2: bytes,
    }
}

byte_struct! {
    struct RawLedger, 64 bytes {
        0   8   magic: bytes,
        8   2   version: U16,
        10  2   reserve: bytes,
        12  4   ranges: U32,
        16  8   id: U64,
        24  8   area_slba: U64,
        32  8   area_blocks: U64,
        40  24  reserve2: bytes,
    }
}

byte_struct! {
    struct RawRange, 16 bytes {
        0   8   slba: U64,
        8   8   blocks: U64,
    }
}

/// The epoch in which a command that changes a namespace is sent, and the lowest one in which a write may be under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Epoch {
    /// Its number, of 48 bits; not 0.
    pub number: u64,
    /// At most 65535 below.
    pub lowest: u64,
}

impl Epoch {
    /// Has a command name it: where others would have a pointer to metadata, which no command over fabrics has.
    ///
    /// # Panics
    /// If the number is 0 or has more than 48 bits, or the window is too wide.
    pub fn stamp(self, sqe: &mut Sqe) {
        assert!(self.number != 0 && self.number >> EPOCH_BITS == 0, "an epoch's number has 48 bits");
        let distance = self.number.checked_sub(self.lowest).expect("the lowest is not above");
        let distance = u16::try_from(distance).expect("the window of epochs is not left");
        sqe.metadata.set(u64::from(distance) << EPOCH_BITS | self.number);
    }

    /// The epoch that a command names, if it does.
    #[must_use]
    pub fn of(sqe: &Sqe) -> Option<Epoch> {
        let field = sqe.metadata.get();
        let number = field & ((1 << EPOCH_BITS) - 1);
        let lowest = number.checked_sub(field >> EPOCH_BITS)?;
        (number != 0).then_some(Epoch { number, lowest })
    }
}

/// What becomes of a namespace's ledger.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LedgerAction {
    /// It begins, and lists what changes from now on.
    Begin,
    /// It lists all that is under way.
    Complete,
}

/// A step of a ledger.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LedgerStep {
    /// What becomes of it.
    pub action: LedgerAction,
    /// By which the host knows it, not 0.
    pub id: u64,
    /// Reservation key of the host.
    pub key: u64,
    /// The blocks whose changes are listed.
    pub area: Range<u64>,
}

impl LedgerStep {
    /// The data of the command.
    ///
    /// # Panics
    /// If the id is 0 or the area ends before it begins.
    #[must_use]
    pub fn encode(&self) -> [u8; LEDGER_STEP_BYTES] {
        assert!(self.id != 0 && self.area.start <= self.area.end, "no target takes this step: {self:?}");
        let raw = RawStep {
            magic: MAGIC,
            version: VERSION.into(),
            step: if self.action == LedgerAction::Begin { BEGIN } else { COMPLETE },
            reserve: [0; 5],
            id: self.id.into(),
            key: self.key.into(),
            area_slba: self.area.start.into(),
            area_blocks: (self.area.end - self.area.start).into(),
            reserve2: [0; 16],
        };
        zerocopy::transmute!(raw)
    }

    /// Reads the data of the command.
    ///
    /// # Errors
    /// What the command is completed with.
    pub fn parse(bytes: &[u8]) -> Result<LedgerStep, Status> {
        let raw = RawStep::ref_from_bytes(bytes).map_err(|_| Status::INVALID_SGL_LENGTH)?;
        let reserved = raw.reserve != [0; 5] || raw.reserve2 != [0; 16];
        if raw.magic != MAGIC || raw.version.get() != VERSION || reserved || raw.id.get() == 0 {
            return Err(Status::INVALID_FIELD);
        }
        let action = match raw.step {
            BEGIN => LedgerAction::Begin,
            COMPLETE => LedgerAction::Complete,
            _ => return Err(Status::INVALID_FIELD),
        };
        let area = blocks(raw.area_slba, raw.area_blocks).ok_or(Status::LBA_OUT_OF_RANGE)?;
        Ok(LedgerStep { action, id: raw.id.get(), key: raw.key.get(), area })
    }
}

/// What a target's ledger says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LedgerReport {
    /// By which its host knows it; 0: there is none that is complete.
    pub id: u64,
    /// The blocks whose changes are listed.
    pub area: Range<u64>,
    /// Blocks that may be half done, ascending.
    pub ranges: Vec<Range<u64>>,
}

/// Why a report was not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoLedger {
    /// It is none, or of another version.
    Invalid,
    /// It has so many bytes.
    Longer(usize),
}

impl LedgerReport {
    /// No complete ledger.
    pub const NONE: LedgerReport = LedgerReport { id: 0, area: 0..0, ranges: Vec::new() };

    /// The report's bytes, as many as there is room for.
    #[must_use]
    pub fn encode(&self, room: usize) -> Vec<u8> {
        let mut raw = RawLedger::new_zeroed();
        raw.magic = MAGIC;
        raw.version.set(VERSION);
        raw.ranges.set(self.ranges.len() as u32);
        raw.id.set(self.id);
        raw.area_slba.set(self.area.start);
        raw.area_blocks.set(self.area.end - self.area.start);
        let mut bytes = raw.as_bytes().to_vec();
        for range in &self.ranges {
            let raw = RawRange { slba: range.start.into(), blocks: (range.end - range.start).into() };
            bytes.extend_from_slice(raw.as_bytes());
        }
        bytes.truncate(room);
        bytes
    }

    /// Reads a report.
    ///
    /// # Errors
    /// [`NoLedger`].
    pub fn parse(bytes: &[u8]) -> Result<LedgerReport, NoLedger> {
        let (raw, rest) = RawLedger::ref_from_prefix(bytes).map_err(|_| NoLedger::Invalid)?;
        let count = raw.ranges.get() as usize;
        if raw.magic != MAGIC || raw.version.get() != VERSION || count > LEDGER_RANGES_MAX {
            return Err(NoLedger::Invalid);
        }
        let longer = NoLedger::Longer(size_of::<RawLedger>() + count * size_of::<RawRange>());
        let (ranges, _) = <[RawRange]>::ref_from_prefix_with_elems(rest, count).map_err(|_| longer)?;
        let ranges: Option<Vec<_>> = ranges.iter().map(|raw| blocks(raw.slba, raw.blocks)).collect();
        let area = blocks(raw.area_slba, raw.area_blocks).ok_or(NoLedger::Invalid)?;
        Ok(LedgerReport { id: raw.id.get(), area, ranges: ranges.ok_or(NoLedger::Invalid)? })
    }
}

fn blocks(slba: U64, count: U64) -> Option<Range<u64>> {
    Some(slba.get()..slba.get().checked_add(count.get())?)
}
