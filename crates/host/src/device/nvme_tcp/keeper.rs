//! The keeper of a member: the thread that has its association.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::association::{Association, Attach, AttachError, Former};
use super::controller::Namespace;
use super::fencing::{Holder, OwnKeys};
use super::member::{End, Identity, RemoteEvent, RemoteMember, State, may_pass};
use super::options::{KEEP_ALIVE, RemoteOptions};
use super::port::{Link, Port};

/// How often a target is asked for a sign of life, at least.
const TICK_MAX: Duration = Duration::from_secs(1);
/// How many ticks until the keeper looks again whose the member is.
const HOLDER_TICKS: u32 = 3;
/// How many until it looks again whether the namespace is what it was, where the target tells when that changes.
const NAMESPACE_TICKS: u32 = 30;
/// Waits between two attempts to connect: the first, and the longest.
const RETRY_MIN: Duration = Duration::from_millis(100);
const RETRY_MAX: Duration = Duration::from_secs(2);
/// Keep-alive times after which a target has ended the association of a host that gives no sign: that in which the last one came, two
/// whole ones without (`twill target` judges in whole intervals), and one for a target that is late.
const FORMER_KEEP_ALIVES: u32 = 4;
/// After which no command of a lost association runs any more, for a target without reservations that does not say.
const QUIESCE: Duration = Duration::from_secs(10);

/// Why a member is not used on (F-I17).
const LOST_WRITES: &str = "its target may have restarted, and writes that were not flushed may be lost; it fails and is re-added, and the bitmap says what it lacks";

/// Whether most of the other members are still this host's.
pub(super) type OthersHold = Box<dyn Fn() -> bool + Send>;

/// Keeps a member until it is stopped.
pub(super) fn keep(member: &Arc<RemoteMember>, others_hold: &OthersHold) {
    let machine = member.association.lock().as_ref().and_then(Association::machine);
    let mut keeper =
        Keeper { member: Arc::clone(member), machine, number: 1, ticks: 0, begun: Instant::now() };
    loop {
        match keeper.wait() {
            Woken::Stop => return keeper.release(),
            Woken::Lost(reason) => {
                keeper.forget();
                if !keeper.explain(reason) {
                    return keeper.wait_for_stop();
                }
                if !keeper.reconnect(others_hold) {
                    return keeper.wait_for_stop();
                }
            }
            Woken::Ports => keeper.give_links(),
            Woken::Tick => keeper.look(),
        }
    }
}

struct Keeper {
    member: Arc<RemoteMember>,
    /// The machine's half of the target's boot id.
    machine: Option<[u8; 4]>,
    /// Of the association, from 1.
    number: u64,
    ticks: u32,
    /// When the member was attached.
    begun: Instant,
}

enum Woken {
    Stop,
    Lost(String),
    Ports,
    Tick,
}

impl Keeper {
    fn wait(&mut self) -> Woken {
        let tick = (self.member.options.keep_alive / 3).min(TICK_MAX);
        let end = Instant::now() + tick;
        let mut state = self.member.state.lock();
        loop {
            if state.stopping {
                return Woken::Stop;
            }
            if let Some(reason) = state.lost.take() {
                return Woken::Lost(reason);
            }
            if state.ports.iter().any(|port| port.lacks(self.number)) {
                return Woken::Ports;
            }
            if self.member.changed.wait_until(&mut state, end).timed_out() {
                return Woken::Tick;
            }
        }
    }

    /// Gives a queue to each shard that has none of this association.
    fn give_links(&mut self) {
        let ports: Vec<Arc<Port>> = {
            let state = self.member.state.lock();
            state.ports.iter().filter(|port| port.lacks(self.number)).cloned().collect()
        };
        for port in ports {
            if let Err(error) = self.give_link(&port) {
                return self.member.lose(self.number, &error.to_string());
            }
        }
    }

    fn give_link(&self, port: &Port) -> Result<(), AttachError> {
        let member = &*self.member;
        let mut association = member.association.lock();
        let Some(association) = &mut *association else { return Ok(()) };
        let wire = association.open_queue(&member.address, &member.options)?;
        {
            let mut state = member.state.lock();
            state.sockets.push(wire.handle()?);
        }
        let (socket, tls, queue) = wire.into_parts()?;
        port.give(Link { socket, tls, queue, association: self.number });
        if !member.is_up(self.number) {
            // Lost meanwhile, perhaps before the new connection was among those that end.
            let state = member.state.lock();
            for socket in &state.sockets {
                let _ = rustix::net::shutdown(socket, rustix::net::Shutdown::Both);
            }
        }
        Ok(())
    }

    /// Shows that this host lives, and looks whether the member is still what it was and whose it is.
    fn look(&mut self) {
        self.ticks += 1;
        let member = &*self.member;
        let looked = {
            let mut association = member.association.lock();
            let Some(association) = &mut *association else { return };
            let is_told = association.controller.tells_of_namespaces();
            let namespace_ticks = if is_told { NAMESPACE_TICKS } else { HOLDER_TICKS };
            let due = Due {
                holder: self.ticks.is_multiple_of(HOLDER_TICKS),
                namespace: self.ticks.is_multiple_of(namespace_ticks),
            };
            look_at(member, association, due)
        };
        match looked {
            Ok(Look { round_trip, problem }) => {
                member.state.lock().round_trip = Some(round_trip);
                match problem {
                    None => {}
                    Some(Problem::Changed(reason)) => member.finish(End::Gone, &reason),
                    Some(Problem::NotOurs) => member.conflict(self.number),
                }
            }
            Err(error) => member.lose(self.number, &error.to_string()),
        }
    }

    /// The association is over.
    fn forget(&self) {
        drop(self.member.association.lock().take());
        self.member.state.lock().sockets.clear();
    }

    /// Says why the association is lost. False: the member has ended.
    fn explain(&self, reason: String) -> bool {
        let member = &self.member;
        match member.end() {
            End::Not if member.is_refused() => {
                match self.ask_holder() {
                    Some(by) => self.fence(&taken_by(&by)),
                    None => self.fence(&reason),
                }
                false
            }
            End::Not => {
                member.tell(RemoteEvent::Away { reason });
                true
            }
            End::Fenced | End::Gone => {
                member.tell(RemoteEvent::Ended { reason });
                false
            }
        }
    }

    /// F-I7. It is told before an operation fails of it.
    fn fence(&self, reason: &str) {
        self.member.tell(RemoteEvent::Fenced { reason: reason.to_owned() });
        self.member.finish(End::Fenced, reason);
    }

    fn ask_holder(&self) -> Option<Holder> {
        let mut association = Association::look(&self.member.address, &self.member.options).ok()?;
        let holder = association.other_holder().ok().flatten();
        association.close();
        holder
    }

    /// Connects again, as often as it takes. False: the member has ended, or the keeper is to stop.
    fn reconnect(&mut self, others_hold: &OthersHold) -> bool {
        let lost_at = Instant::now();
        let mut wait = RETRY_MIN;
        let mut own = OwnKeys::of(self.member.state.lock().key);
        loop {
            let queues = self.member.state.lock().ports.len() as u16;
            let attach = Attach { queues, ..Attach::default() };
            let changed = |namespace: &Namespace| changed(&self.member, namespace);
            let mut former = Former { own: &mut own, others_hold, changed: &changed };
            match Association::open(&self.member.address, &self.member.options, &attach, &mut former) {
                Ok(association) => return self.resume(association, lost_at),
                Err(error) if may_pass(&error) => {
                    self.member.state.lock().last_error = Some(error.to_string());
                }
                Err(error) => return self.cannot(&error),
            }
            if !self.pause(wait) {
                return false;
            }
            wait = (wait * 2).min(RETRY_MAX);
        }
    }

    /// F-I7: only another host's reservation fences; all else ends this member alone.
    fn cannot(&self, error: &AttachError) -> bool {
        let reason = match error {
            AttachError::Taken(holder) => {
                self.fence(&taken_by(holder));
                return false;
            }
            error => error.to_string(),
        };
        self.member.finish(End::Gone, &reason);
        self.member.tell(RemoteEvent::Ended { reason });
        false
    }

    /// Takes a new association up, if the member is still the same.
    fn resume(&mut self, association: Association, lost_at: Instant) -> bool {
        if self.has_lost_writes(&association) {
            let reason = LOST_WRITES.to_owned();
            // The reservation stays: it is this host's that takes the member back.
            self.member.state.lock().kept_keys = association.key.map(|key| OwnKeys::of(Some(key)));
            association.close();
            self.member.finish(End::Gone, &reason);
            self.member.tell(RemoteEvent::Ended { reason });
            return false;
        }
        let is_fenced = association.key.is_some();
        // A contribution is sent once, and what is late meets a retired op: nothing is to be outlasted (F-I3).
        let is_peer = self.member.options.is_peer;
        if !is_fenced && !is_peer && !self.quiesce(&association, lost_at) {
            return false;
        }
        self.machine = association.machine();
        let handles = association.handles();
        let (key, after) = (association.key, lost_at.elapsed());
        self.number += 1;
        {
            *self.member.association.lock() = Some(association);
            let mut state = self.member.state.lock();
            let State { sockets, reconnects, away_since, lost, .. } = &mut *state;
            *sockets = handles.unwrap_or_default();
            (*away_since, *lost) = (None, None);
            *reconnects += 1;
            state.key = key;
        }
        self.member.is_reserved.store(is_fenced, Ordering::SeqCst);
        self.member.up.store(self.number, Ordering::SeqCst);
        self.member.tell(RemoteEvent::Back { after });
        true
    }

    /// F-I17: whether writes that were answered may be gone.
    fn has_lost_writes(&self, association: &Association) -> bool {
        let machine = association.machine();
        let is_same_machine = machine.is_some() && machine == self.machine;
        self.member.has_unflushed() && !is_same_machine && !association.is_same_run
    }

    /// Without a reservation nothing ends the commands of the lost association: waits until none may run any more.
    fn quiesce(&self, association: &Association, lost_at: Instant) -> bool {
        let told = Duration::from_millis(association.controller.info.quiesce_ms.into());
        let limit = if told.is_zero() { QUIESCE } else { told };
        self.pause(limit.saturating_sub(lost_at.elapsed()))
    }

    /// Waits. False: the keeper is to stop.
    fn pause(&self, time: Duration) -> bool {
        let end = Instant::now() + time;
        let mut state = self.member.state.lock();
        while !state.stopping {
            if self.member.changed.wait_until(&mut state, end).timed_out() {
                return !state.stopping;
            }
        }
        false
    }

    fn wait_for_stop(&self) {
        while self.pause(Duration::from_secs(3600)) {}
    }

    /// Gives the member up.
    fn release(&self) {
        self.outlast_former_host();
        self.member.up.store(0, Ordering::SeqCst);
        let association = self.member.association.lock().take();
        if let Some(association) = association {
            association.release();
        }
    }

    /// A host that slept while the member was taken from it wakes up with writes on its way. The reservation refuses them, and
    /// after that only the end of that host's association ([`FORMER_KEEP_ALIVES`]).
    fn outlast_former_host(&self) {
        let RemoteOptions { host_half, keep_alive, .. } = &self.member.options;
        // What a process of this machine left is taken back only when that process has ended.
        let is_other = |former: &Holder| former.host.0[..8] != *host_half;
        let Some(former) = self.member.preempted.filter(is_other) else { return };
        let until = self.begun + FORMER_KEEP_ALIVES * (*keep_alive).max(KEEP_ALIVE);
        if Instant::now() < until {
            let seconds = until.saturating_duration_since(Instant::now()).as_secs() + 1;
            tracing::info!(
                member = self.member.info.name,
                "kept for {seconds} s more: {former}, from which it was taken, may not have noticed yet"
            );
        }
        while Instant::now() < until && !self.member.is_lost() {
            std::thread::sleep(TICK_MAX.min(until.saturating_duration_since(Instant::now())));
            let mut association = self.member.association.lock();
            let Some(association) = &mut *association else { return };
            if association.controller.keep_alive().is_err() {
                return;
            }
        }
    }
}

fn taken_by(holder: &Holder) -> String {
    format!("{holder} has taken the member over")
}

struct Look {
    round_trip: Duration,
    problem: Option<Problem>,
}

/// What is to be looked at, whether the target has told of a change or not.
#[derive(Clone, Copy)]
struct Due {
    holder: bool,
    namespace: bool,
}

enum Problem {
    Changed(String),
    NotOurs,
}

fn look_at(member: &RemoteMember, association: &mut Association, due: Due) -> Result<Look, AttachError> {
    let round_trip = association.controller.keep_alive()?;
    let heard = association.controller.heard()?.is_some();
    if due.namespace || heard {
        let namespace = association.controller.namespace(member.address.namespace)?;
        if let Some(reason) = changed(member, &namespace) {
            return Ok(Look { round_trip, problem: Some(Problem::Changed(reason)) });
        }
    }
    let asks = association.key.is_some() && (due.holder || heard);
    // Not held by this attach: fenced only if another host holds it.
    let is_anothers = asks && !association.still_holds()? && association.other_holder()?.is_some();
    Ok(Look { round_trip, problem: is_anothers.then_some(Problem::NotOurs) })
}

/// In what a namespace is not the one that was opened.
fn changed(member: &RemoteMember, now: &Namespace) -> Option<String> {
    let identity = Identity::of(now);
    if identity != member.identity {
        let (was, is) = (member.identity.words(), identity.words());
        return Some(format!(
            "another namespace has its place: it had {was}, now {is}; have the target serve the right one and re-add it, or replace it"
        ));
    }
    if now.info.block_log2 != member.shape.block_log2 {
        return Some("the size of its blocks has changed: replace it".into());
    }
    let bytes = now.info.blocks << now.info.block_log2;
    if bytes < member.info.size_bytes {
        let before = member.info.size_bytes;
        return Some(format!(
            "it has become smaller: {bytes} bytes, {before} before; have the target serve it as large as it was and re-add it, or replace it"
        ));
    }
    None
}
