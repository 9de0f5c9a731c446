//! `cargo xtask files`: writes files that a crash must not lose, and checks them afterwards.
//!
//! The list beside them is the oracle, a line each: `made NAME BLOCKS` once file and folder were flushed, `gone NAME`
//! before a file is removed. It can be copied at any moment.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use parking_lot::Mutex;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use crate::blocks::{BLOCK_BYTES, Content, WRONG_DATA};

/// Files of a thread that stay; older ones are removed.
const KEPT: u32 = 24;
/// Largest file, in blocks of 4 KiB.
const LARGEST_BLOCKS: u32 = 48;

/// What `cargo xtask files` does.
#[derive(clap::Subcommand)]
pub enum Action {
    /// Write, flush, list and remove files until the time is over or the file system fails
    Write {
        #[command(flatten)]
        place: Place,
        /// Threads
        #[arg(long, default_value_t = 4)]
        jobs: u32,
        /// How long
        #[arg(long, default_value_t = 60.0)]
        seconds: f64,
    },
    /// Every listed file that was not removed must be there with its contents
    Check {
        #[command(flatten)]
        place: Place,
    },
}

/// Where they are.
#[derive(clap::Args)]
pub struct Place {
    /// Where the files are
    #[arg(long)]
    folder: PathBuf,
    /// What is known of them
    #[arg(long)]
    list: PathBuf,
    /// Makes names and contents differ from those of another run
    #[arg(long)]
    seed: u64,
}

/// Runs one action. Status 1: the file system gave errors; 3: a file is not what it should be.
pub fn run(action: &Action) -> Result<ExitCode> {
    match action {
        Action::Write { place, jobs, seconds } => write(place, *jobs, *seconds),
        Action::Check { place } => check(place),
    }
}

fn write(place: &Place, jobs: u32, seconds: f64) -> Result<ExitCode> {
    let list = OpenOptions::new().create(true).append(true).open(&place.list);
    let list = Mutex::new(list.with_context(|| place.list.display().to_string())?);
    let end = Instant::now() + Duration::from_secs_f64(seconds);
    let failed = std::thread::scope(|scope| {
        let job = |job| {
            let list = &list;
            scope.spawn(move || files(place, job, end, list))
        };
        let threads: Vec<_> = (0..jobs).map(job).collect();
        let results = threads.into_iter().map(|thread| thread.join().expect("a thread that does not panic"));
        results.filter_map(Result::err).map(|error| println!("{error:#}")).count()
    });
    Ok(if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn files(place: &Place, job: u32, end: Instant, list: &Mutex<File>) -> Result<()> {
    let mut random = StdRng::seed_from_u64(place.seed << 8 | u64::from(job));
    let folder = File::open(&place.folder)?;
    for number in 0.. {
        if Instant::now() >= end {
            break;
        }
        let name = format!("{}-{job}-{number}", place.seed);
        let blocks = random.random_range(1..=LARGEST_BLOCKS);
        let mut file = File::create(place.folder.join(&name)).with_context(|| name.clone())?;
        file.write_all(&contents(&name, blocks)).with_context(|| name.clone())?;
        file.sync_all().with_context(|| name.clone())?;
        folder.sync_all().context("the folder")?;
        writeln!(list.lock(), "made {name} {blocks}")?;
        if number >= KEPT {
            let old = format!("{}-{job}-{}", place.seed, number - KEPT);
            writeln!(list.lock(), "gone {old}")?;
            std::fs::remove_file(place.folder.join(&old)).with_context(|| old.clone())?;
        }
    }
    Ok(())
}

fn check(place: &Place) -> Result<ExitCode> {
    let list = std::fs::read_to_string(&place.list).with_context(|| place.list.display().to_string())?;
    let listed = listed(&list);
    let mut wrong = 0;
    for (name, &blocks) in &listed {
        let problem = match std::fs::read(place.folder.join(name)) {
            Ok(bytes) if bytes == contents(name, blocks) => continue,
            Ok(bytes) => {
                format!("{} bytes, not the {} that were flushed", bytes.len(), blocks as usize * BLOCK_BYTES)
            }
            Err(error) => error.to_string(),
        };
        println!("{name}: {problem}");
        wrong += 1;
    }
    println!("{} flushed files, {wrong} wrong", listed.len());
    Ok(if wrong == 0 { ExitCode::SUCCESS } else { ExitCode::from(WRONG_DATA) })
}

/// Files that must be there, with their blocks. A last line that was being written does not count.
fn listed(list: &str) -> BTreeMap<&str, u32> {
    let mut listed = BTreeMap::new();
    for line in list.split_inclusive('\n').filter(|line| line.ends_with('\n')) {
        match line.trim_end().split(' ').collect::<Vec<_>>().as_slice() {
            ["made", name, blocks] => drop(blocks.parse().map(|blocks| listed.insert(*name, blocks))),
            ["gone", name] => drop(listed.remove(name)),
            _ => {}
        }
    }
    listed
}

fn contents(name: &str, blocks: u32) -> Vec<u8> {
    let seed = name
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325, |sum: u64, byte| (sum ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
    let mut bytes = vec![0; blocks as usize * BLOCK_BYTES];
    Content { seed }.fill(&mut bytes, 0, &vec![1; blocks as usize]);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_that_are_whole_are_right_and_a_missing_or_changed_one_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let place = Place { folder: folder.path().join("on"), list: folder.path().join("list"), seed: 3 };
        std::fs::create_dir(&place.folder).unwrap();
        write(&place, 2, 0.2).unwrap();
        assert_eq!(check(&place).unwrap(), ExitCode::SUCCESS);
        let list = std::fs::read_to_string(&place.list).unwrap();
        let name = *listed(&list).keys().next().expect("some file in a fifth of a second");
        let path = place.folder.join(name);
        let mut bytes = std::fs::read(&path).unwrap();
        bytes[4095] ^= 1;
        std::fs::write(&path, bytes).unwrap();
        assert_eq!(check(&place).unwrap(), ExitCode::from(WRONG_DATA));
        std::fs::remove_file(&path).unwrap();
        assert_eq!(check(&place).unwrap(), ExitCode::from(WRONG_DATA));
    }

    #[test]
    fn a_file_whose_removal_began_may_be_gone_and_half_a_line_says_nothing() {
        assert_eq!(
            listed("made a 1\nmade b 2\ngone a\nmade c 33").into_iter().collect::<Vec<_>>(),
            [("b", 2)]
        );
    }
}
