//! The manager and the keeper live on shard 0; other threads send it closures.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc::Sender;

use engine::array::bitmap::Bitmaps;
use engine::array::generations::FoundGenerations;
use engine::array::keeper::{Keeper, Spare};
use engine::array::redo::{replay, take_doubts};
use engine::array::scrub::ScrubState;
use engine::array::start_bitmap::StartBitmap;
use engine::array::state::Manager;
use engine::volume::VolumeError;
use host::array::HostArray;
use host::device::{HostDevice, SharedDevice};
use host::ring::Ring;
use host::shard::{ShardGone, Shards};
use layout::md_superblock::Superblock;
use parking_lot::Mutex;
use uuid::Uuid;

use super::clock::now_unix_s;
use super::platform::{HostPlatform, Known, LOOK};
use crate::exit::ExitKind;
use crate::failure::Failure;
use crate::probe::redo;

pub(super) type HostManager = Manager<HostDevice, HostPlatform>;

thread_local! {
    /// The manager of the array that this process serves; on shard 0 only.
    static MANAGER: RefCell<Option<Rc<HostManager>>> = const { RefCell::new(None) };
}

pub(super) fn manager() -> Rc<HostManager> {
    MANAGER.with_borrow(|manager| Rc::clone(manager.as_ref().expect("shard 0 manages the array")))
}

/// The way to the manager.
pub(super) struct ArrayManager;

/// What assembly found: superblocks by slot, spares, and what may not agree.
pub(super) struct FoundArray {
    pub(super) superblocks: Vec<Option<Superblock>>,
    /// The newest event count.
    pub(super) events: u64,
    /// What it goes on from.
    pub(super) generations: FoundGenerations,
    pub(super) spares: Vec<(SharedDevice, Superblock)>,
    /// What is to replace the members in slots.
    pub(super) replacements: Vec<(u32, SharedDevice, Superblock)>,
    pub(super) redo: redo::Found,
    /// Writes are logged while members are missing.
    pub(super) keeps_redo_log: bool,
    pub(super) bitmap: Option<StartBitmap>,
}

impl ArrayManager {
    pub(super) fn start(
        shards: &Shards,
        array: &HostArray,
        found: FoundArray,
        (scrub, scrubs): (Option<ScrubState>, Sender<ScrubState>),
        known: &Arc<Mutex<Known>>,
        read_only: bool,
    ) -> Result<Self, Failure> {
        let (array, known) = (array.clone(), Arc::clone(known));
        let started = shards.run_on(0, move |context| async move {
            let set = Rc::clone(array.volume().stripes());
            let FoundArray { superblocks, events, generations, spares, replacements, redo, .. } = found;
            let (keeps_redo_log, bitmap) = (found.keeps_redo_log, found.bitmap);
            // Before anything is served or any superblock is written.
            replay(&set, &redo.repair).await?;
            take_doubts(&set, &redo.repair);
            let bitmap =
                bitmap.map(|start| Bitmaps::new(Rc::clone(&set), start.image, &superblocks, &start.whole));
            let (resync, now_s) = (redo.resync_from_bytes, Box::new(now_unix_s));
            let keeper = Keeper::new(Rc::clone(&set), superblocks, events, resync, now_s);
            keeper.keep_generations(&generations, Box::new(random_id));
            if keeps_redo_log {
                keeper.keep_redo_log(&redo.repair, &redo.bitmaps);
            } else if redo.repair.in_force && !read_only {
                // No new header will make it old: without other superblocks its writes would be made again, over later ones.
                keeper.void_redo_log();
            }
            for (device, superblock) in spares {
                let device = Rc::new(device.attach(&context.ring));
                keeper.spares().borrow_mut().push(Spare { superblock, device });
            }
            let platform = HostPlatform { array, ring: context.ring.clone(), known, scrubs };
            let manager = Manager::new(set, Rc::clone(&keeper), platform, scrub, read_only);
            MANAGER.set(Some(Rc::clone(&manager)));
            if let Some(bitmap) = bitmap {
                keeper.keep_bitmap(Rc::clone(&bitmap));
                context.executor.spawn(async move { bitmap.run().await });
                if !read_only {
                    context.executor.spawn(clear_bits(Rc::clone(&manager), context.ring.clone()));
                }
            }
            context.executor.spawn(async move { keeper.run().await });
            for (slot, device, superblock) in replacements {
                manager.resume_later(slot, Rc::new(device.attach(&context.ring)), superblock);
            }
            context.executor.spawn(async move { manager.run().await });
            Ok(())
        });
        let failed = |error: VolumeError| {
            let message = format!("what a crash left half done cannot be made good: {error}");
            Failure::new(ExitKind::IoError, message)
        };
        started.map_err(gone)?.map_err(failed)?;
        Ok(ArrayManager)
    }

    pub(super) fn ask<T: Send + 'static>(
        &self,
        shards: &Shards,
        question: impl FnOnce(Rc<HostManager>) -> T + Send + 'static,
    ) -> Result<T, Failure> {
        shards.run_on(0, move |_| async move { question(manager()) }).map_err(gone)
    }

    /// Ends the manager and writes clean superblocks, unless something is left to resync. Whether they are clean.
    pub(super) fn stop(&self, shards: &Shards, read_only: bool) -> Result<bool, Failure> {
        let stopped = shards.run_on(0, move |_| async move {
            let manager = manager();
            manager.stop().await;
            let stopped = match read_only {
                true => {
                    manager.keeper().stop_read_only();
                    Ok(())
                }
                false => manager.keeper().stop().await,
            };
            manager.keeper().stop_flusher();
            MANAGER.set(None);
            stopped.map(|()| manager.keeper().says_clean())
        });
        stopped.map_err(gone)?.map_err(|error| {
            let message = format!("the array could not be stopped cleanly: {error}");
            Failure::new(ExitKind::IoError, message).help("it starts with a resync next time")
        })
    }
}

/// Clears bits of idle chunks every few seconds, as the bitmap's superblock has it.
async fn clear_bits(manager: Rc<HostManager>, ring: Ring) {
    let sleep_s = manager.keeper().bitmap().map_or(0, |bitmap| bitmap.superblock().daemon_sleep_s());
    let looks = u64::from(sleep_s).clamp(1, 3600) * 1000 / LOOK.as_millis() as u64;
    let mut look = 0;
    while !manager.is_stopping() {
        ring.sleep(LOOK).await;
        look += 1;
        if look % looks == 0 {
            manager.keeper().clear_idle_bits().await;
        }
    }
}

/// The id of a generation.
fn random_id() -> u64 {
    let (high, low) = Uuid::new_v4().as_u64_pair();
    high ^ low // neither is random in all its bits
}

pub(super) fn gone(error: ShardGone) -> Failure {
    Failure::new(ExitKind::Internal, error.to_string())
}
