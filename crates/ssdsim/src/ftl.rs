//! The page-level translation layer of one channel.
//!
//! A channel has one logical page for each stripe, so the stripe's number is the logical page. A write goes to a
//! fresh page of the plane it was given to; a collection moves pages within their plane. Hence a page never leaves its
//! channel, and a chip's share of the reads changes only by writes. Writes and moves fill blocks of their own
//! (`separate_streams`) or, as in SSDsim, the same ones.
//!
//! Invariants, checked by [`Ftl::self_check`]: every mapped page is mapped back; a block's valid count is the number
//! of its mapped pages; every block is free, active or full.

use std::collections::VecDeque;

use crate::device::Device;

/// No page: an unwritten logical page, or a physical page that holds nothing valid.
pub const NONE: u32 = u32::MAX;

/// What marks a block that is no candidate for collection (free or active).
const NOT_FULL: u8 = u8::MAX;

/// What one collection did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Collected {
    /// Pages moved, wear levelling's included.
    pub moves: u32,
    /// Blocks erased.
    pub erases: u32,
    /// Blocks collected for wear levelling.
    pub wear_moves: u32,
    /// Physical pages the moves read, for the read time of each.
    pub sources: Vec<(u32, u32)>,
}

/// Mapping, blocks and free space of one channel.
#[derive(Clone, Debug)]
pub struct Ftl {
    pages_per_block: u32,
    blocks_per_plane: u32,
    gc_free_blocks: usize,
    wear_gap: u32,
    /// Front of collections' moves: 1 where the device keeps streams apart, else that of the writes.
    moves_front: usize,
    /// Logical page to physical page.
    forward: Vec<u32>,
    /// Physical page to logical page.
    backward: Vec<u32>,
    /// Valid pages of each full block, `NOT_FULL` for the others: the array a victim is searched in.
    score: Vec<u8>,
    /// Valid pages of each block.
    valid: Vec<u8>,
    erases: Vec<u32>,
    planes: Vec<Plane>,
    scratch: Collected,
}

#[derive(Clone, Debug)]
struct Plane {
    /// Blocks being filled: by writes from outside and, where the device keeps them apart, by moves.
    fronts: [Front; 2],
    free: VecDeque<u32>,
    erases: u64,
}

#[derive(Clone, Copy, Debug)]
struct Front {
    block: u32,
    next_page: u32,
}

/// Front of writes from outside.
const WRITES: usize = 0;

impl Ftl {
    /// An empty channel of `device`.
    pub fn new(device: &Device) -> Ftl {
        let planes = device.channel_planes();
        let blocks = planes * device.blocks;
        let moves_front = usize::from(device.separate_streams);
        let plane = |p: usize| {
            let first = (p * device.blocks) as u32;
            let front = |i: usize| Front { block: first + i as u32, next_page: 0 };
            let free = (first + 1 + moves_front as u32..first + device.blocks as u32).collect();
            Plane { fronts: [front(WRITES), front(moves_front)], free, erases: 0 }
        };
        Ftl {
            pages_per_block: device.pages as u32,
            blocks_per_plane: device.blocks as u32,
            gc_free_blocks: device.gc_free_blocks(),
            wear_gap: device.wear_gap,
            moves_front,
            forward: vec![NONE; device.stripes()],
            backward: vec![NONE; device.channel_pages()],
            score: vec![NOT_FULL; blocks],
            valid: vec![0; blocks],
            erases: vec![0; blocks],
            planes: (0..planes).map(plane).collect(),
            scratch: Collected::default(),
        }
    }

    /// Writes logical page `logical` to a fresh page of `plane` and returns the physical page.
    #[inline]
    pub fn write(&mut self, logical: u32, plane: usize) -> u32 {
        let old = self.forward[logical as usize];
        if old != NONE {
            self.invalidate(old);
        }
        let page = self.allocate(plane, WRITES);
        self.forward[logical as usize] = page;
        self.backward[page as usize] = logical;
        page
    }

    /// Where logical page `logical` is, or [`NONE`].
    #[inline]
    pub fn locate(&self, logical: u32) -> u32 {
        self.forward[logical as usize]
    }

    /// Plane that physical page `page` lies in.
    #[inline]
    pub fn plane_of(&self, page: u32) -> usize {
        (page / (self.pages_per_block * self.blocks_per_plane)) as usize
    }

    /// How often the block of physical page `page` was erased.
    #[inline]
    pub fn erases_of(&self, page: u32) -> u32 {
        self.erases[(page / self.pages_per_block) as usize]
    }

    /// Whether `plane` has fewer free blocks than the threshold.
    #[inline]
    pub fn needs_collection(&self, plane: usize) -> bool {
        self.planes[plane].free.len() < self.gc_free_blocks
    }

    /// Collects one block of `plane`: greedily the one with the fewest valid pages, or, when wear is uneven, also the
    /// youngest one (static wear levelling). Goes on while the plane is down to two free
    /// blocks, one for each front.
    pub fn collect(&mut self, plane: usize) -> &Collected {
        self.scratch.moves = 0;
        self.scratch.erases = 0;
        self.scratch.wear_moves = 0;
        self.scratch.sources.clear();
        loop {
            let victim = self.greedy_victim(plane);
            self.empty_block(plane, victim);
            if self.planes[plane].free.len() > 2 {
                break;
            }
        }
        self.level_wear(plane);
        &self.scratch
    }

    /// Total erases on the channel.
    pub fn total_erases(&self) -> u64 {
        self.planes.iter().map(|plane| plane.erases).sum()
    }

    /// Smallest and largest erase count of a block.
    pub fn erase_spread(&self) -> (u32, u32) {
        let least = self.erases.iter().min().copied().unwrap_or(0);
        (least, self.erases.iter().max().copied().unwrap_or(0))
    }

    #[inline]
    fn invalidate(&mut self, page: u32) {
        self.backward[page as usize] = NONE;
        let block = (page / self.pages_per_block) as usize;
        self.valid[block] -= 1;
        if self.score[block] != NOT_FULL {
            self.score[block] -= 1;
        }
    }

    #[inline]
    fn allocate(&mut self, plane: usize, front: usize) -> u32 {
        let state = &mut self.planes[plane];
        let front = &mut state.fronts[front];
        if front.next_page == self.pages_per_block {
            let full = front.block as usize;
            self.score[full] = self.valid[full];
            front.block = state.free.pop_front().expect("a plane keeps free blocks: collect() sees to it");
            front.next_page = 0;
        }
        let page = front.block * self.pages_per_block + front.next_page;
        front.next_page += 1;
        self.valid[front.block as usize] += 1;
        page
    }

    fn greedy_victim(&self, plane: usize) -> u32 {
        let first = plane * self.blocks_per_plane as usize;
        let scores = &self.score[first..first + self.blocks_per_plane as usize];
        // Two passes over 512 bytes: both vectorise, a fused search for value and place does not.
        let least = *scores.iter().min().expect("a plane has blocks");
        assert!(u32::from(least) < self.pages_per_block, "no block of plane {plane} has an invalid page");
        let place = scores.iter().position(|&score| score == least).expect("the minimum is in the list");
        (first + place) as u32
    }

    /// Moves the valid pages of `victim` within `plane` and erases it.
    fn empty_block(&mut self, plane: usize, victim: u32) {
        self.score[victim as usize] = NOT_FULL;
        let erases = self.erases[victim as usize];
        let first = victim * self.pages_per_block;
        for page in first..first + self.pages_per_block {
            let logical = self.backward[page as usize];
            if logical == NONE {
                continue;
            }
            self.backward[page as usize] = NONE;
            let fresh = self.allocate(plane, self.moves_front);
            self.forward[logical as usize] = fresh;
            self.backward[fresh as usize] = logical;
            self.scratch.moves += 1;
            self.scratch.sources.push((page, erases));
        }
        self.valid[victim as usize] = 0;
        self.erases[victim as usize] += 1;
        self.scratch.erases += 1;
        self.planes[plane].erases += 1;
        self.planes[plane].free.push_back(victim);
    }

    /// Static wear levelling: cold data sits in blocks that are never erased, so the youngest full block is emptied
    /// into the free list's blocks once it lags the plane's mean by `wear_gap`. Looked at eight times in as many erases
    /// as the plane has blocks, so that its search costs nothing.
    fn level_wear(&mut self, plane: usize) {
        let blocks = u64::from(self.blocks_per_plane);
        let erases = self.planes[plane].erases;
        if !erases.is_multiple_of((blocks / 8).max(1)) || self.planes[plane].free.len() < 3 {
            return;
        }
        let first = plane as u32 * self.blocks_per_plane;
        let full = (first..first + self.blocks_per_plane).filter(|&b| self.score[b as usize] != NOT_FULL);
        let Some(young) = full.min_by_key(|&b| self.erases[b as usize]) else { return };
        if erases / blocks > u64::from(self.erases[young as usize].saturating_add(self.wear_gap)) {
            self.scratch.wear_moves += 1;
            self.empty_block(plane, young);
        }
    }

    /// Panics when an invariant of the file's head is broken. Costs time in proportion to the flash.
    pub fn self_check(&self) {
        let mut valid = vec![0u8; self.valid.len()];
        for (logical, &page) in self.forward.iter().enumerate() {
            if page != NONE {
                assert_eq!(self.backward[page as usize] as usize, logical, "a page lost its way back");
                valid[(page / self.pages_per_block) as usize] += 1;
            }
        }
        assert_eq!(valid, self.valid, "a block's valid count");
        let mapped_back = self.backward.iter().filter(|&&logical| logical != NONE).count();
        let mapped = self.forward.iter().filter(|&&page| page != NONE).count();
        assert_eq!(mapped_back, mapped, "a physical page claims a logical page that is elsewhere");
        for (p, plane) in self.planes.iter().enumerate() {
            let first = p * self.blocks_per_plane as usize;
            let full = self.score[first..first + self.blocks_per_plane as usize].iter();
            let full = full.filter(|&&score| score != NOT_FULL).count();
            let blocks = full + plane.free.len() + 1 + self.moves_front;
            assert_eq!(blocks, self.blocks_per_plane as usize, "a block of plane {p} is lost");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::{Rng, SeedableRng, rngs::SmallRng};

    /// Writes `n` logical pages drawn by `draw`, planes in turn, and returns (host writes, moves).
    fn overwrite(ftl: &mut Ftl, planes: usize, n: usize, mut draw: impl FnMut() -> u32) -> (u64, u64) {
        let mut moves = 0;
        for i in 0..n {
            let plane = i % planes;
            ftl.write(draw(), plane);
            if ftl.needs_collection(plane) {
                moves += u64::from(ftl.collect(plane).moves);
            }
        }
        (n as u64, moves)
    }

    fn filled(device: &Device) -> Ftl {
        let mut ftl = Ftl::new(device);
        let planes = device.channel_planes();
        for logical in 0..device.stripes() {
            ftl.write(logical as u32, logical % planes);
        }
        ftl
    }

    /// Write amplification of greedy collection under uniform random writes, in the limit of many blocks.
    ///
    /// Fluid argument: blocks enter at `b` valid pages and lose one at a rate proportional to what they have; each
    /// step takes one block of the lowest level m (or, a share q of them, of m - 1). Flow one through every level and
    /// a fixed sum of blocks give H_b - H_m + q/m = (b - m + q) / (b u), with u the valid share of the blocks in use.
    fn analytic_waf(pages: usize, utilisation: f64) -> f64 {
        let b = pages as f64;
        let harmonic = |n: usize| (1..=n).map(|i| 1.0 / i as f64).sum::<f64>();
        for m in 1..pages {
            let level = m as f64;
            let q = ((b - level) / (b * utilisation) - harmonic(pages) + harmonic(m))
                / (1.0 / level - 1.0 / (b * utilisation));
            if (0.0..1.0).contains(&q) {
                return b / (b - level + q);
            }
        }
        panic!("no level for utilisation {utilisation}");
    }

    #[test]
    fn greedy_waf_is_within_5_percent_of_the_analytic_value() {
        for (over_provision, separate_streams) in [(0.20, true), (0.25, true), (0.25, false), (0.35, false)] {
            let device = Device {
                separate_streams,
                chips: 1,
                planes: 1,
                multi_plane: 1,
                over_provision,
                wear_gap: u32::MAX,
                ..Device::table_ii(5)
            };
            let mut ftl = filled(&device);
            let mut rng = SmallRng::seed_from_u64(1);
            let logical = device.stripes() as u32;
            overwrite(&mut ftl, 1, 150_000, || rng.random_range(0..logical));
            let (host, moves) = overwrite(&mut ftl, 1, 300_000, || rng.random_range(0..logical));
            ftl.self_check();
            let waf = (host + moves) as f64 / host as f64;
            let in_use = (device.blocks - device.gc_free_blocks()) as f64 * device.pages as f64;
            let analytic = analytic_waf(device.pages, f64::from(logical) / in_use);
            assert!((waf / analytic - 1.0).abs() < 0.05, "op {over_provision}: {waf} against {analytic}");
        }
    }

    /// With one front, each block takes along the cold pages of the block before it, so a workload that rewrites
    /// little keeps the write amplification of one that rewrites all. Apart, it falls, yet slowly: greedy collection
    /// takes hot blocks before they have died.
    #[test]
    fn separate_streams_help_a_skewed_workload() {
        let waf = |separate_streams| {
            let device =
                Device { chips: 1, planes: 1, multi_plane: 1, separate_streams, ..Device::table_ii(5) };
            let mut ftl = filled(&device);
            let mut rng = SmallRng::seed_from_u64(4);
            let logical = device.stripes() as u32;
            overwrite(&mut ftl, 1, 60_000, || rng.random_range(0..logical));
            overwrite(&mut ftl, 1, 100_000, || rng.random_range(0..logical / 50));
            let (host, moves) = overwrite(&mut ftl, 1, 50_000, || rng.random_range(0..logical / 50));
            (host + moves) as f64 / host as f64
        };
        assert!(waf(true) < 0.9 * waf(false), "{} against {}", waf(true), waf(false));
    }

    #[test]
    fn no_page_is_lost_and_none_leaves_its_plane_by_collection() {
        let device = Device::table_ii(5).with_blocks(24);
        let mut ftl = filled(&device);
        let mut rng = SmallRng::seed_from_u64(2);
        let hot = device.stripes() as u32 / 10;
        overwrite(&mut ftl, device.channel_planes(), 100_000, || rng.random_range(0..hot));
        ftl.self_check();
        assert!((0..device.stripes() as u32).all(|logical| ftl.locate(logical) != NONE));
        let before: Vec<usize> = ftl.forward.iter().map(|&page| ftl.plane_of(page)).collect();
        ftl.collect(3);
        let after: Vec<usize> = ftl.forward.iter().map(|&page| ftl.plane_of(page)).collect();
        assert_eq!(before, after);
    }

    #[test]
    fn static_wear_levelling_bounds_the_spread() {
        let spread = |wear_gap| {
            let device = Device {
                chips: 1,
                planes: 1,
                multi_plane: 1,
                pages: 8,
                blocks: 64,
                separate_streams: true,
                wear_gap,
                ..Device::table_ii(5)
            };
            let mut ftl = filled(&device);
            let mut rng = SmallRng::seed_from_u64(3);
            overwrite(&mut ftl, 1, 100_000, || rng.random_range(0..16));
            ftl.self_check();
            let (least, most) = ftl.erase_spread();
            most - least
        };
        assert!(spread(u32::MAX) > 400, "without levelling cold blocks stay at zero");
        assert!(spread(16) < 160, "{}", spread(16));
    }
}
