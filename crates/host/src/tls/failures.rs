//! Handshakes that failed. The log has a line in a while, not one for each.

use parking_lot::Mutex;
use std::io;
use std::time::{Duration, Instant};

/// How often the log says that handshakes fail.
const SAID_EVERY: Duration = Duration::from_secs(10);

/// Handshakes that failed.
#[derive(Default)]
pub(crate) struct Failures(Mutex<Since>);

#[derive(Default)]
struct Since {
    said: u64,
    at: Option<Instant>,
}

impl Failures {
    /// Notes one, of a client or a host.
    pub fn say(&self, whose: &str, error: &io::Error) {
        let mut since = self.0.lock();
        since.said += 1;
        if since.at.is_none_or(|said| said.elapsed() >= SAID_EVERY) {
            let count = std::mem::take(&mut since.said);
            since.at = Some(Instant::now());
            tracing::warn!(count, "{whose} could not be served over TLS: {error}");
        }
    }
}
