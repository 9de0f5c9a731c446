//! A member with a volatile cache: a power cut leaves any part of what was not made durable, block by block.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use engine::buffer::{Buffer, Gather};
use engine::device::{Device, DeviceError, DeviceErrorKind, DeviceInfo};

use crate::world::World;
use layout::units::DeviceOffset;

const BLOCK: usize = 512;

/// Contents that outlive the process.
pub struct Drive {
    info: DeviceInfo,
    state: RefCell<State>,
    world: Rc<World>,
}

struct State {
    durable: Vec<u8>,
    /// Blocks written since, in order: number, contents, operation.
    cached: Vec<(usize, Vec<u8>, u64)>,
    /// Operations that returned.
    returned: HashMap<u64, bool>,
    operations: u64,
    dead: bool,
}

impl Drive {
    pub fn new(world: &Rc<World>, name: String, bytes: u64) -> Rc<Drive> {
        let info =
            DeviceInfo { size_bytes: bytes, logical_block_bytes: BLOCK as u32, discard_zeroes: true, name };
        let state = State {
            durable: vec![0; bytes as usize],
            cached: Vec::new(),
            returned: HashMap::new(),
            operations: 0,
            dead: false,
        };
        Rc::new(Drive { info, state: RefCell::new(state), world: Rc::clone(world) })
    }

    pub fn kill(&self) {
        self.state.borrow_mut().dead = true;
    }

    pub fn is_dead(&self) -> bool {
        self.state.borrow().dead
    }

    /// What is there, as a read finds it.
    pub fn peek(&self, offset: DeviceOffset, bytes: usize) -> Vec<u8> {
        let state = self.state.borrow();
        let (start, end) = (offset.get() as usize, offset.get() as usize + bytes);
        let mut found = state.durable[start..end].to_vec();
        for (block, contents, _) in &state.cached {
            let at = block * BLOCK;
            if at >= start && at < end {
                found[at - start..at - start + BLOCK].copy_from_slice(contents);
            }
        }
        found
    }

    /// Writes that need no cache: what was there before the test.
    pub fn poke(&self, offset: DeviceOffset, contents: &[u8]) {
        let at = offset.get() as usize;
        self.state.borrow_mut().durable[at..at + contents.len()].copy_from_slice(contents);
    }

    /// The power is gone: each block in the cache survives or not.
    pub fn cut(&self) {
        let state = &mut *self.state.borrow_mut();
        let percent = self.world.below(5) * 25;
        for (block, contents, _) in std::mem::take(&mut state.cached) {
            if self.world.below(100) < percent {
                state.durable[block * BLOCK..(block + 1) * BLOCK].copy_from_slice(&contents);
            }
        }
        state.returned.clear();
    }

    fn begin(&self) -> u64 {
        let mut state = self.state.borrow_mut();
        state.operations += 1;
        state.operations
    }

    fn failure(&self, operation: &'static str, offset: DeviceOffset, bytes: u64) -> Result<(), DeviceError> {
        let kind = DeviceErrorKind::Gone;
        match self.is_dead() {
            true => Err(DeviceError { kind, operation, offset, bytes, errno: 0 }),
            false => Ok(()),
        }
    }

    fn store(
        self: &Rc<Self>,
        offset: DeviceOffset,
        contents: &[u8],
        fua: bool,
    ) -> Pending<Result<(), DeviceError>> {
        assert!(offset.is_aligned(BLOCK as u64) && contents.len().is_multiple_of(BLOCK), "aligned");
        let operation = self.begin();
        let bytes = contents.len() as u64;
        if !self.is_dead() {
            let state = &mut *self.state.borrow_mut();
            for (i, block) in contents.chunks(BLOCK).enumerate() {
                state.cached.push((offset.get() as usize / BLOCK + i, block.to_vec(), operation));
            }
        }
        let disk = Rc::clone(self);
        self.world.later(move || {
            disk.failure("write", offset, bytes)?;
            let mut state = disk.state.borrow_mut();
            state.returned.insert(operation, fua);
            if fua {
                let State { durable, cached, .. } = &mut *state;
                // The last contents of these blocks up to this operation; older ones in the cache are gone.
                let mine: BTreeMap<usize, Vec<u8>> = cached
                    .iter()
                    .filter(|(.., of)| *of == operation)
                    .map(|(block, contents, _)| (*block, contents.clone()))
                    .collect();
                cached.retain(|(block, _, of)| *of > operation || !mine.contains_key(block));
                for (block, contents) in mine {
                    durable[block * BLOCK..(block + 1) * BLOCK].copy_from_slice(&contents);
                }
            }
            Ok(())
        })
    }
}

/// One shard's way to a disk.
pub struct TestDevice(pub Rc<Drive>);

impl Device for TestDevice {
    type Read = Pending<(Buffer, Result<(), DeviceError>)>;
    type Done = Pending<Result<(), DeviceError>>;

    fn info(&self) -> &DeviceInfo {
        &self.0.info
    }

    fn read(&self, offset: DeviceOffset, mut buffer: Buffer) -> Self::Read {
        let disk = Rc::clone(&self.0);
        self.0.world.later(move || {
            let bytes = buffer.len();
            buffer.bytes_mut().copy_from_slice(&disk.peek(offset, bytes));
            let result = disk.failure("read", offset, bytes as u64);
            (buffer, result)
        })
    }

    fn write(&self, offset: DeviceOffset, data: Gather, fua: bool) -> Self::Done {
        let mut contents = vec![0; data.len()];
        data.copy_to(&mut contents);
        self.0.store(offset, &contents, fua)
    }

    fn flush(&self) -> Self::Done {
        let disk = Rc::clone(&self.0);
        let returned: Vec<u64> = disk.state.borrow().returned.keys().copied().collect();
        self.0.world.later(move || {
            disk.failure("flush", DeviceOffset::START, 0)?;
            let State { durable, cached, .. } = &mut *disk.state.borrow_mut();
            for (block, contents, _) in cached.iter().filter(|(.., of)| returned.contains(of)) {
                durable[block * BLOCK..(block + 1) * BLOCK].copy_from_slice(contents);
            }
            cached.retain(|(.., of)| !returned.contains(of));
            Ok(())
        })
    }

    fn discard(&self, offset: DeviceOffset, bytes: u64) -> Self::Done {
        self.0.store(offset, &vec![0; bytes as usize], false)
    }

    fn write_zeroes(&self, offset: DeviceOffset, bytes: u64, _may_unmap: bool) -> Self::Done {
        self.0.store(offset, &vec![0; bytes as usize], false)
    }
}

/// A value to come.
pub struct Pending<T>(Rc<RefCell<(Option<T>, Option<Waker>)>>);

impl<T> Pending<T> {
    pub fn new() -> (Self, impl FnOnce(T)) {
        let slot = Rc::new(RefCell::new((None, None::<Waker>)));
        let filled = Rc::clone(&slot);
        let fill = move |value| {
            let waker = {
                let mut slot = filled.borrow_mut();
                slot.0 = Some(value);
                slot.1.take()
            };
            waker.into_iter().for_each(Waker::wake);
        };
        (Pending(slot), fill)
    }
}

impl<T> Future for Pending<T> {
    type Output = T;
    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        let mut slot = self.0.borrow_mut();
        match slot.0.take() {
            Some(value) => Poll::Ready(value),
            None => {
                slot.1 = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }
}
