//! stub
use std::path::{Path, PathBuf};
use crate::Error;
/// Plan.
pub struct Plan { /// r
 pub requests: u64, /// t
 pub traces: PathBuf, /// v
 pub variants: bool, /// b
 pub blocks: usize, /// s
 pub seed: u64 }
/// make
/// # Errors
/// none
pub fn make(_: &Plan, _: &Path, _: &mut dyn FnMut(&str)) -> Result<(), Error> { Ok(()) }
