//! A device that lies: it loses a write that it acknowledges, puts one elsewhere, or flips a bit. What should be there is
//! remembered, for whoever checks what is made of it.

use std::ops::Range;

use super::Disk;
use super::cache::Written;

/// What becomes of a write to the data area that the device says is done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Astray {
    /// Nothing.
    Lost,
    /// It is written at another place.
    Elsewhere,
}

/// A part of the data area that does not hold what it should.
#[derive(Clone)]
pub(crate) struct Damage {
    pub(crate) range: Range<u64>,
    pub(crate) right: Vec<u8>,
}

impl Damage {
    /// Whether the device holds something else there.
    pub(crate) fn is_real(&self, disk: &Disk) -> bool {
        self.is_real_in(disk, self.range.clone())
    }

    /// The same for a part of it.
    pub(crate) fn is_real_in(&self, disk: &Disk, part: Range<u64>) -> bool {
        let from = (part.start - self.range.start) as usize;
        let mut held = vec![0; (part.end - part.start) as usize];
        disk.peek(part.start, &mut held);
        held != self.right[from..from + held.len()]
    }
}

impl Disk {
    /// Flips a bit of a logical block of the data area, for good. False if the device lies there already.
    pub(crate) fn flip(&self, at: u64, bit: u64) -> bool {
        let range = at..at + u64::from(self.places.block);
        if self.lies_in(&range) {
            return false;
        }
        let mut bytes = vec![0; u64::from(self.places.block) as usize];
        self.peek(at, &mut bytes);
        self.damage.borrow_mut().push(Damage { range, right: bytes.clone() });
        bytes[(bit / 8) as usize] ^= 1 << (bit % 8);
        self.put(self.places.data + at, &bytes);
        true
    }

    /// Where it lies.
    pub(crate) fn damage(&self) -> Vec<Damage> {
        self.damage.borrow().clone()
    }

    /// All is as it should be again.
    pub(crate) fn forget_damage(&self) {
        self.damage.borrow_mut().clear();
    }

    fn lies_in(&self, range: &Range<u64>) -> bool {
        self.damage.borrow().iter().any(|lie| lie.range.start < range.end && range.start < lie.range.end)
    }

    /// Where on the device a write to the data area really goes, and how many of its blocks.
    pub(super) fn led_astray(&self, astray: Astray, offset: u64, written: &Written) -> (u64, u64) {
        let (data, bytes) = (self.places.data, written.bytes());
        let mut right = vec![0; bytes as usize];
        written.copy_to(&mut right);
        let meant = offset - data..offset - data + bytes;
        self.damage.borrow_mut().push(Damage { range: meant, right });
        let unit = u64::from(self.places.block);
        let room = self.places.data_end - data - bytes;
        let at = self.world.random().below(room / unit + 1) * unit;
        if astray == Astray::Lost || self.lies_in(&(at..at + bytes)) {
            return (offset, 0);
        }
        let mut right = vec![0; bytes as usize];
        self.peek(at, &mut right);
        self.damage.borrow_mut().push(Damage { range: at..at + bytes, right });
        (data + at, bytes / unit)
    }
}
