//! What a server that was killed still holds: the kernel closes the files and sockets of a ring only after the process is gone,
//! on some kernels a second later.

use std::thread;
use std::time::{Duration, Instant};

/// How long a killed server may hold what it had.
pub const LIMIT: Duration = Duration::from_secs(2);

/// How often to try.
pub const INTERVAL: Duration = Duration::from_millis(20);

/// Repeats an attempt that fails because something is in use, for as long as a killed server may still hold it. It sleeps, so
/// never call it on a shard.
///
/// # Errors
/// Those of the last attempt.
pub fn when_free<T, E>(
    is_in_use: impl Fn(&E) -> bool,
    mut attempt: impl FnMut() -> Result<T, E>,
) -> Result<T, E> {
    let end = Instant::now() + LIMIT;
    loop {
        match attempt() {
            Err(error) if is_in_use(&error) && Instant::now() < end => thread::sleep(INTERVAL),
            outcome => return outcome,
        }
    }
}
