//! Where P, Q and data are in a stripe of RAID-4, 5 and 6, and in which order Q counts the data.
//!
//! The rules are those of `raid5_compute_sector`, `raid6_d0` and `raid6_idx_to_slot` in the kernel's
//! `drivers/md/raid5.c`; `tests/kernel.rs` holds them against what the kernel wrote.

use super::level::{Layout, Level};
use crate::units::Slot;

/// What a member holds in a stripe.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// The data chunk with this index.
    Data(u32),
    /// The XOR of the data.
    P,
    /// The Reed-Solomon syndrome of the data.
    Q,
}

/// P, Q and the order of data in one stripe. The rules count members round, so they are plain numbers in here.
#[derive(Clone, Copy)]
pub(super) struct ParityStripe {
    members: u32,
    p: u32,
    q: Option<u32>,
    order: DataOrder,
    ddf: bool,
}

/// How data chunks fill the members that hold no parity.
#[derive(Clone, Copy)]
enum DataOrder {
    /// In member order, skipping parity.
    Ascending,
    /// From member `first` on, around a ring of `ring` members.
    Around { first: u32, ring: u32 },
}

impl ParityStripe {
    /// The stripe with the given number. `level` is 4, 5 or 6; `layout` fits it.
    pub(super) fn new(level: Level, layout: Layout, members: u32, stripe: u64) -> Self {
        let last = members - 1;
        let ascending =
            |p: u32, q: Option<u32>| Self { members, p, q, order: DataOrder::Ascending, ddf: false };
        match level {
            Level::Raid6 => Self::new_raid6(layout, members, stripe),
            Level::Raid5 => {
                let up = turn(stripe, members);
                match layout {
                    Layout::LeftAsymmetric => ascending(last - up, None),
                    Layout::RightAsymmetric => ascending(up, None),
                    Layout::LeftSymmetric => ascending(last - up, None).data_after(last - up, members),
                    Layout::RightSymmetric => ascending(up, None).data_after(up, members),
                    Layout::ParityFirst => ascending(0, None),
                    _ => ascending(last, None),
                }
            }
            _ => ascending(last, None),
        }
    }

    fn new_raid6(layout: Layout, members: u32, stripe: u64) -> Self {
        let last = members - 1;
        let next = |member: u32| if member == last { 0 } else { member + 1 };
        let before = |member: u32| if member == 0 { last } else { member - 1 };
        let pair = |p: u32, q: u32| Self { members, p, q: Some(q), order: DataOrder::Ascending, ddf: false };
        let up = turn(stripe, members);
        // The `-6` layouts are RAID-5 on all members but the last.
        let up5 = turn(stripe, last);
        match layout {
            Layout::LeftAsymmetric => pair(last - up, next(last - up)),
            Layout::RightAsymmetric => pair(up, next(up)),
            Layout::LeftSymmetric => pair(last - up, next(last - up)).data_after(next(last - up), members),
            Layout::RightSymmetric => pair(up, next(up)).data_after(next(up), members),
            Layout::ParityFirst => pair(0, 1),
            Layout::DdfZeroRestart => pair(up, next(up)).counted_by_member(),
            Layout::DdfNRestart => {
                let p = last - next(up);
                pair(p, next(p)).counted_by_member()
            }
            Layout::DdfNContinue => {
                let p = last - up;
                pair(p, before(p)).data_after(p, members).counted_by_member()
            }
            Layout::LeftAsymmetric6 => pair(last - 1 - up5, last),
            Layout::RightAsymmetric6 => pair(up5, last),
            Layout::LeftSymmetric6 => pair(last - 1 - up5, last).data_after(last - 1 - up5, last),
            Layout::RightSymmetric6 => pair(up5, last).data_after(up5, last),
            Layout::ParityFirst6 => pair(0, last),
            _ => pair(last - 1, last),
        }
    }

    fn data_after(self, member: u32, ring: u32) -> Self {
        Self { order: DataOrder::Around { first: (member + 1) % ring, ring }, ..self }
    }

    fn counted_by_member(self) -> Self {
        Self { ddf: true, ..self }
    }

    pub(super) fn p(self) -> Slot {
        Slot::new(self.p)
    }

    pub(super) fn q(self) -> Option<Slot> {
        self.q.map(Slot::new)
    }

    pub(super) fn data_slot(self, data_index: u32) -> Slot {
        Slot::new(self.data_member(data_index))
    }

    fn data_member(self, data_index: u32) -> u32 {
        match self.order {
            DataOrder::Around { first, ring } => (first + data_index) % ring,
            DataOrder::Ascending => {
                let q = self.q.unwrap_or(u32::MAX);
                let (low, high) = (self.p.min(q), self.p.max(q));
                let after_low = data_index + u32::from(data_index >= low);
                after_low + u32::from(after_low >= high)
            }
        }
    }

    pub(super) fn role(self, slot: Slot) -> Role {
        let member = slot.get();
        if member == self.p {
            return Role::P;
        }
        if self.q == Some(member) {
            return Role::Q;
        }
        Role::Data(match self.order {
            DataOrder::Around { first, ring } => (member + ring - first) % ring,
            DataOrder::Ascending => {
                let q_below = self.q.is_some_and(|q| q < member);
                member - u32::from(self.p < member) - u32::from(q_below)
            }
        })
    }

    /// md counts from the member after Q and skips P; DDF counts every member from the first.
    pub(super) fn syndrome_index(self, data_index: u32) -> u32 {
        let member = self.data_member(data_index);
        let Some(q) = self.q else { return data_index };
        if self.ddf {
            return member;
        }
        let after_q = |member: u32| (member + self.members - q - 1) % self.members;
        after_q(member) - u32::from(after_q(self.p) < after_q(member))
    }
}

fn turn(stripe: u64, members: u32) -> u32 {
    (stripe % u64::from(members)) as u32
}
