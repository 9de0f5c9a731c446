//! The properties of a controller: what it can, and its way from disabled to ready and to shut down.

use crate::status::Status;

/// Offsets of properties.
mod at {
    pub const CAPABILITIES: u32 = 0x00;
    pub const VERSION: u32 = 0x08;
    pub const CONFIGURATION: u32 = 0x14;
    pub const STATUS: u32 = 0x1c;
    pub const SUBSYSTEM_RESET: u32 = 0x20;
    pub const READY_TIMES: u32 = 0x68;
}

/// The property is 8 bytes long.
const EIGHT_BYTES: u8 = 1;

const QUEUES_CONTIGUOUS: u64 = 1 << 16;
/// In units of 500 ms.
const READY_WITHIN: u64 = 15 << 24;
const COMMAND_SET_NVM: u64 = 1 << 37;

const ENABLE: u32 = 1;
const SHUTDOWN: u32 = 3 << 14;
const READY: u32 = 1;
const SHUTDOWN_DONE: u32 = 2 << 2;

/// The properties of one controller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Properties {
    entries_max: u16,
    configuration: u32,
    status: u32,
}

impl Properties {
    /// A controller that is not yet enabled.
    #[must_use]
    pub fn new(entries_max: u16) -> Self {
        Properties { entries_max, configuration: 0, status: 0 }
    }

    /// If the host has enabled it: before, it takes no I/O queue and few commands.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.status & READY != 0
    }

    /// The value of a property. `attributes` say how long the host thinks it is.
    ///
    /// # Errors
    /// There is no such property.
    pub fn get(&self, attributes: u8, offset: u32) -> Result<u64, Status> {
        let (value, is_long) = match offset {
            at::CAPABILITIES => {
                let entries = u64::from(self.entries_max - 1);
                (entries | QUEUES_CONTIGUOUS | READY_WITHIN | COMMAND_SET_NVM, true)
            }
            at::VERSION => (u64::from(crate::identify::VERSION), false),
            at::CONFIGURATION => (u64::from(self.configuration), false),
            at::STATUS => (u64::from(self.status), false),
            at::SUBSYSTEM_RESET | at::READY_TIMES => (0, false),
            _ => return Err(Status::INVALID_FIELD),
        };
        let asked_long = attributes & 7 == EIGHT_BYTES;
        if is_long == asked_long { Ok(value) } else { Err(Status::INVALID_FIELD) }
    }

    /// Sets a property. There is one that may be set: the configuration.
    ///
    /// # Errors
    /// The property cannot be set, or not to this.
    pub fn set(&mut self, attributes: u8, offset: u32, value: u64) -> Result<(), Status> {
        if offset != at::CONFIGURATION || attributes & 7 == EIGHT_BYTES {
            return Err(Status::INVALID_FIELD);
        }
        self.configuration = value as u32;
        if self.configuration & ENABLE == 0 {
            self.status &= !READY;
        } else if self.configuration & SHUTDOWN == 0 {
            self.status = READY;
        }
        if self.configuration & SHUTDOWN != 0 {
            self.status |= SHUTDOWN_DONE;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_controller_is_enabled_shut_down_and_reset() {
        let mut properties = Properties::new(128);
        assert_eq!(properties.get(1, 0).map(|value| value & 0xffff), Ok(127));
        assert_eq!(properties.get(0, 0), Err(Status::INVALID_FIELD), "it is 8 bytes long");
        assert_eq!(properties.get(0, 0x1c), Ok(0));
        let enabled = 0x0046_0001;
        properties.set(0, 0x14, enabled).expect("it may be set");
        assert!(properties.is_ready());
        assert_eq!((properties.get(0, 0x14), properties.get(0, 0x1c)), (Ok(enabled), Ok(1)));
        properties.set(0, 0x14, enabled | 1 << 14).expect("it may be set");
        assert_eq!(properties.get(0, 0x1c), Ok(1 | 2 << 2), "shut down");
        properties.set(0, 0x14, 0).expect("it may be set");
        assert!(!properties.is_ready());
        properties.set(0, 0x14, enabled).expect("it may be set");
        assert_eq!(properties.get(0, 0x1c), Ok(1), "a reset ends a shutdown");
    }

    #[test]
    fn other_properties_are_refused() {
        let mut properties = Properties::new(128);
        for offset in [0, 8, 0x0c, 0x1c, 0x20, 0x24, 0x1000, u32::MAX] {
            assert_eq!(properties.set(0, offset, 1), Err(Status::INVALID_FIELD), "{offset:#x}");
        }
        assert_eq!(properties.set(1, 0x14, 1), Err(Status::INVALID_FIELD));
        assert_eq!(properties.get(0, 0x24), Err(Status::INVALID_FIELD));
    }
}
