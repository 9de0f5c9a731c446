//! Arguments about zones: of an array over zones, and of a zoned drive.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use crate::bytes;

/// Arguments of `create` that say how a zoned array is laid out.
#[derive(Debug, Args)]
#[command(next_help_heading = "Zoned arrays")]
pub struct ZonedArguments {
    /// Cut ordinary devices and files into software zones of this size, a power of two from 256K to 2G [default: a 64th of the
    /// smallest member, 256M at most].
    #[arg(long, value_parser = bytes::parse, value_name = "SIZE")]
    pub zone_size: Option<u64>,
    /// Length of a record that small writes fill, metadata included [default: 32K].
    #[arg(long, value_parser = bytes::parse, value_name = "SIZE")]
    pub small_chunk: Option<u64>,
    /// Length of a record that large writes fill, metadata included [default: 128K].
    #[arg(long, value_parser = bytes::parse, value_name = "SIZE")]
    pub large_chunk: Option<u64>,
    /// Records of a stripe group, in which drives choose the places of appends [default: 256, or what fits].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub group: Option<u16>,
    /// Segments with small records that each thread has open (the paper's Ns); 0: small writes go to large ones. Where drives choose
    /// places, the first is written by appends and the others in order [default: 1].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(..=16))]
    pub open_small: Option<u8>,
    /// Segments with large records that each thread has open (the paper's Nl); 0: large writes go to small ones [default: 1].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(..=16))]
    pub open_large: Option<u8>,
    /// Room for what is overwritten, in hundredths of the array's size [default: 25].
    #[arg(long, value_name = "PERCENT", value_parser = percent)]
    pub reserve: Option<u32>,
    /// Bytes of an entry of the map: 8, with bits of a checksum by which each read is verified, or the paper's 4.
    #[arg(long, value_name = "4|8", value_parser = clap::value_parser!(u8).range(4..=8))]
    pub map_entry: Option<u8>,
    /// Where metadata lies: in the drives' 64 bytes out of band, or beside the data [default: auto, out of band where all have it].
    #[arg(long, value_name = "auto|oob|inband")]
    pub carrier: Option<CarrierChoice>,
    /// How zones of drives are written [default: auto, by appends where all drives have them].
    #[arg(long, value_name = "auto|append|write")]
    pub member_access: Option<MemberAccess>,
}

/// Where the metadata of a zoned array lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum CarrierChoice {
    /// Out of band where all members have it.
    Auto,
    /// In the drives' 64 bytes beside each block.
    Oob,
    /// In blocks beside the data.
    Inband,
}

/// Arguments of `zones`.
#[derive(Debug, Args)]
#[command(after_help = "Example: may this drive be trusted with an array?
  twill zones --try /dev/nvme0n1

The trial writes to a few zones, errors that a drive must answer included, and empties them afterwards.")]
pub struct ZonesArguments {
    /// Try whether the device keeps to the rules of zones. What a few of its zones hold is lost.
    #[arg(long = "try")]
    pub is_trial: bool,
    /// How a trial writes zones: auto takes appends where the drive has them.
    #[arg(long, value_name = "auto|append|write", default_value = "auto", requires = "is_trial")]
    pub member_access: MemberAccess,
    /// Try software zones of this size, on an ordinary device or file.
    #[arg(long, value_parser = bytes::parse, value_name = "SIZE", requires = "is_trial")]
    pub zone_size: Option<u64>,
    /// Try zones that hold something, too.
    #[arg(short, long, requires = "is_trial")]
    pub force: bool,
    /// A zoned block device.
    #[arg(value_name = "MEMBER")]
    pub member: PathBuf,
}

/// How the zones of a drive are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum MemberAccess {
    /// By appends where the drive has them, else in order.
    Auto,
    /// By appends.
    Append,
    /// In order.
    Write,
}

/// A reserve: `25` or `25%`.
fn percent(text: &str) -> Result<u32, String> {
    let number = text.strip_suffix('%').unwrap_or(text).parse().ok();
    number
        .filter(|percent| (5..=1000).contains(percent))
        .ok_or_else(|| "it is 5 to 1000, like 25 or 25%".to_owned())
}
