//! Reads of one stripe by its owner: from the members, and by reconstruction where a member is missing or cannot read.

use smallvec::SmallVec;

use super::engine::Owned;
use super::redo::absence_record;
use super::redo::headers::settle;
use super::salvage::salvage;
use crate::buffer::Slice;
use crate::code::chunk_set::{Chunk, ChunkSet, P, Q};
use crate::code::image::{Held, Image};
use crate::code::plan::plan_read;
use crate::code::recover::extract;
use crate::code::rows::Fragment;
use crate::device::Device;
use crate::error::VolumeError;
use crate::executor::ahead;
use crate::members::port::MemberError;

type Slices = SmallVec<[Slice; 4]>;

/// Reads fragments, lost ones included.
pub(super) async fn read_owned<D: Device>(
    owned: Owned<'_, D>,
    fragments: &[Fragment],
) -> Result<Slices, VolumeError> {
    let mut image = Image::default();
    let missing = loop {
        let missing = owned.missing();
        let needs_parity = fragments.iter().any(|fragment| missing.contains(fragment.chunk));
        let is_told = || fragments.iter().all(|fragment| is_made(owned, missing, fragment));
        if needs_parity
            && let Some(error) = owned.unrecoverable()
            && !is_told()
        {
            return read_by_each_parity(owned, fragments, error).await;
        }
        if fetch_wanted(owned, missing, fragments, &mut image).await? {
            break missing;
        }
    };
    owned.port().counters().reconstructed_reads.add(1);
    Ok(extract_all(owned, missing, fragments, &mut image))
}

/// Whether a fragment is there, or was written since its member left, so that parity tells it also in a stripe in doubt.
fn is_made<D: Device>(owned: Owned<'_, D>, missing: ChunkSet, fragment: &Fragment) -> bool {
    !missing.contains(fragment.chunk)
        || owned.shared().absences.is_made(owned.slot_of(fragment.chunk), &owned.bytes_of(fragment))
}

/// Whether P and Q may tell what the lost chunk of a RAID-6 stripe in doubt holds: it is the only one that is missing.
pub(super) fn may_compare_parities<D: Device>(owned: Owned<'_, D>) -> bool {
    let missing = owned.missing();
    let is_only_data = missing.len() == 1 && owned.lost() == missing;
    owned.geometry().parity_chunks() == 2 && is_only_data && !owned.is_suspect()
}

/// Reads fragments of a RAID-6 stripe in doubt. The lost chunk is made by P alone and by Q alone: what a crash left half
/// written, in data or in one of the two, changes the results in different ways, so where they agree they are right
/// (invariant 10). Only errors of several writes that happen to be multiples of each other in every byte would agree.
///
/// # Errors
/// `error` if the two results differ or cannot be made; what the members say.
async fn read_by_each_parity<D: Device>(
    owned: Owned<'_, D>,
    fragments: &[Fragment],
    error: VolumeError,
) -> Result<Slices, VolumeError> {
    let lost = owned.missing();
    let is_carried = |fragment: &Fragment| {
        let slot = owned.slot_of(fragment.chunk);
        lost.contains(fragment.chunk) && owned.shared().absences.is_carried(slot, &owned.bytes_of(fragment))
    };
    if !may_compare_parities(owned) || fragments.iter().any(is_carried) {
        return Err(error);
    }
    let Some([by_p, by_q]) = by_each_parity(owned, lost, lost, fragments).await? else { return Err(error) };
    if !is_same(&by_p, &by_q) || owned.missing() != lost {
        return Err(error);
    }
    keep_read(owned, lost, fragments).await?;
    owned.port().counters().reconstructed_reads.add(1);
    Ok(by_p)
}

/// Fragments as P makes them and as Q makes them, without the `lost` chunk. None: other chunks than `missing` are meanwhile.
async fn by_each_parity<D: Device>(
    owned: Owned<'_, D>,
    missing: ChunkSet,
    lost: ChunkSet,
    fragments: &[Fragment],
) -> Result<Option<[Slices; 2]>, VolumeError> {
    let mut results = [Slices::new(), Slices::new()];
    let mut before = Image::default();
    for (unused, result) in [Q, P].into_iter().zip(&mut results) {
        let (without, mut image) = (lost.or(ChunkSet::one(unused)), Image::default());
        // What P was used with is read once; P itself must not help Q.
        for chunk in owned.data().without(lost).iter() {
            for rows in fragments.iter().map(|fragment| fragment.rows) {
                if before.get(chunk, rows).is_some() && image.get(chunk, rows).is_none() {
                    image.insert(Fragment { chunk, rows }, Held::Shared(before.share(chunk, rows)));
                }
            }
        }
        while !fetch_wanted(owned, without, fragments, &mut image).await? {
            if owned.missing() != missing {
                return Ok(None);
            }
        }
        *result = extract_all(owned, without, fragments, &mut image);
        before = image;
    }
    Ok(Some(results))
}

fn is_same(one: &[Slice], other: &[Slice]) -> bool {
    one.iter().zip(other).all(|(one, other)| one.bytes() == other.bytes())
}

/// What a client reads of a lost chunk is what the chunk holds from then on, also once its member is back: a write that a crash
/// tore may be on that member and nowhere else, or everywhere else.
///
/// # Errors
/// The members do not take that on record.
async fn keep_read<D: Device>(
    owned: Owned<'_, D>,
    lost: ChunkSet,
    fragments: &[Fragment],
) -> Result<(), VolumeError> {
    let shared = owned.shared();
    if !shared.members.may_write() {
        return Ok(());
    }
    let mut is_on_record = true;
    for fragment in fragments.iter().filter(|fragment| lost.contains(fragment.chunk)) {
        let slot = owned.slot_of(fragment.chunk);
        if shared.absences.read_by_parities(slot, &owned.bytes_of(fragment)) {
            is_on_record = false;
            if !shared.absences.is_followed(slot) {
                shared.members.want_metadata(); // superblocks have yet to tell that it is away
            }
        }
    }
    match is_on_record {
        true => Ok(()),
        false => Box::pin(settle(owned.redo())).await,
    }
}

/// What a client reads at a member is what the chunk holds from then on, also once that member is gone: a write that a crash tore
/// may be in P and Q and not there, and they would agree on it. Where they might, they prove nothing from here on, and that is on
/// record before the client hears (invariants 6 and 10).
///
/// # Errors
/// The members do not take that on record.
pub(super) async fn keep_read_of_members<D: Device>(
    owned: Owned<'_, D>,
    fragments: &[Fragment],
    contents: &[Slice],
) -> Result<(), VolumeError> {
    let (shared, missing) = (owned.shared(), owned.missing());
    if !shared.members.may_write() {
        return Ok(());
    }
    let absences = &shared.absences;
    for (fragment, held) in fragments.iter().zip(contents) {
        let (slot, bytes) = (owned.slot_of(fragment.chunk), owned.bytes_of(fragment));
        if missing.contains(fragment.chunk) || absences.is_carried(slot, &bytes) {
            continue;
        }
        if may_prove_otherwise(owned, missing, fragment, held).await {
            absences.carry(slot, &bytes);
        }
    }
    // Of a write that failed half way in this run, this run's memory is enough: where members have no space many do, and they would
    // take no record either.
    if shared.consistency.has_entered(owned.stripe()) {
        return Ok(());
    }
    absence_record::persist(owned.redo()).await
}

/// Whether P and Q may come to agree on something else than what a member holds.
async fn may_prove_otherwise<D: Device>(
    owned: Owned<'_, D>,
    missing: ChunkSet,
    fragment: &Fragment,
    held: &Slice,
) -> bool {
    let lost: SmallVec<[Chunk; 2]> = missing.iter().collect();
    match &lost[..] {
        [] => {
            let made = by_each_parity(owned, missing, ChunkSet::one(fragment.chunk), &[*fragment]).await;
            let Ok(Some([by_p, by_q])) = made else { return true };
            is_same(&by_p, &by_q) && by_p[0].bytes() != held.bytes()
        }
        // It is made of all data when its member is back.
        [P | Q] => false,
        [other] => {
            let other = Fragment { chunk: *other, rows: fragment.rows };
            let made = by_each_parity(owned, missing, missing, &[other]).await;
            !matches!(made, Ok(Some([by_p, by_q])) if is_same(&by_p, &by_q))
        }
        _ => true,
    }
}

/// Reads what is still needed for these fragments with these chunks missing. Whether nothing was.
pub(super) async fn fetch_wanted<D: Device>(
    owned: Owned<'_, D>,
    missing: ChunkSet,
    fragments: &[Fragment],
    image: &mut Image,
) -> Result<bool, VolumeError> {
    let wanted = plan_read(owned.shape(), missing, fragments);
    let mut wanted = wanted.map_err(|_| owned.too_many_missing(missing))?;
    wanted.retain(|fragment| image.get(fragment.chunk, fragment.rows).is_none());
    if wanted.is_empty() {
        return Ok(true);
    }
    fetch(owned, &wanted, image).await?;
    Ok(false)
}

/// The fragments, once all that they need was read.
pub(super) fn extract_all<D: Device>(
    owned: Owned<'_, D>,
    missing: ChunkSet,
    fragments: &[Fragment],
    image: &mut Image,
) -> SmallVec<[Slice; 4]> {
    let extract =
        |fragment| extract(owned.geometry(), owned.stripe(), missing, fragment, image, owned.pool());
    fragments.iter().map(extract).collect()
}

/// Reads fragments into the image. A fragment whose member fails is left out: the caller plans again around the member.
pub(super) async fn fetch<D: Device>(
    owned: Owned<'_, D>,
    fragments: &[Fragment],
    image: &mut Image,
) -> Result<(), VolumeError> {
    if fragments.is_empty() {
        return Ok(());
    }
    let reads: SmallVec<[_; 4]> = fragments.iter().map(|fragment| owned.read_of(fragment)).collect();
    for (fragment, result) in fragments.iter().zip(ahead(owned.port().read(&reads)).await) {
        match result {
            Ok(buffer) => image.insert(*fragment, Held::Owned(buffer)),
            Err(MemberError::Unreadable) => {
                if let Some(contents) = salvage(owned, fragment).await? {
                    image.insert(*fragment, Held::Shared(contents));
                }
            }
            Err(MemberError::Gone) => {}
            Err(MemberError::Request(error)) => return Err(error),
        }
    }
    Ok(())
}
