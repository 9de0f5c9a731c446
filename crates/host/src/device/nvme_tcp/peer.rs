//! A member whose target takes part in ops among targets: orders and questions on their way, and what the answers mean.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use engine::buffer::Gather;
use engine::device::{Answered, Answering, NoAnswer, PeerMember, Place};
use engine::fabric::order::{Order, Role, Settle, Sink, Stamp};
use nvme_tcp::status::Status;

use super::queue::RemoteDevice;
use super::vendor::{Sent, VendorCommand, VendorReply};
use crate::fabric_wire::{answer_from_wire, order_to_wire, settle_to_wire};

/// Most bytes of an order: a target takes as much in one command.
pub(super) const ORDER_BYTES_MAX: u64 = 1 << 20;

/// How often it is looked whether a target is attached again, and for how many looks: twice the time that it takes.
const ATTACH_LOOK: Duration = Duration::from_millis(25);
const ATTACH_LOOKS: u32 = 80;

impl PeerMember for RemoteDevice {
    fn place(&self) -> Option<Place> {
        let member = self.member();
        let (seat, key) = (member.ready_seat()?, member.ready_key()?);
        let order_bytes_max = member.shape.transfer_bytes_max.min(ORDER_BYTES_MAX);
        Some(Place { attach: Arc::clone(&seat.attach), index: seat.index, order_bytes_max, key })
    }

    fn order(&self, key: u64, order: Order, data: Gather) -> Answering {
        let member = self.member();
        if member.ready_key() != Some(key) {
            // As a target does that does not know the attach any more.
            return Box::pin(async { Err(NoAnswer::Forgot) });
        }
        let sqe = order_to_wire(&order, member.shape.block_log2).encode(member.address.namespace);
        let is_volatile = writes(&order.role) && !order.fua;
        let bytes_in = match &order.role {
            Role::Reduce { rows, sink: Sink::Host, .. } => {
                u32::try_from(rows.end - rows.start).expect("at most what an order may have")
            }
            _ => 0,
        };
        let command = VendorCommand { sqe, data, bytes_in, sent: Sent::OnThisOne, is_volatile };
        let done = self.send("order", command);
        Box::pin(async move {
            match done.await.map_err(NoAnswer::Device)? {
                VendorReply::NotSent => Err(NoAnswer::Forgot),
                reply => answered(reply),
            }
        })
    }

    fn settle(&self, key: u64, stamp: Stamp, how: Settle) -> Answering {
        // What is resent counts once under its new op, but a target that has forgotten the attach has forgotten that, too.
        let sent = if matches!(how, Settle::Resend { .. }) { Sent::Once } else { Sent::Again };
        let sqe = settle_to_wire(key, stamp, how).encode(self.member().address.namespace);
        let command = VendorCommand { sqe, data: Gather::new(), bytes_in: 0, sent, is_volatile: true };
        let done = self.send("settle", command);
        Box::pin(async move { answered(done.await.map_err(NoAnswer::Device)?) })
    }

    fn attached(&self) -> Pin<Box<dyn Future<Output = ()>>> {
        let own = self.clone();
        Box::pin(async move {
            let ring = own.ring();
            for _ in 0..ATTACH_LOOKS {
                if own.member().ready_key().is_some() {
                    return;
                }
                ring.sleep(ATTACH_LOOK).await;
            }
        })
    }
}

/// Whether an order changes what is on the drive.
fn writes(role: &Role) -> bool {
    match role {
        Role::Contribute { own, .. } => !own.is_empty(),
        Role::Reduce { sink, .. } => *sink == Sink::Drive,
    }
}

fn answered(reply: VendorReply) -> Result<Answered, NoAnswer> {
    let VendorReply::Completed(status, value, buffer) = reply else { return Err(NoAnswer::Away) };
    if status.is(Status::NO_ATTACH) {
        return Err(NoAnswer::Forgot);
    }
    let data = buffer.map_or_else(Gather::new, |buffer| buffer.freeze().into());
    Ok(Answered { answer: answer_from_wire(status, value), data })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_that_knows_no_attach_has_forgotten_and_one_that_is_away_has_not() {
        let reply = |status| VendorReply::Completed(status, 0, None);
        assert!(matches!(answered(reply(Status::NO_ATTACH)), Err(NoAnswer::Forgot)));
        assert!(matches!(answered(VendorReply::Away), Err(NoAnswer::Away)));
        assert!(answered(reply(Status::OP_ABORTED)).is_ok());
    }
}
