//! The flusher's side of the write intent: which bits have to become durable, which may be cleared, which chunks wait for a
//! resync. The flusher itself, which writes bitmaps to members, is in `array/`.

use std::ops::Range;

use super::{Intent, Marks};

impl Intent {
    /// Whether there is a bitmap.
    pub fn has_bitmap(&self) -> bool {
        matches!(self.marks, Marks::Bitmap(_))
    }

    /// Loads bits that the members have set, each with whether its chunk has to be resynced.
    pub fn load_bits(&self, chunks: impl IntoIterator<Item = (u64, bool)>) {
        if let Marks::Bitmap(bits) = &self.marks {
            chunks.into_iter().for_each(|(chunk, needed)| bits.load(chunk, needed));
        }
    }

    /// Waits until writes want bits, and returns all wanted bits: one flush for all waiting writes (StRAID 4.5). None once
    /// [`Intent::stop_flusher`] was called, or without a bitmap.
    pub async fn bits_wanted(&self) -> Option<Vec<u64>> {
        let Marks::Bitmap(bits) = &self.marks else { return None };
        std::future::poll_fn(|context| bits.poll_wanted(context)).await
    }

    /// Ends the flusher once no bit is wanted.
    pub fn stop_flusher(&self) {
        if let Marks::Bitmap(bits) = &self.marks {
            bits.stop();
        }
    }

    /// The bits are durable on every member in use (invariant 2): writes that wait for them go ahead.
    pub fn bits_written(&self, chunks: &[u64]) {
        if let Marks::Bitmap(bits) = &self.marks {
            bits.written(chunks);
        }
        self.wake();
    }

    /// Takes the bits of chunks that had no write since the last call but one. Writes there wait from here on until
    /// [`Intent::bits_written`]; the caller makes earlier writes durable, then clears the bits on the members. With
    /// `keep_needed` chunks that wait for a resync keep their bits.
    pub fn take_idle_bits(&self, keep_needed: bool) -> Vec<u64> {
        match &self.marks {
            Marks::Bitmap(bits) => bits.take_idle(keep_needed),
            Marks::Whole(_) => Vec::new(),
        }
    }

    /// The first byte from `from_bytes` on, below `end_bytes`, in a chunk that waits for a resync; `from_bytes` itself
    /// without a bitmap.
    pub fn next_to_resync(&self, from_bytes: u64, end_bytes: u64) -> Option<u64> {
        self.next(from_bytes, end_bytes, false)
    }

    /// As [`Intent::next_to_resync`], for a re-added member, which lacks only marked chunks.
    pub fn next_marked(&self, from_bytes: u64, end_bytes: u64) -> Option<u64> {
        self.next(from_bytes, end_bytes, true)
    }

    fn next(&self, from_bytes: u64, end_bytes: u64, marked: bool) -> Option<u64> {
        let Marks::Bitmap(bits) = &self.marks else { return Some(from_bytes) };
        let shift = self.gate().shift();
        let chunk = bits.next(from_bytes >> shift, end_bytes.div_ceil(1 << shift), marked)?;
        Some(from_bytes.max(chunk << shift)).filter(|at| *at < end_bytes)
    }

    /// The members agree in this range; `is_end`: the range reaches the end of the resync. A chunk agrees once the resync
    /// reaches its end: the resync goes upward, and has done or skipped the part of the chunk below the range.
    pub fn resynced(&self, range: Range<u64>, is_end: bool) {
        let Marks::Bitmap(bits) = &self.marks else { return };
        let shift = self.gate().shift();
        let end = if is_end { range.end.div_ceil(1 << shift) } else { range.end >> shift };
        bits.synced(range.start >> shift..end);
    }

    /// The whole array agrees.
    pub fn resynced_all(&self) {
        if let Marks::Bitmap(bits) = &self.marks {
            bits.all_synced();
        }
    }

    /// Checks every word of the bitmap.
    ///
    /// # Panics
    /// If a word contradicts itself.
    pub fn self_check(&self) {
        if let Marks::Bitmap(bits) = &self.marks {
            bits.self_check();
        }
    }

    /// Memory that the words of the bitmap take now, in bytes.
    pub fn bitmap_memory_bytes(&self) -> u64 {
        match &self.marks {
            Marks::Bitmap(bits) => bits.memory_bytes(),
            Marks::Whole(_) => 0,
        }
    }
}
