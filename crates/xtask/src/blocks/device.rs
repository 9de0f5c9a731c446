//! The device under test.

use std::fs::{File, OpenOptions};
use std::io::{Seek, SeekFrom};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use super::content::BLOCK_BYTES;

/// The status of a device that holds wrong data, apart from one that gives errors.
pub const WRONG_DATA: u8 = 3;

/// Where the blocks are.
#[derive(clap::Args)]
pub struct Place {
    /// The block device
    #[arg(long)]
    pub device: PathBuf,
    /// The file that remembers generations
    #[arg(long)]
    pub state: PathBuf,
    /// Makes the contents of one test differ from those of another
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
}

/// Opens a device past the page cache; its size in whole blocks.
pub fn open(path: &Path, write: bool) -> Result<(File, u32)> {
    let direct = i32::try_from(rustix::fs::OFlags::DIRECT.bits())?;
    let mut device = OpenOptions::new()
        .read(true)
        .write(write)
        .custom_flags(direct)
        .open(path)
        .with_context(|| path.display().to_string())?;
    let bytes = device.seek(SeekFrom::End(0))?;
    let blocks =
        u32::try_from(bytes / BLOCK_BYTES as u64).context("the device is too large for this tool")?;
    if blocks == 0 {
        bail!("{}: no device, or an empty one", path.display());
    }
    Ok((device, blocks))
}

/// Where a block is, in bytes.
pub fn offset(block: u32) -> u64 {
    u64::from(block) * BLOCK_BYTES as u64
}
