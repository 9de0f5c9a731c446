//! The members of an array whose targets work together: a thread tells each target of the others, again whenever one was connected
//! anew, and asks which of them reach each other.
//!
//! One attach lasts as long as the array is served, so that the numbers of its ops only grow (F-I3), however often members
//! connect again. Each association has a key and with it a handle of its own; contributions to a former handle are refused, and
//! their ops settled.
//!
//! The same thread has all targets keep a ledger of one time (F-I14), and begin another whenever one of them lost its own.

use std::net::ToSocketAddrs;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use engine::fabric::epochs::Epochs;
use engine::fabric::host::{Attach, OPS_OPEN_MAX};
use engine::fabric::order::{PEERS_MAX, PeerIndex};
use engine::fabric::recording::{Recording, Said};
use engine::stripe::Shared as Stripes;
use nvme_tcp::discovery::{DiscoveryEntry, SubsystemType};
use nvme_tcp::vendor::{AttachMember, AttachRecord, LedgerAction, LedgerStep, Ticket};
use parking_lot::{Condvar, Mutex};

use super::association::Association;
use super::controller::ConnectError;
use super::member::Seat;
use super::open::Attached;
use super::options::random_key;
use super::peer::ORDER_BYTES_MAX;
use layout::units::DeviceOffset;

/// How often the group looks whether a member was connected anew, and which targets reach each other.
const LOOK: Duration = Duration::from_millis(500);
/// How often while targets have just heard of each other, and for how many looks: a rebuild of a new member is waiting for that.
const LOOK_EAGERLY: Duration = Duration::from_millis(25);
const EAGER_LOOKS: u32 = 80;

/// Memory of a member's target that a host can use: more than all ops that it has open at a time take there.
const CREDIT_WANTED_BYTES: u64 = 1 << 30;

const _: () = assert!(CREDIT_WANTED_BYTES > OPS_OPEN_MAX as u64 * 4 * ORDER_BYTES_MAX);

/// A reduction that waits longer at its target ends without effect. Two such waits, one after the other, are shorter than the
/// time that a member has to answer: else a target that waits for a silent one would fail with it.
fn op_limit(member_limit: Duration) -> Duration {
    member_limit * 2 / 5
}

/// The members of an array whose targets work together. The last handle ends its thread.
pub struct PeerGroup {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    attach: Arc<Attach>,
    array: [u8; 16],
    stripes: Arc<Stripes>,
    /// None: what is under way is not recorded.
    epochs: Option<Arc<Epochs>>,
    members: Mutex<Vec<Member>>,
    changed: Condvar,
    stopping: AtomicBool,
}

/// A member, by its index.
struct Member {
    attached: Weak<Attached>,
    data_offset: DeviceOffset,
    /// Its association, and what its target calls the attach.
    handle: Option<(u64, u32)>,
    /// The list of members that its target knows.
    known_list: u64,
    /// The ledger that its target keeps, as it said last.
    ledger: u64,
}

impl PeerGroup {
    /// A group of the array with this UUID, whose shards share `stripes`. Before its first write.
    ///
    /// # Errors
    /// No thread can be started.
    pub fn new(array: [u8; 16], stripes: Arc<Stripes>) -> std::io::Result<Self> {
        let has_parity = stripes.geometry.parity_chunks() > 0;
        let shared = Arc::new(Shared {
            attach: Arc::new(Attach::new(random_key())),
            array,
            epochs: has_parity.then(|| Arc::clone(stripes.consistency.keep_epochs())),
            stripes,
            members: Mutex::default(),
            changed: Condvar::new(),
            stopping: AtomicBool::new(false),
        });
        let own = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("twill-peers".into()).spawn(move || own.run())?;
        Ok(PeerGroup { shared, thread: Some(thread) })
    }

    /// A member is in use, with its data area from `data_offset` on. One beyond the most that a group has stays host-centric.
    pub fn join(&self, member: &Arc<Attached>, data_offset: DeviceOffset) {
        let mut members = self.shared.members.lock();
        if members.iter().any(|one| Weak::ptr_eq(&one.attached, &Arc::downgrade(member))) {
            return;
        }
        let attached = Arc::downgrade(member);
        let new = Member { attached, data_offset, handle: None, known_list: 0, ledger: 0 };
        let gone = members.iter().position(Member::is_gone);
        let index = match gone {
            Some(index) => {
                members[index] = new;
                index
            }
            None if members.len() < PEERS_MAX => {
                members.push(new);
                members.len() - 1
            }
            None => return,
        };
        let seat = Seat {
            attach: Arc::clone(&self.shared.attach),
            epochs: self.shared.epochs.clone(),
            index: PeerIndex::try_from(index).expect("at most 32"),
            ready: AtomicU64::new(0),
            key: AtomicU64::new(0),
            unreached: AtomicU32::new(0),
        };
        // A member that another array of this process had before keeps that seat, and is host-centric here.
        let _first = member.seat.set(seat);
        self.shared.changed.notify_all();
    }
}

impl Drop for PeerGroup {
    fn drop(&mut self) {
        self.shared.stopping.store(true, Ordering::SeqCst);
        self.shared.changed.notify_all();
        if let Some(thread) = self.thread.take() {
            let _ended = thread.join();
        }
    }
}

impl Shared {
    fn run(&self) {
        let (mut list, mut last_said, mut eager_looks) = (1, String::new(), 0);
        let mut recording = Recording::default();
        while !self.stopping.load(Ordering::SeqCst) {
            let list_before = list;
            // Also while one cannot be attached: what is recorded is not complete any more.
            let looked = self.look(&mut list);
            let recorded = self.record_changes(&mut recording);
            let said = match (looked, recorded) {
                (Err(error), _) => {
                    format!("targets cannot be attached to each other, parity is made at this host: {error}")
                }
                (Ok(()), Err(error)) => {
                    format!(
                        "targets record nothing for the next host, which would resync what the bitmap marks: {error}"
                    )
                }
                (Ok(()), Ok(())) => String::new(),
            };
            if !said.is_empty() && said != last_said {
                tracing::warn!("{said}");
            }
            last_said = said;
            let mut members = self.members.lock();
            if !self.stopping.load(Ordering::SeqCst) {
                let all_reach = members.iter().filter_map(|one| one.attached.upgrade()).all(|attached| {
                    attached.seat.get().is_none_or(|seat| seat.unreached.load(Ordering::Relaxed) == 0)
                });
                eager_looks = match (list == list_before, all_reach) {
                    (false, _) => EAGER_LOOKS,
                    (true, true) => 0,
                    (true, false) => eager_looks.saturating_sub(1),
                };
                let is_eager = eager_looks > 0 || recording.is_on_its_way();
                let pause = if is_eager { LOOK_EAGERLY } else { LOOK };
                self.changed.wait_for(&mut members, pause);
            }
        }
        self.stripes.peers.set_up(false);
        if let Some(epochs) = &self.epochs {
            epochs.set_recorded(false);
        }
    }

    /// Attaches members that connected again, sends each target the list of members, and asks which of them it reaches.
    fn look(&self, list: &mut u64) -> Result<(), ConnectError> {
        let mut failed = Ok(());
        let count = self.members.lock().len();
        for index in 0..count {
            let (attached, handle) = {
                let members = self.members.lock();
                (members[index].attached.upgrade(), members[index].handle)
            };
            let up = attached.as_ref().map_or(0, |attached| attached.up.load(Ordering::SeqCst));
            if handle.map_or(0, |(association, _)| association) == up {
                continue;
            }
            let new = match attached {
                Some(attached) if up != 0 => {
                    let attach = |own: &mut Association, key| {
                        let record = self.record(&attached, own, key, 0, Vec::new());
                        own.attach_fabric(&record)
                    };
                    let handle = with_association(&attached, attach);
                    handle.transpose().unwrap_or_else(|error| {
                        failed = Err(error);
                        None
                    })
                }
                _ => None,
            };
            let mut members = self.members.lock();
            members[index].handle = new.map(|handle| (up, handle));
            *list += 1;
        }
        failed.and(self.tell(*list)).and(self.ask())
    }

    fn record(
        &self,
        to: &Attached,
        own: &Association,
        key: u64,
        index: u8,
        members: Vec<AttachMember>,
    ) -> AttachRecord {
        let limit = op_limit(to.options.time_limit).as_millis();
        let op_limit_ms = u32::try_from(limit).unwrap_or(u32::MAX);
        let credit_bytes = if own.counts_credit() { CREDIT_WANTED_BYTES } else { 0 };
        AttachRecord { index, key, array: self.array, op_limit_ms, credit_bytes, members }
    }

    /// Each target knows the others.
    fn tell(&self, list: u64) -> Result<(), ConnectError> {
        let members: Vec<_> = {
            let members = self.members.lock();
            members
                .iter()
                .map(|one| (one.attached.upgrade(), one.data_offset, one.handle, one.known_list))
                .collect()
        };
        let mut any = false;
        for (index, (attached, data_offset, handle, known_list)) in members.iter().enumerate() {
            let (Some(attached), Some((association, _))) = (attached, handle) else { continue };
            if *known_list != list {
                let of = |(other, offset, handle, _): &(Option<Arc<Attached>>, DeviceOffset, _, _)| {
                    let shift = offset.get().cast_signed() - data_offset.get().cast_signed();
                    entry(other.as_deref().unwrap_or(attached), *handle, shift)
                };
                let entries: Option<Vec<AttachMember>> = members.iter().map(of).collect();
                let Some(entries) = entries else { continue };
                let index = u8::try_from(index).expect("at most 32");
                let attach = |own: &mut Association, key| {
                    let record = self.record(attached, own, key, index, entries.clone());
                    Ok((own.attach_fabric(&record)?, key))
                };
                let Some(answer) = with_association(attached, attach) else { continue };
                let (_, key) = answer?;
                self.members.lock()[usize::from(index)].known_list = list;
                if let Some(seat) = attached.seat.get() {
                    // Until it was asked: it may have been started anew, with less.
                    if seat.ready.load(Ordering::SeqCst) != *association {
                        self.attach.set_given(index, 0);
                    }
                    // Until it was asked.
                    seat.unreached.store(members.len() as u32 - 1, Ordering::Relaxed);
                    // Not ready in between: the key of one association must not be taken for another's.
                    seat.ready.store(0, Ordering::SeqCst);
                    seat.key.store(key, Ordering::SeqCst);
                    seat.ready.store(*association, Ordering::SeqCst);
                }
            }
            any = true;
        }
        self.stripes.peers.set_up(any);
        Ok(())
    }

    fn ask(&self) -> Result<(), ConnectError> {
        let members: Vec<_> = {
            let members = self.members.lock();
            members.iter().map(|one| one.handle.and(one.attached.upgrade())).collect()
        };
        let present =
            (0..members.len()).filter(|at| members[*at].is_some()).fold(0u32, |set, at| set | 1 << at);
        for (index, attached) in members.iter().enumerate() {
            let report = match attached {
                Some(attached) => with_association(attached, |own, _| own.fabric_report()).transpose()?,
                None => None,
            };
            let reached = report.map_or(0, |report| report.reached);
            self.members.lock()[index].ledger = report.map_or(0, |report| report.ledger);
            let peer = PeerIndex::try_from(index).expect("at most 32");
            self.attach.set_reaches(peer, reached);
            self.attach.set_given(peer, report.map_or(0, |report| report.credit_bytes));
            if let Some(seat) = attached.as_ref().and_then(|attached| attached.seat.get()) {
                seat.unreached.store((present & !reached & !(1 << index)).count_ones(), Ordering::Relaxed);
            }
        }
        Ok(())
    }
}

/// Ledgers.
impl Shared {
    /// Takes the next step towards ledgers that are complete at all members' targets.
    fn record_changes(&self, recording: &mut Recording) -> Result<(), ConnectError> {
        let Some(epochs) = &self.epochs else { return Ok(()) };
        let said = match recording.id() {
            Some(id) if self.members.lock().iter().any(|one| !one.is_gone() && one.ledger != id) => {
                Said::NotAll
            }
            _ => Said::All,
        };
        let any_suspect = || self.stripes.consistency.suspects() > 0;
        let next = recording.next(said, self.may_record(), epochs, any_suspect, random_key);
        let before = std::mem::replace(recording, next);
        epochs.set_recorded(matches!(next, Recording::Complete { .. }));
        if next == before {
            return Ok(());
        }
        let done = match next {
            Recording::Beginning { id } => self.ledger_steps(LedgerAction::Begin, id),
            Recording::Completing { id } => self.ledger_steps(LedgerAction::Complete, id),
            Recording::Off | Recording::Waiting { .. } | Recording::Complete { .. } => Ok(()),
        };
        // Another one, or the same again: members that have it already stay so until then.
        done.inspect_err(|_| *recording = Recording::Off)
    }

    /// All members of the array's slots are attached, each with the epochs of this array, and nothing else than writes under way
    /// may disagree.
    fn may_record(&self) -> bool {
        let members = self.members.lock();
        let is_ready = |one: &Member| {
            let seated = one.attached.upgrade().is_some_and(|attached| {
                attached.seat.get().is_some_and(|seat| Arc::ptr_eq(&seat.attach, &self.attach))
            });
            seated && one.handle.is_some()
        };
        let here = || members.iter().filter(|one| !one.is_gone());
        let is_all = here().count() >= self.stripes.geometry.members() as usize;
        is_all && here().all(is_ready) && self.stripes.may_be_recorded()
    }

    fn ledger_steps(&self, action: LedgerAction, id: u64) -> Result<(), ConnectError> {
        let members: Vec<_> =
            self.members.lock().iter().map(|one| (one.attached.upgrade(), one.data_offset)).collect();
        for (attached, data_offset) in members {
            let Some(attached) = attached else { continue };
            let log2 = attached.shape.block_log2;
            let end = data_offset.get() + self.stripes.geometry.member_bytes();
            let area = data_offset.get() >> log2..end.div_ceil(1 << log2);
            let step = |key| LedgerStep { action, id, key, area: area.clone() };
            with_association(&attached, |own, key| own.ledger_step(&step(key))).transpose()?;
        }
        Ok(())
    }
}

impl Member {
    /// The array uses it no longer.
    fn is_gone(&self) -> bool {
        self.attached.strong_count() == 0
    }
}

/// The entry for a member in the list sent to a target. None while its address cannot be resolved.
fn entry(member: &Attached, handle: Option<(u64, u32)>, shift_bytes: i64) -> Option<AttachMember> {
    let portal = &member.address.portal;
    let address = (portal.host.as_str(), portal.port).to_socket_addrs().ok()?.next()?.ip();
    let place = DiscoveryEntry {
        subsystem_type: SubsystemType::Nvm,
        port: 1,
        nqn: member.address.nqn.clone(),
        address,
        service: portal.port,
        tls: false,
    };
    Some(AttachMember {
        nsid: member.address.namespace,
        handle: handle.map_or(0, |(_, handle)| handle),
        ticket: Ticket([0; 16]),
        boot_id: 0,
        shift_blocks: shift_bytes >> member.shape.block_log2,
        flags: 0,
        place,
    })
}

/// Asks the target of a member, if that takes orders.
fn with_association<T>(
    member: &Attached,
    work: impl FnOnce(&mut Association, u64) -> Result<T, ConnectError>,
) -> Option<Result<T, ConnectError>> {
    let mut association = member.association.lock();
    let own = association.as_mut().filter(|own| own.takes_orders())?;
    let key = own.key?;
    Some(work(own, key))
}
