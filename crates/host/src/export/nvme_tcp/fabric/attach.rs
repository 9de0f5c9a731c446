//! Attaches: the time in which one host has a namespace for an array, and the ops that it has there.
//!
//! Invariants:
//! - A namespace has one attach at most that takes orders: a new one ends the one before it.
//! - F-I6: an attach that has ended takes neither orders nor contributions, and what was gathering then is aborted. What the
//!   drive was writing is answered when the drive has answered; its outcome can still be asked for, by the attach's key.

use engine::buffer::{Gather, Pool};
use engine::fabric::effect::{Effect, Effects, Input};
use engine::fabric::order::{Answer, Ending, Op, Stamp};
use engine::fabric::target::Target;
use nvme_tcp::names::Host;
use nvme_tcp::status::Status;
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use super::super::namespace::Source;
use super::peers::Peer;
use crate::call::Reply;
use crate::device::nvme_tcp::random_bytes;

/// Attaches of a namespace that have ended, and whose ops may still be asked for.
const FORMER_MAX: usize = 4;
/// Memory that the sums of an attach keep for the next ones, in each size class.
const POOL_BYTES: usize = 4 << 20;
/// Longest time that an op is given. A host that asks for more gets this.
const OP_LIMIT_MAX: Duration = Duration::from_secs(60);

/// What a command is answered with.
pub(super) struct Answered {
    pub answer: Answer,
    pub data: Gather,
}

/// A command that waits for its answer, on whichever shard.
pub(super) type Token = Reply<Answered>;

/// Another member of an attach, or this one.
pub(super) struct Member {
    /// Its namespace, and what its target knows the attach by.
    pub namespace: u32,
    pub handle: u32,
    /// Blocks from a place here to the same row's place there.
    pub shift_blocks: i64,
    pub way: Way,
}

/// How contributions get to a member.
pub(super) enum Way {
    /// It is this namespace.
    Own,
    /// This server serves it.
    Here(Weak<Attaches>),
    /// Another target serves it.
    Away(Arc<Peer>),
}

/// An attach.
pub(super) struct Attach {
    handle: Handle,
    pub host: Host,
    pub key: u64,
    pub source: Arc<dyn Source>,
    /// The next attach of the same host, which sends on what is kept here.
    successor: OnceLock<Weak<Attach>>,
    state: Mutex<State>,
}

struct State {
    is_over: bool,
    op_limit: Duration,
    members: Arc<[Member]>,
    /// None until the members are known, and this one's number among them.
    target: Option<(u8, Target<Token>)>,
    lowest: Op,
    /// Reductions whose time runs, the oldest first.
    limits: VecDeque<(Instant, Op)>,
    /// A task waits for the oldest one's end.
    is_watched: bool,
    /// What was refused since no memory was given for it.
    refusals: u64,
}

/// What a driver is to do.
pub(super) struct Given {
    pub effects: Effects<Token>,
    /// Wait for reductions whose time is over: no other task does.
    pub watch: bool,
}

impl Attach {
    fn new(host: &Host, key: u64, source: Arc<dyn Source>) -> Arc<Attach> {
        Arc::new(Attach {
            handle: Handle::draw(),
            host: host.clone(),
            key,
            source,
            successor: OnceLock::new(),
            state: Mutex::new(State {
                is_over: false,
                op_limit: OP_LIMIT_MAX,
                members: Arc::new([]),
                target: None,
                lowest: Op(0),
                limits: VecDeque::new(),
                is_watched: false,
                refusals: 0,
            }),
        })
    }

    /// What peers name it by.
    pub fn handle(&self) -> u32 {
        self.handle.0
    }

    /// Who the members are, and which of them this is. Ops stay as they are, and so does the memory that they are given.
    ///
    /// # Errors
    /// It has ended, or was another member before.
    pub fn set_members(
        &self,
        me: u8,
        credit: u64,
        op_limit: Duration,
        members: Vec<Member>,
    ) -> Result<(), Status> {
        let former;
        {
            let mut state = self.state.lock();
            if state.is_over {
                return Err(Status::NO_ATTACH);
            }
            match &state.target {
                Some((known, _)) if *known != me => return Err(Status::INVALID_FIELD),
                Some(_) => {}
                None => state.target = Some((me, Target::new(me, credit, Pool::new(POOL_BYTES)))),
            }
            state.op_limit = op_limit.min(OP_LIMIT_MAX);
            former = std::mem::replace(&mut state.members, members.into());
        }
        // Not under the lock: with it a connection may end.
        drop(former);
        Ok(())
    }

    /// The members as they are now. One whose host has attached anew since sends to those of the new attach: what is kept of an op is
    /// parity that can be made of nothing else (F-I1). One whose host has lost its right has none (F-I6).
    pub fn members(&self) -> Arc<[Member]> {
        {
            let state = self.state.lock();
            if !state.is_over {
                return Arc::clone(&state.members);
            }
        }
        self.successor().map_or_else(|| Vec::new().into(), |next| next.members())
    }

    /// Whether what is kept here can still be sent to its reducers.
    pub fn can_resend(&self) -> bool {
        !self.is_over() || self.successor().is_some_and(|next| next.can_resend())
    }

    fn successor(&self) -> Option<Arc<Attach>> {
        self.successor.get()?.upgrade()
    }

    /// How long an op may take.
    pub fn op_limit(&self) -> Duration {
        self.state.lock().op_limit
    }

    /// Whether it takes nothing any more.
    pub fn is_over(&self) -> bool {
        self.state.lock().is_over
    }

    /// Ops that are not retired.
    pub fn ops_open(&self) -> usize {
        self.state.lock().target.as_ref().map_or(0, |(_, target)| target.open())
    }

    /// Bytes of memory that its ops are given.
    pub fn credit_bytes(&self) -> u64 {
        self.state.lock().target.as_ref().map_or(0, |(_, target)| target.credit().given())
    }

    /// Puts in what came.
    ///
    /// # Errors
    /// Nothing of it was taken: the attach has ended, or its members are not known yet.
    pub fn give(&self, input: Input<Token>) -> Result<Given, Status> {
        let state = &mut *self.state.lock();
        let begins = matches!(input, Input::Order { .. } | Input::Contribution { .. });
        if begins && state.is_over {
            return Err(Status::NO_ATTACH);
        }
        let Some((_, target)) = &mut state.target else { return Err(Status::NO_ATTACH) };
        if let Some(Stamp { lowest, op }) = stamp(&input) {
            state.lowest = state.lowest.max(lowest.min(op));
        }
        let mut effects = Effects::new();
        target.handle(input, &mut effects);
        let credit = target.credit();
        if let Some(refusals) = state.count_refusals(&effects) {
            tracing::warn!(
                host = %self.host.nqn, given = credit.given(), taken = credit.taken(), refusals,
                "a host, or a peer in its name, sends more than it was given memory for: it is refused"
            );
        }
        let watch = state.enter_limits(&effects);
        Ok(Given { effects, watch })
    }

    /// Reductions whose time is over by `now`, and when the next one's is. Without a next one nothing is watched any more.
    pub fn expired(&self, now: Instant) -> (Vec<Op>, Option<Instant>) {
        let state = &mut *self.state.lock();
        let mut expired = Vec::new();
        while let Some((end, op)) = state.limits.front().copied()
            && (end <= now || op < state.lowest)
        {
            state.limits.pop_front();
            expired.push(op);
        }
        let next = state.limits.front().map(|(end, _)| *end);
        state.is_watched = next.is_some();
        (expired, next)
    }

    /// The host has lost its right, or has attached anew: nothing begins any more, and what gathers is aborted.
    pub fn end(&self) {
        let (mut effects, members) = (Effects::new(), Arc::new([]));
        let former = {
            let state = &mut *self.state.lock();
            if std::mem::replace(&mut state.is_over, true) {
                return;
            }
            if let Some((_, target)) = &mut state.target {
                target.abort_all(&mut effects);
            }
            state.limits.clear();
            std::mem::replace(&mut state.members, members)
        };
        for effect in effects {
            let Effect::Answer { token, answer, data } = effect else {
                unreachable!("what is aborted begins nothing");
            };
            token.send(Answered { answer, data });
        }
        drop(former);
    }
}

impl State {
    /// Counts refusals for want of credit. Returns the count when it is to be logged: at the first, and whenever it has doubled.
    fn count_refusals(&mut self, effects: &Effects<Token>) -> Option<u64> {
        let is_refusal = |one: &&Effect<Token>| matches!(one, Effect::Answer { answer, .. } if answer.ending == Ending::NoCredit);
        let before = self.refusals;
        self.refusals += effects.iter().filter(is_refusal).count() as u64;
        (self.refusals > before && self.refusals.is_power_of_two()).then_some(self.refusals)
    }

    /// Has the time of reductions run that begin now. Whether nothing watches it yet.
    fn enter_limits(&mut self, effects: &Effects<Token>) -> bool {
        let begun =
            effects.iter().filter_map(|one| if let Effect::Limit { op } = one { Some(*op) } else { None });
        let begun: Vec<Op> = begun.collect();
        if begun.is_empty() {
            return false;
        }
        // What is retired needs no time any more: otherwise an entry would stay for each op of the last seconds.
        while self.limits.front().is_some_and(|(_, op)| *op < self.lowest) {
            self.limits.pop_front();
        }
        let end = Instant::now() + self.op_limit;
        self.limits.extend(begun.into_iter().map(|op| (end, op)));
        !std::mem::replace(&mut self.is_watched, true)
    }
}

fn stamp(input: &Input<Token>) -> Option<Stamp> {
    match input {
        Input::Order { order, .. } => Some(order.stamp),
        Input::Contribution { contribution, .. } => Some(contribution.stamp),
        Input::Settle { stamp, .. } => Some(*stamp),
        Input::Read { .. } | Input::Written { .. } | Input::Forwarded { .. } | Input::Limit { .. } => None,
    }
}

/// The attaches of a subsystem's namespaces.
#[derive(Default)]
pub(in super::super) struct Attaches {
    namespaces: Mutex<BTreeMap<u32, OfNamespace>>,
}

#[derive(Default)]
struct OfNamespace {
    current: Option<Arc<Attach>>,
    /// The latest one last.
    former: VecDeque<Arc<Attach>>,
}

impl OfNamespace {
    fn end_current(&mut self) -> Option<Arc<Attach>> {
        let ended = self.current.take()?;
        if self.former.len() == FORMER_MAX {
            self.former.pop_front();
        }
        self.former.push_back(Arc::clone(&ended));
        Some(ended)
    }
}

impl Attaches {
    /// The attach of this host and key, which is made if it is another than before.
    pub(super) fn attach(
        &self,
        namespace: u32,
        host: &Host,
        key: u64,
        source: Arc<dyn Source>,
    ) -> Arc<Attach> {
        let (attach, ended) = {
            let mut namespaces = self.namespaces.lock();
            let of = namespaces.entry(namespace).or_default();
            if let Some(same) = of.current.as_ref().filter(|one| one.host == *host && one.key == key) {
                return Arc::clone(same);
            }
            let ended = of.end_current();
            let attach = Attach::new(host, key, source);
            // The one before may have ended with its key, before the host attached under another one.
            if let Some(before) = of.former.back().filter(|before| before.host == *host) {
                let _once = before.successor.set(Arc::downgrade(&attach));
            }
            of.current = Some(Arc::clone(&attach));
            (attach, ended)
        };
        if let Some(ended) = ended {
            ended.end();
        }
        attach
    }

    /// The attach that takes orders of this host.
    pub(super) fn of_host(&self, namespace: u32, host: &Host) -> Option<Arc<Attach>> {
        let namespaces = self.namespaces.lock();
        namespaces.get(&namespace)?.current.as_ref().filter(|one| one.host == *host).cloned()
    }

    /// The attach that peers know by a handle.
    pub(super) fn of_handle(&self, namespace: u32, handle: u32) -> Option<Arc<Attach>> {
        let namespaces = self.namespaces.lock();
        namespaces.get(&namespace)?.current.as_ref().filter(|one| one.handle() == handle).cloned()
    }

    /// The attach with a key, also one that has ended.
    pub(super) fn of_key(&self, namespace: u32, key: u64) -> Option<Arc<Attach>> {
        let namespaces = self.namespaces.lock();
        let of = namespaces.get(&namespace)?;
        of.current.iter().chain(of.former.iter().rev()).find(|one| one.key == key).cloned()
    }

    /// Ends the attach of a namespace unless its host still has the right (F-I6).
    pub fn end_unless(&self, namespace: u32, has_right: impl FnOnce(&Host, u64) -> bool) {
        let ended = {
            let mut namespaces = self.namespaces.lock();
            let Some(of) = namespaces.get_mut(&namespace) else { return };
            if of.current.as_ref().is_some_and(|one| has_right(&one.host, one.key)) {
                return;
            }
            of.end_current()
        };
        if let Some(ended) = ended {
            ended.end();
        }
    }

    /// Ends every attach: the server stops.
    pub fn end_all(&self) {
        let ended: Vec<_> =
            self.namespaces.lock().values_mut().filter_map(OfNamespace::end_current).collect();
        ended.iter().for_each(|one| one.end());
    }
}

/// A handle that no other attach of this process has.
struct Handle(u32);

static HANDLES: Mutex<BTreeSet<u32>> = Mutex::new(BTreeSet::new());

impl Handle {
    fn draw() -> Handle {
        let mut taken = HANDLES.lock();
        loop {
            let number = u32::from_le_bytes(random_bytes());
            if number != 0 && taken.insert(number) {
                return Handle(number);
            }
        }
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        HANDLES.lock().remove(&self.0);
    }
}
