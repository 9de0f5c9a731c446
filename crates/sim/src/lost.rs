//! Blocks that nobody can make: a place of a member cannot be read, and parity may not agree there. A client may get an error
//! then, of these stripes and no others. What is read is never wrong.

use std::collections::BTreeSet;
use std::ops::Range;
use std::rc::Rc;

use engine::members::MemberState;
use layout::md_superblock::Superblock;

use crate::array::{Array, Machine};
use crate::disk::Disk;
use crate::trace::Note;

/// Places of one member that cannot be read after a crash, at the most.
const PLACES_MAX: usize = 3;

impl Machine {
    /// Parity may not agree in some stripes. Those of which this member cannot read a place may be lost from here on: what
    /// was written in them may be more than what the place held.
    pub(crate) fn may_lose(&self, disk: &Disk, may_disagree: impl Fn(u64) -> bool) {
        let chunk_bytes = u64::from(self.geometry().chunk_bytes());
        if self.geometry().parity_chunks() == 0 {
            return; // another copy is as good
        }
        let faults = disk.faults.borrow();
        let places = faults.bad.iter().map(|block| block * u64::from(disk.places.block));
        let stripes = places.filter_map(|at| at.checked_sub(disk.places.data)).map(|at| at / chunk_bytes);
        self.excuses.lost.borrow_mut().extend(stripes.filter(|stripe| may_disagree(*stripe)));
    }

    /// Whether any of these blocks may be lost.
    pub(crate) fn is_lost(&self, blocks: &Range<u64>) -> bool {
        self.learn_what_was_given_up();
        let lost = self.excuses.lost.borrow();
        !lost.is_empty() && blocks.clone().any(|block| lost.contains(&self.stripe_of(block * self.unit())))
    }

    /// Whether a part of these bytes of some member may be known to be bad. That may be written at any time: nobody takes it
    /// for data before the log says that it was.
    pub(crate) fn may_be_bad(&self, bytes: Range<u64>) -> bool {
        self.learn_what_was_given_up();
        let lost = self.excuses.lost.borrow();
        let chunk_bytes = u64::from(self.geometry().chunk_bytes());
        match self.geometry().parity_chunks() {
            0 => !lost.is_empty(),
            _ => lost.range(bytes.start / chunk_bytes..bytes.end.div_ceil(chunk_bytes)).next().is_some(),
        }
    }

    /// What the engine recorded as bad is lost. That needs an excuse.
    fn learn_what_was_given_up(&self) {
        for (slot, bytes) in self.world.given_up.take() {
            let data = self.places_on_device().data;
            let (start, end) = (bytes.start - data, bytes.end - data);
            let parity = self.geometry().parity_chunks() > 0;
            let stripes: BTreeSet<u64> = match parity {
                true => [start / u64::from(self.geometry().chunk_bytes())].into(),
                false => (0..self.geometry().array_bytes())
                    .step_by(self.unit() as usize)
                    .filter(|at| {
                        self.places(*at).iter().any(|(of, at)| *of == slot && (start..end).contains(at))
                    })
                    .map(|at| self.stripe_of(at))
                    .collect(),
            };
            let lost = &mut *self.excuses.lost.borrow_mut();
            // Where a write failed half way, for want of space too, nobody can make a block.
            let excused = self.excuses.beyond.get() || self.excuses.full.get();
            if !excused && !stripes.is_subset(lost) {
                self.world.fail(format!(
                    "a block of member {slot} was given up within the level: {bytes:?} of its device"
                ));
            }
            lost.extend(stripes);
        }
    }

    /// After a crash a member in sync may not be able to read a few places, if the array can do without it. Its device.
    pub(crate) fn draw_bad_places(&self) -> Option<Rc<Disk>> {
        let random = self.world.random();
        let outcomes = self.outcomes();
        let outcome = outcomes.first()?;
        let slots: Vec<u32> = (0..self.geometry().members())
            .filter(|&slot| outcome.states[slot as usize] == MemberState::InSync)
            .filter(|&slot| {
                let out = |other: u32| other == slot || outcome.states[other as usize] != MemberState::InSync;
                self.geometry().survives(out) && outcome.disks[slot as usize].is_some()
            })
            .collect();
        if slots.is_empty() || !self.promises_redundancy() || !random.one_in(4) {
            return None;
        }
        let disk = outcome.disks[random.pick(&slots) as usize].clone().expect("a device");
        let mut bad: Vec<u64> = disk.faults.borrow().bad.iter().copied().take(PLACES_MAX).collect();
        let unit = u64::from(disk.places.block);
        while bad.is_empty() || (bad.len() < PLACES_MAX && random.one_in(2)) {
            bad.push(disk.places.data / unit + random.below(self.geometry().member_bytes() / unit));
        }
        disk.mend();
        self.world.note(Note::Words(format!("device {} cannot read {bad:?}", disk.number)));
        self.world.counts.borrow_mut().bad_places_after_crash += 1;
        disk.faults.borrow_mut().bad.extend(bad);
        self.may_lose(&disk, |_| true);
        Some(disk)
    }
}

/// Whether a block that nobody can make may end what makes the array whole: some member has no bad-block log.
pub(crate) fn may_end_rebuilds(array: &Array) -> bool {
    let has_log = |slot: u32| {
        let superblock = array.writer.superblocks().try_superblock(slot as usize).flatten();
        superblock.as_ref().is_none_or(|superblock: &Superblock| superblock.bad_block_log().is_some())
    };
    !array.machine.excuses.lost.borrow().is_empty() && !(0..array.machine.geometry().members()).all(has_log)
}
