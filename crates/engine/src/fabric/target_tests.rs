//! Ops among targets in every order of events that a seed draws: orders, contributions, answers of drives and questions of the
//! host, each delivered, late or lost.
//!
//! Of each op the test knows what its drives held. When every participant is final it compares what the verdict says with what
//! the drives hold, and then delivers everything that is still under way: nothing may change any more.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use smallvec::SmallVec;

use super::effect::{Effect, Effects, Input};
use super::host::{Final, Mend, Part, mend};
use super::order::{
    Answer, Base, Contribution, Destination, Ending, How, Op, Order, Role, Settle, Sink, Stamp,
};
use super::target::Target;
use crate::buffer::{Buffer, Gather, Pool, Slice};

const CHUNK: usize = 128;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Routine {
    Delta,
    Reconstruct,
}

/// To whom an answer goes.
#[derive(Clone, Copy, Debug)]
enum Token {
    /// The host, to its order or its question.
    Host { from: usize, op: Op, is_order: bool },
    /// A contributor.
    Peer { contributor: usize, op: Op, destination: usize, cut: u32 },
}

/// What is under way.
enum Event {
    Order(usize, Order, Vec<u8>),
    Settle(usize, Stamp),
    Resend { at: usize, kept: Op, to: u8 },
    Contribution { from: usize, to: usize, destination: usize, part: Contribution, data: Slice, cut: u32 },
    ContributionAnswer { contributor: usize, op: Op, destination: usize, ending: Ending },
    Read(usize, Op, std::ops::Range<u64>),
    Write(usize, Op, u64, Vec<u8>),
    Limit(usize, Op),
}

struct World {
    random: u64,
    data: usize,
    drives: Vec<Vec<u8>>,
    targets: Vec<Target<Token>>,
    events: VecDeque<Event>,
    finals: Vec<Final>,
    /// What each was to do.
    parts: Vec<Part>,
    /// Orders of each, for a second round.
    roles: Vec<Option<(Role, Vec<u8>)>>,
    /// Participants that have not answered.
    open: BTreeSet<usize>,
    /// Chunks whose write was left out, since their drive cannot read what it replaces.
    left_out: BTreeSet<usize>,
    /// Resends that are not answered.
    resends: usize,
    /// The op whose difference each keeps.
    keeps: Vec<Option<Op>>,
    base: Base,
    lowest: Op,
    /// How often the connections between targets were cut.
    cuts: u32,
    /// Contributions that their contributors have no answer to.
    unanswered: BTreeSet<(usize, Op, usize)>,
    op: Op,
    faults: Faults,
    settling: bool,
}

#[derive(Clone, Copy)]
struct Faults {
    /// Of a thousand events.
    cut: u64,
    lost_order: u64,
    drive: u64,
    limit: u64,
    settle: u64,
    /// A contribution arrives twice.
    twice: u64,
}

impl World {
    fn new(data: usize, parity: usize, seed: u64, routine: Routine, faults: Faults) -> Self {
        let pool = Pool::new(1 << 20);
        // What one op takes, and nothing beside: its host has had the former one's back.
        let credit = |me: usize| {
            let products = (0..parity).filter(|index| coefficient(me, *index) != 1).count();
            let times = match (me < data, routine) {
                (true, _) => 2 + products,
                (false, Routine::Delta) => 2,
                (false, Routine::Reconstruct) => 1,
            };
            (times * CHUNK) as u64
        };
        let target = |me: usize| Target::new(me as u8, credit(me), Arc::clone(&pool));
        let mut world = World {
            data,
            random: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1,
            drives: Vec::new(),
            targets: (0..data + parity).map(target).collect(),
            events: VecDeque::new(),
            finals: Vec::new(),
            parts: Vec::new(),
            roles: Vec::new(),
            open: BTreeSet::new(),
            left_out: BTreeSet::new(),
            resends: 0,
            keeps: Vec::new(),
            base: Base::Zero,
            lowest: Op(0),
            cuts: 0,
            unanswered: BTreeSet::new(),
            op: Op(0),
            faults,
            settling: false,
        };
        for _ in 0..data {
            let chunk = (0..CHUNK).map(|_| world.draw(256) as u8).collect();
            world.drives.push(chunk);
        }
        for index in 0..parity {
            world.drives.push(parity_of(&world.drives[..data], index));
        }
        world
    }

    fn draw(&mut self, below: u64) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random % below
    }

    fn happens(&mut self, of_thousand: u64) -> bool {
        self.draw(1000) < of_thousand
    }

    fn act(&mut self, at: usize, input: Input<Token>) {
        let mut effects = Effects::new();
        self.targets[at].handle(input, &mut effects);
        let credit = self.targets[at].credit();
        assert!(credit.taken() <= credit.given(), "{credit:?}");
        for effect in effects {
            if let Effect::Answer { token, answer, .. } = &effect {
                assert_ne!(answer.ending, Ending::NoCredit, "its host has kept within it: {token:?}");
            }
            match effect {
                Effect::Read { op, rows } => self.events.push_back(Event::Read(at, op, rows)),
                Effect::Write { op, start, data, .. } => {
                    let mut bytes = vec![0; data.len()];
                    data.copy_to(&mut bytes);
                    self.events.push_back(Event::Write(at, op, start, bytes));
                }
                Effect::Forward { destination, to, contribution, data } => {
                    let to = usize::from(to);
                    let cut = self.cuts;
                    self.unanswered.insert((at, contribution.stamp.op, destination));
                    self.events.push_back(Event::Contribution {
                        from: at,
                        to,
                        destination,
                        part: contribution,
                        data,
                        cut,
                    });
                }
                Effect::Limit { op } => self.events.push_back(Event::Limit(at, op)),
                Effect::Answer { token: Token::Host { from, op, is_order }, answer, .. } => {
                    self.host_hears(from, op, is_order, answer);
                }
                Effect::Answer {
                    token: Token::Peer { contributor, op, destination, cut }, answer, ..
                } => {
                    // An answer on a connection that was cut since does not arrive.
                    if cut == self.cuts {
                        let ending = answer.ending;
                        self.events.push_back(Event::ContributionAnswer {
                            contributor,
                            op,
                            destination,
                            ending,
                        });
                    }
                }
            }
        }
    }

    fn host_hears(&mut self, from: usize, op: Op, is_order: bool, answer: Answer) {
        if op != self.op {
            return;
        }
        if is_order {
            if self.open.remove(&from) {
                self.finals[from] = Final::Answered(answer);
                if answer.outcome.retained {
                    self.keeps[from] = Some(op);
                }
            }
        } else {
            self.resends -= 1;
        }
        if answer.ending != Ending::Done {
            self.settle();
        }
    }

    /// F-I4: each participant that has not answered is asked.
    fn settle(&mut self) {
        if std::mem::replace(&mut self.settling, true) {
            return;
        }
        let stamp = self.stamp();
        self.events.extend(self.open.iter().map(|at| Event::Settle(*at, stamp)));
    }

    /// All contributions and answers between targets that are under way are lost, and later answers to what was sent before;
    /// contributors learn that.
    fn cut(&mut self) {
        self.cuts += 1;
        let is_between =
            |event: &Event| matches!(event, Event::Contribution { .. } | Event::ContributionAnswer { .. });
        self.events.retain(|event| !is_between(event));
        for (contributor, op, destination) in std::mem::take(&mut self.unanswered) {
            let ending = Ending::PeerUnreachable;
            self.act(contributor, Input::Forwarded { op, destination, ending });
        }
    }

    /// One event, drawn. False: there is none.
    fn step(&mut self) -> bool {
        if self.events.is_empty() {
            return false;
        }
        let faults = self.faults;
        if self.happens(faults.cut) {
            self.cut();
        }
        if self.happens(faults.settle) && !self.open.is_empty() {
            self.settle();
        }
        if self.events.is_empty() {
            return true;
        }
        let at = self.draw(self.events.len() as u64) as usize;
        let event = self.events.remove(at).expect("one of them");
        self.deliver(event);
        true
    }

    fn deliver(&mut self, event: Event) {
        match event {
            Event::Order(at, order, data) => {
                if self.happens(self.faults.lost_order) {
                    self.settle();
                    return;
                }
                let token = Token::Host { from: at, op: order.stamp.op, is_order: true };
                let data = if data.is_empty() { Gather::new() } else { Slice::from_bytes(&data).into() };
                self.act(at, Input::Order { order, data, token });
            }
            Event::Settle(at, stamp) => {
                let token = Token::Host { from: at, op: stamp.op, is_order: true };
                self.act(at, Input::Settle { stamp, how: Settle::Abort, token });
            }
            Event::Resend { at, kept, to } => {
                let token = Token::Host { from: at, op: self.op, is_order: false };
                let (stamp, how) =
                    (Stamp { op: kept, ..self.stamp() }, Settle::Resend { to, under: self.op });
                self.act(at, Input::Settle { stamp, how, token });
            }
            Event::Contribution { from, to, destination, part, data, cut } => {
                if self.happens(self.faults.twice) {
                    // A repeated contribution: its answer is ignored.
                    let (part, data, cut) = (part.clone(), data.clone(), u32::MAX);
                    self.events.push_back(Event::Contribution { from, to, destination, part, data, cut });
                }
                let token = Token::Peer { contributor: from, op: part.stamp.op, destination, cut };
                self.act(to, Input::Contribution { contribution: part, data: data.into(), token });
            }
            Event::ContributionAnswer { contributor, op, destination, ending } => {
                assert!(self.unanswered.remove(&(contributor, op, destination)), "answered once");
                self.act(contributor, Input::Forwarded { op, destination, ending });
            }
            Event::Read(at, op, rows) => {
                let result = match self.happens(self.faults.drive) {
                    true => Err(()),
                    false => Ok(Buffer::from_bytes(&self.drives[at][rows.start as usize..rows.end as usize])),
                };
                self.act(at, Input::Read { op, result });
            }
            Event::Write(at, op, start, bytes) => {
                let fails = self.happens(self.faults.drive);
                let part = if fails { bytes.len() / 2 } else { bytes.len() };
                self.drives[at][start as usize..start as usize + part].copy_from_slice(&bytes[..part]);
                self.act(
                    at,
                    Input::Written { op, result: if fails { Err(Ending::WriteFailed) } else { Ok(()) } },
                );
            }
            Event::Limit(at, op) => {
                let is_left = self.events.iter().all(|event| matches!(event, Event::Limit(..)));
                if self.happens(self.faults.limit) || is_left {
                    self.act(at, Input::Limit { op });
                } else {
                    self.events.push_back(Event::Limit(at, op));
                }
            }
        }
    }

    fn stamp(&self) -> Stamp {
        Stamp { op: self.op, lowest: self.lowest }
    }

    /// Begins an op of the host: chunks and their new contents.
    fn begin(&mut self, written: &[(usize, Vec<u8>)], routine: Routine) {
        let (data, all) = (self.data, self.drives.len());
        self.lowest = Op(self.op.0 + 1);
        self.finals = vec![Final::Answered(Answer::nothing(Ending::Done)); all];
        (self.parts, self.roles) = (vec![Part::Contribute { writes: false }; all], vec![None; all]);
        self.keeps = vec![None; all];
        self.left_out.clear();
        let rows = 0..CHUNK as u64;
        let to = |chunk: usize| -> SmallVec<[Destination; 2]> {
            let to =
                |index| Destination { peer: (data + index) as u8, coefficient: coefficient(chunk, index) };
            (0..all - data).map(to).collect()
        };
        let mut contributions = 0;
        for chunk in 0..data {
            let new = written.iter().find(|(at, _)| *at == chunk).map(|(_, new)| new.clone());
            let (how, own) = match (routine, &new) {
                (Routine::Delta, None) => continue,
                (Routine::Delta, Some(_)) => (How::Delta, rows.clone()),
                (Routine::Reconstruct, Some(new)) => (How::Overlay, 0..new.len() as u64),
                (Routine::Reconstruct, None) => (How::Old, 0..0),
            };
            contributions += 1;
            self.parts[chunk] = Part::Contribute { writes: new.is_some() };
            let role = Role::Contribute { how, own, rows: rows.clone(), to: to(chunk) };
            self.roles[chunk] = Some((role, new.unwrap_or_default()));
        }
        self.base = if routine == Routine::Delta { Base::Old } else { Base::Zero };
        for parity in data..all {
            self.parts[parity] = Part::Reduce;
            let (base, rows) = (self.base, rows.clone());
            let role = Role::Reduce { base, rows, contributions, sink: Sink::Drive };
            self.roles[parity] = Some((role, Vec::new()));
        }
        self.round();
        for at in 0..all {
            if let Some((role, new)) = self.roles[at].clone() {
                self.send(at, role, new);
            }
        }
    }

    fn round(&mut self) {
        self.op = Op(self.op.0 + 1);
        (self.settling, self.resends) = (false, 0);
    }

    fn send(&mut self, at: usize, role: Role, new: Vec<u8>) {
        self.open.insert(at);
        let order = Order { stamp: self.stamp(), role, fua: false };
        self.events.push_back(Event::Order(at, order, new));
    }

    /// What was kept goes to the reducers that did not apply it; what did not begin is ordered anew.
    fn resend(&mut self) {
        self.round();
        self.leave_out();
        let wanting: Vec<usize> =
            (self.data..self.drives.len()).filter(|at| self.finals[*at].takes_contributions()).collect();
        for at in 0..self.drives.len() {
            let Some((mut role, new)) = self.roles[at].clone() else { continue };
            match (&mut role, self.keeps[at]) {
                (Role::Reduce { .. }, _) if !wanting.contains(&at) => continue,
                (Role::Contribute { .. }, Some(kept)) => {
                    for to in &wanting {
                        self.resends += 1;
                        self.events.push_back(Event::Resend { at, kept, to: *to as u8 });
                    }
                    continue;
                }
                (Role::Contribute { to, .. }, None) => {
                    to.retain(|to| wanting.contains(&usize::from(to.peer)));
                }
                (Role::Reduce { .. }, _) => {}
            }
            self.send(at, role, new);
        }
    }

    fn leave_out(&mut self) {
        for chunk in 0..self.data {
            let writes = self.parts[chunk] == (Part::Contribute { writes: true });
            if !writes || !self.finals[chunk].cannot_read() {
                continue;
            }
            self.left_out.insert(chunk);
            self.roles[chunk] = None;
            self.parts[chunk] = Part::Contribute { writes: false };
            self.finals[chunk] = Final::Answered(Answer::nothing(Ending::Done));
            for (role, _) in self.roles.iter_mut().flatten() {
                if let Role::Reduce { contributions, .. } = role {
                    *contributions -= 1;
                }
            }
        }
    }

    /// Until every participant is final, and nothing more can be sent again.
    fn run(&mut self) -> Mend {
        for round in 1.. {
            while !self.open.is_empty() || self.resends > 0 {
                if !self.step() {
                    assert!(!self.settling, "every question is answered");
                    self.settle();
                }
            }
            let finals: Vec<_> = self.parts.iter().copied().zip(self.finals.iter().copied()).collect();
            match mend(self.base, &finals) {
                Mend::Resend if round < 8 => self.resend(),
                Mend::Resend => return Mend::Reconstruct,
                how => return how,
            }
        }
        unreachable!("it returns")
    }

    fn is_consistent(&self) -> bool {
        let (data, parity) = self.drives.split_at(self.data);
        parity.iter().enumerate().all(|(index, chunk)| *chunk == parity_of(data, index))
    }
}

fn parity_of(data: &[Vec<u8>], index: usize) -> Vec<u8> {
    let mut parity = vec![0; CHUNK];
    for (at, chunk) in data.iter().enumerate() {
        parity::add_product(coefficient(at, index), chunk, &mut parity);
    }
    parity
}

fn coefficient(chunk: usize, parity: usize) -> u8 {
    if parity == 0 { 1 } else { parity::coefficient(chunk) }
}

/// Two ops in a row, in any order of events; the second begins while late events of the first are still under way.
fn history(seed: u64, data: usize, parity: usize, routine: Routine, faults: Faults) -> Mend {
    let mut world = World::new(data, parity, seed, routine, faults);
    let mut last = Mend::Nothing;
    for round in 0..2 {
        let before = world.drives.clone();
        let chunks = 1 + world.draw(data as u64 - 1) as usize;
        let first = world.draw((data - chunks + 1) as u64) as usize;
        let bytes = if routine == Routine::Reconstruct && world.draw(2) == 0 { 64 } else { CHUNK };
        let new = |world: &mut World| (0..bytes).map(|_| world.draw(256) as u8).collect::<Vec<u8>>();
        let written: Vec<_> = (first..first + chunks).map(|chunk| (chunk, new(&mut world))).collect();
        world.begin(&written, routine);
        last = world.run();
        let mut after = before.clone();
        for (chunk, new) in &written {
            after[*chunk][..new.len()].copy_from_slice(new);
        }
        // The host writes them itself, once parity agrees without them.
        for &chunk in &world.left_out {
            after[chunk].clone_from(&before[chunk]);
        }
        let overwritten = (0..data).any(|chunk| world.drives[chunk] != before[chunk]);
        match last {
            Mend::Nothing => {}
            Mend::Again => assert_eq!(world.drives, before, "seed {seed}, {round}: nothing was changed"),
            // As the host does.
            Mend::Data => world.drives[..data].clone_from_slice(&after[..data]),
            Mend::Reconstruct => {
                // F-I1: where nothing is kept, a chunk is overwritten when all new parity is complete, and not before.
                let is_begun = |one: &Final| one.answer().is_some_and(|answer| answer.outcome.write_begun);
                let parity_begun = world.finals[data..].iter().all(is_begun);
                let is_kept = routine == Routine::Delta;
                assert!(is_kept || parity_begun || !overwritten, "seed {seed}, {round}: parity first");
            }
            Mend::Resend => unreachable!("it was sent again"),
        }
        if matches!(last, Mend::Nothing | Mend::Data) {
            assert_eq!(world.drives[..data], after[..data], "seed {seed}, {round}: the data is there");
            assert!(
                world.is_consistent(),
                "seed {seed}, {round}: parity agrees with it: {routine:?} {data}+{parity} {last:?} {:?}",
                world.finals
            );
        }
        if last == Mend::Reconstruct {
            // As the host does.
            world.drives[..data].clone_from_slice(&after[..data]);
            for index in 0..parity {
                world.drives[data + index] = parity_of(&after[..data], index);
            }
        }
        let settled = world.drives.clone();
        for _ in 0..world.draw(40) {
            world.step();
        }
        assert_eq!(world.drives, settled, "seed {seed}, {round}: nothing that comes late changes anything");
    }
    while world.step() {}
    last
}

const CALM: Faults = Faults { cut: 0, lost_order: 0, drive: 0, limit: 0, settle: 0, twice: 0 };

#[test]
fn without_faults_every_order_of_events_ends_done() {
    for seed in 0..2_000 {
        for (data, parity) in [(2, 1), (4, 1), (3, 2)] {
            for routine in [Routine::Delta, Routine::Reconstruct] {
                assert_eq!(history(seed, data, parity, routine, CALM), Mend::Nothing, "seed {seed}");
            }
        }
    }
}

#[test]
fn with_faults_the_verdict_is_true_and_nothing_comes_late() {
    let mut verdicts = [0; 5];
    let kinds = [
        Faults { settle: 40, ..CALM },
        Faults { twice: 300, ..CALM },
        Faults { cut: 60, limit: 20, ..CALM },
        Faults { lost_order: 150, limit: 20, ..CALM },
        Faults { drive: 80, limit: 20, ..CALM },
        Faults { cut: 30, lost_order: 50, drive: 30, limit: 100, settle: 10, twice: 50 },
    ];
    for seed in 0..6_000 {
        for faults in kinds {
            for (data, parity) in [(2, 1), (4, 1), (3, 2)] {
                for routine in [Routine::Delta, Routine::Reconstruct] {
                    verdicts[history(seed, data, parity, routine, faults) as usize] += 1;
                }
            }
        }
    }
    let [nothing, again, data, resend, reconstruct] = verdicts;
    assert!(
        [nothing, again, data, reconstruct].iter().all(|count| *count > 500),
        "each happens: {verdicts:?}"
    );
    assert_eq!(resend, 0);
}

#[test]
fn a_retired_op_and_one_that_was_aborted_before_it_came_do_nothing() {
    let mut world = World::new(2, 1, 7, Routine::Delta, CALM);
    let before = world.drives.clone();
    world.begin(&[(0, vec![9; CHUNK])], Routine::Delta);
    let orders: Vec<Event> = world.events.drain(..).collect();
    world.settle();
    assert_eq!(world.run(), Mend::Again);
    let ending = |one: &Final| match one {
        Final::Answered(answer) => answer.ending,
        other => panic!("{other:?}"),
    };
    let endings: Vec<_> = world.finals.iter().map(ending).collect();
    assert_eq!(endings, [Ending::NeverSeen, Ending::Done, Ending::NeverSeen]);
    world.events.extend(orders);
    while world.step() {}
    assert_eq!(world.drives, before);
}

/// A host that has lost its right changes nothing more, but for what a drive is writing already, which ends in order (F-I6).
#[test]
fn once_all_is_aborted_nothing_begins() {
    let mut begun = 0;
    for seed in 0..4_000 {
        let routine = if seed % 2 == 0 { Routine::Delta } else { Routine::Reconstruct };
        let mut world = World::new(3, 2, seed, routine, CALM);
        let new = vec![seed as u8; CHUNK];
        world.begin(&[(0, new.clone()), (1, new)], routine);
        for _ in 0..world.draw(40) {
            world.step();
        }
        let writing = |world: &World| -> BTreeSet<usize> {
            let at = |event: &Event| if let Event::Write(at, ..) = event { Some(*at) } else { None };
            world.events.iter().filter_map(at).collect()
        };
        let before = writing(&world);
        begun += before.len();
        // The gate refuses orders that come later.
        world.events.retain(|event| !matches!(event, Event::Order(..)));
        for at in 0..world.targets.len() {
            let mut effects = Effects::new();
            world.targets[at].abort_all(&mut effects);
            assert!(
                effects.iter().all(|effect| matches!(effect, Effect::Answer { .. })),
                "seed {seed}: an abort only answers"
            );
        }
        while world.step() {
            assert!(writing(&world).is_subset(&before), "seed {seed}: a write begins");
        }
    }
    assert!(begun > 500, "writes were at work: {begun}");
}

/// Neither a member that contributes nor one that adds up: space that comes back meanwhile would make a refusal an error of the drive.
#[test]
fn a_drive_without_space_is_not_asked_again() {
    for reduces in [false, true] {
        let (op, rows) = (Op(1), 0..CHUNK as u64);
        let role = match reduces {
            true => Role::Reduce { base: Base::Zero, rows, contributions: 0, sink: Sink::Drive },
            false => Role::Contribute { how: How::Overlay, own: rows.clone(), rows, to: SmallVec::new() },
        };
        let data = Gather::from(Slice::from_bytes(&vec![7; if reduces { 0 } else { CHUNK }]));
        let order = Order { stamp: Stamp { op, lowest: op }, role, fua: false };
        let (mut target, mut effects) = (Target::new(0, 1 << 20, Pool::new(1 << 20)), Effects::new());
        target.handle(Input::Order { order, data, token: () }, &mut effects);
        assert!(effects.drain(..).any(|effect| matches!(effect, Effect::Write { .. })));
        target.handle(Input::Written { op, result: Err(Ending::NoSpace) }, &mut effects);
        let [Effect::Answer { answer, .. }] = &effects[..] else { panic!("it tries again") };
        assert_eq!(answer.ending, Ending::NoSpace);
    }
}

/// A target and what it answered, by the number of the command.
struct Alone {
    target: Target<usize>,
    effects: Effects<usize>,
    commands: usize,
}

impl Alone {
    fn new(credit: u64) -> Self {
        Alone { target: Target::new(0, credit, Pool::new(1 << 20)), effects: Effects::new(), commands: 0 }
    }

    /// How a command is answered at once; none: not yet.
    fn give(&mut self, input: impl FnOnce(usize) -> Input<usize>) -> Option<Ending> {
        self.commands += 1;
        let (own, before) = (self.commands, self.effects.len());
        self.target.handle(input(own), &mut self.effects);
        self.effects[before..].iter().find_map(|effect| match effect {
            Effect::Answer { token, answer, .. } if *token == own => Some(answer.ending),
            _ => None,
        })
    }

    fn order(&mut self, stamp: Stamp, role: Role) -> Option<Ending> {
        let bytes = if let Role::Contribute { own, .. } = &role { own.end - own.start } else { 0 };
        let data =
            if bytes == 0 { Gather::new() } else { Slice::from_bytes(&vec![5; bytes as usize]).into() };
        self.give(|token| Input::Order { order: Order { stamp, role, fua: false }, data, token })
    }

    fn contribution(&mut self, stamp: Stamp, from: u8, rows: std::ops::Range<u64>) -> Option<Ending> {
        let data = Slice::from_bytes(&vec![5; (rows.end - rows.start) as usize]).into();
        let contribution = Contribution { stamp, from, rows, when_complete: false };
        self.give(|token| Input::Contribution { contribution, data, token })
    }

    fn taken(&self) -> u64 {
        self.target.credit().taken()
    }
}

fn reduce(rows: std::ops::Range<u64>, contributions: u8) -> Role {
    Role::Reduce { base: Base::Zero, rows, contributions, sink: Sink::Host }
}

#[test]
fn what_is_beyond_the_credit_is_refused_and_changes_nothing() {
    // As much as the arithmetic takes at a time.
    const UNIT: u64 = 64;
    let stamp = |op, lowest| Stamp { op: Op(op), lowest: Op(lowest) };
    let mut alone = Alone::new(4 * UNIT);
    // Contributions before their orders, as far as they reach, and an order that takes them in.
    assert_eq!(alone.contribution(stamp(1, 1), 1, 0..UNIT), Some(Ending::Done));
    assert_eq!(alone.contribution(stamp(1, 1), 2, 2 * UNIT..3 * UNIT), Some(Ending::Done));
    assert_eq!(alone.taken(), 3 * UNIT);
    assert_eq!(alone.contribution(stamp(2, 1), 1, 0..2 * UNIT), Some(Ending::NoCredit));
    assert_eq!(alone.contribution(stamp(1, 1), 3, 3 * UNIT..5 * UNIT), Some(Ending::NoCredit));
    assert_eq!(alone.taken(), 3 * UNIT);
    assert_eq!(alone.order(stamp(1, 1), reduce(0..5 * UNIT, 3)), Some(Ending::NoCredit));
    assert_eq!(alone.order(stamp(1, 1), reduce(0..4 * UNIT, 3)), None);
    assert_eq!(alone.taken(), 4 * UNIT);
    let delta = |bytes: u64| Role::Contribute {
        how: How::Delta,
        own: 0..bytes,
        rows: 0..bytes,
        to: SmallVec::from_iter([Destination { peer: 4, coefficient: 2 }]),
    };
    assert_eq!(alone.order(stamp(2, 1), delta(UNIT)), Some(Ending::NoCredit));
    // A sum that is done with takes nothing.
    assert_eq!(alone.contribution(stamp(1, 1), 3, 3 * UNIT..4 * UNIT), Some(Ending::Done));
    assert_eq!(alone.taken(), 0);
    assert_eq!(alone.order(stamp(2, 1), delta(UNIT)), None);
    assert_eq!(alone.taken(), 3 * UNIT);
    alone.give(|_| Input::Read { op: Op(2), result: Ok(Buffer::from_bytes(&[1; UNIT as usize])) });
    alone.give(|_| Input::Written { op: Op(2), result: Ok(()) });
    alone.give(|_| Input::Forwarded { op: Op(2), destination: 0, ending: Ending::PeerUnreachable });
    assert_eq!(alone.taken(), UNIT, "the difference is kept until it is retired");
    assert_eq!(alone.order(stamp(3, 2), reduce(0..4 * UNIT, 1)), Some(Ending::NoCredit));
    assert_eq!(alone.order(stamp(3, 2), reduce(0..3 * UNIT, 1)), None);
    let resend = |under| Settle::Resend { to: 4, under: Op(under) };
    let settle = |how| move |token| Input::Settle { stamp: stamp(2, 2), how, token };
    assert_eq!(alone.give(settle(resend(4))), Some(Ending::NoCredit), "its product would be beyond");
    assert_eq!(alone.contribution(stamp(3, 2), 1, 0..3 * UNIT), Some(Ending::Done));
    assert_eq!(alone.give(settle(resend(4))), None);
    assert_eq!(alone.taken(), 2 * UNIT);
    alone.give(|_| Input::Forwarded { op: Op(4), destination: 0, ending: Ending::Done });
    assert_eq!(alone.taken(), UNIT);
    // The message that says so brings an order that takes all there is.
    assert_eq!(alone.order(stamp(5, 5), reduce(0..4 * UNIT, 1)), None);
    assert_eq!(alone.taken(), 4 * UNIT);
    alone.target.abort_all(&mut Effects::new());
    assert_eq!(alone.taken(), 0);
}
