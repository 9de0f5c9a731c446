//! The device of the paper's Table II: how much flash there is, how it is cut, and how long each step takes.
//!
//! Every time is in nanoseconds of simulated time. What Table II leaves open (over-provisioning, the bus, the share
//! of pages at each LDPC level, the DRAM) is chosen here and only here; `docs/ssdsim.md` says why.

use serde::{Deserialize, Serialize};

use crate::Error;

/// Bytes in a flash page, the unit of mapping and of a stripe's chunk (Table II).
pub const PAGE_BYTES: u64 = 8192;

/// LDPC soft-decision levels of a page, level 0 needing no retry (Table II: "7-level LDPC").
pub const LDPC_LEVELS: usize = 7;

/// Largest channel count: the paper's model is kept in 16-bit channel masks.
pub const CHANNELS_MAX: usize = 16;

/// Shape and timing of one RAID-enabled SSD.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Device {
    /// Channels, which is also the stripe's width: one chunk of each stripe lies on each channel.
    pub channels: usize,
    /// Chips on a channel. They work at the same time and share the channel's bus.
    pub chips: usize,
    /// Planes in a chip.
    pub planes: usize,
    /// Blocks in a plane.
    pub blocks: usize,
    /// Pages in a block.
    pub pages: usize,
    /// Programs on distinct planes of a chip that may share one program time (multi-plane write). 1 turns it off.
    pub multi_plane: usize,
    /// Share of the flash that holds no logical page.
    pub over_provision: f64,
    /// A plane with a smaller share of free blocks than this is collected (Table II: 10 %).
    pub gc_threshold: f64,
    /// Whether collections move pages to blocks of their own, as current devices do, instead of those that writes
    /// fill, as SSDsim does.
    pub separate_streams: bool,
    /// Least gap in erase counts between a plane's youngest full block and its mean that makes static wear
    /// levelling move the young block's cold data.
    pub wear_gap: u32,
    /// Times of the flash operations.
    pub timing: Timing,
    /// Write-buffer pages in DRAM. A write waits at the host while they are all taken.
    pub buffer_pages: usize,
}

/// Times of the steps of an operation, in nanoseconds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Timing {
    /// Read of a page at LDPC level 0.
    pub read_ns: u64,
    /// What each further retry adds to the one before it.
    pub retry_step_ns: u64,
    /// Ratio between the shares of pages at one LDPC level and at the level below it.
    pub ldpc_decay: f64,
    /// Program of a page, or of one page in each of several planes at once.
    pub write_ns: u64,
    /// Erase of a block.
    pub erase_ns: u64,
    /// Parity computation of one stripe.
    pub xor_ns: u64,
    /// Transfer of a page over the channel's bus.
    pub bus_ns: u64,
    /// Transfer of a page from or to the DRAM.
    pub dram_ns: u64,
}

impl Device {
    /// Table II for a stripe of `data` data chunks and one parity chunk.
    pub fn table_ii(data: usize) -> Device {
        Device {
            channels: data + 1,
            chips: 4,
            planes: 4,
            blocks: 512,
            pages: 64,
            multi_plane: 4,
            over_provision: 0.25,
            gc_threshold: 0.10,
            separate_streams: false,
            wear_gap: 64,
            timing: Timing {
                read_ns: 45_000,
                retry_step_ns: 24_000,
                ldpc_decay: 0.5,
                write_ns: 700_000,
                erase_ns: 3_500_000,
                xor_ns: 19_000,
                bus_ns: 20_000,
                dram_ns: 1_000,
            },
            buffer_pages: 8192,
        }
    }

    /// The same device with every plane cut to `blocks` blocks, for tests and quick looks.
    pub fn with_blocks(mut self, blocks: usize) -> Device {
        self.blocks = blocks;
        self
    }

    /// The same device with one operation at a time on a channel: what Eq. 4 to 7 assume of a channel.
    pub fn with_serial_channels(mut self) -> Device {
        self.planes *= self.chips;
        self.chips = 1;
        self.multi_plane = 1;
        self
    }

    /// Refuses a shape the simulator cannot hold.
    ///
    /// # Errors
    /// [`Error::Device`] with the reason.
    pub fn check(&self) -> Result<(), Error> {
        let free_needed = self.gc_threshold + 4.0 / self.blocks as f64;
        let bad = if !(3..=CHANNELS_MAX).contains(&self.channels) && self.channels != 1 {
            "channels must be 1 (no parity) or 3 to 16"
        } else if self.chips == 0 || self.planes == 0 || self.chips * self.planes > 256 {
            "a channel needs 1 to 256 planes"
        } else if !(4..=254).contains(&self.pages) {
            "pages in a block must be 4 to 254"
        } else if !(8..=65_536).contains(&self.blocks) {
            "blocks in a plane must be 8 to 65536"
        } else if self.over_provision <= free_needed || self.over_provision >= 1.0 {
            "over-provisioning must exceed the GC threshold by four blocks a plane and stay under 1"
        } else if self.channel_pages() > u32::MAX as usize / 2 {
            "too many pages in a channel"
        } else if self.multi_plane == 0 || self.multi_plane > self.planes {
            "multi-plane writes span 1 plane to all planes of a chip"
        } else if self.buffer_pages < 64 {
            "the write buffer needs 64 pages or more"
        } else {
            return Ok(());
        };
        Err(Error::Device(bad.to_string()))
    }

    /// Data chunks in a stripe. A device of one channel has no parity and is a stripe of one chunk.
    pub fn data_chunks(&self) -> usize {
        if self.channels == 1 { 1 } else { self.channels - 1 }
    }

    /// Planes on a channel.
    pub fn channel_planes(&self) -> usize {
        self.chips * self.planes
    }

    /// Pages in a plane.
    pub fn plane_pages(&self) -> usize {
        self.blocks * self.pages
    }

    /// Physical pages on a channel.
    pub fn channel_pages(&self) -> usize {
        self.channel_planes() * self.plane_pages()
    }

    /// Stripes on the device, each with one chunk on each channel.
    pub fn stripes(&self) -> usize {
        (self.channel_pages() as f64 * (1.0 - self.over_provision)) as usize
    }

    /// Logical pages the host sees.
    pub fn logical_pages(&self) -> usize {
        self.stripes() * self.data_chunks()
    }

    /// A plane with fewer free blocks than this is collected.
    pub fn gc_free_blocks(&self) -> usize {
        (self.blocks as f64 * self.gc_threshold).ceil() as usize
    }
}

impl Timing {
    /// Time of a read of a page at `level`.
    ///
    /// A read that ends at level k has tried levels 0 to k, the try at level j costing `read_ns + j * retry_step_ns`.
    /// That is the one reading of Table II in which 0.045 ms, 0.024 ms and seven levels give its 0.819 ms.
    pub fn read_at_level_ns(&self, level: usize) -> u64 {
        let tries = level as u64 + 1;
        tries * self.read_ns + self.retry_step_ns * (tries * (tries - 1) / 2)
    }

    /// Share of pages at each level: a geometric fall by `ldpc_decay`.
    pub fn level_shares(&self) -> [f64; LDPC_LEVELS] {
        let mut shares = [0.0; LDPC_LEVELS];
        for (level, share) in shares.iter_mut().enumerate() {
            *share = self.ldpc_decay.powi(level as i32);
        }
        let sum: f64 = shares.iter().sum();
        shares.map(|share| share / sum)
    }

    /// Mean read time over the shares of [`Timing::level_shares`].
    pub fn read_mean_ns(&self) -> f64 {
        let shares = self.level_shares();
        (0..LDPC_LEVELS).map(|level| shares[level] * self.read_at_level_ns(level) as f64).sum()
    }
}

/// Draws the read time of a physical page. The draw is a pure function of the page and of how often its block was
/// erased, so that a page keeps its level from program to erase and gets a new one when its block is used again.
#[derive(Clone, Debug)]
pub struct ReadTimes {
    seed: u64,
    by_byte: [u32; 1024],
}

impl ReadTimes {
    /// Table of draws for `timing`, different for each `seed`.
    pub fn new(timing: &Timing, seed: u64) -> ReadTimes {
        let shares = timing.level_shares();
        let mut by_byte = [0; 1024];
        let (mut level, mut upto) = (0, shares[0]);
        for (i, time) in by_byte.iter_mut().enumerate() {
            while (i as f64 + 0.5) / 1024.0 > upto && level + 1 < LDPC_LEVELS {
                level += 1;
                upto += shares[level];
            }
            *time = timing.read_at_level_ns(level) as u32;
        }
        ReadTimes { seed, by_byte }
    }

    /// Read time of physical page `page` of `channel`, whose block was erased `erases` times.
    #[inline]
    pub fn of(&self, channel: usize, page: u32, erases: u32) -> u64 {
        let key = (u64::from(page) << 32 | u64::from(erases)) ^ self.seed ^ (channel as u64) << 60;
        let mixed = key.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let mixed = (mixed ^ mixed >> 29).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        u64::from(self.by_byte[(mixed >> 54) as usize])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn read_times_span_table_ii() {
        let timing = Device::table_ii(5).timing;
        assert_eq!(timing.read_at_level_ns(0), 45_000);
        assert_eq!(timing.read_at_level_ns(LDPC_LEVELS - 1), 819_000);
    }

    #[test]
    fn drawn_read_times_follow_the_shares() {
        let timing = Device::table_ii(5).timing;
        let times = ReadTimes::new(&timing, 7);
        let n = 200_000u32;
        let sum: u64 = (0..n).map(|page| times.of(3, page, 2)).sum();
        let mean = sum as f64 / f64::from(n);
        assert!((mean / timing.read_mean_ns() - 1.0).abs() < 0.02, "{mean} {}", timing.read_mean_ns());
    }

    #[test]
    fn impossible_shapes_are_refused() {
        let good = Device::table_ii(5);
        assert!(good.check().is_ok());
        assert!(Device { over_provision: 0.1, ..good.clone() }.check().is_err());
        assert!(Device { channels: 2, ..good.clone() }.check().is_err());
        assert!(Device { multi_plane: 5, ..good }.check().is_err());
    }
}
