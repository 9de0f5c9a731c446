//! Numbers of ops, and how far retiring has come.

use zerocopy::little_endian::U16;

use crate::status::Status;

/// How far an op may be above the lowest one that is not retired.
pub const OP_DISTANCE_MAX: u16 = u16::MAX;

/// The number of an op, as its field of 48 bits holds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct OpNumber(u64);

impl OpNumber {
    /// The largest.
    pub const MAX: OpNumber = OpNumber((1 << 48) - 1);

    /// A number; none if it has more than 48 bits.
    #[must_use]
    pub const fn new(number: u64) -> Option<OpNumber> {
        if number <= Self::MAX.0 { Some(OpNumber(number)) } else { None }
    }

    /// The number.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }

    pub(super) fn to_field(self) -> [u8; 6] {
        let [a, b, c, d, e, f, _, _] = self.0.to_le_bytes();
        [a, b, c, d, e, f]
    }

    pub(super) fn from_field([a, b, c, d, e, f]: [u8; 6]) -> OpNumber {
        OpNumber(u64::from_le_bytes([a, b, c, d, e, f, 0, 0]))
    }
}

/// The op that a command belongs to, and the lowest one that is not retired: every command retires all below it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Op {
    /// Its number, of 48 bits.
    pub number: u64,
    /// The lowest number that is not retired, at most [`OP_DISTANCE_MAX`] below.
    pub lowest: u64,
}

impl Op {
    /// The fields of a command: the number, and how far the lowest is below.
    pub(super) fn to_fields(self) -> ([u8; 6], U16) {
        let number = OpNumber::new(self.number).expect("an op's number has 48 bits");
        let distance = self.number.checked_sub(self.lowest).expect("an op that is sent is not retired");
        let distance = u16::try_from(distance).expect("the window of ops is not left");
        (number.to_field(), U16::new(distance))
    }

    pub(super) fn from_fields(number: [u8; 6], distance: U16) -> Result<Op, Status> {
        let number = OpNumber::from_field(number).get();
        let lowest = number.checked_sub(distance.get().into()).ok_or(Status::INVALID_FIELD)?;
        Ok(Op { number, lowest })
    }
}
