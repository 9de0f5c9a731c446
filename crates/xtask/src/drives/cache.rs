//! One drive in memory with a write cache that a power cut loses.
//!
//! Fault model: what was written before the last flush began, or with FUA, is kept. Each other write is kept or lost at
//! random, in any combination, one in ten of them torn at a block; how many are kept at all differs from cut to cut,
//! from none to all. Kept writes take effect in the order in which they were made.

use anyhow::{Result, bail};
use parking_lot::Mutex;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

/// Writes of a block are never torn, as NVMe drives promise for their logical block.
pub const BLOCK_BYTES: usize = 4096;
/// One unflushed write in this many is torn.
const TORN_IN: u32 = 10;

pub struct Drive {
    state: Mutex<State>,
}

struct State {
    /// What a read sees.
    seen: Vec<u8>,
    /// What survives for sure.
    stable: Vec<u8>,
    /// Writes since the last flush, in order.
    cached: Vec<Write>,
    /// What was chosen at a cut, for the next power-on.
    chosen: Option<Vec<u8>>,
}

struct Write {
    offset: usize,
    data: Vec<u8>,
    fua: bool,
}

impl Drive {
    pub fn new(bytes: usize) -> Self {
        let state = State { seen: vec![0; bytes], stable: vec![0; bytes], cached: Vec::new(), chosen: None };
        Self { state: Mutex::new(state) }
    }

    pub fn bytes(&self) -> usize {
        self.state.lock().seen.len()
    }

    /// `None` if the range is not all of the drive.
    pub fn read(&self, offset: usize, bytes: usize) -> Option<Vec<u8>> {
        self.state.lock().seen.get(offset..offset.checked_add(bytes)?).map(<[u8]>::to_vec)
    }

    /// `None` if the range is not all of the drive.
    pub fn write(&self, offset: usize, data: Vec<u8>, fua: bool) -> Option<()> {
        let state = &mut *self.state.lock();
        state.seen.get_mut(offset..offset.checked_add(data.len())?)?.copy_from_slice(&data);
        state.cached.push(Write { offset, data, fua });
        Some(())
    }

    pub fn flush(&self) {
        let state = &mut *self.state.lock();
        for Write { offset, data, .. } in std::mem::take(&mut state.cached) {
            state.stable[offset..offset + data.len()].copy_from_slice(&data);
        }
    }

    /// Chooses what is left after a cut now; how many writes are lost or torn, and how many might be.
    pub fn cut(&self, seed: u64) -> (usize, usize) {
        let state = &mut *self.state.lock();
        let mut random = StdRng::seed_from_u64(seed);
        let kept = [0.0, 0.1, 0.5, 0.9, 1.0][random.random_range(0..5)];
        let mut image = state.stable.clone();
        let (mut lost, mut unflushed) = (0, 0);
        for Write { offset, data, fua } in &state.cached {
            let torn = !fua && random.random_ratio(1, TORN_IN);
            let mut whole = true;
            for (piece, at) in data
                .chunks(if torn { BLOCK_BYTES } else { data.len().max(1) })
                .zip((0..).step_by(BLOCK_BYTES))
            {
                if *fua || random.random_bool(kept) {
                    image[offset + at..][..piece.len()].copy_from_slice(piece);
                } else {
                    whole = false;
                }
            }
            unflushed += usize::from(!fua);
            lost += usize::from(!whole);
        }
        state.chosen = Some(image);
        (lost, unflushed)
    }

    /// # Errors
    /// If there was no cut.
    pub fn power_on(&self) -> Result<()> {
        let state = &mut *self.state.lock();
        let Some(image) = state.chosen.take() else { bail!("there was no cut") };
        *state = State { seen: image.clone(), stable: image, cached: Vec::new(), chosen: None };
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(seed: u64, history: impl Fn(&Drive)) -> Vec<u8> {
        let drive = Drive::new(8 * BLOCK_BYTES);
        history(&drive);
        drive.cut(seed);
        drive.power_on().unwrap();
        let bytes = drive.read(0, 8 * BLOCK_BYTES).unwrap();
        bytes.chunks(BLOCK_BYTES).map(|block| block[0]).collect()
    }

    fn write(drive: &Drive, block: usize, blocks: usize, byte: u8, fua: bool) {
        drive.write(block * BLOCK_BYTES, vec![byte; blocks * BLOCK_BYTES], fua).unwrap();
    }

    #[test]
    fn flushed_and_fua_writes_stay_and_the_others_go_for_some_seed() {
        let images: Vec<Vec<u8>> = (0..400)
            .map(|seed| {
                after(seed, |drive| {
                    write(drive, 0, 1, 1, false);
                    drive.flush();
                    write(drive, 1, 1, 1, false);
                    write(drive, 1, 1, 2, true);
                    write(drive, 2, 6, 3, false);
                })
            })
            .collect();
        assert!(
            images.iter().all(|image| image[..2] == [1, 2]),
            "an older write never comes after a newer one"
        );
        assert!(images.iter().any(|image| image[2..] == [3; 6]));
        assert!(images.iter().any(|image| image[2..] == [0; 6]));
        assert!(images.iter().any(|image| image[2..].contains(&0) && image[2..].contains(&3)), "torn");
    }

    #[test]
    fn what_is_written_after_a_cut_is_gone_and_the_machine_sees_it_until_then() {
        let drive = Drive::new(2 * BLOCK_BYTES);
        write(&drive, 0, 1, 1, true);
        drive.cut(1);
        write(&drive, 0, 1, 2, true);
        drive.flush();
        assert_eq!(drive.read(0, 1), Some(vec![2]));
        drive.power_on().unwrap();
        assert_eq!(drive.read(0, 1), Some(vec![1]));
        assert!(drive.power_on().is_err());
    }

    #[test]
    fn nothing_beyond_the_end() {
        let drive = Drive::new(BLOCK_BYTES);
        assert_eq!(drive.read(BLOCK_BYTES, 1), None);
        assert_eq!(drive.write(1, vec![0; BLOCK_BYTES], false), None);
        assert_eq!(drive.read(usize::MAX, 2), None);
    }
}
