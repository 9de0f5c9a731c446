//! Members on other machines: between the host and each device stand a connection and a target, and another host may come.
//!
//! A member keeps the invariants of `host::device::nvme_tcp` (F-I4, F-I6, F-I7, F-I17), without its bytes.
//!
//! Fault model, beside that of the devices:
//! - A connection is cut with commands on their way. Each is lost, or the target carries it out though nobody hears of it, at any
//!   time until the next association has ended the former one's commands.
//! - The host connects again within the time limit, and then sends what was not answered once more; or after it.
//! - Meanwhile the target's machine restarts, and any part of what was not flushed is gone.
//! - Another host takes all members, one after the other, while this one lives on. It goes by what the targets have recorded
//!   ([`crate::ledgers`]), as does one that comes after a host whose process was killed.
//! - Bits flip on the way, under a digest: of a command with data its target refuses a write, or the host the answer of a read, and
//!   sends it again on the same connection (F-I15); of any other the header is damaged, which ends the connection.
//!
//! With a [`Fault`] at a certain command nothing else goes wrong in the network ([`crate::grid::messages`]).

use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};
use std::sync::Arc;

use clap::ValueEnum;
use engine::buffer::Buffer;
use engine::device::{DeviceError, DeviceErrorKind};
use engine::fabric::epochs::{EpochStamp, Epochs};
use layout::units::DeviceOffset;

use crate::disk::Disk;
use crate::disk::cache::Survivors;
use crate::disk::remote::{Done, Holder, Reply, SimLink, Work};
use crate::random::Random;
use crate::trace::Note;
use crate::world::World;

/// How the network of a history fails.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NetworkPlan {
    /// Longest time of a message, in ticks.
    pub(crate) delay: u64,
    /// Longest time between two cuts; 0 for none.
    pub(crate) pause: u64,
    /// Machines of targets restart.
    pub(crate) restarts: bool,
    /// At the end of a round another host takes the members, now and then.
    pub(crate) take_overs: bool,
    /// Of so many commands one is damaged on its way; 0: none is.
    pub(crate) damaged_one_in: u64,
    /// Targets record what their host has under way.
    pub(crate) ledgers: bool,
    pub(crate) bug: Option<Bug>,
}

/// What goes wrong at a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The connection is cut before it arrives.
    Lost,
    /// It is carried out, and the answer is lost.
    AnswerLost,
    /// It is in the target's hands when the host connects again.
    Late,
    /// It arrives, and the host does not connect again within the time limit.
    Long,
    /// The same of two targets at once, where it is an order or a contribution.
    LongTwo,
    /// The target's machine restarts before it arrives.
    Restart,
    /// The target's machine restarts after it was carried out.
    RestartAfter,
    /// Another host takes the members.
    TakeOver,
    /// The host's process is killed, and the targets live on.
    Kill,
    /// Bits of it flip on the way.
    Damaged,
}

impl Fault {
    /// Whether the member fails of it.
    pub(crate) fn is_hard(self) -> bool {
        matches!(self, Fault::Long | Fault::LongTwo | Fault::Restart | Fault::RestartAfter)
    }

    /// Members that fail of it.
    pub(crate) fn losses(self) -> u32 {
        u32::from(self.is_hard()) + u32::from(self == Fault::LongTwo)
    }

    /// How the host ends by it, if it does.
    pub(crate) fn end(self) -> Option<End> {
        match self {
            Fault::TakeOver => Some(End::TakenOver),
            Fault::Kill => Some(End::Killed),
            _ => None,
        }
    }

    pub(crate) const ALL: [Fault; 10] = [
        Fault::Lost,
        Fault::AnswerLost,
        Fault::Late,
        Fault::Long,
        Fault::LongTwo,
        Fault::Restart,
        Fault::RestartAfter,
        Fault::TakeOver,
        Fault::Kill,
        Fault::Damaged,
    ];
}

/// A bug that is planted in members on other machines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Bug {
    /// A restart of the target's machine is not noticed (F-I17).
    RestartUnnoticed,
    /// The next association does not wait for the former one's commands (F-I4).
    NotDrained,
    /// A host is taken over without a fence: the target goes on with its commands (F-I6).
    NotFenced,
    /// What was damaged on its way is taken as it is (F-I15).
    DamageUnnoticed,
    /// A target does not record what it changes, and calls its ledger complete (F-I14).
    ChangeUnrecorded,
}

impl NetworkPlan {
    /// Nothing goes wrong by itself.
    pub(crate) fn quiet(delay: u64, bug: Option<Bug>) -> Self {
        let (restarts, take_overs, ledgers) = (false, false, false);
        NetworkPlan { delay, pause: 0, restarts, take_overs, damaged_one_in: 0, ledgers, bug }
    }

    pub(crate) fn draw(random: &Random) -> Self {
        let mut plan = NetworkPlan {
            delay: random.pick(&[2, 10, 60]),
            pause: random.pick(&[0, 100, 400, 1500]),
            restarts: random.one_in(2),
            take_overs: random.one_in(2),
            damaged_one_in: random.pick(&[0, 30, 300]),
            ledgers: false,
            bug: None,
        };
        // No draw of its own: seeds that are kept stay what they were.
        plan.ledgers = plan.pause != 400;
        plan
    }
}

/// A member that does not answer for so long fails.
pub(crate) const LIMIT_TICKS: u64 = 6_000;
/// How a host ends while the targets live on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// Another takes the members.
    TakenOver,
    /// Its process is killed.
    Killed,
}

/// What the hosts of a history know of each other.
#[derive(Default)]
pub(crate) struct Hosts {
    /// The one whose turn it is; each that takes over is another.
    current: Cell<u64>,
    /// All members are taken from the host before: nothing that it is asked for from here on may succeed.
    pub(crate) all_taken: Cell<bool>,
    /// The host is to end in this way now.
    pub(crate) end_due: Cell<Option<End>>,
    /// Commands that were sent.
    commands: Cell<u64>,
    /// What goes wrong, at which of them.
    armed: Cell<Option<(u64, Fault)>>,
}

impl Hosts {
    /// Counts commands from here on. Something goes wrong at one of them.
    pub(crate) fn arm(&self, fault: Option<(u64, Fault)>) {
        self.commands.set(0);
        self.armed.set(fault);
    }

    /// What goes wrong.
    pub(crate) fn fault(&self) -> Option<Fault> {
        self.armed.get().map(|(_, fault)| fault)
    }

    /// How many there were since.
    pub(crate) fn commands(&self) -> u64 {
        self.commands.get()
    }

    /// Whether this is the host whose turn it is.
    pub(crate) fn is_current(&self, host: u64) -> bool {
        self.current.get() == host
    }

    pub(crate) fn current(&self) -> u64 {
        self.current.get()
    }

    /// What is to go wrong at the next command.
    pub(crate) fn next_fault(&self) -> Option<Fault> {
        let number = self.commands.replace(self.commands.get() + 1);
        self.armed.get().filter(|(at, _)| *at == number).map(|(_, fault)| fault)
    }
}

/// A host's way to a member.
struct Link {
    world: Rc<World>,
    disk: Weak<Disk>,
    plan: NetworkPlan,
    hosts: Rc<Hosts>,
    host: u64,
    epochs: Option<Arc<Epochs>>,
    association: Cell<u64>,
    is_up: Cell<bool>,
    end: Cell<Option<DeviceErrorKind>>,
    /// It will fail commands, or did.
    is_failing: Cell<bool>,
    /// A command was beyond the time limit: the engine fails the member for it, sooner or later.
    has_expired: Cell<bool>,
    /// Commands whose time limit is running: those fail that have no connection when it ends.
    expiring: Cell<u64>,
    /// Not answered, in the order in which they came.
    waiting: RefCell<Vec<Rc<Command>>>,
    /// Writes that were answered and are not durable by themselves, and how many of them a flush has covered.
    written: Cell<u64>,
    flushed: Cell<u64>,
}

/// What a device has of it.
struct Handle(Rc<Link>);

/// An operation on its way.
struct Command {
    work: Work,
    /// Of a flush: the writes that it covers.
    covers: u64,
    /// In which epoch it was sent last.
    stamp: Cell<Option<EpochStamp>>,
    reply: RefCell<Option<Reply>>,
}

/// Gives a device a connection of the current host.
pub(crate) fn connect(
    world: &Rc<World>,
    plan: NetworkPlan,
    hosts: &Rc<Hosts>,
    epochs: Option<Arc<Epochs>>,
    disk: &Rc<Disk>,
) {
    let host = hosts.current();
    let association = disk.gate.holder.get().association + 1;
    disk.gate.holder.set(Holder { host, association });
    disk.gate.has_lost_writes.set(false);
    let link = Link {
        world: Rc::clone(world),
        disk: Rc::downgrade(disk),
        plan,
        hosts: Rc::clone(hosts),
        host,
        epochs,
        association: Cell::new(association),
        is_up: Cell::new(true),
        end: Cell::new(None),
        is_failing: Cell::new(false),
        has_expired: Cell::new(false),
        expiring: Cell::new(0),
        waiting: RefCell::default(),
        written: Cell::new(0),
        flushed: Cell::new(0),
    };
    let former = disk.link.borrow_mut().replace(Rc::new(Handle(Rc::new(link))));
    if let Some(former) = former {
        former.is_replaced(host);
    }
}

/// Waits until nothing is carried out for a former association any more, whose commands are refused from here on (F-I6).
pub(crate) async fn end_commands(disk: &Disk, world: &World) {
    hand_over(disk, world, disk.gate.holder.get().host).await;
}

/// From here on the target serves this host, under another association, and waits for what it carries out for the former one.
async fn hand_over(disk: &Disk, world: &World, host: u64) {
    let association = disk.gate.holder.get().association + 1;
    disk.gate.holder.set(Holder { host, association });
    while disk.gate.running.get() > 0 {
        world.sleep(20).await;
    }
}

impl Link {
    /// Sends a command to the target.
    fn send(self: &Rc<Self>, work: Work, reply: Reply) {
        let (covers, stamp) = (self.written.get(), Cell::default());
        let command = Rc::new(Command { work, covers, stamp, reply: RefCell::new(Some(reply)) });
        if let Some(kind) = self.end.get() {
            return self.world.after(1, move || command.fail(kind));
        }
        self.waiting.borrow_mut().push(Rc::clone(&command));
        match self.is_up.get() {
            true => self.transmit(command),
            false if self.is_failing.get() => self.expire_later(command),
            false => {}
        }
    }

    fn is_current(&self, association: u64) -> bool {
        self.is_up.get() && self.association.get() == association
    }

    /// F-I17.
    fn has_unflushed(&self) -> bool {
        self.written.get() > self.flushed.get()
    }

    fn delay(&self) -> u64 {
        self.world.random().between(1, self.plan.delay)
    }

    fn transmit(self: &Rc<Self>, command: Rc<Command>) {
        let (link, association) = (Rc::clone(self), self.association.get());
        command.stamp.set(self.epochs.as_ref().map(|epochs| epochs.stamp()));
        self.world.counts.borrow_mut().network_commands += 1;
        let one_in = self.plan.damaged_one_in;
        let drawn = (one_in > 0 && self.world.random().one_in(one_in)).then_some(Fault::Damaged);
        let fault = self.hosts.next_fault().or(drawn);
        self.world.after(self.delay(), move || match fault {
            Some(fault) => link.meet(fault, command, association),
            None => link.arrive(command, association),
        });
    }

    /// The command at which something is to go wrong.
    fn meet(self: &Rc<Self>, fault: Fault, command: Rc<Command>, association: u64) {
        let short = 4 * self.plan.delay;
        self.world.note(Note::Words(format!("  network: {fault:?} at a {}", command.work.name())));
        let disk = self.disk.upgrade().filter(|disk| disk.target.borrow().is_some());
        // With the memory of a target that makes parity its host's ops are gone: it is attached anew.
        if let (Fault::Restart | Fault::RestartAfter, Some(disk)) = (fault, disk) {
            disk.restart_for_good();
            return self.finish(DeviceErrorKind::Gone);
        }
        match fault {
            Fault::Lost => self.cut(short, false),
            Fault::Restart => self.cut(short, true),
            Fault::Late => {
                self.cut(short, false);
                let link = Rc::clone(self);
                self.world.after(short, move || link.carry_out(command, association));
            }
            Fault::AnswerLost | Fault::RestartAfter | Fault::Long | Fault::LongTwo => {
                self.carry_out(command, association);
                let is_long = matches!(fault, Fault::Long | Fault::LongTwo);
                let away = if is_long { 2 * LIMIT_TICKS } else { short };
                self.cut(away, fault == Fault::RestartAfter);
            }
            Fault::TakeOver | Fault::Kill => {
                self.hosts.end_due.set(fault.end());
                self.arrive(command, association);
            }
            Fault::Damaged => self.meet_damage(&command, association),
        }
    }

    fn meet_damage(self: &Rc<Self>, command: &Rc<Command>, association: u64) {
        self.world.counts.borrow_mut().network_damaged += 1;
        if self.plan.bug == Some(Bug::DamageUnnoticed)
            && let Some(damaged) = command.damaged()
        {
            return self.arrive(damaged, association);
        }
        let again = 4 * self.plan.delay;
        if !matches!(command.work, Work::Read { .. } | Work::Write { .. }) && !self.ends(again, false) {
            return self.cut(again, false);
        }
        let (link, command) = (Rc::clone(self), Rc::clone(command));
        self.world.after(again, move || {
            // Another association has sent it again, or its time is over.
            let waits = link.waiting.borrow().iter().any(|waiting| Rc::ptr_eq(waiting, &command));
            if waits && link.is_current(association) {
                link.transmit(command);
            }
        });
    }

    /// A command is there, unless its connection was cut meanwhile: then it is lost, or in the target's hands.
    fn arrive(self: &Rc<Self>, command: Rc<Command>, association: u64) {
        if self.is_current(association) {
            return self.carry_out(command, association);
        }
        if self.world.random().one_in(2) {
            let (link, late) = (Rc::clone(self), self.world.random().between(1, 40 * self.plan.delay));
            self.world.after(late, move || link.carry_out(command, association));
        }
    }

    /// F-I6: a target does what the holder's association asks for, and nothing else.
    fn carry_out(self: &Rc<Self>, command: Rc<Command>, association: u64) {
        let Some(disk) = self.disk.upgrade() else { return };
        let holder = disk.gate.holder.get();
        if holder.host != self.host {
            if self.plan.bug != Some(Bug::NotFenced) {
                return self.fence();
            }
        } else if holder.association != association && self.plan.bug != Some(Bug::NotDrained) {
            return;
        }
        disk.gate.running.update(|running| running + 1);
        if let Some(range) = command.work.changed()
            && self.plan.bug != Some(Bug::ChangeUnrecorded)
        {
            disk.gate.record(Holder { host: self.host, association }, &range, command.stamp.get());
        }
        let (link, at) = (Rc::clone(self), Rc::clone(&disk));
        let work = command.work.clone();
        disk.carry_out(work, move |done| {
            at.gate.running.update(|running| running.saturating_sub(1));
            let delay = link.delay();
            let world = Rc::clone(&link.world);
            world.after(delay, move || link.answered(&command, association, done));
        });
    }

    fn answered(&self, command: &Rc<Command>, association: u64, done: Done) {
        if !self.is_current(association) {
            return;
        }
        if done.is_ok() && command.work.is_volatile() {
            self.written.set(self.written.get() + 1); // before it is acknowledged
        }
        if done.is_ok() && matches!(command.work, Work::Flush) {
            self.flushed.set(self.flushed.get().max(command.covers));
        }
        self.waiting.borrow_mut().retain(|waiting| !Rc::ptr_eq(waiting, command));
        command.reply(done);
    }

    /// The connection is cut, for so long; meanwhile the target's machine restarts.
    fn cut(self: &Rc<Self>, away: u64, restarts: bool) {
        if !self.is_up.replace(false) {
            return;
        }
        self.world.counts.borrow_mut().network_cuts += 1;
        self.world.counts.borrow_mut().network_restarts += u64::from(restarts);
        self.is_failing.set(self.has_expired.get() || self.ends(away, restarts));
        self.world.note(Note::Words(format!(
            "  device {} is cut off for {away}{}",
            self.disk.upgrade().map_or(0, |disk| disk.number),
            if restarts { ", and its machine restarts" } else { "" }
        )));
        if away >= LIMIT_TICKS {
            self.waiting.borrow().iter().for_each(|command| self.expire_later(Rc::clone(command)));
        }
        let link = Rc::clone(self);
        self.world.after(away, move || link.come_back(restarts));
    }

    /// Whether a cut fails the member.
    fn ends(&self, away: u64, restarts: bool) -> bool {
        away >= LIMIT_TICKS || (restarts && self.has_unflushed()) || self.expiring.get() > 0
    }

    fn expire_later(self: &Rc<Self>, command: Rc<Command>) {
        let link = Rc::clone(self);
        self.expiring.update(|expiring| expiring + 1);
        self.world.after(LIMIT_TICKS, move || {
            link.expiring.update(|expiring| expiring - 1);
            if !link.is_up.get() {
                link.waiting.borrow_mut().retain(|waiting| !Rc::ptr_eq(waiting, &command));
                link.has_expired.set(true);
                command.fail(DeviceErrorKind::Timeout);
            }
        });
    }

    /// The host reaches the target again, and waits for the end of the former association's commands (F-I4).
    fn come_back(self: &Rc<Self>, restarted: bool) {
        let Some(disk) = self.disk.upgrade() else { return };
        let holder = disk.gate.holder.get();
        if holder.host != self.host {
            return self.fence();
        }
        let is_drained = self.plan.bug == Some(Bug::NotDrained) && !restarted || disk.gate.running.get() == 0;
        if holder.association == self.association.get() {
            disk.gate.holder.set(Holder { association: holder.association + 1, ..holder });
        }
        if !is_drained {
            let link = Rc::clone(self);
            return self.world.after(20, move || link.come_back(restarted));
        }
        if restarted {
            let survive = self.world.random().pick(&[0, 50, 90]);
            disk.cut(&|blocks, random: &Random| Survivors::some(blocks, survive, random));
            disk.gate.has_lost_writes.set(self.has_unflushed());
        }
        if restarted && self.has_unflushed() && self.plan.bug != Some(Bug::RestartUnnoticed) {
            return self.finish(DeviceErrorKind::Gone);
        }
        self.association.set(disk.gate.holder.get().association);
        self.is_up.set(true);
        self.is_failing.set(self.has_expired.get());
        self.world.note(Note::Words(format!("  device {} is there again", disk.number)));
        let waiting = self.waiting.borrow().clone();
        waiting.into_iter().for_each(|command| self.transmit(command));
    }

    /// F-I7.
    fn fence(&self) {
        self.finish(DeviceErrorKind::Fenced);
    }

    fn finish(&self, kind: DeviceErrorKind) {
        self.is_up.set(false);
        self.end.set(Some(kind));
        let waiting = std::mem::take(&mut *self.waiting.borrow_mut());
        waiting.into_iter().for_each(|command| command.fail(kind));
    }
}

impl Command {
    /// A write with a bit that has flipped, which answers for this one.
    fn damaged(&self) -> Option<Rc<Command>> {
        let Work::Write { offset, data, fua } = &self.work else { return None };
        let mut bytes = vec![0; data.len()];
        data.copy_to(&mut bytes);
        bytes[0] ^= 1;
        let data = Buffer::from_bytes(&bytes).freeze().into();
        let work = Work::Write { offset: *offset, data, fua: *fua };
        Some(Rc::new(Command {
            work,
            covers: self.covers,
            stamp: self.stamp.clone(),
            reply: RefCell::new(self.reply.borrow_mut().take()),
        }))
    }

    fn reply(&self, done: Done) {
        let reply = self.reply.borrow_mut().take();
        if let Some(reply) = reply {
            reply(done);
        }
    }

    fn fail(&self, kind: DeviceErrorKind) {
        let (offset, bytes) = self.work.range();
        let operation = self.work.name();
        self.reply(Err(DeviceError { kind, operation, offset: DeviceOffset::new(offset), bytes, errno: 0 }));
    }
}

/// Another host takes all members, one after the other.
pub(crate) async fn take_all(world: &World, hosts: &Hosts, disks: &[Rc<Disk>]) {
    hosts.current.set(hosts.current.get() + 1);
    let host = hosts.current.get();
    for disk in disks {
        hand_over(disk, world, host).await;
        disk.end_ops().await;
        world.sleep_up_to(20).await;
    }
    hosts.all_taken.set(true);
}

impl SimLink for Handle {
    fn send(&self, work: Work, reply: Reply) {
        self.0.send(work, reply);
    }

    fn is_failing(&self) -> bool {
        self.0.is_failing.get() || self.0.end.get().is_some()
    }

    fn is_replaced(&self, by: u64) {
        if self.0.end.get().is_none() {
            self.0.finish(if by == self.0.host { DeviceErrorKind::Gone } else { DeviceErrorKind::Fenced });
        }
    }

    fn is_away(&self) -> bool {
        !self.0.is_up.get()
    }

    fn has_written(&self) {
        self.0.written.update(|written| written + 1);
    }

    fn cut(&self, away: u64, restarts: bool, may_fail: bool) {
        if self.0.end.get().is_none() && (may_fail || !self.0.ends(away, restarts)) {
            self.0.cut(away, restarts);
        }
    }
}
