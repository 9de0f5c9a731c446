//! The last event of each array that was reported, kept in a file: the next monitor continues from there.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::control;
use crate::failure::Failure;
use crate::own_files::replace_file;

/// By UUID.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Arrays(BTreeMap<String, Array>);

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Array {
    name: String,
    last: u64,
}

/// The last event of each array that was told.
pub struct Seen {
    path: Option<PathBuf>,
    arrays: Arrays,
    is_kept: bool,
}

impl Seen {
    /// As the file of this user says, if there is one.
    ///
    /// # Errors
    /// There is one that cannot be read or is no such file: nobody may guess what was told.
    pub fn read() -> Result<Self, Failure> {
        let Some(path) = control::state_folder().map(|folder| folder.join("monitor.json")) else {
            tracing::warn!("HOME is not set, so what was told is forgotten when the monitor ends");
            return Ok(Seen { path: None, arrays: Arrays::default(), is_kept: true });
        };
        let arrays = match fs::read(&path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Arrays::default(),
            Err(error) => return Err(Failure::from_io("read", &path, &error)),
            Ok(bytes) => serde_json::from_slice(&bytes).map_err(|error| {
                let message = format!("{} does not say which events were told: {error}", path.display());
                Failure::new(crate::exit::ExitKind::Damaged, message)
                    .help("remove it: the monitor then tells what happens from now on")
            })?,
        };
        Ok(Seen { path: Some(path), arrays, is_kept: true })
    }

    /// The last event of an array that was told. None: no monitor knew the array.
    pub fn last(&self, uuid: &str) -> Option<u64> {
        self.arrays.0.get(uuid).map(|array| array.last)
    }

    /// Events up to this one were told.
    pub fn set(&mut self, uuid: &str, name: &str, last: u64) {
        let array = Array { name: name.to_owned(), last };
        let before = self.arrays.0.get(uuid);
        self.is_kept &= before == Some(&array);
        self.arrays.0.insert(uuid.to_owned(), array);
    }

    /// Writes the file if something has changed.
    pub fn keep(&mut self) {
        let Some(path) = self.path.as_ref().filter(|_| !self.is_kept) else { return };
        let text = serde_json::to_vec_pretty(&self.arrays).expect("plain data");
        match replace_file(path, &text) {
            Ok(()) => self.is_kept = true,
            Err(error) => tracing::warn!(path = %path.display(), %error, "what was told is not kept"),
        }
    }
}
