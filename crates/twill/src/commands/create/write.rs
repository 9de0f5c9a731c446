//! Writes the superblocks of a new array, and takes them back if the system fails on the way.

use std::fs::{self, OpenOptions};
use std::io;
use std::path::Path;

use layout::md_bitmap::{Bitmap, PAGE_BYTES};
use layout::md_superblock::{SUPERBLOCK_BYTES_MAX, Superblock};

use super::place::Place;
use super::plan::Plan;
use crate::exit::ExitKind;
use crate::failure::{Failure, Problem};
use crate::probe::clearing::Clearing;
use crate::probe::member_file::MemberFile;
use crate::probe::superblocks;

/// What was there before a write.
struct Before<'a> {
    member: &'a MemberFile,
    offset: u64,
    bytes: Vec<u8>,
}

/// Writes every superblock and makes it durable.
///
/// # Errors
/// [`ExitKind::IoError`] with the member; what was there before is put back.
pub fn write(plan: &Plan) -> Result<(), Failure> {
    let mut made = Vec::new();
    let result = make_files(plan, &mut made).and_then(|()| write_members(plan, &made));
    if result.is_err() {
        for (path, _) in &made {
            if let Err(error) = fs::remove_file(path) {
                tracing::warn!("cannot remove {}: {error}", path.display());
            }
        }
    }
    result
}

fn make_files<'a>(plan: &'a Plan, made: &mut Vec<(&'a Path, MemberFile)>) -> Result<(), Failure> {
    for place in plan.places.iter().filter(|place| place.member.is_none()) {
        let failed = |error: io::Error| failure(Problem::from_io(&place.path, "make the file", &error));
        let file = OpenOptions::new().write(true).create_new(true).open(&place.path).map_err(failed)?;
        let sized = file.set_len(place.device_bytes).map_err(failed);
        drop(file);
        let opened = sized.and_then(|()| MemberFile::open_held(&place.path).map_err(failure));
        match opened {
            Ok(member) => made.push((&place.path, member)),
            Err(failure) => {
                let _best_effort = fs::remove_file(&place.path);
                return Err(failure);
            }
        }
    }
    Ok(())
}

fn write_members(plan: &Plan, made: &[(&Path, MemberFile)]) -> Result<(), Failure> {
    let mut before = Vec::new();
    for (place, superblock) in plan.places.iter().zip(&plan.created.superblocks) {
        let member = match &place.member {
            Some(member) => member,
            None => made
                .iter()
                .find(|(path, _)| *path == place.path)
                .map(|(_, member)| member)
                .expect("made above"),
        };
        let bitmap = plan.bitmap();
        if let Err(error) = write_member(member, place, superblock, bitmap.as_ref(), &mut before) {
            put_back(before);
            return Err(failure(Problem::from_io(&place.path, "write the superblock", &error)));
        }
    }
    Ok(())
}

fn failure(problem: Problem) -> Failure {
    Failure::from_problems("no array was made", vec![Problem { kind: ExitKind::IoError, ..problem }])
}

fn write_member<'a>(
    member: &'a MemberFile,
    place: &Place,
    superblock: &Superblock,
    bitmap: Option<&Bitmap>,
    before: &mut Vec<Before<'a>>,
) -> io::Result<()> {
    let mut replace = |offset: u64, bytes: &[u8], always: bool| -> io::Result<()> {
        let old = member.read(offset, bytes.len())?;
        if always || old != bytes {
            before.push(Before { member, offset, bytes: old });
            member.write(offset, bytes)?;
        }
        Ok(())
    };
    if !place.found.is_empty() {
        // Old superblocks first, wherever they are; then all other signatures outside the data area.
        for found in superblocks::find_all(member)? {
            replace(found.offset, &[0; SUPERBLOCK_BYTES_MAX], false)?;
        }
        for range in Clearing::of(&place.found, superblock).ranges {
            let bytes = usize::try_from(range.end - range.start).expect("at most 1 MiB");
            replace(range.start, &vec![0; bytes], false)?;
        }
    }
    if let Some((start, length)) = superblock.bad_block_log() {
        // No bad blocks: a log of end marks, as mdadm leaves it.
        replace(start.bytes(), &vec![0xff; usize::try_from(length.bytes()).expect("a few KiB")], false)?;
    }
    if let (Some(start), Some(bitmap)) = (superblock.bitmap_start(), bitmap) {
        for page in 0..bitmap.pages() {
            let offset = start.bytes() + (page * PAGE_BYTES) as u64;
            // Zeroes too: where a file has no hole there is room for every bit to come.
            replace(offset, &bitmap.page(page, member.logical_block_bytes), true)?;
        }
    }
    replace(superblock.offset().get(), &superblock.encode(member.logical_block_bytes), false)?;
    member.sync()
}

fn put_back(before: Vec<Before<'_>>) {
    for Before { member, offset, bytes } in before.into_iter().rev() {
        if let Err(error) = member.write(offset, &bytes).and_then(|()| member.sync()) {
            tracing::warn!("cannot put back what was on {}: {error}", member.path.display());
        }
    }
}
