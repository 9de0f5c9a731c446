//! Which commands a reservation lets through, for which hosts: a table.

use crate::command::io;

/// The six types.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ReservationType {
    /// 1: the holder writes, all read.
    WriteExclusive,
    /// 2: the holder reads and writes.
    ExclusiveAccess,
    /// 3: registrants write, all read; one host holds it.
    WriteExclusiveRegistrantsOnly,
    /// 4: registrants read and write; one host holds it.
    ExclusiveAccessRegistrantsOnly,
    /// 5: registrants write, all read; every registrant holds it.
    WriteExclusiveAllRegistrants,
    /// 6: registrants read and write; every registrant holds it.
    ExclusiveAccessAllRegistrants,
}

impl ReservationType {
    /// All, by number.
    pub const ALL: [ReservationType; 6] = [
        ReservationType::WriteExclusive,
        ReservationType::ExclusiveAccess,
        ReservationType::WriteExclusiveRegistrantsOnly,
        ReservationType::ExclusiveAccessRegistrantsOnly,
        ReservationType::WriteExclusiveAllRegistrants,
        ReservationType::ExclusiveAccessAllRegistrants,
    ];

    /// Its number in commands and reports.
    #[must_use]
    pub fn number(self) -> u8 {
        self as u8 + 1
    }

    /// The type of a number.
    #[must_use]
    pub fn from_number(number: u8) -> Option<ReservationType> {
        ReservationType::ALL.get(usize::from(number).checked_sub(1)?).copied()
    }

    /// If every registrant holds it.
    #[must_use]
    pub fn is_all_registrants(self) -> bool {
        matches!(
            self,
            ReservationType::WriteExclusiveAllRegistrants | ReservationType::ExclusiveAccessAllRegistrants
        )
    }

    /// If registrants that do not hold it may do something that it keeps from others.
    #[must_use]
    pub fn is_registrants_only(self) -> bool {
        matches!(
            self,
            ReservationType::WriteExclusiveRegistrantsOnly | ReservationType::ExclusiveAccessRegistrantsOnly
        )
    }

    /// The specification's word.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            ReservationType::WriteExclusive => "Write Exclusive",
            ReservationType::ExclusiveAccess => "Exclusive Access",
            ReservationType::WriteExclusiveRegistrantsOnly => "Write Exclusive - Registrants Only",
            ReservationType::ExclusiveAccessRegistrantsOnly => "Exclusive Access - Registrants Only",
            ReservationType::WriteExclusiveAllRegistrants => "Write Exclusive - All Registrants",
            ReservationType::ExclusiveAccessAllRegistrants => "Exclusive Access - All Registrants",
        }
    }
}

/// What a host is to a reservation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Standing {
    /// It holds the reservation.
    Holder,
    /// It is registered.
    Registrant,
    /// Neither.
    Stranger,
}

/// What a command does to a namespace, as far as reservations are concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CommandClass {
    /// It reads contents.
    Read,
    /// It changes contents, or makes changes durable.
    Write,
    /// It is about reservations, or about no contents: never a conflict here.
    Other,
}

/// Opcodes of I/O commands that do not change contents. All others count as writes, so that a command which is added and
/// forgotten here is refused rather than let through.
const READS: &[u8] = &[
    io::READ,
    io::COMPARE,
    0x0c, // Verify
    0x7a, // Zone Management Receive
];
const OTHERS: &[u8] =
    &[io::RESERVATION_REGISTER, io::RESERVATION_REPORT, io::RESERVATION_ACQUIRE, io::RESERVATION_RELEASE];

impl CommandClass {
    /// The class of an I/O command. Flush is one of the writes.
    #[must_use]
    pub fn of_io(opcode: u8) -> CommandClass {
        match opcode {
            opcode if OTHERS.contains(&opcode) => CommandClass::Other,
            opcode if READS.contains(&opcode) => CommandClass::Read,
            _ => CommandClass::Write,
        }
    }
}

/// What a type of reservation lets registrants and strangers do. The holder may do everything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AccessRule {
    /// The type.
    pub kind: ReservationType,
    /// If a registrant may read, write.
    pub registrant: (bool, bool),
    /// If a stranger may read, write.
    pub stranger: (bool, bool),
}

impl AccessRule {
    /// The specification's table.
    pub const TABLE: [AccessRule; 6] = {
        use ReservationType as T;
        const fn rule(kind: T, registrant: (bool, bool), stranger: (bool, bool)) -> AccessRule {
            AccessRule { kind, registrant, stranger }
        }
        [
            rule(T::WriteExclusive, (true, false), (true, false)),
            rule(T::ExclusiveAccess, (false, false), (false, false)),
            rule(T::WriteExclusiveRegistrantsOnly, (true, true), (true, false)),
            rule(T::ExclusiveAccessRegistrantsOnly, (true, true), (false, false)),
            rule(T::WriteExclusiveAllRegistrants, (true, true), (true, false)),
            rule(T::ExclusiveAccessAllRegistrants, (true, true), (false, false)),
        ]
    };

    /// If a host may do it.
    #[must_use]
    pub fn allows(kind: ReservationType, standing: Standing, class: CommandClass) -> bool {
        let rule = &AccessRule::TABLE[usize::from(kind.number()) - 1];
        let (reads, writes) = match standing {
            Standing::Holder => return true,
            Standing::Registrant => rule.registrant,
            Standing::Stranger => rule.stranger,
        };
        match class {
            CommandClass::Read => reads,
            CommandClass::Write => writes,
            CommandClass::Other => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_in_order_and_numbers_go_both_ways() {
        for (at, rule) in AccessRule::TABLE.iter().enumerate() {
            assert_eq!(usize::from(rule.kind.number()), at + 1);
            assert_eq!(ReservationType::from_number(rule.kind.number()), Some(rule.kind));
            // Registrants may do no less than strangers, and no stranger writes.
            assert!(rule.registrant.0 >= rule.stranger.0 && !rule.stranger.1);
        }
        assert_eq!((ReservationType::from_number(0), ReservationType::from_number(7)), (None, None));
    }

    #[test]
    fn every_command_that_is_not_known_to_be_harmless_is_a_write() {
        let class =
            |wanted| (0..=255u8).filter(|opcode| CommandClass::of_io(*opcode) == wanted).collect::<Vec<_>>();
        assert_eq!(class(CommandClass::Read), [0x02, 0x05, 0x0c, 0x7a]);
        assert_eq!(class(CommandClass::Other), [0x0d, 0x0e, 0x11, 0x15]);
        // Flush, Write, Write Uncorrectable, Write Zeroes, Dataset Management.
        for opcode in [0x00, 0x01, 0x04, 0x08, 0x09] {
            assert_eq!(CommandClass::of_io(opcode), CommandClass::Write);
        }
    }
}
