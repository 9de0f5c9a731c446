//! Calls that io_uring does not have, such as the discard ioctl, made by helper threads of the ring, one for each file.
//!
//! A job owns the descriptors that it uses. A helper whose call does not end holds up the later jobs of the same file, not the
//! shard, and not the jobs of other files.

use std::cell::RefCell;
use std::collections::HashMap;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};

use super::core::Mailbox;
use super::wake::WakeUp;

/// A call: returns 0 or a negated error number.
pub(crate) type Job = Box<dyn FnOnce() -> i32 + Send>;

pub(super) struct Helpers {
    /// The queues of the threads, by the descriptor that their jobs concern. A thread starts with its first job and ends with
    /// the ring. A later file with the same number gets the same thread.
    jobs: RefCell<HashMap<RawFd, Sender<(u32, Job)>>>,
    mailbox: Arc<Mailbox>,
    wake: Arc<WakeUp>,
}

impl Helpers {
    pub fn new(mailbox: Arc<Mailbox>, wake: Arc<WakeUp>) -> Self {
        Helpers { jobs: RefCell::default(), mailbox, wake }
    }

    /// Queues a job that concerns the file with this descriptor. Its result comes to the mailbox under this slot.
    pub fn send(&self, file: RawFd, slot: u32, job: Job) {
        let mut helpers = self.jobs.borrow_mut();
        let jobs = helpers.entry(file).or_insert_with(|| self.start());
        if jobs.send((slot, job)).is_err() {
            self.mailbox.push((slot, -libc::EIO)); // a job panicked
        }
    }

    fn start(&self) -> Sender<(u32, Job)> {
        let (sender, jobs) = channel::<(u32, Job)>();
        let (mailbox, wake) = (Arc::clone(&self.mailbox), Arc::clone(&self.wake));
        let work = move || {
            for (slot, job) in jobs {
                mailbox.push((slot, job()));
                wake.notify();
            }
        };
        std::thread::Builder::new().name("twill-helper".into()).spawn(work).expect("a helper thread starts");
        sender
    }
}
