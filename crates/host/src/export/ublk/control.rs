//! The control device, through which ublk devices are made, found, handed over and deleted.

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;
use zerocopy::{FromZeros, IntoBytes};

use super::kernel;
use super::openers::{BLOCK_DEVICES, Opener, PROCESSES, opener};
use super::protocol::{ControlCommand, DeviceInfo, Parameters, control, feature};

/// Where devices are made and asked about.
const CONTROL_PATH: &str = "/dev/ublk-control";

/// Where the system lists devices that exist.
const LIST_PATH: &str = "/sys/class/ublk-char";

/// Features without which no array is served.
const NEEDED: [(u64, &str); 4] = [
    (feature::IOCTL_ENCODE, "ioctl encoding (6.4)"),
    (feature::USER_COPY, "user copy (6.5)"),
    (feature::USER_RECOVERY, "user recovery (6.1)"),
    (feature::USER_RECOVERY_REISSUE, "reissue of requests (6.1)"),
];

/// How long the driver may take to delete a device that is no longer in use.
const DELETE_LIMIT: Duration = Duration::from_secs(10);

/// Why a block device is not there, or stays.
#[derive(Debug, thiserror::Error)]
pub enum UblkError {
    /// The kernel has no ublk, or its module is not loaded.
    #[error("this kernel has no ublk: there is no {CONTROL_PATH}; load the module ublk_drv")]
    NoDriver,
    /// This user may not make block devices.
    #[error("this user may not open {CONTROL_PATH}: run as root, or give the user access to it")]
    Permission,
    /// The driver is too old.
    #[error("this kernel's ublk is too old: it lacks {0}")]
    TooOld(String),
    /// io_uring is off: ublk works through nothing else.
    #[error("the system does not allow io_uring, through which ublk works")]
    NoRing,
    /// There is a device of that number.
    #[error("there is a ublk device with number {0} already")]
    Exists(u32),
    /// The block device is open or mounted.
    #[error("{} is in use{}", path.display(), by.as_ref().map(|by| format!(" by {by}")).unwrap_or_default())]
    InUse {
        /// The block device.
        path: PathBuf,
        /// A process that has it open, if one is known.
        by: Option<Opener>,
    },
    /// The device cannot be handed over in order.
    #[error("{} cannot be left to the next server in order: this kernel's ublk cannot quiesce it", .0.display())]
    NoHandover(PathBuf),
    /// The device that waits for this array is not as this array would be served.
    #[error("{} waits for this array, but {reason}", path.display())]
    Unfit {
        /// The block device.
        path: PathBuf,
        /// What is different.
        reason: String,
    },
    /// Anything else the system says.
    #[error("cannot {doing}: {source}")]
    System {
        /// What was being done.
        doing: String,
        /// What it said.
        source: io::Error,
    },
}

impl UblkError {
    pub(super) fn system(doing: impl Into<String>, source: impl Into<io::Error>) -> Self {
        UblkError::System { doing: doing.into(), source: source.into() }
    }
}

/// Path of a block device.
pub fn block_path(number: u32) -> PathBuf {
    PathBuf::from(format!("/dev/ublkb{number}"))
}

/// Path of the character device through which a server serves it.
pub fn character_path(number: u32) -> PathBuf {
    PathBuf::from(format!("/dev/ublkc{number}"))
}

/// The open control device of a driver that has what is needed.
#[derive(Debug)]
pub struct Control {
    fd: OwnedFd,
    features: u64,
}

impl Control {
    /// Opens the control device.
    ///
    /// # Errors
    /// [`UblkError::NoDriver`], [`UblkError::Permission`], [`UblkError::TooOld`], [`UblkError::NoRing`].
    pub fn open() -> Result<Self, UblkError> {
        let fd = rustix::fs::open(CONTROL_PATH, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty());
        let fd = fd.map_err(|errno| match errno {
            Errno::NOENT | Errno::NXIO | Errno::NODEV => UblkError::NoDriver,
            Errno::ACCESS | Errno::PERM => UblkError::Permission,
            _ => UblkError::system(format!("open {CONTROL_PATH}"), errno),
        })?;
        let mut control = Control { fd, features: 0 };
        control.features = control.ask_features()?;
        let has = control.features;
        let missing: Vec<&str> =
            NEEDED.iter().filter(|(bit, _)| has & bit == 0).map(|(_, name)| *name).collect();
        if missing.is_empty() { Ok(control) } else { Err(UblkError::TooOld(missing.join(", "))) }
    }

    fn ask_features(&self) -> Result<u64, UblkError> {
        let mut features = 0u64;
        match self.call(control::GET_FEATURES, u32::MAX, 0, features.as_mut_bytes()) {
            Ok(_) => Ok(features),
            // Before Linux 6.5 the driver does not have that command.
            Err(error) if matches!(error.raw_os_error(), Some(libc::EINVAL | libc::EOPNOTSUPP)) => Ok(0),
            Err(error) => match error.raw_os_error() {
                Some(libc::EPERM | libc::EACCES | libc::ENOSYS) => Err(UblkError::NoRing),
                _ => Err(UblkError::system("ask the ublk driver", error)),
            },
        }
    }

    /// Whether the driver has a feature.
    pub fn has(&self, feature: u64) -> bool {
        self.features & feature != 0
    }

    /// Those of these features that the driver has.
    pub(super) fn features(&self, wanted: u64) -> u64 {
        self.features & wanted
    }

    /// Numbers of the devices that exist.
    pub fn numbers(&self) -> Vec<u32> {
        let entries = std::fs::read_dir(LIST_PATH).into_iter().flatten().flatten();
        let number = |name: &str| name.strip_prefix("ublkc")?.parse().ok();
        let mut numbers: Vec<u32> =
            entries.filter_map(|entry| number(&entry.file_name().to_string_lossy())).collect();
        numbers.sort_unstable();
        numbers
    }

    /// Makes a device; `info` is as the driver has it afterwards.
    pub(super) fn add(&self, info: &mut DeviceInfo) -> Result<(), UblkError> {
        let wanted = info.number;
        match self.call(control::ADD, wanted, 0, info.as_mut_bytes()) {
            Ok(_) => Ok(()),
            Err(error) if error.raw_os_error() == Some(libc::EEXIST) => Err(UblkError::Exists(wanted)),
            Err(error) if matches!(error.raw_os_error(), Some(libc::EPERM | libc::EACCES)) => {
                Err(UblkError::Permission)
            }
            Err(error) => Err(UblkError::system("make a ublk device", error)),
        }
    }

    /// What the driver knows of a device.
    pub(super) fn info(&self, number: u32) -> io::Result<DeviceInfo> {
        let mut info = DeviceInfo::new_zeroed();
        self.call(control::GET_INFO, number, 0, info.as_mut_bytes()).map(|_| info)
    }

    /// Sets what the block device is like, before it is started.
    pub(super) fn set_parameters(&self, number: u32, parameters: &Parameters) -> Result<(), UblkError> {
        let mut parameters = *parameters;
        let set = self.call(control::SET_PARAMETERS, number, 0, parameters.as_mut_bytes());
        set.map(|_| ()).map_err(|error| UblkError::system("set the parameters of the ublk device", error))
    }

    /// What the block device is like.
    pub(super) fn parameters(&self, number: u32) -> io::Result<Parameters> {
        let mut parameters = Parameters { bytes: size_of::<Parameters>() as u32, ..Parameters::default() };
        self.call(control::GET_PARAMETERS, number, 0, parameters.as_mut_bytes()).map(|_| parameters)
    }

    /// Shows the block device, or with `recovering` lets its requests go on, once every queue fetches. Gives up when
    /// `goes_on` is false: a queue has failed.
    pub(super) fn start(
        &self,
        number: u32,
        recovering: bool,
        goes_on: impl FnMut() -> bool,
    ) -> Result<(), UblkError> {
        let command = if recovering { control::END_RECOVERY } else { control::START };
        let process = u64::from(std::process::id());
        let started = self.call_while(command, number, process, goes_on);
        started.map_err(|error| UblkError::system(format!("start {}", block_path(number).display()), error))
    }

    /// Takes a device over from a server that has ended.
    pub(super) fn start_recovery(&self, number: u32) -> io::Result<()> {
        self.call(control::START_RECOVERY, number, 0, &mut []).map(|_| ())
    }

    /// Takes the block device away unless it is in use.
    pub(super) fn stop_unused(&self, number: u32) -> Result<(), UblkError> {
        let path = block_path(number);
        let failed = |error| UblkError::system(format!("stop {}", path.display()), error);
        let by = || opener(Path::new(PROCESSES), Path::new(BLOCK_DEVICES), &path);
        let command = if self.has(feature::SAFE_STOP) {
            control::TRY_STOP
        } else {
            // Older drivers take it away also while it is in use. A mount claims the device, other users only open it.
            let by = by();
            if by.is_some() || is_claimed(&path) {
                return Err(UblkError::InUse { path, by });
            }
            control::STOP
        };
        match self.call(command, number, 0, &mut []) {
            Ok(_) => Ok(()),
            // ENODEV: another program has taken it away.
            Err(error) if error.raw_os_error() == Some(libc::ENODEV) => Ok(()),
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {
                let by = by();
                Err(UblkError::InUse { path, by })
            }
            Err(error) => Err(failed(error)),
        }
    }

    /// Lets requests that come from now on wait for the next server.
    pub(super) fn quiesce(&self, number: u32) -> Result<(), UblkError> {
        let quiesced = self.call(control::QUIESCE, number, 0, &mut []);
        let failed = |error| UblkError::system(format!("quiesce {}", block_path(number).display()), error);
        quiesced.map(|_| ()).map_err(failed)
    }

    /// Takes the block device away, also while it is in use.
    pub(super) fn stop(&self, number: u32) -> io::Result<()> {
        self.call(control::STOP, number, 0, &mut []).map(|_| ())
    }

    /// Deletes a stopped device.
    pub(super) fn delete(&self, number: u32) -> io::Result<()> {
        let end = std::time::Instant::now() + DELETE_LIMIT;
        self.call_while(control::DELETE, number, 0, || std::time::Instant::now() < end)
    }

    fn call(&self, number: u32, device: u32, data: u64, buffer: &mut [u8]) -> io::Result<u32> {
        let command = ControlCommand { device, queue: u16::MAX, data, ..ControlCommand::default() };
        kernel::control(self.fd.as_fd(), number, command, buffer)
    }

    fn call_while(
        &self,
        number: u32,
        device: u32,
        data: u64,
        goes_on: impl FnMut() -> bool,
    ) -> io::Result<()> {
        let command = ControlCommand { device, queue: u16::MAX, data, ..ControlCommand::default() };
        kernel::control_while(self.fd.as_fd(), number, &command, goes_on).map(|_| ())
    }
}

fn is_claimed(path: &Path) -> bool {
    let flags = OFlags::RDONLY | OFlags::EXCL | OFlags::CLOEXEC;
    rustix::fs::open(path, flags, Mode::empty()).is_err_and(|errno| errno == Errno::BUSY)
}

/// Opens the character device of a new device, whose node the system makes a moment later.
pub(super) fn open_character(number: u32) -> Result<OwnedFd, UblkError> {
    const PATIENCE: Duration = Duration::from_secs(5);
    let path = character_path(number);
    let start = std::time::Instant::now();
    loop {
        match open_at_once(&path) {
            Err(Errno::NOENT | Errno::ACCESS | Errno::BUSY) if start.elapsed() < PATIENCE => {
                std::thread::sleep(Duration::from_millis(10));
            }
            opened => {
                return opened.map_err(|errno| UblkError::system(format!("open {}", path.display()), errno));
            }
        }
    }
}

/// Without O_NONBLOCK the ring would send each copy to a thread of its own.
fn open_at_once(path: &Path) -> Result<OwnedFd, Errno> {
    rustix::fs::open(path, OFlags::RDWR | OFlags::CLOEXEC | OFlags::NONBLOCK, Mode::empty())
}
