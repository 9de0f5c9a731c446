//! The commands that a host sends, built.

use zerocopy::{FromZeros, IntoBytes};

use crate::command::{ConnectData, FABRICS, Sqe, admin, fabrics, io};
use crate::names::{Host, Nqn};
use crate::target::connect::ANY_CONTROLLER;

/// Offsets of the properties that a host uses.
pub mod property {
    /// What the controller can, 8 bytes long.
    pub const CAPABILITIES: u32 = 0x00;
    /// Whether it is enabled.
    pub const CONFIGURATION: u32 = 0x14;
    /// Whether it is ready.
    pub const STATUS: u32 = 0x1c;
}

/// The property is 8 bytes long.
const EIGHT_BYTES: u8 = 1;
/// No flow control of the submission queue: the queue's room is what the host counts.
const NO_FLOW_CONTROL: u32 = 1 << 18;
/// Entries of 64 and 16 bytes, enabled.
const ENABLED: u64 = 6 << 16 | 4 << 20 | 1;
const NORMAL_SHUTDOWN: u64 = 1 << 14;
const READY: u64 = 1;
const FATAL: u64 = 1 << 1;
const FUA: u32 = 1 << 30;
const DEALLOCATE: u32 = 1 << 25;
const DATASET_DEALLOCATE: u32 = 1 << 2;
const FEATURE_QUEUES: u32 = 0x07;
const FEATURE_ASYNC_EVENTS: u32 = 0x0b;

/// A Connect and its data.
#[derive(Clone, Debug)]
pub struct NewQueue<'a> {
    /// Who connects.
    pub host: &'a Host,
    /// To what.
    pub subsystem: &'a Nqn,
    /// The controller's number; none: any, on the admin queue.
    pub controller: Option<u16>,
    /// 0: the admin queue.
    pub queue: u16,
    /// Entries, at least 2.
    pub entries: u16,
    /// Time without a sign of the host after which its association ends; 0: none. Of the admin queue.
    pub keep_alive_ms: u32,
}

impl NewQueue<'_> {
    /// The command and its data.
    ///
    /// # Panics
    /// If it has fewer than 2 entries.
    #[must_use]
    pub fn connect(&self) -> (Sqe, Vec<u8>) {
        assert!(self.entries >= 2, "a queue has 2 entries at least");
        let mut sqe = Sqe::fabrics(fabrics::CONNECT);
        sqe.cdw10.set(u32::from(self.queue) << 16);
        let flow = if self.queue == 0 { 0 } else { NO_FLOW_CONTROL };
        sqe.cdw11.set(u32::from(self.entries - 1) | flow);
        sqe.cdw12.set(self.keep_alive_ms);
        let mut data = ConnectData::new_zeroed();
        data.host_id = self.host.id.0;
        data.controller_id.set(self.controller.unwrap_or(ANY_CONTROLLER));
        data.subsystem = self.subsystem.to_field();
        data.host = self.host.nqn.to_field();
        (sqe, data.as_bytes().to_vec())
    }
}

/// Reads a property. `long`: it has 8 bytes.
#[must_use]
pub fn property_get(offset: u32, long: bool) -> Sqe {
    let mut sqe = Sqe::fabrics(fabrics::PROPERTY_GET);
    sqe.cdw10.set(u32::from(if long { EIGHT_BYTES } else { 0 }));
    sqe.cdw11.set(offset);
    sqe
}

/// Sets a property of 4 bytes.
#[must_use]
pub fn property_set(offset: u32, value: u64) -> Sqe {
    let mut sqe = Sqe::fabrics(fabrics::PROPERTY_SET);
    sqe.cdw11.set(offset);
    sqe.cdw12.set(value as u32);
    sqe
}

/// Enables the controller.
#[must_use]
pub fn enable() -> Sqe {
    property_set(property::CONFIGURATION, ENABLED)
}

/// Ends the controller in order.
#[must_use]
pub fn shut_down() -> Sqe {
    property_set(property::CONFIGURATION, ENABLED | NORMAL_SHUTDOWN)
}

/// Whether the controller's status says ready.
#[must_use]
pub fn is_ready(status: u64) -> bool {
    status & (READY | FATAL) == READY
}

/// The most entries of a queue, and the milliseconds within which the controller is ready, as its capabilities say.
#[must_use]
pub fn queue_limits(capabilities: u64) -> (u32, u64) {
    ((capabilities & 0xffff) as u32 + 1, (capabilities >> 24 & 0xff).max(1) * 500)
}

/// Identify, by [`crate::identify::cns`].
#[must_use]
pub fn identify(what: u8, namespace: u32) -> Sqe {
    let mut sqe = Sqe::new(admin::IDENTIFY, namespace);
    sqe.cdw10.set(u32::from(what));
    sqe
}

/// Asks for so many I/O queues. The answer is for [`queues_granted`].
#[must_use]
pub fn set_queues(count: u16) -> Sqe {
    let mut sqe = Sqe::new(admin::SET_FEATURES, 0);
    sqe.cdw10.set(FEATURE_QUEUES);
    sqe.cdw11.set(u32::from(count.max(1) - 1) * 0x1_0001);
    sqe
}

/// How many I/O queues a controller grants, by the first word of its answer.
#[must_use]
pub fn queues_granted(value: u64) -> u32 {
    (value as u32 & 0xffff).min(value as u32 >> 16) + 1
}

/// Says which asynchronous events are wanted, by their bits.
#[must_use]
pub fn set_async_events(bits: u32) -> Sqe {
    let mut sqe = Sqe::new(admin::SET_FEATURES, 0);
    sqe.cdw10.set(FEATURE_ASYNC_EVENTS);
    sqe.cdw11.set(bits);
    sqe
}

/// Waits at the controller until something happens.
#[must_use]
pub fn async_event_request() -> Sqe {
    Sqe::new(admin::ASYNC_EVENT_REQUEST, 0)
}

/// A sign of life.
#[must_use]
pub fn keep_alive() -> Sqe {
    Sqe::new(admin::KEEP_ALIVE, 0)
}

/// A read of `blocks` blocks.
///
/// # Panics
/// If they are none, or more than a command names.
#[must_use]
pub fn read(namespace: u32, slba: u64, blocks: u32) -> Sqe {
    transfer(io::READ, namespace, slba, blocks)
}

/// A write; with `fua` it is durable when it is answered.
///
/// # Panics
/// As [`read`].
#[must_use]
pub fn write(namespace: u32, slba: u64, blocks: u32, fua: bool) -> Sqe {
    let mut sqe = transfer(io::WRITE, namespace, slba, blocks);
    if fua {
        sqe.cdw12.set(sqe.cdw12.get() | FUA);
    }
    sqe
}

/// Makes blocks read as zeroes.
///
/// # Panics
/// As [`read`].
#[must_use]
pub fn write_zeroes(namespace: u32, slba: u64, blocks: u32, may_unmap: bool) -> Sqe {
    let mut sqe = transfer(io::WRITE_ZEROES, namespace, slba, blocks);
    if may_unmap {
        sqe.cdw12.set(sqe.cdw12.get() | DEALLOCATE);
    }
    sqe
}

/// Makes completed writes durable.
#[must_use]
pub fn flush(namespace: u32) -> Sqe {
    Sqe::new(io::FLUSH, namespace)
}

/// Says that one range is no longer needed: the command, and its data.
#[must_use]
pub fn deallocate(namespace: u32, slba: u64, blocks: u32) -> (Sqe, Vec<u8>) {
    let mut sqe = Sqe::new(io::DATASET_MANAGEMENT, namespace);
    sqe.cdw11.set(DATASET_DEALLOCATE);
    let mut range = crate::command::DatasetRange::new_zeroed();
    range.blocks.set(blocks);
    range.slba.set(slba);
    (sqe, range.as_bytes().to_vec())
}

fn transfer(opcode: u8, namespace: u32, slba: u64, blocks: u32) -> Sqe {
    assert!((1..=BLOCKS_MAX).contains(&blocks), "{blocks} blocks are none that a command names");
    let mut sqe = Sqe::new(opcode, namespace);
    sqe.cdw10.set(slba as u32);
    sqe.cdw11.set((slba >> 32) as u32);
    sqe.cdw12.set(blocks - 1);
    sqe
}

/// The most blocks that one command names.
pub const BLOCKS_MAX: u32 = 1 << 16;

const _: () = assert!(FABRICS == 0x7f);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identify::cns;
    use crate::names::HostId;
    use crate::pdu::Unverified;
    use crate::target::connect::Connect;
    use crate::target::io::{Request, Shape, check};

    #[test]
    fn a_target_reads_what_a_host_connects_with() {
        let host = Host { id: HostId([7; 16]), nqn: Nqn::new("nqn.2026-11.test:host").unwrap() };
        let subsystem = Nqn::new("nqn.2026-11.test:drive").unwrap();
        for (queue, controller) in [(0, None), (3, Some(9))] {
            let new = NewQueue {
                host: &host,
                subsystem: &subsystem,
                controller,
                queue,
                entries: 32,
                keep_alive_ms: 5000,
            };
            let (sqe, data) = new.connect();
            let read = Connect::check(&Unverified::new(sqe), &data, 64).unwrap();
            assert_eq!((read.queue_id, read.entries, read.keep_alive_ms), (queue, 32, 5000));
            assert_eq!((&read.host, &read.subsystem, read.host_id), (&host.nqn, &subsystem, [7; 16]));
            assert_eq!(read.no_flow_control, queue != 0);
        }
    }

    #[test]
    fn a_target_carries_out_what_a_host_asks_for() {
        let shape = Shape { blocks: 1 << 40, block_shift: 12, read_only: false, transfer_bytes_max: 1 << 30 };
        let asked = |sqe: Sqe, bytes| check(&Unverified::new(sqe), &shape, bytes).unwrap();
        let offset = (5u64 << 32) << 12;
        assert_eq!(asked(read(1, 5 << 32, 8), 8 << 12), Request::Read { offset, bytes: 8 << 12 });
        assert_eq!(
            asked(write(1, 5 << 32, 8, true), 8 << 12),
            Request::Write { offset, bytes: 8 << 12, fua: true }
        );
        assert_eq!(asked(flush(1), 0), Request::Flush);
        let (sqe, range) = deallocate(1, 7, 9);
        assert_eq!(asked(sqe, 16), Request::Dataset { bytes: 16, ranges: 1, discard: true });
        assert_eq!((range[4], range[8]), (9, 7));
    }

    #[test]
    fn fields_are_where_the_specification_has_them() {
        assert_eq!(enable().as_bytes()[44..56], [0x14, 0, 0, 0, 1, 0, 0x46, 0, 0, 0, 0, 0]);
        assert_eq!(property_get(property::CAPABILITIES, true).as_bytes()[40], 1);
        assert_eq!(identify(cns::NAMESPACE_IDS, 4).as_bytes()[..44][40], 3);
        assert_eq!(set_queues(3).as_bytes()[40..48], [7, 0, 0, 0, 2, 0, 2, 0]);
        assert_eq!(set_async_events(0x100).as_bytes()[40..48], [0x0b, 0, 0, 0, 0, 1, 0, 0]);
        assert_eq!(async_event_request().as_bytes()[0], 0x0c);
        assert_eq!(queues_granted(0x0007_0003), 4);
        assert_eq!(queue_limits(127 | 15 << 24), (128, 7500));
        assert!(is_ready(1) && !is_ready(0) && !is_ready(3));
    }
}
