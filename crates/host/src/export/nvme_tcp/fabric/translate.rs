//! Between the words of the wire and those of the state machine.

use engine::fabric::order::{Answer, Base, Destination, Ending, How, Op, Order, Outcome, Role, Sink, Stamp};
use nvme_tcp::status::Status;
use nvme_tcp::vendor::{self, Blocks, ContributeHow, OrderKind, ReduceBase};
use std::ops::Range;

/// The op of a command.
pub(super) fn stamp(op: vendor::Op) -> Stamp {
    Stamp { op: Op(op.number), lowest: Op(op.lowest) }
}

/// A range of blocks in bytes. Both ends were checked against the namespace.
pub(super) fn bytes(blocks: Blocks, shift: u32) -> Range<u64> {
    blocks.slba << shift..(blocks.slba + u64::from(blocks.blocks)) << shift
}

/// What the state machine is told. Own rows that are returned are no part of it; zeroes are an overlay with them.
pub(super) fn order(order: &vendor::Order, shift: u32) -> Order {
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
    Order { stamp: stamp(order.op), role, fua: order.fua }
}

/// How a command is completed: its status and its first word, which says what was done whatever the status.
pub(super) fn completion(answer: Answer) -> (Status, u64) {
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
    (status(answer.ending), u64::from(outcome.encode()))
}

pub(super) fn status(ending: Ending) -> Status {
    match ending {
        Ending::Done => Status::SUCCESS,
        Ending::ReadFailed => Status::UNRECOVERED_READ,
        Ending::WriteFailed => Status::WRITE_FAULT,
        Ending::NoSpace => Status::CAPACITY_EXCEEDED,
        Ending::DeltaGone => Status::DELTA_GONE,
        Ending::PeerUnreachable => Status::PEER_UNREACHABLE,
        Ending::Retired => Status::OP_RETIRED,
        Ending::Aborted => Status::OP_ABORTED,
        Ending::ContributionRefused => Status::CONTRIBUTION_REFUSED,
        Ending::TimeOver => Status::TIME_OVER,
        Ending::NeverSeen => Status::NEVER_SEEN,
        Ending::Invalid => Status::INVALID_FIELD,
    }
}

/// What a peer's answer to a contribution means. One that says nothing of the op is as good as none.
pub(super) fn ending(status: Status) -> Ending {
    const KNOWN: [Ending; 5] =
        [Ending::Done, Ending::Aborted, Ending::Retired, Ending::TimeOver, Ending::ContributionRefused];
    let known = KNOWN.into_iter().find(|ending| status.is(self::status(*ending)));
    known.unwrap_or(Ending::PeerUnreachable)
}

#[cfg(test)]
mod tests {
    use super::*;

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
            (Status::INTERNAL_ERROR, Ending::PeerUnreachable),
        ] {
            assert_eq!(ending(said), meant, "{said}");
        }
    }
}
