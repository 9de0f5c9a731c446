//! What an operator does to an array, and what the power does.

use layout::units::Slot;
use std::fmt;
use std::str::FromStr;

/// Cells that acts write.
pub(super) const CELLS_WRITTEN: [usize; 2] = [0, 2];

/// One act of a history.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Act {
    /// What runs is stopped, and the array starts with these devices.
    Start(Devices),
    /// The same by force.
    Force(Devices),
    /// A client writes a cell, durably.
    Write(usize),
    /// The power goes. What stands in a cache survives as this says.
    Crash(Crash),
    /// The member in a slot is taken out of use and out of its slot.
    Fail(Slot),
    /// A new device is added.
    Add,
    /// A device that is not in use comes back.
    ReAdd(u32),
    /// A new device takes over from the member in a slot.
    Replace(Slot),
}

/// How the power goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Crash {
    /// No write is in flight.
    Quiet,
    /// A write is in flight, and only the member that it is for has it: parity and other copies do not.
    OnlyData,
    /// A write is in flight, and all but that member have it.
    AllButData,
}

/// Some devices, as bits by number.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Devices(pub(super) u32);

impl Devices {
    pub(super) fn has(self, device: u32) -> bool {
        self.0 & 1 << device != 0
    }

    fn numbers(self) -> impl Iterator<Item = u32> {
        (0..u32::BITS).filter(move |device| self.has(*device))
    }
}

impl fmt::Debug for Devices {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words: Vec<String> = self.numbers().map(|device| device.to_string()).collect();
        f.write_str(&words.join("+"))
    }
}

impl fmt::Display for Act {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Act::Start(devices) => write!(f, "start {devices:?}"),
            Act::Force(devices) => write!(f, "force {devices:?}"),
            Act::Write(cell) => write!(f, "write {cell}"),
            Act::Crash(Crash::Quiet) => f.write_str("crash"),
            Act::Crash(Crash::OnlyData) => f.write_str("crash with data only"),
            Act::Crash(Crash::AllButData) => f.write_str("crash with all but data"),
            Act::Fail(slot) => write!(f, "fail {slot}"),
            Act::Add => f.write_str("add"),
            Act::ReAdd(device) => write!(f, "re-add {device}"),
            Act::Replace(slot) => write!(f, "replace {slot}"),
        }
    }
}

impl FromStr for Act {
    type Err = String;

    fn from_str(words: &str) -> Result<Self, String> {
        let unknown = || format!("{words:?} is no act");
        match words {
            "crash" => return Ok(Act::Crash(Crash::Quiet)),
            "crash with data only" => return Ok(Act::Crash(Crash::OnlyData)),
            "crash with all but data" => return Ok(Act::Crash(Crash::AllButData)),
            "add" => return Ok(Act::Add),
            _ => {}
        }
        let (verb, of) = words.split_once(' ').ok_or_else(unknown)?;
        let number = || of.parse::<u32>().map_err(|_| unknown());
        let slot = || number().map(Slot::new);
        let devices = || {
            let numbers: Result<Vec<u32>, _> = of.split('+').map(str::parse).collect();
            let numbers = numbers.map_err(|_| unknown())?;
            let bits = numbers.into_iter().map(|number| 1u32.checked_shl(number).ok_or_else(unknown));
            bits.sum::<Result<u32, String>>().map(Devices)
        };
        match verb {
            "start" => devices().map(Act::Start),
            "force" => devices().map(Act::Force),
            "write" if CELLS_WRITTEN.iter().any(|cell| number() == Ok(*cell as u32)) => {
                Ok(Act::Write(number()? as usize))
            }
            "fail" => slot().map(Act::Fail),
            "re-add" => number().map(Act::ReAdd),
            "replace" => slot().map(Act::Replace),
            _ => Err(unknown()),
        }
    }
}

/// The acts of a history in words.
///
/// # Errors
/// What is no act.
pub(super) fn parse(history: &str) -> Result<Vec<Act>, String> {
    history.split(',').map(str::trim).map(str::parse).collect()
}

/// A history in words.
pub(super) fn words(acts: &[Act]) -> String {
    acts.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_history_is_read_as_it_is_written() {
        let history = "start 0+1, write 0, crash with data only, force 0+2, fail 1, add, re-add 1, replace 0, crash, \
                       crash with all but data, write 2";
        assert_eq!(words(&parse(history).expect("acts")), history);
        for wrong in ["", "write 1", "start", "start 0+", "start 99", "stop", "fail x"] {
            assert!(parse(wrong).is_err(), "{wrong:?}");
        }
    }
}
