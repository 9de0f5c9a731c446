//! The ops of one host's attach at one namespace of a target: what came goes in, what is to be done comes out.
//!
//! The driver carries effects out in order and puts their results in; everything between is here. Orders, contributions, answers
//! of the drive and questions of the host may come in any order.
//!
//! Memory: an entry for each op that is not retired, at most as many as a host has open. A difference is kept until its op is
//! retired, other contents only while a drive or a peer works on them. All of that is counted against the credit that the host was
//! given ([`super::credit`]), contributions of peers whose order has not come, too; what is beyond is refused.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::contributor::{Contribute, Contributor};
use super::credit::{Credit, bytes_of};
use super::effect::{Effect, Effects, Input};
use super::order::{Answer, Contribution, Ending, Op, Order, PEERS_MAX, PeerIndex, Role, Settle, Stamp};
use super::reducer::{Reduce, Reducer};
use crate::buffer::{Gather, Pool};

enum Entry<T> {
    Contributor(Contributor<T>),
    Reducer(Reducer<T>),
    /// Differences of former ops that go to their reducers again.
    Resender(Resender<T>),
    /// It was aborted before anything of it came: a late order or contribution meets this and does nothing (F-I3).
    Tombstone,
}

/// What is known of an op, and what of it is counted.
struct Kept<T> {
    entry: Entry<T>,
    counted: u64,
}

/// The ops of one attach at one namespace.
pub struct Target<T> {
    me: PeerIndex,
    ops: BTreeMap<Op, Kept<T>>,
    lowest: Op,
    credit: Credit,
    pool: Arc<Pool>,
}

impl<T> Target<T> {
    /// A target that has seen no op and gives `credit` bytes; `me` is its number among its peers.
    pub fn new(me: PeerIndex, credit: u64, pool: Arc<Pool>) -> Self {
        Target { me, ops: BTreeMap::new(), lowest: Op(0), credit: Credit::new(credit), pool }
    }

    /// What it gives, and what of that is taken.
    pub fn credit(&self) -> Credit {
        self.credit
    }

    /// Ops that are not retired.
    pub fn open(&self) -> usize {
        self.ops.len()
    }

    /// Takes what came, and adds what is to be done.
    pub fn handle(&mut self, input: Input<T>, effects: &mut Effects<T>) {
        let op = match input {
            Input::Order { order, data, token } => self.order(order, data, token, effects),
            Input::Contribution { contribution, data, token } => {
                self.contribution(&contribution, &data, token, effects)
            }
            Input::Settle { stamp, how, token } => self.settle(stamp, how, token, effects),
            Input::Read { op, result } => {
                match entry_of(&mut self.ops, op) {
                    Some(Entry::Contributor(one)) => one.was_read(result, &self.pool, effects),
                    Some(Entry::Reducer(one)) => one.was_read(result, &self.pool, effects),
                    _ => {}
                }
                op
            }
            Input::Written { op, result } => {
                match entry_of(&mut self.ops, op) {
                    Some(Entry::Contributor(one)) => one.was_written(result, effects),
                    Some(Entry::Reducer(one)) => one.was_written(result, effects),
                    _ => unreachable!("an op is kept while the drive writes for it"),
                }
                op
            }
            Input::Forwarded { op, destination, ending } => {
                match entry_of(&mut self.ops, op) {
                    Some(Entry::Contributor(one)) => one.was_forwarded(destination, ending, effects),
                    Some(Entry::Resender(one)) => one.was_forwarded(destination, ending, effects),
                    _ => {}
                }
                op
            }
            Input::Limit { op } => {
                if let Some(Entry::Reducer(one)) = entry_of(&mut self.ops, op) {
                    one.limit(effects);
                }
                op
            }
        };
        self.count(op);
        self.drop_if_retired(op);
    }

    fn order(&mut self, order: Order, data: Gather, token: T, effects: &mut Effects<T>) -> Op {
        let op = order.stamp.op;
        if !order.is_sound(data.len() as u64) {
            answer(token, Ending::Invalid, effects);
            return op;
        }
        let Some(token) = self.admit(order.stamp, token, effects) else { return op };
        // An order that comes late begins nothing, and takes nothing; what came early for a reduction is in what that takes.
        let needed = match (&order.role, entry_of(&mut self.ops, op)) {
            (Role::Reduce { .. }, Some(Entry::Reducer(early))) if !early.awaits_order() => 0,
            (_, None) | (Role::Reduce { .. }, Some(Entry::Reducer(_))) => bytes_of(&order.role),
            _ => 0,
        };
        if !self.covers(op, needed) {
            answer(token, Ending::NoCredit, effects);
            return op;
        }
        match (order.role, entry_of(&mut self.ops, op)) {
            (_, Some(Entry::Tombstone)) => answer(token, Ending::Aborted, effects),
            (Role::Reduce { base, rows, contributions, sink }, entry) => {
                let reduce = Reduce { base, rows, contributions, sink, fua: order.fua };
                match entry {
                    Some(Entry::Reducer(early)) => early.order(reduce, token, &self.pool, effects),
                    Some(_) => answer(token, Ending::Invalid, effects),
                    None => {
                        let mut reducer = Reducer::new(op, effects);
                        reducer.order(reduce, token, &self.pool, effects);
                        self.enter(op, Entry::Reducer(reducer));
                    }
                }
            }
            (Role::Contribute { .. }, Some(_)) => answer(token, Ending::Invalid, effects),
            (Role::Contribute { how, own, rows, to }, None) => {
                let (stamp, fua, me) = (order.stamp, order.fua, self.me);
                let order = Contribute { stamp, how, own, rows, to, new: data, fua, me };
                let contributor = Contributor::begin(order, token, &self.pool, effects);
                self.enter(op, Entry::Contributor(contributor));
            }
        }
        op
    }

    fn contribution(&mut self, part: &Contribution, data: &Gather, token: T, effects: &mut Effects<T>) -> Op {
        let op = part.stamp.op;
        let is_sound = usize::from(part.from) < PEERS_MAX
            && part.rows.end.checked_sub(part.rows.start) == Some(data.len() as u64)
            && part.stamp.lowest <= op;
        if !is_sound {
            answer(token, Ending::ContributionRefused, effects);
            return op;
        }
        let Some(token) = self.admit(part.stamp, token, effects) else { return op };
        let needed = match entry_of(&mut self.ops, op) {
            None => data.len() as u64,
            Some(Entry::Reducer(reducer)) => reducer.bytes_with(&part.rows),
            Some(_) => 0,
        };
        if !self.covers(op, needed) {
            answer(token, Ending::NoCredit, effects);
            return op;
        }
        match entry_of(&mut self.ops, op) {
            Some(Entry::Reducer(reducer)) => reducer.contribution(part, data, token, &self.pool, effects),
            Some(Entry::Tombstone) => answer(token, Ending::Aborted, effects),
            Some(Entry::Contributor(_) | Entry::Resender(_)) => {
                answer(token, Ending::ContributionRefused, effects);
            }
            None => {
                let mut reducer = Reducer::new(op, effects);
                reducer.contribution(part, data, token, &self.pool, effects);
                self.enter(op, Entry::Reducer(reducer));
            }
        }
        op
    }

    fn settle(&mut self, stamp: Stamp, how: Settle, token: T, effects: &mut Effects<T>) -> Op {
        let Some(token) = self.admit(stamp, token, effects) else { return stamp.op };
        if let Settle::Resend { to, under } = how {
            return self.resend(stamp, (to, under), token, effects);
        }
        match entry_of(&mut self.ops, stamp.op) {
            Some(Entry::Resender(one)) => one.settle(token, effects),
            Some(Entry::Contributor(one)) => one.settle(how, token, effects),
            Some(Entry::Reducer(one)) => one.settle(how, token, effects),
            Some(Entry::Tombstone) => answer(token, Ending::Aborted, effects),
            None => {
                self.enter(stamp.op, Entry::Tombstone);
                answer(token, Ending::NeverSeen, effects);
            }
        }
        stamp.op
    }

    /// The host resends what an op's reducer did not apply, after that op is final everywhere (F-I4). Under the new op it counts
    /// once (F-I2), as every contribution.
    fn resend(
        &mut self,
        stamp: Stamp,
        (to, under): (PeerIndex, Op),
        token: T,
        effects: &mut Effects<T>,
    ) -> Op {
        let kept = match entry_of(&mut self.ops, stamp.op) {
            Some(Entry::Contributor(one)) if one.is_final() => Some(one),
            _ => None,
        };
        let bytes = kept.as_ref().map_or(0, |one| one.again_bytes(to));
        let delta = match kept {
            Some(_) if !self.credit.covers(bytes) => {
                answer(token, Ending::NoCredit, effects);
                return stamp.op;
            }
            Some(one) => one.again(to, &self.pool),
            None => None,
        };
        let Some((rows, data)) = delta.filter(|_| under > stamp.op) else {
            answer(token, Ending::DeltaGone, effects);
            return stamp.op;
        };
        let new = || Kept { entry: Entry::Resender(Resender::new()), counted: 0 };
        let entry = &mut self.ops.entry(under).or_insert_with(new).entry;
        let Entry::Resender(resender) = entry else {
            let ending = if matches!(entry, Entry::Tombstone) { Ending::Aborted } else { Ending::Invalid };
            answer(token, ending, effects);
            return stamp.op;
        };
        let stamp = Stamp { op: under, ..stamp };
        let contribution = Contribution { stamp, from: self.me, rows, when_complete: false };
        let destination = resender.begin(token, bytes);
        effects.push(Effect::Forward { destination, to, contribution, data });
        under
    }

    /// F-I3: an op that is retired has no effect any more.
    fn admit(&mut self, stamp: Stamp, token: T, effects: &mut Effects<T>) -> Option<T> {
        if stamp.lowest > self.lowest {
            self.lowest = stamp.lowest;
            let credit = &mut self.credit;
            self.ops.retain(|op, kept| {
                let stays = *op >= stamp.lowest || !kept.entry.is_final();
                if !stays {
                    credit.change(kept.counted, 0);
                }
                stays
            });
        }
        if stamp.op < self.lowest {
            answer(token, Ending::Retired, effects);
            return None;
        }
        Some(token)
    }

    /// A host retires what is final. Whatever else it does, an op is kept while a drive works for it.
    fn drop_if_retired(&mut self, op: Op) {
        if op < self.lowest && self.ops.get(&op).is_some_and(|kept| kept.entry.is_final()) {
            let kept = self.ops.remove(&op).expect("it is there");
            self.credit.change(kept.counted, 0);
        }
    }

    /// Whether an op may take so much in all.
    fn covers(&self, op: Op, bytes: u64) -> bool {
        let counted = self.ops.get(&op).map_or(0, |kept| kept.counted);
        self.credit.covers(bytes.saturating_sub(counted))
    }

    fn enter(&mut self, op: Op, entry: Entry<T>) {
        let former = self.ops.insert(op, Kept { entry, counted: 0 });
        assert!(former.is_none(), "an op is entered once");
    }

    /// Counts what an op takes now.
    fn count(&mut self, op: Op) {
        if let Some(kept) = self.ops.get_mut(&op) {
            let now = kept.entry.bytes();
            self.credit.change(std::mem::replace(&mut kept.counted, now), now);
        }
    }

    /// The host has lost its right: nothing that has not begun is done any more. What is writing is in `Effect::Answer`s to
    /// come; the driver waits for them.
    pub fn abort_all(&mut self, effects: &mut Effects<T>) {
        for kept in self.ops.values_mut() {
            match &mut kept.entry {
                Entry::Contributor(one) => one.abort(effects),
                Entry::Reducer(one) => one.abort(effects),
                Entry::Resender(_) | Entry::Tombstone => {}
            }
            let now = kept.entry.bytes();
            self.credit.change(std::mem::replace(&mut kept.counted, now), now);
        }
    }
}

fn entry_of<T>(ops: &mut BTreeMap<Op, Kept<T>>, op: Op) -> Option<&mut Entry<T>> {
    ops.get_mut(&op).map(|kept| &mut kept.entry)
}

impl<T> Entry<T> {
    fn is_final(&self) -> bool {
        match self {
            Entry::Contributor(one) => one.is_final(),
            Entry::Reducer(one) => one.is_final(),
            Entry::Resender(one) => one.is_final(),
            Entry::Tombstone => true,
        }
    }

    fn bytes(&self) -> u64 {
        match self {
            Entry::Contributor(one) => one.bytes(),
            Entry::Reducer(one) => one.bytes(),
            Entry::Resender(one) => one.bytes(),
            Entry::Tombstone => 0,
        }
    }
}

fn answer<T>(token: T, ending: Ending, effects: &mut Effects<T>) {
    effects.push(Effect::Answer { token, answer: Answer::nothing(ending), data: Gather::new() });
}

/// Differences on their way to their reducers again.
struct Resender<T> {
    /// By destination, with the bytes that are on their way; none: it was answered.
    tokens: Vec<Option<(T, u64)>>,
    settlers: Vec<T>,
}

impl<T> Resender<T> {
    fn new() -> Self {
        Resender { tokens: Vec::new(), settlers: Vec::new() }
    }

    fn begin(&mut self, token: T, bytes: u64) -> usize {
        self.tokens.push(Some((token, bytes)));
        self.tokens.len() - 1
    }

    fn was_forwarded(&mut self, destination: usize, ending: Ending, effects: &mut Effects<T>) {
        let Some((token, _)) = self.tokens.get_mut(destination).and_then(Option::take) else { return };
        let is_said = matches!(ending, Ending::Done | Ending::Aborted | Ending::TimeOver | Ending::Retired);
        answer(token, if is_said { ending } else { Ending::PeerUnreachable }, effects);
        if self.is_final() {
            self.settlers.drain(..).for_each(|token| answer(token, Ending::Done, effects));
        }
    }

    /// It writes nothing, and what reducers make of it they are asked themselves.
    fn settle(&mut self, token: T, effects: &mut Effects<T>) {
        if self.is_final() { answer(token, Ending::Done, effects) } else { self.settlers.push(token) }
    }

    fn is_final(&self) -> bool {
        self.tokens.iter().all(Option::is_none)
    }

    fn bytes(&self) -> u64 {
        self.tokens.iter().flatten().map(|(_, bytes)| bytes).sum()
    }
}
