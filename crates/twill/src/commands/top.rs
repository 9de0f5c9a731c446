//! `top`: served arrays live in a terminal, or one frame of it as text.
//!
//! A thread for each server asks it once in an interval, so that one that hangs holds up none of the others, and not the keys.

mod frame;

use std::collections::BTreeMap;
use std::io::IsTerminal as _;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use clap::Args;
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use serde::Serialize;

use super::output::Output;
use crate::control::{self, Client, Which};
use crate::duration;
use crate::exit::ExitKind;
use crate::failure::{Failure, Problem};
use crate::overview::{Overview, Rates, Shown};
use frame::{Frame, Position};

/// How often keys and answers are looked for.
const KEY_INTERVAL: Duration = Duration::from_millis(50);

/// How long the first answers are waited for: longer than a server that hangs is.
const FIRST_LIMIT: Duration = Duration::from_secs(5);

/// Arguments of `top`.
#[derive(Debug, Args)]
#[command(after_help = "Example: see what the arrays of this machine do; q ends it, ? shows the keys
  twill top

Example: one frame for a script, or the numbers of a second
  twill top --once
  twill top --json | jq '.arrays[0].rates.write_bytes'

It has the server measure latencies and members' speeds from then on, which costs each request some tens of nanoseconds.")]
pub struct TopArguments {
    /// Its control socket.
    #[arg(long, value_name = "PATH")]
    pub control: Option<PathBuf>,
    /// Its name, UUID, block device or a member; without one, all that are served.
    pub array: Option<String>,
    /// Print one frame, made of two looks, and end. With --json this is always so.
    #[arg(long)]
    pub once: bool,
    /// How often to look.
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = duration::parse)]
    pub interval: Duration,
}

/// What is known of the server behind a socket.
#[derive(Default)]
struct Known {
    shown: Option<Box<Shown>>,
    trouble: Option<Failure>,
}

type Answer = (PathBuf, Result<Overview, Failure>);

/// Shows arrays until a key ends it, or once.
///
/// # Errors
/// No such array; the terminal cannot be used.
pub fn run(arguments: &TopArguments, output: Output) -> Result<(), Failure> {
    let interval = arguments.interval.max(Duration::from_millis(100));
    let mut watched = Watched::begin(arguments, interval)?;
    watched.wait_for_all(1)?;
    if output.json || arguments.once {
        watched.wait_for_all(2)?;
        return once(&watched, output);
    }
    if !std::io::stdout().is_terminal() || !std::io::stdin().is_terminal() {
        return Err(Failure::new(ExitKind::Usage, "twill top needs a terminal")
            .help("twill top --once prints one frame, --json the numbers"));
    }
    let mut terminal = ratatui::try_init().map_err(|error| cannot_draw(&error))?;
    let shown = watched.show(&mut terminal);
    ratatui::restore();
    shown.map_err(|error| cannot_draw(&error))
}

fn cannot_draw(error: &std::io::Error) -> Failure {
    Failure::new(ExitKind::IoError, format!("the terminal cannot be used: {error}"))
        .help("twill top --once prints one frame")
}

#[derive(Serialize)]
struct Numbers<'a> {
    arrays: Vec<&'a Shown>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    unanswered: Vec<Problem>,
}

fn once(watched: &Watched, output: Output) -> Result<(), Failure> {
    let unanswered = watched.unanswered();
    let answer = Numbers { arrays: watched.shown().collect(), unanswered: unanswered.clone() };
    output.print(&answer, |_| watched.frame().text())?;
    if unanswered.is_empty() {
        return Ok(());
    }
    Err(Failure::from_problems("not every server answers", unanswered).answered())
}

/// The servers that are watched.
struct Watched {
    /// All that come and go; else the one that was named.
    all: bool,
    interval: Duration,
    known: BTreeMap<PathBuf, Known>,
    /// How often each has answered, or failed to.
    looks: BTreeMap<PathBuf, usize>,
    answers: Receiver<Answer>,
    to: Sender<Answer>,
    /// Servers that were found since.
    found: Receiver<PathBuf>,
}

impl Watched {
    fn begin(arguments: &TopArguments, interval: Duration) -> Result<Self, Failure> {
        let (control, array) = (arguments.control.as_deref(), arguments.array.as_deref());
        let all = control.is_none() && array.is_none();
        let paths: Vec<PathBuf> = if all {
            control::served().into_iter().map(|(_, path)| path).collect()
        } else {
            vec![control::connect(Which { control, array, by_option: false })?.path().to_owned()]
        };
        if paths.is_empty() {
            return Err(Failure::new(ExitKind::NotFound, "no array is served")
                .help("start one with twill serve, or name its socket with --control PATH"));
        }
        let (to, answers) = channel();
        let (known, looks) = (BTreeMap::new(), BTreeMap::new());
        let mut watched = Watched { all, interval, known, looks, answers, to, found: find(all, interval) };
        paths.into_iter().for_each(|path| watched.watch(path));
        Ok(watched)
    }

    /// Begins to ask a server.
    fn watch(&mut self, path: PathBuf) {
        self.known.insert(path.clone(), Known::default());
        let (to, interval) = (self.to.clone(), self.interval);
        thread::spawn(move || {
            loop {
                let answer = Client::ask_briefly::<Overview>(&path, "overview");
                let is_gone = answer.as_ref().is_err_and(|failure| failure.kind == ExitKind::NotFound);
                if to.send((path.clone(), answer)).is_err() || is_gone {
                    return;
                }
                thread::sleep(interval);
            }
        });
    }

    /// Waits until every server has answered that often, or long enough.
    fn wait_for_all(&mut self, looks: usize) -> Result<(), Failure> {
        let end = Instant::now() + FIRST_LIMIT + self.interval;
        let is_behind = |watched: &Self| {
            watched.known.keys().any(|path| watched.looks.get(path).copied().unwrap_or(0) < looks)
        };
        while is_behind(self) && Instant::now() < end {
            if let Ok(answer) = self.answers.recv_timeout(KEY_INTERVAL) {
                self.take(answer);
            }
        }
        match self.known.values().find_map(|known| known.trouble.clone()) {
            Some(failure) if self.known.len() == 1 => Err(failure),
            _ => Ok(()),
        }
    }

    fn take(&mut self, (path, answer): Answer) {
        *self.looks.entry(path.clone()).or_default() += 1;
        let Some(known) = self.known.get_mut(&path) else { return };
        match answer {
            Ok(now) => {
                let rates = known.shown.as_ref().and_then(|before| Rates::between(&before.now, &now));
                *known = Known { shown: Some(Box::new(Shown { rates, now })), trouble: None };
            }
            Err(failure) if failure.kind == ExitKind::NotFound && self.all => {
                self.known.remove(&path); // it was stopped
            }
            Err(failure) => known.trouble = Some(failure),
        }
    }

    fn shown(&self) -> impl Iterator<Item = &Shown> {
        self.known.values().filter_map(|known| known.shown.as_deref())
    }

    fn unanswered(&self) -> Vec<Problem> {
        let problem = |(path, known): (&PathBuf, &Known)| {
            let failure = known.trouble.clone()?;
            let problem = Problem::new(failure.kind, path, failure.message);
            Some(Problem { help: failure.help, ..problem })
        };
        self.known.iter().filter_map(problem).collect()
    }

    fn frame(&self) -> Frame {
        let troubles = self.known.iter().filter_map(|(path, known)| {
            let failure = known.trouble.as_ref()?;
            Some(format!("{}: {}", path.display(), failure.message))
        });
        let troubles = troubles.collect();
        Frame { arrays: self.shown().cloned().collect(), troubles }
    }

    /// Draws until a key ends it.
    fn show(&mut self, terminal: &mut DefaultTerminal) -> std::io::Result<()> {
        let mut position = Position::default();
        let mut is_new = true;
        loop {
            while let Ok(answer) = self.answers.try_recv() {
                self.take(answer);
                is_new = true;
            }
            while let Ok(path) = self.found.try_recv() {
                if !self.known.contains_key(&path) {
                    self.watch(path);
                }
            }
            if is_new {
                let frame = self.frame();
                terminal.draw(|screen| frame.draw(screen, &mut position))?;
                is_new = false;
            }
            if event::poll(KEY_INTERVAL)? {
                match event::read()? {
                    Event::Key(key) if key.kind != KeyEventKind::Release => {
                        if is_end(key) {
                            return Ok(());
                        }
                        position.press(key.code);
                    }
                    _ => {} // a new size
                }
                is_new = true;
            }
        }
    }
}

/// Looks for servers in a thread: connecting to one that hangs may take long.
fn find(all: bool, interval: Duration) -> Receiver<PathBuf> {
    let (to, found) = channel();
    if all {
        thread::spawn(move || {
            loop {
                thread::sleep(interval);
                if control::served().into_iter().any(|(_, path)| to.send(path).is_err()) {
                    return;
                }
            }
        });
    }
    found
}

fn is_end(key: KeyEvent) -> bool {
    let ctrl_c = key.code == KeyCode::Char('c') && key.modifiers.contains(KeyModifiers::CONTROL);
    ctrl_c || matches!(key.code, KeyCode::Char('q' | 'Q') | KeyCode::Esc)
}
