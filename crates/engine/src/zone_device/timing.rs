//! How long a zoned drive takes: a model without I/O and without a clock. Callers say when an operation comes; the model says
//! when it is done. The times are in nanoseconds of the caller's clock, which does not run backwards.
//!
//! Two drives:
//! - [`DriveModel::Zn540`], fitted to Fig. 2 of ZapRAID (Western Digital ZN540). The drive takes one command after the other,
//!   appends more slowly than writes. A zone makes its writes one after the other, for it has one pointer; appends do not wait
//!   for each other, but return some time after the drive took them. A zone and the whole drive move so many bytes a second.
//!   Times of reads, flushes, resets and other changes are guesses.
//! - [`DriveModel::Femu`]: FEMU's drive without a write buffer. A zone lies on 16 chips, and each page of 4 KiB occupies the next of
//!   them for 140 us; writes and appends cost the same.

use super::ZoneChange;

const US: f64 = 1000.0;
const BLOCK_BYTES: f64 = 4096.0;
const MIB_PER_S: f64 = 1_048_576.0 / 1e9; // in bytes a nanosecond

/// One write in a zone, with `b` blocks: 10.4 + 1.15 b us.
const ZONE_WRITE: Linear = Linear(10.4 * US, 1.15 * US);
/// The drive takes the next command after a write: 4.6 + 0.43 b us.
const TAKE_WRITE: Linear = Linear(4.6 * US, 0.43 * US);
/// The drive takes the next command after an append: 6.4 + 0.5 b us.
const TAKE_APPEND: Linear = Linear(6.4 * US, 0.5 * US);
/// An append returns this long after it was taken: 12 + 2 b us.
const RETURN_APPEND: Linear = Linear(12.0 * US, 2.0 * US);
/// What one zone moves, in bytes a nanosecond.
const ZONE_SPEED: f64 = 1050.0 * MIB_PER_S;
/// What the drive moves.
const DRIVE_SPEED: f64 = 1750.0 * MIB_PER_S;

/// Guesses: the paper does not say.
const READ_NS: f64 = 80.0 * US;
const FLUSH_NS: f64 = 20.0 * US;
const RESET_NS: f64 = 1000.0 * US;
const OTHER_CHANGE_NS: f64 = 100.0 * US;

/// FEMU's chips of one zone, and how long a page takes.
const CHIPS: usize = 16;
const PAGE_NS: f64 = 140.0 * US;

/// A time that grows with the blocks: a constant, and so much for each.
#[derive(Clone, Copy, Debug)]
struct Linear(f64, f64);

impl Linear {
    fn of(self, bytes: u64) -> f64 {
        self.0 + self.1 * bytes as f64 / BLOCK_BYTES
    }
}

/// Which drive is modelled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DriveModel {
    /// The drive of the paper's Fig. 2.
    Zn540,
    /// FEMU's, without a buffer.
    Femu,
}

/// What is to be timed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Timed {
    /// A write of so many bytes at the pointer of a zone.
    Write(u32, u64),
    /// An append of so many bytes to a zone.
    Append(u32, u64),
    /// A read.
    Read,
    /// A flush.
    Flush,
    /// A change of a zone.
    Change(ZoneChange),
}

/// A drive at work.
#[derive(Clone, Debug)]
pub struct DriveTiming {
    model: DriveModel,
    /// All times are multiplied by this, so that a host that is slower than the drive does not measure itself.
    slow_by: f64,
    /// When the drive takes the next command, and when it has moved all bytes so far.
    takes_at: f64,
    moved_at: f64,
    zones: Vec<ZoneTiming>,
}

#[derive(Clone, Debug, Default)]
struct ZoneTiming {
    /// When the last write is made, and when all bytes so far are moved.
    written_at: f64,
    moved_at: f64,
    /// When each of FEMU's chips is free, and whose turn it is.
    chips: [f64; CHIPS],
    turn: usize,
}

impl DriveTiming {
    /// A drive of `zones` zones that has nothing to do.
    pub fn new(model: DriveModel, zones: u32, slow_by: u32) -> Self {
        let zones = vec![ZoneTiming::default(); zones as usize];
        let slow_by = f64::from(slow_by.max(1));
        DriveTiming { model, slow_by, takes_at: 0.0, moved_at: 0.0, zones }
    }

    /// When an operation that comes at `now_ns` is done.
    pub fn done_at_ns(&mut self, now_ns: u64, operation: Timed) -> u64 {
        let now = now_ns as f64 / self.slow_by;
        let done = match (operation, self.model) {
            (Timed::Write(zone, bytes), DriveModel::Zn540) => self.write(now, zone as usize, bytes),
            (Timed::Append(zone, bytes), DriveModel::Zn540) => self.append(now, zone as usize, bytes),
            (Timed::Write(zone, bytes) | Timed::Append(zone, bytes), DriveModel::Femu) => {
                self.program(now, zone as usize, bytes)
            }
            (Timed::Read, _) => now + READ_NS,
            (Timed::Flush, _) => now + FLUSH_NS,
            (Timed::Change(ZoneChange::Reset), _) => now + RESET_NS,
            (Timed::Change(_), _) => now + OTHER_CHANGE_NS,
        };
        ((done * self.slow_by) as u64).max(now_ns)
    }

    fn write(&mut self, now: f64, zone: usize, bytes: u64) -> f64 {
        let begun = now.max(self.takes_at).max(self.zones[zone].written_at);
        self.takes_at = now.max(self.takes_at) + TAKE_WRITE.of(bytes);
        let moved = self.moves(begun, zone, bytes);
        let written = (begun + ZONE_WRITE.of(bytes)).max(moved);
        self.zones[zone].written_at = written;
        written
    }

    fn append(&mut self, now: f64, zone: usize, bytes: u64) -> f64 {
        let begun = now.max(self.takes_at);
        self.takes_at = begun + TAKE_APPEND.of(bytes);
        let moved = self.moves(begun, zone, bytes);
        self.takes_at.max(moved) + RETURN_APPEND.of(bytes)
    }

    /// When the bytes of an operation that begins now are moved: after those before, in the zone and in the drive.
    fn moves(&mut self, begun: f64, zone: usize, bytes: u64) -> f64 {
        let of_zone = &mut self.zones[zone].moved_at;
        *of_zone = of_zone.max(begun) + bytes as f64 / ZONE_SPEED;
        self.moved_at = self.moved_at.max(begun) + bytes as f64 / DRIVE_SPEED;
        of_zone.max(self.moved_at)
    }

    fn program(&mut self, now: f64, zone: usize, bytes: u64) -> f64 {
        let zone = &mut self.zones[zone];
        let mut done = now;
        for _ in 0..bytes.div_ceil(BLOCK_BYTES as u64) {
            let chip = &mut zone.chips[zone.turn];
            *chip = chip.max(now) + PAGE_NS;
            done = done.max(*chip);
            zone.turn = (zone.turn + 1) % CHIPS;
        }
        done
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cmp::Reverse;
    use std::collections::BinaryHeap;

    const ZONES: u32 = 16;

    /// MiB/s of `zones` zones with `depth` operations in flight at each, in virtual time.
    fn throughput(
        model: DriveModel,
        operation: fn(u32, u64) -> Timed,
        bytes: u64,
        zones: u32,
        depth: u32,
    ) -> f64 {
        let mut drive = DriveTiming::new(model, ZONES, 1);
        let mut in_flight: BinaryHeap<Reverse<(u64, u32)>> =
            (0..zones * depth).map(|index| Reverse((0, index % zones))).collect();
        let (mut now, mut done) = (0, 0u64);
        while done < 20_000 {
            let Reverse((at, zone)) = in_flight.pop().expect("as many as began");
            now = at;
            done += 1;
            in_flight.push(Reverse((drive.done_at_ns(now, operation(zone, bytes)), zone)));
        }
        done as f64 * bytes as f64 / f64::from(1 << 20) / (now as f64 / 1e9)
    }

    fn close(found: f64, wanted: f64, percent: f64, what: &str) {
        let off = (found / wanted - 1.0) * 100.0;
        assert!(off.abs() <= percent, "{what}: {found:.1} MiB/s, the paper has {wanted}: {off:+.1} %");
    }

    #[test]
    fn the_twelve_points_of_fig_2() {
        let sizes = [4096, 8192, 16384];
        type Row = (&'static str, fn(u32, u64) -> Timed, u32, u32, [f64; 3]);
        let rows: [Row; 4] = [
            ("writes, one zone", Timed::Write, 1, 1, [337.6, 613.6, 1050.0]),
            ("appends at depth 4, one zone", Timed::Append, 1, 4, [541.5, 1026.6, 1050.1]),
            ("writes, many zones", Timed::Write, 12, 1, [777.1, 1430.7, 1750.0]),
            ("appends at depth 4, many zones", Timed::Append, 12, 4, [577.5, 1058.6, 1750.0]),
        ];
        for (what, operation, zones, depth, points) in rows {
            for (bytes, wanted) in sizes.into_iter().zip(points) {
                let found = throughput(DriveModel::Zn540, operation, bytes, zones, depth);
                close(found, wanted, 6.0, &format!("{what}, {bytes} bytes"));
            }
        }
    }

    #[test]
    fn single_operations_take_what_the_model_says() {
        let us = |operation| {
            let mut drive = DriveTiming::new(DriveModel::Zn540, ZONES, 1);
            drive.done_at_ns(5_000_000, operation) as f64 / 1e3 - 5000.0
        };
        for (operation, expected) in [
            (Timed::Write(0, 4096), 11.55),
            (Timed::Append(0, 4096), 6.9 + 14.0),
            (Timed::Append(0, 16384), 16384.0 / (1050.0 * 1.048576) + 20.0), // the zone moves it
            (Timed::Read, 80.0),
            (Timed::Flush, 20.0),
            (Timed::Change(ZoneChange::Reset), 1000.0),
            (Timed::Change(ZoneChange::Finish), 100.0),
        ] {
            assert!((us(operation) - expected).abs() < 0.01, "{operation:?}: {}", us(operation));
        }
    }

    #[test]
    fn writes_of_a_zone_wait_for_each_other_and_appends_do_not() {
        let mut drive = DriveTiming::new(DriveModel::Zn540, ZONES, 1);
        let writes = [0, 0].map(|zone| drive.done_at_ns(0, Timed::Write(zone, 4096)));
        assert_eq!(writes, [11_550, 23_100]);
        let mut drive = DriveTiming::new(DriveModel::Zn540, ZONES, 1);
        let appends = [0, 0].map(|zone| drive.done_at_ns(0, Timed::Append(zone, 4096)));
        assert_eq!(appends, [20_900, 27_800], "the drive takes one every 6.9 us");
    }

    #[test]
    fn a_slower_drive_is_slower_in_everything() {
        for operation in [Timed::Write(0, 8192), Timed::Append(0, 8192), Timed::Read, Timed::Flush] {
            let at = |slow_by, now| {
                DriveTiming::new(DriveModel::Zn540, ZONES, slow_by).done_at_ns(now, operation) - now
            };
            assert_eq!(at(10, 0) / 10, at(1, 0), "{operation:?}");
            assert!(at(10, 1_000_000).abs_diff(at(10, 0)) <= 1, "{operation:?}");
        }
    }

    #[test]
    fn femu_fills_its_chips() {
        // 16 pages every 140 us.
        let most = 16.0 * 4096.0 / f64::from(1 << 20) / 140e-6;
        close(throughput(DriveModel::Femu, Timed::Append, 4096, 1, 16), most, 1.0, "sixteen in flight");
        close(throughput(DriveModel::Femu, Timed::Append, 4096, 1, 4), most / 4.0, 1.0, "four in flight");
        close(throughput(DriveModel::Femu, Timed::Write, 16384, 1, 4), most, 1.0, "four of four pages");
    }
}
