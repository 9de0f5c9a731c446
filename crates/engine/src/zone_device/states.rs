//! States, pointers and limits of a drive's zones: the rules of the NVMe Zoned Namespaces command set, without I/O. The
//! zoned memory devices, the simulator's drive and the tests of all devices share them.
//!
//! Invariants:
//! - `open` and `active` are the numbers of zones in such a state, and neither exceeds its limit (Z-I9, at the drive).
//! - A pointer lies in its zone's capacity; a zone whose pointer is at its end is full.
//! - A refused operation changes nothing.

use std::collections::VecDeque;

use super::{Zone, ZoneAccess, ZoneChange, ZoneState, ZonedInfo};
use crate::device::DeviceErrorKind;

/// The zones of one drive.
#[derive(Clone, Debug)]
pub struct ZoneStates {
    zones: Vec<Entry>,
    open_max: Option<u32>,
    active_max: Option<u32>,
    open: u32,
    active: u32,
    /// Implicitly open zones, the one that has been open longest first.
    implicit: VecDeque<u32>,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    state: ZoneState,
    capacity_bytes: u64,
    /// Bytes written since the last reset.
    written_bytes: u64,
}

impl ZoneStates {
    /// Zones as `info` says, all of them empty, or, of a placed device, without pointers.
    pub fn new(info: &ZonedInfo) -> Self {
        let state = match info.access {
            ZoneAccess::Append | ZoneAccess::Sequential => ZoneState::Empty,
            ZoneAccess::Placed => ZoneState::NoPointer,
        };
        let zone = Entry { state, capacity_bytes: info.capacity_bytes, written_bytes: 0 };
        ZoneStates {
            zones: vec![zone; info.zones as usize],
            open_max: info.open_max,
            active_max: info.active_max,
            open: 0,
            active: 0,
            implicit: VecDeque::new(),
        }
    }

    /// One zone as a report says it. It exists.
    pub fn zone(&self, number: u32) -> Zone {
        let Entry { state, capacity_bytes, written_bytes } = self.zones[number as usize];
        let has_pointer = state == ZoneState::Empty || state.is_active();
        Zone { number, state, capacity_bytes, pointer_bytes: has_pointer.then_some(written_bytes) }
    }

    /// How many zones there are.
    pub fn count(&self) -> u32 {
        u32::try_from(self.zones.len()).expect("made from a u32")
    }

    /// Open zones.
    pub fn open(&self) -> u32 {
        self.open
    }

    /// Open and closed zones.
    pub fn active(&self) -> u32 {
        self.active
    }

    /// Appends `bytes` to a zone: returns the place.
    ///
    /// # Errors
    /// Why the drive refuses.
    pub fn append(&mut self, number: u32, bytes: u64) -> Result<u64, DeviceErrorKind> {
        let entry = self.entry(number)?;
        match entry.state {
            ZoneState::NoPointer => Err(DeviceErrorKind::ZoneState),
            _ => self.write(number, entry.written_bytes, bytes).map(|()| entry.written_bytes),
        }
    }

    /// Writes `bytes` at a place of a zone.
    ///
    /// # Errors
    /// Why the drive refuses.
    pub fn write(&mut self, number: u32, in_zone_bytes: u64, bytes: u64) -> Result<(), DeviceErrorKind> {
        let entry = self.entry(number)?;
        let end = in_zone_bytes.checked_add(bytes).ok_or(DeviceErrorKind::Invalid)?;
        match entry.state {
            ZoneState::ReadOnly | ZoneState::Offline => return Err(DeviceErrorKind::ZoneState),
            ZoneState::Full => return Err(DeviceErrorKind::ZoneFull),
            ZoneState::NoPointer if end > entry.capacity_bytes => return Err(DeviceErrorKind::Invalid),
            ZoneState::NoPointer => return Ok(()),
            _ if in_zone_bytes != entry.written_bytes => return Err(DeviceErrorKind::NotAtPointer),
            _ if end > entry.capacity_bytes => return Err(DeviceErrorKind::ZoneFull),
            state if state.is_open() => {}
            _ => self.open_as(number, ZoneState::ImplicitlyOpen)?,
        }
        self.zones[number as usize].written_bytes = end;
        if end == entry.capacity_bytes {
            self.set_state(number, ZoneState::Full);
        }
        Ok(())
    }

    /// Changes the state of a zone as a caller asks.
    ///
    /// # Errors
    /// Why the drive refuses.
    pub fn change(&mut self, number: u32, change: ZoneChange) -> Result<(), DeviceErrorKind> {
        let entry = self.entry(number)?;
        match (change, entry.state) {
            (_, ZoneState::ReadOnly | ZoneState::Offline | ZoneState::NoPointer) => {
                return Err(DeviceErrorKind::ZoneState);
            }
            (ZoneChange::Reset, _) => {
                self.zones[number as usize].written_bytes = 0;
                self.set_state(number, ZoneState::Empty);
            }
            (ZoneChange::Finish, _) => self.set_state(number, ZoneState::Full),
            (ZoneChange::Open, ZoneState::Full) | (ZoneChange::Close, ZoneState::Empty | ZoneState::Full) => {
                return Err(DeviceErrorKind::ZoneState);
            }
            (ZoneChange::Open, ZoneState::ExplicitlyOpen) | (ZoneChange::Close, ZoneState::Closed) => {}
            (ZoneChange::Open, ZoneState::ImplicitlyOpen) => {
                self.set_state(number, ZoneState::ExplicitlyOpen);
            }
            (ZoneChange::Open, _) => self.open_as(number, ZoneState::ExplicitlyOpen)?,
            (ZoneChange::Close, _) if entry.written_bytes == 0 => self.set_state(number, ZoneState::Empty),
            (ZoneChange::Close, _) => self.set_state(number, ZoneState::Closed),
        }
        Ok(())
    }

    /// Whether a zone can be read.
    ///
    /// # Errors
    /// It is offline, or there is no such zone.
    pub fn read(&self, number: u32) -> Result<(), DeviceErrorKind> {
        match self.entry(number)?.state {
            ZoneState::Offline => Err(DeviceErrorKind::Io),
            _ => Ok(()),
        }
    }

    /// The drive puts a zone into a state by itself: it wears out (read-only, offline), or is finished or closed. An empty one
    /// has nothing written. Drives keep to their limits also here: none opens a zone by itself.
    ///
    /// # Panics
    /// If `state` is open.
    pub fn turn(&mut self, number: u32, state: ZoneState) {
        assert!(!state.is_open(), "a drive opens no zone by itself");
        if state == ZoneState::Empty {
            self.zones[number as usize].written_bytes = 0;
        }
        self.set_state(number, state);
    }

    /// What a restart leaves: the pointer of a zone is where `pointer` says, in bytes, at most where it was; a zone that was open is
    /// closed, or empty if nothing is left in it. A full zone that keeps less than all of it is closed, if the drive has
    /// room for another active zone.
    pub fn restart(&mut self, mut pointer: impl FnMut(u32, u64) -> u64) {
        for number in 0..self.count() {
            let Entry { state, written_bytes, .. } = self.zones[number as usize];
            if !state.is_active() && state != ZoneState::Full {
                continue;
            }
            let left = pointer(number, written_bytes);
            assert!(left <= written_bytes, "a restart writes nothing");
            if state == ZoneState::Full && (left == written_bytes || left > 0 && self.at_limit()) {
                continue;
            }
            self.zones[number as usize].written_bytes = left;
            self.set_state(number, if left == 0 { ZoneState::Empty } else { ZoneState::Closed });
        }
    }

    fn at_limit(&self) -> bool {
        self.active_max.is_some_and(|most| self.active >= most)
    }

    fn entry(&self, number: u32) -> Result<Entry, DeviceErrorKind> {
        self.zones.get(number as usize).copied().ok_or(DeviceErrorKind::Invalid)
    }

    /// Opens an empty or closed zone. At the open limit the zone that was opened implicitly longest ago is closed for it.
    fn open_as(&mut self, number: u32, state: ZoneState) -> Result<(), DeviceErrorKind> {
        if !self.zones[number as usize].state.is_active() && self.at_limit() {
            return Err(DeviceErrorKind::TooManyOpen);
        }
        if self.open_max.is_some_and(|most| self.open >= most) {
            let oldest = *self.implicit.front().ok_or(DeviceErrorKind::TooManyOpen)?;
            self.set_state(oldest, ZoneState::Closed);
        }
        self.set_state(number, state);
        Ok(())
    }

    fn set_state(&mut self, number: u32, state: ZoneState) {
        let before = std::mem::replace(&mut self.zones[number as usize].state, state);
        self.open = self.open + u32::from(state.is_open()) - u32::from(before.is_open());
        self.active = self.active + u32::from(state.is_active()) - u32::from(before.is_active());
        if before == ZoneState::ImplicitlyOpen {
            self.implicit.retain(|open| *open != number);
        }
        if state == ZoneState::ImplicitlyOpen {
            self.implicit.push_back(number);
        }
        assert!(self.open_max.is_none_or(|most| self.open <= most), "Z-I9: open zones within the limit");
        assert!(
            self.active_max.is_none_or(|most| self.active <= most),
            "Z-I9: active zones within the limit"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use DeviceErrorKind::{Invalid, NotAtPointer, TooManyOpen, ZoneFull};
    use ZoneChange::{Close, Finish, Open, Reset};
    use ZoneState::{Closed, Empty, ExplicitlyOpen, Full, ImplicitlyOpen, NoPointer, Offline, ReadOnly};

    fn states(access: ZoneAccess) -> ZoneStates {
        ZoneStates::new(&ZonedInfo {
            access,
            zones: 6,
            zone_bytes: 16,
            capacity_bytes: 10,
            record_bytes_max: 10,
            metadata_bytes: 0,
            open_max: Some(2),
            active_max: Some(3),
        })
    }

    /// A zone in this state, with 4 bytes written where that can be.
    fn in_state(state: ZoneState) -> ZoneStates {
        let mut zones = states(ZoneAccess::Append);
        if state != Empty {
            zones.write(0, 0, 4).expect("an empty zone");
        }
        match state {
            ExplicitlyOpen => zones.change(0, Open).expect("an open zone"),
            Closed => zones.change(0, Close).expect("an open zone"),
            Full => zones.change(0, Finish).expect("an open zone"),
            ReadOnly | Offline => zones.turn(0, state),
            Empty | ImplicitlyOpen | NoPointer => {}
        }
        zones
    }

    #[test]
    fn each_change_of_each_state() {
        let refused = Err(DeviceErrorKind::ZoneState);
        let table = [
            (Empty, [Ok(Empty), Ok(Full), Ok(ExplicitlyOpen), refused]),
            (ImplicitlyOpen, [Ok(Empty), Ok(Full), Ok(ExplicitlyOpen), Ok(Closed)]),
            (ExplicitlyOpen, [Ok(Empty), Ok(Full), Ok(ExplicitlyOpen), Ok(Closed)]),
            (Closed, [Ok(Empty), Ok(Full), Ok(ExplicitlyOpen), Ok(Closed)]),
            (Full, [Ok(Empty), Ok(Full), refused, refused]),
            (ReadOnly, [refused; 4]),
            (Offline, [refused; 4]),
        ];
        for (before, after) in table {
            for (change, expected) in [Reset, Finish, Open, Close].into_iter().zip(after) {
                let mut zones = in_state(before);
                assert_eq!(zones.zone(0).state, before);
                let found = zones.change(0, change).map(|()| zones.zone(0).state);
                assert_eq!(found, expected, "{change:?} of a zone that is {before:?}");
                let state = zones.zone(0).state;
                assert_eq!(
                    (zones.open(), zones.active()),
                    (state.is_open().into(), state.is_active().into())
                );
            }
        }
    }

    #[test]
    fn each_write_in_each_state() {
        let refused = Err(DeviceErrorKind::ZoneState);
        // At the pointer (4 bytes in, but in an empty zone), beyond it, longer than the rest.
        let table = [
            (Empty, 0, [Ok(ImplicitlyOpen), Err(NotAtPointer), Err(ZoneFull)]),
            (ImplicitlyOpen, 4, [Ok(ImplicitlyOpen), Err(NotAtPointer), Err(ZoneFull)]),
            (ExplicitlyOpen, 4, [Ok(ExplicitlyOpen), Err(NotAtPointer), Err(ZoneFull)]),
            (Closed, 4, [Ok(ImplicitlyOpen), Err(NotAtPointer), Err(ZoneFull)]),
            (Full, 4, [Err(ZoneFull); 3]),
            (ReadOnly, 4, [refused; 3]),
            (Offline, 4, [refused; 3]),
        ];
        for (before, pointer, after) in table {
            for ((at, bytes), expected) in
                [(pointer, 2), (pointer + 1, 2), (pointer, 11)].into_iter().zip(after)
            {
                let mut zones = in_state(before);
                let found = zones.write(0, at, bytes).map(|()| zones.zone(0).state);
                assert_eq!(found, expected, "{bytes} bytes at {at} of a zone that is {before:?}");
                let mut zones = in_state(before);
                let appended = zones.append(0, bytes);
                match expected {
                    Ok(_) => assert_eq!(appended, Ok(pointer)),
                    Err(NotAtPointer) => assert_eq!(appended, Ok(pointer), "an append takes the pointer"),
                    Err(kind) => assert_eq!(appended, Err(kind)),
                }
            }
        }
    }

    #[test]
    fn a_zone_that_is_written_to_its_end_is_full_and_leaves_the_limits() {
        let mut zones = states(ZoneAccess::Sequential);
        for at in [0, 5] {
            zones.write(3, at, 5).expect("room");
        }
        assert_eq!((zones.zone(3).state, zones.zone(3).pointer_bytes), (Full, None));
        assert_eq!((zones.open(), zones.active()), (0, 0));
        assert_eq!(zones.write(9, 0, 1), Err(Invalid));
    }

    #[test]
    fn at_the_open_limit_the_zone_opened_longest_ago_is_closed_and_at_the_active_limit_nothing_opens() {
        let mut zones = states(ZoneAccess::Append);
        for zone in 0..3 {
            zones.append(zone, 1).expect("within the limits");
        }
        assert_eq!([0, 1, 2].map(|zone| zones.zone(zone).state), [Closed, ImplicitlyOpen, ImplicitlyOpen]);
        assert_eq!(zones.append(3, 1), Err(TooManyOpen), "three are active");
        zones.append(0, 1).expect("a closed zone is active already");
        assert_eq!([0, 1, 2].map(|zone| zones.zone(zone).state), [ImplicitlyOpen, Closed, ImplicitlyOpen]);
        for zone in [0, 2] {
            zones.change(zone, Open).expect("open already");
        }
        assert_eq!(zones.append(1, 1), Err(TooManyOpen), "none of the open zones can be closed for it");
        assert_eq!(zones.change(1, Open), Err(TooManyOpen));
        zones.change(0, Finish).expect("an open zone");
        assert_eq!((zones.append(1, 1), zones.append(3, 1)), (Ok(1), Ok(0)), "a full zone counts no more");
    }

    #[test]
    fn a_restart_closes_zones_and_takes_pointers_back() {
        let mut zones = states(ZoneAccess::Append);
        for (zone, bytes) in [(0, 4), (1, 4), (2, 10), (3, 10), (4, 4)] {
            zones.append(zone, bytes).expect("within the limits");
        }
        zones.turn(4, ReadOnly);
        let left = [4, 0, 6, 10, 0, 0];
        zones.restart(|zone, _| left[zone as usize]);
        let found: Vec<_> =
            (0..6).map(|zone| (zones.zone(zone).state, zones.zone(zone).pointer_bytes)).collect();
        let expected = [
            (Closed, Some(4)),
            (Empty, Some(0)),
            (Closed, Some(6)),
            (Full, None),
            (ReadOnly, None),
            (Empty, Some(0)),
        ];
        assert_eq!(found, expected);
        assert_eq!((zones.open(), zones.active()), (0, 2));
    }

    #[test]
    fn a_placed_device_has_no_pointers() {
        let mut zones = states(ZoneAccess::Placed);
        assert_eq!(
            (zones.write(0, 7, 3), zones.write(0, 2, 3), zones.write(0, 8, 3)),
            (Ok(()), Ok(()), Err(Invalid))
        );
        assert_eq!(zones.append(0, 1), Err(DeviceErrorKind::ZoneState));
        assert_eq!((zones.zone(0).state, zones.zone(0).pointer_bytes, zones.open()), (NoPointer, None, 0));
    }
}
