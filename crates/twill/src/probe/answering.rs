//! Which devices answer: one that hangs must not hold up a search over all of them.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

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
