//! Members on other machines that were lost and are there again: the server takes them back by itself.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use super::control::Controlled;
use crate::serving::take_back::Tried;

/// How often a server looks for such members.
const INTERVAL: Duration = Duration::from_secs(1);

/// Looks after them until the array is stopped.
///
/// # Errors
/// The system has no thread for it.
pub(super) fn look_after(controlled: Arc<Controlled>) -> std::io::Result<()> {
    let look = move || {
        let mut tried = Tried::default();
        while controlled.take_back(&mut tried).is_ok() {
            thread::sleep(INTERVAL);
        }
    };
    thread::Builder::new().name("remote-members".into()).spawn(look).map(drop)
}
