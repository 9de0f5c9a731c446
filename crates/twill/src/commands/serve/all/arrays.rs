//! The arrays of a process that serves many. Each is started on a thread of its own: one that hangs holds up no other.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread;
use std::time::{Duration, Instant};

use layout::md_superblock::display_uuid;
use parking_lot::Mutex;

use super::super::announcement::{Announcement, Started, all_summary};
use super::super::control::NotStopped;
use super::super::one::ToServe;
use super::place::{Begun, Place};
use super::wanted::{Source, Wanted};
use crate::arguments::ServeArguments;
use crate::array_uuid::is_same;
use crate::control::{file_name, own_folder};
use crate::exit::ExitKind;
use crate::failure::{Failure, Problem};
use crate::remote;
use crate::remote_arguments::Fabric;
use crate::service_manager;
use crate::serving::{Process, Stopped};

/// How long an array is tried again whose members are not there.
const TRIED_FOR: Duration = Duration::from_secs(240);
/// Time between two attempts.
const AGAIN_AFTER: Duration = Duration::from_secs(3);
/// How long a stop waits for arrays that are being started.
const STARTS_END_WITHIN: Duration = Duration::from_secs(10);

/// The arrays of the process.
pub struct Arrays {
    process: Process,
    source: Source,
    places: Mutex<Vec<Arc<Place>>>,
    /// No array is started any more.
    is_ending: AtomicBool,
    is_ready: AtomicBool,
}

impl Arrays {
    /// None yet.
    pub fn new(process: Process, source: Source) -> Arc<Self> {
        let (is_ending, is_ready) = (AtomicBool::new(false), AtomicBool::new(false));
        Arc::new(Arrays { process, source, places: Mutex::default(), is_ending, is_ready })
    }

    /// What says which arrays are wanted.
    pub fn source(&self) -> &Source {
        &self.source
    }

    /// Begins to start an array; one that did not start before is forgotten.
    ///
    /// # Errors
    /// It is served, or being started or stopped; or the process ends.
    pub fn start(self: &Arc<Self>, wanted: Wanted) -> Result<Arc<Place>, Failure> {
        if self.is_ending.load(SeqCst) {
            return Err(Failure::new(
                ExitKind::NotFound,
                "the process that serves all arrays is being stopped",
            ));
        }
        let place = Place::new(&wanted.key);
        {
            let mut places = self.places.lock();
            places.retain(|place| !place.is_forgotten());
            let (same, others): (Vec<_>, Vec<_>) =
                places.drain(..).partition(|place| is_of(place, &wanted.key));
            *places = others;
            if let Some(other) = same.iter().find(|other| !other.is_not_served()).cloned() {
                places.extend(same);
                return Err(is_there(&other.name()));
            }
            same.iter().for_each(|other| other.end(None));
            places.push(Arc::clone(&place));
        }
        let (arrays, starting) = (Arc::clone(self), Arc::clone(&place));
        let spawned = thread::Builder::new()
            .name("array".into())
            .spawn(move || arrays.keep_starting(&starting, &wanted));
        spawned.map_err(|error| {
            place.end(None);
            Failure::new(ExitKind::IoError, format!("no thread can be started: {error}"))
        })?;
        Ok(place)
    }

    /// Begins to start every array that is wanted and not served.
    ///
    /// # Errors
    /// The configuration is wrong.
    pub fn start_all(self: &Arc<Self>) -> Result<Vec<Arc<Place>>, Failure> {
        let wanted = self.source.all()?;
        let is_served = |wanted: &Wanted| {
            let places = self.places.lock();
            places.iter().any(|place| is_of(place, &wanted.key) && !place.is_not_served())
        };
        Ok(wanted
            .into_iter()
            .filter(|wanted| !is_served(wanted))
            .filter_map(|wanted| self.start(wanted).ok())
            .collect())
    }

    /// What the starts have come to, waited for until `end`.
    pub fn begun(places: &[Arc<Place>], end: Instant) -> Started {
        let mut outcomes = Started::default();
        for place in places {
            match place.begun(end) {
                Begun::Served(announcement) => outcomes.arrays.push(announcement),
                Begun::NotServed(failure) => {
                    outcomes.not_served.push(Problem::of_array(&place.name(), failure));
                }
                Begun::StillStarting => outcomes.starting.push(place.name()),
                Begun::Over(_) => {}
            }
        }
        outcomes
    }

    /// Stops all arrays at once. How many connections were cut off.
    ///
    /// # Errors
    /// Which go on, as their block devices are in use.
    pub fn stop(&self) -> Result<Stopped, Failure> {
        self.is_ending.store(true, SeqCst);
        let places = self.places.lock().clone();
        let end = Instant::now() + STARTS_END_WITHIN;
        let stop = |place: Arc<Place>| {
            thread::spawn(move || {
                let _started = place.begun(end);
                let outcome = place.stop();
                if place.is_starting() {
                    tracing::warn!("{} is left as it is: its start hangs", place.name());
                }
                (place.name(), outcome)
            })
        };
        let stopping: Vec<_> = places.into_iter().map(stop).collect();
        let (mut all, mut going_on) = (Stopped { clean: true, connections: 0 }, Vec::new());
        for stopping in stopping {
            match stopping.join().expect("a stop does not panic") {
                (_, Ok(None)) => {}
                (_, Ok(Some(stopped))) => {
                    all.clean &= stopped.clean;
                    all.connections += stopped.connections;
                }
                (name, Err(NotStopped::GoesOn(failure))) if failure.kind != ExitKind::NotFound => {
                    going_on.push(Problem::of_array(&name, failure));
                }
                (_, Err(_)) => all.clean = false,
            }
        }
        match going_on.is_empty() {
            true => Ok(all),
            false => {
                self.is_ending.store(false, SeqCst);
                Err(Failure::from_problems("not every array was stopped", going_on))
            }
        }
    }

    /// From now on the service manager shows which arrays are served.
    pub fn is_ready(&self) {
        self.is_ready.store(true, SeqCst);
    }

    fn say_how_it_is(&self) {
        if self.is_ready.load(SeqCst) && !self.is_ending.load(SeqCst) {
            let places = self.places.lock().clone();
            service_manager::status(&all_summary(&Arrays::begun(&places, Instant::now())));
        }
    }

    /// Takes all arrays out. Why the process did not serve, or did not stop in order, what it should have.
    ///
    /// # Errors
    /// Which arrays, and why.
    pub fn verdict(&self) -> Result<(), Failure> {
        let mut problems = Vec::new();
        for place in self.places.lock().drain(..) {
            match place.begun(Instant::now()) {
                Begun::NotServed(failure) | Begun::Over(Some(failure)) => {
                    problems.push(Problem::of_array(&place.name(), failure));
                }
                Begun::Served(_) | Begun::StillStarting | Begun::Over(None) => {}
            }
            place.end(None);
        }
        match problems.is_empty() {
            true => Ok(()),
            false => {
                Err(Failure::from_problems("not every array was served, and stopped in order", problems))
            }
        }
    }

    /// Tries to start an array, and again while its members may come.
    fn keep_starting(self: Arc<Self>, place: &Arc<Place>, wanted: &Wanted) {
        let end = Instant::now() + TRIED_FOR;
        let mut said = None;
        loop {
            // A stop of the process may be refused: then its arrays are tried on.
            if self.is_ending.load(SeqCst) {
                if place.tries_again(AGAIN_AFTER) {
                    continue;
                }
                return;
            }
            if !place.begins() {
                return;
            }
            let outcome = self.attempt(place, wanted);
            let Err(failure) = outcome else { return self.say_how_it_is() };
            let again = may_come(&failure) && Instant::now() < end;
            if said.as_ref() != Some(&failure.message) {
                tracing::error!("{} is not served: {failure}", place.name());
                said = Some(failure.message.clone());
            }
            let is_wanted = place.fails(failure, again);
            self.say_how_it_is();
            if !is_wanted || !again || !place.tries_again(AGAIN_AFTER) {
                return;
            }
        }
    }

    fn attempt(self: &Arc<Self>, place: &Arc<Place>, wanted: &Wanted) -> Result<(), Failure> {
        // It says that it is being started, also while its members are looked for.
        place.answer_at(&provisional(wanted)?)?;
        check_digests(&wanted.arguments)?;
        let to_serve = ToServe::choose(&wanted.arguments)?;
        let control = to_serve.control()?;
        self.claim(place, (to_serve.name(), to_serve.set_uuid()), &control)?;
        place.answer_at(&control).map_err(|failure| to_serve.is_served_already(failure, &control))?;
        let warnings = to_serve.warnings.clone();
        let hearer = Arc::downgrade(place);
        let hear = Box::new(move |ending| match hearer.upgrade() {
            Some(place) => {
                place.hear(ending);
                true
            }
            None => false,
        });
        let controlled = to_serve.start(&self.process, &control, hear)?;
        let announcement = Announcement::new(controlled.status()?, &control, warnings);
        tracing::info!(array = announcement.name, "serving");
        let is_wanted = place.serves(Arc::clone(&controlled), announcement);
        if !is_wanted {
            controlled.stop_and_tell();
        } else if self.is_ending.load(SeqCst) {
            let _said_by_the_process = place.stop();
        }
        Ok(())
    }

    /// The array has this place from now on, if it has no other, and this control socket, if only one whose members are not found has
    /// it: that may be the same array under another name.
    fn claim(
        &self,
        place: &Arc<Place>,
        (name, uuid): (&str, [u8; 16]),
        control: &Path,
    ) -> Result<(), Failure> {
        let mut places = self.places.lock();
        let is_other = |other: &&Arc<Place>| !Arc::ptr_eq(other, place) && other.uuid() == Some(uuid);
        for other in places.iter().filter(is_other) {
            if !other.is_not_served() {
                return Err(is_there(&other.name()));
            }
            other.end(None);
        }
        places.retain(|place| !place.is_forgotten());
        place.is_called(name, uuid);
        places.iter().filter(|other| !Arc::ptr_eq(other, place)).for_each(|other| other.give_way(control));
        Ok(())
    }
}

fn is_there(name: &str) -> Failure {
    let message = format!("{name} is served already by process {}, or is being started", std::process::id());
    Failure::new(ExitKind::AlreadyExists, message).help(format!("twill status {name} says how it is"))
}

/// Whether a place is that of the array with this name or UUID.
fn is_of(place: &Place, key: &str) -> bool {
    let uuid = place.uuid().map(|uuid| display_uuid(&uuid));
    is_same(&place.key, key) || place.name() == key || uuid.is_some_and(|uuid| is_same(&uuid, key))
}

/// Where an array answers until its name is known.
fn provisional(wanted: &Wanted) -> Result<PathBuf, Failure> {
    if let Some(control) = &wanted.arguments.control {
        return Ok(control.clone());
    }
    let name = wanted.key.replace(':', "");
    Ok(own_folder()?.join(format!("{}.sock", file_name(&name))))
}

/// F-I11: where targets work together a flipped bit of a command is as bad as one of data. Connections are those of the process.
fn check_digests(arguments: &ServeArguments) -> Result<(), Failure> {
    let options = remote::options();
    if arguments.fabric == Fabric::Host || options.header_digest && options.data_digest {
        return Ok(());
    }
    let message = "--fabric: targets that work together want digests on the connections of this process";
    let help = "serve --all --hdr-digest --data-digest; or give the array a process of its own: twill serve";
    Err(Failure::new(ExitKind::Usage, message).help(help))
}

/// Whether an array may start later by itself: its members come late.
fn may_come(failure: &Failure) -> bool {
    matches!(
        failure.kind,
        ExitKind::NotEnoughMembers | ExitKind::NotFound | ExitKind::NotAMember | ExitKind::IoError
    )
}
