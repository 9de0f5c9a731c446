//! Targets that make parity among themselves: every device has one, and messages between them and the host take their time, are
//! lost, or come late.
//!
//! Fault model, beside that of the devices:
//! - A connection between the host and a target is lost with an order before or after it arrived; one that did not arrive may do so
//!   long after, as a command that a network or a kernel held back. Or the host connects anew: the target ends what was gathering
//!   and does not take the order any more, and knows the attach by another key a while later.
//! - A contribution, or its answer, is lost with the connection between two targets.
//! - Some members are other vendors' and take no orders.
//! - Some targets have little memory, so that hosts make some parity themselves. No target may refuse an order for that (F-I10): a
//!   host takes no more than it was given, whatever message is late.
//! - Targets are lost with the host at a power cut: their memory is gone, their devices are as after any cut.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::ops::Range;
use std::pin::Pin;
use std::rc::{Rc, Weak};
use std::sync::Arc;

use engine::buffer::{Gather, Pool};
use engine::device::{Answered, Answering, DeviceError, DeviceErrorKind, NoAnswer, PeerMember, Place};
use engine::fabric::credit::CREDIT_BYTES;
use engine::fabric::effect::{Effect, Effects, Input};
use engine::fabric::epochs::{EpochStamp, Epochs};
use engine::fabric::host::Attach;
use engine::fabric::order::{
    Answer, Contribution, Ending, Order, PEERS_MAX, PeerIndex, Role, Settle, Sink, Stamp,
};
use engine::fabric::target::Target;
use layout::units::DeviceOffset;

use crate::disk::remote::Holder;
use crate::disk::{Disk, SimTarget};
use crate::network::{Fault, Hosts};
use crate::random::Random;
use crate::trace::Note;
use crate::world::{Filler, World, pending};

/// How the targets of a history fail.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FabricPlan {
    /// One in this many orders loses its connection; 0 is never.
    pub(crate) order_lost_one_in: u64,
    /// One in this many contributions.
    pub(crate) contribution_lost_one_in: u64,
    /// One in this many members takes no orders.
    pub(crate) foreign_one_in: u64,
    /// Longest time of a message.
    pub(crate) delay: u64,
    /// A trial decides where parity is made.
    pub(crate) is_auto: bool,
    /// A lost connection is made anew, and the attach with it.
    pub(crate) attaches_anew: bool,
    /// Bytes of memory that each target gives.
    pub(crate) credit: u64,
    /// Something goes wrong at a message that is chosen ([`crate::grid::messages`]).
    pub(crate) fails_once: bool,
}

impl FabricPlan {
    pub(crate) fn draw(random: &Random) -> Self {
        let mut plan = FabricPlan {
            order_lost_one_in: random.pick(&[0, 0, 10, 40]),
            contribution_lost_one_in: random.pick(&[0, 0, 10, 40]),
            foreign_one_in: random.pick(&[0, 0, 0, 8]),
            delay: random.pick(&[2, 10, 60]),
            is_auto: false,
            attaches_anew: false,
            credit: CREDIT_BYTES,
            fails_once: false,
        };
        // No draw of its own: seeds that are kept stay what they were.
        plan.is_auto = plan.order_lost_one_in == 40 && plan.delay > 2;
        plan.attaches_anew = plan.order_lost_one_in > 0 && plan.delay == 10;
        // For a few orders of a block, or of several.
        plan.credit = match (plan.contribution_lost_one_in, plan.delay) {
            (40, 2) => 24 << 10,
            (40, 60) | (10, 10) => 96 << 10,
            _ => CREDIT_BYTES,
        };
        plan
    }
}

impl FabricPlan {
    /// Messages are lost.
    pub(crate) fn loses(&self) -> bool {
        self.order_lost_one_in > 0 || self.contribution_lost_one_in > 0 || self.fails_once
    }
}

/// Longer than messages and devices take, so that a reduction only ends by it where something was lost.
const LIMIT_TICKS: u64 = 6_000;

/// A command that waits for its answer.
type Token = Box<dyn FnOnce(Answer, Gather)>;

/// The targets of an attach.
pub(crate) struct Fabric {
    world: Rc<World>,
    attach: Arc<Attach>,
    plan: FabricPlan,
    hosts: Rc<Hosts>,
    /// The one that attached the targets.
    host: u64,
    /// Its writes that are under way.
    epochs: Option<Arc<Epochs>>,
    /// Targets that do not reach each other any more.
    cut_off: RefCell<BTreeSet<(PeerIndex, PeerIndex)>>,
    nodes: RefCell<Vec<Option<Weak<Node>>>>,
}

/// The target of a device.
struct Node {
    fabric: Rc<Fabric>,
    index: PeerIndex,
    disk: Weak<Disk>,
    /// Of each attach, the current one last; a key is the place in it.
    attaches: RefCell<Vec<Target<Token>>>,
    /// When the others know the current one.
    known_at: Cell<u64>,
    /// Writes that its device has not answered.
    writing: Cell<usize>,
}

/// The host's way to a target.
struct Handle(Rc<Node>);

impl Fabric {
    /// Attaches the targets of these devices.
    pub(crate) fn attach(
        world: &Rc<World>,
        plan: FabricPlan,
        hosts: &Rc<Hosts>,
        epochs: Option<Arc<Epochs>>,
        disks: &[Rc<Disk>],
    ) {
        let serial = world.now();
        let attach = Arc::new(Attach::new(serial));
        let nodes = RefCell::new(vec![None; PEERS_MAX]);
        let fabric = Rc::new(Fabric {
            world: Rc::clone(world),
            attach,
            plan,
            hosts: Rc::clone(hosts),
            host: hosts.current(),
            epochs,
            cut_off: RefCell::default(),
            nodes,
        });
        let everyone = u32::MAX;
        for disk in disks {
            let is_foreign = plan.foreign_one_in > 0 && world.random().one_in(plan.foreign_one_in);
            let index = PeerIndex::try_from(disk.number).ok().filter(|index| usize::from(*index) < PEERS_MAX);
            let node = index.filter(|_| !is_foreign).map(|index| {
                fabric.attach.set_reaches(index, everyone);
                fabric.attach.set_given(index, plan.credit);
                let node = Rc::new(Node {
                    fabric: Rc::clone(&fabric),
                    index,
                    disk: Rc::downgrade(disk),
                    attaches: RefCell::new(vec![Target::new(index, plan.credit, Pool::new(1 << 20))]),
                    known_at: Cell::new(0),
                    writing: Cell::new(0),
                });
                fabric.nodes.borrow_mut()[usize::from(index)] = Some(Rc::downgrade(&node));
                node
            });
            *disk.target.borrow_mut() = node.map(|node| Rc::new(Handle(node)) as _);
        }
    }

    fn delay(&self) -> u64 {
        self.world.random().between(1, self.plan.delay)
    }

    fn is_lost(&self, one_in: u64) -> bool {
        one_in > 0 && self.world.random().one_in(one_in)
    }

    /// What is to go wrong at the next order or contribution.
    fn next_fault(&self) -> Option<Fault> {
        self.world.counts.borrow_mut().network_commands += 1;
        let fault = self.hosts.next_fault()?;
        self.world.note(Note::Words(format!("  fabric: {fault:?}")));
        Some(fault)
    }

    fn node(&self, index: PeerIndex) -> Option<Rc<Node>> {
        self.nodes.borrow()[usize::from(index)].as_ref().and_then(Weak::upgrade)
    }
}

/// What the host waits for; given once.
type Reply = Rc<RefCell<Option<Filler<Result<Answered, NoAnswer>>>>>;

fn reply(to: &Reply, what: Result<Answered, NoAnswer>) {
    let filler = to.borrow_mut().take();
    if let Some(filler) = filler {
        filler.fill(what);
    }
}

impl PeerMember for Handle {
    fn place(&self) -> Option<Place> {
        let attach = Arc::clone(&self.0.fabric.attach);
        let place = Place { attach, index: self.0.index, order_bytes_max: 1 << 20, key: self.0.key() };
        self.0.is_known().then_some(place)
    }

    fn order(&self, key: u64, order: Order, data: Gather) -> Answering {
        let (own, fabric) = (Rc::clone(&self.0), &self.0.fabric);
        fabric.world.note(Note::Words(format!("target {}: {order:?}", own.index)));
        let (pending, filler) = pending();
        let answer: Reply = Rc::new(RefCell::new(Some(filler)));
        let to = Rc::clone(&answer);
        let stamp = fabric.epochs.as_ref().map(|epochs| epochs.stamp());
        let deliver = move || own.take(key, stamp, &to, move |token| Input::Order { order, data, token });
        if let Some(fault) = fabric.next_fault() {
            self.0.fail_at_order(fault, &answer, deliver);
            return Box::pin(pending);
        }
        if fabric.is_lost(fabric.plan.order_lost_one_in) {
            fabric.world.counts.borrow_mut().lost_orders += 1;
            if fabric.plan.attaches_anew {
                if fabric.world.random().one_in(2) {
                    fabric.world.after(fabric.delay(), deliver);
                }
                let own = Rc::clone(&self.0);
                fabric.world.after(fabric.world.random().between(1, 4 * fabric.plan.delay), move || {
                    reply(&answer, Err(NoAnswer::Away));
                    own.attach_anew();
                });
                return Box::pin(pending);
            }
            fabric.world.after(fabric.delay(), move || reply(&answer, Err(NoAnswer::Away)));
            let late = fabric.world.random().between(1, 40 * fabric.plan.delay);
            if !fabric.world.random().one_in(3) {
                fabric.world.after(late, deliver);
            }
        } else {
            fabric.world.after(fabric.delay(), deliver);
        }
        Box::pin(pending)
    }

    fn settle(&self, key: u64, stamp: Stamp, how: Settle) -> Answering {
        let (own, fabric) = (Rc::clone(&self.0), &self.0.fabric);
        fabric.world.note(Note::Words(format!("target {}, attach {key}: {how:?} {stamp:?}", own.index)));
        let (pending, filler) = pending();
        let to: Reply = Rc::new(RefCell::new(Some(filler)));
        let deliver = move || own.take(key, None, &to, move |token| Input::Settle { stamp, how, token });
        fabric.world.after(fabric.delay(), deliver);
        Box::pin(pending)
    }

    fn attached(&self) -> Pin<Box<dyn Future<Output = ()>>> {
        let (node, world) = (&self.0, &self.0.fabric.world);
        if node.is_known() {
            return Box::pin(std::future::ready(()));
        }
        let (pending, filler) = pending();
        world.after(node.known_at.get() - world.now(), move || filler.fill(()));
        Box::pin(pending)
    }
}

impl SimTarget for Handle {
    fn end_ops(&self) -> bool {
        self.0.end_ops();
        self.0.writing.get() > 0
    }
}

impl Node {
    /// Of the current attach.
    fn key(&self) -> u64 {
        self.attaches.borrow().len() as u64 - 1
    }

    fn is_known(&self) -> bool {
        self.known_at.get() <= self.fabric.world.now()
    }

    fn end_ops(self: &Rc<Self>) {
        let (mut effects, key) = (Effects::new(), self.key());
        self.attaches.borrow_mut().last_mut().expect("one at least").abort_all(&mut effects);
        effects.into_iter().for_each(|effect| self.carry_out(key, effect));
    }

    /// The host has connected anew: nothing of the former attach begins any more but resends of what is kept there, and the others hear
    /// of the new one.
    fn attach_anew(self: &Rc<Self>) {
        self.end_ops();
        self.attaches.borrow_mut().push(Target::new(self.index, self.fabric.plan.credit, Pool::new(1 << 20)));
        let fabric = &self.fabric;
        self.known_at.set(fabric.world.now() + fabric.world.random().between(1, 20 * fabric.plan.delay));
    }

    /// Something goes wrong at an order that `deliver` would carry out.
    fn fail_at_order(self: &Rc<Self>, fault: Fault, answer: &Reply, deliver: impl FnOnce() + 'static) {
        let (world, delay, own) = (&self.fabric.world, self.fabric.plan.delay, Rc::clone(self));
        let answer = Rc::clone(answer);
        let is_away = move || reply(&answer, Err(NoAnswer::Away));
        match fault {
            // A damaged one is refused, and nothing of it has begun.
            Fault::Lost | Fault::Damaged => world.after(delay, is_away),
            Fault::Late => {
                world.after(delay, is_away);
                world.after(20 * delay, deliver);
            }
            // The answer takes longer.
            Fault::AnswerLost => {
                deliver();
                world.after(1, is_away);
            }
            Fault::Long | Fault::LongTwo => {
                deliver();
                self.end(DeviceErrorKind::Timeout);
                if fault == Fault::LongTwo {
                    self.end_another(self.index);
                }
                world.after(1, is_away);
            }
            Fault::Restart => {
                self.end(DeviceErrorKind::Gone);
                world.after(1, is_away);
            }
            Fault::RestartAfter => {
                deliver();
                world.after(2 * delay, move || {
                    own.end(DeviceErrorKind::Gone);
                    is_away();
                });
            }
            Fault::TakeOver | Fault::Kill => {
                self.fabric.hosts.end_due.set(fault.end());
                world.after(delay, deliver);
            }
        }
    }

    /// The target is not reached any more, or its machine restarts.
    fn end(&self, kind: DeviceErrorKind) {
        let Some(disk) = self.disk.upgrade() else { return };
        match kind {
            DeviceErrorKind::Gone => disk.restart_for_good(),
            kind => disk.faults.borrow_mut().dead = Some(kind),
        }
    }

    /// Another target is not reached any more, and it is not this one either.
    fn end_another(&self, but: PeerIndex) {
        let around = (1..PEERS_MAX).map(|step| (usize::from(self.index) + step) % PEERS_MAX);
        let other = around
            .filter(|index| *index != usize::from(but))
            .find_map(|index| self.fabric.node(PeerIndex::try_from(index).expect("below the most")));
        if let Some(other) = other {
            other.end(DeviceErrorKind::Timeout);
        }
    }

    /// A command of the host for the attach with a key has arrived.
    fn take(
        self: &Rc<Self>,
        key: u64,
        epoch: Option<EpochStamp>,
        to: &Reply,
        input: impl FnOnce(Token) -> Input<Token>,
    ) {
        let Some(disk) = self.disk.upgrade() else { return };
        let is_fenced = !self.fabric.hosts.is_current(self.fabric.host);
        let end = disk.dead().filter(|kind| matches!(kind, DeviceErrorKind::Gone | DeviceErrorKind::Timeout));
        if let Some(kind) = if is_fenced { Some(DeviceErrorKind::Fenced) } else { end } {
            let error =
                DeviceError { kind, operation: "order", offset: DeviceOffset::START, bytes: 0, errno: 0 };
            return reply(to, Err(NoAnswer::Device(error)));
        }
        let (own, reply_to) = (Rc::clone(self), Rc::clone(to));
        let token: Token = Box::new(move |answer, data| {
            let (fabric, to) = (Rc::clone(&own.fabric), reply_to);
            fabric.world.note(Note::Words(format!("target {}: {answer:?}", own.index)));
            let delay = fabric.delay();
            fabric.world.after(delay, move || reply(&to, Ok(Answered { answer, data })));
        });
        let input = input(token);
        if key != self.key() && matches!(input, Input::Order { .. }) {
            return reply(to, Err(NoAnswer::Forgot));
        }
        if let Some(range) = changed_by(&input) {
            disk.gate.record(Holder { host: self.fabric.host, ..disk.gate.holder.get() }, &range, epoch);
        }
        self.handle(key, input);
    }

    fn handle(self: &Rc<Self>, key: u64, input: Input<Token>) {
        let mut effects = Effects::new();
        let credit = {
            let target = &mut self.attaches.borrow_mut()[key as usize];
            target.handle(input, &mut effects);
            target.credit()
        };
        assert!(credit.taken() <= credit.given(), "F-I10: a target gives what it has not: {credit:?}");
        for effect in effects {
            if let Effect::Answer { answer, .. } = &effect {
                let own = self.index;
                assert!(answer.ending != Ending::NoCredit, "F-I10: target {own} has no memory: {credit:?}");
            }
            self.carry_out(key, effect);
        }
    }

    fn carry_out(self: &Rc<Self>, key: u64, effect: Effect<Token>) {
        let own = Rc::clone(self);
        let Some(disk) = self.disk.upgrade() else { return };
        match effect {
            Effect::Read { op, rows } => disk.read_then(&rows, move |result| {
                own.handle(key, Input::Read { op, result: result.map_err(drop) });
            }),
            Effect::Write { op, start, data, fua } => disk.write_then(start, data, fua, {
                self.writing.update(|count| count + 1);
                move |result| {
                    own.writing.update(|count| count - 1);
                    let result = result.map_err(|error| match error.kind {
                        DeviceErrorKind::NoSpace => Ending::NoSpace,
                        _ => Ending::WriteFailed,
                    });
                    own.handle(key, Input::Written { op, result });
                }
            }),
            Effect::Forward { destination, to, contribution, data } => {
                self.forward(key, destination, to, contribution, data.into());
            }
            Effect::Limit { op } => {
                self.fabric.world.after(LIMIT_TICKS, move || own.handle(key, Input::Limit { op }));
            }
            Effect::Answer { token, answer, data } => token(answer, data),
        }
    }

    fn forward(
        self: &Rc<Self>,
        key: u64,
        destination: usize,
        to: PeerIndex,
        part: Contribution,
        data: Gather,
    ) {
        let (fabric, own, op) = (Rc::clone(&self.fabric), Rc::clone(self), part.stamp.op);
        let told = Rc::new(RefCell::new(Some(move |ending| {
            own.handle(key, Input::Forwarded { op, destination, ending });
        })));
        let tell = move |ending| {
            let told = told.borrow_mut().take();
            if let Some(told) = told {
                told(ending);
            }
        };
        let fault = fabric.next_fault();
        if fault == Some(Fault::Long) {
            fabric.cut_off.borrow_mut().extend([(self.index, to), (to, self.index)]);
        }
        if fabric.cut_off.borrow().contains(&(self.index, to)) {
            return tell(Ending::PeerUnreachable);
        }
        let is_lost = fabric.is_lost(fabric.plan.contribution_lost_one_in);
        let (world, delay) = (Rc::clone(&fabric.world), fabric.delay());
        if is_lost {
            world.counts.borrow_mut().lost_contributions += 1;
            let lost = tell.clone();
            world.after(delay, move || lost(Ending::PeerUnreachable));
            if world.random().one_in(2) {
                return; // else the contribution, but not its answer, arrives
            }
        }
        // What a former attach sends was kept there, and goes the way of the new one.
        let has_way = key == self.key() || self.is_known();
        let peer = fabric.node(to).filter(|peer| peer.is_known() && has_way);
        let Some(peer) = peer else { return tell(Ending::PeerUnreachable) };
        let their_key = peer.key();
        let mut way = fabric.delay();
        match fault {
            Some(Fault::Restart | Fault::RestartAfter) => peer.end(DeviceErrorKind::Gone),
            Some(fault @ (Fault::TakeOver | Fault::Kill)) => fabric.hosts.end_due.set(fault.end()),
            Some(Fault::Lost | Fault::Damaged) => return tell(Ending::PeerUnreachable),
            Some(Fault::AnswerLost | Fault::Late) => {
                way *= if fault == Some(Fault::Late) { 20 } else { 1 };
                let lost = tell.clone();
                world.after(1, move || lost(Ending::PeerUnreachable));
            }
            // Their other contributions may have gone out.
            Some(Fault::LongTwo) => {
                self.end(DeviceErrorKind::Timeout);
                self.end_another(to);
                return tell(Ending::PeerUnreachable);
            }
            Some(Fault::Long) | None => {}
        }
        world.after(way, move || {
            let is_gone = peer.disk.upgrade().is_none_or(|disk| {
                matches!(disk.dead(), Some(DeviceErrorKind::Gone | DeviceErrorKind::Timeout))
            });
            if is_gone || their_key != peer.key() {
                return tell(Ending::PeerUnreachable);
            }
            let (world, delay) = (Rc::clone(&peer.fabric.world), peer.fabric.delay());
            let token: Token = Box::new(move |answer, _| world.after(delay, move || tell(answer.ending)));
            peer.handle(their_key, Input::Contribution { contribution: part, data, token });
        });
    }
}

/// What an order changes on the drive.
fn changed_by(input: &Input<Token>) -> Option<Range<u64>> {
    let Input::Order { order, .. } = input else { return None };
    match &order.role {
        Role::Contribute { own, .. } => (!own.is_empty()).then(|| own.clone()),
        Role::Reduce { rows, sink, .. } => (*sink == Sink::Drive).then(|| rows.clone()),
    }
}
