//! What is true of a controller, of a namespace and of a subsystem that tests make.
#![allow(dead_code)]

use nvme_tcp::identify::{ControllerFacts, ControllerType, NamespaceFacts, WriteHints};
use nvme_tcp::names::Nqn;
use nvme_tcp::subsystem::SubsystemFacts;

/// Its texts are longer than their fields, or not ASCII.
pub fn controller() -> ControllerFacts {
    ControllerFacts {
        controller_type: ControllerType::Io,
        serial: "0123456789abcdef0123456789".to_owned(),
        model: "Twill\u{e4}".to_owned(),
        firmware: "0.1.0".to_owned(),
        controller_id: 7,
        subsystem: Nqn::new("nqn.2026-11.test:a").unwrap(),
        transfer_log2: 8,
        in_capsule_bytes: 8192,
        commands_max: 128,
        namespace_id_max: 16,
        volatile_cache: true,
        flush_all: true,
        atomic_blocks: 0,
        atomic_blocks_power_fail: 0,
        deallocates: true,
        compares: false,
        traffic_keeps_alive: true,
        quiesce_ms: 500,
        ana_group_max: 3,
        async_event_limit: 3,
        async_events: 0x900,
        error_log_entries: 127,
        capability: *b"TwFab\0\0\0................",
    }
}

pub fn namespace(id: u8) -> NamespaceFacts {
    NamespaceFacts {
        blocks: 1 << 20,
        block_log2: 12,
        nguid: [id; 16],
        uuid: [id; 16],
        atomic_blocks_power_fail: 0,
        hints: Some(WriteHints { granularity: 16, alignment: 16, optimum: 64, boundary: 64 }),
        deallocated_reads_zeroes: true,
        write_zeroes_deallocates: false,
        write_protected: false,
        ana_group: 1,
    }
}

pub fn subsystem() -> SubsystemFacts {
    SubsystemFacts {
        nqn: Nqn::new("nqn.2026-11.test:subsystem").unwrap(),
        serial: "0123456789".to_owned(),
        model: "Twill".to_owned(),
        firmware: "0.1.0".to_owned(),
        transfer_log2: 8,
        in_capsule_bytes: 8192,
        commands_max: 128,
        queues_max: 4,
        controllers_max: 8,
        quiesce_ms: 500,
        volatile_cache: true,
        deallocates: true,
        has_ana: true,
        capability: [0; 24],
    }
}
