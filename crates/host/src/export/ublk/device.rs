//! A block device of this process, from the driver's "add" to its "delete", or taken over from a server that was killed.

use engine::volume::{ReadInto, Volume, VolumeInfo};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
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
use super::queue::{Ends, QueueSetup, QueuesState, serve_queue};
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
    /// The mark by which a later server finds it: no other array has the same.
    pub identity: u64,
    /// Members' reads fill the requests' own memory, if the kernel can do that; else the data is copied there.
    pub zero_copy: bool,
}

/// A block device for a status report.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UblkStatus {
    /// `/dev/ublkb0` and so on.
    pub path: String,
    /// Queues, one a shard.
    pub queues: u16,
    /// Requests that each queue holds at once.
    pub depth: u16,
    /// Members' reads fill the requests' own memory.
    pub zero_copy: bool,
    /// It was taken over from a server that had ended.
    pub recovered: bool,
    /// It is no longer served, though this program did not stop it.
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
    state: Arc<QueuesState>,
    /// Until the device is stopped.
    serving: Mutex<Option<Served>>,
}

/// The queues of a device that is served. They alone have the character device open: when they have ended, a deletion of the
/// device does not wait for this program.
struct Served {
    /// Disconnected when the last queue has ended.
    ended: Receiver<()>,
}

impl UblkDevice {
    /// Makes a block device of a volume, or goes on with the one that waits for it since its server ended. `open` gives the
    /// shard it is called on its handle of the volume. Not for use on a shard.
    ///
    /// # Errors
    /// Why there is no block device. None is left behind that was not there before.
    pub fn start<V: Volume + ReadInto>(
        control: Control,
        shards: &Handle,
        options: &UblkOptions,
        volume: &VolumeInfo,
        open: impl Fn(&ShardContext) -> Rc<V> + Clone + Send + 'static,
    ) -> Result<Self, UblkError> {
        let service = Service { shards, options, volume, open };
        match waiting(&control, options.identity) {
            Some(info) => service.take_over(control, info),
            None => service.make(control),
        }
    }

    /// The block device.
    pub fn path(&self) -> PathBuf {
        block_path(self.info.number)
    }

    /// For a status report.
    pub fn status(&self) -> UblkStatus {
        UblkStatus {
            path: self.path().display().to_string(),
            queues: self.info.queues,
            depth: self.info.depth,
            zero_copy: self.zero_copy,
            recovered: self.recovered,
            failed: self.state.failed.load(Relaxed),
            errors: self.state.errors.load(Relaxed),
        }
    }

    /// Takes the block device away. A second call does nothing.
    ///
    /// # Errors
    /// [`UblkError::InUse`]: the block device goes on as it was.
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
            tracing::warn!(
                number = self.info.number,
                %error,
                "a stopped ublk device was not deleted: `ublk del -n NUMBER` frees its number"
            );
        }
        Ok(())
    }

    /// False if another program has deleted it. Another device may have its number by now.
    fn is_there(&self) -> bool {
        match self.control.info(self.info.number) {
            Ok(info) => info.server_flags == self.info.server_flags,
            Err(error) => error.raw_os_error() != Some(libc::ENODEV),
        }
    }

    /// Runs `stop`, after which the end of the queues is no failure.
    fn while_stopping(&self, stop: impl FnOnce() -> Result<(), UblkError>) -> Result<(), UblkError> {
        self.state.stopping.store(true, SeqCst);
        stop().inspect_err(|_| self.state.stopping.store(false, SeqCst))
    }

    /// Leaves the block device to the next server, also while it is in use: requests that were fetched are done when this
    /// returns, later ones wait. This server ends now.
    ///
    /// # Errors
    /// [`UblkError::NoHandover`]: all goes on as it was.
    pub fn leave(&self) -> Result<(), UblkError> {
        if self.info.flags & feature::QUIESCE == 0 {
            return Err(UblkError::NoHandover(self.path()));
        }
        self.while_stopping(|| self.control.quiesce(self.info.number))?;
        // From here on the driver keeps new requests back, but it does not wait for those that were fetched.
        let end = Instant::now() + END_LIMIT;
        while self.state.under_way() > 0 {
            if Instant::now() > end {
                tracing::warn!(
                    "requests of the block device have not ended within 10 s: the driver sends them again to the next server"
                );
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
            tracing::warn!(
                "the queues of the block device have not ended within 10 s: its deletion waits for them"
            );
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

/// Deletes devices of servers of this array that ended between "add" and "start", or between "stop" and "delete": such a
/// device has no block device, no server can go on with it, and its number would stay taken.
fn clear_left_behind(control: &Control, identity: u64) {
    let infos = control.numbers().into_iter().filter_map(|number| control.info(number).ok());
    let is_running = |process: i32| Path::new(&format!("/proc/{process}")).exists();
    for info in infos.filter(|info| is_left_behind(info, identity, is_running)) {
        match control.delete(info.number) {
            Ok(()) => {
                tracing::info!(
                    number = info.number,
                    "deleted a ublk device that an earlier server of this array had left"
                );
            }
            Err(error) => {
                tracing::warn!(
                    number = info.number,
                    %error,
                    "a ublk device that an earlier server of this array had left could not be deleted and keeps its number"
                );
            }
        }
    }
}

/// Whether a device was left by a server that has ended. Another server of the array may be about to start its own: several
/// may read an array in files.
fn is_left_behind(info: &DeviceInfo, identity: u64, is_running: impl Fn(i32) -> bool) -> bool {
    let is_another = |process: i32| process > 0 && process.cast_unsigned() != std::process::id();
    let is_being_made = is_another(info.server_process) && is_running(info.server_process);
    info.state == state::DEAD && info.server_flags == identity && !is_being_made
}

/// A block device to be served: by which shards, how, and the volume on each.
struct Service<'a, F> {
    shards: &'a Handle,
    options: &'a UblkOptions,
    volume: &'a VolumeInfo,
    open: F,
}

impl<V: Volume + ReadInto, F: Fn(&ShardContext) -> Rc<V> + Clone + Send + 'static> Service<'_, F> {
    /// Makes a new device.
    fn make(&self, control: Control) -> Result<UblkDevice, UblkError> {
        clear_left_behind(&control, self.options.identity);
        let mut info = DeviceInfo {
            queues: u16::try_from(self.shards.count()).unwrap_or(u16::MAX),
            depth: DEPTH,
            request_bytes_max: request_bytes_max(self.volume),
            number: self.options.number.unwrap_or(u32::MAX),
            server_process: std::process::id().cast_signed(),
            flags: feature::USER_COPY
                | feature::IOCTL_ENCODE
                | feature::USER_RECOVERY
                | feature::USER_RECOVERY_REISSUE
                | control.features(feature::QUIESCE | feature::SAFE_STOP | zero_copy(&control, self.options)),
            server_flags: self.options.identity,
            ..DeviceInfo::empty()
        };
        control.add(&mut info)?;
        let set = control.set_parameters(info.number, &parameters(self.volume));
        match set.and_then(|()| self.serve(&control, &info, false)) {
            Ok((serving, state)) => {
                tracing::info!(device = %block_path(info.number).display(), queues = info.queues, "block device made");
                Ok(self.device(control, info, false, state, serving))
            }
            Err(error) => {
                let removed = control.stop(info.number).and_then(|()| control.delete(info.number));
                if let Err(error) = removed {
                    tracing::warn!(
                        number = info.number,
                        %error,
                        "a ublk device that did not start was not deleted: `ublk del -n NUMBER` frees its number"
                    );
                }
                Err(error)
            }
        }
    }

    /// Goes on with a device that waits.
    fn take_over(&self, control: Control, info: DeviceInfo) -> Result<UblkDevice, UblkError> {
        let path = block_path(info.number);
        let known = control.parameters(info.number);
        let known = known.map_err(|error| UblkError::system(format!("ask for {}", path.display()), error))?;
        if let Some(reason) = unfit(&info, &known, self.options, self.volume) {
            return Err(UblkError::Unfit { path, reason });
        }
        let start = Instant::now();
        while let Err(error) = control.start_recovery(info.number) {
            // The driver answers EBUSY until it has seen the end of the last server.
            if error.raw_os_error() != Some(libc::EBUSY) || start.elapsed() > HANDOVER_LIMIT {
                return Err(UblkError::system(format!("take {} over", path.display()), error));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        let (serving, state) = self.serve(&control, &info, true)?;
        tracing::info!(device = %path.display(), "block device taken over: its requests go on");
        Ok(self.device(control, info, true, state, serving))
    }

    /// Lets the shards serve every queue, and starts the device.
    fn serve(
        &self,
        control: &Control,
        info: &DeviceInfo,
        recovering: bool,
    ) -> Result<(Served, Arc<QueuesState>), UblkError> {
        let character = Arc::new(open_character(info.number)?);
        let state = Arc::new(QueuesState::new(info.queues));
        let (ends, ended) = channel();
        let served = Served { ended };
        let started = self.start_queues(info, &character, &state, &ends);
        drop((ends, character)); // only the queues hold them now
        let goes_on = || !state.failed.load(Relaxed);
        match started.and_then(|()| control.start(info.number, recovering, goes_on)) {
            Ok(()) => Ok((served, state)),
            Err(error) => {
                if !recovering {
                    state.stopping.store(true, SeqCst);
                    let _ends_the_fetches = control.stop(info.number);
                    served.end();
                }
                Err(error)
            }
        }
    }

    /// Queue `n` goes to shard `n`. The queues of a device that was made for more shards, or fewer, are spread over these.
    fn start_queues(
        &self,
        info: &DeviceInfo,
        character: &Arc<OwnedFd>,
        state: &Arc<QueuesState>,
        ends: &Ends,
    ) -> Result<(), UblkError> {
        for number in 0..info.queues {
            let setup = QueueSetup {
                number,
                depth: info.depth,
                registers: registers(info),
                zero_copy: self.options.zero_copy,
            };
            let (character, state, ends) = (Arc::clone(character), Arc::clone(state), ends.clone());
            let open = self.open.clone();
            let shard = usize::from(number) % self.shards.count();
            let started = self.shards.run_on(shard, move |context| async move {
                serve_queue(&context, open(&context), character, setup, state, ends)
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

    fn device(
        &self,
        control: Control,
        info: DeviceInfo,
        recovered: bool,
        state: Arc<QueuesState>,
        serving: Served,
    ) -> UblkDevice {
        let zero_copy = self.options.zero_copy && registers(&info);
        UblkDevice { control, info, zero_copy, recovered, state, serving: Mutex::new(Some(serving)) }
    }
}

/// The features that reads without a copy need: all of them or none.
fn zero_copy(control: &Control, options: &UblkOptions) -> u64 {
    let wanted = feature::SUPPORT_ZERO_COPY | feature::AUTO_BUFFERS;
    if options.zero_copy && control.features(wanted) == wanted { wanted } else { 0 }
}

/// Whether the driver registers the memory of the device's requests.
fn registers(info: &DeviceInfo) -> bool {
    info.flags & feature::AUTO_BUFFERS != 0
}

/// Why this server cannot go on with a device that waits.
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
        return Some(format!(
            "it has {} sectors of 512 bytes and the array has {}",
            known.sectors, wanted.sectors
        ));
    }
    if known.logical_block_shift < wanted.logical_block_shift {
        let (block, members) = (1 << known.logical_block_shift, 1 << wanted.logical_block_shift);
        return Some(format!(
            "it has blocks of {block} bytes and the members now have blocks of {members} bytes"
        ));
    }
    if wanted.attributes & !known.attributes != 0 {
        return Some("it takes writes, and the array is served read-only now".into());
    }
    if info.flags & feature::USER_COPY == 0 {
        return Some("it was not made by this program".into());
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_device_that_a_server_of_this_array_left_is_deleted() {
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
