//! Whether what a device holds may be given up without a word.

use super::member_file::MemberFile;
use super::signatures::Signature;
use crate::exit::ExitKind;
use crate::failure::Problem;

/// Refuses a member with known contents, and a file with any data: it may be an image that no tool recognises.
///
/// # Errors
/// [`ExitKind::NeedsForce`] says what is there.
pub fn check_empty(member: &MemberFile, found: &[Signature]) -> Result<(), Problem> {
    let holds = |what: String| {
        Problem::new(ExitKind::NeedsForce, &member.path, what).help("--force destroys what is there")
    };
    if !found.is_empty() {
        let mut words: Vec<&str> = found.iter().map(|signature| signature.words.as_str()).collect();
        words.dedup();
        return Err(holds(format!("has {}", words.join(" and "))));
    }
    if member.is_block_device() || member.is_remote() {
        return Ok(());
    }
    match member.first_data(0).map_err(|error| Problem::from_io(&member.path, "look for data", &error))? {
        Some(at) => Err(holds(format!("is a file with data, from byte {at} on"))),
        None => Ok(()),
    }
}
