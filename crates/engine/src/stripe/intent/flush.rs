//! The flusher's side of the intents: which bits have to become durable, which may be cleared, which chunks wait for a
//! resync. Who writes them where is not known here.

use std::ops::Range;

use super::{Intent, Marks};

impl Intent {
    /// Whether there is a bitmap.
    pub fn has_bitmap(&self) -> bool {
        matches!(self.marks, Marks::Bitmap(_))
    }

    /// Bits that the members have already; `needed`: their chunks have to be resynced.
    pub fn load_bits(&self, chunks: impl IntoIterator<Item = (u64, bool)>) {
        if let Marks::Bitmap(bits) = &self.marks {
            chunks.into_iter().for_each(|(chunk, needed)| bits.load(chunk, needed));
        }
    }

    /// Waits for writes that want bits, and returns all those bits: one flush for all who wait (StRAID 4.5). None once
    /// [`Intent::stop_flusher`] was called, or without a bitmap.
    pub async fn bits_wanted(&self) -> Option<Vec<u64>> {
        let Marks::Bitmap(bits) = &self.marks else { return None };
        std::future::poll_fn(|context| bits.poll_wanted(context)).await
    }

    /// Ends the flusher when nothing is wanted any more.
    pub fn stop_flusher(&self) {
        if let Marks::Bitmap(bits) = &self.marks {
            bits.stop();
        }
    }

    /// Invariant 2: the bits are durable on every member in use, so writes that wait for them go ahead.
    pub fn bits_written(&self, chunks: &[u64]) {
        if let Marks::Bitmap(bits) = &self.marks {
            bits.written(chunks);
        }
        self.wake();
    }

    /// Bits of chunks that had no write since the last call but one. They are off limits for writes from here on until
    /// [`Intent::bits_written`]; the caller makes what was written there durable, then clears the bits. With
    /// `keep_needed` chunks that wait for a resync keep their bits.
    pub fn take_idle_bits(&self, keep_needed: bool) -> Vec<u64> {
        match &self.marks {
            Marks::Bitmap(bits) => bits.take_idle(keep_needed),
            Marks::Whole(_) => Vec::new(),
        }
    }

    /// The first byte from `from_bytes` on that may not agree, where nothing below a marked chunk is looked at:
    /// `from_bytes` itself without a bitmap. None if there is none below `end_bytes`.
    pub fn next_to_resync(&self, from_bytes: u64, end_bytes: u64) -> Option<u64> {
        self.next(from_bytes, end_bytes, false)
    }

    /// The same for a member that was away and lacks only what is marked.
    pub fn next_marked(&self, from_bytes: u64, end_bytes: u64) -> Option<u64> {
        self.next(from_bytes, end_bytes, true)
    }

    fn next(&self, from_bytes: u64, end_bytes: u64, marked: bool) -> Option<u64> {
        let Marks::Bitmap(bits) = &self.marks else { return Some(from_bytes) };
        let shift = self.gate().shift();
        let chunk = bits.next(from_bytes >> shift, end_bytes.div_ceil(1 << shift), marked)?;
        Some(from_bytes.max(chunk << shift)).filter(|at| *at < end_bytes)
    }

    /// The members agree in this range; `is_end`: it goes to the end of what is resynced. A chunk counts when its end
    /// is reached: what lies before it in the order of a resync was done, or agreed already.
    pub fn resynced(&self, range: Range<u64>, is_end: bool) {
        let Marks::Bitmap(bits) = &self.marks else { return };
        let shift = self.gate().shift();
        let end = if is_end { range.end.div_ceil(1 << shift) } else { range.end >> shift };
        bits.synced(range.start >> shift..end);
    }

    /// All of the array agrees.
    pub fn resynced_all(&self) {
        if let Marks::Bitmap(bits) = &self.marks {
            bits.all_synced();
        }
    }

    /// Checks what the bookkeeping says of itself.
    ///
    /// # Panics
    /// If it contradicts itself.
    pub fn self_check(&self) {
        if let Marks::Bitmap(bits) = &self.marks {
            bits.self_check();
        }
    }

    /// Memory that the bookkeeping of the bitmap takes now, in bytes.
    pub fn bitmap_memory_bytes(&self) -> u64 {
        match &self.marks {
            Marks::Bitmap(bits) => bits.memory_bytes(),
            Marks::Whole(_) => 0,
        }
    }
}
