//! Where an array's bytes are on its members, for every level and layout of md.
//!
//! Invariants, for every geometry that [`Geometry::new`] accepts:
//! - every chunk of every member holds exactly one of: a data chunk, P, Q, a copy, or nothing (the unused tail);
//! - [`Geometry::array_offset`] undoes [`Geometry::locate`];
//! - no sum or product below overflows: the array ends below 2^63 bytes.
//!
//! Member offsets count from the start of the member's data area, not of its device.

mod error;
mod level;
mod limits;
mod mirror;
mod names;
mod parity;
mod raid0_zones;

use crate::units::{ArrayOffset, MemberOffset, SECTOR_BYTES, Slot, Stripe};
use limits::{check_chunk, check_members, raid0_member_share};
use mirror::Raid10;
use parity::ParityStripe;

pub use error::GeometryError;
pub use level::{FarSets, Layout, Level, Raid10Layout};
pub use limits::{CHUNK_BYTES_MAX, CHUNK_BYTES_MIN, MEMBERS_MAX, RAID6_MEMBERS_MAX};
pub use mirror::{Copies, CopyPlace};
pub use parity::Role;
pub use raid0_zones::Raid0Zones;

/// The stripe and chunk of an array offset. At RAID-1 and 10 a stripe is one chunk with its copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Place {
    /// The stripe.
    pub stripe: Stripe,
    /// The data chunk's index in the stripe, from 0.
    pub data_index: u32,
    /// Bytes from the start of the chunk.
    pub chunk_offset: u32,
}

/// The geometry of an array. Where the members of a RAID-0 differ in size, what it says of a place in the array holds only
/// as far as the smallest reaches: [`Raid0Zones::locate`] knows the rest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Geometry {
    level: Level,
    layout: Layout,
    members: u32,
    /// 0 for a RAID-1 without chunks.
    chunk_bytes: u32,
    /// Of the largest member.
    member_bytes: u64,
    array_bytes: u64,
    data_chunks: u32,
    /// Present for RAID-10.
    raid10: Option<Raid10>,
}

impl Geometry {
    /// An array of `members` members, each with a data area of `member_bytes`. As in md, the data area is rounded down
    /// to whole chunks. mdadm makes a RAID-1 with a chunk of 0; its data areas are rounded down to sectors.
    ///
    /// # Errors
    /// [`GeometryError`] names the rule of md, or the limit ([`CHUNK_BYTES_MAX`], [`MEMBERS_MAX`]), that is broken.
    pub fn new(
        level: Level,
        layout: Layout,
        members: u32,
        chunk_bytes: u32,
        member_bytes: u64,
    ) -> Result<Self, GeometryError> {
        if !layout.fits(level) {
            return Err(GeometryError::UnknownLayout { level, layout: layout.to_string() });
        }
        check_members(level, layout, members)?;
        check_chunk(level, chunk_bytes)?;
        let unit = if chunk_bytes == 0 { SECTOR_BYTES } else { u64::from(chunk_bytes) };
        let member_bytes_used = member_bytes / unit * unit;
        if member_bytes_used == 0 {
            return Err(GeometryError::MemberTooSmall { member_bytes, chunk_bytes });
        }
        let raid10 = match layout {
            Layout::Raid10(layout) => Some(Raid10::new(layout, members, member_bytes_used / unit)?),
            _ => None,
        };
        if raid10.is_some_and(|raid10| raid10.array_chunks() == 0) {
            return Err(GeometryError::MemberTooSmall { member_bytes, chunk_bytes });
        }
        // The sum over all members, parity and copies included, bounds every address computed below.
        let raw_bytes = member_bytes_used.checked_mul(u64::from(members)).ok_or(GeometryError::TooLarge)?;
        if raw_bytes > i64::MAX as u64 {
            return Err(GeometryError::TooLarge);
        }
        let data_chunks = if level.is_striped() { members - level.parity_chunks() } else { 1 };
        let array_bytes = match (level, raid10) {
            (Level::Raid1, _) => member_bytes_used,
            (_, Some(raid10)) => raid10.array_chunks() * u64::from(chunk_bytes),
            (Level::Raid0, _) => raid0_member_share(member_bytes_used, chunk_bytes) * u64::from(members),
            _ => member_bytes_used * u64::from(data_chunks),
        };
        let member_bytes = member_bytes_used;
        Ok(Self { level, layout, members, chunk_bytes, member_bytes, array_bytes, data_chunks, raid10 })
    }

    /// The level.
    #[must_use]
    pub const fn level(&self) -> Level {
        self.level
    }

    /// The layout.
    #[must_use]
    pub const fn layout(&self) -> Layout {
        self.layout
    }

    /// Members, spares not counted.
    #[must_use]
    pub const fn members(&self) -> u32 {
        self.members
    }

    /// The members' slots.
    pub fn slots(&self) -> impl DoubleEndedIterator<Item = Slot> + ExactSizeIterator + Clone + use<> {
        Slot::first(self.members)
    }

    /// Whether the array has this slot.
    #[must_use]
    pub const fn has(&self, slot: Slot) -> bool {
        slot.get() < self.members
    }

    /// Bytes in a chunk; 0 for a RAID-1 without chunks.
    #[must_use]
    pub const fn chunk_bytes(&self) -> u32 {
        self.chunk_bytes
    }

    /// Bytes of each member's data area that the array uses: whole chunks. Of the largest, where the members of a RAID-0 differ.
    #[must_use]
    pub const fn member_bytes(&self) -> u64 {
        self.member_bytes
    }

    /// Data chunks in a stripe; 1 at RAID-1 and 10, where a stripe is one chunk with its copies.
    #[must_use]
    pub const fn data_chunks(&self) -> u32 {
        self.data_chunks
    }

    /// Parity chunks in a stripe: 0, 1 or 2.
    #[must_use]
    pub const fn parity_chunks(&self) -> u32 {
        self.level.parity_chunks()
    }

    /// How many members may fail, in any combination, without loss of data.
    #[must_use]
    pub fn losses_survived(&self) -> u32 {
        match (self.level, self.raid10) {
            (Level::Raid1, _) => self.members - 1,
            (_, Some(raid10)) => raid10.copies_count() - 1,
            _ => self.parity_chunks(),
        }
    }

    /// Whether all data can be read while the members for which `failed` is true are missing. At RAID-10 this depends
    /// on which members they are, not only on how many.
    #[must_use]
    pub fn survives(&self, failed: impl Fn(Slot) -> bool) -> bool {
        match self.raid10 {
            Some(raid10) => raid10.survives(failed),
            None => {
                let failures = self.slots().filter(|slot| failed(*slot)).count();
                failures as u64 <= u64::from(self.losses_survived())
            }
        }
    }

    /// Bytes that a user of the array sees.
    #[must_use]
    pub const fn array_bytes(&self) -> u64 {
        self.array_bytes
    }

    /// Stripes in the array. The last stripe may be short in a RAID-1 without chunks, and in a RAID-0 whose chunk is
    /// not a power of two.
    #[must_use]
    pub fn stripes(&self) -> u64 {
        self.array_bytes().div_ceil(self.stripe_bytes())
    }

    /// Data bytes in a stripe. For a RAID-1 without chunks this is the smallest chunk.
    #[must_use]
    pub fn stripe_bytes(&self) -> u64 {
        self.unit_bytes() * u64::from(self.data_chunks)
    }

    /// The optimal I/O size, as md reports it: large requests should be a multiple of it. It is a stripe; at RAID-10 a
    /// row of different chunks; 0 at RAID-1, where any size is as good.
    #[must_use]
    pub fn optimal_io_bytes(&self) -> u64 {
        match self.layout {
            Layout::Raid10(layout) if self.members.is_multiple_of(u32::from(layout.near)) => {
                u64::from(self.chunk_bytes) * u64::from(self.members / u32::from(layout.near))
            }
            Layout::Raid10(_) => u64::from(self.chunk_bytes) * u64::from(self.members),
            _ if self.level == Level::Raid1 => 0,
            _ => self.stripe_bytes(),
        }
    }

    /// The stripe, the data chunk and the offset in that chunk of a byte of the array. `array_offset` is not checked
    /// against [`Geometry::array_bytes`]: callers check a request once, where it enters.
    #[must_use]
    pub fn locate(&self, array_offset: ArrayOffset) -> Place {
        let (array_offset, unit) = (array_offset.get(), self.unit_bytes());
        let chunk = array_offset / unit;
        let data_chunks = u64::from(self.data_chunks);
        Place {
            stripe: Stripe::new(chunk / data_chunks),
            data_index: (chunk % data_chunks) as u32,
            chunk_offset: (array_offset % unit) as u32,
        }
    }

    /// The array offset of a place: the inverse of [`Geometry::locate`].
    #[must_use]
    pub fn array_offset(&self, stripe: Stripe, data_index: u32, chunk_offset: u32) -> ArrayOffset {
        debug_assert!(data_index < self.data_chunks && u64::from(chunk_offset) < self.unit_bytes());
        let chunk = stripe.get() * u64::from(self.data_chunks) + u64::from(data_index);
        ArrayOffset::new(chunk * self.unit_bytes() + u64::from(chunk_offset))
    }

    /// The member that holds a data chunk.
    ///
    /// # Panics
    /// At RAID-1 and 10, whose chunks have copies (see [`Geometry::copies`]), or if `data_index` is not below
    /// [`Geometry::data_chunks`].
    #[must_use]
    pub fn data_member(&self, stripe: Stripe, data_index: u32) -> Slot {
        self.parity_of_data_chunk(stripe, data_index)
            .map_or(Slot::new(data_index), |parity| parity.data_slot(data_index))
    }

    /// The members that a read-modify-write of a data chunk touches: those of the chunk, of P, and at RAID-6 of Q.
    ///
    /// # Panics
    /// At a level without P.
    #[must_use]
    pub fn members_of_update(&self, stripe: Stripe, data_index: u32) -> (Slot, Slot, Option<Slot>) {
        let parity = self.parity_stripe(stripe).expect("a level with P");
        (parity.data_slot(data_index), parity.p(), parity.q())
    }

    /// The member that holds P, if the level has it.
    #[must_use]
    pub fn p_member(&self, stripe: Stripe) -> Option<Slot> {
        if self.parity_chunks() == 0 {
            return None;
        }
        self.parity_stripe(stripe).map(ParityStripe::p)
    }

    /// The member that holds Q, if the level has it.
    #[must_use]
    pub fn q_member(&self, stripe: Stripe) -> Option<Slot> {
        if self.parity_chunks() < 2 {
            return None;
        }
        self.parity_stripe(stripe).and_then(ParityStripe::q)
    }

    /// What a member holds in a stripe.
    ///
    /// # Panics
    /// At RAID-1 and 10, or if the array has no such slot.
    #[must_use]
    pub fn role(&self, stripe: Stripe, slot: Slot) -> Role {
        assert!(self.has(slot), "member {slot} of {}", self.members);
        match self.parity_stripe(stripe) {
            Some(parity) => parity.role(slot),
            None => Role::Data(slot.get()),
        }
    }

    /// The exponent of a data chunk in Q: `Q = Σ g^index · data`. md numbers the data chunks from the member after Q
    /// on. The DDF layouts use the member's own number, so their exponents have gaps where P and Q are. Without Q it is
    /// the data index.
    ///
    /// # Panics
    /// At RAID-1 and 10, or if `data_index` is not below [`Geometry::data_chunks`].
    #[must_use]
    pub fn syndrome_index(&self, stripe: Stripe, data_index: u32) -> u32 {
        self.parity_of_data_chunk(stripe, data_index)
            .map_or(data_index, |parity| parity.syndrome_index(data_index))
    }

    /// One more than the largest possible [`Geometry::syndrome_index`]: the number of data chunks, or of members for
    /// the DDF layouts. Q takes an index that no data chunk has for a chunk of zeroes.
    #[must_use]
    pub fn syndrome_width(&self) -> u32 {
        match self.layout {
            Layout::DdfZeroRestart | Layout::DdfNRestart | Layout::DdfNContinue => self.members,
            _ => self.data_chunks,
        }
    }

    /// Where the stripe's chunks begin in each member's data area.
    ///
    /// # Panics
    /// At RAID-1 and 10.
    #[must_use]
    pub fn member_offset(&self, stripe: Stripe) -> MemberOffset {
        self.assert_striped();
        MemberOffset::new(stripe.get() * u64::from(self.chunk_bytes))
    }

    /// The stripe whose chunks are at a byte of the members' data areas: undoes [`Geometry::member_offset`].
    ///
    /// # Panics
    /// At RAID-1 and 10.
    #[must_use]
    pub fn stripe_at(&self, member_offset: MemberOffset) -> Stripe {
        self.assert_striped();
        Stripe::new(member_offset.get() / u64::from(self.chunk_bytes))
    }

    /// The copies of a run that begins at `array_offset`: the longest run of at most `len` bytes, inside the array,
    /// that is contiguous in every copy.
    ///
    /// # Panics
    /// At levels other than RAID-1 and 10, or if `array_offset` is beyond the end of the array.
    #[must_use]
    pub fn copies(&self, array_offset: ArrayOffset, len: u64) -> Copies {
        let array_offset = array_offset.get();
        assert!(!self.level.is_striped(), "{} has no copies", self.level);
        assert!(array_offset < self.array_bytes(), "offset {array_offset} is beyond the end of the array");
        let len = len.min(self.array_bytes() - array_offset);
        let Some(raid10) = self.raid10 else {
            let place = |member| CopyPlace { member, member_offset: MemberOffset::new(array_offset) };
            return Copies { places: self.slots().map(place).collect(), len };
        };
        let chunk_bytes = u64::from(self.chunk_bytes);
        let (chunk, chunk_offset) = (array_offset / chunk_bytes, array_offset % chunk_bytes);
        let places = mirror::places_at(&raid10, chunk, chunk_bytes, chunk_offset);
        let run = if raid10.is_whole_mirror() { len } else { len.min(chunk_bytes - chunk_offset) };
        Copies { places, len: run }
    }

    /// The stripe's parity, to ask it about a data chunk. `None` at RAID-0, where both the slot and the index are that of
    /// the data chunk.
    fn parity_of_data_chunk(&self, stripe: Stripe, data_index: u32) -> Option<ParityStripe> {
        assert!(data_index < self.data_chunks, "data chunk {data_index} of {}", self.data_chunks);
        self.parity_stripe(stripe)
    }

    fn unit_bytes(&self) -> u64 {
        u64::from(if self.chunk_bytes == 0 { CHUNK_BYTES_MIN } else { self.chunk_bytes })
    }

    /// `None` for RAID-0.
    fn parity_stripe(&self, stripe: Stripe) -> Option<ParityStripe> {
        self.assert_striped();
        (self.level != Level::Raid0).then(|| ParityStripe::new(self.level, self.layout, self.members, stripe))
    }

    fn assert_striped(&self) {
        assert!(self.level.is_striped(), "{} has copies, not stripes", self.level);
    }
}
