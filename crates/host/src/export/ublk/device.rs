//! A block device of this process, from the driver's "add" to its "delete", or taken over from a server that was killed.

use engine::volume::{ReadInto, VolumeInfo};
use parking_lot::Mutex;
use serde::Serialize;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use super::control::{Control, UblkError, block_path, open_character};
use super::parameters::{parameters, request_bytes_max};
use super::protocol::{DeviceInfo, Parameters, feature, state};
use super::queue::{Ends, Place, Shared, serve_queue};
use crate::shard::{Handle, ShardContext};

/// Requests of each queue.
const DEPTH: u16 = 128;

/// How long the driver may take to see that the last server has ended.
const HANDOVER_LIMIT: Duration = Duration::from_secs(20);

/// How long the tasks of a stopped device may take to end.
const END_LIMIT: Duration = Duration::from_secs(10);

/// Which device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UblkOptions {
    /// Its number; without one the driver chooses.
    pub number: Option<u32>,
    /// What a later server finds it by: no other array has the same.
    pub identity: u64,
    /// Members may put what is read where it is wanted, if the kernel can; else it is copied there.
    pub zero_copy: bool,
}

/// A block device for a status report.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct UblkStatus {
    /// The block device.
    pub path: PathBuf,
    /// Its number.
    pub number: u32,
    /// Queues, one a shard.
    pub queues: u16,
    /// Requests that each queue holds at once.
    pub depth: u16,
    /// Members put what is read where it is wanted.
    pub zero_copy: bool,
    /// It was taken over from a server that had ended.
    pub recovered: bool,
    /// It is not served any more, though nobody stopped it.
    pub failed: bool,
    /// Requests answered with an error.
    pub errors: u64,
}

/// A block device that this process serves. Dropped without [`UblkDevice::stop`] it stays, and waits for the next server.
pub struct UblkDevice {
    control: Control,
    info: DeviceInfo,
    zero_copy: bool,
    recovered: bool,
    shared: Arc<Shared>,
    /// Until the device is stopped.
    serving: Mutex<Option<Served>>,
}

/// What tells when a device is not served any more. The queues alone have the character device open: when they have ended,
/// whoever takes the device away has not to wait for this program.
struct Served {
    /// Ends with the last queue.
    ended: Receiver<()>,
}

impl UblkDevice {
    /// Makes a block device of a volume, or goes on with the one that waits for it since its server ended. `open` gives the
    /// shard it is called on its handle of the volume. Not for use on a shard.
    ///
    /// # Errors
    /// Why there is no block device. None is left behind that was not there before.
    pub fn start<V: ReadInto>(
        control: Control,
        shards: &Handle,
        options: &UblkOptions,
        volume: &VolumeInfo,
        open: impl Fn(&ShardContext) -> Rc<V> + Clone + Send + 'static,
    ) -> Result<Self, UblkError> {
        match waiting(&control, options.identity) {
            Some(info) => take_over(control, info, shards, options, volume, open),
            None => make(control, shards, options, volume, open),
        }
    }

    /// The block device.
    pub fn path(&self) -> PathBuf {
        block_path(self.info.number)
    }

    /// How it is.
    pub fn status(&self) -> UblkStatus {
        UblkStatus {
            path: self.path(),
            number: self.info.number,
            queues: self.info.queues,
            depth: self.info.depth,
            zero_copy: self.zero_copy,
            recovered: self.recovered,
            failed: self.shared.failed.load(Relaxed),
            errors: self.shared.errors.load(Relaxed),
        }
    }

    /// Takes the block device away. A second call does nothing.
    ///
    /// # Errors
    /// [`UblkError::InUse`] if somebody uses it: it goes on then.
    pub fn stop(&self) -> Result<(), UblkError> {
        let mut serving = self.serving.lock();
        if serving.is_none() {
            return Ok(());
        }
        let is_there = self.is_there();
        if is_there {
            self.while_stopping(|| self.control.stop_unused(self.info.number))?;
        }
        if let Some(served) = serving.take() {
            served.end();
        }
        // The block device is gone; what is left is an entry of the driver.
        if is_there && let Err(error) = self.control.delete(self.info.number) {
            tracing::warn!(number = self.info.number, %error, "a ublk device that was stopped is left behind");
        }
        Ok(())
    }

    /// False if somebody has deleted it from outside: another's device may have its number by now.
    fn is_there(&self) -> bool {
        match self.control.info(self.info.number) {
            Ok(info) => info.server_flags == self.info.server_flags,
            Err(error) => error.raw_os_error() != Some(libc::ENODEV),
        }
    }

    /// Its queues end because this program wants it, unless `stop` fails.
    fn while_stopping(&self, stop: impl FnOnce() -> Result<(), UblkError>) -> Result<(), UblkError> {
        self.shared.stopping.store(true, SeqCst);
        stop().inspect_err(|_| self.shared.stopping.store(false, SeqCst))
    }

    /// Leaves the block device to the next server, whoever uses it: requests that are under way are done when this
    /// returns, later ones wait. This server is to end now.
    ///
    /// # Errors
    /// [`UblkError::NoHandover`]: all goes on as it was.
    pub fn leave(&self) -> Result<(), UblkError> {
        if self.info.flags & feature::QUIESCE == 0 {
            return Err(UblkError::NoHandover(self.path()));
        }
        self.while_stopping(|| self.control.quiesce(self.info.number))?;
        // The driver keeps new requests back from here on, but does not wait for those that were fetched.
        let end = Instant::now() + END_LIMIT;
        while self.shared.under_way() > 0 {
            if Instant::now() > end {
                tracing::warn!("requests of the block device do not end: the next server gets them again");
                break;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }
}

impl Served {
    /// Waits for the queues of a stopped device: they close it.
    fn end(self) {
        if self.ended.recv_timeout(END_LIMIT) == Err(RecvTimeoutError::Timeout) {
            tracing::warn!("the queues of the block device do not end");
        }
    }
}

/// The device that waits for a server of the array with this identity, if there is one.
fn waiting(control: &Control, identity: u64) -> Option<DeviceInfo> {
    let infos = control.numbers().into_iter().filter_map(|number| control.info(number).ok());
    infos.into_iter().find(|info| info.server_flags == identity && info.state != state::DEAD)
}

/// Whether a device waits for a server of the array with this identity.
pub fn is_awaited(control: &Control, identity: u64) -> bool {
    waiting(control, identity).is_some()
}

/// Takes away what servers of this array left that ended between "add" and "start", or between "stop" and "delete": it has
/// no block device, nobody can go on with it, and its number would stay taken.
fn clear_left_behind(control: &Control, identity: u64) {
    let infos = control.numbers().into_iter().filter_map(|number| control.info(number).ok());
    let is_running = |process: i32| Path::new(&format!("/proc/{process}")).exists();
    for info in infos.filter(|info| is_left_behind(info, identity, is_running)) {
        match control.delete(info.number) {
            Ok(()) => {
                tracing::info!(number = info.number, "a ublk device that an earlier server left is deleted");
            }
            Err(error) => {
                tracing::warn!(number = info.number, %error, "a ublk device that an earlier server left stays");
            }
        }
    }
}

/// Not one that another server of the array is just about to start: arrays in files may be read by several.
fn is_left_behind(info: &DeviceInfo, identity: u64, is_running: impl Fn(i32) -> bool) -> bool {
    let is_another = |process: i32| process > 0 && process.cast_unsigned() != std::process::id();
    let is_being_made = is_another(info.server_process) && is_running(info.server_process);
    info.state == state::DEAD && info.server_flags == identity && !is_being_made
}

fn make<V: ReadInto>(
    control: Control,
    shards: &Handle,
    options: &UblkOptions,
    volume: &VolumeInfo,
    open: impl Fn(&ShardContext) -> Rc<V> + Clone + Send + 'static,
) -> Result<UblkDevice, UblkError> {
    clear_left_behind(&control, options.identity);
    let mut info = DeviceInfo {
        queues: u16::try_from(shards.count()).unwrap_or(u16::MAX),
        depth: DEPTH,
        request_bytes_max: request_bytes_max(volume),
        number: options.number.unwrap_or(u32::MAX),
        server_process: std::process::id().cast_signed(),
        flags: feature::USER_COPY
            | feature::IOCTL_ENCODE
            | feature::USER_RECOVERY
            | feature::USER_RECOVERY_REISSUE
            | control.features(feature::QUIESCE | feature::SAFE_STOP | zero_copy(&control, options)),
        server_flags: options.identity,
        ..DeviceInfo::empty()
    };
    control.add(&mut info)?;
    let set = control.set_parameters(info.number, &parameters(volume));
    match set.and_then(|()| serve(&control, &info, shards, options.zero_copy, false, open)) {
        Ok((serving, shared)) => {
            tracing::info!(device = %block_path(info.number).display(), queues = info.queues, "block device made");
            Ok(device(control, info, options, false, shared, serving))
        }
        Err(error) => {
            let removed = control.stop(info.number).and_then(|()| control.delete(info.number));
            if let Err(error) = removed {
                tracing::warn!(number = info.number, %error, "a ublk device that did not start is left behind");
            }
            Err(error)
        }
    }
}

/// Features for reads that are not copied: all of them or none.
fn zero_copy(control: &Control, options: &UblkOptions) -> u64 {
    let wanted = feature::SUPPORT_ZERO_COPY | feature::AUTO_BUFFERS;
    if options.zero_copy && control.features(wanted) == wanted { wanted } else { 0 }
}

/// Whether the driver registers the memory of the device's requests.
fn registers(info: &DeviceInfo) -> bool {
    info.flags & feature::AUTO_BUFFERS != 0
}

fn take_over<V: ReadInto>(
    control: Control,
    info: DeviceInfo,
    shards: &Handle,
    options: &UblkOptions,
    volume: &VolumeInfo,
    open: impl Fn(&ShardContext) -> Rc<V> + Clone + Send + 'static,
) -> Result<UblkDevice, UblkError> {
    let path = block_path(info.number);
    let known = control.parameters(info.number);
    let known = known.map_err(|error| UblkError::system(format!("ask for {}", path.display()), error))?;
    if let Some(reason) = unfit(&info, &known, options, volume) {
        return Err(UblkError::Unfit { path, reason });
    }
    let start = Instant::now();
    while let Err(error) = control.start_recovery(info.number) {
        // The driver says busy until it has seen the end of the last server.
        if error.raw_os_error() != Some(libc::EBUSY) || start.elapsed() > HANDOVER_LIMIT {
            return Err(UblkError::system(format!("take {} over", path.display()), error));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    let (serving, shared) = serve(&control, &info, shards, options.zero_copy, true, open)?;
    tracing::info!(device = %path.display(), "block device taken over: its requests go on");
    Ok(device(control, info, options, true, shared, serving))
}

fn device(
    control: Control,
    info: DeviceInfo,
    options: &UblkOptions,
    recovered: bool,
    shared: Arc<Shared>,
    serving: Served,
) -> UblkDevice {
    let zero_copy = options.zero_copy && registers(&info);
    UblkDevice { control, info, zero_copy, recovered, shared, serving: Mutex::new(Some(serving)) }
}

/// Why a device that waits cannot be gone on with.
fn unfit(
    info: &DeviceInfo,
    known: &Parameters,
    options: &UblkOptions,
    volume: &VolumeInfo,
) -> Option<String> {
    let wanted = parameters(volume);
    if let Some(number) = options.number.filter(|number| *number != info.number) {
        return Some(format!("number {number} was asked for"));
    }
    if known.sectors != wanted.sectors {
        return Some(format!("it has {} sectors and the array {}", known.sectors, wanted.sectors));
    }
    if known.logical_block_shift < wanted.logical_block_shift {
        let (block, members) = (1 << known.logical_block_shift, 1 << wanted.logical_block_shift);
        return Some(format!("its blocks are of {block} bytes and those of the members now of {members}"));
    }
    if wanted.attributes & !known.attributes != 0 {
        return Some("it takes writes, and the array is served read-only now".into());
    }
    if info.flags & feature::USER_COPY == 0 {
        return Some("it was not made by this program".into());
    }
    None
}

/// Has the shards serve every queue, and starts the device.
fn serve<V: ReadInto>(
    control: &Control,
    info: &DeviceInfo,
    shards: &Handle,
    zero_copy: bool,
    recovering: bool,
    open: impl Fn(&ShardContext) -> Rc<V> + Clone + Send + 'static,
) -> Result<(Served, Arc<Shared>), UblkError> {
    let character = Arc::new(open_character(info.number)?);
    let shared = Arc::new(Shared::new(info.queues));
    let (ends, ended) = channel();
    let served = Served { ended };
    let started = start_queues(info, shards, zero_copy, &character, &shared, &ends, open);
    drop((ends, character)); // what is left are those of the queues
    let goes_on = || !shared.failed.load(Relaxed);
    match started.and_then(|()| control.start(info.number, recovering, goes_on)) {
        Ok(()) => Ok((served, shared)),
        Err(error) => {
            if !recovering {
                shared.stopping.store(true, SeqCst);
                let _ends_the_fetches = control.stop(info.number);
                served.end();
            }
            Err(error)
        }
    }
}

/// Queue `n` goes to shard `n`; a device that was made for more shards or fewer is spread over those there are.
fn start_queues<V: ReadInto>(
    info: &DeviceInfo,
    shards: &Handle,
    zero_copy: bool,
    character: &Arc<OwnedFd>,
    shared: &Arc<Shared>,
    ends: &Ends,
    open: impl Fn(&ShardContext) -> Rc<V> + Clone + Send + 'static,
) -> Result<(), UblkError> {
    for number in 0..info.queues {
        let place = Place { number, depth: info.depth, registers: registers(info), zero_copy };
        let (character, shared, ends) = (Arc::clone(character), Arc::clone(shared), ends.clone());
        let open = open.clone();
        let shard = usize::from(number) % shards.count();
        let started = shards.run_on(shard, move |context| async move {
            serve_queue(&context, open(&context), character, place, shared, ends)
        });
        let doing = || format!("serve queue {number} of {}", block_path(info.number).display());
        match started {
            Ok(Ok(())) => {}
            Ok(Err(error)) => return Err(UblkError::system(doing(), error)),
            Err(gone) => return Err(UblkError::system(doing(), std::io::Error::other(gone))),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_a_server_of_this_array_left_without_a_block_device_is_taken_away() {
        const LIVE: u16 = 1;
        let own = std::process::id().cast_signed();
        for (state, server_flags, server_process, is_left) in [
            (state::DEAD, 7, -1, true),  // stopped, not deleted
            (state::DEAD, 7, 41, true),  // added, not started, and that server has ended
            (state::DEAD, 7, own, true), // an attempt of this one
            (state::DEAD, 7, 42, false), // being made by another server
            (state::DEAD, 8, -1, false), // of another array, or another program
            (LIVE, 7, 41, false),        // it waits for its next server
        ] {
            let info = DeviceInfo { state, server_flags, server_process, ..DeviceInfo::empty() };
            let is_running = |process| process == 42;
            assert_eq!(is_left_behind(&info, 7, is_running), is_left, "{info:?}");
        }
    }
}
