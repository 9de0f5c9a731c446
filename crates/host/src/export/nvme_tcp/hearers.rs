//! Controllers whose hosts hear of changes.

use parking_lot::Mutex;
use std::sync::{Arc, Weak};

/// A controller that may have a host to tell.
pub(super) trait Hearer: Send + Sync {
    /// A namespace came, went or changed.
    fn namespace_changed(&self, id: u32);

    /// A subsystem came: for the host of a discovery controller.
    fn discovery_changed(&self);
}

/// Those of a subsystem, or of discovery, as long as they live.
#[derive(Default)]
pub(super) struct Hearers {
    hearers: Mutex<Vec<Weak<dyn Hearer>>>,
}

impl Hearers {
    pub fn enter(&self, hearer: Weak<dyn Hearer>) {
        let mut hearers = self.hearers.lock();
        hearers.retain(|one| one.strong_count() > 0);
        hearers.push(hearer);
    }

    pub fn tell(&self, tell: impl Fn(&dyn Hearer)) {
        // Not under the lock: a controller locks more.
        let all: Vec<Arc<dyn Hearer>> = self.hearers.lock().iter().filter_map(Weak::upgrade).collect();
        all.iter().for_each(|hearer| tell(&**hearer));
    }
}
