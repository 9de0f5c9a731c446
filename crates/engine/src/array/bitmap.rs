//! The bitmap on the members, and its flusher.
//!
//! - A change of bits is written to every member in use, with FUA, before anyone relies on it (invariant 2). A member
//!   that takes no bitmap fails, as one that takes no superblock does, and that is on disk before the bits count.
//! - Before bits are cleared, what was written there is durable on **all** members, and the bitmap's superblock says
//!   `events_cleared`: a member that is older than that needs more than what is marked (md's rule, invariant 8). While a
//!   member is out of use no bit is cleared.
//! - The bitmap's superblock has the event count of the newest superblock or a later one: [`Bitmaps::follow`] runs
//!   before each round of superblocks. An older one means that another program wrote the array without keeping the bitmap.
//! - All that is written comes from one image, one round at a time.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use layout::md_bitmap::{Bitmap, PAGE_BYTES};
use layout::md_superblock::Superblock;
use layout::redo_log::BitmapExtent;
use layout::units::{DeviceOffset, Slot};

use super::turn::Turn;
use crate::buffer::{Gather, Slice};
use crate::device::{Device, DeviceError};
use crate::events::Event;
use crate::executor::join_all;
use crate::in_place::InPlace;
use crate::members::{Attached, Failing, MemberState, Members};

/// The bitmap of one array. Lives on one shard, beside the writer.
pub struct Bitmaps<D> {
    set: Rc<InPlace<D>>,
    image: RefCell<Bitmap>,
    /// Where the bitmap is on the member in each slot.
    places: RefCell<Vec<Option<BitmapPlace>>>,
    writing: Turn,
    /// Bits that are set in the image.
    set_count: Cell<u64>,
}

#[derive(Clone, Copy)]
struct BitmapPlace {
    start: DeviceOffset,
    /// All of the image is there: changes will do.
    is_whole: bool,
}

impl<D: Device> Bitmaps<D> {
    /// The bitmap `image` of the array behind `set`; superblocks in slot order, `whole` says on which of them the image
    /// is already.
    pub fn new(
        set: Rc<InPlace<D>>,
        image: Bitmap,
        superblocks: &[Option<Superblock>],
        whole: &[bool],
    ) -> Rc<Self> {
        let place = |(superblock, is_whole): (&Option<Superblock>, &bool)| {
            let start = DeviceOffset::of_sector(superblock.as_ref()?.bitmap_start()?);
            Some(BitmapPlace { start, is_whole: *is_whole })
        };
        let places = RefCell::new(superblocks.iter().zip(whole).map(place).collect());
        let set_count = Cell::new(image.set_bits().count() as u64);
        Rc::new(Bitmaps { set, image: RefCell::new(image), places, writing: Turn::default(), set_count })
    }

    /// The flusher: makes bits durable as they are wanted, all that are wanted at once. Ends when the intents'
    /// flusher is stopped.
    pub async fn run(&self) {
        while let Some(chunks) = self.set.shared.intent.bits_wanted().await {
            self.set_bits(&chunks).await;
        }
    }

    async fn set_bits(&self, chunks: &[u64]) {
        let turn = self.writing.take().await;
        let pages = self.change(chunks, true);
        // The first bits of a run may come before the first superblocks: none is in use then that lacks them.
        let written = if self.complete().await { self.write(&pages).await } else { Written::Nowhere };
        drop(turn);
        let shared = &self.set.shared;
        // A member that did not take them is out of use, just now or since a moment ago. The others say so before
        // anyone relies on the bits: md reads the bitmap of one member only, and it could be that one's.
        let durable = written != Written::Nowhere && shared.members.settled().await.is_ok();
        if durable {
            shared.intent.bits_written(chunks);
        } else {
            shared.intent.lost();
        }
    }

    /// Changes bits of the image; returns the pages they are in.
    fn change(&self, chunks: &[u64], on: bool) -> Vec<usize> {
        let mut image = self.image.borrow_mut();
        let mut pages = Vec::new();
        for &chunk in chunks {
            if image.is_set(chunk) != on {
                pages.push(image.set(chunk, on));
                let count = self.set_count.get();
                self.set_count.set(if on { count + 1 } else { count - 1 });
            }
        }
        pages.sort_unstable();
        pages.dedup();
        pages
    }

    /// Clears bits of chunks that were idle for two rounds. `events` is the newest event count on disk; with
    /// `keep_needed` a resync is still to come. Does nothing while a member is out of use, nor while the redo log is in
    /// force: a crash would have it make writes again in stripes that nothing marks.
    pub async fn clear_idle(&self, events: u64, keep_needed: bool) {
        let shared = &self.set.shared;
        let may_clear = || {
            // Writes want to be logged while a member is out of use.
            let is_logged = shared.members.want_log() || shared.redo.is_announced();
            // Parity that a resync could not make is bad in the logs before the bit goes.
            shared.consistency.suspects() == 0 && !is_logged && shared.members.is_settled()
        };
        if !may_clear() {
            return;
        }
        let _turn = self.writing.take().await;
        let chunks = shared.intent.take_idle_bits(keep_needed);
        if chunks.is_empty() {
            return;
        }
        let durable =
            self.set.flush_members().await.is_ok() && may_clear() && self.note_cleared(events).await;
        if !durable || !may_clear() {
            shared.intent.bits_written(&chunks); // they are set still
            return;
        }
        let pages = self.change(&chunks, false);
        // A page that is not written leaves bits set that need not be.
        let _: Written = self.write(&pages).await;
    }

    /// From here on a member that is older than `events` lacks more than what is marked.
    async fn note_cleared(&self, events: u64) -> bool {
        if self.image.borrow().superblock().events_cleared() >= events {
            return true;
        }
        self.image.borrow_mut().superblock_mut().set_events_cleared(events);
        self.write(&[0]).await == Written::Everywhere
    }

    /// The next superblocks have the event count `events`: the bitmap's are to be no older. Members that have no whole
    /// bitmap yet get one. False if a member that the array needs does not take it: a superblock that calls such a member in
    /// sync would have a resync rely on bits that it does not have (invariant 2).
    #[must_use]
    pub async fn follow(&self, events: u64) -> bool {
        let _turn = self.writing.take().await;
        self.image.borrow_mut().superblock_mut().set_events(events);
        self.complete().await && self.write(&[0]).await != Written::Nowhere
    }

    /// Writes the whole image where it is not; its superblock last, since that says that the rest can be believed. False if a
    /// member that the array needs does not take it: it stays in use without.
    async fn complete(&self) -> bool {
        let states = self.set.shared.members.states();
        let lacks = |slot: Slot, place: &Option<BitmapPlace>| {
            place.is_some_and(|place| !place.is_whole) && in_use(states[slot.index()])
        };
        let places = self.places.borrow().clone();
        let slots = Slot::all().zip(&places).filter(|(slot, place)| lacks(*slot, place));
        let slots: Vec<Slot> = slots.map(|(slot, _)| slot).collect();
        if slots.is_empty() {
            return true;
        }
        let pages: Vec<usize> = (1..self.image.borrow().pages()).chain([0]).collect();
        let mut everywhere = true;
        for slot in slots {
            let (device, mut is_whole) = (self.described(slot), true);
            for pages in pages.chunks(32) {
                let took = self.write_to(&[slot], pages).await;
                everywhere &= took.is_ok();
                is_whole = took.is_ok_and(|members| members > 0);
                if !is_whole {
                    break;
                }
            }
            // Another device may have taken the slot meanwhile, and has nothing of it.
            let is_same = device.zip(self.described(slot)).is_some_and(|(old, now)| Rc::ptr_eq(&old, &now));
            if let Some(place) = self.places.borrow_mut()[slot.index()].as_mut().filter(|_| is_same) {
                place.is_whole = is_whole;
            }
        }
        everywhere
    }

    /// Writes pages to every member in use that has the rest.
    async fn write(&self, pages: &[usize]) -> Written {
        let states = self.set.shared.members.states();
        let places = self.places.borrow().clone();
        let wanted = |slot: &Slot| {
            in_use(states[slot.index()]) && places[slot.index()].is_some_and(|place| place.is_whole)
        };
        let slots: Vec<Slot> = Slot::all().take(places.len()).filter(wanted).collect();
        if pages.is_empty() {
            return Written::Everywhere;
        }
        match self.write_to(&slots, pages).await {
            Ok(0) | Err(NeededMember) => Written::Nowhere,
            Ok(took) if took == slots.len() => Written::Everywhere,
            Ok(_) => Written::Somewhere,
        }
    }

    /// Returns how many of these members took all pages; the others have failed, and perhaps what was to replace them is in
    /// their slots by now.
    ///
    /// # Errors
    /// One that the array needs did not: it stays in use, without its bits (invariant 2).
    async fn write_to(&self, slots: &[Slot], pages: &[usize]) -> Result<usize, NeededMember> {
        let mut writes = Vec::new();
        for &slot in slots {
            writes.extend(pages.iter().filter_map(|&page| self.prepare(slot, page)));
        }
        let started: Vec<D::Done> = writes.iter().map(PageWrite::start).collect();
        let (mut failed, mut needed) = (Vec::new(), false);
        for (write, result) in writes.iter().zip(join_all(started).await) {
            let Err(error) = result else { continue };
            if failed.contains(&write.slot) {
                continue;
            }
            if let Some(failing) = self.retry(write, error).await {
                failed.push(write.slot);
                needed |= failing == Failing::Needed;
            }
        }
        if needed { Err(NeededMember) } else { Ok(slots.len() - failed.len()) }
    }

    fn described(&self, slot: Slot) -> Option<Rc<Attached<D>>> {
        self.set.devices().described(slot)
    }

    fn prepare(&self, slot: Slot, page: usize) -> Option<PageWrite<D>> {
        let (place, member) = (self.places.borrow()[slot.index()]?, self.described(slot)?);
        let block_bytes = member.device.info().logical_block_bytes as usize;
        let bytes = self.image.borrow().page(page, block_bytes);
        let offset = place.start + (page * PAGE_BYTES) as u64;
        Some(PageWrite { slot, offset, data: Slice::from_bytes(&bytes), member })
    }

    /// A second try, then the member fails: how. Another device that took the slot meanwhile has nothing to do with it.
    async fn retry(&self, write: &PageWrite<D>, error: DeviceError) -> Option<Failing> {
        let members = &self.set.shared.members;
        if !self.set.devices().is_in_slot(write.slot, &write.member) {
            return Some(Failing::Failed);
        }
        members.note_error(write.slot, &error);
        let again = if Members::worth_a_retry(&error) { write.start().await } else { Err(error) };
        let Err(error) = again else { return None };
        if !self.set.devices().is_in_slot(write.slot, &write.member) {
            return Some(Failing::Failed);
        }
        members.report(Event::MetadataError { member: write.slot, reason: format!("its bitmap: {error}") });
        Some(members.fail(write.slot, &format!("its bitmap cannot be written: {error}")))
    }

    /// Another member is in a slot, or none: it has no bitmap yet.
    pub fn set_superblock(&self, slot: Slot, superblock: Option<&Superblock>) {
        let start = superblock.and_then(Superblock::bitmap_start);
        let place = start.map(|start| BitmapPlace { start: DeviceOffset::of_sector(start), is_whole: false });
        self.places.borrow_mut()[slot.index()] = place;
    }

    /// Bits that are set, and bits in all.
    pub fn bits(&self) -> (u64, u64) {
        (self.set_count.get(), self.image.borrow().superblock().bits())
    }

    /// What the bitmap's superblock says.
    pub fn superblock(&self) -> layout::md_bitmap::BitmapSuper {
        self.image.borrow().superblock().clone()
    }

    /// How much of a member it takes.
    pub(super) fn extent(&self) -> BitmapExtent {
        BitmapExtent::Bytes(self.superblock().bitmap_bytes())
    }
}

/// Which members in use took what was written.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Written {
    Everywhere,
    /// The others have failed.
    Somewhere,
    /// Or not where the array needs it.
    Nowhere,
}

/// The array needs the member.
struct NeededMember;

fn in_use(state: MemberState) -> bool {
    matches!(state, MemberState::InSync | MemberState::Recovering)
}

struct PageWrite<D> {
    slot: Slot,
    offset: DeviceOffset,
    data: Slice,
    member: Rc<Attached<D>>,
}

impl<D: Device> PageWrite<D> {
    fn start(&self) -> D::Done {
        self.member.device.write(self.offset, Gather::from(self.data.clone()), true)
    }
}

#[cfg(test)]
mod tests {
    use layout::geometry::Level;
    use layout::md_bitmap::{BitmapSuper, Mapping};
    use layout::units::Sectors;

    use super::*;
    use crate::stripe::fake::{Fake, World, attached};
    use crate::stripe::intent::Intent;
    use crate::stripe::locks::Locks;
    use crate::stripe::redo::tend::tend;

    const OLD: Slot = Slot::new(1);

    /// An array whose members have room for a bitmap and hold none of it.
    fn bitmaps(world: &World) -> Rc<Bitmaps<Fake>> {
        let image = Bitmap::new(BitmapSuper::new([7; 16], Sectors(8), 4096), false);
        let place = BitmapPlace { start: DeviceOffset::new(4096), is_whole: false };
        Rc::new(Bitmaps {
            set: Rc::clone(&world.set),
            image: RefCell::new(image),
            places: RefCell::new(vec![Some(place); world.fakes.len()]),
            writing: Turn::default(),
            set_count: Cell::new(0),
        })
    }

    #[test]
    fn a_member_whose_replacement_takes_over_is_not_missed() {
        let world = World::new(Level::Raid5, 4);
        let new = Fake::new("new".into(), world.set.shared.geometry.member_bytes());
        world.set.devices().attach_replacement(OLD, Some(attached(&new)));
        assert!(world.set.shared.members.begin_replacement(OLD, 0, 0));
        world.fakes[OLD.index()].set_gone();
        let bitmaps = bitmaps(&world);
        assert!(world.run(async move { bitmaps.follow(1).await }), "the others have it");
        assert_eq!(world.state(OLD), MemberState::Recovering, "the replacement is in the slot");
    }

    /// A member was rebuilt, and bits were cleared before the redo log was over. Making its records again passes through what
    /// was never right, in a stripe that nothing marked any more.
    #[test]
    fn bits_stay_until_the_redo_log_is_over() {
        let intent = Intent::with_bitmap(Mapping::contiguous(4096), true, Locks::default());
        let world = World::logging_with(Level::Raid5, 4, intent);
        let bitmaps = bitmaps(&world);
        let flusher = Rc::clone(&bitmaps);
        world.set.executor.spawn(async move { flusher.run().await });
        world.write(0, &[1; 4096]).expect("written");
        let members = &world.set.shared.members;
        assert!(members.remove(Slot::FIRST) && members.begin_recovery(Slot::FIRST, 0));
        assert!(members.finish_recovery(Slot::FIRST));
        let clear = || {
            let own = Rc::clone(&bitmaps);
            world.run(async move {
                own.set.shared.members.settled().await.expect("superblocks call it in sync");
                own.clear_idle(1, false).await;
                own.clear_idle(1, false).await;
            });
            bitmaps.bits().0
        };
        assert!(world.set.shared.redo.is_announced());
        assert!(clear() > 0, "the log is in force, and bits are gone");
        world.set.executor.spawn(tend(Rc::clone(world.set.redo_log())));
        while world.set.shared.redo.is_announced() {
            world.run(async {});
        }
        assert_eq!(clear(), 0);
    }

    #[test]
    fn a_member_that_the_array_needs_has_to_take_it() {
        let world = World::new(Level::Raid5, 4);
        assert_eq!(world.set.shared.members.fail(Slot::new(3), "no more"), Failing::Failed);
        world.fakes[OLD.index()].set_gone();
        let bitmaps = bitmaps(&world);
        assert!(!world.run(async move { bitmaps.follow(1).await }));
        assert_eq!(world.state(OLD), MemberState::InSync);
    }
}
