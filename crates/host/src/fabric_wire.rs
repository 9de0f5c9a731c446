//! Between the words of the wire and those of the state machines of peer mode, both ways: a host and a target read the same
//! tables.

use std::ops::Range;

use engine::fabric::epochs::EpochStamp;
use engine::fabric::order::{
    Answer, Base, Destination, Ending, How, Op, Order, Outcome, Role, Settle, Sink, Stamp,
};
use nvme_tcp::command::Sqe;
use nvme_tcp::status::Status;
use nvme_tcp::vendor::{self, Blocks, ContributeHow, OrderKind, ReduceBase, SettleAction};

/// What each status says of an order, a contribution or a question.
const ENDINGS: [(Status, Ending); 13] = [
    (Status::SUCCESS, Ending::Done),
    (Status::UNRECOVERED_READ, Ending::ReadFailed),
    (Status::WRITE_FAULT, Ending::WriteFailed),
    (Status::CAPACITY_EXCEEDED, Ending::NoSpace),
    (Status::PEER_UNREACHABLE, Ending::PeerUnreachable),
    (Status::OP_RETIRED, Ending::Retired),
    (Status::OP_ABORTED, Ending::Aborted),
    (Status::CONTRIBUTION_REFUSED, Ending::ContributionRefused),
    (Status::TIME_OVER, Ending::TimeOver),
    (Status::DELTA_GONE, Ending::DeltaGone),
    (Status::NEVER_SEEN, Ending::NeverSeen),
    (Status::NO_CREDIT, Ending::NoCredit),
    (Status::INVALID_FIELD, Ending::Invalid),
];

/// The status that a target answers with.
pub fn status_of(ending: Ending) -> Status {
    let known = ENDINGS.iter().find(|(_, one)| *one == ending);
    known.expect("every ending has its status").0
}

/// What a target's status says. One that is not known here says that the order was refused.
pub fn ending_of(status: Status) -> Ending {
    let known = ENDINGS.iter().find(|(known, _)| status.is(*known));
    known.map_or(Ending::Invalid, |(_, ending)| *ending)
}

/// What a peer's answer to a contribution means. One that says nothing of the op is as good as none.
pub fn ending_of_contribution(status: Status) -> Ending {
    match ending_of(status) {
        known @ (Ending::Done
        | Ending::Aborted
        | Ending::Retired
        | Ending::TimeOver
        | Ending::ContributionRefused) => known,
        _ => Ending::PeerUnreachable,
    }
}

/// An op's number, as a command has it.
pub fn op_to_wire(stamp: Stamp) -> vendor::Op {
    vendor::Op { number: stamp.op.0, lowest: stamp.lowest.0 }
}

/// The epoch in which a change is sent, as its command names it.
pub fn epoch_to_wire(stamp: EpochStamp) -> vendor::Epoch {
    vendor::Epoch { number: stamp.epoch, lowest: stamp.lowest }
}

/// The epoch that a command names, if it does.
pub fn epoch_from_wire(sqe: &Sqe) -> Option<EpochStamp> {
    vendor::Epoch::of(sqe).map(|epoch| EpochStamp { epoch: epoch.number, lowest: epoch.lowest })
}

/// The op of a command.
pub fn stamp_from_wire(op: vendor::Op) -> Stamp {
    Stamp { op: Op(op.number), lowest: Op(op.lowest) }
}

/// A range of blocks in bytes. Both ends were checked against the namespace.
pub fn bytes(blocks: Blocks, shift: u32) -> Range<u64> {
    blocks.slba << shift..(blocks.slba + u64::from(blocks.blocks)) << shift
}

/// The command of an order; ranges are in blocks of `1 << log2` bytes.
pub fn order_to_wire(order: &Order, log2: u8) -> vendor::Order {
    let blocks = |range: &Range<u64>| Blocks {
        slba: range.start >> log2,
        blocks: u32::try_from((range.end - range.start) >> log2).expect("at most what an order may have"),
    };
    let (kind, own, rows) = match &order.role {
        Role::Contribute { how, own, rows, to } => {
            let mut destinations = [None; 2];
            for (place, to) in destinations.iter_mut().zip(to) {
                *place = Some(vendor::Destination { peer: to.peer, coefficient: to.coefficient });
            }
            let how = match how {
                How::Old => ContributeHow::Old,
                How::Delta => ContributeHow::Delta,
                How::Overlay => ContributeHow::Overlay,
            };
            let own = (!own.is_empty()).then(|| blocks(own));
            (OrderKind::Contribute { how, destinations, returns_own: false }, own, rows)
        }
        Role::Reduce { base, rows, contributions, sink } => {
            let base = match base {
                Base::Zero => ReduceBase::Zero,
                Base::Old => ReduceBase::Old,
                Base::Own(coefficient) => ReduceBase::Own { coefficient: *coefficient },
            };
            let compare_only = *sink == Sink::Compare;
            let sink = if *sink == Sink::Host { vendor::Sink::Host } else { vendor::Sink::Drive };
            (OrderKind::Reduce { base, contributions: *contributions, sink, compare_only }, None, rows)
        }
    };
    let rows = blocks(rows);
    vendor::Order { op: op_to_wire(order.stamp), own, slba: rows.slba, kind, rows, fua: order.fua }
}

/// The order in a command, for the state machine, which knows nothing of rows that are returned too. Zeroes become an overlay.
pub fn order_from_wire(order: &vendor::Order, shift: u32) -> Order {
    let rows = bytes(order.rows, shift);
    let role = match order.kind {
        OrderKind::Contribute { how, destinations, .. } => {
            let none = rows.start..rows.start;
            let (how, own) = match how {
                ContributeHow::Old => (How::Old, none),
                ContributeHow::Delta => (How::Delta, rows.clone()),
                ContributeHow::Overlay => (How::Overlay, order.own.map_or(none, |own| bytes(own, shift))),
                ContributeHow::Zeroes => (How::Overlay, rows.clone()),
            };
            let to = destinations.into_iter().flatten();
            let to = to.map(|to| Destination { peer: to.peer, coefficient: to.coefficient }).collect();
            Role::Contribute { how, own, rows, to }
        }
        OrderKind::Reduce { base, contributions, sink, compare_only } => Role::Reduce {
            base: match base {
                ReduceBase::Zero => Base::Zero,
                ReduceBase::Old => Base::Old,
                ReduceBase::Own { coefficient } => Base::Own(coefficient),
            },
            rows,
            contributions,
            sink: match sink {
                vendor::Sink::Host => Sink::Host,
                vendor::Sink::Drive if compare_only => Sink::Compare,
                vendor::Sink::Drive => Sink::Drive,
            },
        },
    };
    Order { stamp: stamp_from_wire(order.op), role, fua: order.fua }
}

/// What a host asks about an op of the attach with a key of its own.
pub fn settle_to_wire(key: u64, stamp: Stamp, how: Settle) -> vendor::Settle {
    let action = match how {
        Settle::Abort => SettleAction::Abort,
        Settle::Ask => SettleAction::Ask,
        Settle::Resend { to, under } => SettleAction::Resend { peer: to, new_op: under.0 },
    };
    vendor::Settle { op: op_to_wire(stamp), attach_key: key, action }
}

/// How a command is completed: its status and its first word, which says what was done whatever the status.
pub fn answer_to_wire(answer: Answer) -> (Status, u64) {
    let Outcome { read, write_begun, written, forwarded, applied, equal, retained } = answer.outcome;
    let outcome = vendor::Outcome {
        read,
        written,
        forwarded,
        applied,
        equal,
        write_begun,
        retained,
        ..vendor::Outcome::default()
    };
    (status_of(answer.ending), u64::from(outcome.encode()))
}

/// What a completion says.
pub fn answer_from_wire(status: Status, value: u64) -> Answer {
    let vendor::Outcome { read, written, forwarded, applied, equal, retained, write_begun, .. } =
        vendor::Outcome::decode(value as u32);
    let outcome = Outcome { read, write_begun, written, forwarded, applied, equal, retained };
    Answer { ending: ending_of(status), outcome }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nvme_tcp::pdu::Unverified;
    use nvme_tcp::target::io::Shape;

    #[test]
    fn a_target_reads_the_order_that_was_meant() {
        let shape = Shape { blocks: 1 << 30, block_shift: 9, read_only: false, transfer_bytes_max: 1 << 20 };
        let stamp = Stamp { op: Op(77), lowest: Op(70) };
        let rows = 4096..8192;
        let to = [Destination { peer: 3, coefficient: 1 }, Destination { peer: 4, coefficient: 0x8e }]
            .into_iter()
            .collect();
        let delta = Role::Contribute { how: How::Delta, own: rows.clone(), rows: rows.clone(), to };
        let reduce =
            Role::Reduce { base: Base::Zero, rows: rows.clone(), contributions: 5, sink: Sink::Drive };
        for (role, bytes) in [(delta, 4096), (reduce, 0)] {
            let order = Order { stamp, role, fua: true };
            let sent = order_to_wire(&order, 9);
            let read = vendor::Order::check(&Unverified::new(sent.encode(1)), &shape, bytes).expect("sound");
            assert_eq!(read, sent);
            assert_eq!((read.rows.slba, read.rows.blocks, read.op.lowest), (8, 8, 70));
            assert_eq!(order_from_wire(&read, 9), order);
        }
    }

    #[test]
    fn an_answer_says_what_was_done_whatever_its_status() {
        let outcome = Outcome { read: true, write_begun: true, retained: true, ..Outcome::default() };
        for (status, ending) in ENDINGS {
            let answer = Answer { ending, outcome };
            let (sent, value) = answer_to_wire(answer);
            assert!(sent.is(status));
            assert_eq!(answer_from_wire(sent.without_retry(), value), answer);
        }
        assert_eq!(ending_of(Status::INTERNAL_ERROR), Ending::Invalid);
    }

    #[test]
    fn a_peer_says_what_became_of_a_contribution_or_is_not_there() {
        for (said, meant) in [
            (Status::SUCCESS, Ending::Done),
            (Status::OP_ABORTED, Ending::Aborted),
            (Status::OP_ABORTED.without_retry(), Ending::Aborted),
            (Status::OP_RETIRED, Ending::Retired),
            (Status::TIME_OVER, Ending::TimeOver),
            (Status::CONTRIBUTION_REFUSED, Ending::ContributionRefused),
            (Status::NO_ATTACH, Ending::PeerUnreachable),
            (Status::OPERATION_DENIED, Ending::PeerUnreachable),
            (Status::NO_CREDIT, Ending::PeerUnreachable),
            (Status::INTERNAL_ERROR, Ending::PeerUnreachable),
        ] {
            assert_eq!(ending_of_contribution(said), meant, "{said}");
        }
    }
}
