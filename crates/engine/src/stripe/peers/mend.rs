//! Makes data and parity agree where the targets left a step half done.

use smallvec::SmallVec;

use super::place::{Participant, Prepared, coefficient};
use crate::buffer::{Gather, Slice};
use crate::code::chunk_set::{Chunk, ChunkSet};
use crate::code::image::{Held, Image};
use crate::code::parity_step::{NewParity, encode_all};
use crate::code::rows::Fragment;
use crate::device::Device;
use crate::error::VolumeError;
use crate::fabric::host::{Mend, Part};
use crate::members::port::MemberWrite;
use crate::stripe::engine::Owned;
use crate::stripe::fetch::{extract_all, fetch, fetch_wanted};
use crate::stripe::runner::{Verdict, judge};

/// Makes data and parity of a step agree, where the targets left it half done.
pub(super) async fn mend_by_host<D: Device>(
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
/// read comes of `applied`, the parity that has the step's contributions, or of parity that is as it was if all data is, too.
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
    let mut before = Some(parity_before(step));
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
            Err(error) => {
                let Some(parity) = before.take().filter(|parity| !parity.is_empty()) else {
                    return Err(error);
                };
                let Ok(made) = parity_to_be(owned, step, parity, &image).await else { return Err(error) };
                for (chunk, contents) in made {
                    image.insert(Fragment { chunk, rows }, Held::Shared(contents));
                    unusable = unusable.without(ChunkSet::one(chunk));
                }
            }
        }
    }
}

/// The parity that nothing was written of, if nothing was of the data either: it agrees with what the members hold. A member that was
/// to contribute what it held, and no more, may be gone.
fn parity_before<D: Device>(step: &Prepared<D>) -> ChunkSet {
    let is_untouched =
        |one: &&Participant<D>| one.last.answer().is_some_and(|answer| !answer.outcome.write_begun);
    let reducers = step.participants.iter().filter(|one| one.part() == Part::Reduce);
    match step.participants.iter().filter(|one| one.writes()).all(|one| is_untouched(&one)) {
        true => reducers.filter(is_untouched).map(|one| one.place.chunk).collect(),
        false => ChunkSet::EMPTY,
    }
}

/// What parity that is as it was becomes by the step, as read-modify-write makes it: what is replaced is on its members still.
async fn parity_to_be<D: Device>(
    owned: Owned<'_, D>,
    step: &Prepared<D>,
    parity: ChunkSet,
    to_be: &Image,
) -> Result<SmallVec<[(Chunk, Slice); 2]>, VolumeError> {
    let (rows, mut before) = (step.rows, Image::default());
    let written = || step.participants.iter().filter(|one| one.writes());
    let chunks = written().map(|one| one.place.chunk).chain(parity.iter());
    let fragments: SmallVec<[Fragment; 4]> = chunks.map(|chunk| Fragment { chunk, rows }).collect();
    fetch(owned, &fragments, &mut before).await?;
    // A member that failed meanwhile is left out.
    if fragments.iter().any(|fragment| before.get(fragment.chunk, rows).is_none()) {
        return Ok(SmallVec::new());
    }
    let becomes = |parity: Chunk| {
        let mut made = owned.pool().take(rows.bytes());
        made.bytes_mut().copy_from_slice(before.expect(parity, rows));
        for chunk in written().map(|one| one.place.chunk) {
            for contents in [&before, to_be] {
                let times = coefficient(owned, chunk, parity);
                parity::add_product(times, contents.expect(chunk, rows), made.bytes_mut());
            }
        }
        (parity, made.freeze())
    };
    Ok(parity.iter().map(becomes).collect())
}
