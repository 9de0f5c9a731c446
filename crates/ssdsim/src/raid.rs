//! Where a stripe's chunks lie: one page on each channel, parity in turn (left-symmetric RAID-5 over channels).

use crate::device::Device;

/// A set of channels, bit c for channel c.
pub type ChannelSet = u16;

/// Stripe geometry of a device.
#[derive(Clone, Copy, Debug)]
pub struct Layout {
    channels: u32,
    data: u32,
}

/// The channels that each routine pre-reads from, for one update of one stripe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PreReads {
    /// Θ_RMW: the written data channels and the parity channel.
    pub rmw: ChannelSet,
    /// Θ_RCW: the data channels that are not written.
    pub rcw: ChannelSet,
}

impl Layout {
    /// Layout of `device`.
    pub fn new(device: &Device) -> Layout {
        Layout { channels: device.channels as u32, data: device.data_chunks() as u32 }
    }

    /// Stripe and data chunk of logical page `page`.
    #[inline]
    pub fn place(self, page: u32) -> (u32, u32) {
        (page / self.data, page % self.data)
    }

    /// Data chunks in a stripe.
    pub fn data(self) -> u32 {
        self.data
    }

    /// Whether stripes have parity at all.
    pub fn has_parity(self) -> bool {
        self.channels > self.data
    }

    /// Channel of the parity of `stripe`.
    #[inline]
    pub fn parity_channel(self, stripe: u32) -> u32 {
        self.channels - 1 - stripe % self.channels
    }

    /// Channel of data chunk `chunk` of `stripe`.
    #[inline]
    pub fn data_channel(self, stripe: u32, chunk: u32) -> u32 {
        if !self.has_parity() {
            return 0;
        }
        (self.parity_channel(stripe) + 1 + chunk) % self.channels
    }

    /// Eq. 1 and 2: the two routines split the stripe's channels between them.
    #[inline]
    pub fn pre_reads(self, stripe: u32, written: ChannelSet) -> PreReads {
        let stripe_set = ((1u32 << self.channels) - 1) as ChannelSet;
        let rmw = written | 1 << self.parity_channel(stripe);
        PreReads { rmw, rcw: stripe_set & !rmw }
    }
}

/// The channels in `set`, lowest first.
pub fn channels_in(mut set: ChannelSet) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        if set == 0 {
            return None;
        }
        let channel = set.trailing_zeros() as usize;
        set &= set - 1;
        Some(channel)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_stripe_uses_each_channel_once_and_parity_takes_turns() {
        let layout = Layout::new(&Device::table_ii(5));
        let mut parity = [0; 6];
        for stripe in 0..60 {
            let mut set = 1u16 << layout.parity_channel(stripe);
            (0..5).for_each(|chunk| set |= 1 << layout.data_channel(stripe, chunk));
            assert_eq!(set, 0b11_1111);
            parity[layout.parity_channel(stripe) as usize] += 1;
        }
        assert_eq!(parity, [10; 6]);
    }

    #[test]
    fn equations_1_and_2_hold_for_every_update() {
        let layout = Layout::new(&Device::table_ii(7));
        for stripe in 0..8 {
            for chunks in 1u32..128 {
                let written = (0..7).filter(|chunk| chunks >> chunk & 1 == 1);
                let written = written.fold(0, |set, chunk| set | 1 << layout.data_channel(stripe, chunk));
                let PreReads { rmw, rcw } = layout.pre_reads(stripe, written);
                assert_eq!((rmw | rcw, rmw & rcw), (0xFF, 0));
                assert_eq!(rmw.count_ones(), chunks.count_ones() + 1);
            }
        }
    }

    #[test]
    fn consecutive_pages_lie_on_distinct_channels() {
        let layout = Layout::new(&Device::table_ii(5));
        let channels: Vec<u32> = (0..12)
            .map(|page| {
                let (stripe, chunk) = layout.place(page);
                layout.data_channel(stripe, chunk)
            })
            .collect();
        assert_eq!(channels, [0, 1, 2, 3, 4, 5, 0, 1, 2, 3, 4, 5]);
    }
}
