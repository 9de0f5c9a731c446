//! Identify Controller.

use byte_struct::byte_struct;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

use super::IDENTIFY_BYTES;
use crate::names::{Nqn, NqnError};
use crate::vendor::Capability;

pub use crate::vendor::CAPABILITY_BYTES;

/// Version 2.0 of the specification, as the property of that name has it, too.
pub const VERSION: u32 = 0x0002_0000;

byte_struct! {
    struct RawController, 4096 bytes {
        0     2     vendor_id: U16,
        2     2     subsystem_vendor_id: U16,
        4     20    serial: bytes,
        24    40    model: bytes,
        64    8     firmware: bytes,
        72    1     arbitration_burst: u8,
        73    3     ieee: bytes,
        76    1     multi_path: u8,
        77    1     transfer_log2: u8,
        78    2     controller_id: U16,
        80    4     version: U32,
        84    4     resume_us: U32,
        88    4     entry_us: U32,
        92    4     async_events: U32,
        96    4     attributes: U32,
        100   2     recovery_levels: U16,
        102   9     reserve_102: bytes,
        111   1     controller_type: u8,
        112   16    fru_guid: bytes,
        128   6     retry_delays: [U16; 3],
        134   1     reachability: u8,
        135   1     instance: u8,
        136   8     instance_random: U64,
        144   112   reserve_144: bytes,
        256   2     admin_commands: U16,
        258   1     abort_limit: u8,
        259   1     async_event_limit: u8,
        260   1     firmware_updates: u8,
        261   1     log_attributes: u8,
        262   1     error_log_entries: u8,
        263   1     power_states: u8,
        264   2     reserve_264: bytes,
        266   2     warning_kelvin: U16,
        268   2     critical_kelvin: U16,
        270   50    reserve_270: bytes,
        320   2     keep_alive_granularity: U16,
        322   20    reserve_322: bytes,
        342   1     ana_transition_s: u8,
        343   1     ana_capabilities: u8,
        344   4     ana_group_max: U32,
        348   4     ana_groups: U32,
        352   34    reserve_352: bytes,
        386   2     quiesce_ms: U16,
        388   124   reserve_388: bytes,
        512   1     submission_entry: u8,
        513   1     completion_entry: u8,
        514   2     commands_max: U16,
        516   4     namespaces: U32,
        520   2     io_commands: U16,
        522   2     fused: U16,
        524   1     format: u8,
        525   1     volatile_cache: u8,
        526   2     atomic_blocks: U16,
        528   2     atomic_blocks_power_fail: U16,
        530   6     reserve_530: bytes,
        536   4     sgl: U32,
        540   4     namespaces_allowed: U32,
        544   224   reserve_544: bytes,
        768   256   subsystem_nqn: bytes,
        1024  768   reserve_1024: bytes,
        1792  4     command_capsule: U32,
        1796  4     response_capsule: U32,
        1800  2     in_capsule_offset: U16,
        1802  1     fabric_attributes: u8,
        1803  1     sgl_descriptors: u8,
        1804  2     fabric_commands: U16,
        1806  1     discovery_type: u8,
        1807  1     cross_resets: u8,
        1808  240   reserve_1808: bytes,
        2048  1024  power: bytes,
        3072  1024  vendor: bytes,
    }
}

const MULTI_CONTROLLER: u8 = 1 << 1;
const MULTI_PATH_ANA: u8 = 1 << 3;
const ATTRIBUTE_HOST_ID_128: u32 = 1 << 0;
const ATTRIBUTE_TRAFFIC_KEEPS_ALIVE: u32 = 1 << 6;
const LOG_EFFECTS: u8 = 1 << 1;
const LOG_EXTENDED: u8 = 1 << 2;
const IO_COMPARE: u16 = 1 << 0;
const IO_DATASET_MANAGEMENT: u16 = 1 << 2;
const IO_WRITE_ZEROES: u16 = 1 << 3;
const IO_FEATURE_SELECT: u16 = 1 << 4;
const IO_RESERVATIONS: u16 = 1 << 5;
const CACHE_PRESENT: u8 = 1;
/// Flush of all namespaces at once is refused.
const CACHE_FLUSH_ONE: u8 = 0b10 << 1;
const CACHE_FLUSH_ALL: u8 = 0b11 << 1;
const SGL_SUPPORTED: u32 = 1;
const SGL_IN_CAPSULE: u32 = 1 << 20;
const SGL_TRANSPORT: u32 = 1 << 21;
const FABRIC_DISCONNECT: u16 = 1;
const ANA_ALL_STATES: u8 = 0b0001_1111;
/// A group that can change while namespaces are in it does not change its id.
const ANA_GROUP_STAYS: u8 = 1 << 6;
/// No PCI vendor number is ours.
const VENDOR_ID: u16 = 0;
const FIRMWARE_READ_ONLY_SLOT: u8 = 0b11;

/// What a controller is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ControllerType {
    /// Namespaces.
    Io,
    /// The discovery log page.
    Discovery,
}

/// What is true of a controller.
#[derive(Clone, Debug)]
pub struct ControllerFacts {
    /// What it is for.
    pub controller_type: ControllerType,
    /// At most 20 ASCII characters; the same for all controllers of the subsystem.
    pub serial: String,
    /// At most 40 ASCII characters.
    pub model: String,
    /// At most 8 ASCII characters.
    pub firmware: String,
    /// Its number in the subsystem.
    pub controller_id: u16,
    /// The subsystem.
    pub subsystem: Nqn,
    /// The longest transfer is 2 to the power of this many 4 KiB; 0: no limit.
    pub transfer_log2: u8,
    /// Bytes of data in a command's capsule, a multiple of 16.
    pub in_capsule_bytes: u32,
    /// Commands that a queue has room for.
    pub commands_max: u16,
    /// The largest namespace id.
    pub namespace_id_max: u32,
    /// If what is not flushed is lost with the power.
    pub volatile_cache: bool,
    /// If a Flush of all namespaces at once is done.
    pub flush_all: bool,
    /// Blocks, less one, that are written whole or not at all beside other writes.
    pub atomic_blocks: u16,
    /// The same when the power fails.
    pub atomic_blocks_power_fail: u16,
    /// Write Zeroes and Dataset Management are done.
    pub deallocates: bool,
    /// Compare is done.
    pub compares: bool,
    /// Any command proves that the host is alive, not only Keep Alive.
    pub traffic_keeps_alive: bool,
    /// Milliseconds after which no command of a lost association runs any more; 0: not told.
    pub quiesce_ms: u16,
    /// The highest group id of asymmetric access; 0: it is not reported.
    pub ana_group_max: u32,
    /// Asynchronous event requests, less one, that may wait.
    pub async_event_limit: u8,
    /// What kinds of asynchronous events there are, as bits of Asynchronous Event Configuration.
    pub async_events: u32,
    /// Entries of the error log, less one.
    pub error_log_entries: u8,
    /// What a Twill target says of itself, by [`Capability::encode`]; other targets have zeroes there.
    pub capability: [u8; CAPABILITY_BYTES],
}

impl ControllerFacts {
    /// The answer to Identify Controller.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut raw = RawController::new_zeroed();
        raw.vendor_id.set(VENDOR_ID);
        fill_text(&mut raw.serial, &self.serial);
        fill_text(&mut raw.model, &self.model);
        fill_text(&mut raw.firmware, &self.firmware);
        raw.controller_id.set(self.controller_id);
        raw.version.set(VERSION);
        raw.transfer_log2 = self.transfer_log2;
        // The bits of health events turn them on; that they are there goes without saying.
        raw.async_events.set(self.async_events & !0xff);
        let traffic = if self.traffic_keeps_alive { ATTRIBUTE_TRAFFIC_KEEPS_ALIVE } else { 0 };
        raw.attributes.set(ATTRIBUTE_HOST_ID_128 | traffic);
        raw.async_event_limit = self.async_event_limit;
        raw.abort_limit = 3;
        raw.firmware_updates = FIRMWARE_READ_ONLY_SLOT;
        raw.log_attributes = LOG_EXTENDED | LOG_EFFECTS;
        raw.error_log_entries = self.error_log_entries;
        // In units of 100 ms.
        raw.keep_alive_granularity.set(10);
        raw.quiesce_ms.set(self.quiesce_ms);
        raw.commands_max.set(self.commands_max);
        raw.sgl
            .set(SGL_SUPPORTED | SGL_TRANSPORT | if self.in_capsule_bytes > 0 { SGL_IN_CAPSULE } else { 0 });
        raw.subsystem_nqn = self.subsystem.to_field();
        raw.command_capsule.set((64 + self.in_capsule_bytes) / 16);
        raw.response_capsule.set(1);
        raw.sgl_descriptors = 1;
        raw.fabric_commands.set(FABRIC_DISCONNECT);
        raw.submission_entry = 0x66;
        raw.completion_entry = 0x44;
        match self.controller_type {
            ControllerType::Io => self.fill_io(&mut raw),
            ControllerType::Discovery => {
                raw.controller_type = 2;
                raw.discovery_type = 1;
                raw.log_attributes = LOG_EXTENDED;
            }
        }
        raw.as_bytes().to_vec()
    }

    fn fill_io(&self, raw: &mut RawController) {
        raw.controller_type = 1;
        raw.multi_path = MULTI_CONTROLLER;
        if self.ana_group_max > 0 {
            raw.multi_path |= MULTI_PATH_ANA;
            raw.ana_transition_s = 10;
            raw.ana_capabilities = ANA_ALL_STATES | ANA_GROUP_STAYS;
            raw.ana_group_max.set(self.ana_group_max);
            raw.ana_groups.set(self.ana_group_max);
        }
        raw.namespaces.set(self.namespace_id_max);
        raw.namespaces_allowed.set(self.namespace_id_max);
        let deallocates = if self.deallocates { IO_WRITE_ZEROES | IO_DATASET_MANAGEMENT } else { 0 };
        let compares = if self.compares { IO_COMPARE } else { 0 };
        raw.io_commands.set(IO_RESERVATIONS | IO_FEATURE_SELECT | deallocates | compares);
        raw.volatile_cache = if self.flush_all { CACHE_FLUSH_ALL } else { CACHE_FLUSH_ONE };
        if self.volatile_cache {
            raw.volatile_cache |= CACHE_PRESENT;
        }
        raw.atomic_blocks.set(self.atomic_blocks);
        raw.atomic_blocks_power_fail.set(self.atomic_blocks_power_fail);
        raw.vendor[..CAPABILITY_BYTES].copy_from_slice(&self.capability);
    }
}

/// ASCII, spaces behind it; what does not fit or is no printable ASCII is left out.
fn fill_text(field: &mut [u8], text: &str) {
    field.fill(b' ');
    let printable = text.bytes().filter(|byte| matches!(byte, b' '..=b'~'));
    field.iter_mut().zip(printable).for_each(|(to, from)| *to = from);
}

/// What a controller says of itself, as far as an initiator acts on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ControllerInfo {
    /// What it is for; older targets do not say.
    pub controller_type: Option<ControllerType>,
    /// Its serial number.
    pub serial: String,
    /// Its model.
    pub model: String,
    /// Its firmware.
    pub firmware: String,
    /// Its number in the subsystem.
    pub controller_id: u16,
    /// The subsystem.
    pub subsystem: Nqn,
    /// The longest transfer in bytes; `None`: no limit is told.
    pub transfer_bytes_max: Option<u64>,
    /// Bytes of data in a command's capsule.
    pub in_capsule_bytes: u32,
    /// Commands of a queue; 0: not told.
    pub commands_max: u16,
    /// The largest namespace id.
    pub namespace_id_max: u32,
    /// If what is not flushed is lost with the power.
    pub volatile_cache: bool,
    /// Reservation commands are known.
    pub reservations: bool,
    /// Write Zeroes is known.
    pub write_zeroes: bool,
    /// Dataset Management is known.
    pub dataset_management: bool,
    /// Asymmetric access is reported.
    pub ana: bool,
    /// Any command proves that the host is alive.
    pub traffic_keeps_alive: bool,
    /// In milliseconds; 0: keep-alive is not supported.
    pub keep_alive_granularity_ms: u32,
    /// Milliseconds after which no command of a lost association runs any more; 0: not told.
    pub quiesce_ms: u16,
    /// Asynchronous event requests that may wait.
    pub async_events_max: u16,
    /// Which asynchronous events there are.
    pub async_events: u32,
    /// Beginning of the vendor's area.
    pub capability: [u8; CAPABILITY_BYTES],
    /// The same, if it is a Twill target's.
    pub fabric: Option<Capability>,
}

/// Why an initiator does not work with a controller.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ControllerInfoError {
    /// Too few bytes.
    #[error("Identify Controller has {found} bytes, expected {IDENTIFY_BYTES}")]
    Length {
        /// Bytes there are.
        found: usize,
    },
    /// The subsystem's name is none.
    #[error("the subsystem's name is not one: {0}")]
    Name(#[from] NqnError),
    /// Queue entries of another size.
    #[error("queue entries of 64 and 16 bytes are not among those that it supports")]
    EntrySize,
    /// No SGLs, without which there is no data over a fabric.
    #[error("it does not support SGLs")]
    NoSgl,
    /// The capsule is shorter than a command, or absurdly long.
    #[error("its command capsule has {0} units of 16 bytes")]
    Capsule(u32),
}

impl ControllerInfo {
    /// Reads the answer to Identify Controller.
    ///
    /// # Errors
    /// [`ControllerInfoError`].
    pub fn parse(bytes: &[u8]) -> Result<ControllerInfo, ControllerInfoError> {
        let (raw, _) = RawController::ref_from_prefix(bytes)
            .map_err(|_| ControllerInfoError::Length { found: bytes.len() })?;
        let (submission, completion) = (raw.submission_entry, raw.completion_entry);
        let covers = |sizes: u8, log2: u8| (sizes & 0xf..=sizes >> 4).contains(&log2);
        let controller_type = match raw.controller_type {
            1 => Some(ControllerType::Io),
            2 => Some(ControllerType::Discovery),
            _ => None,
        };
        // A discovery controller has no I/O queues, and may leave their fields out.
        if controller_type != Some(ControllerType::Discovery) {
            if !covers(submission, 6) || !covers(completion, 4) {
                return Err(ControllerInfoError::EntrySize);
            }
            if raw.sgl.get() & 0b11 == 0 {
                return Err(ControllerInfoError::NoSgl);
            }
        }
        let capsule = raw.command_capsule.get();
        let in_capsule_bytes = match capsule {
            0 if controller_type == Some(ControllerType::Discovery) => 0,
            4..=0x10_0000 => (capsule - 4) * 16,
            _ => return Err(ControllerInfoError::Capsule(capsule)),
        };
        let io_commands = raw.io_commands.get();
        let capability = raw.vendor[..CAPABILITY_BYTES].try_into().expect("the vendor's area is longer");
        Ok(ControllerInfo {
            controller_type,
            serial: text(&raw.serial),
            model: text(&raw.model),
            firmware: text(&raw.firmware),
            controller_id: raw.controller_id.get(),
            subsystem: Nqn::from_field(&raw.subsystem_nqn)?,
            transfer_bytes_max: match raw.transfer_log2 {
                0 => None,
                log2 => 4096u64.checked_shl(log2.into()).filter(|bytes| *bytes >> log2 == 4096),
            },
            in_capsule_bytes,
            commands_max: raw.commands_max.get(),
            namespace_id_max: raw.namespaces.get(),
            volatile_cache: raw.volatile_cache & CACHE_PRESENT != 0,
            reservations: io_commands & IO_RESERVATIONS != 0,
            write_zeroes: io_commands & IO_WRITE_ZEROES != 0,
            dataset_management: io_commands & IO_DATASET_MANAGEMENT != 0,
            ana: raw.multi_path & MULTI_PATH_ANA != 0,
            traffic_keeps_alive: raw.attributes.get() & ATTRIBUTE_TRAFFIC_KEEPS_ALIVE != 0,
            keep_alive_granularity_ms: u32::from(raw.keep_alive_granularity.get()) * 100,
            quiesce_ms: raw.quiesce_ms.get(),
            async_events_max: u16::from(raw.async_event_limit) + 1,
            async_events: raw.async_events.get(),
            capability,
            fabric: Capability::parse(&capability),
        })
    }
}

/// Text of a field, without the spaces around it; what is no printable ASCII becomes a question mark.
fn text(field: &[u8]) -> String {
    let printable = field.iter().map(|byte| match byte {
        b' '..=b'~' => char::from(*byte),
        0 => ' ',
        _ => '?',
    });
    printable.collect::<String>().trim().to_owned()
}
