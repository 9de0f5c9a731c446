//! What a zoned block device reports, and what the report of a zone says about an operation that failed there.
//!
//! The block layer answers EIO to every write that a drive refuses, whatever the reason. The zone's state and pointer after it
//! tell the reasons apart.

use engine::device::DeviceErrorKind;
use engine::zone_device::{Zone, ZoneChange, ZoneState};

use super::super::ioctl::RawZone;

/// A zone as the kernel reports it, as the engine knows it. None: it does not start where a zone starts.
pub(super) fn zone_of(raw: &RawZone, zone_bytes: u64) -> Option<Zone> {
    if !raw.start_bytes().is_multiple_of(zone_bytes) {
        return None;
    }
    let number = u32::try_from(raw.start_bytes() / zone_bytes).ok()?;
    let state = state_of(raw.condition);
    let pointer_bytes = match state {
        ZoneState::Empty => Some(0),
        _ if state.is_active() => Some(raw.pointer_bytes()?),
        _ => None,
    };
    Some(Zone { number, state, capacity_bytes: raw.capacity_bytes().min(zone_bytes), pointer_bytes })
}

/// `enum blk_zone_cond`. A condition that is not known here is taken for the one in which nothing is done to a zone.
fn state_of(condition: u8) -> ZoneState {
    match condition {
        0x0 => ZoneState::NoPointer,
        0x1 => ZoneState::Empty,
        0x2 => ZoneState::ImplicitlyOpen,
        0x3 => ZoneState::ExplicitlyOpen,
        0x4 => ZoneState::Closed,
        0xd => ZoneState::ReadOnly,
        0xe => ZoneState::Full,
        _ => ZoneState::Offline,
    }
}

/// What was tried at a zone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Attempt {
    Write { in_zone_bytes: u64, bytes: u64 },
    Change(ZoneChange),
}

/// Why a zone that is like this refused an attempt. None: nothing about the zone says so, the medium failed.
pub(super) fn refusal(zone: &Zone, attempt: Attempt) -> Option<DeviceErrorKind> {
    match (attempt, zone.state) {
        (_, ZoneState::ReadOnly | ZoneState::Offline) => Some(DeviceErrorKind::ZoneState),
        (Attempt::Change(_), ZoneState::NoPointer) => Some(DeviceErrorKind::ZoneState),
        (Attempt::Change(change), state) => refuses(change, state).then_some(DeviceErrorKind::ZoneState),
        (Attempt::Write { .. }, ZoneState::NoPointer) => None,
        (Attempt::Write { .. }, ZoneState::Full) => Some(DeviceErrorKind::ZoneFull),
        (Attempt::Write { in_zone_bytes, bytes }, _) => {
            let is_beyond = in_zone_bytes.checked_add(bytes).is_none_or(|end| end > zone.capacity_bytes);
            match zone.pointer_bytes {
                Some(pointer) if pointer != in_zone_bytes => Some(DeviceErrorKind::NotAtPointer),
                _ if is_beyond => Some(DeviceErrorKind::ZoneFull),
                _ => None,
            }
        }
    }
}

/// Whether a change does not lead on from a state that has a pointer or is full.
fn refuses(change: ZoneChange, state: ZoneState) -> bool {
    match change {
        ZoneChange::Reset | ZoneChange::Finish => false,
        ZoneChange::Open => state == ZoneState::Full,
        ZoneChange::Close => matches!(state, ZoneState::Empty | ZoneState::Full),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use DeviceErrorKind::{NotAtPointer, ZoneFull};
    use engine::zone_device::states::ZoneStates;
    use engine::zone_device::{ZoneAccess, ZonedInfo};

    const STATES: [ZoneState; 7] = [
        ZoneState::Empty,
        ZoneState::ImplicitlyOpen,
        ZoneState::ExplicitlyOpen,
        ZoneState::Closed,
        ZoneState::Full,
        ZoneState::ReadOnly,
        ZoneState::Offline,
    ];

    /// A drive whose first zone is in this state, with `written` bytes in it.
    fn drive(state: ZoneState, written: u64) -> ZoneStates {
        let mut states = ZoneStates::new(&ZonedInfo {
            access: ZoneAccess::Sequential,
            zones: 1,
            zone_bytes: 16,
            capacity_bytes: 10,
            record_bytes_max: 10,
            metadata_bytes: 0,
            open_max: None,
            active_max: None,
        });
        if state != ZoneState::Empty {
            states.write(0, 0, written).expect("an empty zone");
        }
        match state {
            ZoneState::ExplicitlyOpen => states.change(0, ZoneChange::Open).expect("an open zone"),
            ZoneState::Empty | ZoneState::ImplicitlyOpen => {}
            _ => states.turn(0, state),
        }
        states
    }

    #[test]
    fn a_report_tells_what_the_drive_itself_would_have_said() {
        for state in STATES {
            for (in_zone_bytes, bytes) in [(0, 2), (4, 2), (5, 2), (4, 7), (0, 11)] {
                let mut drive = drive(state, 4);
                let refused = drive.write(0, in_zone_bytes, bytes).err();
                let told = refusal(&drive.zone(0), Attempt::Write { in_zone_bytes, bytes });
                if refused.is_some() {
                    assert_eq!(told, refused, "{bytes} bytes at {in_zone_bytes} of a zone that is {state:?}");
                }
            }
            for change in [ZoneChange::Reset, ZoneChange::Finish, ZoneChange::Open, ZoneChange::Close] {
                let mut drive = drive(state, 4);
                let before = drive.zone(0);
                let refused = drive.change(0, change).err();
                assert_eq!(refusal(&before, Attempt::Change(change)), refused, "{change:?} of {state:?}");
            }
        }
    }

    #[test]
    fn a_failure_that_the_zone_does_not_explain_is_the_mediums() {
        let at = |in_zone_bytes, bytes| Attempt::Write { in_zone_bytes, bytes };
        let open = drive(ZoneState::ImplicitlyOpen, 4).zone(0);
        assert_eq!(refusal(&open, at(4, 2)), None);
        assert_eq!(refusal(&open, at(2, 2)), Some(NotAtPointer), "the failed write moved the pointer");
        assert_eq!(refusal(&open, at(4, u64::MAX)), Some(ZoneFull));
        assert_eq!(refusal(&open, Attempt::Change(ZoneChange::Reset)), None);
        let conventional = Zone { state: ZoneState::NoPointer, pointer_bytes: None, ..open };
        assert_eq!(refusal(&conventional, at(2, 2)), None);
    }

    #[test]
    fn zones_as_the_kernel_reports_them() {
        let raw = |start: u64, pointer: u64, condition: u8| {
            let mut bytes = [0u8; 64];
            bytes[..8].copy_from_slice(&start.to_ne_bytes());
            bytes[8..16].copy_from_slice(&0x8000u64.to_ne_bytes());
            bytes[16..24].copy_from_slice(&pointer.to_ne_bytes());
            (bytes[24], bytes[25]) = (2, condition);
            bytes[32..40].copy_from_slice(&0x6000u64.to_ne_bytes());
            zerocopy::FromBytes::read_from_bytes(&bytes).expect("64 bytes")
        };
        let zone_bytes = 0x8000 * 512;
        let zone = zone_of(&raw(0x1_8000, 0x1_8008, 0x2), zone_bytes).expect("a zone");
        let state = ZoneState::ImplicitlyOpen;
        let expected = Zone { number: 3, state, capacity_bytes: 0x6000 * 512, pointer_bytes: Some(4096) };
        assert_eq!(zone, expected);
        for (condition, state) in [
            (0x0, ZoneState::NoPointer),
            (0xd, ZoneState::ReadOnly),
            (0xe, ZoneState::Full),
            (0xf, ZoneState::Offline),
            (0x77, ZoneState::Offline),
        ] {
            let zone = zone_of(&raw(0, u64::MAX, condition), zone_bytes).expect("a zone");
            assert_eq!((zone.state, zone.pointer_bytes), (state, None));
        }
        assert_eq!(zone_of(&raw(0x1_8001, 0x1_8008, 0x2), zone_bytes), None, "not the start of a zone");
        assert_eq!(zone_of(&raw(0x1_8000, 0x7, 0x2), zone_bytes), None, "a pointer before its zone");
    }
}
