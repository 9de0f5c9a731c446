//! The ops of one host's attach at one namespace of a target: what came goes in, what is to be done comes out.
//!
//! The driver carries effects out in order and puts their results in; everything between is here. Orders, contributions, answers
//! of the drive and questions of the host may come in any order.
//!
//! Memory: an entry for each op that is not retired, at most as many as a host has open; contents only while a drive or a peer
//! works on them.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::contributor::{Contribute, Contributor};
use super::effect::{Effect, Effects, Input};
use super::order::{Answer, Contribution, Ending, Op, Order, PEERS_MAX, PeerIndex, Role, Settle, Stamp};
use super::reducer::{Reduce, Reducer};
use crate::buffer::{Gather, Pool};

enum Entry<T> {
    Contributor(Contributor<T>),
    Reducer(Reducer<T>),
    /// It was aborted before anything of it came: a late order or contribution meets this and does nothing (F-I3).
    Tombstone,
}

/// The ops of one attach at one namespace.
pub struct Target<T> {
    me: PeerIndex,
    ops: BTreeMap<Op, Entry<T>>,
    lowest: Op,
    pool: Arc<Pool>,
}

impl<T> Target<T> {
    /// A target that has seen no op; `me` is its number among its peers.
    pub fn new(me: PeerIndex, pool: Arc<Pool>) -> Self {
        Target { me, ops: BTreeMap::new(), lowest: Op(0), pool }
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
                match self.ops.get_mut(&op) {
                    Some(Entry::Contributor(one)) => one.was_read(result, &self.pool, effects),
                    Some(Entry::Reducer(one)) => one.was_read(result, &self.pool, effects),
                    Some(Entry::Tombstone) | None => {}
                }
                op
            }
            Input::Written { op, result } => {
                match self.ops.get_mut(&op) {
                    Some(Entry::Contributor(one)) => one.was_written(result, effects),
                    Some(Entry::Reducer(one)) => one.was_written(result, effects),
                    Some(Entry::Tombstone) | None => {
                        unreachable!("an op is kept while the drive writes for it")
                    }
                }
                op
            }
            Input::Forwarded { op, destination, ending } => {
                if let Some(Entry::Contributor(one)) = self.ops.get_mut(&op) {
                    one.was_forwarded(destination, ending, effects);
                }
                op
            }
            Input::Limit { op } => {
                if let Some(Entry::Reducer(one)) = self.ops.get_mut(&op) {
                    one.limit(effects);
                }
                op
            }
        };
        self.drop_if_retired(op);
    }

    fn order(&mut self, order: Order, data: Gather, token: T, effects: &mut Effects<T>) -> Op {
        let op = order.stamp.op;
        if !order.is_sound(data.len() as u64) {
            answer(token, Ending::Invalid, effects);
            return op;
        }
        let Some(token) = self.admit(order.stamp, token, effects) else { return op };
        match (order.role, self.ops.get_mut(&op)) {
            (_, Some(Entry::Tombstone)) => answer(token, Ending::Aborted, effects),
            (Role::Reduce { base, rows, contributions, sink }, entry) => {
                let reduce = Reduce { base, rows, contributions, sink, fua: order.fua };
                match entry {
                    Some(Entry::Reducer(early)) => early.order(reduce, token, &self.pool, effects),
                    Some(_) => answer(token, Ending::Invalid, effects),
                    None => {
                        let mut reducer = Reducer::new(op, effects);
                        reducer.order(reduce, token, &self.pool, effects);
                        self.ops.insert(op, Entry::Reducer(reducer));
                    }
                }
            }
            (Role::Contribute { .. }, Some(_)) => answer(token, Ending::Invalid, effects),
            (Role::Contribute { how, own, rows, to }, None) => {
                let (stamp, fua, me) = (order.stamp, order.fua, self.me);
                let order = Contribute { stamp, how, own, rows, to, new: data, fua, me };
                let contributor = Contributor::begin(order, token, &self.pool, effects);
                self.ops.insert(op, Entry::Contributor(contributor));
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
        match self.ops.get_mut(&op) {
            Some(Entry::Reducer(reducer)) => reducer.contribution(part, data, token, &self.pool, effects),
            Some(Entry::Tombstone) => answer(token, Ending::Aborted, effects),
            Some(Entry::Contributor(_)) => answer(token, Ending::ContributionRefused, effects),
            None => {
                let mut reducer = Reducer::new(op, effects);
                reducer.contribution(part, data, token, &self.pool, effects);
                self.ops.insert(op, Entry::Reducer(reducer));
            }
        }
        op
    }

    fn settle(&mut self, stamp: Stamp, how: Settle, token: T, effects: &mut Effects<T>) -> Op {
        let Some(token) = self.admit(stamp, token, effects) else { return stamp.op };
        match self.ops.get_mut(&stamp.op) {
            Some(Entry::Contributor(one)) => one.settle(how, token, effects),
            Some(Entry::Reducer(one)) => one.settle(how, token, effects),
            Some(Entry::Tombstone) => answer(token, Ending::Aborted, effects),
            None => {
                self.ops.insert(stamp.op, Entry::Tombstone);
                answer(token, Ending::NeverSeen, effects);
            }
        }
        stamp.op
    }

    /// F-I3: an op that is retired has no effect any more.
    fn admit(&mut self, stamp: Stamp, token: T, effects: &mut Effects<T>) -> Option<T> {
        if stamp.lowest > self.lowest {
            self.lowest = stamp.lowest;
            self.ops.retain(|op, entry| *op >= stamp.lowest || !entry.is_final());
        }
        if stamp.op < self.lowest {
            answer(token, Ending::Retired, effects);
            return None;
        }
        Some(token)
    }

    /// A host retires what is final. Whatever else it does, an op is kept while a drive works for it.
    fn drop_if_retired(&mut self, op: Op) {
        if op < self.lowest && self.ops.get(&op).is_some_and(Entry::is_final) {
            self.ops.remove(&op);
        }
    }

    /// The host has lost its right: nothing that has not begun is done any more. What is writing is in `Effect::Answer`s to
    /// come; the driver waits for them.
    pub fn abort_all(&mut self, effects: &mut Effects<T>) {
        for entry in self.ops.values_mut() {
            match entry {
                Entry::Contributor(one) => one.abort(effects),
                Entry::Reducer(one) => one.abort(effects),
                Entry::Tombstone => {}
            }
        }
    }
}

impl<T> Entry<T> {
    fn is_final(&self) -> bool {
        match self {
            Entry::Contributor(one) => one.is_final(),
            Entry::Reducer(one) => one.is_final(),
            Entry::Tombstone => true,
        }
    }
}

fn answer<T>(token: T, ending: Ending, effects: &mut Effects<T>) {
    effects.push(Effect::Answer { token, answer: Answer::nothing(ending), data: Gather::new() });
}
