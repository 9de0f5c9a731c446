//! How devices are named: by a path, `nvme://ADDRESS[:PORT]/NQN[/NAMESPACE]` on another machine, `memory:SIZE`, or
//! `memory:COUNTxSIZE` for several. `null:` instead of `memory:` names devices that store nothing.

use std::path::PathBuf;

use super::block_file::BlockFile;
use super::host_device::SharedDevice;
use super::memory::Memory;
use super::nvme_tcp::{AddressError, Attached, RemoteAddress};
use super::open::{OpenError, OpenErrorKind, OpenOptions};

/// Most devices that one specification makes.
const DEVICES_MAX: usize = 1024;

/// What a device is made from.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum DeviceSpec {
    /// A regular file or a block device.
    Path(PathBuf),
    /// Memory of this process.
    Memory {
        /// Size in bytes.
        bytes: u64,
        /// Index among the devices of one specification.
        index: usize,
    },
    /// Nothing: writes are thrown away, and reads leave their buffer as it is. For benchmarks of the engine alone.
    Null {
        /// Size in bytes.
        bytes: u64,
        /// Index among the devices of one specification.
        index: usize,
    },
    /// A namespace on another machine.
    Remote(RemoteAddress),
}

impl DeviceSpec {
    /// The devices that `text` names, one or, as `memory:6x2G`, several. A file whose name begins with `memory:` or `null:` is
    /// written as `./memory:…`.
    ///
    /// # Errors
    /// The text has no count or no size where one belongs.
    pub fn parse(text: &str) -> Result<Vec<DeviceSpec>, SpecError> {
        let (sizes, is_null) = match (text.strip_prefix("memory:"), text.strip_prefix("null:")) {
            (Some(sizes), _) => (sizes, false),
            (None, Some(sizes)) => (sizes, true),
            (None, None) => {
                return match text {
                    "" => Err(SpecError::Empty),
                    remote if RemoteAddress::is_one(remote) => {
                        let address = RemoteAddress::parse(remote);
                        let error = |error| SpecError::Remote { text: remote.into(), error };
                        Ok(vec![DeviceSpec::Remote(address.map_err(error)?)])
                    }
                    path => Ok(vec![DeviceSpec::Path(PathBuf::from(path))]),
                };
            }
        };
        let (count, size) = sizes.split_once(['x', 'X']).unwrap_or(("1", sizes));
        let number = count.parse().ok().filter(|number| (1..=DEVICES_MAX).contains(number));
        let number: usize =
            number.ok_or_else(|| SpecError::Count { text: text.into(), count: count.into() })?;
        let bytes = parse_size(size)?;
        let device = |index| match is_null {
            false => DeviceSpec::Memory { bytes, index },
            true => DeviceSpec::Null { bytes, index },
        };
        Ok((0..number).map(device).collect())
    }

    /// Opens a file or block device, or maps memory.
    ///
    /// # Errors
    /// Why the device cannot be used.
    pub fn open(&self, options: &OpenOptions) -> Result<SharedDevice, OpenError> {
        match self {
            DeviceSpec::Path(path) => BlockFile::open(path, options).map(SharedDevice::Block),
            DeviceSpec::Remote(address) => match &options.remote {
                Some(remote) => Attached::open(address, remote).map(SharedDevice::Remote),
                None => {
                    let reason = "members on other machines are not used here";
                    Err(OpenError::refuse(OpenErrorKind::WrongType, address.to_string(), reason))
                }
            },
            DeviceSpec::Memory { bytes, .. } | DeviceSpec::Null { bytes, .. } => {
                let name = self.to_string();
                if *bytes < options.bytes_min.max(512) {
                    let reason = format!("{bytes} bytes, but a member has at least {}", options.bytes_min);
                    return Err(OpenError::refuse(OpenErrorKind::TooSmall, name, reason));
                }
                let is_null = matches!(self, DeviceSpec::Null { .. });
                let memory = if is_null { Memory::that_stores_nothing } else { Memory::new };
                match memory(*bytes, name.clone()) {
                    Ok(memory) => Ok(SharedDevice::Memory(memory)),
                    Err(error) => Err(OpenError {
                        source: Some(error),
                        ..OpenError::refuse(
                            OpenErrorKind::System,
                            name,
                            "no address space for a device of this size",
                        )
                    }),
                }
            }
        }
    }
}

impl std::fmt::Display for DeviceSpec {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            DeviceSpec::Path(path) => path.display().fmt(f),
            DeviceSpec::Remote(address) => address.fmt(f),
            DeviceSpec::Memory { index, .. } => write!(f, "memory:{index}"),
            DeviceSpec::Null { index, .. } => write!(f, "null:{index}"),
        }
    }
}

/// A size in bytes: `4096`, `64K`, `2G`, `1TiB`. Units are powers of 1024.
///
/// # Errors
/// Not a size, or one that does not fit in 64 bits.
pub fn parse_size(text: &str) -> Result<u64, SpecError> {
    let not_a_size = || SpecError::Size { text: text.into() };
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    if number.is_empty() {
        return Err(not_a_size());
    }
    let shift = match unit.to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kib" => 10,
        "m" | "mib" => 20,
        "g" | "gib" => 30,
        "t" | "tib" => 40,
        "p" | "pib" => 50,
        _ => return Err(not_a_size()),
    };
    let number: u64 = number.parse().map_err(|_| SpecError::TooLarge { text: text.into() })?;
    number.checked_mul(1 << shift).ok_or_else(|| SpecError::TooLarge { text: text.into() })
}

/// Why a text names no devices.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SpecError {
    /// No device is named.
    #[error("an empty device name")]
    Empty,
    /// The number before the `x` is not a count of devices.
    #[error("{text}: {count:?} is not a number of devices from 1 to {max}", max = DEVICES_MAX)]
    Count {
        /// The whole text.
        text: String,
        /// The part that is wrong.
        count: String,
    },
    /// Not a size.
    #[error("{text:?} is not a size: a number of bytes, or a number with K, M, G, T or P (powers of 1024)")]
    Size {
        /// The part that is wrong.
        text: String,
    },
    /// Not a namespace on another machine.
    #[error("{text}: {error}")]
    Remote {
        /// The whole text.
        text: String,
        /// What is wrong.
        error: AddressError,
    },
    /// The size does not fit in 64 bits.
    #[error("{text:?} is too large a size")]
    TooLarge {
        /// The part that is wrong.
        text: String,
    },
}
