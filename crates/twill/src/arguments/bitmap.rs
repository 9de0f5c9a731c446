//! Bitmaps: what `create` and `grow` are asked for.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use super::served::ServedByOption;
use crate::bytes;
use crate::remote_arguments::{RemoteArguments, member_path};

/// Where a bitmap is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum NewBitmap {
    /// Beside the superblock of each member, as md keeps it.
    Internal,
    /// Nowhere.
    None,
}

/// Which part of the members a bit of the bitmap stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum BitmapMapping {
    /// A chunk, as in md.
    Contiguous,
    /// Stripes all over.
    Dblock,
}

/// Arguments of `grow`.
#[derive(Debug, Args)]
#[command(after_help = "Example: a zoned array that is served gets a fifth member
  twill grow --array store --add /dev/nvme4n1 && twill status --watch store
Example: an array that was made without a bitmap gets one
  twill stop store
  twill grow --bitmap internal --scan --name store
Example: and loses it again
  twill grow --bitmap none /dev/nvme[0-3]n1

New segments of a zoned array are over all members at once, and older ones are rewritten while it is served; it has its \
new size from the next start on.

For a change of the bitmap the array is stopped, and clean: nothing is left to resync or to rebuild. All its members and spares are there. A
member that failed has to be rebuilt whole: the bitmap marks what is written from here on.")]
pub struct GrowArguments {
    /// Add a member to a served zoned array; may be repeated.
    #[arg(short, long, value_name = "DEVICE", value_parser = member_path,
        conflicts_with_all = ["bitmap", "bitmap_chunk", "members", "scan", "uuid", "name"])]
    pub add: Vec<PathBuf>,
    /// Members that it has then: nothing is changed if the devices do not make as many.
    #[arg(short = 'n', long, value_name = "NUMBER", requires = "add")]
    pub raid_devices: Option<u32>,
    /// Take the devices even if they hold something, which is lost.
    #[arg(short, long, requires = "add")]
    pub force: bool,
    /// Which served array.
    #[command(flatten)]
    pub served: ServedByOption,
    /// Write-intent bitmap: internal, or none.
    #[arg(short, long, value_name = "internal|none", required_unless_present = "add")]
    pub bitmap: Option<NewBitmap>,
    /// Bytes of a member that one bit of the bitmap stands for [default: 64M, or more where the room is short].
    #[arg(long, value_parser = bytes::parse_with_unit, value_name = "SIZE")]
    pub bitmap_chunk: Option<u64>,
    /// Files, block devices, or namespaces on other machines (nvme://ADDRESS/NQN) of one array, its spares too.
    #[arg(value_name = "MEMBER", value_parser = member_path)]
    pub members: Vec<PathBuf>,
    /// Look at the files of a folder, or at a file or device. Without PATH at all block devices.
    #[arg(long, value_name = "PATH", num_args = 0..)]
    pub scan: Option<Vec<PathBuf>>,
    /// The array with this UUID.
    #[arg(short, long)]
    pub uuid: Option<String>,
    /// The array with this name.
    #[arg(short = 'N', long)]
    pub name: Option<String>,
    /// How members on other machines are reached.
    #[command(flatten)]
    pub remote: RemoteArguments,
}
