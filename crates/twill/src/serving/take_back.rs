//! Members on other machines that failed because they were lost, and are there again: the bitmap says what they lack.

use std::path::{Path, PathBuf};

use super::managed::ManagedArray;
use super::re_add::re_add;
use crate::exit::ExitKind;

/// How often a member that is back is tried before it is left to the operator.
const ATTEMPTS: u32 = 30;

/// How many rounds go by until machines that were down are asked again.
const ABSENT_ROUNDS: u32 = 5;

/// How often members that came back were tried without success, and how many rounds there were.
#[derive(Default)]
pub struct Tried(Vec<(PathBuf, u32)>, u32);

/// Takes back members that failed because they were lost, and are there again; and those whose machines were down at the start.
pub fn take_back(array: &ManagedArray, tried: &mut Tried) {
    tried.1 = tried.1.wrapping_add(1);
    if tried.1.is_multiple_of(ABSENT_ROUNDS) {
        array.remotes.absent().iter().for_each(|path| take_absent(array, path));
    }
    for path in array.remotes.due() {
        let Err(failure) = re_add(array, &path) else {
            array.remotes.settle(&path);
            tried.0.retain(|(other, _)| *other != path);
            continue;
        };
        let at = tried.0.iter().position(|(other, _)| *other == path).unwrap_or_else(|| {
            tried.0.push((path.clone(), 0));
            tried.0.len() - 1
        });
        tried.0[at].1 += 1;
        if tried.0[at].1 >= ATTEMPTS {
            tracing::warn!("not taken back: {failure}");
            array.remotes.settle(&path);
            tried.0.swap_remove(at);
        } else {
            tracing::debug!("not taken back yet: {failure}");
        }
    }
}

/// Takes a member whose machine was down at the start, if it is there.
fn take_absent(array: &ManagedArray, path: &Path) {
    match re_add(array, path) {
        Ok(()) => array.remotes.settle(path),
        Err(failure) if failure.kind == ExitKind::IoError => tracing::debug!("not there yet: {failure}"),
        Err(failure) => {
            tracing::warn!("not taken back: {failure}");
            array.remotes.settle(path);
        }
    }
}
