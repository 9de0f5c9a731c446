//! A host and targets, each with one network card, and what they send each other: the engine's own orders and state machines, with
//! NVMe/TCP's messages around them.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;

use engine::buffer::{Buffer, Gather, Pool};
use engine::device::{Answered, Answering, Device, DeviceError, DeviceInfo, PeerMember, Place};
use engine::fabric::credit::CREDIT_BYTES;
use engine::fabric::effect::{Effect, Effects, Input};
use engine::fabric::host::Attach;
use engine::fabric::order::{Answer, Contribution, Op, Order, PeerIndex, Settle, Stamp};
use engine::fabric::target::Target;
use layout::units::DeviceOffset;

use super::drive::Drive;
use super::point::Drives;
use crate::nic::{Nic, NicSpeed};
use crate::timeline::Timeline;
use crate::world::{Filler, Pending, pending};

/// A command's capsule.
const COMMAND_BYTES: u64 = 72;
/// A completion, a request for data, or the header of data.
const HEADER_BYTES: u64 = 24;
/// A capsule brings at most this much data; more is asked for (R2T).
const IN_CAPSULE_BYTES: u64 = 8 << 10;
/// From card to card.
const WAY_NS: u64 = 5_000;
/// Most bytes of an order, as `twill target` has it.
const ORDER_BYTES_MAX: u64 = 1 << 20;

type Token = Box<dyn FnOnce(Answer, Gather)>;

/// All machines.
pub(super) struct Rack {
    time: Rc<Timeline>,
    pub(super) host: Rc<Nic>,
    nodes: Vec<Rc<Node>>,
    attach: Arc<Attach>,
    pool: Arc<Pool>,
}

/// A target with its drive.
struct Node {
    nic: Rc<Nic>,
    drive: Drive,
    target: RefCell<Target<Token>>,
    /// When reads will have ended that began with their orders' commands (D5).
    begun_reads: RefCell<BTreeMap<Op, u64>>,
}

impl Rack {
    /// Targets with cards of these speeds, in order of slots.
    pub(super) fn new(time: &Rc<Timeline>, host: NicSpeed, targets: &[NicSpeed], drives: Drives) -> Rc<Self> {
        let (attach, pool) = (Arc::new(Attach::new(1)), Pool::new(64 << 20));
        let node = |(index, speed): (usize, &NicSpeed)| {
            let index = PeerIndex::try_from(index).expect("as many as an attach has");
            attach.set_reaches(index, u32::MAX);
            attach.set_given(index, CREDIT_BYTES);
            Rc::new(Node {
                nic: Nic::new(time, *speed),
                drive: Drive::new(time, drives, u64::from(index) + 2),
                target: RefCell::new(Target::new(index, CREDIT_BYTES, Arc::clone(&pool))),
                begun_reads: RefCell::default(),
            })
        };
        let nodes = targets.iter().enumerate().map(node).collect();
        Rc::new(Rack { time: Rc::clone(time), host: Nic::new(time, host), nodes, attach, pool })
    }

    /// A command to a target, with its data; `begun` as soon as it is known there, `arrived` when its data is there, too.
    fn command(
        self: &Rc<Self>,
        (from, to): (&Rc<Nic>, &Rc<Nic>),
        data_bytes: u64,
        begun: impl FnOnce() + 'static,
        arrived: impl FnOnce() + 'static,
    ) {
        let (from_again, to_again) = (Rc::clone(from), Rc::clone(to));
        if data_bytes <= IN_CAPSULE_BYTES {
            return from.send(to, COMMAND_BYTES + data_bytes, WAY_NS, move || {
                begun();
                arrived();
            });
        }
        from.send(to, COMMAND_BYTES, WAY_NS, move || {
            begun();
            let (from, to) = (Rc::clone(&from_again), Rc::clone(&to_again));
            to_again.send(&from_again, HEADER_BYTES, WAY_NS, move || {
                from.send(&to, HEADER_BYTES + data_bytes, WAY_NS, arrived);
            });
        });
    }

    fn handle(self: &Rc<Self>, index: usize, input: Input<Token>) {
        let mut effects = Effects::new();
        self.nodes[index].target.borrow_mut().handle(input, &mut effects);
        for effect in effects {
            self.carry_out(index, effect);
        }
    }

    fn carry_out(self: &Rc<Self>, index: usize, effect: Effect<Token>) {
        let (rack, node) = (Rc::clone(self), &self.nodes[index]);
        match effect {
            Effect::Read { op, rows } => {
                let bytes = rows.end - rows.start;
                let begun = node.begun_reads.borrow_mut().remove(&op);
                let ends_at_ns = begun.unwrap_or_else(|| node.drive.read(bytes));
                self.time.at(ends_at_ns, move || {
                    let buffer = rack.pool.take(to_usize(bytes));
                    rack.handle(index, Input::Read { op, result: Ok(buffer) });
                });
            }
            Effect::Write { op, data, .. } => {
                let ends_at_ns = node.drive.write(data.len() as u64);
                self.time.at(ends_at_ns, move || rack.handle(index, Input::Written { op, result: Ok(()) }));
            }
            Effect::Forward { destination, to, contribution, data } => {
                self.forward(index, destination, usize::from(to), contribution, data.into());
            }
            Effect::Answer { token, answer, data } => token(answer, data),
            // Nothing is lost here.
            Effect::Limit { .. } => {}
        }
    }

    fn forward(
        self: &Rc<Self>,
        index: usize,
        destination: usize,
        to: usize,
        contribution: Contribution,
        data: Gather,
    ) {
        let (rack, op) = (Rc::clone(self), contribution.stamp.op);
        let ways = (&self.nodes[index].nic, &self.nodes[to].nic);
        self.command(
            ways,
            data.len() as u64,
            || {},
            move || {
                let back = Rc::clone(&rack);
                let token: Token = Box::new(move |answer, _| {
                    let (from, to) = (Rc::clone(&back.nodes[to].nic), Rc::clone(&back.nodes[index].nic));
                    from.send(&to, HEADER_BYTES, WAY_NS, move || {
                        let ending = answer.ending;
                        back.handle(index, Input::Forwarded { op, destination, ending });
                    });
                });
                rack.handle(to, Input::Contribution { contribution, data, token });
            },
        );
    }
}

/// The host's way to a member.
pub(super) struct RackDevice {
    rack: Rc<Rack>,
    index: usize,
    info: DeviceInfo,
}

impl RackDevice {
    pub(super) fn new(rack: &Rc<Rack>, index: usize, size_bytes: u64) -> Self {
        let info = DeviceInfo {
            size_bytes,
            logical_block_bytes: 4096,
            discard_zeroes: false,
            name: format!("target {index}"),
        };
        RackDevice { rack: Rc::clone(rack), index, info }
    }

    fn node(&self) -> &Node {
        &self.rack.nodes[self.index]
    }

    /// A command that changes something, with data or without.
    fn change(&self, data_bytes: u64) -> Pending<Result<(), DeviceError>> {
        let (pending, filler): (_, Filler<Result<(), DeviceError>>) = pending();
        let (rack, index) = (Rc::clone(&self.rack), self.index);
        self.rack.command(
            (&self.rack.host, &self.node().nic),
            data_bytes,
            || {},
            move || {
                let node = Rc::clone(&rack.nodes[index]);
                let written_at_ns = node.drive.write(data_bytes);
                let host = Rc::clone(&rack.host);
                rack.time.at(written_at_ns, move || {
                    node.nic.send(&host, HEADER_BYTES, WAY_NS, move || filler.fill(Ok(())));
                });
            },
        );
        pending
    }
}

impl Device for RackDevice {
    type Read = Pending<(Buffer, Result<(), DeviceError>)>;
    type Done = Pending<Result<(), DeviceError>>;

    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn read(&self, _offset: DeviceOffset, buffer: Buffer) -> Self::Read {
        let (pending, filler) = pending();
        let (rack, index, bytes) = (Rc::clone(&self.rack), self.index, buffer.len() as u64);
        self.rack.command(
            (&self.rack.host, &self.node().nic),
            0,
            || {},
            move || {
                let node = Rc::clone(&rack.nodes[index]);
                let read_at_ns = node.drive.read(bytes);
                let host = Rc::clone(&rack.host);
                rack.time.at(read_at_ns, move || {
                    let answer = HEADER_BYTES + bytes + HEADER_BYTES;
                    node.nic.send(&host, answer, WAY_NS, move || filler.fill((buffer, Ok(()))));
                });
            },
        );
        pending
    }

    fn write(&self, _offset: DeviceOffset, data: Gather, _fua: bool) -> Self::Done {
        self.change(data.len() as u64)
    }

    fn flush(&self) -> Self::Done {
        self.change(0)
    }

    fn discard(&self, _offset: DeviceOffset, _bytes: u64) -> Self::Done {
        self.change(0)
    }

    fn write_zeroes(&self, _offset: DeviceOffset, _bytes: u64, _may_unmap: bool) -> Self::Done {
        self.change(0)
    }

    fn peer(&self) -> Option<&dyn PeerMember> {
        Some(self)
    }
}

impl PeerMember for RackDevice {
    fn place(&self) -> Option<Place> {
        let index = PeerIndex::try_from(self.index).expect("as many as an attach has");
        let attach = Arc::clone(&self.rack.attach);
        Some(Place { attach, index, order_bytes_max: ORDER_BYTES_MAX, key: 1 })
    }

    fn order(&self, _key: u64, order: Order, data: Gather) -> Answering {
        let (pending, filler) = pending();
        let (rack, index) = (Rc::clone(&self.rack), self.index);
        let (op, read_bytes) =
            (order.stamp.op, order.role.read_before_data().map_or(0, |rows| rows.end - rows.start));
        let back = Rc::clone(&rack);
        let token: Token = Box::new(move |answer, data: Gather| {
            let bytes = HEADER_BYTES + data.len() as u64 + if data.is_empty() { 0 } else { HEADER_BYTES };
            let from = Rc::clone(&back.nodes[index].nic);
            let host = Rc::clone(&back.host);
            from.send(&host, bytes, WAY_NS, move || filler.fill(Ok(Answered { answer, data })));
        });
        let early = Rc::clone(&rack);
        let begun = move || {
            if read_bytes > 0 {
                let node = &early.nodes[index];
                node.begun_reads.borrow_mut().insert(op, node.drive.read(read_bytes));
            }
        };
        let ways = (&self.rack.host, &self.node().nic);
        self.rack.command(ways, data.len() as u64, begun, move || {
            rack.handle(index, Input::Order { order, data, token });
        });
        Box::pin(pending)
    }

    fn settle(&self, _key: u64, _stamp: Stamp, _how: Settle) -> Answering {
        unreachable!("every order has its answer: nothing is lost here")
    }

    fn attached(&self) -> Pin<Box<dyn Future<Output = ()>>> {
        Box::pin(std::future::ready(()))
    }
}

fn to_usize(bytes: u64) -> usize {
    usize::try_from(bytes).expect("an order fits in memory")
}
