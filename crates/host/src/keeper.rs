//! A thread for what takes longer than a shard may. One changes the reservations of an NVMe/TCP subsystem, one change after the
//! other, and waits for the disk; another computes the proofs of hosts; another makes the handshakes of TLS.

use std::io;
use std::sync::mpsc::{Sender, channel};

use crate::call::{Call, Reply};

type Job = Box<dyn FnOnce() + Send>;

/// The way to the thread, which ends when this is dropped.
pub(crate) struct Keeper {
    jobs: Sender<Job>,
}

impl Keeper {
    pub fn start(name: &str) -> io::Result<Keeper> {
        let (jobs, queue) = channel::<Job>();
        let work = move || queue.into_iter().for_each(|job| job());
        std::thread::Builder::new().name(name.to_owned()).spawn(work)?;
        Ok(Keeper { jobs })
    }

    /// Runs `work` when what was handed in before has ended.
    pub fn call<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> Call<T> {
        let (reply, call) = Reply::new(0);
        let job = move || reply.send(work());
        // If the thread has ended, the reply is dropped with the job, and the call fails.
        let _ = self.jobs.send(Box::new(job));
        call
    }
}
