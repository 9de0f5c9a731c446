//! Software zones over an ordinary device: [`ZoneAccess::Placed`]. The device keeps no pointer and no state; what was written
//! is what the records in a zone prove.
//!
//! A reset overwrites the zone's first block with zeroes, durably, before it discards the zone. The other order could
//! leave a valid header before contents that the discard took. A discard that fails costs nothing but the space: only one
//! whose end is unknown fails the reset, since it may still take what is written there next.

use std::future::{Future, Ready, ready};
use std::ops::Range;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use super::{RESET_BYTES, Zone, ZoneAccess, ZoneChange, ZoneDevice, ZoneOffset, ZoneState, ZonedInfo};
use crate::buffer::{Buffer, Gather, Slice};
use crate::device::{Device, DeviceError, DeviceErrorKind, DeviceInfo};
use layout::units::DeviceOffset;

/// Most bytes of a record of a placed device, which has no limit of its own: more than any record has.
const RECORD_BYTES_MAX: u32 = 4 << 20;

/// An ordinary device, cut into zones. Clones are handles to the same.
pub struct Placed<D> {
    inner: Rc<Inner<D>>,
}

struct Inner<D> {
    device: D,
    info: DeviceInfo,
    zoned: ZonedInfo,
}

impl<D> Clone for Placed<D> {
    fn clone(&self) -> Self {
        Placed { inner: Rc::clone(&self.inner) }
    }
}

impl<D: Device> Placed<D> {
    /// Cuts `device` into zones of `zone_bytes`, a multiple of 4 KiB. What is left at its end is not used. None: there is no
    /// room for a single zone, or the size is not one of a zone.
    pub fn new(device: D, zone_bytes: u64) -> Option<Self> {
        if zone_bytes < 2 * RESET_BYTES as u64 || !zone_bytes.is_multiple_of(RESET_BYTES as u64) {
            return None;
        }
        let zones = u32::try_from(device.info().size_bytes / zone_bytes).unwrap_or(u32::MAX);
        if zones == 0 {
            return None;
        }
        let zoned = ZonedInfo {
            access: ZoneAccess::Placed,
            zones,
            zone_bytes,
            capacity_bytes: zone_bytes,
            record_bytes_max: RECORD_BYTES_MAX,
            metadata_bytes: 0,
            open_max: None,
            active_max: None,
        };
        let info = DeviceInfo { size_bytes: u64::from(zones) * zone_bytes, ..device.info().clone() };
        Some(Placed { inner: Rc::new(Inner { device, info, zoned }) })
    }

    /// The device itself.
    pub fn device(&self) -> &D {
        &self.inner.device
    }

    fn error(&self, kind: DeviceErrorKind, operation: &'static str, at: (DeviceOffset, u64)) -> DeviceError {
        DeviceError { kind, operation, offset: at.0, bytes: at.1, errno: 0 }
    }

    fn refuse(
        &self,
        kind: DeviceErrorKind,
        operation: &'static str,
        at: (DeviceOffset, u64),
    ) -> PlacedDone<D> {
        PlacedDone::Ended(Some(Err(self.error(kind, operation, at))))
    }
}

/// An operation of a placed device in flight.
pub enum PlacedDone<D: Device> {
    /// The device's own operation.
    Running(D::Done),
    /// The first half of a reset.
    Overwriting(Placed<D>, u32, D::Done),
    /// The second half.
    Discarding(D::Done),
    /// Nothing was sent. None: it has returned.
    Ended(Option<Result<(), DeviceError>>),
}

impl<D: Device> Future for PlacedDone<D> {
    type Output = Result<(), DeviceError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        loop {
            match &mut *self {
                PlacedDone::Running(done) => return Pin::new(done).poll(context),
                PlacedDone::Overwriting(placed, zone, done) => {
                    ready!(Pin::new(done).poll(context))?;
                    let Inner { device, zoned, .. } = &*placed.inner;
                    let discard = device.discard(zoned.offset_bytes(*zone, 0), zoned.zone_bytes);
                    *self = PlacedDone::Discarding(discard);
                }
                PlacedDone::Discarding(done) => {
                    let result = ready!(Pin::new(done).poll(context));
                    return Poll::Ready(result.or_else(|error| match error.kind {
                        DeviceErrorKind::Timeout | DeviceErrorKind::Gone => Err(error),
                        _ => Ok(()),
                    }));
                }
                PlacedDone::Ended(result) => return Poll::Ready(result.take().expect("polled once")),
            }
        }
    }
}

impl<D: Device> Device for Placed<D> {
    type Read = D::Read;
    type Done = PlacedDone<D>;

    fn info(&self) -> &DeviceInfo {
        &self.inner.info
    }

    #[inline]
    fn read(&self, offset: DeviceOffset, buffer: Buffer) -> D::Read {
        self.inner.device.read(offset, buffer)
    }

    fn write(&self, offset: DeviceOffset, data: Gather, _fua: bool) -> PlacedDone<D> {
        self.refuse(DeviceErrorKind::Unsupported, "write", (offset, data.len() as u64))
    }

    fn flush(&self) -> PlacedDone<D> {
        PlacedDone::Running(self.inner.device.flush())
    }

    fn discard(&self, offset: DeviceOffset, bytes: u64) -> PlacedDone<D> {
        self.refuse(DeviceErrorKind::Unsupported, "discard", (offset, bytes))
    }

    fn write_zeroes(&self, offset: DeviceOffset, bytes: u64, _may_unmap: bool) -> PlacedDone<D> {
        self.refuse(DeviceErrorKind::Unsupported, "write zeroes", (offset, bytes))
    }
}

impl<D: Device> ZoneDevice for Placed<D> {
    type Append = Ready<Result<u64, DeviceError>>;
    type Changed = PlacedDone<D>;
    type Report = Ready<Result<Vec<Zone>, DeviceError>>;
    type ReadMetadata = Ready<(Buffer, Buffer, Result<(), DeviceError>)>;

    fn zoned(&self) -> &ZonedInfo {
        &self.inner.zoned
    }

    fn report(&self, zones: Range<u32>) -> Self::Report {
        let capacity_bytes = self.inner.zoned.capacity_bytes;
        let (state, pointer_bytes) = (ZoneState::NoPointer, None);
        let zones = zones.start..zones.end.min(self.inner.zoned.zones);
        ready(Ok(zones.map(|number| Zone { number, state, capacity_bytes, pointer_bytes }).collect()))
    }

    fn append(&self, zone: u32, data: Gather, _metadata: Option<Slice>, _fua: bool) -> Self::Append {
        let at = (self.inner.zoned.offset_bytes(zone, 0), data.len() as u64);
        ready(Err(self.error(DeviceErrorKind::Unsupported, "append", at)))
    }

    #[inline]
    fn write_at(&self, to: ZoneOffset, data: Gather, metadata: Option<Slice>, fua: bool) -> PlacedDone<D> {
        let ZoneOffset { zone, in_zone_bytes } = to;
        let Inner { device, info, zoned } = &*self.inner;
        let (at, bytes) = (zoned.offset_bytes(zone, in_zone_bytes), data.len() as u64);
        let is_inside = in_zone_bytes.checked_add(bytes).is_some_and(|end| end <= zoned.capacity_bytes);
        match zoned.check_record(info.logical_block_bytes, to, &data, metadata.as_ref()) {
            Ok(()) if is_inside => PlacedDone::Running(device.write(at, data, fua)),
            Ok(()) => self.refuse(DeviceErrorKind::Invalid, "write", (at, bytes)),
            Err(kind) => self.refuse(kind, "write", (at, bytes)),
        }
    }

    fn read_metadata(&self, from: ZoneOffset, data: Buffer, metadata: Buffer) -> Self::ReadMetadata {
        let ZoneOffset { zone, in_zone_bytes } = from;
        let at = (self.inner.zoned.offset_bytes(zone, in_zone_bytes), data.len() as u64);
        ready((data, metadata, Err(self.error(DeviceErrorKind::Unsupported, "read", at))))
    }

    fn change(&self, zone: u32, change: ZoneChange) -> PlacedDone<D> {
        let at = self.inner.zoned.offset_bytes(zone, 0);
        if zone >= self.inner.zoned.zones {
            return self.refuse(DeviceErrorKind::Invalid, change.name(), (at, self.inner.zoned.zone_bytes));
        }
        if change != ZoneChange::Reset {
            return PlacedDone::Ended(Some(Ok(())));
        }
        let header = Buffer::new(RESET_BYTES).freeze().into();
        PlacedDone::Overwriting(self.clone(), zone, self.inner.device.write(at, header, true))
    }
}

#[cfg(test)]
mod tests {
    use super::super::conformance::conforms;
    use super::*;
    use crate::executor::Executor;
    use std::cell::RefCell;

    const ZONE: u64 = 256 << 10;

    /// A device that notes what it is asked, holds what was written to it, and discards as `discard` says.
    struct Noting {
        info: DeviceInfo,
        bytes: RefCell<Vec<u8>>,
        asked: Rc<RefCell<Vec<String>>>,
        discard: Option<DeviceErrorKind>,
    }

    impl Noting {
        fn new(discard: Option<DeviceErrorKind>) -> Self {
            let size_bytes = 5 * ZONE + 4096;
            let name = "noting".to_owned();
            let info = DeviceInfo { size_bytes, logical_block_bytes: 512, discard_zeroes: false, name };
            Noting { info, bytes: RefCell::new(vec![0; size_bytes as usize]), asked: Rc::default(), discard }
        }

        fn note(&self, what: String) -> Ready<Result<(), DeviceError>> {
            self.asked.borrow_mut().push(what);
            ready(Ok(()))
        }
    }

    impl Device for Noting {
        type Read = Ready<(Buffer, Result<(), DeviceError>)>;
        type Done = Ready<Result<(), DeviceError>>;

        fn info(&self) -> &DeviceInfo {
            &self.info
        }

        fn read(&self, offset: DeviceOffset, mut buffer: Buffer) -> Self::Read {
            let bytes = buffer.len();
            buffer.bytes_mut().copy_from_slice(&self.bytes.borrow()[offset.get() as usize..][..bytes]);
            ready((buffer, Ok(())))
        }

        fn write(&self, offset: DeviceOffset, data: Gather, fua: bool) -> Self::Done {
            let length = data.len();
            data.copy_to(&mut self.bytes.borrow_mut()[offset.get() as usize..][..length]);
            self.note(format!("write {offset} {length} {fua}"))
        }

        fn flush(&self) -> Self::Done {
            self.note("flush".to_owned())
        }

        fn discard(&self, offset: DeviceOffset, bytes: u64) -> Self::Done {
            let noted = self.note(format!("discard {offset} {bytes}"));
            match self.discard {
                None => noted,
                Some(kind) => ready(Err(DeviceError { kind, operation: "discard", offset, bytes, errno: 0 })),
            }
        }

        fn write_zeroes(&self, offset: DeviceOffset, bytes: u64, _may_unmap: bool) -> Self::Done {
            self.note(format!("zeroes {offset} {bytes}"))
        }
    }

    fn run<T: 'static>(future: impl Future<Output = T> + 'static) -> T {
        let executor = Executor::new(Box::new(|| {}));
        let result = executor.spawn_with_result(future);
        executor.run_ready(usize::MAX);
        result.try_take().expect("nothing waits")
    }

    #[test]
    fn an_ordinary_device_conforms() {
        let placed = Placed::new(Noting::new(None), ZONE).expect("five zones");
        assert_eq!((placed.zoned().zones, placed.info().size_bytes), (5, 5 * ZONE));
        assert_eq!(run(async move { conforms(&placed, 1).await }), Ok(()));
    }

    #[test]
    fn a_reset_takes_the_header_durably_and_then_discards() {
        use DeviceErrorKind::{Gone, Io, Timeout, Unsupported};
        for (discard, result) in [
            (None, Ok(())),
            (Some(Unsupported), Ok(())),
            (Some(Io), Ok(())),
            (Some(Timeout), Err(Timeout)),
            (Some(Gone), Err(Gone)),
        ] {
            let device = Noting::new(discard);
            let asked = Rc::clone(&device.asked);
            let placed = Placed::new(device, ZONE).expect("five zones");
            let reset = run(async move { placed.reset(2).await });
            assert_eq!(reset.map_err(|error| error.kind), result, "the discard fails as {discard:?}");
            let expected = [format!("write {} 4096 true", 2 * ZONE), format!("discard {} {ZONE}", 2 * ZONE)];
            assert_eq!(*asked.borrow(), expected);
        }
    }

    #[test]
    fn sizes_that_make_no_zones_are_refused() {
        for zone_bytes in [0, 4096, ZONE + 512, 6 * ZONE] {
            assert!(Placed::new(Noting::new(None), zone_bytes).is_none(), "{zone_bytes}");
        }
    }
}
