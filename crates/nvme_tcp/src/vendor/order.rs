//! An order: what one target does of an op, as contributor or as the one that adds up.

use byte_struct::byte_struct;
use zerocopy::little_endian::{I32, U16, U32, U64};

use super::blocks::{self, Blocks};
use super::{MEMBERS_MAX, Op, is_member, opcode};
use crate::command::{SglDescriptor, Sqe};
use crate::pdu::Unverified;
use crate::status::Status;
use crate::target::io::Shape;

/// Name, offset and size of each field of an order, for the check of `docs/formats.md`.
pub const ORDER_FIELDS: &[(&str, usize, usize)] = RawOrder::FIELDS;

byte_struct! {
    struct RawOrder, 64 bytes {
        0   1   opcode: u8,
        1   1   flags: u8,
        2   2   cid: U16,
        4   4   nsid: U32,
        8   6   op: bytes,
        14  2   op_distance: U16,
        16  8   epoch: U64,
        24  16  sgl: SglDescriptor,
        40  8   slba: U64,
        48  2   own_blocks: U16,
        50  2   how: U16,
        52  4   rows_distance: I32,
        56  2   rows_blocks: U16,
        58  1   peer: u8,
        59  1   coefficient: u8,
        60  1   peer2: u8,
        61  1   coefficient2: u8,
        62  1   contributions: u8,
        63  1   reserve2: u8,
    }
}

const HOW: u16 = 0xf;
const OWN_EMPTY: u16 = 1 << 4;
const COMPARE_ONLY: u16 = 1 << 5;
const FUA: u16 = 1 << 14;

const CONTRIBUTE_OLD: u16 = 0;
const CONTRIBUTE_DELTA: u16 = 1;
const CONTRIBUTE_OVERLAY: u16 = 2;
const CONTRIBUTE_ZEROES: u16 = 3;
const REDUCE_ZERO: u16 = 0;
const REDUCE_OLD: u16 = 1;
const REDUCE_OWN: u16 = 2;

/// No peer stands in the field.
const NO_PEER: u8 = 0xff;

/// What one target does of an op.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Order {
    /// The op.
    pub op: Op,
    /// Rows of the target's own that are written with the data that comes, or returned to the host.
    pub own: Option<Blocks>,
    /// Where own rows begin if there are any. The other rows are at most 2^31 blocks from here.
    pub slba: u64,
    /// The target's part.
    pub kind: OrderKind,
    /// The rows that are contributed, reduced or zeroed.
    pub rows: Blocks,
    /// What is written is durable before the order is answered.
    pub fua: bool,
}

/// A target's part in an op.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OrderKind {
    /// It multiplies its rows by a coefficient for each destination, and sends them there.
    Contribute {
        /// What of its rows.
        how: ContributeHow,
        /// Where to. No two are the same; without any, the order writes or reads and no more.
        destinations: [Option<Destination>; 2],
        /// The own rows are returned to the host, as they are before any change. Only with [`ContributeHow::Old`].
        returns_own: bool,
    },
    /// It adds contributions up.
    Reduce {
        /// What it adds them to.
        base: ReduceBase,
        /// Contributions to wait for, at most [`MEMBERS_MAX`].
        contributions: u8,
        /// Where the sum goes.
        sink: Sink,
        /// The sum is compared with the drive and not written. Only with [`Sink::Drive`].
        compare_only: bool,
    },
}

/// What a contributor sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ContributeHow {
    /// The rows as they are on the drive.
    Old,
    /// Old contents xor the data that comes, which is written: own rows are the rows.
    Delta,
    /// Old contents with the data that comes laid over, which is written: own rows are among the rows.
    Overlay,
    /// Nothing: the rows become zeroes, without destinations and without data.
    Zeroes,
}

/// What contributions are added to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReduceBase {
    /// Zeroes.
    Zero,
    /// The rows as they are on the drive.
    Old,
    /// The rows as they are on the drive, multiplied: the target is a contributor as well.
    Own {
        /// By this.
        coefficient: u8,
    },
}

/// Where a sum goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sink {
    /// Onto the drive, at the rows. There are no own rows.
    Drive,
    /// To the host, behind the own rows.
    Host,
}

/// Where a contribution goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Destination {
    /// Index of the member whose target adds up.
    pub peer: u8,
    /// What the contribution is multiplied by.
    pub coefficient: u8,
}

impl Order {
    /// The command.
    ///
    /// # Panics
    /// If the order is none that a target takes, its op's window is too wide, or rows are too far from own rows.
    #[must_use]
    pub fn encode(&self, nsid: u32) -> Sqe {
        assert!(self.makes_sense(), "no target takes this order: {self:?}");
        let mut raw: RawOrder = zerocopy::transmute!(Sqe::new(self.opcode(), nsid));
        (raw.op, raw.op_distance) = self.op.to_fields();
        raw.slba.set(self.slba);
        let own = match self.own {
            Some(own) => {
                raw.own_blocks.set(blocks::to_field(own.blocks));
                0
            }
            None => OWN_EMPTY,
        };
        let distance = i128::from(self.rows.slba) - i128::from(self.slba);
        raw.rows_distance.set(i32::try_from(distance).expect("rows are near own rows"));
        raw.rows_blocks.set(blocks::to_field(self.rows.blocks));
        (raw.peer, raw.peer2) = (NO_PEER, NO_PEER);
        let how = match self.kind {
            OrderKind::Contribute { how, destinations: [first, second], .. } => {
                (raw.peer, raw.coefficient) = Destination::to_fields(first);
                (raw.peer2, raw.coefficient2) = Destination::to_fields(second);
                how.number()
            }
            OrderKind::Reduce { base, contributions, compare_only, .. } => {
                raw.contributions = contributions;
                raw.coefficient = if let ReduceBase::Own { coefficient } = base { coefficient } else { 0 };
                base.number() | if compare_only { COMPARE_ONLY } else { 0 }
            }
        };
        raw.how.set(how | own | if self.fua { FUA } else { 0 });
        zerocopy::transmute!(raw)
    }

    /// Checks a command against the namespace that it names. `data_bytes` is what [`crate::target::io::check_data`] returned.
    ///
    /// # Errors
    /// What the command is completed with.
    pub fn check(sqe: &Unverified<Sqe>, shape: &Shape, data_bytes: u32) -> Result<Order, Status> {
        let raw: RawOrder = zerocopy::transmute!(*sqe.as_received());
        let order = raw.order()?;
        if !order.makes_sense() {
            return Err(Status::INVALID_FIELD);
        }
        let rows_bytes = order.rows.bytes_in(shape)?;
        let own_bytes = order.own.map_or(Ok(0), |own| own.bytes_in(shape))?;
        let expected = match raw.opcode {
            opcode::CONTRIBUTE_NEW | opcode::CONTRIBUTE_AND_READ => own_bytes,
            opcode::REDUCE_TO_HOST => own_bytes + rows_bytes,
            _ => 0,
        };
        if data_bytes != expected {
            return Err(Status::INVALID_SGL_LENGTH);
        }
        if shape.read_only && order.writes() {
            return Err(Status::NAMESPACE_WRITE_PROTECTED);
        }
        Ok(order)
    }

    /// The opcode of the command.
    #[must_use]
    pub fn opcode(&self) -> u8 {
        match self.kind {
            OrderKind::Contribute { how: ContributeHow::Delta | ContributeHow::Overlay, .. } => {
                opcode::CONTRIBUTE_NEW
            }
            OrderKind::Contribute { returns_own: true, .. } => opcode::CONTRIBUTE_AND_READ,
            OrderKind::Contribute { .. } => opcode::CONTRIBUTE,
            OrderKind::Reduce { sink: Sink::Drive, .. } => opcode::REDUCE_TO_DRIVE,
            OrderKind::Reduce { sink: Sink::Host, .. } => opcode::REDUCE_TO_HOST,
        }
    }

    /// If it changes the drive.
    #[must_use]
    pub fn writes(&self) -> bool {
        match self.kind {
            OrderKind::Contribute { how, .. } => how != ContributeHow::Old,
            OrderKind::Reduce { sink, compare_only, .. } => sink == Sink::Drive && !compare_only,
        }
    }

    /// Blocks of data that the host sends.
    #[must_use]
    pub fn data_out_blocks(&self) -> u32 {
        if self.opcode() == opcode::CONTRIBUTE_NEW { self.own_blocks() } else { 0 }
    }

    /// Blocks of data that the host gets: own rows, then those of the sum.
    #[must_use]
    pub fn data_in_blocks(&self) -> u32 {
        match self.opcode() {
            opcode::CONTRIBUTE_AND_READ => self.own_blocks(),
            opcode::REDUCE_TO_HOST => self.own_blocks() + self.rows.blocks,
            _ => 0,
        }
    }

    fn own_blocks(&self) -> u32 {
        self.own.map_or(0, |own| own.blocks)
    }

    /// What holds of every order, whatever the namespace.
    fn makes_sense(&self) -> bool {
        if self.own.is_some_and(|own| own.slba != self.slba) {
            return false;
        }
        match self.kind {
            OrderKind::Contribute { how, destinations, returns_own } => {
                let own_fits = match how {
                    ContributeHow::Old => self.own.is_some() == returns_own,
                    ContributeHow::Delta => self.own == Some(self.rows) && !returns_own,
                    ContributeHow::Overlay => {
                        self.own.is_some_and(|own| self.rows.contains(&own)) && !returns_own
                    }
                    ContributeHow::Zeroes => {
                        self.own.is_none() && destinations == [None, None] && !returns_own
                    }
                };
                own_fits && destinations_make_sense(destinations)
            }
            OrderKind::Reduce { contributions, sink, compare_only, .. } => {
                let sink_fits = match sink {
                    Sink::Drive => self.own.is_none(),
                    Sink::Host => !compare_only,
                };
                sink_fits && usize::from(contributions) <= MEMBERS_MAX
            }
        }
    }
}

/// One member is not sent two contributions of one op by another: the second would be refused there.
fn destinations_make_sense(destinations: [Option<Destination>; 2]) -> bool {
    let [first, second] = destinations.map(|destination| destination.map(|destination| destination.peer));
    [first, second].into_iter().flatten().all(is_member) && (first.is_none() || first != second)
}

impl RawOrder {
    fn order(&self) -> Result<Order, Status> {
        let kind = self.kind()?;
        let how = self.how.get();
        let (own_is_empty, own_blocks) = (how & OWN_EMPTY != 0, self.own_blocks.get());
        if self.reserve2 != 0 || own_is_empty && own_blocks != 0 {
            return Err(Status::INVALID_FIELD);
        }
        let slba = self.slba.get();
        let rows_slba = slba.checked_add_signed(self.rows_distance.get().into());
        Ok(Order {
            op: Op::from_fields(self.op, self.op_distance)?,
            own: (!own_is_empty).then(|| Blocks { slba, blocks: blocks::from_field(own_blocks) }),
            slba,
            kind,
            rows: Blocks {
                slba: rows_slba.ok_or(Status::LBA_OUT_OF_RANGE)?,
                blocks: blocks::from_field(self.rows_blocks.get()),
            },
            fua: how & FUA != 0,
        })
    }

    fn kind(&self) -> Result<OrderKind, Status> {
        match self.opcode {
            opcode::CONTRIBUTE_NEW | opcode::CONTRIBUTE | opcode::CONTRIBUTE_AND_READ => self.contribute(),
            opcode::REDUCE_TO_DRIVE | opcode::REDUCE_TO_HOST => self.reduce(),
            _ => Err(Status::INVALID_OPCODE),
        }
    }

    fn contribute(&self) -> Result<OrderKind, Status> {
        let how = self.how.get();
        let known = match (self.opcode, how & HOW) {
            (opcode::CONTRIBUTE_NEW, CONTRIBUTE_DELTA) => ContributeHow::Delta,
            (opcode::CONTRIBUTE_NEW, CONTRIBUTE_OVERLAY) => ContributeHow::Overlay,
            (opcode::CONTRIBUTE | opcode::CONTRIBUTE_AND_READ, CONTRIBUTE_OLD) => ContributeHow::Old,
            (opcode::CONTRIBUTE, CONTRIBUTE_ZEROES) => ContributeHow::Zeroes,
            _ => return Err(Status::INVALID_FIELD),
        };
        if how & !(HOW | OWN_EMPTY | FUA) != 0 || self.contributions != 0 {
            return Err(Status::INVALID_FIELD);
        }
        Ok(OrderKind::Contribute {
            how: known,
            destinations: [
                Destination::from_fields(self.peer, self.coefficient)?,
                Destination::from_fields(self.peer2, self.coefficient2)?,
            ],
            returns_own: self.opcode == opcode::CONTRIBUTE_AND_READ,
        })
    }

    fn reduce(&self) -> Result<OrderKind, Status> {
        let how = self.how.get();
        let base = match (how & HOW, self.coefficient) {
            (REDUCE_ZERO, 0) => ReduceBase::Zero,
            (REDUCE_OLD, 0) => ReduceBase::Old,
            (REDUCE_OWN, coefficient) => ReduceBase::Own { coefficient },
            _ => return Err(Status::INVALID_FIELD),
        };
        let has_peers = (self.peer, self.peer2, self.coefficient2) != (NO_PEER, NO_PEER, 0);
        if how & !(HOW | OWN_EMPTY | COMPARE_ONLY | FUA) != 0 || has_peers {
            return Err(Status::INVALID_FIELD);
        }
        Ok(OrderKind::Reduce {
            base,
            contributions: self.contributions,
            sink: if self.opcode == opcode::REDUCE_TO_HOST { Sink::Host } else { Sink::Drive },
            compare_only: how & COMPARE_ONLY != 0,
        })
    }
}

impl ContributeHow {
    fn number(self) -> u16 {
        match self {
            ContributeHow::Old => CONTRIBUTE_OLD,
            ContributeHow::Delta => CONTRIBUTE_DELTA,
            ContributeHow::Overlay => CONTRIBUTE_OVERLAY,
            ContributeHow::Zeroes => CONTRIBUTE_ZEROES,
        }
    }
}

impl ReduceBase {
    fn number(self) -> u16 {
        match self {
            ReduceBase::Zero => REDUCE_ZERO,
            ReduceBase::Old => REDUCE_OLD,
            ReduceBase::Own { .. } => REDUCE_OWN,
        }
    }
}

impl Destination {
    fn to_fields(destination: Option<Destination>) -> (u8, u8) {
        destination.map_or((NO_PEER, 0), |Destination { peer, coefficient }| (peer, coefficient))
    }

    fn from_fields(peer: u8, coefficient: u8) -> Result<Option<Destination>, Status> {
        match (peer, coefficient) {
            (NO_PEER, 0) => Ok(None),
            (NO_PEER, _) => Err(Status::INVALID_FIELD),
            _ => Ok(Some(Destination { peer, coefficient })),
        }
    }
}
