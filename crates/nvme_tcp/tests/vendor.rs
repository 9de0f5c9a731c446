//! Twill's own commands: what is encoded is read back, bytes are where the documentation draws them, and whatever a field may
//! not have is refused by its status.

use nvme_tcp::command::{Direction, Sqe};
use nvme_tcp::discovery::{DiscoveryEntry, ENTRY_BYTES, SubsystemType};
use nvme_tcp::names::Nqn;
use nvme_tcp::pdu::Unverified;
use nvme_tcp::status::Status;
use nvme_tcp::target::io::Shape;
use nvme_tcp::vendor::{
    ATTACH_BYTES_MAX, AttachMember, AttachRecord, Blocks, CAPABILITY_BYTES, Capability, ContributeHow,
    Destination, MEMBERS_MAX, Op, OpNumber, Order, OrderKind, Outcome, Peer, ReduceBase, Settle,
    SettleAction, Sink, Ticket, VERSION, admin_opcode, opcode,
};

const SHAPE: Shape = Shape { blocks: 1 << 41, block_shift: 9, read_only: false, transfer_bytes_max: 1 << 20 };
const READ_ONLY: Shape = Shape { read_only: true, ..SHAPE };
const OP: Op = Op { number: 0x0605_0403_0201, lowest: 0x0605_0403_0200 };
const LAST: u64 = OpNumber::MAX.get();

fn range(slba: u64, blocks: u32) -> Blocks {
    Blocks { slba, blocks }
}

fn to(peer: u8, coefficient: u8) -> Option<Destination> {
    Some(Destination { peer, coefficient })
}

fn contribute(how: ContributeHow, own: Option<Blocks>, rows: Blocks) -> Order {
    let slba = own.map_or(rows.slba, |own| own.slba);
    let returns_own = how == ContributeHow::Old && own.is_some();
    let destinations = if how == ContributeHow::Zeroes { [None, None] } else { [to(3, 1), to(31, 0x8e)] };
    let kind = OrderKind::Contribute { how, destinations, returns_own };
    Order { op: OP, own, slba, kind, rows, fua: false }
}

fn reduce(base: ReduceBase, sink: Sink, own: Option<Blocks>, rows: Blocks) -> Order {
    let kind = OrderKind::Reduce { base, contributions: 5, sink, compare_only: false };
    Order { op: OP, own, slba: own.map_or(rows.slba, |own| own.slba), kind, rows, fua: false }
}

/// One of each opcode and kind, and fields at their ends.
fn orders() -> Vec<Order> {
    let (near, far) = (range(1 << 40, 8), range((1 << 40) + 16, 4));
    let longest = range(0, 8192);
    let own = ReduceBase::Own { coefficient: 0xff };
    let mut orders = vec![
        contribute(ContributeHow::Delta, Some(near), near),
        contribute(ContributeHow::Delta, Some(longest), longest),
        contribute(ContributeHow::Overlay, Some(near), range(near.slba - 3, 20)),
        contribute(ContributeHow::Overlay, Some(near), near),
        contribute(ContributeHow::Old, None, near),
        contribute(ContributeHow::Zeroes, None, longest),
        contribute(ContributeHow::Old, Some(near), far),
        contribute(ContributeHow::Old, Some(range(1 << 40, 1)), range((1 << 40) + (1 << 31) - 1, 1)),
        contribute(ContributeHow::Old, Some(range(1 << 40, 1)), range((1 << 40) - (1 << 31), 1)),
        reduce(ReduceBase::Zero, Sink::Drive, None, near),
        reduce(ReduceBase::Old, Sink::Drive, None, range(SHAPE.blocks - 1, 1)),
        reduce(own, Sink::Host, None, near),
        reduce(own, Sink::Host, Some(longest), range(8192, 8192)),
        // The base of the distance need not lie in the namespace.
        Order {
            slba: SHAPE.blocks + 9,
            ..reduce(ReduceBase::Zero, Sink::Drive, None, range(SHAPE.blocks - 1, 1))
        },
    ];
    for compare_only in [false, true] {
        for contributions in [0, MEMBERS_MAX as u8] {
            let base = ReduceBase::Zero;
            let kind = OrderKind::Reduce { base, contributions, sink: Sink::Drive, compare_only };
            orders.push(Order { kind, fua: true, ..reduce(base, Sink::Drive, None, near) });
        }
    }
    for destinations in [[None, None], [None, to(0, 0)], [to(0, 0xff), None]] {
        let how = ContributeHow::Delta;
        let kind = OrderKind::Contribute { how, destinations, returns_own: false };
        orders.push(Order { kind, fua: true, ..contribute(how, Some(near), near) });
    }
    for (number, lowest) in [(0, 0), (LAST, LAST), (LAST, LAST - 65535), (65535, 0)] {
        orders.push(Order { op: Op { number, lowest }, ..contribute(ContributeHow::Old, None, near) });
    }
    orders
}

fn peers() -> Vec<Peer> {
    let peer =
        Peer { op: OP, slba: 7, blocks: 8, handle: 0x0403_0201, member: 3, answer_when_complete: true };
    let last = Op { number: LAST, lowest: LAST - 65535 };
    vec![
        peer,
        Peer { answer_when_complete: false, member: 0, handle: 0, ..peer },
        Peer { op: last, slba: SHAPE.blocks - 8192, blocks: 8192, handle: u32::MAX, member: 31, ..peer },
        Peer { slba: SHAPE.blocks - 1, blocks: 1, ..peer },
    ]
}

fn settles() -> Vec<Settle> {
    let resend = |peer, new_op| SettleAction::Resend { peer, new_op };
    let actions = [
        SettleAction::Abort,
        SettleAction::Ask,
        SettleAction::Release,
        resend(0, 0),
        resend(5, OP.number),
        resend(31, LAST),
    ];
    let keyed = |attach_key| actions.map(|action| Settle { op: OP, attach_key, action });
    [keyed(0), keyed(0x0807_0605_0403_0201), keyed(u64::MAX)].concat()
}

fn bytes_of(sqe: Sqe) -> [u8; 64] {
    zerocopy::transmute!(sqe)
}

fn data_bytes(order: &Order) -> u32 {
    (order.data_out_blocks() + order.data_in_blocks()) << SHAPE.block_shift
}

fn check_order(bytes: [u8; 64], shape: &Shape, data_bytes: u32) -> Result<Order, Status> {
    Order::check(&Unverified::new(zerocopy::transmute!(bytes)), shape, data_bytes)
}

fn check_peer(bytes: [u8; 64], data_bytes: u32) -> Result<Peer, Status> {
    Peer::check(&Unverified::new(zerocopy::transmute!(bytes)), &SHAPE, data_bytes)
}

fn check_settle(bytes: [u8; 64], data_bytes: u32) -> Result<Settle, Status> {
    Settle::check(&Unverified::new(zerocopy::transmute!(bytes)), data_bytes)
}

/// The bytes with others at a place.
fn with<const N: usize>(mut bytes: [u8; 64], at: usize, other: [u8; N]) -> [u8; 64] {
    bytes[at..at + N].copy_from_slice(&other);
    bytes
}

mod round_trips {
    use super::*;

    #[test]
    fn orders_are_read_back() {
        for order in orders() {
            let sqe = order.encode(9);
            assert_eq!((sqe.opcode, sqe.nsid.get()), (order.opcode(), 9));
            assert_eq!(check_order(bytes_of(sqe), &SHAPE, data_bytes(&order)), Ok(order));
            let direction = match (order.data_out_blocks(), order.data_in_blocks()) {
                (0, 0) => Direction::None,
                (_, 0) => Direction::ToController,
                _ => Direction::ToHost,
            };
            assert_eq!(sqe.direction(), direction, "{order:?}");
            let refused = Err(Status::NAMESPACE_WRITE_PROTECTED);
            let expected = if order.writes() { refused } else { Ok(order) };
            assert_eq!(check_order(bytes_of(sqe), &READ_ONLY, data_bytes(&order)), expected);
            for other in [data_bytes(&order) + 1, data_bytes(&order) ^ 512] {
                assert_eq!(check_order(bytes_of(sqe), &SHAPE, other), Err(Status::INVALID_SGL_LENGTH));
            }
        }
    }

    #[test]
    fn peers_are_read_back() {
        for peer in peers() {
            let sqe = peer.encode(9);
            assert_eq!((sqe.direction(), sqe.nsid.get()), (Direction::ToController, 9));
            assert_eq!(check_peer(bytes_of(sqe), peer.blocks << 9), Ok(peer));
            assert_eq!(check_peer(bytes_of(sqe), 0), Err(Status::INVALID_SGL_LENGTH));
        }
    }

    #[test]
    fn settles_are_read_back() {
        for settle in settles() {
            let sqe = settle.encode(9);
            assert_eq!((sqe.direction(), sqe.nsid.get()), (Direction::None, 9));
            assert_eq!(check_settle(bytes_of(sqe), 0), Ok(settle));
            assert_eq!(check_settle(bytes_of(sqe), 1), Err(Status::INVALID_SGL_LENGTH));
        }
    }

    #[test]
    fn outcomes_are_read_back_whatever_they_are() {
        for flags in 0..=0xff {
            let word = 0x3322_1100 | flags;
            let outcome = Outcome::decode(word);
            assert_eq!((outcome.encode(), outcome.egress), (word, 0x11));
            assert_eq!((outcome.ingress, outcome.credits), (0x22, 0x33));
        }
        let all = [0, u32::MAX].map(|word| Outcome::decode(word).encode());
        assert_eq!(all, [0, u32::MAX]);
    }
}

mod positions {
    use super::*;

    /// What every command begins with, up to its own fields: op 060504030201h, and one below it is not retired.
    fn begun(opcode: u8) -> [u8; 64] {
        let mut bytes = [0; 64];
        bytes[..16].copy_from_slice(&[opcode, 0x40, 0, 0, 9, 0, 0, 0, 1, 2, 3, 4, 5, 6, 1, 0]);
        bytes[39] = 0x5a;
        bytes
    }

    fn drawn(opcode: u8, own_fields: [u8; 24]) -> [u8; 64] {
        with(begun(opcode), 40, own_fields)
    }

    #[test]
    fn of_a_contribution() {
        let own = range(0x0107_0605_0403_0201, 0x0302);
        let rows = range(own.slba - 2, 0x0405);
        let mut order = contribute(ContributeHow::Overlay, Some(own), rows);
        order.fua = true;
        let tail = [0xfe, 0xff, 0xff, 0xff, 4, 4, 3, 1, 31, 0x8e, 0, 0];
        let head = [1, 2, 3, 4, 5, 6, 7, 1, 1, 3, 2, 0x40];
        let expected: [u8; 24] = [head, tail].concat().try_into().unwrap();
        assert_eq!(bytes_of(order.encode(9)), drawn(0xc1, expected));
    }

    #[test]
    fn of_contributions_without_data_or_with_data_for_the_host() {
        let (own, rows) = (range(8, 2), range(0x010a, 1));
        let read = contribute(ContributeHow::Old, Some(own), rows);
        let fields = [8, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 2, 1, 0, 0, 0, 0, 3, 1, 31, 0x8e, 0, 0];
        assert_eq!(bytes_of(read.encode(9)), drawn(0xc6, fields));
        let zeroes = contribute(ContributeHow::Zeroes, None, range(8, 2));
        let fields = [8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x13, 0, 0, 0, 0, 0, 1, 0, 0xff, 0, 0xff, 0, 0, 0];
        assert_eq!(bytes_of(zeroes.encode(9)), drawn(0xc4, fields));
    }

    #[test]
    fn of_reductions() {
        let base = ReduceBase::Own { coefficient: 0x1d };
        let order = reduce(base, Sink::Host, Some(range(8, 2)), range(9, 3));
        let fields = [8, 0, 0, 0, 0, 0, 0, 0, 1, 0, 2, 0, 1, 0, 0, 0, 2, 0, 0xff, 0x1d, 0xff, 0, 5, 0];
        assert_eq!(bytes_of(order.encode(9)), drawn(0xca, fields));
        let base = ReduceBase::Old;
        let kind = OrderKind::Reduce { base, contributions: 4, sink: Sink::Drive, compare_only: true };
        let order = Order { kind, ..reduce(base, Sink::Drive, None, range(8, 2)) };
        let fields = [8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x31, 0, 0, 0, 0, 0, 1, 0, 0xff, 0, 0xff, 0, 4, 0];
        assert_eq!(bytes_of(order.encode(9)), drawn(0xc8, fields));
    }

    #[test]
    fn of_peer_and_settle() {
        let fields = [7, 0, 0, 0, 0, 0, 0, 0, 7, 0, 0x40, 0, 1, 2, 3, 4, 3, 0, 0, 0, 0, 0, 0, 0];
        assert_eq!(bytes_of(peers()[0].encode(9)), drawn(0xcd, fields));
        let action = SettleAction::Resend { peer: 5, new_op: 0x1615_1413_1211 };
        let settle = Settle { op: OP, attach_key: 0x0807_0605_0403_0201, action };
        let fields =
            [1, 2, 3, 4, 5, 6, 7, 8, 5, 0, 2, 0, 0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0, 0, 0, 0, 0, 0];
        assert_eq!(bytes_of(settle.encode(9)), drawn(0xd0, fields));
        for (action, number) in [(SettleAction::Abort, 0), (SettleAction::Ask, 1), (SettleAction::Release, 3)]
        {
            let bytes = bytes_of(Settle { op: OP, attach_key: 0, action }.encode(9));
            assert_eq!(bytes, with(begun(0xd0), 50, [number]));
        }
    }

    #[test]
    fn of_an_outcome() {
        let none = Outcome::default();
        let one = |bit: u32, outcome: Outcome| assert_eq!(outcome.encode(), 1 << bit);
        one(0, Outcome { read: true, ..none });
        one(1, Outcome { written: true, ..none });
        one(2, Outcome { forwarded: [true, false], ..none });
        one(3, Outcome { forwarded: [false, true], ..none });
        one(4, Outcome { applied: true, ..none });
        one(5, Outcome { equal: true, ..none });
        one(6, Outcome { retained: true, ..none });
        one(7, Outcome { write_begun: true, ..none });
        one(8, Outcome { egress: 1, ..none });
        one(16, Outcome { ingress: 1, ..none });
        one(24, Outcome { credits: 1, ..none });
    }

    #[test]
    fn directions_are_those_of_the_opcodes() {
        let direction = |opcode| Sqe::new(opcode, 1).direction();
        assert_eq!(direction(opcode::DELTA), Direction::ToHost);
        assert_eq!(direction(admin_opcode::ATTACH), Direction::ToController);
        assert_eq!(direction(admin_opcode::ATTACH_REPORT), Direction::ToHost);
        assert_eq!(direction(admin_opcode::PEER_OPEN), Direction::ToController);
        assert_eq!(direction(admin_opcode::LEDGER_STEP), Direction::ToController);
        assert_eq!(direction(admin_opcode::LEDGER), Direction::ToHost);
    }
}

mod refusals {
    use super::*;

    const BLOCK: u32 = 512;

    /// What becomes of an order with other bytes at a place.
    fn refused<const N: usize>(order: &Order, at: usize, other: [u8; N]) -> Status {
        let bytes = with(bytes_of(order.encode(1)), at, other);
        check_order(bytes, &SHAPE, data_bytes(order)).expect_err("it is not an order")
    }

    #[test]
    fn of_what_all_orders_have() {
        for order in orders() {
            assert_eq!(refused(&order, 63, [1]), Status::INVALID_FIELD);
            assert_eq!(refused(&order, 0, [opcode::PEER]), Status::INVALID_OPCODE);
            assert_eq!(refused(&order, 0, [1]), Status::INVALID_OPCODE);
            // A lowest op below 0.
            assert_eq!(refused(&order, 8, [1, 0, 0, 0, 0, 0, 2, 0]), Status::INVALID_FIELD);
            for how in 4..16 {
                assert_eq!(refused(&order, 50, [how]), Status::INVALID_FIELD);
            }
            let how = bytes_of(order.encode(1))[50];
            for bit in [6, 7] {
                assert_eq!(refused(&order, 50, [how | 1 << bit]), Status::INVALID_FIELD);
            }
            for bit in [0, 1, 2, 3, 4, 5, 7] {
                assert_eq!(refused(&order, 51, [1 << bit]), Status::INVALID_FIELD);
            }
            if order.own.is_none() {
                assert_eq!(refused(&order, 48, [1]), Status::INVALID_FIELD);
            }
        }
    }

    #[test]
    fn of_fields_of_a_contribution() {
        let near = range(1 << 40, 8);
        let old = contribute(ContributeHow::Old, None, near);
        // Compare only, contributions to wait for, peers that are no members, and a coefficient without a peer.
        assert_eq!(refused(&old, 50, [0x30]), Status::INVALID_FIELD);
        assert_eq!(refused(&old, 62, [1]), Status::INVALID_FIELD);
        for peer in 32..=0xfe {
            assert_eq!(refused(&old, 58, [peer]), Status::INVALID_FIELD);
            assert_eq!(refused(&old, 60, [peer]), Status::INVALID_FIELD);
        }
        assert_eq!(refused(&old, 58, [0xff, 1]), Status::INVALID_FIELD);
        assert_eq!(refused(&old, 60, [0xff, 1]), Status::INVALID_FIELD);
        assert_eq!(refused(&old, 60, [3, 2]), Status::INVALID_FIELD, "the same peer twice");
        // Own rows that are neither written nor returned; an order to return them, and none are named.
        assert_eq!(refused(&old, 50, [0x00]), Status::INVALID_FIELD);
        assert_eq!(
            refused(&contribute(ContributeHow::Old, Some(near), near), 50, [0x10]),
            Status::INVALID_FIELD
        );
        // How another opcode has it.
        assert_eq!(refused(&old, 50, [0x11]), Status::INVALID_FIELD);
        assert_eq!(refused(&old, 0, [opcode::CONTRIBUTE_NEW]), Status::INVALID_FIELD);
        let delta = contribute(ContributeHow::Delta, Some(near), near);
        assert_eq!(refused(&delta, 50, [0]), Status::INVALID_FIELD);
        assert_eq!(refused(&delta, 50, [3]), Status::INVALID_FIELD);
        assert_eq!(refused(&delta, 0, [opcode::CONTRIBUTE_AND_READ]), Status::INVALID_FIELD);
        // Own rows of a delta are the rows, those of an overlay among them.
        assert_eq!(refused(&delta, 52, [1]), Status::INVALID_FIELD);
        assert_eq!(refused(&delta, 56, [6]), Status::INVALID_FIELD);
        assert_eq!(refused(&delta, 56, [8]), Status::INVALID_FIELD);
        assert_eq!(refused(&delta, 48, [0, 0, 0x11]), Status::INVALID_FIELD);
        let overlay = contribute(ContributeHow::Overlay, Some(near), near);
        assert_eq!(refused(&overlay, 52, [1]), Status::INVALID_FIELD);
        assert_eq!(refused(&overlay, 52, [0xff; 4]), Status::INVALID_FIELD);
        assert_eq!(refused(&overlay, 56, [6]), Status::INVALID_FIELD);
        // Zeroes are contributed nowhere.
        let zeroes = contribute(ContributeHow::Zeroes, None, near);
        assert_eq!(refused(&zeroes, 58, [3]), Status::INVALID_FIELD);
        assert_eq!(refused(&zeroes, 0, [opcode::CONTRIBUTE_AND_READ]), Status::INVALID_FIELD);
    }

    #[test]
    fn of_fields_of_a_reduction() {
        let near = range(1 << 40, 8);
        let zero = reduce(ReduceBase::Zero, Sink::Drive, None, near);
        let own = reduce(ReduceBase::Own { coefficient: 2 }, Sink::Host, Some(near), near);
        for order in [zero, own] {
            assert_eq!(refused(&order, 58, [0]), Status::INVALID_FIELD);
            assert_eq!(refused(&order, 60, [0]), Status::INVALID_FIELD);
            assert_eq!(refused(&order, 61, [1]), Status::INVALID_FIELD);
            assert_eq!(refused(&order, 62, [MEMBERS_MAX as u8 + 1]), Status::INVALID_FIELD);
            assert_eq!(refused(&order, 62, [0xff]), Status::INVALID_FIELD);
        }
        assert_eq!(refused(&zero, 50, [0x13]), Status::INVALID_FIELD);
        assert_eq!(refused(&zero, 59, [1]), Status::INVALID_FIELD, "a coefficient of zeroes");
        assert_eq!(refused(&own, 50, [1]), Status::INVALID_FIELD, "a coefficient of old contents");
        assert_eq!(refused(&own, 50, [0x22]), Status::INVALID_FIELD, "the host has nothing to compare with");
        assert_eq!(refused(&own, 0, [opcode::REDUCE_TO_DRIVE]), Status::INVALID_FIELD, "own rows go nowhere");
    }

    #[test]
    fn of_ranges() {
        let check = |order: &Order, shape: &Shape| {
            check_order(bytes_of(order.encode(1)), shape, data_bytes(order)).map(drop)
        };
        let rows = range(100, 8);
        let read = contribute(ContributeHow::Old, Some(range(50, 8)), rows);
        let zero = reduce(ReduceBase::Zero, Sink::Drive, None, rows);
        for (order, end) in
            [(read, 108), (zero, 108), (contribute(ContributeHow::Delta, Some(rows), rows), 108)]
        {
            assert_eq!(check(&order, &Shape { blocks: end, ..SHAPE }), Ok(()));
            assert_eq!(check(&order, &Shape { blocks: end - 1, ..SHAPE }), Err(Status::LBA_OUT_OF_RANGE));
        }
        // Own rows beyond the end, rows before the beginning, rows beyond all numbers.
        let own_last = contribute(ContributeHow::Old, Some(range(200, 8)), rows);
        assert_eq!(check(&own_last, &Shape { blocks: 207, ..SHAPE }), Err(Status::LBA_OUT_OF_RANGE));
        assert_eq!(refused(&read, 52, (-51i32).to_le_bytes()), Status::LBA_OUT_OF_RANGE);
        assert_eq!(refused(&read, 52, i32::MIN.to_le_bytes()), Status::LBA_OUT_OF_RANGE);
        let bytes = with(bytes_of(zero.encode(1)), 40, [0xff; 8]);
        assert_eq!(check_order(bytes, &SHAPE, 0), Err(Status::LBA_OUT_OF_RANGE));
        assert_eq!(check_order(with(bytes, 52, [1]), &SHAPE, 0), Err(Status::LBA_OUT_OF_RANGE));
        // One block more than an order may have, as rows and as own rows; with larger blocks there are fewer.
        let long = range(0, 8193);
        for order in [
            reduce(ReduceBase::Zero, Sink::Drive, None, long),
            contribute(ContributeHow::Old, Some(long), rows),
            reduce(ReduceBase::Zero, Sink::Host, None, range(0, 65536)),
        ] {
            assert_eq!(check(&order, &SHAPE), Err(Status::INVALID_FIELD));
        }
        let shape = Shape { block_shift: 12, ..SHAPE };
        assert_eq!(check(&reduce(ReduceBase::Zero, Sink::Drive, None, range(0, 1024)), &shape), Ok(()));
        let long = reduce(ReduceBase::Zero, Sink::Drive, None, range(0, 1025));
        assert_eq!(check(&long, &shape), Err(Status::INVALID_FIELD));
    }

    #[test]
    fn of_peer() {
        let peer = peers()[0];
        let refused = |at, other: &[u8], data_bytes| {
            let mut bytes = bytes_of(peer.encode(1));
            bytes[at..at + other.len()].copy_from_slice(other);
            check_peer(bytes, data_bytes).expect_err("it is none")
        };
        let data_bytes = 8 * BLOCK;
        assert_eq!(refused(0, &[opcode::CONTRIBUTE_NEW], data_bytes), Status::INVALID_OPCODE);
        for at in (16..24).chain([51]).chain(57..64) {
            assert_eq!(refused(at, &[1], data_bytes), Status::INVALID_FIELD);
        }
        for bit in [0, 1, 2, 3, 4, 5, 7] {
            assert_eq!(refused(50, &[1 << bit], data_bytes), Status::INVALID_FIELD);
        }
        assert_eq!(refused(56, &[32], data_bytes), Status::INVALID_FIELD);
        assert_eq!(refused(56, &[0xff], data_bytes), Status::INVALID_FIELD);
        assert_eq!(refused(8, &[1, 0, 0, 0, 0, 0, 2, 0], data_bytes), Status::INVALID_FIELD);
        assert_eq!(refused(40, &[0xff; 8], data_bytes), Status::LBA_OUT_OF_RANGE);
        assert_eq!(refused(40, &SHAPE.blocks.to_le_bytes(), data_bytes), Status::LBA_OUT_OF_RANGE);
        assert_eq!(refused(48, &[0, 0x20], 8193 * BLOCK), Status::INVALID_FIELD);
        assert_eq!(refused(48, &[8], data_bytes), Status::INVALID_SGL_LENGTH);
        let bytes = bytes_of(peer.encode(1));
        let read_only = Peer::check(&Unverified::new(zerocopy::transmute!(bytes)), &READ_ONLY, data_bytes);
        assert_eq!(read_only, Ok(peer), "a peer's word changes no drive");
    }

    #[test]
    fn of_settle() {
        for settle in settles() {
            let refused = |at, other: &[u8]| {
                let mut bytes = bytes_of(settle.encode(1));
                bytes[at..at + other.len()].copy_from_slice(other);
                check_settle(bytes, 0).expect_err("it is none")
            };
            assert_eq!(refused(0, &[opcode::DELTA]), Status::INVALID_OPCODE);
            for at in (16..24).chain([49, 51]).chain(58..64) {
                assert_eq!(refused(at, &[1]), Status::INVALID_FIELD);
            }
            for action in 4..=0xff {
                assert_eq!(refused(50, &[action]), Status::INVALID_FIELD);
            }
            assert_eq!(refused(48, &[32]), Status::INVALID_FIELD);
            assert_eq!(refused(48, &[0xff]), Status::INVALID_FIELD);
            assert_eq!(refused(8, &[1, 0, 0, 0, 0, 0, 2, 0]), Status::INVALID_FIELD);
            if !matches!(settle.action, SettleAction::Resend { .. }) {
                assert_eq!(refused(48, &[1]), Status::INVALID_FIELD);
                assert_eq!(refused(52, &[1]), Status::INVALID_FIELD);
                assert_eq!(refused(57, &[1]), Status::INVALID_FIELD);
            }
        }
    }

    /// Whatever is read with one bit or two flipped is written again as it came.
    #[test]
    fn no_flipped_bit_panics() {
        let flipped = |sqe: Sqe, visit: &dyn Fn([u8; 64])| {
            for bit in 0..512 {
                let mut bytes = bytes_of(sqe);
                bytes[bit / 8] ^= 1 << (bit % 8);
                visit(bytes);
                for other in bit + 1..512 {
                    let mut bytes = bytes;
                    bytes[other / 8] ^= 1 << (other % 8);
                    visit(bytes);
                }
            }
        };
        // What is not a value's: flags, command id, namespace, epoch, and where data is.
        let own = |mut bytes: [u8; 64]| {
            bytes[1..8].fill(0);
            bytes[16..40].fill(0);
            bytes
        };
        let visit = |bytes: [u8; 64]| {
            for data_bytes in [0, BLOCK, 8 * BLOCK, 12 * BLOCK, 4 << 20] {
                if let Ok(order) = check_order(bytes, &SHAPE, data_bytes) {
                    assert_eq!(own(bytes_of(order.encode(1))), own(bytes));
                }
                if let Ok(peer) = check_peer(bytes, data_bytes) {
                    assert_eq!(own(bytes_of(peer.encode(1))), own(bytes));
                }
                if let Ok(settle) = check_settle(bytes, data_bytes) {
                    assert_eq!(own(bytes_of(settle.encode(1))), own(bytes));
                }
            }
        };
        orders().iter().for_each(|order| flipped(order.encode(1), &visit));
        peers().iter().for_each(|peer| flipped(peer.encode(1), &visit));
        settles().iter().for_each(|settle| flipped(settle.encode(1), &visit));
    }

    #[test]
    #[should_panic = "the window of ops is not left"]
    fn a_window_that_is_too_wide_is_our_own_mistake() {
        let op = Op { number: 65536, lowest: 0 };
        let _ = Settle { op, attach_key: 0, action: SettleAction::Ask }.encode(1);
    }

    #[test]
    #[should_panic = "no target takes this order"]
    fn an_order_that_is_refused_is_our_own_mistake() {
        let _ = contribute(ContributeHow::Delta, Some(range(0, 1)), range(0, 2)).encode(1);
    }

    #[test]
    #[should_panic = "rows are near own rows"]
    fn rows_that_are_too_far_are_our_own_mistake() {
        let _ = contribute(ContributeHow::Old, Some(range(0, 1)), range(1 << 31, 1)).encode(1);
    }
}

mod statuses {
    use super::*;

    #[test]
    fn all_are_final_but_that_of_a_peer_out_of_reach() {
        let all = [
            Status::OP_RETIRED,
            Status::OP_ABORTED,
            Status::PEER_UNREACHABLE,
            Status::NO_ATTACH,
            Status::CONTRIBUTION_REFUSED,
            Status::TIME_OVER,
            Status::NO_CREDIT,
            Status::DELTA_GONE,
            Status::DIGEST_WRONG,
            Status::NEVER_SEEN,
        ];
        for (code, status) in (1..).zip(all) {
            assert!(status.is(Status::vendor(code)) && status.to_string().starts_with("Twill: "));
            assert_eq!(status.may_retry(), status == Status::PEER_UNREACHABLE);
        }
    }
}

mod attach {
    use super::*;

    fn member(at: u8) -> AttachMember {
        AttachMember {
            nsid: u32::from(at) + 1,
            handle: u32::MAX - u32::from(at),
            ticket: Ticket([at; 16]),
            boot_id: u64::MAX - u64::from(at),
            shift_blocks: if at.is_multiple_of(2) { i64::MIN } else { i64::MAX },
            flags: u32::from(at) << 24,
            place: DiscoveryEntry {
                subsystem_type: SubsystemType::Nvm,
                port: 1,
                nqn: Nqn::new(&format!("nqn.2026-11.test:{at}")).unwrap(),
                address: if at.is_multiple_of(2) { "192.0.2.1" } else { "2001:db8::1" }.parse().unwrap(),
                service: 4420,
                tls: at.is_multiple_of(2),
            },
        }
    }

    fn record(members: u8, index: u8) -> AttachRecord {
        AttachRecord {
            index,
            key: 0x0807_0605_0403_0201,
            array: *b"0123456789abcdef",
            op_limit_ms: 0x0403_0201,
            credit_bytes: 0x1817_1615_1413_1211,
            members: (0..members).map(member).collect(),
        }
    }

    #[test]
    fn records_are_read_back() {
        for (members, index) in [(0, 0), (0, 31), (1, 0), (2, 1), (32, 31)] {
            let record = record(members, index);
            let bytes = record.encode();
            assert_eq!(bytes.len(), 64 + usize::from(members) * (64 + ENTRY_BYTES));
            assert_eq!(AttachRecord::parse(&bytes), Ok(record));
        }
        assert_eq!(record(32, 0).encode().len(), ATTACH_BYTES_MAX);
        let extreme =
            AttachRecord { key: u64::MAX, op_limit_ms: u32::MAX, credit_bytes: u64::MAX, ..record(0, 0) };
        assert_eq!(AttachRecord::parse(&extreme.encode()), Ok(extreme));
        assert!(!format!("{:?}", record(2, 0)).contains("[1, 1"), "tickets are not shown");
    }

    #[test]
    fn bytes_are_where_they_are_drawn() {
        let bytes = record(2, 1).encode();
        assert_eq!(bytes[..16], *b"TwAttach\x02\0\x02\0\x01\0\0\0");
        assert_eq!(bytes[16..24], [1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(bytes[24..40], *b"0123456789abcdef");
        assert_eq!(bytes[40..44], [1, 2, 3, 4]);
        assert_eq!(bytes[44..48], [0; 4]);
        assert_eq!(bytes[48..56], [0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x18]);
        assert_eq!(bytes[56..64], [0; 8]);
        // The second member, then the entries.
        let second = &bytes[128..192];
        assert_eq!(second[..8], [2, 0, 0, 0, 0xfe, 0xff, 0xff, 0xff]);
        assert_eq!(second[8..24], [1; 16]);
        assert_eq!(second[24..32], (u64::MAX - 1).to_le_bytes());
        assert_eq!(second[32..40], i64::MAX.to_le_bytes());
        assert_eq!(second[40..44], [0, 0, 0, 1]);
        assert_eq!(second[44..], [0; 20]);
        assert_eq!(&bytes[192 + 512..192 + 522], b"192.0.2.1 ");
        assert_eq!(&bytes[192 + 1024 + 256..192 + 1024 + 275], b"nqn.2026-11.test:1\0");
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        let good = record(2, 1).encode();
        let refused = |at: usize, other: &[u8]| {
            let mut bytes = good.clone();
            bytes[at..at + other.len()].copy_from_slice(other);
            AttachRecord::parse(&bytes).expect_err("it is none")
        };
        for (at, other) in [(0, &[0][..]), (8, &[0]), (8, &[1]), (9, &[1]), (10, &[33]), (10, &[0xff, 0xff])]
        {
            assert_eq!(refused(at, other), Status::INVALID_FIELD, "{at}");
        }
        // An index beyond the members, no key, what is reserved, and places that are none, or no namespace's.
        for (at, other) in [(12, &[2][..]), (12, &[0xff]), (13, &[1]), (16, &[0; 8]), (44, &[1]), (63, &[1])]
        {
            assert_eq!(refused(at, other), Status::INVALID_FIELD, "{at}");
        }
        for (at, other) in
            [(64 + 44, &[1][..]), (191, &[1]), (192, &[1]), (194, &[1]), (192 + 1024 + 256, b"x")]
        {
            assert_eq!(refused(at, other), Status::INVALID_FIELD, "{at}");
        }
        for count in [0, 1, 3, 32] {
            assert_eq!(refused(10, &[count]), Status::INVALID_SGL_LENGTH);
        }
        for end in [0, 1, 63, 64, 128, 192, good.len() - 1] {
            assert_eq!(AttachRecord::parse(&good[..end]), Err(Status::INVALID_SGL_LENGTH), "{end}");
        }
        let longer = [&good[..], &[0]].concat();
        assert_eq!(AttachRecord::parse(&longer), Err(Status::INVALID_SGL_LENGTH));
        let mut bytes = record(0, 0).encode();
        bytes[12] = 32;
        assert_eq!(AttachRecord::parse(&bytes), Err(Status::INVALID_FIELD));
    }

    /// Random bytes, and good ones of which some became random: what is believed is written and read again.
    #[test]
    fn no_bytes_panic() {
        let mut state = 1u64;
        let mut random = |below: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as usize % below
        };
        let (mut believed, mut refused) = (0, 0);
        for round in 0..20_000 {
            let members = [0, 1, 2, 3, 32][random(5)];
            let mut bytes = if round % 4 == 0 {
                (0..random(4096)).map(|_| random(256) as u8).collect()
            } else {
                record(members, 0).encode()
            };
            for _ in 0..random(4) {
                if !bytes.is_empty() {
                    // Most often the head and the first members.
                    let reach = if random(4) == 0 { bytes.len() } else { bytes.len().min(256) };
                    bytes[random(reach)] = random(256) as u8;
                }
            }
            if random(16) == 0 {
                bytes.truncate(random(bytes.len() + 1));
            }
            match AttachRecord::parse(&bytes) {
                Ok(record) => {
                    assert_eq!(AttachRecord::parse(&record.encode()), Ok(record));
                    believed += 1;
                }
                Err(_) => refused += 1,
            }
        }
        assert!(believed > 1000 && refused > 1000, "{believed} and {refused}");
    }
}

mod capability {
    use super::*;

    #[test]
    fn bytes_are_where_they_are_drawn() {
        let capability = Capability {
            version: VERSION,
            ops_in_flight: 0x0202,
            retained_mib: 0x0303,
            peers_max: 0x0404,
            boot_id: 0x0f0e_0d0c_0b0a_0908,
        };
        let bytes = *b"TwFab\0\0\0\x02\0\x02\x02\x03\x03\x04\x04\x08\x09\x0a\x0b\x0c\x0d\x0e\x0f";
        assert_eq!(capability.encode(), bytes);
        assert_eq!(Capability::parse(&bytes), Some(capability));
        assert!(capability.knows_commands());
        assert!(!Capability { version: 0, ..capability }.knows_commands());
        for at in 0..8 {
            let mut other = bytes;
            other[at] ^= 1;
            assert_eq!(Capability::parse(&other), None);
        }
        assert_eq!(Capability::parse(&[0; CAPABILITY_BYTES]), None);
        let max = u16::MAX;
        let (ops_in_flight, retained_mib, peers_max) = (max, max, max);
        let most = Capability { version: max, ops_in_flight, retained_mib, peers_max, boot_id: u64::MAX };
        assert_eq!(Capability::parse(&most.encode()), Some(most));
    }
}

mod ledgers {
    use super::*;
    use nvme_tcp::vendor::{
        Epoch, LEDGER_RANGES_MAX, LEDGER_STEP_BYTES, LedgerAction, LedgerReport, LedgerStep, NoLedger,
    };

    fn step() -> LedgerStep {
        LedgerStep { action: LedgerAction::Complete, id: 5, key: 0x0102, area: 2048..1 << 40 }
    }

    #[test]
    fn a_command_names_its_epoch() {
        let mut sqe = Sqe::new(opcode::REDUCE_TO_DRIVE, 1);
        assert_eq!(Epoch::of(&sqe), None);
        let max = (1 << 48) - 1;
        for (number, lowest) in [(1, 0), (1, 1), (70_000, 4_465), (max, max - 65_535)] {
            let epoch = Epoch { number, lowest };
            epoch.stamp(&mut sqe);
            assert_eq!(Epoch::of(&sqe), Some(epoch));
        }
        assert_eq!(bytes_of(sqe)[16..24], [0xff; 8]);
        // What lies further below than there are epochs is none.
        sqe.metadata.set(2 << 48 | 1);
        assert_eq!(Epoch::of(&sqe), None);
    }

    #[test]
    fn steps_come_back_as_they_were() {
        let bytes = step().encode();
        assert_eq!(LedgerStep::parse(&bytes), Ok(step()));
        assert_eq!(bytes[..12], *b"TwLedger\x02\0\x01\0");
        assert_eq!((&bytes[16..18], &bytes[24..27]), (&[5, 0][..], &[2, 1, 0][..]));
        let begin = LedgerStep { action: LedgerAction::Begin, area: 0..0, ..step() };
        assert_eq!(LedgerStep::parse(&begin.encode()), Ok(begin));
    }

    #[test]
    fn a_step_that_makes_no_sense_is_refused() {
        let refused = |at: usize, other: &[u8]| {
            let mut bytes = step().encode();
            bytes[at..at + other.len()].copy_from_slice(other);
            LedgerStep::parse(&bytes).expect_err("it is none")
        };
        for (at, other) in
            [(0, &[0][..]), (8, &[1]), (10, &[2]), (11, &[1]), (16, &[0]), (48, &[1]), (63, &[1])]
        {
            assert_eq!(refused(at, other), Status::INVALID_FIELD, "{at}");
        }
        assert_eq!(refused(40, &[0xff; 8]), Status::LBA_OUT_OF_RANGE);
        for bytes in [0, LEDGER_STEP_BYTES - 1, LEDGER_STEP_BYTES + 1] {
            assert_eq!(LedgerStep::parse(&vec![0; bytes]), Err(Status::INVALID_SGL_LENGTH));
        }
    }

    #[test]
    fn a_report_says_how_long_it_is() {
        let report =
            LedgerReport { id: 7, area: 10..20, ranges: (0..100).map(|at| at * 8..at * 8 + 4).collect() };
        let whole = report.encode(usize::MAX);
        assert_eq!(LedgerReport::parse(&whole), Ok(report.clone()));
        // Zeroes behind it, as a longer buffer has.
        assert_eq!(LedgerReport::parse(&[&whole[..], &[0; 30]].concat()), Ok(report.clone()));
        for room in [64, 80, whole.len() - 1] {
            assert_eq!(LedgerReport::parse(&report.encode(room)), Err(NoLedger::Longer(whole.len())));
        }
        assert_eq!(LedgerReport::parse(&report.encode(63)), Err(NoLedger::Invalid));
        assert_eq!(LedgerReport::parse(&LedgerReport::NONE.encode(64)), Ok(LedgerReport::NONE));
    }

    #[test]
    fn a_report_that_makes_no_sense_is_none() {
        let report = LedgerReport { id: 7, area: 10..20, ranges: vec![11..12, 14..15] };
        let with = |at: usize, other: &[u8]| {
            let mut bytes = report.encode(usize::MAX);
            bytes[at..at + other.len()].copy_from_slice(other);
            LedgerReport::parse(&bytes)
        };
        let too_many = (LEDGER_RANGES_MAX as u32 + 1).to_le_bytes();
        for (at, other) in [(0, &[0][..]), (8, &[1]), (12, &too_many), (32, &[0xff; 8]), (72, &[0xff; 8])] {
            assert_eq!(with(at, other), Err(NoLedger::Invalid), "{at}");
        }
    }
}
