//! A contribution on its way to the target that adds up.

use byte_struct::byte_struct;
use zerocopy::little_endian::{U16, U32, U64};

use super::blocks::{self, Blocks};
use super::{Op, is_member, opcode};
use crate::command::{SglDescriptor, Sqe};
use crate::pdu::Unverified;
use crate::status::Status;
use crate::target::io::Shape;

/// Name, offset and size of each field of Peer, for the check of `docs/formats.md`.
pub const PEER_FIELDS: &[(&str, usize, usize)] = RawPeer::FIELDS;

byte_struct! {
    struct RawPeer, 64 bytes {
        0   1   opcode: u8,
        1   1   flags: u8,
        2   2   cid: U16,
        4   4   nsid: U32,
        8   6   op: bytes,
        14  2   op_distance: U16,
        16  8   reserve: bytes,
        24  16  sgl: SglDescriptor,
        40  8   slba: U64,
        48  2   blocks: U16,
        50  2   answer: U16,
        52  4   handle: U32,
        56  1   member: u8,
        57  7   reserve2: bytes,
    }
}

const WHEN_COMPLETE: u16 = 1 << 6;

/// A contribution, already multiplied. Its data is as long as its rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// The op.
    pub op: Op,
    /// The first of its rows, at the target that adds up.
    pub slba: u64,
    /// How many, 1 to 65536.
    pub blocks: u32,
    /// What the target that adds up knows the attach by.
    pub handle: u32,
    /// Index of the member whose contribution it is, also if the host sends it.
    pub member: u8,
    /// It is answered when all contributions are there, and not before: the contributor overwrites then.
    pub answer_when_complete: bool,
}

impl Peer {
    /// The command.
    ///
    /// # Panics
    /// If its op's window is too wide, or it names no member, no rows or too many.
    #[must_use]
    pub fn encode(&self, nsid: u32) -> Sqe {
        assert!(is_member(self.member), "{} is no member's index", self.member);
        let mut raw: RawPeer = zerocopy::transmute!(Sqe::new(opcode::PEER, nsid));
        (raw.op, raw.op_distance) = self.op.to_fields();
        raw.slba.set(self.slba);
        raw.blocks.set(blocks::to_field(self.blocks));
        raw.answer.set(if self.answer_when_complete { WHEN_COMPLETE } else { 0 });
        raw.handle.set(self.handle);
        raw.member = self.member;
        zerocopy::transmute!(raw)
    }

    /// Checks a command against the namespace that it names. `data_bytes` is what [`crate::target::io::check_data`] returned.
    ///
    /// # Errors
    /// What the command is completed with.
    pub fn check(sqe: &Unverified<Sqe>, shape: &Shape, data_bytes: u32) -> Result<Peer, Status> {
        let raw: RawPeer = zerocopy::transmute!(*sqe.as_received());
        if raw.opcode != opcode::PEER {
            return Err(Status::INVALID_OPCODE);
        }
        let answer = raw.answer.get();
        let reserved = raw.reserve != [0; 8] || raw.reserve2 != [0; 7] || answer & !WHEN_COMPLETE != 0;
        if reserved || !is_member(raw.member) {
            return Err(Status::INVALID_FIELD);
        }
        let op = Op::from_fields(raw.op, raw.op_distance)?;
        let rows = Blocks { slba: raw.slba.get(), blocks: blocks::from_field(raw.blocks.get()) };
        if data_bytes != rows.bytes_in(shape)? {
            return Err(Status::INVALID_SGL_LENGTH);
        }
        Ok(Peer {
            op,
            slba: rows.slba,
            blocks: rows.blocks,
            handle: raw.handle.get(),
            member: raw.member,
            answer_when_complete: answer & WHEN_COMPLETE != 0,
        })
    }
}
