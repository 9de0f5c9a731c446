//! `cargo xtask blocks`: fills, writes and checks a block device. After a crash it finds every write that was lost.
//!
//! Each 4 KiB block carries its number and a generation. A state file beside it says, for each block, the newest
//! generation that was ever issued, acknowledged, and flushed. The order makes it safe to copy at any moment: `issued`
//! is written before the request, `acknowledged` after it, so a block that holds neither a lost write nor an older one
//! lies between the two.

mod content;
mod device;
mod state;
mod writer;

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::process::ExitCode;

use anyhow::{Context, Result};

use content::AlignedBuffer;
use device::{Place, offset, open};
use state::{Least, State};

pub use content::{BLOCK_BYTES, Content};
pub use device::WRONG_DATA;

/// Request of `fill` and `check`, in blocks.
const BULK_BLOCKS: u32 = 256;
/// Wrong blocks that are named; the rest are counted.
const NAMED_MAX: usize = 5;

/// What `cargo xtask blocks` does.
#[derive(clap::Subcommand)]
pub enum Action {
    /// Write every block once and flush
    Fill(Place),
    /// Write and read at random until the time is over or the device fails
    Write {
        #[command(flatten)]
        place: Place,
        #[command(flatten)]
        load: writer::Load,
    },
    /// Read every block; it must hold a generation from the one that must be there to the newest issued
    Check {
        #[command(flatten)]
        place: Place,
        /// What must be there: what was acknowledged, or, where a write cache was lost, what was flushed
        #[arg(long, default_value = "acknowledged")]
        least: Least,
        /// Count blocks that give an error instead of contents, rather than failing
        #[arg(long)]
        unreadable: bool,
    },
}

/// Runs one action. Status 1: the device gave errors; 3: it holds or read wrong data.
pub fn run(action: &Action) -> Result<ExitCode> {
    match action {
        Action::Fill(place) => fill(place),
        Action::Write { place, load } => writer::write(place, load),
        Action::Check { place, least, unreadable } => check(place, *least, *unreadable),
    }
}

fn fill(place: &Place) -> Result<ExitCode> {
    let (device, blocks) = open(&place.device, true)?;
    let state = State::create(&place.state, blocks)?;
    let content = Content { seed: place.seed };
    let mut buffer = AlignedBuffer::new(BULK_BLOCKS as usize * BLOCK_BYTES);
    for (first, count) in bulk(blocks) {
        let bytes = &mut buffer.bytes()[..count as usize * BLOCK_BYTES];
        let generations = state.issue(first, count)?;
        content.fill(bytes, first, &generations);
        device.write_all_at(bytes, offset(first)).with_context(|| format!("writing block {first}"))?;
        state.acknowledge(first, &generations)?;
    }
    let acknowledged = state.acknowledged();
    device.sync_data().context("flush")?;
    state.flushed(&acknowledged)?;
    println!("filled {blocks} blocks");
    Ok(ExitCode::SUCCESS)
}

fn check(place: &Place, least: Least, may_be_unreadable: bool) -> Result<ExitCode> {
    let (device, blocks) = open(&place.device, false)?;
    let state = State::open(&place.state, blocks)?;
    let content = Content { seed: place.seed };
    let mut buffer = AlignedBuffer::new(BULK_BLOCKS as usize * BLOCK_BYTES);
    let (mut found, mut wrong, mut unreadable) = (Vec::with_capacity(blocks as usize), 0, 0);
    for (first, count) in bulk(blocks) {
        let bytes = &mut buffer.bytes()[..count as usize * BLOCK_BYTES];
        let errors = read(&device, first, bytes, may_be_unreadable)?;
        unreadable += errors.len();
        for (block, bytes) in (first..).zip(bytes.chunks_exact(BLOCK_BYTES)) {
            let (from, to) = state.allowed(block, least);
            let holds = content.generation(bytes, block);
            let right = holds.as_ref().is_ok_and(|generation| (from..=to).contains(generation));
            if !right && !errors.contains(&block) {
                wrong += 1;
                if wrong <= NAMED_MAX {
                    let holds = holds
                        .clone()
                        .map_or_else(|what| what, |generation| format!("generation {generation}"));
                    println!("block {block} holds {holds}, should be generation {from} to {to}");
                }
            }
            found.push(holds.unwrap_or(to));
        }
    }
    if wrong > 0 {
        println!("{wrong} of {blocks} blocks are wrong");
        return Ok(ExitCode::from(WRONG_DATA));
    }
    if unreadable > 0 {
        println!("{unreadable} of {blocks} blocks cannot be read, the others hold what they should");
        return Ok(ExitCode::SUCCESS);
    }
    State::settle(&place.state, &found)?;
    println!("{blocks} blocks hold what they should");
    Ok(ExitCode::SUCCESS)
}

/// Reads blocks from `first` on; those that give errors, where that may be.
fn read(device: &File, first: u32, bytes: &mut [u8], may_be_unreadable: bool) -> Result<Vec<u32>> {
    match device.read_exact_at(bytes, offset(first)) {
        Ok(()) => return Ok(Vec::new()),
        Err(error) if !may_be_unreadable => {
            return Err(error).with_context(|| format!("reading block {first}"));
        }
        Err(_) => {}
    }
    let one_by_one = (first..).zip(bytes.chunks_exact_mut(BLOCK_BYTES));
    Ok(one_by_one
        .filter_map(|(block, bytes)| device.read_exact_at(bytes, offset(block)).is_err().then_some(block))
        .collect())
}

/// All blocks, in pieces of `BULK_BLOCKS`: first block and count.
fn bulk(blocks: u32) -> impl Iterator<Item = (u32, u32)> {
    (0..blocks).step_by(BULK_BLOCKS as usize).map(move |first| (first, BULK_BLOCKS.min(blocks - first)))
}

#[cfg(test)]
mod tests {
    use std::fs::OpenOptions;
    use std::path::Path;

    use super::*;

    fn place(folder: &Path, blocks: u64) -> Place {
        let device = folder.join("device");
        File::create(&device).unwrap().set_len(blocks * BLOCK_BYTES as u64).unwrap();
        Place { device, state: folder.join("state"), seed: 7 }
    }

    fn spoil(place: &Place, block: u32, with: &[u8]) {
        let device = OpenOptions::new().write(true).open(&place.device).unwrap();
        device.write_all_at(with, offset(block)).unwrap();
    }

    #[test]
    fn what_was_filled_is_right_and_one_changed_bit_is_not() {
        let folder = tempfile::tempdir_in("/var/tmp").unwrap();
        let place = place(folder.path(), 300);
        fill(&place).unwrap();
        assert_eq!(check(&place, Least::Flushed, false).unwrap(), ExitCode::SUCCESS);
        spoil(&place, 299, &[0; 4096]);
        assert_eq!(check(&place, Least::Flushed, false).unwrap(), ExitCode::from(WRONG_DATA));
    }

    #[test]
    fn a_lost_write_is_told_from_one_that_was_never_acknowledged() {
        let folder = tempfile::tempdir_in("/var/tmp").unwrap();
        let place = place(folder.path(), 8);
        fill(&place).unwrap();
        let lost = |is_acknowledged: bool, least: Least| {
            let state = State::open(&place.state, 8).unwrap();
            let generations = state.issue(3, 1).unwrap();
            if is_acknowledged {
                state.acknowledge(3, &generations).unwrap();
            }
            check(&place, least, false).unwrap()
        };
        assert_eq!(lost(false, Least::Acknowledged), ExitCode::SUCCESS, "issued only: may be lost");
        assert_eq!(lost(true, Least::Flushed), ExitCode::SUCCESS, "not flushed: may be lost");
        assert_eq!(lost(true, Least::Acknowledged), ExitCode::from(WRONG_DATA));
    }
}
