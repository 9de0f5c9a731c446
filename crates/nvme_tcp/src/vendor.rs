//! Twill's own commands: orders by which targets make parity among themselves, what one target sends another, how an op is
//! settled, and what an attach tells each target.
//!
//! Values and their bytes, which `docs/formats.md` draws. Each is encoded into a submission queue entry and read back by its
//! `check`, in the manner of [`crate::target::io`].
//!
//! Invariants:
//! - F-I15: what is read was checked against the namespace and the limits here; lengths are checked before memory is taken.
//! - F-I16: namespaces, keys, handles, ops and coefficients, and no geometry.
//! - What `check` refuses by itself, `encode` asserts: no Twill host sends it.

mod attach;
mod blocks;
mod capability;
mod ledger;
mod op;
mod order;
mod outcome;
mod peer;
mod report;
mod settle;

pub use attach::{ATTACH_BYTES_MAX, ATTACH_FIELDS, ATTACH_MEMBER_FIELDS, AttachMember, AttachRecord, Ticket};
pub use blocks::Blocks;
pub use capability::{CAPABILITY_BYTES, CAPABILITY_FIELDS, Capability};
pub use ledger::{
    Epoch, LEDGER_FIELDS, LEDGER_RANGE_FIELDS, LEDGER_RANGES_MAX, LEDGER_STEP_BYTES, LEDGER_STEP_FIELDS,
    LedgerAction, LedgerReport, LedgerStep, NoLedger,
};
pub use op::{OP_DISTANCE_MAX, Op, OpNumber};
pub use order::{ContributeHow, Destination, ORDER_FIELDS, Order, OrderKind, ReduceBase, Sink};
pub use outcome::Outcome;
pub use peer::{PEER_FIELDS, Peer};
pub use report::{AttachReport, REPORT_BYTES, REPORT_FIELDS};
pub use settle::{SETTLE_FIELDS, Settle, SettleAction};

/// Opcodes of I/O commands. As everywhere, their two lowest bits say which way data goes.
pub mod opcode {
    /// Writes the data that comes, and contributes.
    pub const CONTRIBUTE_NEW: u8 = 0xc1;
    /// Contributes what is there, or makes rows read as zeroes.
    pub const CONTRIBUTE: u8 = 0xc4;
    /// Contributes what is there, and returns own rows.
    pub const CONTRIBUTE_AND_READ: u8 = 0xc6;
    /// Adds contributions up, onto the drive.
    pub const REDUCE_TO_DRIVE: u8 = 0xc8;
    /// Adds contributions up, for the host.
    pub const REDUCE_TO_HOST: u8 = 0xca;
    /// Brings a contribution to the target that adds up.
    pub const PEER: u8 = 0xcd;
    /// Ends an op, or asks about it.
    pub const SETTLE: u8 = 0xd0;
    /// Reads a retained delta.
    pub const DELTA: u8 = 0xd6;
}

/// Opcodes of admin commands.
pub mod admin_opcode {
    /// Tells a target of the attach and its members.
    pub const ATTACH: u8 = 0xc1;
    /// Reads what a target knows of the attach.
    pub const ATTACH_REPORT: u8 = 0xc6;
    /// Proves to a target that a connection is another target's.
    pub const PEER_OPEN: u8 = 0xc9;
    /// Has a target record what a host changes, for the next one.
    pub const LEDGER_STEP: u8 = 0xd1;
    /// Reads what a target has recorded.
    pub const LEDGER: u8 = 0xd2;
}

/// The version of these commands and of the attach record.
pub const VERSION: u16 = 2;
/// Members of an attach; wider arrays do without these commands. Peers are their indices.
pub const MEMBERS_MAX: usize = 32;
/// Bytes of own rows, and of contributed or reduced rows, in one order.
pub const ORDER_BYTES_MAX: u32 = 4 << 20;

/// If a number is an index of a member.
fn is_member(index: u8) -> bool {
    usize::from(index) < MEMBERS_MAX
}
