//! Log pages: the request, and the pages that are not drawn elsewhere (asymmetric access: `ana.rs`, discovery:
//! `discovery.rs`).

use std::collections::{BTreeSet, VecDeque};

use byte_struct::byte_struct;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromZeros, IntoBytes};

use crate::reservation::NoticeKind;
use crate::status::Status;

/// Numbers of log pages.
pub mod page {
    /// Which pages there are.
    pub const SUPPORTED: u8 = 0x00;
    /// Errors.
    pub const ERRORS: u8 = 0x01;
    /// Health.
    pub const HEALTH: u8 = 0x02;
    /// Firmware slots.
    pub const FIRMWARE: u8 = 0x03;
    /// Namespaces that changed.
    pub const CHANGED_NAMESPACES: u8 = 0x04;
    /// Which commands there are, and what they do.
    pub const EFFECTS: u8 = 0x05;
    /// Asymmetric access.
    pub const ANA: u8 = 0x0c;
    /// Discovery.
    pub const DISCOVERY: u8 = 0x70;
    /// Notices of reservations.
    pub const RESERVATIONS: u8 = 0x80;
}

/// Entries of the error log.
pub const ERROR_ENTRIES: u8 = 64;
/// Notices of reservations that wait to be read; older ones are dropped, which the next one's number tells.
const NOTICES_MAX: usize = 64;
const CHANGED_MAX: usize = 1024;
/// Stands first in the list of changed namespaces when there are more than it has room for.
const CHANGED_ALL: u32 = u32::MAX;

byte_struct! {
    struct RawHealth, 512 bytes {
        0    1    warnings: u8,
        1    2    temperature_kelvin: U16,
        3    1    spare_percent: u8,
        4    1    spare_threshold: u8,
        5    1    used_percent: u8,
        6    26   reserve: bytes,
        32   16   units_read: bytes,
        48   16   units_written: bytes,
        64   16   reads: bytes,
        80   16   writes: bytes,
        96   16   busy_minutes: bytes,
        112  16   power_cycles: bytes,
        128  16   power_hours: bytes,
        144  16   unsafe_shutdowns: bytes,
        160  16   media_errors: bytes,
        176  16   errors: bytes,
        192  320  reserve2: bytes,
    }
}

byte_struct! {
    struct RawError, 64 bytes {
        0   8   number: U64,
        8   2   queue: U16,
        10  2   command: U16,
        12  2   status: U16,
        14  2   location: U16,
        16  8   block: U64,
        24  4   namespace: U32,
        28  1   vendor: u8,
        29  1   transport: u8,
        30  34  reserve: bytes,
    }
}

byte_struct! {
    struct RawNotice, 64 bytes {
        0   8   number: U64,
        8   1   kind: u8,
        9   1   waiting: u8,
        10  2   reserve: bytes,
        12  4   namespace: U32,
        16  48  reserve2: bytes,
    }
}

/// What Get Log Page asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogRequest {
    /// Which page.
    pub page: u8,
    /// The page's own field.
    pub specific: u8,
    /// The event that led here stays masked.
    pub keeps_event: bool,
    /// Where in the page to begin.
    pub offset: u64,
    /// How many bytes.
    pub bytes: u64,
}

impl LogRequest {
    /// The request in command dwords 10 to 13.
    ///
    /// # Errors
    /// Invalid Field, if the offset is not a whole dword.
    pub fn parse(dwords: [u32; 4]) -> Result<LogRequest, Status> {
        let [dword10, dword11, low, high] = dwords;
        let offset = u64::from(high) << 32 | u64::from(low);
        if !offset.is_multiple_of(4) {
            return Err(Status::INVALID_FIELD);
        }
        let count = u64::from(dword11 & 0xffff) << 16 | u64::from(dword10 >> 16);
        Ok(LogRequest {
            page: (dword10 & 0xff) as u8,
            specific: (dword10 >> 8 & 0x7f) as u8,
            keeps_event: dword10 & 1 << 15 != 0,
            offset,
            bytes: (count + 1) * 4,
        })
    }

    /// Command dwords 10 to 13.
    ///
    /// # Panics
    /// If `bytes` is 0 or not a multiple of 4.
    #[must_use]
    pub fn encode(&self) -> [u32; 4] {
        assert!(self.bytes > 0 && self.bytes.is_multiple_of(4), "{} bytes are no dwords", self.bytes);
        let count = self.bytes / 4 - 1;
        let keeps_event = u32::from(self.keeps_event) << 15;
        let dword10 = u32::from(self.page) | u32::from(self.specific & 0x7f) << 8 | keeps_event;
        let (low, high) = (self.offset as u32, (self.offset >> 32) as u32);
        [dword10 | (count as u32 & 0xffff) << 16, (count >> 16) as u32, low, high]
    }

    /// The part of a page that is asked for, which may be shorter than that.
    ///
    /// # Errors
    /// Invalid Field, if it begins behind the page's end.
    pub fn cut(&self, page: &[u8]) -> Result<Vec<u8>, Status> {
        let offset = usize::try_from(self.offset).map_err(|_| Status::INVALID_FIELD)?;
        let rest = page.get(offset..).ok_or(Status::INVALID_FIELD)?;
        let bytes = usize::try_from(self.bytes).map_or(rest.len(), |bytes| bytes.min(rest.len()));
        Ok(rest[..bytes].to_vec())
    }
}

/// The page that says which pages there are.
#[must_use]
pub fn supported(pages: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; 1024];
    pages.iter().for_each(|page| bytes[usize::from(*page) * 4] = 1);
    bytes
}

/// The page of firmware slots: one, which is active.
#[must_use]
pub fn firmware(revision: &str) -> Vec<u8> {
    let mut bytes = vec![0; 512];
    bytes[0] = 1;
    bytes[8..16].fill(b' ');
    bytes[8..16].iter_mut().zip(revision.bytes()).for_each(|(to, from)| *to = from);
    bytes
}

/// The page of commands and effects. Commands are opcodes, and whether they change contents.
#[must_use]
pub fn effects(admin: &[u8], io: &[(u8, bool)]) -> Vec<u8> {
    const SUPPORTED: u8 = 1;
    const CHANGES_CONTENTS: u8 = 1 << 1;
    let mut bytes = vec![0; 4096];
    admin.iter().for_each(|opcode| bytes[usize::from(*opcode) * 4] = SUPPORTED);
    for (opcode, changes) in io {
        let changes = if *changes { CHANGES_CONTENTS } else { 0 };
        bytes[1024 + usize::from(*opcode) * 4] = SUPPORTED | changes;
    }
    bytes
}

/// Health, as far as it is known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Health {
    /// Bit 0: little spare room; bit 2: reliability is degraded; bit 3: read-only; bit 4: a cache without its backup.
    pub warnings: u8,
    /// Spare room of 100 %.
    pub spare_percent: u8,
    /// Bytes that hosts read.
    pub bytes_read: u128,
    /// Bytes that hosts wrote.
    pub bytes_written: u128,
    /// Commands.
    pub reads: u128,
    /// Commands.
    pub writes: u128,
    /// How long it runs.
    pub hours: u128,
    /// Blocks that could not be read or written.
    pub media_errors: u128,
}

impl Health {
    /// The page. Units are a thousand blocks of 512 bytes, rounded up.
    #[must_use]
    pub fn encode(&self, errors: u64) -> Vec<u8> {
        let mut raw = RawHealth::new_zeroed();
        let units = |bytes: u128| bytes.div_ceil(512_000).to_le_bytes();
        raw.warnings = self.warnings;
        raw.spare_percent = self.spare_percent;
        raw.units_read = units(self.bytes_read);
        raw.units_written = units(self.bytes_written);
        raw.reads = self.reads.to_le_bytes();
        raw.writes = self.writes.to_le_bytes();
        raw.power_hours = self.hours.to_le_bytes();
        raw.media_errors = self.media_errors.to_le_bytes();
        raw.errors = u128::from(errors).to_le_bytes();
        raw.as_bytes().to_vec()
    }
}

/// A command that ended with an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ErrorEntry {
    /// Its queue.
    pub queue: u16,
    /// Its id.
    pub command: u16,
    /// How it ended.
    pub status: Status,
    /// Its namespace.
    pub namespace: u32,
    /// Its first block.
    pub block: u64,
}

/// The newest errors of a controller.
#[derive(Clone, Debug, Default)]
pub struct ErrorLog {
    count: u64,
    entries: VecDeque<(u64, ErrorEntry)>,
}

impl ErrorLog {
    /// Enters an error.
    pub fn enter(&mut self, entry: ErrorEntry) {
        self.count += 1;
        self.entries.truncate(usize::from(ERROR_ENTRIES) - 1);
        self.entries.push_front((self.count, entry));
    }

    /// How many there were.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.count
    }

    /// The page, the newest error first.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(64 * usize::from(ERROR_ENTRIES));
        for (number, entry) in &self.entries {
            let mut raw = RawError::new_zeroed();
            raw.number.set(*number);
            raw.queue.set(entry.queue);
            raw.command.set(entry.command);
            raw.status.set(entry.status.to_completion());
            // No byte of the command is named.
            raw.location.set(0xffff);
            raw.block.set(entry.block);
            raw.namespace.set(entry.namespace);
            raw.transport = 3;
            bytes.extend_from_slice(raw.as_bytes());
        }
        bytes.resize(64 * usize::from(ERROR_ENTRIES), 0);
        bytes
    }
}

/// Namespaces that came, went or changed since the host read the list.
#[derive(Clone, Debug, Default)]
pub struct ChangedNamespaces(BTreeSet<u32>);

impl ChangedNamespaces {
    /// Enters a namespace.
    pub fn enter(&mut self, id: u32) {
        self.0.insert(id);
    }

    /// Forgets what the host has read.
    pub fn clear(&mut self) {
        self.0.clear();
    }

    /// The page.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let ids: Vec<u32> = match self.0.len() > CHANGED_MAX {
            true => vec![CHANGED_ALL],
            false => self.0.iter().copied().collect(),
        };
        let mut bytes: Vec<u8> = ids.into_iter().flat_map(u32::to_le_bytes).collect();
        bytes.resize(4096, 0);
        bytes
    }
}

/// Notices of reservations that a controller's host has not read.
#[derive(Clone, Debug, Default)]
pub struct ReservationNotices {
    count: u64,
    waiting: VecDeque<(u64, NoticeKind, u32)>,
}

impl ReservationNotices {
    /// Enters a notice about a namespace.
    pub fn enter(&mut self, kind: NoticeKind, namespace: u32) {
        // 0 stands for no notice.
        self.count = self.count.checked_add(1).unwrap_or(1);
        if self.waiting.len() == NOTICES_MAX {
            self.waiting.pop_front();
        }
        self.waiting.push_back((self.count, kind, namespace));
    }

    /// How many wait.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// The page: the oldest notice, or an empty page. Once read to its end it is taken.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut raw = RawNotice::new_zeroed();
        if let Some((number, kind, namespace)) = self.waiting.front() {
            raw.number.set(*number);
            raw.kind = match kind {
                NoticeKind::RegistrationPreempted => 1,
                NoticeKind::ReservationReleased => 2,
                NoticeKind::ReservationPreempted => 3,
            };
            raw.waiting = u8::try_from(self.waiting.len() - 1).unwrap_or(u8::MAX);
            raw.namespace.set(*namespace);
        }
        raw.as_bytes().to_vec()
    }

    /// Takes the oldest notice.
    pub fn take(&mut self) {
        self.waiting.pop_front();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_goes_both_ways_and_cuts() {
        for request in [
            LogRequest {
                page: 0x70,
                specific: 0x7f,
                keeps_event: true,
                offset: 0x1_0000_0004,
                bytes: 4 << 20,
            },
            LogRequest { page: 2, specific: 0, keeps_event: false, offset: 0, bytes: 4 },
        ] {
            assert_eq!(LogRequest::parse(request.encode()), Ok(request));
        }
        assert_eq!(LogRequest::parse([2, 0, 2, 0]), Err(Status::INVALID_FIELD));
        let request = LogRequest { page: 2, specific: 0, keeps_event: false, offset: 4, bytes: 8 };
        assert_eq!(request.cut(&[0, 1, 2, 3, 4, 5, 6, 7]), Ok(vec![4, 5, 6, 7]));
        assert_eq!(request.cut(&[0; 20]).map(|bytes| bytes.len()), Ok(8));
        assert_eq!(request.cut(&[0; 4]), Ok(vec![]));
        assert_eq!(request.cut(&[0; 3]), Err(Status::INVALID_FIELD));
        let far = LogRequest::parse([0xffff_0002, 0xffff, 0xffff_fffc, 0xffff_ffff]).unwrap();
        assert_eq!((far.bytes, far.cut(&[0; 512])), (1 << 34, Err(Status::INVALID_FIELD)));
    }

    #[test]
    fn the_newest_errors_stand_first() {
        let mut log = ErrorLog::default();
        for command in 0..100 {
            let (status, block) = (Status::LBA_OUT_OF_RANGE, u64::from(command));
            log.enter(ErrorEntry { queue: 1, command, status, namespace: 1, block });
        }
        let bytes = log.encode();
        assert_eq!((bytes.len(), log.count()), (64 * 64, 100));
        assert_eq!((bytes[0], bytes[10], bytes[12], bytes[64]), (100, 99, 0x00, 99));
        assert_eq!(bytes[13], 0x81);
        assert_eq!(bytes[63 * 64], 37);
    }

    #[test]
    fn notices_are_read_in_order_and_drops_are_seen_by_their_number() {
        let mut notices = ReservationNotices::default();
        assert_eq!(notices.encode(), [0; 64]);
        for _ in 0..70 {
            notices.enter(NoticeKind::ReservationReleased, 5);
        }
        let bytes = notices.encode();
        assert_eq!((bytes[0], bytes[8], bytes[9], bytes[12]), (7, 2, 63, 5));
        notices.take();
        assert_eq!((notices.encode()[0], notices.waiting()), (8, 63));
    }

    #[test]
    fn more_changed_namespaces_than_fit_are_all() {
        let mut changed = ChangedNamespaces::default();
        (1..=1024).for_each(|id| changed.enter(id));
        assert_eq!(changed.encode()[4092..], 1024u32.to_le_bytes());
        changed.enter(1025);
        assert_eq!(changed.encode()[..8], [0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0]);
        changed.clear();
        assert_eq!(changed.encode(), [0; 4096]);
    }

    #[test]
    fn health_and_effects_stand_where_nvme_cli_reads_them() {
        let health =
            Health { spare_percent: 100, bytes_written: 512_001, media_errors: 3, ..Health::default() };
        let bytes = health.encode(9);
        assert_eq!((bytes.len(), bytes[3], bytes[48], bytes[160], bytes[176]), (512, 100, 2, 3, 9));
        let bytes = effects(&[0x06], &[(0x01, true), (0x02, false)]);
        assert_eq!((bytes[0x18], bytes[1024 + 4], bytes[1024 + 8]), (1, 3, 1));
        assert_eq!((supported(&[0x70])[0x1c0], &firmware("0.1.0")[8..16]), (1, &b"0.1.0   "[..]));
    }
}
