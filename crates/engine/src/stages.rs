//! Where the time of a stripe write goes, for whoever has a clock: the engine has none. Without an [`Observer`] a
//! stripe write pays one load and one branch.

/// What a stripe write is doing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Stage {
    /// Marks its intent and becomes the owner of the stripe, or joins the owner.
    Claim,
    /// Lets others join, or waits for the owner it joined.
    Wait,
    /// Plans, and reads old data and parity.
    PreRead,
    /// Makes new parity.
    Parity,
    /// Writes data and parity.
    Write,
    /// Keeps the parity, gives the stripe up and tells those who joined.
    Complete,
}

impl Stage {
    /// Every stage, in order.
    pub const ALL: [Stage; 6] =
        [Stage::Claim, Stage::Wait, Stage::PreRead, Stage::Parity, Stage::Write, Stage::Complete];
}

/// Someone with a clock.
pub trait Observer: Send + Sync {
    /// A stripe write begins on `shard`: whether to tell its stages.
    fn wants(&self, shard: usize) -> bool;

    /// Nanoseconds since some fixed moment.
    fn now_ns(&self) -> u64;

    /// A write on `shard` was in `stage` for `ns` nanoseconds, other tasks' turns included.
    fn spent(&self, shard: usize, stage: Stage, ns: u64);
}

/// The stage a write is in, and since when.
pub(crate) struct Watch<'a> {
    observer: Option<&'a dyn Observer>,
    shard: usize,
    stage: Stage,
    since_ns: u64,
}

impl<'a> Watch<'a> {
    pub(crate) fn begin(observer: Option<&'a dyn Observer>, shard: usize) -> Self {
        let observer = observer.filter(|observer| observer.wants(shard));
        let since_ns = observer.map_or(0, Observer::now_ns);
        Watch { observer, shard, stage: Stage::Claim, since_ns }
    }

    /// The stage so far is over.
    #[inline]
    pub(crate) fn enter(&mut self, stage: Stage) {
        if let Some(observer) = self.observer {
            let now_ns = observer.now_ns();
            observer.spent(self.shard, self.stage, now_ns - self.since_ns);
            (self.stage, self.since_ns) = (stage, now_ns);
        }
    }
}

impl Drop for Watch<'_> {
    fn drop(&mut self) {
        self.enter(self.stage);
    }
}
