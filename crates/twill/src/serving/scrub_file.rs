//! How far a scrub is, kept for the next server in a file of this machine, as mdcheck does in `/var/lib/mdcheck`: md's
//! superblock has no field for it. If the file is lost or damaged, the scrub begins again.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Sender};
use std::thread::{self, JoinHandle};

use engine::array::scrub::ScrubState;
use layout::md_superblock::display_uuid;

use crate::control;
use crate::own_files::replace_file;

/// Writes the state of one array's scrubs, on a thread of its own: no shard waits for the file.
pub(super) struct ScrubFile {
    sender: Option<Sender<ScrubState>>,
    thread: Option<JoinHandle<()>>,
}

impl ScrubFile {
    /// The file of the array with this identity.
    pub(super) fn new(set_uuid: &[u8; 16]) -> Self {
        let path = path(set_uuid);
        let (sender, states) = mpsc::channel::<ScrubState>();
        let write = move || {
            while let Ok(mut state) = states.recv() {
                while let Ok(newer) = states.try_recv() {
                    state = newer;
                }
                let written = match &path {
                    Some(path) => write(path, &state),
                    None => Err(io::Error::other("HOME is not set, so there is no folder for it")),
                };
                if let Err(error) = written {
                    tracing::warn!(
                        "the progress of a check or repair cannot be saved, so a restart of the server begins it again: {error}"
                    );
                }
            }
        };
        let thread = thread::Builder::new().name("scrub-state".into()).spawn(write).ok();
        ScrubFile { sender: Some(sender), thread }
    }

    /// Where the array's manager sends each new state.
    pub(super) fn sender(&self) -> Sender<ScrubState> {
        self.sender.clone().expect("there until the drop")
    }
}

impl Drop for ScrubFile {
    /// Waits until the last state is written. The manager's sender is gone by now, or this would wait for ever.
    fn drop(&mut self) {
        self.sender = None;
        if let Some(thread) = self.thread.take() {
            let _panicked = thread.join();
        }
    }
}

/// The state that an earlier server left, if there is one.
pub(super) fn left_open(set_uuid: &[u8; 16]) -> Option<ScrubState> {
    let path = path(set_uuid)?;
    let text = fs::read(&path).ok()?;
    match serde_json::from_slice::<ScrubState>(&text) {
        Ok(state) => Some(state),
        Err(error) => {
            tracing::warn!(
                "{}: not the state of a check or repair, so the next one begins at the start: {error}",
                path.display()
            );
            None
        }
    }
}

fn path(set_uuid: &[u8; 16]) -> Option<PathBuf> {
    let name = format!("scrub-{}.json", display_uuid(set_uuid).replace(':', ""));
    Some(control::state_folder()?.join(name))
}

fn write(path: &Path, state: &ScrubState) -> io::Result<()> {
    replace_file(path, &serde_json::to_vec(state)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use engine::array::scrub::Phase;
    use engine::mismatch::ScrubMode;

    #[test]
    fn what_is_written_is_read_again() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("new/scrub.json");
        let mut state = ScrubState::new(3, ScrubMode { repair: true, trust_data: false });
        (state.next_stripe, state.phase) = (77, Phase::Paused);
        write(&path, &state).unwrap();
        write(&path, &state).unwrap();
        let read: ScrubState = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        assert_eq!(read, state);
    }
}
