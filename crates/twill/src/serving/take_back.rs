//! Members on other machines that failed because they were lost, and are there again: the bitmap says what they lack.

use std::path::PathBuf;

use super::managed::ManagedArray;
use super::re_add::re_add;

/// How often a member that is back is tried before it is left to the operator.
const ATTEMPTS: u32 = 30;

/// How often members that came back were tried without success.
#[derive(Default)]
pub struct Tried(Vec<(PathBuf, u32)>);

/// Takes back members that failed because they were lost, and are there again.
pub fn take_back(array: &ManagedArray, tried: &mut Tried) {
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
