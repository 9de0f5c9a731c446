//! The volumes of an array, one on each shard, whichever engine serves it: exports find theirs here.

use std::any::Any;
use std::cell::RefCell;
use std::collections::HashMap;
use std::marker::PhantomData;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use engine::array::volume::{ArrayVolume, VolumeMode};
use engine::volume::Engine;

use crate::shard::{Handle, ShardContext, ShardGone};
use crate::shard_writes::ShardWrites;

thread_local! {
    /// The volumes of this shard, each an `ArrayVolume`, by the number of its array.
    static VOLUMES: RefCell<HashMap<u64, Rc<dyn Any>>> = RefCell::new(HashMap::new());
}

static NEXT_NUMBER: AtomicU64 = AtomicU64::new(0);

/// The volumes of an array over an engine `E`. Clones are handles to the same ones.
pub struct Volumes<E> {
    number: u64,
    shards: Handle,
    mode: Arc<VolumeMode>,
    writes: Arc<ShardWrites>,
    /// Unit of addressing of the array.
    logical_block_bytes: u32,
    engine: PhantomData<fn() -> E>,
}

impl<E> Clone for Volumes<E> {
    fn clone(&self) -> Self {
        Volumes {
            number: self.number,
            shards: self.shards.clone(),
            mode: Arc::clone(&self.mode),
            writes: Arc::clone(&self.writes),
            logical_block_bytes: self.logical_block_bytes,
            engine: PhantomData,
        }
    }
}

impl<E: Engine> Volumes<E> {
    /// None yet.
    pub fn new(shards: Handle, mode: Arc<VolumeMode>, logical_block_bytes: u32) -> Self {
        let number = NEXT_NUMBER.fetch_add(1, Ordering::Relaxed);
        let writes = Arc::new(ShardWrites::new(shards.count()));
        Volumes { number, shards, mode, writes, logical_block_bytes, engine: PhantomData }
    }

    /// What stands for this array among those of the shards.
    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// Sets one up on every shard, over the engine that `make` makes there, given the shard's number in the array. Not for use on
    /// a shard.
    ///
    /// # Errors
    /// A shard has ended.
    pub fn set_up(
        &self,
        make: impl Fn(&ShardContext, usize) -> Rc<E> + Clone + Send + 'static,
    ) -> Result<(), ShardGone> {
        for shard in 0..self.shards.count() {
            let (volumes, make) = (self.clone(), make.clone());
            self.shards.run_on(shard, move |context| async move {
                let (engine, mode) = (make(&context, shard), Arc::clone(&volumes.mode));
                let volume = ArrayVolume::new(engine, volumes.logical_block_bytes, mode);
                VOLUMES.with_borrow_mut(|all| all.insert(volumes.number, Rc::new(volume)));
            })?;
        }
        Ok(())
    }

    /// The array's volume on the calling shard.
    ///
    /// # Panics
    /// If the caller is not a task of one of the array's shards, or the array has been closed.
    pub fn here(&self) -> Rc<ArrayVolume<E>> {
        self.here_if_open().expect("an array of this shard")
    }

    /// The array's volume on the calling shard, or None if the array has been closed.
    pub(crate) fn here_if_open(&self) -> Option<Rc<ArrayVolume<E>>> {
        let volume = VOLUMES.with_borrow(|all| all.get(&self.number).map(Rc::clone))?;
        Some(volume.downcast().expect("a number stands for one array"))
    }

    /// The writes that each shard has in flight.
    pub(crate) fn writes(&self) -> Arc<ShardWrites> {
        Arc::clone(&self.writes)
    }

    /// The shards.
    pub fn shards(&self) -> &Handle {
        &self.shards
    }

    /// Whether the array is read-only or stopping, for all shards.
    pub fn mode(&self) -> &Arc<VolumeMode> {
        &self.mode
    }

    /// Takes the array off every shard. Not for use on a shard.
    pub fn close(&self) {
        for shard in 0..self.shards.count() {
            let number = self.number;
            let removed = self.shards.run_on(shard, move |_| async move {
                let volume = VOLUMES.with_borrow_mut(|all| all.remove(&number));
                drop(volume);
            });
            if let Err(error) = removed {
                tracing::debug!(%error, "a shard ended before its array was taken off");
            }
        }
    }
}
