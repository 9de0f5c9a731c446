//! The reads that the engine's start asks for, from the members' files and devices.

use std::cell::OnceCell;
use std::path::PathBuf;

use engine::array::assemble::{Assembly, Candidate};
use engine::array::start::Inspection;

use super::member_file::MemberFile;
use layout::units::DeviceOffset;

/// What the engine may read of an array's members before they are served; `paths` by candidate. Each file is opened once.
pub fn inspection<'a>(
    paths: &'a [PathBuf],
    candidates: &'a [Candidate],
    assembly: &'a Assembly,
) -> Inspection<'a, impl Fn(usize, DeviceOffset, usize) -> Result<Vec<u8>, String> + use<'a>> {
    let files: Vec<OnceCell<Result<MemberFile, String>>> = paths.iter().map(|_| OnceCell::new()).collect();
    let read = move |candidate: usize, offset: DeviceOffset, bytes| {
        let opened = files[candidate]
            .get_or_init(|| MemberFile::open(&paths[candidate]).map_err(|problem| problem.what));
        let file = opened.as_ref().map_err(Clone::clone)?;
        file.read(offset.get(), bytes).map_err(|error| error.to_string())
    };
    Inspection { candidates, assembly, read }
}
