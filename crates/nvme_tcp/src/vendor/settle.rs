//! How a host ends an op that not every target has answered for, or learns what became of it.

use byte_struct::byte_struct;
use zerocopy::little_endian::{U16, U32, U64};

use super::{Op, OpNumber, is_member, opcode};
use crate::command::{SglDescriptor, Sqe};
use crate::pdu::Unverified;
use crate::status::Status;

/// Name, offset and size of each field of Settle, for the check of `docs/formats.md`.
pub const SETTLE_FIELDS: &[(&str, usize, usize)] = RawSettle::FIELDS;

byte_struct! {
    struct RawSettle, 64 bytes {
        0   1   opcode: u8,
        1   1   flags: u8,
        2   2   cid: U16,
        4   4   nsid: U32,
        8   6   op: bytes,
        14  2   op_distance: U16,
        16  8   reserve: bytes,
        24  16  sgl: SglDescriptor,
        40  8   attach_key: U64,
        48  1   peer: u8,
        49  1   reserve2: u8,
        50  2   action: U16,
        52  6   new_op: bytes,
        58  6   reserve3: bytes,
    }
}

const ABORT: u16 = 0;
const ASK: u16 = 1;
const RESEND: u16 = 2;
const RELEASE: u16 = 3;

/// Settles an op, or asks about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settle {
    /// The op.
    pub op: Op,
    /// Key of the attach whose op it is; 0: this one.
    pub attach_key: u64,
    /// What becomes of it.
    pub action: SettleAction,
}

/// What becomes of an op.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SettleAction {
    /// What is not being written is dropped and never done; what is being written is waited for.
    Abort,
    /// Nothing: the answer says what was done.
    Ask,
    /// The retained delta goes to a peer again, under another op. The coefficient is the former order's.
    Resend {
        /// Index of the member whose target adds up.
        peer: u8,
        /// The op, of 48 bits and of this attach, under which the delta is added from now on.
        new_op: u64,
    },
    /// The retained delta is dropped.
    Release,
}

impl Settle {
    /// The command.
    ///
    /// # Panics
    /// If its op's window is too wide, or it names no member or no op.
    #[must_use]
    pub fn encode(&self, nsid: u32) -> Sqe {
        let mut raw: RawSettle = zerocopy::transmute!(Sqe::new(opcode::SETTLE, nsid));
        (raw.op, raw.op_distance) = self.op.to_fields();
        raw.attach_key.set(self.attach_key);
        raw.action.set(match self.action {
            SettleAction::Abort => ABORT,
            SettleAction::Ask => ASK,
            SettleAction::Resend { peer, new_op } => {
                assert!(is_member(peer), "{peer} is no member's index");
                raw.peer = peer;
                raw.new_op = OpNumber::new(new_op).expect("an op's number has 48 bits").to_field();
                RESEND
            }
            SettleAction::Release => RELEASE,
        });
        zerocopy::transmute!(raw)
    }

    /// Checks a command. `data_bytes` is what [`crate::target::io::check_data`] returned.
    ///
    /// # Errors
    /// What the command is completed with.
    pub fn check(sqe: &Unverified<Sqe>, data_bytes: u32) -> Result<Settle, Status> {
        let raw: RawSettle = zerocopy::transmute!(*sqe.as_received());
        if raw.opcode != opcode::SETTLE {
            return Err(Status::INVALID_OPCODE);
        }
        if raw.reserve != [0; 8] || raw.reserve2 != 0 || raw.reserve3 != [0; 6] {
            return Err(Status::INVALID_FIELD);
        }
        let (peer, new_op) = (raw.peer, OpNumber::from_field(raw.new_op).get());
        let action = match (raw.action.get(), peer, new_op) {
            (ABORT, 0, 0) => SettleAction::Abort,
            (ASK, 0, 0) => SettleAction::Ask,
            (RESEND, peer, new_op) if is_member(peer) => SettleAction::Resend { peer, new_op },
            (RELEASE, 0, 0) => SettleAction::Release,
            _ => return Err(Status::INVALID_FIELD),
        };
        let op = Op::from_fields(raw.op, raw.op_distance)?;
        if data_bytes != 0 {
            return Err(Status::INVALID_SGL_LENGTH);
        }
        Ok(Settle { op, attach_key: raw.attach_key.get(), action })
    }
}
