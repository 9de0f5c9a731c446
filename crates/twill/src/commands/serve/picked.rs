//! The one array that a command line means, of either kind, and what is said of it before it is served.

use std::path::{Path, PathBuf};

use engine::array::assemble::{Filter, Verdict, assemble};
use engine::members::MemberState;
use engine::stripe::redo::RedoContents;

use super::cost::{self, Cost};
use crate::arguments::{Choice, ServeArguments};
use crate::commands::assemble as choose;
use crate::counted::slots_words;
use crate::exit::ExitKind;
use crate::failure::Failure;
use crate::plain::plain;
use crate::probe::chosen::{Chosen, WithMembers, ambiguous};
use crate::probe::zoned_candidates::{ZonedCandidates, ZonedChosen};
use crate::remote;
use crate::remote_arguments::{Fabric, Reducers};
use crate::serving::zoned::ManagedZones;
use crate::serving::{Process, ServeOptions, Serving};

/// An array that may start.
pub enum Picked {
    /// On md's format.
    InPlace(Chosen),
    /// Log-structured, over zones.
    Zoned(ZonedChosen),
}

impl Picked {
    /// Decides which array is meant.
    ///
    /// # Errors
    /// None or several, or it may not start.
    pub fn decide(choice: &Choice, filter: &Filter) -> Result<Self, Failure> {
        let candidates = choose::read(choice)?;
        let zoned = ZonedCandidates::read(&choose::paths(choice)?, choice.scan.is_some());
        let arrays = zoned.arrays(filter);
        if arrays.is_empty() {
            return Chosen::decide(candidates, filter).map(Picked::InPlace);
        }
        let in_place = assemble(&candidates.read, filter).arrays;
        if !in_place.is_empty() {
            let in_place = in_place.iter().map(|array| WithMembers::new(&candidates, array));
            let of_zones = arrays.iter().map(|array| zoned.with_members(array));
            return Err(ambiguous(&in_place.chain(of_zones).collect::<Vec<_>>()));
        }
        let chosen = ZonedChosen::decide(zoned, filter)?;
        Ok(Picked::Zoned(chosen.expect("there is one")))
    }

    /// The array's name, without the host's.
    pub fn name(&self) -> &str {
        match self {
            Picked::InPlace(chosen) => chosen.array.name.rsplit(':').next().unwrap_or_default(),
            Picked::Zoned(chosen) => chosen.array.name(),
        }
    }

    /// Its identity.
    pub fn set_uuid(&self) -> [u8; 16] {
        match self {
            Picked::InPlace(chosen) => chosen.array.set_uuid,
            Picked::Zoned(chosen) => chosen.array.speaker.set_uuid,
        }
    }

    /// Paths of all candidates.
    pub fn paths(&self) -> &[PathBuf] {
        match self {
            Picked::InPlace(chosen) => &chosen.candidates.paths,
            Picked::Zoned(chosen) => &chosen.candidates.paths,
        }
    }

    /// Serves it, on shards of the process.
    ///
    /// # Errors
    /// What is wrong, with which member, and what would help.
    pub fn start(&self, options: &ServeOptions, process: &Process) -> Result<Serving, Failure> {
        match self {
            Picked::InPlace(chosen) => Serving::start(chosen, options, process),
            Picked::Zoned(chosen) => ManagedZones::start(chosen, options, process),
        }
    }

    /// Callers in other folders must understand the paths that `status` prints.
    pub fn with_absolute_paths(mut self) -> Self {
        let paths = match &mut self {
            Picked::InPlace(chosen) => &mut chosen.candidates.paths,
            Picked::Zoned(chosen) => &mut chosen.candidates.paths,
        };
        for path in paths {
            *path = absolute(path);
        }
        self
    }

    /// Refuses what does not go with the array.
    ///
    /// # Errors
    /// [`ExitKind::Usage`] names the option; [`ExitKind::NotEnoughMembers`] with --no-degraded.
    pub fn check(&self, arguments: &ServeArguments) -> Result<(), Failure> {
        if let Picked::Zoned(_) = self {
            check_zoned(arguments)?;
        }
        let states = match self {
            Picked::InPlace(chosen) => chosen.array.states(),
            Picked::Zoned(chosen) => chosen.array.states(),
        };
        let out: Vec<usize> = (0..states.len()).filter(|slot| states[*slot] != MemberState::InSync).collect();
        if out.is_empty() || !arguments.no_degraded {
            return Ok(());
        }
        let message = format!("the array would start degraded: no member in sync in {}", slots_words(&out));
        let help = "bring the members back, or start it without --no-degraded: `twill assemble --explain` says which are missing";
        Err(Failure::new(ExitKind::NotEnoughMembers, message).help(help))
    }

    /// What it costs to start without the members that are not there; a zoned array has no stripes in doubt.
    pub fn cost(&self) -> Option<Cost> {
        match self {
            Picked::InPlace(chosen) => cost::cost(chosen),
            Picked::Zoned(_) => None,
        }
    }

    /// Members that superblocks name and that are not there.
    pub fn missing(&self) -> Option<String> {
        let slots = match self {
            Picked::InPlace(chosen) => choose::missing_members(&chosen.candidates, &chosen.array),
            Picked::Zoned(chosen) => chosen.missing_members(),
        };
        let words = || format!("no member in {}, which the others call active", slots_words(&slots));
        (!slots.is_empty()).then(|| self.cost().map_or_else(words, |cost| cost.words()))
    }

    /// What an operator should know before.
    pub fn warnings(&self) -> Vec<String> {
        let (mut warnings, slots, verdicts) = match self {
            Picked::InPlace(chosen) => {
                let is_of_interest = |other: &&(usize, Verdict)| chosen.candidates.is_of_interest(other.0);
                let others = chosen.others.iter().filter(is_of_interest);
                let verdicts: Vec<_> = chosen.array.verdicts.iter().chain(others).collect();
                (chosen.stale_words(), &chosen.array.slots, verdicts)
            }
            Picked::Zoned(chosen) => {
                (Vec::new(), &chosen.array.slots, chosen.array.verdicts.iter().collect())
            }
        };
        for (index, verdict) in verdicts {
            if let Verdict::Refused { reason } = verdict {
                let path = self.paths()[*index].display().to_string();
                warnings.push(format!("{} is not taken: {}", plain(&path), plain(reason)));
            }
        }
        if let Picked::Zoned(chosen) = self {
            let stranger = |(path, reason): (&Path, String)| {
                format!("{} is not taken: it {}", plain(&path.display().to_string()), plain(&reason))
            };
            warnings.extend(chosen.candidates.strangers(&chosen.array).into_iter().map(stranger));
        }
        let missing: Vec<usize> = (0..slots.len()).filter(|slot| slots[*slot].is_none()).collect();
        match self.cost() {
            Some(cost) => warnings.push(format!("degraded: {}", cost.words())),
            None if missing.is_empty() => {}
            None => warnings.push(format!("degraded: no member in {}", slots_words(&missing))),
        }
        warnings
    }

    /// Paths of stale members that may come back: those that no superblock calls failed, or with `all` those too.
    pub fn away(&self, all: bool) -> Vec<PathBuf> {
        let Picked::InPlace(Chosen { candidates, array, .. }) = self else { return Vec::new() };
        let is_away = |(index, verdict): &&(usize, Verdict)| {
            matches!(verdict, Verdict::Refused { .. }) && (all || array.left_behind.contains(index))
        };
        let indices = array.verdicts.iter().filter(is_away).map(|(index, _)| *index);
        indices.map(|index| candidates.paths[index].clone()).collect()
    }
}

/// A path that means the same in another folder.
pub fn absolute(path: &Path) -> PathBuf {
    remote::absolute(path)
}

/// Options that say something of md arrays, which zoned ones have no use for.
fn check_zoned(arguments: &ServeArguments) -> Result<(), Failure> {
    let given = [
        ("--parity-cache", arguments.parity_cache.is_some(), "nothing is read before a write"),
        ("--no-two-phase", arguments.no_two_phase, "only whole stripes are written"),
        ("--update-policy", arguments.update_policy != Default::default(), "nothing is read before a write"),
        ("--avoid-slow", arguments.avoid_slow, "it is not built for zoned arrays yet"),
        (
            "--consistency-policy",
            arguments.consistency_policy.is_some(),
            "there is no write hole to be accepted",
        ),
        ("--no-redo-log", arguments.no_redo_log, "there is no redo log"),
        ("--redo", arguments.redo != RedoContents::default(), "there is no redo log"),
        ("--fabric", arguments.fabric != Fabric::default(), "its members' targets make no parity yet"),
        ("--reducers", arguments.reducers != Reducers::default(), "its members' targets make no parity yet"),
        ("--re-add", arguments.re_add, "it is not built for zoned arrays yet"),
        ("--spare-group", arguments.spare_group.is_some(), "zoned arrays have no spares yet"),
    ];
    let Some((option, _, why)) = given.into_iter().find(|(_, is_given, _)| *is_given) else { return Ok(()) };
    let message = format!("{option} is not for a zoned array: {why}");
    Err(Failure::new(ExitKind::Usage, message).help(format!("leave out {option}")))
}
