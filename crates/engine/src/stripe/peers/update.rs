//! Updates of a stripe: orders for every step, what is sent again, and what the host makes of the answers.

use std::sync::Arc;

use smallvec::SmallVec;

use super::ask::{Asked, Request, Requests, Waiting, carry_out, first_round, ordered};
use super::mend::mend_by_host;
use super::place::{Participant, Prepared, coefficient, place_of};
use crate::buffer::Gather;
use crate::code::chunk_set::Chunk;
use crate::code::image::Image;
use crate::code::union::Union;
use crate::device::Device;
use crate::error::VolumeError;
use crate::executor::join_all;
use crate::fabric::choose::{StepParts, split};
use crate::fabric::host::{Attach, Final, Mend, OpenOp, Part, mend};
use crate::fabric::order::{Base, Destination, How, PeerIndex, Role, Settle, Sink, Stamp};
use crate::stages::{Stage, Watch};
use crate::stripe::engine::Owned;
use crate::stripe::runner::{Method, plan_write, survived};
use crate::stripe::update::update;

/// Updates a stripe with the union of its writes, as far as its members' targets can. None: they cannot, and nothing was done.
pub(in crate::stripe) async fn update_by_peers<D: Device>(
    owned: Owned<'_, D>,
    union: &Union,
    fua: bool,
    watch: impl Watch,
) -> Option<Result<(), VolumeError>> {
    let shared = owned.shared();
    // The redo log needs contents at the host, and targets know of no bad blocks and no member that is rebuilt. Parity in doubt is
    // made from all data, at the host.
    let may_be_degraded = !shared.redo.is_used() && shared.members.is_steady();
    if !(shared.members.plain() || may_be_degraded) || !shared.consistency.is_plain(owned.stripe()) {
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

type Steps<D> = SmallVec<[Prepared<D>; 1]>;

/// The orders of all steps; none, if one of them is for a target that cannot take it.
fn prepare<D: Device>(
    owned: Owned<'_, D>,
    union: &Union,
    steps: &[StepParts],
) -> Option<(Arc<Attach>, Steps<D>)> {
    let mut attach = None;
    let mut prepared = Steps::new();
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
    prepared.iter().all(|step| step.is_connected(&attach)).then_some((attach, prepared))
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
    for (step, (_op, end)) in steps.iter().zip(&ends) {
        let mended = match end {
            Ok(how) => mend_by_host(owned, *how, step, fua).await,
            Err(error) => Err(error.clone()),
        };
        result = result.and(mended.inspect_err(|error| owned.stays_suspect(&error.to_string())));
    }
    result?;
    // Parity agrees in the rows of every step, and not before.
    if any_half_done {
        owned.trust();
    }
    for (step, (_op, end)) in steps.iter().zip(&ends) {
        if step.is_partial || matches!(end, Ok(Mend::Again)) {
            owned.port().counters().mended_steps.add(1);
            update(owned, &union.within(step.rows), Image::default(), fua, watch).await?;
        }
    }
    survived(owned)
}

/// Most times that a step is sent again: connections that are lost as often are no good.
const ROUNDS_MAX: usize = 8;

/// Sends the orders of a step, and waits until every participant is final; sends again what may be. Its op, and what is left to
/// be done.
async fn run_step<D: Device>(
    owned: Owned<'_, D>,
    attach: &Arc<Attach>,
    step: &mut Prepared<D>,
    fua: bool,
) -> (Option<OpenOp>, Result<Mend, VolumeError>) {
    // None: too many ops wait for members, or the targets have no memory left.
    let Some(mut op) = attach.begin(step.costs()) else { return (None, Ok(Mend::Again)) };
    let counters = owned.port().counters();
    for round in 0..ROUNDS_MAX {
        if round > 0 && !op.send_again() {
            break;
        }
        let stamp = op.stamp();
        if round == 0 {
            counters.peer_steps.add(1);
            if step.base == Base::Old { counters.rmw.add(1) } else { counters.rcw.add(1) }
        } else {
            counters.resent_steps.add(1);
        }
        let requests =
            if round == 0 { first_round(step, stamp, fua) } else { resend_round(step, stamp, fua) };
        if let Err(error) = carry_out(owned, step, requests, stamp).await {
            return (Some(op), Err(error));
        }
        let finals: SmallVec<[(Part, Final); 4]> =
            step.participants.iter().map(|one| (one.part(), one.last)).collect();
        match mend(step.base, &finals) {
            Mend::Resend => {
                // A target that was connected anew is known to the others a little later.
                let working = step.participants.iter().filter(|one| one.last != Final::Failed);
                join_all(working.map(|one| one.peer().attached())).await;
                // With all data there is another way.
                if owned.lost().is_empty() && !all_reach(attach, step) {
                    return (Some(op), Ok(Mend::Reconstruct));
                }
            }
            how => return (Some(op), Ok(how)),
        }
    }
    (Some(op), Ok(Mend::Reconstruct))
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
        one.look_again();
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
                    let (of, key) = (Stamp { lowest: stamp.lowest, ..kept.stamp }, kept.key);
                    let resent = one.peer().settle(key, of, Settle::Resend { to, under: stamp.op });
                    let asked = Asked::Resend(to);
                    requests.push(Request { at, asked, key, waiting: Waiting::Question(resent) });
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
