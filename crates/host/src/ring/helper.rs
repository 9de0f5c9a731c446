//! Calls that io_uring does not have, such as the discard ioctl, made by one helper thread of the ring.
//!
//! A job borrows nothing: it owns the descriptors it uses. A helper in a call that does not end holds up the jobs
//! behind it, never the shard.

use std::cell::OnceCell;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};

use super::core::Mailbox;
use super::wake::WakeUp;

/// A call: returns 0 or a negated error number.
pub(crate) type Job = Box<dyn FnOnce() -> i32 + Send>;

pub(super) struct Helper {
    /// The way to the thread, which starts with the first job and ends with the ring.
    jobs: OnceCell<Sender<(u32, Job)>>,
    mailbox: Arc<Mailbox>,
    wake: Arc<WakeUp>,
}

impl Helper {
    pub fn new(mailbox: Arc<Mailbox>, wake: Arc<WakeUp>) -> Self {
        Helper { jobs: OnceCell::new(), mailbox, wake }
    }

    /// Has the job done; its result comes to the mailbox under this slot.
    pub fn send(&self, slot: u32, job: Job) {
        let jobs = self.jobs.get_or_init(|| self.start());
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
