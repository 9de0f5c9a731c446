//! A member whose target takes part in ops among targets: orders and questions on their way, and what the answers mean.

use std::ops::Range;
use std::sync::Arc;

use engine::buffer::Gather;
use engine::device::{Answered, Answering, NoAnswer, PeerMember, Place};
use engine::fabric::order::{Answer, Base, Ending, How, Order, Outcome, Role, Settle, Sink, Stamp};
use nvme_tcp::status::Status;
use nvme_tcp::vendor::{self, Blocks, ContributeHow, Destination, Op, OrderKind, ReduceBase, SettleAction};

use super::queue::RemoteDevice;
use super::vendor::{VendorCommand, VendorReply};

/// Most bytes of an order: a target takes as much in one command.
const ORDER_BYTES_MAX: u64 = 1 << 20;

impl PeerMember for RemoteDevice {
    fn place(&self) -> Option<Place> {
        let member = self.member();
        let seat = member.ready_seat()?;
        let order_bytes_max = member.shape.transfer_bytes_max.min(ORDER_BYTES_MAX);
        Some(Place { attach: Arc::clone(&seat.attach), index: seat.index, order_bytes_max })
    }

    fn order(&self, order: Order, data: Gather) -> Answering {
        let member = self.member();
        let sqe = to_wire(&order, member.shape.block_log2).encode(member.address.namespace);
        let is_volatile = writes(&order.role) && !order.fua;
        let bytes_in = match &order.role {
            Role::Reduce { rows, sink: Sink::Host, .. } => {
                u32::try_from(rows.end - rows.start).expect("at most what an order may have")
            }
            _ => 0,
        };
        let command = VendorCommand { sqe, data, bytes_in, may_repeat: false, is_volatile };
        let done = self.send("order", command);
        Box::pin(async move { answered(done.await.map_err(NoAnswer::Device)?) })
    }

    fn settle(&self, stamp: Stamp, how: Settle) -> Answering {
        let action = match how {
            Settle::Abort => SettleAction::Abort,
            Settle::Ask => SettleAction::Ask,
            Settle::Resend { to, under } => SettleAction::Resend { peer: to, new_op: under.0 },
        };
        // What is resent counts once under its new op, but a target that has forgotten the attach has forgotten that, too.
        let may_repeat = !matches!(how, Settle::Resend { .. });
        let settle = vendor::Settle { op: op(stamp), attach_key: 0, action };
        let sqe = settle.encode(self.member().address.namespace);
        let command = VendorCommand { sqe, data: Gather::new(), bytes_in: 0, may_repeat, is_volatile: true };
        let done = self.send("settle", command);
        Box::pin(async move { answered(done.await.map_err(NoAnswer::Device)?) })
    }
}

/// Whether an order changes what is on the drive.
fn writes(role: &Role) -> bool {
    match role {
        Role::Contribute { own, .. } => !own.is_empty(),
        Role::Reduce { sink, .. } => *sink == Sink::Drive,
    }
}

fn op(stamp: Stamp) -> Op {
    Op { number: stamp.op.0, lowest: stamp.lowest.0 }
}

fn to_wire(order: &Order, log2: u8) -> vendor::Order {
    let blocks = |range: &Range<u64>| Blocks {
        slba: range.start >> log2,
        blocks: u32::try_from((range.end - range.start) >> log2).expect("at most what an order may have"),
    };
    let (kind, own, rows) = match &order.role {
        Role::Contribute { how, own, rows, to } => {
            let mut destinations = [None; 2];
            for (place, to) in destinations.iter_mut().zip(to) {
                *place = Some(Destination { peer: to.peer, coefficient: to.coefficient });
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
    vendor::Order { op: op(order.stamp), own, slba: rows.slba, kind, rows, fua: order.fua }
}

fn answered(reply: VendorReply) -> Result<Answered, NoAnswer> {
    let VendorReply::Completed(status, value, buffer) = reply else { return Err(NoAnswer::Away) };
    if status.is(Status::NO_ATTACH) {
        return Err(NoAnswer::Forgot);
    }
    let vendor::Outcome { read, written, forwarded, applied, equal, retained, write_begun, .. } =
        vendor::Outcome::decode(value as u32);
    let outcome = Outcome { read, write_begun, written, forwarded, applied, equal, retained };
    let data = buffer.map_or_else(Gather::new, |buffer| buffer.freeze().into());
    Ok(Answered { answer: Answer { ending: ending(status), outcome }, data })
}

/// What a target's status says. One that is not known here says that the order was refused.
fn ending(status: Status) -> Ending {
    const KNOWN: &[(Status, Ending)] = &[
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
    ];
    let known = KNOWN.iter().find(|(known, _)| status.is(*known));
    known.map_or(Ending::Invalid, |(_, ending)| *ending)
}

#[cfg(test)]
mod tests {
    use super::*;
    use engine::fabric::order::{Destination as To, Op as OpNumber};
    use nvme_tcp::pdu::Unverified;
    use nvme_tcp::target::io::Shape;

    #[test]
    fn a_target_reads_the_order_that_was_meant() {
        let shape = Shape { blocks: 1 << 30, block_shift: 9, read_only: false, transfer_bytes_max: 1 << 20 };
        let stamp = Stamp { op: OpNumber(77), lowest: OpNumber(70) };
        let rows = 4096..8192;
        let to = [To { peer: 3, coefficient: 1 }, To { peer: 4, coefficient: 0x8e }].into_iter().collect();
        let delta = Role::Contribute { how: How::Delta, own: rows.clone(), rows: rows.clone(), to };
        let reduce =
            Role::Reduce { base: Base::Zero, rows: rows.clone(), contributions: 5, sink: Sink::Drive };
        for (role, bytes) in [(delta, 4096), (reduce, 0)] {
            let order = Order { stamp, role, fua: true };
            let sent = to_wire(&order, 9);
            let read = vendor::Order::check(&Unverified::new(sent.encode(1)), &shape, bytes).expect("sound");
            assert_eq!(read, sent);
            assert_eq!((read.rows.slba, read.rows.blocks, read.op.lowest), (8, 8, 70));
        }
    }

    #[test]
    fn an_answer_says_what_was_done_whatever_its_status() {
        let outcome = vendor::Outcome { read: true, write_begun: true, retained: true, ..Default::default() };
        let reply = |status| VendorReply::Completed(status, u64::from(outcome.encode()), None);
        let answered = answered(reply(Status::OP_ABORTED.without_retry())).expect("an answer");
        assert_eq!(answered.answer.ending, Ending::Aborted);
        assert!(answered.answer.outcome.retained && answered.answer.outcome.write_begun);
        assert!(matches!(super::answered(reply(Status::NO_ATTACH)), Err(NoAnswer::Forgot)));
        assert!(matches!(super::answered(VendorReply::Away), Err(NoAnswer::Away)));
        assert_eq!(ending(Status::INTERNAL_ERROR), Ending::Invalid);
    }
}
