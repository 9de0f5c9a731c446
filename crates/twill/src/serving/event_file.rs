//! What happened to an array, kept in a file of this machine from one server to the next, also after a kill.
//!
//! A line has its checksum, a space, and the event as JSON; a line that was torn or damaged is passed over. When the file has
//! grown to its limit it becomes the older one of two, and a new one begins: together they never hold more than twice the limit. A
//! later line with the number of an earlier one takes its place: the event happened again.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Sender};
use std::thread::{self, JoinHandle};

use layout::Checksum;
use layout::md_superblock::display_uuid;
use rustix::fs::OFlags;
use serde_json::Value;

use crate::control;

/// Bytes after which a new file begins: some 4,000 events.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Writes events to the file of one array, on a thread of its own: no shard waits for it.
pub(super) struct EventFile {
    sender: Option<Sender<Value>>,
    thread: Option<JoinHandle<()>>,
}

impl EventFile {
    /// The file of the array with this identity, and the events that it holds.
    pub(super) fn open(set_uuid: &[u8; 16]) -> (Self, BTreeMap<u64, Value>) {
        let Some(path) = path(set_uuid) else {
            tracing::warn!(
                "HOME is not set, so there is no folder for events: they are lost when the server ends"
            );
            return (EventFile { sender: None, thread: None }, BTreeMap::new());
        };
        let events = read(&path);
        let (sender, receiver) = mpsc::channel::<Value>();
        let write = move || {
            let mut file = None;
            while let Ok(event) = receiver.recv() {
                let events: Vec<Value> = std::iter::once(event).chain(receiver.try_iter()).collect();
                if let Err(error) = append(&mut file, &path, &events) {
                    file = None;
                    tracing::warn!("{}: events cannot be kept: {error}", path.display());
                }
            }
        };
        let thread = thread::Builder::new().name("events".into()).spawn(write).ok();
        (EventFile { sender: Some(sender), thread }, events)
    }

    /// Keeps an event.
    pub(super) fn keep(&self, event: Value) {
        if let Some(sender) = &self.sender {
            let _ended = sender.send(event);
        }
    }
}

impl Drop for EventFile {
    /// Waits until the last event is written.
    fn drop(&mut self) {
        self.sender = None;
        if let Some(thread) = self.thread.take() {
            let _panicked = thread.join();
        }
    }
}

fn path(set_uuid: &[u8; 16]) -> Option<PathBuf> {
    let name = format!("events-{}.log", display_uuid(set_uuid).replace(':', ""));
    Some(control::state_folder()?.join(name))
}

fn older(path: &Path) -> PathBuf {
    path.with_extension("old.log")
}

/// The events of both files, by number.
fn read(path: &Path) -> BTreeMap<u64, Value> {
    let mut events = BTreeMap::new();
    for path in [&older(path), path] {
        let mut text = Vec::new();
        // Never more than a server writes, whatever the file has become.
        let opened = no_link().read(true).open(path);
        let Ok(read) = opened.and_then(|file| file.take(2 * FILE_BYTES_MAX).read_to_end(&mut text)) else {
            continue;
        };
        tracing::debug!(bytes = read, "{}: events of earlier servers", path.display());
        let valid = text.split(|byte| *byte == b'\n').filter_map(parse);
        events.extend(valid.filter_map(|event| Some((event["sequence"].as_u64()?, event))));
    }
    events
}

fn parse(line: &[u8]) -> Option<Value> {
    let (checksum, json) = line.split_at_checked(8)?;
    let json = json.strip_prefix(b" ")?;
    let checksum = u32::from_str_radix(std::str::from_utf8(checksum).ok()?, 16).ok()?;
    (checksum == Checksum::of(json)).then(|| serde_json::from_slice(json).ok())?
}

fn append(file: &mut Option<File>, path: &Path, events: &[Value]) -> io::Result<()> {
    let mut lines = Vec::new();
    for event in events {
        let json = serde_json::to_vec(event)?;
        lines.extend(format!("{:08x} ", Checksum::of(&json)).bytes());
        lines.extend(json);
        lines.push(b'\n');
    }
    let mut open = match file.take() {
        Some(open) => open,
        None => begin(path)?,
    };
    if open.seek(SeekFrom::End(0))? + lines.len() as u64 > FILE_BYTES_MAX {
        fs::rename(path, older(path))?;
        open = begin(path)?;
    }
    open.write_all(&lines)?;
    open.sync_data()?;
    *file = Some(open);
    Ok(())
}

/// Opens the file to append to it. A line that a kill has torn gets its end, so that the next one is not lost with it.
fn begin(path: &Path) -> io::Result<File> {
    fs::create_dir_all(path.parent().unwrap_or(Path::new(".")))?;
    let mut file = no_link().read(true).append(true).create(true).open(path)?;
    let end = file.seek(SeekFrom::End(0))?;
    let mut last = [b'\n'];
    if end > 0 {
        file.seek(SeekFrom::Start(end - 1))?;
        file.read_exact(&mut last)?;
    }
    if last != [b'\n'] {
        file.write_all(b"\n")?;
    }
    Ok(file)
}

fn no_link() -> OpenOptions {
    let mut options = OpenOptions::new();
    let flags = i32::try_from(OFlags::NOFOLLOW.bits()).expect("a flag of open(2)");
    options.mode(0o640).custom_flags(flags);
    options
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn event(sequence: u64) -> Value {
        json!({ "sequence": sequence, "text": format!("event {sequence}"), "unix_ms": 1 })
    }

    #[test]
    fn what_is_torn_or_damaged_is_passed_over_and_nothing_else_is_lost() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state/events.log");
        append(&mut None, &path, &[event(1), event(2), event(3)]).unwrap();
        let whole = fs::read(&path).unwrap();
        for cut in 0..whole.len() {
            fs::write(&path, &whole[..cut]).unwrap();
            let ends = whole[..cut].iter().filter(|byte| **byte == b'\n').count() as u64;
            let is_whole_but_its_end = u64::from(whole[cut] == b'\n');
            append(&mut None, &path, &[event(9)]).unwrap();
            let left: Vec<u64> = read(&path).into_keys().collect();
            let wanted: Vec<u64> = (1..=ends + is_whole_but_its_end).chain([9]).collect();
            assert_eq!(left, wanted, "cut at {cut}");
        }
        for at in 0..whole.len() - 1 {
            let mut damaged = whole.clone();
            damaged[at] ^= 1;
            fs::write(&path, &damaged).unwrap();
            assert!((1..3).contains(&read(&path).len()), "flipped at {at}");
            assert!(read(&path).iter().all(|(sequence, kept)| *kept == event(*sequence)));
        }
    }

    #[test]
    fn the_files_are_bounded_and_hold_the_newest() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("events.log");
        let mut file = None;
        for sequence in 1..=60_000 {
            if sequence % 1000 == 0 {
                let events: Vec<Value> = (sequence - 999..=sequence).map(event).collect();
                append(&mut file, &path, &events).unwrap();
            }
        }
        let bytes = [&path, &older(&path)].map(|path| fs::metadata(path).unwrap().len());
        assert!(bytes.iter().all(|bytes| *bytes <= FILE_BYTES_MAX), "{bytes:?}");
        let events = read(&path);
        let (first, last) = (*events.keys().next().unwrap(), *events.keys().last().unwrap());
        assert_eq!((last, events.len() as u64), (60_000, last - first + 1));
        assert!(events.len() > 10_000);
    }

    #[test]
    fn a_later_line_takes_the_place_of_an_earlier_one() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("events.log");
        let mut again = event(2);
        again["count"] = 8.into();
        append(&mut None, &path, &[event(1), event(2), event(3), again.clone()]).unwrap();
        assert_eq!(read(&path).into_values().collect::<Vec<_>>(), [event(1), again, event(3)]);
    }

    #[test]
    fn a_link_is_not_followed() {
        let folder = tempfile::tempdir().unwrap();
        let (path, target) = (folder.path().join("events.log"), folder.path().join("target"));
        fs::write(&target, "precious").unwrap();
        std::os::unix::fs::symlink(&target, &path).unwrap();
        assert!(append(&mut None, &path, &[event(1)]).is_err());
        assert_eq!(fs::read(&target).unwrap(), b"precious");
    }
}
