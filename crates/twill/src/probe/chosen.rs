//! The one array that candidates make, and whether it may start.

use std::path::PathBuf;

use engine::array::assemble::{Assembly, Filter, Found, Refusal, Verdict, assemble};
use engine::events::Event;
use layout::md_superblock::{Superblock, display_uuid};
use layout::units::Slot;

use super::candidates::Candidates;
use crate::exit::ExitKind;
use crate::failure::{Failure, Problem};
use crate::words;

/// An array that may start, and the candidates that it was chosen from.
pub struct Chosen {
    /// Its members, and what else was looked at.
    pub candidates: Candidates,
    /// Which candidate has which part in it.
    pub array: Assembly,
    /// Candidates that belong to no wanted array.
    pub others: Vec<(usize, Verdict)>,
    /// The decision was forced: stale members and stripes in doubt were accepted.
    pub force: bool,
    /// The stale members that force took, as events.
    pub stale: Vec<Event>,
}

impl Chosen {
    /// Decides which array the candidates make.
    ///
    /// # Errors
    /// They make none or several, or it may not start.
    pub fn decide(candidates: Candidates, filter: &Filter) -> Result<Self, Failure> {
        let Found { arrays, others } = assemble(&candidates.read, filter);
        match arrays.as_slice() {
            [] => {
                let problem = |(index, verdict): &(usize, Verdict)| match verdict {
                    Verdict::Refused { reason } if candidates.is_of_interest(*index) => {
                        Some(Problem::new(ExitKind::NotAMember, &candidates.paths[*index], reason))
                    }
                    _ => None,
                };
                let problems = others.iter().filter_map(problem).collect();
                Err(Failure { problems, ..nothing_found(filter) })
            }
            [array] => {
                candidates.check_copies(array)?;
                may_start(&candidates, array)?;
                let array = array.clone();
                let stale = stale_taken(&candidates, &array, filter);
                Ok(Chosen { candidates, array, others, force: filter.force, stale })
            }
            several => {
                let arrays: Vec<_> =
                    several.iter().map(|array| WithMembers::new(&candidates, array)).collect();
                Err(ambiguous(&arrays))
            }
        }
    }
}

impl Chosen {
    /// The stale members that force took, in words.
    pub fn stale_words(&self) -> Vec<String> {
        stale_words(&self.candidates, &self.array, &self.stale)
    }
}

/// Stale members that force took, in words: which, how old, and what may be lost.
pub fn stale_words(candidates: &Candidates, array: &Assembly, stale: &[Event]) -> Vec<String> {
    let words = |taken: &Event| {
        let index = array.slots[taken.member()?.index()]?;
        Some(words::events::of_member(taken, &candidates.paths[index]))
    };
    stale.iter().filter_map(words).collect()
}

/// The members that the array has only by force.
pub fn stale_taken(candidates: &Candidates, array: &Assembly, filter: &Filter) -> Vec<Event> {
    if !filter.force {
        return Vec::new();
    }
    let unforced = Filter { set_uuid: Some(array.set_uuid), force: false, ..Filter::default() };
    let without = assemble(&candidates.read, &unforced).arrays;
    let had = |index: &usize| without.first().is_some_and(|array| array.slots.contains(&Some(*index)));
    let superblock = |index: usize| candidates.read[index].superblock.as_ref().ok();
    let members = || array.slots.iter().flatten().filter_map(|index| superblock(*index));
    let newest_events = members().map(Superblock::events).max().unwrap_or(0);
    let newest_written_unix_s = members().map(Superblock::utime_s).max().unwrap_or(0);
    let stale = Slot::all().zip(&array.slots).filter_map(|(member, slot)| {
        let superblock = superblock(slot.filter(|index| !had(index))?)?;
        Some(Event::StaleMemberTaken {
            member,
            events: superblock.events(),
            newest_events,
            written_unix_s: superblock.utime_s(),
            newest_written_unix_s,
        })
    });
    stale.collect()
}

/// One of several arrays that a command line may mean.
pub struct WithMembers {
    /// Its name and identity, for a person.
    pub words: String,
    /// What was named or found of it.
    pub paths: Vec<PathBuf>,
}

impl WithMembers {
    /// An array on md's format.
    pub fn new(candidates: &Candidates, array: &Assembly) -> Self {
        let words = format!("{} ({})", array.name, display_uuid(&array.set_uuid));
        let paths = array.verdicts.iter().map(|(index, _)| candidates.paths[*index].clone());
        WithMembers { words, paths: paths.collect() }
    }
}

/// The members make several arrays: which of them belongs to which.
pub fn ambiguous(arrays: &[WithMembers]) -> Failure {
    let names: Vec<&str> = arrays.iter().map(|array| array.words.as_str()).collect();
    let message = format!("the members belong to {} arrays: {}", names.len(), names.join(", "));
    let problem = |array: &WithMembers, path: &PathBuf| {
        Problem::new(ExitKind::Ambiguous, path, format!("belongs to {}", array.words))
    };
    let problems = arrays.iter().flat_map(|array| array.paths.iter().map(move |path| problem(array, path)));
    let failure = Failure::new(ExitKind::Ambiguous, message).help("choose one with --uuid or --name");
    Failure { problems: problems.collect(), ..failure }
}

/// No array that the filter lets through.
pub fn nothing_found(filter: &Filter) -> Failure {
    let message = match (&filter.name, &filter.set_uuid) {
        (None, None) => "there is no array on these members".to_owned(),
        (Some(name), _) => format!("there is no array named {name:?} on these members"),
        (None, Some(uuid)) => format!("there is no array {} on these members", display_uuid(uuid)),
    };
    Failure::new(ExitKind::NotAMember, message)
        .help("twill examine says what each of them holds; twill create makes an array of new ones")
}

/// What the engine's refusal means for an operator, with what `--force` would take.
///
/// # Errors
/// The array does not start.
pub fn may_start(candidates: &Candidates, array: &Assembly) -> Result<(), Failure> {
    let Err(refusal) = &array.start else { return Ok(()) };
    let failure = Failure::new(ExitKind::from(refusal), format!("the array does not start: {refusal}"));
    let forced = Filter { set_uuid: Some(array.set_uuid), name: None, force: true };
    let forced = assemble(&candidates.read, &forced).arrays;
    let failure = match refusal {
        Refusal::NotEnoughMembers { .. } => failure
            .help("bring members back: twill assemble --explain says which are missing or stale, and why"),
        Refusal::Split { .. } => failure,
        _ => failure.help("the members have md's format: mdadm may run it, or put it right"),
    };
    let Some(forced) = forced.first().filter(|forced| forced.start.is_ok()) else { return Err(failure) };
    let is_stale = |index: &usize| !array.slots.contains(&Some(*index));
    let stale = forced.slots.iter().flatten().filter(|index| is_stale(index));
    let stale: Vec<String> = stale.map(|index| candidates.paths[*index].display().to_string()).collect();
    Err(match stale.is_empty() {
        true => failure,
        false => failure.help(format!(
            "--force starts it with {}, which is stale: writes made since it left may be lost",
            stale.join(", ")
        )),
    })
}
