//! Replays the write log of a drive (QEMU's blklogwrites, the format of dm-log-writes) into an image, as a power cut
//! would have left it.
//!
//! Fault model: a write after the last flush before the cut is kept or lost at random, and now and then torn at the
//! log's sector size; FUA writes and everything before the last flush are kept. The same seed loses the same writes.

use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

const MAGIC: u64 = 0x006a_7366_7773_6872;
const FLUSH: u64 = 1;
const FUA: u64 = 2;
const DISCARD: u64 = 4;
const MARK: u64 = 8;

/// Arguments of `cargo xtask replay`.
#[derive(clap::Args)]
pub struct Arguments {
    /// A log that `xtask vm --log-writes` made: DIR/nvme0.log
    log: PathBuf,
    /// The drive's image as it was when the log began (all zero if it does not exist); without it the log is printed
    image: Option<PathBuf>,
    /// Replay this many entries; without it all
    #[arg(long)]
    at: Option<usize>,
    /// Lose unflushed writes at random, by this seed
    #[arg(long)]
    lose: Option<u64>,
}

struct Entry {
    offset_bytes: u64,
    length_bytes: u64,
    flags: u64,
    data: Vec<u8>,
}

/// Prints the log or writes it into the image.
pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    let mut file = File::open(&arguments.log).with_context(|| arguments.log.display().to_string())?;
    let (entries, sector) = read(&mut file).with_context(|| arguments.log.display().to_string())?;
    let Some(image) = &arguments.image else {
        for (i, entry) in entries.iter().enumerate() {
            println!("{i} {} {}{}", entry.offset_bytes, entry.length_bytes, names(entry.flags));
        }
        return Ok(ExitCode::SUCCESS);
    };
    let mut image = OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .open(image)
        .with_context(|| image.display().to_string())?;
    let entries = &entries[..arguments.at.unwrap_or(entries.len()).min(entries.len())];
    apply(entries, sector, arguments.lose, &mut image)?;
    Ok(ExitCode::SUCCESS)
}

/// The log's entries and its sector size in bytes.
fn read(log: &mut (impl Read + Seek)) -> Result<(Vec<Entry>, usize)> {
    let mut head = [0; 28];
    log.read_exact(&mut head).context("cut short in its header")?;
    if number(&head, 0) != MAGIC || number(&head, 8) != 1 {
        bail!("not a write log of version 1");
    }
    let (count, sector) = (number(&head, 16), u32::from_le_bytes(head[24..28].try_into()?) as usize);
    if !(512..=65536).contains(&sector) {
        bail!("a sector size of {sector} bytes");
    }
    let mut entries = Vec::new();
    let mut at = sector as u64;
    for i in 0..count {
        log.seek(SeekFrom::Start(at))?;
        let mut head = [0; 32];
        log.read_exact(&mut head).with_context(|| format!("cut short in entry {i}"))?;
        let (offset, length, flags) = (number(&head, 0), number(&head, 8), number(&head, 16));
        at += sector as u64;
        let length_bytes = length * sector as u64;
        let mut data = Vec::new();
        if flags & DISCARD == 0 {
            log.seek(SeekFrom::Start(at))?;
            log.by_ref().take(length_bytes).read_to_end(&mut data)?;
            at += length_bytes;
        }
        entries.push(Entry { offset_bytes: offset * sector as u64, length_bytes, flags, data });
    }
    Ok((entries, sector))
}

/// One write in ten that may be lost is torn instead of kept or lost as a whole.
const TORN_IN: u32 = 10;

fn apply(entries: &[Entry], sector: usize, lose: Option<u64>, image: &mut (impl Write + Seek)) -> Result<()> {
    let safe = entries.iter().rposition(|entry| entry.flags & FLUSH != 0).map_or(0, |last| last + 1);
    let mut random = StdRng::seed_from_u64(lose.unwrap_or_default());
    for (i, entry) in entries.iter().enumerate() {
        let may_be_lost = lose.is_some() && i >= safe && entry.flags & FUA == 0;
        let zeros;
        let data = if entry.flags & DISCARD == 0 {
            &entry.data
        } else {
            zeros = vec![0; usize::try_from(entry.length_bytes)?];
            &zeros
        };
        let torn = may_be_lost && random.random_ratio(1, TORN_IN);
        let unit = if torn { sector } else { data.len().max(1) };
        for (piece, at) in data.chunks(unit).zip((0..).step_by(unit)) {
            if !may_be_lost || random.random_bool(0.5) {
                image.seek(SeekFrom::Start(entry.offset_bytes + at))?;
                image.write_all(piece)?;
            }
        }
    }
    Ok(())
}

fn number(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

fn names(flags: u64) -> String {
    let all = [(FLUSH, " flush"), (FUA, " fua"), (DISCARD, " discard"), (MARK, " mark")];
    all.iter().filter(|(bit, _)| flags & bit != 0).map(|(_, name)| *name).collect()
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use super::*;

    /// A log with one sector of each `(sector, flags, byte)`.
    fn log(entries: &[(u64, u64, u8)]) -> Vec<u8> {
        let mut log = Vec::new();
        for number in [MAGIC, 1, entries.len() as u64] {
            log.extend(number.to_le_bytes());
        }
        log.extend(512_u32.to_le_bytes());
        log.resize(512, 0);
        for &(sector, flags, byte) in entries {
            let start = log.len();
            let sectors = u64::from(flags & FLUSH == 0);
            for number in [sector, sectors, flags, 0] {
                log.extend(number.to_le_bytes());
            }
            log.resize(start + 512, 0);
            if sectors > 0 && flags & DISCARD == 0 {
                log.resize(start + 1024, byte);
            }
        }
        log
    }

    fn replayed(entries: &[(u64, u64, u8)], lose: Option<u64>) -> Vec<u8> {
        let (entries, sector) = read(&mut Cursor::new(log(entries))).unwrap();
        let mut image = Cursor::new(vec![0; 8 * 512]);
        apply(&entries, sector, lose, &mut image).unwrap();
        image.into_inner().chunks(512).map(|sector| sector[0]).collect()
    }

    #[test]
    fn without_a_loss_the_last_write_wins() {
        let image = replayed(&[(0, 0, 1), (1, 0, 2), (0, FUA, 3), (1, DISCARD, 0), (2, 0, 4)], None);
        assert_eq!(image[..3], [3, 0, 4]);
    }

    #[test]
    fn flushed_and_fua_writes_stay_and_others_go_for_some_seed() {
        let writes = [(0, 0, 1), (9, FLUSH, 0), (1, FUA, 2), (2, 0, 3)];
        let images: Vec<_> = (0..20).map(|seed| replayed(&writes, Some(seed))).collect();
        assert!(images.iter().all(|image| image[..2] == [1, 2]));
        assert!(images.iter().any(|image| image[2] == 3) && images.iter().any(|image| image[2] == 0));
        assert_eq!(replayed(&writes, Some(7)), replayed(&writes, Some(7)), "a seed replays exactly");
    }

    #[test]
    fn another_file_is_refused() {
        assert!(read(&mut Cursor::new(vec![0; 512])).is_err());
        assert!(read(&mut Cursor::new(vec![0; 5])).is_err());
    }
}
