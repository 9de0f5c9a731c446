//! The array as a block device of this machine.

use host::export::array::ClientVolumes;
use host::export::ublk::{Control, UblkDevice, UblkError, UblkOptions, is_awaited};

use super::manager::gone;
use super::options::ServeOptions;
use crate::exit::ExitKind;
use crate::failure::Failure;

/// Whether this machine has the ublk driver; checked before any member is opened.
///
/// # Errors
/// It has not, and what would help.
pub fn check() -> Result<(), Failure> {
    Control::open().map(|_| ()).map_err(|error| failure(&error))
}

/// Makes the block device that was asked for, or takes over one that a killed server of this array left.
///
/// # Errors
/// Why there is none.
pub(super) fn start(
    volumes: &ClientVolumes,
    options: &ServeOptions,
    set_uuid: &[u8; 16],
) -> Result<Option<UblkDevice>, Failure> {
    let identity = u64::from_le_bytes(set_uuid[..8].try_into().expect("eight of sixteen"));
    let control = match (Control::open(), options.ublk) {
        (Ok(control), Some(_)) => control,
        (Ok(control), None) if is_awaited(&control, identity) => control,
        (Err(error), Some(_)) => return Err(failure(&error)),
        (_, None) => return Ok(None),
    };
    let info = volumes.info().map_err(gone)?;
    let ublk = UblkOptions { number: options.ublk.flatten(), identity, zero_copy: options.zero_copy };
    let started = volumes.as_block_device(control, &ublk, &info);
    started.map(Some).map_err(|error| failure(&error))
}

/// What the driver says, with the next step.
pub(super) fn failure(error: &UblkError) -> Failure {
    let (kind, help) = match error {
        UblkError::NoDriver => (
            ExitKind::NoDriver,
            Some(
                "load it with: modprobe ublk_drv; that needs Linux 6.5 or later with CONFIG_BLK_DEV_UBLK. Without \
                  --ublk the array is served over NBD",
            ),
        ),
        UblkError::TooOld(_) => {
            (ExitKind::NoDriver, Some("use Linux 6.5 or later; without --ublk the array is served over NBD"))
        }
        UblkError::NoHandover(_) => (
            ExitKind::NoDriver,
            Some(
                "use Linux 6.16 or later, for the server that makes the device too. Until then: kill -9 the server and \
                  serve again; the device lives on, and a resync follows",
            ),
        ),
        UblkError::NoRing => (
            ExitKind::Permission,
            Some("allow it with: sysctl kernel.io_uring_disabled=0, and see the limits of the container"),
        ),
        UblkError::Permission => (ExitKind::Permission, Some("run as root: only root makes block devices")),
        UblkError::Exists(_) => {
            (ExitKind::AlreadyExists, Some("choose another number: --ublk=N, or --ublk for any"))
        }
        UblkError::InUse { .. } => (
            ExitKind::DeviceInUse,
            Some(
                "unmount it and close its users, then stop again; until then it is served as before. If the server is \
                  killed, the device waits for the next one",
            ),
        ),
        UblkError::Unfit { .. } => (
            ExitKind::BadGeometry,
            Some("delete the device: ublk del, or reboot; the requests that wait there are lost"),
        ),
        UblkError::System { source, .. } => (ExitKind::from(source.kind()), None),
    };
    let failure = Failure::new(kind, error.to_string());
    match help {
        Some(help) => failure.help(help),
        None => failure,
    }
}
