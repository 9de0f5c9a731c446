//! Reservation commands: Register, Acquire, Release, as bytes and as values. Report is in `report.rs`.

use super::access::ReservationType;
use crate::command::io;
use crate::status::Status;

/// What becomes of reservations when the target loses power.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Persistence {
    /// As before.
    Unchanged,
    /// They are gone.
    Off,
    /// They stay.
    On,
}

/// What Register does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Registration {
    /// Registers with a key.
    Register {
        /// Not 0.
        new_key: u64,
    },
    /// Ends the registration.
    Unregister {
        /// `None`: whatever the key is.
        key: Option<u64>,
    },
    /// Takes another key.
    Replace {
        /// `None`: whatever the key is, and also if the host is not registered.
        key: Option<u64>,
        /// Not 0.
        new_key: u64,
    },
}

/// What Acquire does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Acquisition {
    /// Takes what is free.
    Acquire,
    /// Takes registrations, and with them the reservation if it is theirs.
    Preempt {
        /// The key of those that lose their registration; 0: all others, if every registrant holds the reservation.
        victims_key: u64,
        /// Their running commands are to be aborted.
        abort: bool,
    },
}

/// A command that changes reservations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReservationCommand {
    /// Register.
    Register {
        /// What is done.
        registration: Registration,
        /// And for the loss of power.
        persistence: Persistence,
    },
    /// Acquire.
    Acquire {
        /// The host's own key.
        key: u64,
        /// The type of the reservation that comes of it.
        kind: ReservationType,
        /// What is done.
        acquisition: Acquisition,
    },
    /// Release of the reservation.
    Release {
        /// The host's own key.
        key: u64,
        /// The number of the type that the host believes it has.
        kind: u8,
    },
    /// Release of the reservation and of all registrations.
    Clear {
        /// The host's own key.
        key: u64,
    },
}

const IGNORE_KEY: u32 = 1 << 3;
const ACTION: u32 = 0x7;
const TYPE_SHIFT: u32 = 8;
const PERSISTENCE_SHIFT: u32 = 30;
const REGISTER: u32 = 0;
const UNREGISTER: u32 = 1;
const REPLACE: u32 = 2;
const ACQUIRE: u32 = 0;
const PREEMPT: u32 = 1;
const PREEMPT_AND_ABORT: u32 = 2;
const RELEASE: u32 = 0;
const CLEAR: u32 = 1;

impl ReservationCommand {
    /// The command of an opcode, command dword 10 and the data that came with it.
    ///
    /// # Errors
    /// The status to answer with: an opcode that is none of these, too little data, a value that a field may not have.
    pub fn parse(command_opcode: u8, dword10: u32, data: &[u8]) -> Result<ReservationCommand, Status> {
        let action = dword10 & ACTION;
        let ignores_key = dword10 & IGNORE_KEY != 0;
        let kind = (dword10 >> TYPE_SHIFT & 0xff) as u8;
        match command_opcode {
            io::RESERVATION_REGISTER => parse_register(dword10, data),
            io::RESERVATION_ACQUIRE => {
                let kind = ReservationType::from_number(kind).ok_or(Status::INVALID_FIELD)?;
                let (key, victims_key) = (key_at(data, 0)?, key_at(data, 1)?);
                let acquisition = match action {
                    ACQUIRE => Acquisition::Acquire,
                    PREEMPT | PREEMPT_AND_ABORT => {
                        Acquisition::Preempt { victims_key, abort: action == PREEMPT_AND_ABORT }
                    }
                    _ => return Err(Status::INVALID_FIELD),
                };
                if ignores_key {
                    return Err(Status::INVALID_FIELD);
                }
                Ok(ReservationCommand::Acquire { key, kind, acquisition })
            }
            io::RESERVATION_RELEASE => {
                let key = key_at(data, 0)?;
                match action {
                    _ if ignores_key => Err(Status::INVALID_FIELD),
                    RELEASE => Ok(ReservationCommand::Release { key, kind }),
                    CLEAR => Ok(ReservationCommand::Clear { key }),
                    _ => Err(Status::INVALID_FIELD),
                }
            }
            _ => Err(Status::INVALID_OPCODE),
        }
    }

    /// Opcode, command dword 10 and data.
    #[must_use]
    pub fn encode(&self) -> (u8, u32, Vec<u8>) {
        let keys = |keys: &[u64]| keys.iter().flat_map(|key| key.to_le_bytes()).collect();
        match *self {
            ReservationCommand::Register { registration, persistence } => {
                let (action, key, new_key) = match registration {
                    Registration::Register { new_key } => (REGISTER, Some(0), new_key),
                    Registration::Unregister { key } => (UNREGISTER, key, 0),
                    Registration::Replace { key, new_key } => (REPLACE, key, new_key),
                };
                let persistence = match persistence {
                    Persistence::Unchanged => 0,
                    Persistence::Off => 2,
                    Persistence::On => 3,
                };
                let ignores_key = if key.is_none() { IGNORE_KEY } else { 0 };
                let dword10 = action | ignores_key | persistence << PERSISTENCE_SHIFT;
                (io::RESERVATION_REGISTER, dword10, keys(&[key.unwrap_or(0), new_key]))
            }
            ReservationCommand::Acquire { key, kind, acquisition } => {
                let (action, victims_key) = match acquisition {
                    Acquisition::Acquire => (ACQUIRE, 0),
                    Acquisition::Preempt { victims_key, abort: false } => (PREEMPT, victims_key),
                    Acquisition::Preempt { victims_key, abort: true } => (PREEMPT_AND_ABORT, victims_key),
                };
                let dword10 = action | u32::from(kind.number()) << TYPE_SHIFT;
                (io::RESERVATION_ACQUIRE, dword10, keys(&[key, victims_key]))
            }
            ReservationCommand::Release { key, kind } => {
                (io::RESERVATION_RELEASE, RELEASE | u32::from(kind) << TYPE_SHIFT, keys(&[key]))
            }
            ReservationCommand::Clear { key } => (io::RESERVATION_RELEASE, CLEAR, keys(&[key])),
        }
    }
}

fn parse_register(dword10: u32, data: &[u8]) -> Result<ReservationCommand, Status> {
    let (key, new_key) = (key_at(data, 0)?, key_at(data, 1)?);
    let key = Some(key).filter(|_| dword10 & IGNORE_KEY == 0);
    let persistence = match dword10 >> PERSISTENCE_SHIFT {
        0 => Persistence::Unchanged,
        2 => Persistence::Off,
        3 => Persistence::On,
        _ => return Err(Status::INVALID_FIELD),
    };
    let registration = match dword10 & ACTION {
        // A key of 0 stands for none.
        REGISTER | REPLACE if new_key == 0 => return Err(Status::INVALID_FIELD),
        REGISTER => Registration::Register { new_key },
        UNREGISTER => Registration::Unregister { key },
        REPLACE => Registration::Replace { key, new_key },
        _ => return Err(Status::INVALID_FIELD),
    };
    Ok(ReservationCommand::Register { registration, persistence })
}

fn key_at(data: &[u8], index: usize) -> Result<u64, Status> {
    let bytes = data.get(index * 8..index * 8 + 8).ok_or(Status::INVALID_SGL_LENGTH)?;
    Ok(u64::from_le_bytes(bytes.try_into().expect("8 bytes")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_encoded_parses_to_the_same() {
        let mut commands =
            vec![ReservationCommand::Release { key: 1, kind: 200 }, ReservationCommand::Clear { key: 1 }];
        for persistence in [Persistence::Unchanged, Persistence::Off, Persistence::On] {
            for registration in [
                Registration::Register { new_key: 7 },
                Registration::Unregister { key: Some(7) },
                Registration::Unregister { key: None },
                Registration::Replace { key: Some(7), new_key: u64::MAX },
                Registration::Replace { key: None, new_key: 1 },
            ] {
                commands.push(ReservationCommand::Register { registration, persistence });
            }
        }
        for kind in ReservationType::ALL {
            for acquisition in [
                Acquisition::Acquire,
                Acquisition::Preempt { victims_key: 9, abort: false },
                Acquisition::Preempt { victims_key: 0, abort: true },
            ] {
                commands.push(ReservationCommand::Acquire { key: 3, kind, acquisition });
            }
        }
        for command in commands {
            let (opcode, dword10, data) = command.encode();
            assert_eq!(ReservationCommand::parse(opcode, dword10, &data), Ok(command));
            assert_eq!(
                ReservationCommand::parse(opcode, dword10, &data[..data.len() - 1]),
                Err(Status::INVALID_SGL_LENGTH)
            );
        }
    }

    /// What the kernel's host sends for pr_register and pr_preempt, and values that no command may have.
    #[test]
    fn fields_are_where_the_specification_has_them() {
        let data: Vec<u8> = [5u64, 6].iter().flat_map(|key| key.to_le_bytes()).collect();
        let parse = |opcode, dword10| ReservationCommand::parse(opcode, dword10, &data);
        let (registration, persistence) = (Registration::Register { new_key: 6 }, Persistence::On);
        assert_eq!(parse(0x0d, 0xc000_0000), Ok(ReservationCommand::Register { registration, persistence }));
        let registration = Registration::Replace { key: None, new_key: 6 };
        assert_eq!(parse(0x0d, 0xc000_000a), Ok(ReservationCommand::Register { registration, persistence }));
        let acquisition = Acquisition::Preempt { victims_key: 6, abort: true };
        let kind = ReservationType::ExclusiveAccess;
        assert_eq!(parse(0x11, 0x0202), Ok(ReservationCommand::Acquire { key: 5, kind, acquisition }));
        for (opcode, dword10) in [
            (0x0d, 0x4000_0000), // a persistence that is reserved
            (0x0d, 3),           // an action that is reserved
            (0x11, 0x0000),      // type 0
            (0x11, 0x0700),      // type 7
            (0x11, 0x0103),      // an action that is reserved
            (0x11, 0x0108),      // ignore existing key
            (0x15, 0x0008),      // the same
            (0x15, 0x0102),      // an action that is reserved
        ] {
            assert_eq!(parse(opcode, dword10), Err(Status::INVALID_FIELD), "{opcode:x} {dword10:x}");
        }
        assert_eq!(parse(0x0e, 0), Err(Status::INVALID_OPCODE));
        assert_eq!(ReservationCommand::parse(0x0d, 0, &[0; 16]), Err(Status::INVALID_FIELD));
    }
}
