//! Which bits an array starts with, as a pure decision: the members' bitmaps in, one image out.
//!
//! md reads the bitmap of one member. We unite those of all that are as new as the superblocks: a crash may have left
//! a bit on some of them only, and a bit too many costs a resync of one chunk.

use layout::geometry::Geometry;
use layout::md_bitmap::{Bitmap, BitmapSuper, sync_sectors};
use layout::md_superblock::Superblock;
use layout::redo_log::StripeRange;

use crate::stripe::Shared;
use crate::stripe::intent::Intent;
use crate::stripe::intent::bits::CHUNKS_MAX;
use crate::stripe::locks::Locks;
use crate::stripe::ranges::join;

/// What was found on a member in sync: its bitmap, or why there is none that may be believed.
pub type ReadBitmap = Result<Bitmap, String>;

/// The bitmap that an array starts with.
#[derive(Clone, Debug)]
pub struct StartBitmap {
    /// What every member is to have.
    pub image: Bitmap,
    /// By slot: the member has just that already.
    pub whole: Vec<bool>,
    /// Why all bits count as set, or none can be believed; for people.
    pub distrust: Option<String>,
}

impl StartBitmap {
    /// Whether a member with this superblock, which was getting what is marked, may go on with that. One that is no newer
    /// than `events_cleared` may come from before this bitmap was made.
    pub fn lets_catch_up(&self, superblock: &Superblock) -> bool {
        let events_cleared = self.image.superblock().events_cleared();
        superblock.recovers_by_bitmap() && self.distrust.is_none() && superblock.events() > events_cleared
    }

    /// The stripes whose bits are set, ascending: after a crash all others agree. Where bits are spread, stripes between
    /// them count too.
    pub fn marked_stripes(&self, geometry: &Geometry) -> Vec<StripeRange> {
        let (superblock, chunk) = (self.image.superblock(), u64::from(geometry.chunk_bytes()));
        join(self.image.set_bits().map(|bit| {
            let bytes = superblock.range_of(bit);
            StripeRange { first: bytes.start / chunk, end: bytes.end.div_ceil(chunk) }
        }))
    }

    /// Says which stripes await a resync: those are in doubt once a member is missing.
    pub fn limit_doubts(&self, shared: &mut Shared) {
        if shared.geometry.parity_chunks() > 0 {
            shared.consistency.limit_resync_to(self.marked_stripes(&shared.geometry));
        }
    }

    /// The intents of the array: chunks whose bits are set are resynced if they end above `resync_from_bytes`.
    pub fn intent(&self, resync_from_bytes: Option<u64>, locks: Locks) -> Intent {
        let superblock = self.image.superblock();
        let intent = Intent::with_bitmap(superblock.mapping(), false, locks);
        let is_needed = |bit| resync_from_bytes.is_some_and(|from| superblock.range_of(bit).end > from);
        intent.load_bits(self.image.set_bits().map(|bit| (bit, is_needed(bit))));
        intent
    }
}

/// Unites the bitmaps of the members in sync, by slot. `events` is the newest event count; parity or copies may not
/// agree from `resync_from_bytes` on. `room_bytes` is what every member has for a bitmap.
///
/// None if there is no room for any bitmap, or more bits than [`CHUNKS_MAX`]: then the array is one without. md finds its
/// bitmap out of date afterwards.
pub fn decide(
    found: &[Option<ReadBitmap>],
    geometry: &Geometry,
    set_uuid: [u8; 16],
    events: u64,
    resync_from_bytes: Option<u64>,
    room_bytes: u64,
) -> Option<StartBitmap> {
    let mut distrust = Vec::new();
    let mut image: Option<Bitmap> = None;
    for (slot, found) in found.iter().enumerate() {
        match found.as_ref().map(|found| judge(found, geometry, events)) {
            Some(Ok(bitmap)) => match &mut image {
                None => image = Some(bitmap.clone()),
                Some(image) if image.has_shape_of(bitmap) => unite(image, bitmap),
                Some(_) => distrust.push(format!("that of member {slot} has another shape")),
            },
            Some(Err(reason)) => distrust.push(format!("that of member {slot} {reason}")),
            None => {}
        }
    }
    let whole = |image: &Bitmap| {
        let is_it = |found: &Option<ReadBitmap>| matches!(found, Some(Ok(bitmap)) if same(bitmap, image));
        found.iter().map(is_it).collect()
    };
    if let Some(image) = image {
        if image.superblock().bits() > CHUNKS_MAX {
            return None;
        }
        let whole = whole(&image);
        return Some(StartBitmap { image, whole, distrust: None });
    }
    // Nothing to be believed: as md does, all bits count as set, and a member that is out of use lacks more than they say.
    let like =
        found.iter().flatten().flatten().find(|bitmap| bitmap.superblock().check_geometry(geometry).is_ok());
    let mut superblock = match like {
        Some(bitmap) => bitmap.superblock().clone(),
        None => {
            let least = BitmapSuper::least_chunk_bytes(sync_sectors(geometry), room_bytes)?;
            let chunk_bytes = least.max(layout::md_bitmap::CHUNK_BYTES_DEFAULT);
            BitmapSuper::new(set_uuid, sync_sectors(geometry), chunk_bytes)
        }
    };
    superblock.set_state(layout::md_bitmap::BitmapState::default());
    superblock.set_events(events);
    superblock.set_events_cleared(events);
    let image = Bitmap::new(superblock, resync_from_bytes.is_some());
    Some(StartBitmap { image, whole: vec![false; found.len()], distrust: Some(distrust.join("; ")) })
}

fn judge<'a>(found: &'a ReadBitmap, geometry: &Geometry, events: u64) -> Result<&'a Bitmap, String> {
    let bitmap = found.as_ref().map_err(|reason| format!("cannot be believed: {reason}"))?;
    let superblock = bitmap.superblock();
    superblock.check_geometry(geometry).map_err(|error| format!("does not fit the array: {error}"))?;
    if superblock.is_stale(events) {
        let own = superblock.events();
        return Err(format!("is out of date: it is of event {own}, the array of event {events}"));
    }
    Ok(bitmap)
}

/// Bits of both; of two event counts the higher, which is the more careful one in each case.
fn unite(image: &mut Bitmap, other: &Bitmap) {
    image.unite(other);
    let superblock = image.superblock_mut();
    superblock.set_events(superblock.events().max(other.superblock().events()));
    superblock.set_events_cleared(superblock.events_cleared().max(other.superblock().events_cleared()));
}

fn same(one: &Bitmap, other: &Bitmap) -> bool {
    one.has_shape_of(other) && (0..one.pages()).all(|page| one.page(page, 512) == other.page(page, 512))
}

#[cfg(test)]
mod tests {
    use super::*;
    use layout::geometry::{Layout, Level};
    use layout::units::Sectors;

    fn geometry() -> Geometry {
        Geometry::new(Level::Raid5, Layout::default_for(Level::Raid5), 3, 64 << 10, 16 << 20).unwrap()
    }

    fn bitmap(events: u64, cleared: u64, bits: &[u64]) -> Bitmap {
        let mut superblock = BitmapSuper::new([7; 16], Sectors(32 << 10), 1 << 20);
        superblock.set_events(events);
        superblock.set_events_cleared(cleared);
        let mut bitmap = Bitmap::new(superblock, false);
        bits.iter().for_each(|bit| _ = bitmap.set(*bit, true));
        bitmap
    }

    fn decided(found: &[Option<ReadBitmap>], resync: Option<u64>) -> StartBitmap {
        decide(found, &geometry(), [7; 16], 10, resync, 4096).expect("a bitmap")
    }

    #[test]
    fn bits_of_all_members_count() {
        let found = [Some(Ok(bitmap(10, 4, &[1]))), None, Some(Ok(bitmap(11, 6, &[1, 9])))];
        let start = decided(&found, Some(0));
        assert_eq!(start.image.set_bits().collect::<Vec<_>>(), [1, 9]);
        assert_eq!((start.image.superblock().events(), start.image.superblock().events_cleared()), (11, 6));
        assert_eq!(start.whole, [false, false, true], "the first lacks a bit, the second has none");
    }

    #[test]
    fn what_is_out_of_date_is_left_out_and_alone_counts_as_all_set() {
        let (old, new) = (bitmap(9, 4, &[3]), bitmap(10, 4, &[5]));
        let start = decided(&[Some(Ok(old.clone())), Some(Ok(new))], Some(0));
        assert_eq!(start.image.set_bits().collect::<Vec<_>>(), [5]);
        let start = decided(&[Some(Ok(old.clone())), Some(Err("its magic is wrong".into()))], Some(0));
        assert_eq!(start.image.set_bits().count(), 16);
        assert_eq!(start.image.superblock().events_cleared(), 10, "a member that was away needs everything");
        assert!(start.distrust.is_some_and(|why| why.contains("event 9") && why.contains("magic")));
        let clean = decided(&[Some(Ok(old))], None);
        assert_eq!(clean.image.set_bits().count(), 0, "nothing disagrees in a clean array");
    }

    #[test]
    fn a_bitmap_that_was_never_there_is_made() {
        let start = decided(&[Some(Err("it is gone".into())), None], Some(0));
        assert_eq!(start.image.superblock().chunk_bytes(), 64 << 20);
        assert_eq!(start.image.superblock().bits(), 1);
        assert!(decide(&[], &geometry(), [7; 16], 10, None, 0).is_none(), "there is no room");
    }

    /// Four stripes a bit, but for the last bits, which end earlier than those before them.
    #[test]
    fn all_stripes_of_spread_bits_are_marked() {
        let geometry =
            Geometry::new(Level::Raid5, Layout::default_for(Level::Raid5), 3, 64 << 10, 250 << 16).unwrap();
        let superblock = BitmapSuper::new([7; 16], Sectors(250 << 7), 1 << 18).spread(64 << 10);
        assert_eq!((superblock.bits(), superblock.check_geometry(&geometry)), (63, Ok(())));
        let mapping = superblock.mapping();
        for bits in [vec![2], vec![0, 62], vec![0, 61, 62]] {
            let mut image = Bitmap::new(superblock.clone(), false);
            bits.iter().for_each(|bit| _ = image.set(*bit, true));
            let start = StartBitmap { image, whole: Vec::new(), distrust: None };
            let marked = start.marked_stripes(&geometry);
            for stripe in (0..250).filter(|stripe| bits.contains(&mapping.bit(*stripe))) {
                let holds = |range: &StripeRange| range.first <= stripe && stripe < range.end;
                assert!(marked.iter().any(holds), "{stripe} of {bits:?}: {marked:?}");
            }
            let intent = start.intent(Some(0), Locks::default());
            let next = intent.next_to_resync(0, 250 << 16).expect("a bit is set");
            assert_eq!(next, bits[0] * (64 << 10));
        }
    }

    #[test]
    fn a_spread_bitmap_of_another_chunk_does_not_fit() {
        let superblock = BitmapSuper::new([7; 16], Sectors(32 << 10), 1 << 18).spread(32 << 10);
        assert!(superblock.check_geometry(&geometry()).is_err());
        let mirror = Geometry::new(Level::Raid1, Layout::Unset, 2, 0, 16 << 20).unwrap();
        let superblock = BitmapSuper::new([7; 16], Sectors(32 << 10), 1 << 18).spread(64 << 10);
        assert!(superblock.check_geometry(&mirror).is_err());
    }
}
