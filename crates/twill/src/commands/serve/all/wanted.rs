//! Which arrays are to be served, and how: those of the configuration, or without one those that block devices make.

use std::path::{Path, PathBuf};

use engine::array::assemble::{Filter, assemble};
use layout::md_superblock::display_uuid;

use super::command_line::given_to_serve;
use super::configuration::{self, Configuration, Listed};
use super::settings::{Settings, Wrong};
use crate::arguments::ServeArguments;
use crate::array_name;
use crate::array_uuid::{self, is_same};
use crate::commands::assemble::{self as choose, in_use::in_use};
use crate::exit::ExitKind;
use crate::failure::Failure;
use crate::plain::plain;
use crate::probe::member_file::MemberFile;
use crate::probe::superblocks::superblock_of;
use crate::probe::zoned_candidates::ZonedCandidates;
use crate::remote;

/// Where the configuration is.
const FILE: &str = "/etc/twill/twill.toml";

/// An array that is to be served.
#[derive(Clone, Debug)]
pub struct Wanted {
    /// What it is known by until its members are found: its name or UUID.
    pub key: String,
    /// How it is served.
    pub arguments: ServeArguments,
    /// The configuration names it, or a search has found it: it counts as one of those that are to be served.
    pub is_listed: bool,
}

/// What says which arrays are wanted.
pub struct Source {
    /// None: there is no configuration.
    file: Option<PathBuf>,
    /// Of the command line, for every array.
    settings: Settings,
}

impl Source {
    /// What the command line of `serve --all` says.
    ///
    /// # Errors
    /// An option that cannot hold for every array.
    pub fn of_command_line(arguments: &ServeArguments) -> Result<Self, Failure> {
        let given = given_to_serve(std::env::args_os().collect());
        let given = given.map_err(|error| Failure::new(ExitKind::Usage, error.to_string()))?;
        let settings = Settings::of_command_line(given);
        let settings = settings.map_err(|Wrong { what, help }| {
            Failure::new(ExitKind::Usage, format!("--all: {what}"))
                .help(format!("{help} of the configuration"))
        })?;
        let file = match &arguments.of_all.config {
            Some(path) => Some(std::path::absolute(path).unwrap_or_else(|_| path.clone())),
            None => Some(PathBuf::from(FILE)).filter(|path| path.exists()),
        };
        Ok(Source { file, settings })
    }

    /// Refuses a configuration that is wrong.
    ///
    /// # Errors
    /// What is wrong, with its line, and what helps.
    pub fn check(&self) -> Result<(), Failure> {
        self.configuration().map(drop)
    }

    /// Every array that is wanted now.
    ///
    /// # Errors
    /// The configuration is wrong; no device can be looked at.
    pub fn all(&self) -> Result<Vec<Wanted>, Failure> {
        let configuration = self.configuration()?;
        if self.file.is_none() {
            return self.found(&configuration);
        }
        configuration.arrays.iter().map(|listed| self.listed(&configuration, listed)).collect()
    }

    /// The array with this name or UUID, or with this member: as the configuration has it, or as others are served.
    ///
    /// # Errors
    /// The configuration is wrong; the path is that of no member.
    pub fn one(&self, word: &str) -> Result<Wanted, Failure> {
        let configuration = self.configuration()?;
        let by_key = |word: &str| configuration.arrays.iter().find(|listed| is_same(&listed.key, word));
        if let Some(listed) = by_key(word) {
            return self.listed(&configuration, listed);
        }
        let path = Path::new(word);
        if path.is_absolute() || remote::address(path).is_some() {
            let (uuid, name) = identity_of(path)?;
            return match by_key(&uuid).or_else(|| by_key(&name)) {
                Some(listed) => self.listed(&configuration, listed),
                None => self.unlisted(&configuration, &uuid),
            };
        }
        self.unlisted(&configuration, word)
    }

    fn configuration(&self) -> Result<Configuration, Failure> {
        self.file.as_deref().map_or_else(|| Ok(Configuration::default()), configuration::read)
    }

    fn unlisted(&self, configuration: &Configuration, key: &str) -> Result<Wanted, Failure> {
        let wanted = self.wanted(configuration, key, &Settings::default())?;
        Ok(Wanted { is_listed: false, ..wanted })
    }

    fn listed(&self, configuration: &Configuration, listed: &Listed) -> Result<Wanted, Failure> {
        self.wanted(configuration, &listed.key, &listed.settings)
    }

    fn wanted(&self, configuration: &Configuration, key: &str, own: &Settings) -> Result<Wanted, Failure> {
        let settings = self.settings.overridden_by(&configuration.defaults).overridden_by(own);
        let mut arguments = settings.arguments().map_err(|Wrong { what, help }| {
            Failure::new(ExitKind::Usage, format!("{key}: {what}")).help(help)
        })?;
        match array_uuid::parse(key).is_some() {
            true => arguments.choice.uuid = Some(key.to_owned()),
            false => arguments.choice.name = Some(array_name::checked(key)?),
        }
        Ok(Wanted { key: key.to_owned(), arguments, is_listed: true })
    }

    /// The arrays that block devices make, or what the command line has looked at instead.
    fn found(&self, configuration: &Configuration) -> Result<Vec<Wanted>, Failure> {
        let arguments = self.settings.arguments().map_err(|Wrong { what, help }| {
            Failure::new(ExitKind::Usage, format!("--all: {what}")).help(help)
        })?;
        let everything = Filter::default();
        let candidates = choose::read(&arguments.choice)?;
        let mut uuids = Vec::new();
        for array in assemble(&candidates.read, &everything).arrays {
            let (name, uuid) = (array_name::short(&array.name).to_owned(), display_uuid(&array.set_uuid));
            match in_use(&candidates, &array).first() {
                Some(problem) => {
                    let (member, what) = (&problem.member, &problem.what);
                    tracing::info!(uuid, "{} is left alone: {member} {what}", plain(&name));
                }
                None => uuids.push(uuid),
            }
        }
        let zoned = ZonedCandidates::read(&choose::paths(&arguments.choice)?, true);
        uuids.extend(zoned.arrays(&everything).iter().map(|array| display_uuid(&array.speaker.set_uuid)));
        uuids.iter().map(|uuid| self.wanted(configuration, uuid, &Settings::default())).collect()
    }
}

/// UUID and name of the array that a device is a member of.
fn identity_of(path: &Path) -> Result<(String, String), Failure> {
    let zoned = ZonedCandidates::read(&[path.to_path_buf()], false).arrays(&Filter::default());
    if let Some(array) = zoned.first() {
        return Ok((display_uuid(&array.speaker.set_uuid), array.name().to_owned()));
    }
    let superblock = MemberFile::open(path).and_then(|member| superblock_of(&member));
    let superblock = superblock.map_err(|problem| {
        Failure::from_problems("there is no array to be served", vec![problem]).help(
            "twill start takes an array's name, its UUID or a member; twill list --scan has all of them",
        )
    })?;
    Ok((display_uuid(&superblock.set_uuid()), array_name::short(&superblock.set_name()).to_owned()))
}
