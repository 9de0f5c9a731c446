//! Runs the plan of a stripe write at the members' targets: each gets an order, and they make the parity among themselves
//! ([`crate::fabric`]). The host decides what the answers mean, and makes again what was left half done.
//!
//! The stripe has its owner until all of that has ended (F-I5).

use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;

use smallvec::SmallVec;

use super::engine::Owned;
use super::fetch::{extract_all, fetch_wanted};
use super::runner::{Method, Verdict, judge, plan_write, survived};
use super::update::update;
use crate::buffer::{Gather, Slice};
use crate::code::chunk_set::{Chunk, ChunkSet, P};
use crate::code::image::{Held, Image};
use crate::code::parity_step::{NewParity, encode_all};
use crate::code::rows::{Fragment, Rows};
use crate::code::union::Union;
use crate::device::{Answered, Answering, Device, DeviceError, DeviceErrorKind, NoAnswer, PeerMember};
use crate::error::VolumeError;
use crate::executor::join_all;
use crate::fabric::choose::{StepParts, split};
use crate::fabric::host::{Attach, Final, Mend, OpenOp, Part, mend};
use crate::fabric::order::{
    Answer, Base, Destination, Ending, How, Order, PeerIndex, Role, Settle, Sink, Stamp,
};
use crate::members::Attached;
use crate::members::port::{MemberError, MemberWrite};
use crate::stages::{Stage, Watch};
use layout::units::{DeviceOffset, Slot};

/// Updates a stripe with the union of its writes, as far as its members' targets can. None: they cannot, and nothing was done.
pub(super) async fn update_by_peers<D: Device>(
    owned: Owned<'_, D>,
    union: &Union,
    fua: bool,
    watch: impl Watch,
) -> Option<Result<(), VolumeError>> {
    let shared = owned.shared();
    // Degraded writes need their contents at the host, for the redo log; parity in doubt is made from all data there.
    if !shared.members.plain() || !shared.consistency.is_plain(owned.stripe()) {
        return None;
    }
    let plan = plan_write(owned, Method::Best, union, &Image::default()).ok()?;
    let (steps, by_host) = split(&plan, owned.shape(), owned.missing());
    let (attach, steps) = prepare(owned, union, &steps)?;
    let result = async {
        // F-I13: from here on the cached parity of the stripe is stale.
        owned.forget_parity();
        for rows in by_host {
            update(owned, &union.within(rows), Image::default(), fua, watch).await?;
            owned.forget_parity();
        }
        watch.enter(Stage::Write);
        run(owned, &attach, steps, union, fua, watch).await
    };
    Some(result.await)
}

/// Reads rows of a chunk that is lost, which comes whole from one of the other members' targets: each of those sends its part there
/// (dRAID 6.1). None: they cannot, or did not, and the host does it.
pub(super) async fn read_by_peers<D: Device>(owned: Owned<'_, D>, lost: &Fragment) -> Option<Slice> {
    let shared = owned.shared();
    let is_only_one = owned.missing() == ChunkSet::one(lost.chunk) && owned.lost() == owned.missing();
    if !is_only_one || !shared.consistency.is_plain(owned.stripe()) {
        return None;
    }
    let helpers = owned.data().without(owned.missing()).or(ChunkSet::one(P));
    // A target does not know which of its places the bad-block log lists.
    let is_bad = |chunk| owned.port().is_bad(&owned.read_of(&Fragment { chunk, rows: lost.rows }));
    if helpers.iter().any(is_bad) {
        return None;
    }
    let contributions = u8::try_from(helpers.len() - 1).ok()?;
    // Every helper has its turn.
    let turn = (owned.stripe().get() % u64::from(helpers.len())) as usize;
    let chosen = helpers.iter().nth(turn).expect("one of them");
    let (bytes, mut attach) = (lost.rows.bytes() as u64, None);
    let reducer = place_of(owned, &mut attach, chosen, bytes)?;
    // P is the sum of all data, so that each part counts once.
    let to = Destination { peer: reducer.index, coefficient: 1 };
    let rows = reducer.range(owned, lost.rows);
    let reduce = Role::Reduce { base: Base::Own(1), rows, contributions, sink: Sink::Host };
    let mut participants = SmallVec::<[Participant<D>; 4]>::new();
    participants.push(reducer.takes(reduce, Gather::new()));
    for chunk in helpers.without(ChunkSet::one(chosen)).iter() {
        let place = place_of(owned, &mut attach, chunk, bytes)?;
        let rows = place.range(owned, lost.rows);
        let to = SmallVec::from_slice(&[to]);
        let role = Role::Contribute { how: How::Old, own: rows.start..rows.start, rows, to };
        participants.push(place.takes(role, Gather::new()));
    }
    let attach = attach?;
    if !participants.iter().all(|one| attach.reaches(one.place.index, to.peer)) {
        return None;
    }
    let op = attach.begin()?;
    let mut step = Prepared { rows: lost.rows, base: Base::Own(1), participants, is_partial: false };
    let requests = first_round(&step, op.stamp(), false);
    let data = carry_out(owned, &mut step, requests, op.stamp()).await.ok()?;
    let read = step.participants[0].last.answer()?;
    let [whole] = data.slices() else { return None };
    let is_good =
        read.ending == Ending::Done && whole.len() as u64 == bytes && owned.missing().contains(lost.chunk);
    is_good.then(|| whole.clone())
}

/// Where a chunk is, at a member whose target takes orders.
struct ChunkPlace<D> {
    chunk: Chunk,
    slot: Slot,
    member: Rc<Attached<D>>,
    index: PeerIndex,
}

/// Where a chunk is. None: its target takes no orders of this attach, or none as large.
fn place_of<D: Device>(
    owned: Owned<'_, D>,
    attach: &mut Option<Arc<Attach>>,
    chunk: Chunk,
    bytes: u64,
) -> Option<ChunkPlace<D>> {
    let slot = owned.slot_of(chunk);
    let member = owned.port().devices.attached(slot)?;
    let place = member.device.peer()?.place()?;
    let is_same = Arc::ptr_eq(attach.get_or_insert_with(|| Arc::clone(&place.attach)), &place.attach);
    let index = place.index;
    (is_same && bytes <= place.order_bytes_max).then_some(ChunkPlace { chunk, slot, member, index })
}

impl<D: Device> ChunkPlace<D> {
    /// Rows of the chunk on its device.
    fn range(&self, owned: Owned<'_, D>, rows: Rows) -> std::ops::Range<u64> {
        let bytes = owned.bytes_of(&Fragment { chunk: self.chunk, rows });
        self.member.on_device(bytes.start).get()..self.member.on_device(bytes.end).get()
    }

    fn takes(self, role: Role, data: Gather) -> Participant<D> {
        let last = Final::Answered(Answer::nothing(Ending::NeverSeen));
        Participant { place: self, role, data, last, keeps: None }
    }
}

/// A target's part in a step, and what it came to so far.
struct Participant<D> {
    place: ChunkPlace<D>,
    role: Role,
    data: Gather,
    last: Final,
    /// The op whose difference it keeps.
    keeps: Option<Stamp>,
}

impl<D: Device> Participant<D> {
    fn peer(&self) -> &dyn PeerMember {
        self.place.member.device.peer().expect("it was asked when the step was prepared")
    }

    fn writes(&self) -> bool {
        self.part() == Part::Contribute { writes: true }
    }

    fn part(&self) -> Part {
        match &self.role {
            Role::Contribute { own, .. } => Part::Contribute { writes: !own.is_empty() },
            Role::Reduce { .. } => Part::Reduce,
        }
    }
}

/// What the targets do in some rows.
struct Prepared<D> {
    rows: Rows,
    base: Base,
    participants: SmallVec<[Participant<D>; 4]>,
    /// Writes were left out, since their members failed or cannot read what is to be replaced: they are made when the others are.
    is_partial: bool,
}

type Steps<D> = SmallVec<[Prepared<D>; 1]>;

/// The orders of all steps; none, if one of them is for a target that cannot take it.
fn prepare<D: Device>(
    owned: Owned<'_, D>,
    union: &Union,
    steps: &[StepParts],
) -> Option<(Arc<Attach>, Steps<D>)> {
    let mut attach = None;
    let mut prepared = Steps::new();
    let mut pairs = SmallVec::<[(PeerIndex, PeerIndex); 8]>::new();
    for step in steps {
        let bytes = step.rows.bytes() as u64;
        let mut participants = SmallVec::new();
        let mut reducers = SmallVec::<[(Chunk, PeerIndex); 2]>::new();
        for &chunk in &step.parity {
            let place = place_of(owned, &mut attach, chunk, bytes)?;
            let rows = place.range(owned, step.rows);
            let contributions = u8::try_from(step.parts.len()).ok()?;
            let role = Role::Reduce { base: step.base, rows, contributions, sink: Sink::Drive };
            reducers.push((chunk, place.index));
            participants.push(place.takes(role, Gather::new()));
        }
        for part in &step.parts {
            let place = place_of(owned, &mut attach, part.chunk, bytes)?;
            pairs.extend(reducers.iter().map(|(_, reducer)| (place.index, *reducer)));
            let rows = place.range(owned, step.rows);
            let own = if part.is_written { rows.clone() } else { rows.start..rows.start };
            let to = reducers.iter().map(|&(parity, peer)| Destination {
                peer,
                coefficient: coefficient(owned, part.chunk, parity),
            });
            let role = Role::Contribute { how: part.how, own, rows, to: to.collect() };
            let data = if part.how == How::Old { Gather::new() } else { union.gather(part.chunk, step.rows) };
            participants.push(place.takes(role, data));
        }
        prepared.push(Prepared { rows: step.rows, base: step.base, participants, is_partial: false });
    }
    let attach = attach?;
    pairs.iter().all(|&(from, to)| attach.reaches(from, to)).then_some((attach, prepared))
}

/// What a data chunk is multiplied by in a parity chunk.
fn coefficient<D: Device>(owned: Owned<'_, D>, chunk: Chunk, parity: Chunk) -> u8 {
    match parity {
        P => 1,
        _ => parity::coefficient(owned.geometry().syndrome_index(owned.stripe(), u32::from(chunk)) as usize),
    }
}

/// Has every step carried out, side by side, and mends what was not.
async fn run<D: Device>(
    owned: Owned<'_, D>,
    attach: &Arc<Attach>,
    mut steps: Steps<D>,
    union: &Union,
    fua: bool,
    watch: impl Watch,
) -> Result<(), VolumeError> {
    let ends = join_all(steps.iter_mut().map(|step| Box::pin(run_step(owned, attach, step, fua)))).await;
    let is_half_done =
        |(_, end): &(_, Result<Mend, VolumeError>)| !matches!(end, Ok(Mend::Nothing | Mend::Again));
    let any_half_done = ends.iter().any(is_half_done);
    // Before any step is mended: mending one may wait for the redo log to come into force, which must not cover for another that is
    // half done. Nothing is reconstructed of a suspect stripe's parity, neither what a member cannot read.
    if any_half_done {
        owned.suspect("the targets of its members made a part of a write, and not the rest");
    }
    // F-I3: ops are open until what they left is mended; only then may their numbers be retired.
    let mut result = Ok(());
    for (step, (_ops, end)) in steps.iter().zip(&ends) {
        let mended = match end {
            Ok(how) => mend_by_host(owned, *how, step, fua).await,
            Err(error) => Err(error.clone()),
        };
        result = result.and(mended.inspect_err(|error| owned.suspect(&error.to_string())));
    }
    result?;
    // Parity agrees in the rows of every step, and not before.
    if any_half_done {
        owned.trust();
    }
    for (step, (_ops, end)) in steps.iter().zip(&ends) {
        if step.is_partial || matches!(end, Ok(Mend::Again)) {
            owned.port().counters().mended_steps.add(1);
            update(owned, &union.within(step.rows), Image::default(), fua, watch).await?;
        }
    }
    survived(owned)
}

/// Makes data and parity of a step agree, where the targets left it half done.
async fn mend_by_host<D: Device>(
    owned: Owned<'_, D>,
    how: Mend,
    step: &Prepared<D>,
    fua: bool,
) -> Result<(), VolumeError> {
    match how {
        Mend::Nothing | Mend::Again => return Ok(()),
        Mend::Data => write_rest(owned, step, fua).await?,
        Mend::Resend | Mend::Reconstruct => make_from_all_data(owned, step, fua).await?,
    }
    owned.port().counters().mended_steps.add(1);
    Ok(())
}

/// Writes the data that is not written, as it is.
async fn write_rest<D: Device>(
    owned: Owned<'_, D>,
    step: &Prepared<D>,
    fua: bool,
) -> Result<(), VolumeError> {
    let missing = owned.missing();
    let is_to_write = |one: &&Participant<D>| {
        let is_written = one.last.answer().is_some_and(|answer| answer.outcome.written);
        one.writes() && !is_written && !missing.contains(one.place.chunk)
    };
    let writes: SmallVec<[MemberWrite; 4]> = step
        .participants
        .iter()
        .filter(is_to_write)
        .map(|one| owned.write_of(one.place.chunk, step.rows.start, one.data.clone()))
        .collect();
    let results = owned.port().write(&writes, fua).await;
    judge(owned, step.rows, Verdict::of(results), std::iter::empty()).await
}

/// Writes what a step was to write, and makes the parity that has not its contributions.
async fn make_from_all_data<D: Device>(
    owned: Owned<'_, D>,
    step: &Prepared<D>,
    fua: bool,
) -> Result<(), VolumeError> {
    let is_applied = |one: &&Participant<D>| one.last.answer().is_some_and(|answer| answer.outcome.applied);
    let reducers = step.participants.iter().filter(|one| one.part() == Part::Reduce);
    let applied: ChunkSet = reducers.filter(is_applied).map(|one| one.place.chunk).collect();
    // Before anything is written: what cannot be had now leaves the stripe as it is.
    let data = contents_to_be(owned, step, applied).await?;
    write_rest(owned, step, fua).await?;
    let contents = |chunk: Chunk| data[usize::from(chunk)].bytes();
    let (geometry, stripe, rows) = (owned.geometry(), owned.stripe(), step.rows);
    let made = encode_all(geometry, stripe, rows, owned.missing().or(applied), contents, owned.pool());
    let write = |new: &NewParity| {
        let (chunk, start, slice) = new.parts();
        owned.write_of(chunk, start, Gather::from(slice.clone()))
    };
    let writes: SmallVec<[MemberWrite; 2]> = made.iter().map(write).collect();
    let results = owned.port().write(&writes, fua).await;
    judge(owned, rows, Verdict::of(results), std::iter::empty()).await
}

/// What all data chunks of a step hold when it is done. What is to be written is here, whatever its member holds; what cannot be
/// read comes of `applied`, the parity that has the step's contributions.
async fn contents_to_be<D: Device>(
    owned: Owned<'_, D>,
    step: &Prepared<D>,
    applied: ChunkSet,
) -> Result<SmallVec<[Slice; 4]>, VolumeError> {
    let (rows, mut image) = (step.rows, Image::default());
    for one in step.participants.iter().filter(|one| one.writes()) {
        image
            .insert(Fragment { chunk: one.place.chunk, rows }, Held::Shared(one.data.to_slice(owned.pool())));
    }
    let data: SmallVec<[Fragment; 16]> = owned.data().iter().map(|chunk| Fragment { chunk, rows }).collect();
    let mut unusable: ChunkSet = owned.parity_chunks().collect();
    unusable = unusable.without(applied);
    loop {
        let is_held = |chunk: &Chunk| image.get(*chunk, rows).is_some();
        let held: ChunkSet = owned.data().iter().filter(is_held).collect();
        let missing = owned.missing().or(unusable).without(held);
        match fetch_wanted(owned, missing, &data, &mut image).await {
            Ok(true) => return Ok(extract_all(owned, missing, &data, &mut image)),
            Ok(false) => {}
            Err(VolumeError::Unreadable { member, .. }) if !missing.contains(owned.chunk_on(member)) => {
                unusable.insert(owned.chunk_on(member));
            }
            Err(error) => return Err(error),
        }
    }
}

/// Most times that a step is sent again: connections that are lost as often are no good.
const ROUNDS_MAX: usize = 8;

/// Sends the orders of a step, and waits until every participant is final; sends again what may be. The ops, and what is left to
/// be done.
async fn run_step<D: Device>(
    owned: Owned<'_, D>,
    attach: &Arc<Attach>,
    step: &mut Prepared<D>,
    fua: bool,
) -> (SmallVec<[OpenOp; 1]>, Result<Mend, VolumeError>) {
    let mut ops = SmallVec::new();
    let counters = owned.port().counters();
    for round in 0..ROUNDS_MAX {
        // None: too many ops wait for members.
        let Some(op) = attach.begin() else { break };
        let stamp = op.stamp();
        ops.push(op);
        if round == 0 {
            counters.peer_steps.add(1);
            if step.base == Base::Old { counters.rmw.add(1) } else { counters.rcw.add(1) }
        } else {
            counters.resent_steps.add(1);
        }
        let requests =
            if round == 0 { first_round(step, stamp, fua) } else { resend_round(step, stamp, fua) };
        if let Err(error) = carry_out(owned, step, requests, stamp).await {
            return (ops, Err(error));
        }
        let finals: SmallVec<[(Part, Final); 4]> =
            step.participants.iter().map(|one| (one.part(), one.last)).collect();
        match mend(step.base, &finals) {
            // With all data there is another way.
            Mend::Resend if owned.lost().is_empty() && !all_reach(attach, step) => {
                return (ops, Ok(Mend::Reconstruct));
            }
            Mend::Resend => {}
            how => return (ops, Ok(how)),
        }
    }
    let how = if ops.is_empty() { Mend::Again } else { Mend::Reconstruct };
    (ops, Ok(how))
}

/// Whether every contributor of a step reaches the reducers that want its part.
fn all_reach<D: Device>(attach: &Attach, step: &Prepared<D>) -> bool {
    let wanting = || {
        step.participants.iter().filter(|one| one.part() == Part::Reduce && one.last.takes_contributions())
    };
    let contributors = step.participants.iter().filter(|one| one.part() != Part::Reduce);
    contributors
        .flat_map(|one| wanting().map(|to| (one.place.index, to.place.index)))
        .all(|(from, to)| attach.reaches(from, to))
}

/// Something that is asked of a participant.
struct Request {
    /// Which participant.
    at: usize,
    asked: Asked,
    waiting: Waiting,
}

/// What was asked of a participant.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Asked {
    /// Its order: the answer is what it came to.
    Order,
    /// To send what it keeps to this reducer again.
    Resend(PeerIndex),
}

type Requests = SmallVec<[Request; 4]>;

fn first_round<D: Device>(step: &Prepared<D>, stamp: Stamp, fua: bool) -> Requests {
    let all = step.participants.iter().enumerate();
    all.map(|(at, one)| ordered(at, one, one.role.clone(), stamp, fua)).collect()
}

fn ordered<D: Device>(at: usize, one: &Participant<D>, role: Role, stamp: Stamp, fua: bool) -> Request {
    let order = Order { stamp, role, fua };
    Request { at, asked: Asked::Order, waiting: Waiting::Order(one.peer().order(order, one.data.clone())) }
}

/// The reducers that can still take the op's contributions get what is kept of it, and parts that never began are ordered again. A
/// write whose member failed, or cannot read what it replaces, is left out.
fn resend_round<D: Device>(step: &mut Prepared<D>, stamp: Stamp, fua: bool) -> Requests {
    let count = step.participants.len();
    step.participants.retain(|one| !(one.writes() && one.last.is_left_out()));
    let left_out = count - step.participants.len();
    step.is_partial |= left_out > 0;
    for one in &mut step.participants {
        if let Role::Reduce { contributions, .. } = &mut one.role {
            *contributions -= u8::try_from(left_out).expect("it counted them");
        }
    }
    let step = &*step;
    let is_wanting = |one: &Participant<D>| one.part() == Part::Reduce && one.last.takes_contributions();
    let wanting: SmallVec<[PeerIndex; 2]> =
        step.participants.iter().filter(|one| is_wanting(one)).map(|one| one.place.index).collect();
    let mut requests = Requests::new();
    for (at, one) in step.participants.iter().enumerate() {
        match (&one.role, one.keeps) {
            (Role::Reduce { .. }, _) if is_wanting(one) => {
                requests.push(ordered(at, one, one.role.clone(), stamp, fua));
            }
            (Role::Reduce { .. }, _) => {}
            (Role::Contribute { .. }, Some(kept)) => {
                for &to in &wanting {
                    let kept = Stamp { lowest: stamp.lowest, ..kept };
                    let resent = one.peer().settle(kept, Settle::Resend { to, under: stamp.op });
                    let asked = Asked::Resend(to);
                    requests.push(Request { at, asked, waiting: Waiting::Question(resent) });
                }
            }
            (Role::Contribute { how, own, rows, to }, None) => {
                let to = to.iter().copied().filter(|to| wanting.contains(&to.peer)).collect();
                let role = Role::Contribute { how: *how, own: own.clone(), rows: rows.clone(), to };
                requests.push(ordered(at, one, role, stamp, fua));
            }
        }
    }
    requests
}

/// Waits for the answers of a round, and enters what the participants came to. What came for the host.
async fn carry_out<D: Device>(
    owned: Owned<'_, D>,
    step: &mut Prepared<D>,
    mut requests: Requests,
    stamp: Stamp,
) -> Result<Gather, VolumeError> {
    let data = wait(owned, step, &mut requests, stamp).await;
    for Request { at, asked, waiting } in requests {
        let one = match waiting {
            Waiting::Final(one) => one,
            Waiting::Needed(error) => return Err(error),
            Waiting::Order(_) | Waiting::Question(_) => unreachable!("all were waited for"),
        };
        let participant = &mut step.participants[at];
        match one {
            // The target has tried twice.
            Final::Answered(Answer { ending: ending @ (Ending::WriteFailed | Ending::NoSpace), .. }) => {
                let is_full = ending == Ending::NoSpace;
                let error = DeviceError {
                    kind: if is_full { DeviceErrorKind::NoSpace } else { DeviceErrorKind::Io },
                    operation: "write",
                    offset: DeviceOffset::new(start_of(&participant.role)),
                    bytes: step.rows.bytes() as u64,
                    errno: 0,
                };
                participant.last = match owned.port().give_up(participant.place.slot, &error) {
                    MemberError::Request(error) => return Err(error),
                    MemberError::Gone | MemberError::Unreadable => Final::Failed,
                };
            }
            Final::Answered(answer) if asked == Asked::Order => {
                participant.last = one;
                if answer.outcome.retained {
                    participant.keeps = Some(stamp);
                }
            }
            Final::Answered(_) => {}
            Final::Failed | Final::Forgot => participant.last = one,
        }
    }
    Ok(data)
}

fn start_of(role: &Role) -> u64 {
    match role {
        Role::Contribute { rows, .. } | Role::Reduce { rows, .. } => rows.start,
    }
}

/// What is known of a request.
enum Waiting {
    Order(Answering),
    Question(Answering),
    Final(Final),
    /// Its member cannot be asked, and the array cannot do without it.
    Needed(VolumeError),
}

impl Waiting {
    /// Nothing of it says that anything went wrong.
    fn is_good(&self) -> bool {
        match self {
            Waiting::Order(_) | Waiting::Question(_) => true,
            Waiting::Final(Final::Answered(answer)) => answer.ending == Ending::Done,
            Waiting::Final(_) | Waiting::Needed(_) => false,
        }
    }
}

/// Whose orders will not be carried out.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
struct Trouble {
    everyone: bool,
    /// As a set of indices.
    reducers: u32,
}

impl Trouble {
    fn concerns<D>(self, one: &Participant<D>) -> bool {
        self.everyone || self.reducers >> one.place.index & 1 == 1
    }

    /// A contribution that did not reach one reducer is no trouble to the other: what is kept of it may be sent again.
    fn add<D: Device>(&mut self, asked: Asked, one: &Participant<D>, end: &Waiting) {
        match (asked, &one.role, end) {
            (Asked::Resend(to), ..) => self.reducers |= 1 << to,
            (
                Asked::Order,
                Role::Contribute { how: How::Delta, to, .. },
                Waiting::Final(Final::Answered(answer)),
            ) if answer.ending == Ending::PeerUnreachable && answer.outcome.written => {
                let reached = answer.outcome.forwarded;
                let unreached = to.iter().zip(reached).filter(|(_, reached)| !reached);
                self.reducers |= unreached.fold(0, |set, (to, _)| set | 1 << to.peer);
            }
            _ => self.everyone = true,
        }
    }
}

/// Waits for all answers. At the first sign of trouble the participants whose orders have no answer and will not be carried out are
/// settled (F-I4): a reducer whose contributor failed would wait for its time limit.
async fn wait<D: Device>(
    owned: Owned<'_, D>,
    step: &Prepared<D>,
    requests: &mut [Request],
    stamp: Stamp,
) -> Gather {
    let (mut trouble, mut data) = (Trouble::default(), Gather::new());
    poll_fn(|context| {
        loop {
            let (mut is_pending, mut any_new, before) = (false, false, trouble);
            for request in requests.iter_mut() {
                let participant = &step.participants[request.at];
                let (answering, is_question) = match &mut request.waiting {
                    Waiting::Order(answering) => (answering, false),
                    Waiting::Question(answering) => (answering, true),
                    Waiting::Final(_) | Waiting::Needed(_) => continue,
                };
                let next = match answering.as_mut().poll(context) {
                    Poll::Ready(mut answered) => {
                        if let Ok(answered) = &mut answered
                            && !answered.data.is_empty()
                        {
                            data = std::mem::take(&mut answered.data);
                        }
                        let heard = heard(owned, participant.place.slot, answered, is_question);
                        trouble.everyone |= heard.is_none();
                        heard
                    }
                    // The answer to the question is the order's, too.
                    Poll::Pending if trouble.concerns(participant) && !is_question => None,
                    Poll::Pending => {
                        is_pending = true;
                        continue;
                    }
                };
                any_new |= next.is_none();
                request.waiting = next
                    .unwrap_or_else(|| Waiting::Question(participant.peer().settle(stamp, Settle::Abort)));
                if !request.waiting.is_good() {
                    trouble.add(request.asked, participant, &request.waiting);
                }
            }
            // A new question has to be polled, and trouble has questions for those that were polled before it.
            if any_new || trouble != before {
                continue;
            }
            return if is_pending { Poll::Pending } else { Poll::Ready(()) };
        }
    })
    .await;
    data
}

/// What a participant's answer says. None: its order was under way when the connection was lost, and it is to be asked.
fn heard<D: Device>(
    owned: Owned<'_, D>,
    slot: Slot,
    answered: Result<Answered, NoAnswer>,
    is_question: bool,
) -> Option<Waiting> {
    let one = match answered {
        Ok(answered) => Final::Answered(answered.answer),
        Err(NoAnswer::Away) => return None,
        Err(NoAnswer::Forgot) if is_question => Final::Forgot,
        // It refused the order.
        Err(NoAnswer::Forgot) => Final::Answered(Answer::nothing(Ending::Aborted)),
        Err(NoAnswer::Device(error)) => match owned.port().give_up(slot, &error) {
            MemberError::Request(error) => return Some(Waiting::Needed(error)),
            MemberError::Gone | MemberError::Unreadable => Final::Failed,
        },
    };
    Some(Waiting::Final(one))
}
