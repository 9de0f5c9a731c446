//! Runs the plan of a stripe write: reads the chunks that the plan needs, makes parity, writes, and judges the results. All
//! data passes through this host; another runner may execute the same [`Plan`] with the arithmetic at the members.

use smallvec::SmallVec;

use super::agree::make_rows_agree;
use super::avoid::stripe_load;
use super::engine::Owned;
use super::fetch::fetch;
use super::redo::absence_record;
use super::redo::cut::Alone;
use super::redo::cut::StripeWrites;
use super::redo::retire::retire_incomplete_records;
use super::redo::write::write_degraded;
use crate::buffer::{Gather, Slice};
use crate::code::chunk_set::{Chunk, ChunkSet, P, Q};
use crate::code::image::Image;
use crate::code::parity_step::{self, NewParity};
use crate::code::plan::{self, Plan, Routine, plan_reconstruct};
use crate::code::rows::{Fragment, Rows};
use crate::code::union::Union;
use crate::device::Device;
use crate::error::VolumeError;
use crate::members::port::{MemberError, MemberWrite};
use crate::stages::{Stage, Watch};

/// How a stripe's parity is updated.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Method {
    /// By whichever of read-modify-write and reconstruct-write the plan prefers.
    Best,
    /// By reconstruct-write: neither old parity nor the old contents of written chunks are read.
    Reconstruct,
}

/// Plans and reads until nothing is left to read, then makes parity and writes.
pub(super) async fn update_by<D: Device>(
    owned: Owned<'_, D>,
    method: Method,
    union: &Union,
    mut image: Image,
    fua: bool,
    watch: impl Watch,
) -> Result<(), VolumeError> {
    let (plan, missing) = loop {
        let missing = owned.missing();
        let method = if overwrites_all_lost(owned, union) { Method::Reconstruct } else { method };
        let plan = plan_write(owned, method, union, &image)?;
        // Invariant 10: what is not written would be made of parity that does not tell it, and be called right by the new one.
        if plan.steps.iter().any(|step| step.routine == Routine::Recover)
            && let Some(error) = owned.unrecoverable()
        {
            return Err(error);
        }
        if plan.reads.is_empty() && owned.missing() == missing {
            break (plan, missing);
        }
        fetch(owned, &plan.reads, &mut image).await?;
    };
    watch.enter(Stage::Parity);
    count(owned, &plan);
    let parity = parity_step::compute(
        owned.geometry(),
        owned.stripe(),
        &plan,
        union,
        &mut image,
        owned.pool(),
        missing,
    );
    watch.enter(Stage::Write);
    store(owned, &plan, union, &parity, fua).await?;
    if plan.is_from_all_data() {
        remove_doubt(owned, union, missing);
    }
    Ok(())
}

/// Whether parity of the stripe may not agree and the write replaces all its lost data: new parity from all data then makes
/// the stripe consistent.
fn overwrites_all_lost<D: Device>(owned: Owned<'_, D>, union: &Union) -> bool {
    let is_doubtful = owned.is_suspect() || owned.is_in_doubt();
    let lost = if is_doubtful { owned.lost() } else { ChunkSet::EMPTY };
    !lost.is_empty() && overwrites(owned, union, lost)
}

pub(super) fn plan_write<D: Device>(
    owned: Owned<'_, D>,
    method: Method,
    union: &Union,
    image: &Image,
) -> Result<Plan, VolumeError> {
    let (shape, missing) = (owned.shape(), owned.missing());
    let load = stripe_load(owned.engine(), owned.stripe());
    let (written, held) = (union.fragments(), image.fragments());
    let planned = match method {
        Method::Best => plan::plan(shape, missing, &written, &held, load.as_ref()),
        Method::Reconstruct => plan_reconstruct(shape, missing, &written, &held),
    };
    let plan = planned.map_err(|_| owned.too_many_missing(missing))?;
    let is_there = |fragment: &Fragment| !missing.contains(fragment.chunk);
    assert!(plan.reads.iter().chain(&plan.writes).all(is_there), "a plan leaves missing chunks alone");
    if load.is_some() {
        let adjusted = plan.steps.iter().filter(|step| step.adjusted).count();
        owned.port().counters().adjusted_updates.add(adjusted as u64);
    }
    Ok(plan)
}

fn count<D: Device>(owned: Owned<'_, D>, plan: &Plan) {
    let counters = owned.port().counters();
    let all = owned.data();
    if plan.steps.iter().all(|step| step.written == all) {
        counters.full_stripe_writes.add(1);
    }
    for step in &plan.steps {
        match step.routine {
            Routine::Rmw => counters.rmw.add(1),
            Routine::Rcw => counters.rcw.add(1),
            Routine::Recover => counters.recovered_writes.add(1),
            Routine::DataOnly => {}
        }
    }
}

/// Writes data and new parity to every working member at once, as the plan says.
pub(super) async fn store<D: Device>(
    owned: Owned<'_, D>,
    plan: &Plan,
    union: &Union,
    parity: &[NewParity],
    fua: bool,
) -> Result<(), VolumeError> {
    let contents = |fragment: &Fragment| match fragment.chunk {
        P | Q => {
            let is_wanted =
                |new: &&NewParity| (new.chunk, new.start) == (fragment.chunk, fragment.rows.start);
            let new = parity.iter().find(is_wanted).expect("the steps made what the plan writes");
            assert_eq!(new.slice.len(), fragment.rows.bytes(), "parity of the rows that the plan writes");
            Gather::from(new.slice.clone())
        }
        chunk => union.gather(chunk, fragment.rows),
    };
    let write = |fragment: &Fragment| owned.write_of(fragment.chunk, fragment.rows.start, contents(fragment));
    let writes: SmallVec<[MemberWrite; 4]> = plan.writes.iter().map(write).collect();
    let was_on_record = owned.shared().consistency.is_on_record(owned.stripe());
    if was_on_record && owned.shape().parity == 2 && !plan.is_from_all_data() {
        Box::pin(carry(owned, &writes)).await?;
    }
    let results = match owned.shared().members.plain() {
        true => owned.port().write(&writes, fua).await,
        // Invariants 2 and 10, against the write hole: the redo record is durable before the stripe is touched.
        false => {
            let unplaced: SmallVec<[MemberWrite; 1]> = plan.unplaced.iter().map(write).collect();
            let missing = if owned.shape().parity == 1 { &unplaced[..] } else { &[] };
            let alone = alone(owned);
            let writes =
                StripeWrites { stripe: owned.stripe(), made: &writes, missing, unplaced: &unplaced, alone };
            write_degraded(owned.redo(), writes, !parity.is_empty(), fua).await?
        }
    };
    if owned.shared().absences.is_kept() {
        note_in_doubt(owned, plan, was_on_record && !fua, &writes, &results);
    }
    judge(owned, union.span(), Verdict::of(results), parity.iter().map(NewParity::parts)).await
}

/// The one data chunk that is missing, and the parity that tells it, where the level survives no other loss. None where parity may not
/// agree: what it says of the chunk is not to be made durable, for its member may come back with what it holds.
fn alone<D: Device>(owned: Owned<'_, D>) -> Option<Alone> {
    let (lost, missing) = (owned.lost(), owned.missing());
    let agrees = owned.shared().consistency.is_plain(owned.stripe());
    let is_alone = owned.shape().parity == 1 && lost.len() == 1 && missing.len() == 1 && agrees;
    let chunk = lost.iter().next().filter(|_| is_alone)?;
    Some(Alone { missing: owned.slot_of(chunk), parity: owned.slot_of(P) })
}

/// Read-modify-write in a stripe in doubt: what P and Q agree on proves nothing of the chunks that are written, once the others
/// are known. That is when none is lost, or the members of those that are hold them (invariants 10 and 11).
async fn carry<D: Device>(owned: Owned<'_, D>, writes: &[MemberWrite]) -> Result<(), VolumeError> {
    let absences = &owned.shared().absences;
    for write in writes.iter().filter(|write| !matches!(owned.chunk_on(write.slot), P | Q)) {
        let lost = owned.lost();
        let is_held = |chunk| absences.meets_held(owned.slot_of(chunk), &write.bytes());
        if lost.is_empty() || lost.iter().any(is_held) {
            absences.carry(write.slot, &write.bytes());
        }
    }
    absence_record::persist(owned.redo()).await
}

/// In a stripe that is in doubt on record, parity may not make up for what a member missed, or may have had in its cache only
/// (`in_caches`) when it left. It does if the write made it from all data, or on parity that agreed.
fn note_in_doubt<D: Device>(
    owned: Owned<'_, D>,
    plan: &Plan,
    in_caches: bool,
    writes: &[MemberWrite],
    results: &[Result<(), MemberError>],
) {
    let absences = &owned.shared().absences;
    let agrees = owned.shared().consistency.is_sound(owned.stripe()) || plan.is_from_all_data();
    for (write, result) in writes.iter().zip(results) {
        match result {
            Ok(()) if in_caches => absences.sent(write.slot, &write.bytes()),
            Ok(()) => {}
            Err(MemberError::Gone) if agrees => absences.written_without(write.slot, &write.bytes()),
            Err(_) => absences.forget(write.slot, &write.bytes()),
        }
    }
}

/// What the writes of a stripe's data and parity came to.
pub(super) struct Verdict {
    all_written: bool,
    /// A member that stays did not take its write.
    refused: Option<VolumeError>,
}

impl Verdict {
    pub(super) fn new() -> Self {
        Verdict { all_written: true, refused: None }
    }

    pub(super) fn of(results: impl IntoIterator<Item = Result<(), MemberError>>) -> Self {
        let mut verdict = Verdict::new();
        results.into_iter().for_each(|result| verdict.add(result));
        verdict
    }

    #[inline]
    pub(super) fn add(&mut self, result: Result<(), MemberError>) {
        match result {
            Ok(()) => {}
            // The other members took data and parity: the stripe is consistent, and degraded.
            Err(MemberError::Gone | MemberError::Unreadable) => self.all_written = false,
            Err(MemberError::Request(error)) => self.refused = self.refused.take().or(Some(error)),
        }
    }
}

/// Judges what the member writes of a stripe in these rows came to, and caches the new parity, as chunk, first row and contents,
/// if every member took its write. Every stripe write ends here, those of the fast paths too.
pub(super) async fn judge<'a, D: Device>(
    owned: Owned<'_, D>,
    rows: Rows,
    verdict: Verdict,
    parity: impl Iterator<Item = (Chunk, u32, &'a Slice)>,
) -> Result<(), VolumeError> {
    if let Some(error) = verdict.refused {
        return Err(Box::pin(half_written(owned, rows, error)).await);
    }
    survived(owned)?;
    if verdict.all_written {
        // Invariant 5: the members hold this parity, and the caller owns the stripe still.
        parity.for_each(|(chunk, start, slice)| {
            owned.shared().cache.put(owned.stripe(), chunk, start, slice);
        });
    }
    Ok(())
}

/// Some members took a write of these rows, and one that stays in the array did not: the stripe is suspect, since a member
/// that fails before parity agrees would take data with it that this request never touched. After ENOSPC parity is made
/// again at once: its blocks were allocated by earlier writes.
async fn half_written<D: Device>(owned: Owned<'_, D>, rows: Rows, error: VolumeError) -> VolumeError {
    // If it was, only these rows may not agree.
    let was_sound = !owned.is_suspect() && !owned.is_in_doubt();
    owned.suspect(&error.to_string());
    if was_sound
        && matches!(error, VolumeError::NoSpace { .. })
        && owned.lost().is_empty()
        && retire_incomplete_records(owned.redo(), owned.stripe()).await.is_ok()
        && make_rows_agree(owned, rows).await.is_ok()
    {
        owned.trust();
    }
    error
}

/// An error if more members are missing now than the level survives.
#[inline]
pub(super) fn survived<D: Device>(owned: Owned<'_, D>) -> Result<(), VolumeError> {
    if owned.shared().members.all_in_sync() {
        return Ok(());
    }
    let missing = owned.missing();
    if missing.len() <= owned.shape().parity {
        return Ok(());
    }
    let error = owned.too_many_missing(missing);
    owned.suspect(&error.to_string());
    Err(error)
}

/// A stripe whose parity was just made from all data leaves doubt if the write replaced all its lost data, or, with no data
/// lost, all its data.
fn remove_doubt<D: Device>(owned: Owned<'_, D>, union: &Union, missing: ChunkSet) {
    if !owned.is_in_doubt() && !owned.is_suspect() {
        return;
    }
    let data = owned.data();
    let lost = missing.and(data);
    let overwritten = if lost.is_empty() { data } else { lost };
    if overwrites(owned, union, overwritten) {
        owned.trust();
    }
}

/// Whether these chunks are written whole.
pub(super) fn overwrites<D: Device>(owned: Owned<'_, D>, union: &Union, chunks: ChunkSet) -> bool {
    chunks.iter().all(|chunk| union.covers(chunk, owned.all_rows()))
}

#[cfg(test)]
mod tests {
    use layout::absences::AbsencesArea;
    use layout::geometry::Level;
    use layout::redo_log::StripeRange;
    use layout::units::{DeviceOffset, Slot, Stripe};

    use crate::members::MemberState;
    use crate::stripe::absences::{AbsencePlace, FoundAbsences, Standing};
    use crate::stripe::fake::{CHUNK, World};

    const BLOCK: u64 = 4096;

    /// A member goes while it is written in a stripe in doubt, by read-modify-write: parity does not tell what it missed, nor does
    /// the member. In a sound stripe parity does.
    #[test]
    fn parity_in_doubt_does_not_make_up_for_what_a_member_missed() {
        for in_doubt in [true, false] {
            let world = World::new(Level::Raid6, 5);
            world.fill();
            let (shared, geometry) = (&world.set.shared, world.set.shared.geometry);
            let device = |slot: Slot| [slot.get() as u8; 16];
            let mut standings: Vec<Standing> =
                geometry.slots().map(|slot| Standing::InSync(device(slot))).collect();
            let absences = &shared.absences;
            absences.begin(&FoundAbsences { was_whole: true, ..FoundAbsences::default() }, &standings, true);
            for slot in geometry.slots() {
                let area = AbsencesArea { start: DeviceOffset::START, copy_bytes: BLOCK };
                let place = AbsencePlace { area, set_uuid: [7; 16], device_uuid: device(slot) };
                absences.set_place(slot, Some(place));
            }
            let first = Stripe::FIRST;
            if in_doubt {
                shared.consistency.doubt(StripeRange::of(first));
            }
            let [lost, goes] = [0, 1].map(|chunk| geometry.data_member(first, chunk));
            shared.members.fail(lost, "by hand");
            let last_read = geometry.q_member(first).expect("RAID-6 has Q");
            let going = world.fakes[goes.index()].clone();
            world.fakes[last_read.index()].at_read(1, move || going.set_gone());
            world.write(CHUNK.into(), &[7; BLOCK as usize]).expect("the level survives it");
            assert_eq!(world.state(goes), MemberState::Failed);
            for slot in [lost, goes] {
                standings[slot.index()] = Standing::Away;
            }
            let sectors = || std::iter::once(0..u64::from(CHUNK) / 512).collect();
            absences.follow(&standings, sectors, sectors, || 1);
            let start = geometry.member_offset(first);
            let missed = start..start + BLOCK;
            assert_eq!(absences.is_made(goes, &missed), !in_doubt);
            assert!(!absences.meets_held(goes, &missed));
        }
    }
}
