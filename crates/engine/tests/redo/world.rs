//! A world without threads and clock: what comes next is drawn from a seed.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use engine::executor::Executor;

use crate::device::Pending;

type Action = Box<dyn FnOnce()>;

pub struct World {
    seed: Cell<u64>,
    agenda: RefCell<Vec<Action>>,
}

impl World {
    pub fn new(seed: u64) -> Rc<World> {
        let seed = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        Rc::new(World { seed: Cell::new(seed), agenda: RefCell::default() })
    }

    pub fn below(&self, below: u64) -> u64 {
        let mut seed = self.seed.get();
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        self.seed.set(seed);
        (seed >> 11) % below.max(1)
    }

    /// Something that happens some time.
    pub fn later<T: 'static>(&self, action: impl FnOnce() -> T + 'static) -> Pending<T> {
        let (pending, fill) = Pending::new();
        self.agenda.borrow_mut().push(Box::new(move || fill(action())));
        pending
    }

    /// One step; false if nothing is left to do.
    pub fn step(&self, executors: &[Executor]) -> bool {
        let first = self.below(executors.len() as u64) as usize;
        let tasks = self.below(10) < 7;
        for run_tasks in [tasks, !tasks] {
            if run_tasks {
                let ready = |i: usize| &executors[(first + i) % executors.len()];
                if (0..executors.len()).any(|i| ready(i).run_one_of(|n| self.below(n as u64) as usize)) {
                    return true;
                }
            } else {
                let due = {
                    let mut agenda = self.agenda.borrow_mut();
                    let at = self.below(agenda.len() as u64) as usize;
                    (!agenda.is_empty()).then(|| agenda.swap_remove(at))
                };
                if let Some(action) = due {
                    action();
                    return true;
                }
            }
        }
        false
    }

    /// Nothing that was to come comes.
    pub fn stop(&self) {
        self.agenda.borrow_mut().clear();
    }
}
