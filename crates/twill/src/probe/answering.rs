//! Which devices answer: one that hangs must not hold up a search over all of them.

use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use engine::limits::BLOCK_BYTES;
use parking_lot::Mutex;
use rustix::fs::OFlags;

use super::member_file::MemberFile;
use super::superblocks;

/// How long a device may take to show its superblocks. A healthy one takes milliseconds, one that was just woken a second.
const LIMIT: Duration = Duration::from_secs(3);

/// Devices that have been asked and have not answered yet. They are not asked again: each would keep another thread.
static HANGING: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());

/// Those of these devices that answer. What they answer does not matter here.
pub fn answering(paths: Vec<PathBuf>) -> Vec<PathBuf> {
    let (sender, answers) = mpsc::channel();
    let asked: Vec<PathBuf> = paths.into_iter().filter(|path| !HANGING.lock().contains(path)).collect();
    for path in &asked {
        let (sender, path) = (sender.clone(), path.clone());
        let ask = move || {
            let _read = read_past_cache(&path);
            let _answered = MemberFile::open(&path).map(|member| superblocks::find_all(&member).is_ok());
            HANGING.lock().remove(&path);
            let _late = sender.send(path);
        };
        if let Err(error) = thread::Builder::new().name("probe".into()).spawn(ask) {
            tracing::warn!("no thread can be started that looks at a device: {error}");
        }
    }
    drop(sender);
    let end = Instant::now() + LIMIT;
    let mut there = BTreeSet::new();
    while let Ok(path) = answers.recv_timeout(end.saturating_duration_since(Instant::now())) {
        there.insert(path);
    }
    for path in asked.iter().filter(|path| !there.contains(*path)) {
        tracing::warn!("{} does not answer within {} s: left out", path.display(), LIMIT.as_secs());
        HANGING.lock().insert(path.clone());
    }
    asked.into_iter().filter(|path| there.contains(path)).collect()
}

/// Reads a block from the device itself. What an earlier look has left in the page cache is no answer: the block device of a server
/// that was killed twice answered from it, and the next read never ended.
fn read_past_cache(path: &Path) -> io::Result<()> {
    let file = File::options().read(true).custom_flags(OFlags::DIRECT.bits().cast_signed()).open(path)?;
    let mut room = [0; 2 * BLOCK_BYTES];
    let start = room.as_ptr().align_offset(BLOCK_BYTES);
    file.read_exact_at(&mut room[start..start + BLOCK_BYTES], 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_opened_answers_and_what_hangs_is_left_out() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("file");
        std::fs::write(&file, [0; 4096]).expect("written");
        let nothing = folder.path().join("nothing");
        assert_eq!(answering(vec![file.clone(), nothing.clone()]), [file.clone(), nothing]);
        HANGING.lock().insert(file.clone());
        assert_eq!(answering(vec![file.clone()]), [] as [PathBuf; 0]);
        HANGING.lock().remove(&file);
    }
}
