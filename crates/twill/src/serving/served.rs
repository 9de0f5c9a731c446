//! A served array of either kind: what operators ask of one goes to its management.

use std::path::{Path, PathBuf};

use engine::array::scrub::{ScrubRequest, ScrubState};
use engine::members::load::UpdatePolicy;
use host::device::{Closing, SharedDevice};

use super::managed::ManagedArray;
use super::speed::NewLimits;
use super::take_back::{Tried, take_back};
use super::zoned::ManagedZones;
use super::{acts, add, doubt, re_add, replace, scrub};
use crate::exit::ExitKind;
use crate::failure::Failure;
use crate::probe::clearing::Clearing;
use crate::status::DoubtRange;

/// An array that is served.
pub enum ServedArray {
    /// On md's format.
    InPlace(ManagedArray),
    /// Log-structured, over zones.
    Zoned(ManagedZones),
}

impl ServedArray {
    /// The devices that it has.
    pub(super) fn held(&self) -> Vec<Closing> {
        match self {
            ServedArray::InPlace(array) => {
                array.known.lock().devices.values().map(SharedDevice::closing).collect()
            }
            ServedArray::Zoned(array) => array.held.lock().drain(..).collect(),
        }
    }

    /// Changes how it works.
    ///
    /// # Errors
    /// It does not work so.
    pub fn set(
        &self,
        policy: Option<UpdatePolicy>,
        avoid_slow: Option<bool>,
        limits: &NewLimits,
    ) -> Result<(), Failure> {
        match self {
            ServedArray::InPlace(array) => acts::set(array, policy, avoid_slow, limits),
            ServedArray::Zoned(array) => Err(array.refuse("set")),
        }
    }

    /// Stops using a member. Without `force` not while stripes would be in doubt without it: a zoned array has none.
    ///
    /// # Errors
    /// There is no such member, or the array needs it, or what it costs.
    pub fn fail(&self, member: &str, force: bool) -> Result<(), Failure> {
        match self {
            ServedArray::InPlace(array) => acts::fail(array, member, force),
            ServedArray::Zoned(array) => array.fail(member),
        }
    }

    /// Lets go of a failed member. The paths of the devices.
    ///
    /// # Errors
    /// There is no such member, or it is in use.
    pub fn remove(&self, member: &str) -> Result<Vec<PathBuf>, Failure> {
        match self {
            ServedArray::InPlace(array) => acts::remove(array, member),
            ServedArray::Zoned(array) => array.remove(member),
        }
    }

    /// Adds a device.
    ///
    /// # Errors
    /// Why it is not taken.
    pub fn add(&self, path: &Path, force: bool) -> Result<Clearing, Failure> {
        match self {
            ServedArray::InPlace(array) => add::add(array, path, force),
            ServedArray::Zoned(array) => array.add(path, force),
        }
    }

    /// Grows by devices. Where these held something, `force` gives it up; what was erased of each, and what stays.
    ///
    /// # Errors
    /// Why it does not grow.
    pub fn grow(&self, paths: &[PathBuf], force: bool) -> Result<Vec<Clearing>, Failure> {
        match self {
            ServedArray::InPlace(_) => {
                let message = "an array on md's format does not grow by members here";
                Err(Failure::new(ExitKind::Unsupported, message)
                    .help("stop it and grow it with mdadm --grow; twill add takes a spare"))
            }
            ServedArray::Zoned(array) => array.grow(paths, force),
        }
    }

    /// Takes back members on other machines that were lost and are there again.
    pub fn take_back(&self, tried: &mut Tried) {
        if let ServedArray::InPlace(array) = self {
            take_back(array, tried);
        }
    }

    /// Members whose machines were down at the start are taken back when they are there.
    pub fn expect(&self, absent: Vec<PathBuf>) {
        if let ServedArray::InPlace(array) = self {
            array.remotes.expect(absent);
        }
    }

    /// Takes back a member that was away.
    ///
    /// # Errors
    /// Why it is not taken.
    pub fn re_add(&self, path: &Path) -> Result<(), Failure> {
        match self {
            ServedArray::InPlace(array) => re_add::re_add(array, path),
            ServedArray::Zoned(array) => array.re_add(path),
        }
    }

    /// Replaces a member.
    ///
    /// # Errors
    /// Why not.
    pub fn replace(&self, member: &str, with: Option<&Path>, force: bool) -> Result<(), Failure> {
        match self {
            ServedArray::InPlace(array) => replace::replace(array, member, with, force),
            ServedArray::Zoned(array) => Err(array.refuse_device("replace", member)),
        }
    }

    /// Ends the doubt of stripes. How many there were.
    ///
    /// # Errors
    /// Why not.
    pub fn accept_doubt(&self, ranges: &[DoubtRange]) -> Result<u64, Failure> {
        match self {
            ServedArray::InPlace(array) => doubt::accept(array, ranges),
            ServedArray::Zoned(array) => Err(array.refuse("accept-doubt")),
        }
    }

    /// Starts, pauses, resumes or cancels a check or repair.
    ///
    /// # Errors
    /// Why not.
    pub fn scrub(&self, wish: ScrubRequest) -> Result<(), Failure> {
        match self {
            ServedArray::InPlace(array) => scrub::scrub(array, wish),
            ServedArray::Zoned(array) => array.scrub(wish),
        }
    }

    /// The last check or repair with all it found.
    ///
    /// # Errors
    /// The array is being stopped.
    pub fn scrub_state(&self) -> Result<Option<ScrubState>, Failure> {
        match self {
            ServedArray::InPlace(array) => scrub::scrub_state(array),
            ServedArray::Zoned(array) => array.scrub_state(),
        }
    }
}
