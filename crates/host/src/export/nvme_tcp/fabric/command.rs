//! Commands of the fabric on an I/O queue: orders, contributions of peers, and questions about ops.

use engine::buffer::{Buffer, Gather};
use engine::fabric::effect::Input;
use engine::fabric::epochs::EpochStamp;
use engine::fabric::order::{Contribution, Op, Settle};
use nvme_tcp::command::{Sqe, io};
use nvme_tcp::pdu::Unverified;
use nvme_tcp::status::Status;
use nvme_tcp::target::io::Shape;
use nvme_tcp::target::queue::Slot;
use nvme_tcp::vendor::{self, Blocks, OrderKind, SettleAction, opcode};
use smallvec::SmallVec;
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;

use super::super::connection_limits::TRANSFER_BYTES_MAX;
use super::super::gate::Gate;
use super::super::link::Link;
use super::attach::Attach;
use super::site::{ReadAhead, Site};
use crate::call::Reply;
use crate::fabric_wire::{
    answer_to_wire, bytes, epoch_from_wire, order_from_wire, stamp_from_wire, status_of,
};

/// A command of the fabric, checked against its namespace.
pub(in super::super) struct FabricCommand {
    namespace: u32,
    shape: Shape,
    /// The epoch that it names, for a ledger.
    stamp: Option<EpochStamp>,
    work: Work,
    /// Its read has begun.
    ahead: Option<ReadAhead>,
}

enum Work {
    Order(vendor::Order),
    Peer(vendor::Peer),
    Settle(vendor::Settle),
}

impl FabricCommand {
    /// The command, if it is one and the subsystem takes such.
    ///
    /// # Errors
    /// The status to answer with.
    pub fn parse(
        gate: &Gate,
        sqe: &Unverified<Sqe>,
        data_bytes: u32,
    ) -> Result<Option<FabricCommand>, Status> {
        let received = sqe.as_received();
        let (namespace, code) = (received.nsid.get(), received.opcode);
        let is_order = matches!(
            code,
            opcode::CONTRIBUTE_NEW
                | opcode::CONTRIBUTE
                | opcode::CONTRIBUTE_AND_READ
                | opcode::REDUCE_TO_DRIVE
                | opcode::REDUCE_TO_HOST
        );
        if !is_order && code != opcode::PEER && code != opcode::SETTLE || !gate.entry.has_fabric() {
            return Ok(None);
        }
        let shape = gate.shape(namespace)?;
        let work = match code {
            opcode::PEER => Work::Peer(vendor::Peer::check(sqe, &shape, data_bytes)?),
            opcode::SETTLE => Work::Settle(vendor::Settle::check(sqe, data_bytes)?),
            _ => Work::Order(vendor::Order::check(sqe, &shape, data_bytes)?),
        };
        let command = FabricCommand { namespace, shape, stamp: epoch_from_wire(received), work, ahead: None };
        command.check_size()?;
        command.admit(gate)?;
        Ok(Some(command))
    }

    fn check_size(&self) -> Result<(), Status> {
        let most = TRANSFER_BYTES_MAX >> self.shape.block_shift;
        let fits = match &self.work {
            Work::Order(order) => order.rows.blocks <= most && order.own.is_none_or(|own| own.blocks <= most),
            Work::Peer(peer) => peer.blocks <= most,
            Work::Settle(_) => true,
        };
        if fits { Ok(()) } else { Err(Status::INVALID_FIELD) }
    }

    /// A contribution is another target's, or the host's that has the namespace; all else is a host's alone (F-I6).
    fn admit(&self, gate: &Gate) -> Result<(), Status> {
        match &self.work {
            Work::Peer(_) if gate.entry.allows_peer(&gate.host.nqn) => Ok(()),
            _ if gate.is_peer_only => Err(Status::OPERATION_DENIED),
            _ => gate.open(self.namespace, self.class()).map(drop),
        }
    }

    /// The plain command that does as much to the namespace.
    fn class(&self) -> u8 {
        match &self.work {
            Work::Order(order) if !order.writes() => io::READ,
            _ => io::WRITE,
        }
    }

    /// Bytes of data that the sender has for it.
    pub fn data_out_bytes(&self) -> u32 {
        let blocks = match &self.work {
            Work::Order(order) => order.data_out_blocks(),
            Work::Peer(peer) => peer.blocks,
            Work::Settle(_) => 0,
        };
        blocks << self.shape.block_shift
    }

    /// Bytes that it moves.
    pub fn data_bytes(&self) -> u32 {
        let returned = if let Work::Order(order) = &self.work { order.data_in_blocks() } else { 0 };
        self.data_out_bytes().max(returned << self.shape.block_shift)
    }

    /// Its data is being fetched: what it reads may be read meanwhile (D5). What it lacks then, or may not do, is said when it is carried
    /// out.
    pub fn begin(&mut self, gate: &Gate) {
        let Work::Order(ordered) = &self.work else { return };
        let Some(attach) = gate.entry.attaches.of_host(self.namespace, &gate.host) else { return };
        let order = order_from_wire(ordered, self.shape.block_shift);
        if let Some(rows) = order.role.read_before_data() {
            self.ahead = Some(Site::of(&attach, &gate.shard).read_ahead(order.stamp.op, rows));
        }
    }

    /// Carries it out: its answer comes when its op has come so far, from a task of its own.
    pub fn carry_out(self, gate: &Rc<Gate>, link: &Rc<Link>, slot: Slot, data: Gather) {
        let begun = match &self.work {
            Work::Order(order) => self.order(order, gate, link, slot, data),
            Work::Peer(peer) => self.peer(peer, gate, link, slot, data),
            Work::Settle(settle) => self.settle(settle, gate, link, slot),
        };
        if let Err(status) = begun {
            link.answer(slot, status, 0, Gather::new());
        }
    }

    fn order(
        &self,
        ordered: &vendor::Order,
        gate: &Rc<Gate>,
        link: &Rc<Link>,
        slot: Slot,
        data: Gather,
    ) -> Result<(), Status> {
        // F-I6: at work from here on, and then it is asked whose the attach is: a preempt sees the one or ends the other.
        let ticket = gate.begin(slot, self.namespace, self.class())?;
        let attach = gate.entry.attaches.of_host(self.namespace, &gate.host).ok_or(Status::NO_ATTACH)?;
        let site = Site::of(&attach, &gate.shard);
        let shift = self.shape.block_shift;
        let data = if is_zeroes(ordered) { zeroes(&bytes(ordered.rows, shift)) } else { data };
        gate.entry.ledgers.change(self.namespace, &gate.host, self.stamp, || changed_by(ordered, shift));
        let (token, answered) = Reply::new(gate.shard.index);
        site.give(Input::Order { order: order_from_wire(ordered, shift), data, token })?;
        let (link, own) = (Rc::clone(link), returned_rows(ordered).map(|own| bytes(own, shift)));
        gate.shard.executor.spawn(async move {
            let own = match own {
                Some(own) => Some(site.read(own).await),
                None => None,
            };
            let answered = answered.await;
            // Before the answer, after which the slot may be another command's.
            drop(ticket);
            let Ok(answered) = answered else {
                return link.answer(slot, Status::INTERNAL_ERROR, 0, Gather::new());
            };
            let (mut status, value) = answer_to_wire(answered.answer);
            let mut data = Gather::new();
            match own {
                _ if !status.is_success() => {}
                Some(Err(())) => status = Status::UNRECOVERED_READ,
                own => {
                    let own = own.and_then(Result::ok).unwrap_or_default();
                    own.slices().iter().chain(answered.data.slices()).for_each(|one| data.push(one.clone()));
                }
            }
            link.answer(slot, status, value, data);
        });
        Ok(())
    }

    /// It changes nothing by itself: the order that reduces is at work, and writes.
    fn peer(
        &self,
        peer: &vendor::Peer,
        gate: &Rc<Gate>,
        link: &Rc<Link>,
        slot: Slot,
        data: Gather,
    ) -> Result<(), Status> {
        // Its data may have come long after itself.
        self.admit(gate)?;
        let found = gate.entry.attaches.of_handle(self.namespace, peer.handle);
        let attach = found.ok_or(Status::NO_ATTACH)?;
        let rows = bytes(Blocks { slba: peer.slba, blocks: peer.blocks }, self.shape.block_shift);
        let contribution = Contribution {
            stamp: stamp_from_wire(peer.op),
            from: peer.member,
            rows,
            when_complete: peer.answer_when_complete,
        };
        let (token, answered) = Reply::new(gate.shard.index);
        Site::of(&attach, &gate.shard).give(Input::Contribution { contribution, data, token })?;
        let link = Rc::clone(link);
        gate.shard.executor.spawn(async move {
            let ending = answered.await.map(|answered| answered.answer.ending);
            link.answer(slot, ending.map_or(Status::INTERNAL_ERROR, status_of), 0, Gather::new());
        });
        Ok(())
    }

    fn settle(
        &self,
        settle: &vendor::Settle,
        gate: &Rc<Gate>,
        link: &Rc<Link>,
        slot: Slot,
    ) -> Result<(), Status> {
        let ticket = gate.begin(slot, self.namespace, self.class())?;
        let attach = self.attach_of(settle.attach_key, gate).ok_or(Status::NO_ATTACH)?;
        let how = match settle.action {
            SettleAction::Abort => Settle::Abort,
            SettleAction::Ask => Settle::Ask,
            SettleAction::Resend { peer, new_op } => Settle::Resend { to: peer, under: Op(new_op) },
            SettleAction::Release => {
                drop(ticket);
                link.answer(slot, Status::SUCCESS, 0, Gather::new());
                return Ok(());
            }
        };
        let (token, answered) = Reply::new(gate.shard.index);
        Site::of(&attach, &gate.shard).give(Input::Settle {
            stamp: stamp_from_wire(settle.op),
            how,
            token,
        })?;
        let link = Rc::clone(link);
        gate.shard.executor.spawn(async move {
            let answered = answered.await;
            drop(ticket);
            let (status, value) = answered.map_or((Status::INTERNAL_ERROR, 0), |mut answered| {
                answered.answer.outcome.retained &= attach.can_resend();
                answer_to_wire(answered.answer)
            });
            link.answer(slot, status, value, Gather::new());
        });
        Ok(())
    }

    fn attach_of(&self, key: u64, gate: &Gate) -> Option<Arc<Attach>> {
        match key {
            0 => gate.entry.attaches.of_host(self.namespace, &gate.host),
            key => gate.entry.attaches.of_key(self.namespace, key),
        }
    }
}

/// The rows that an order changes.
fn changed_by(order: &vendor::Order, shift: u32) -> SmallVec<[Range<u64>; 1]> {
    let written = if matches!(order.kind, OrderKind::Contribute { .. }) { order.own } else { None };
    let rows = order.writes().then(|| written.unwrap_or(order.rows));
    rows.into_iter().map(|rows| bytes(rows, shift)).collect()
}

fn is_zeroes(order: &vendor::Order) -> bool {
    matches!(order.kind, OrderKind::Contribute { how: vendor::ContributeHow::Zeroes, .. })
}

fn zeroes(rows: &Range<u64>) -> Gather {
    let bytes = usize::try_from(rows.end - rows.start).expect("at most what a command moves");
    Buffer::new(bytes).freeze().into()
}

/// Own rows that the host gets.
fn returned_rows(order: &vendor::Order) -> Option<Blocks> {
    let returns = match order.kind {
        OrderKind::Contribute { returns_own, .. } => returns_own,
        OrderKind::Reduce { sink, .. } => sink == vendor::Sink::Host,
    };
    order.own.filter(|_| returns)
}
