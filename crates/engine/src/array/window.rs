//! A window that slides over an array: pieces of work are begun in order, several are on their way, and what they come
//! to is taken in order, so that a cursor can say that all before it is done.
//!
//! - A window that owns stripes waits for no other owner: while pieces are on their way the next one is begun only if its stripes
//!   are free. So two windows over one array, or a window and a task that waits for every owner, never wait in a circle.
//! - A pause begins nothing and takes what comes: no write waits for a pause to end in order to get a stripe.
//! - The window begins narrow, and is narrow again after a pause: work that is held back comes evenly, not in bursts.

use smallvec::SmallVec;
use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::ops::Range;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Context, Poll};

use super::progress::{Ended, Pace, Progress};
use crate::error::VolumeError;
use crate::executor::{JoinHandle, yield_now};
use crate::stripe::Shared;
use crate::stripe::stripe_table::Claim;

/// Member bytes on their way at once: enough to keep a member busy.
const WINDOW_BYTES: u64 = 2 << 20;
/// Stripes on their way at once at the most: a small part of the stripe table.
const WINDOW_STRIPES_MAX: u64 = 64;
/// Member bytes of a piece: a request that a member does at full speed, and little enough to wait for.
const PIECE_BYTES: u64 = 256 << 10;
/// Pieces that the window is cut into, if stripes are small enough.
const PIECES: u64 = WINDOW_BYTES / PIECE_BYTES;
/// Stripes on their way, however large they are: one is read while the other is written.
const WINDOW_STRIPES_MIN: u64 = 2;

/// How an array is cut for a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cut {
    /// Stripes, or regions of a mirror, in all.
    pub(super) count: u64,
    /// Bytes of each; the last one may have fewer.
    pub(super) bytes_each: u64,
    pub(super) total_bytes: u64,
    /// Stripes of a piece at the most.
    pub(super) at_once: u64,
    /// Pieces on their way at the most.
    pub(super) pieces_max: usize,
}

impl Cut {
    /// `count` stripes with `bytes_each` bytes on each member.
    pub(super) fn new(count: u64, bytes_each: u64, total_bytes: u64) -> Self {
        let stripes = (WINDOW_BYTES / bytes_each).clamp(WINDOW_STRIPES_MIN, WINDOW_STRIPES_MAX);
        let at_once = (stripes / PIECES).max(1);
        let pieces_max = usize::try_from(stripes / at_once).expect("a few pieces");
        Cut { count, bytes_each, total_bytes, at_once, pieces_max }
    }

    fn bytes(&self, number: u64) -> u64 {
        (number * self.bytes_each).min(self.total_bytes)
    }
}

/// A piece of work that was begun.
pub(super) struct Piece {
    /// Its stripes.
    pub(super) range: Range<u64>,
    /// How many of them there was something to do about.
    pub(super) worked: u64,
    /// What is owned until all before the piece is done, and the piece itself.
    pub(super) claims: Rc<SmallVec<[Claim; 2]>>,
    /// What is on its way, if there is anything to do.
    pub(super) job: Option<JoinHandle<Result<(), VolumeError>>>,
}

/// What is done to an array, piece by piece: to stripes, or to a mirror's regions. A sweep counts either by number.
pub(super) trait Sweep {
    /// The next stripe or region, from number `from` on, that needs it.
    fn next(&self, from: u64) -> Option<u64>;

    /// Begins with some of these, the first among them. None: that one is not free, and the caller may not wait
    /// for it since it has pieces on their way.
    async fn begin(&self, range: Range<u64>, may_wait: bool) -> Option<Piece>;

    /// These are done, and all before them.
    fn passed(&self, range: Range<u64>);
}

/// Works on an array from number `first` on.
pub(super) async fn slide(
    shared: &Shared,
    work: &impl Sweep,
    cut: Cut,
    first: u64,
    progress: &Progress,
    pace: &impl Pace,
) -> Ended {
    progress.begin(shared, cut.bytes(first), cut.total_bytes);
    let mut window = Window {
        work,
        cut,
        progress,
        pieces: VecDeque::new(),
        width: 1,
        next: first,
        unpaced: 0,
        failed: None,
    };
    loop {
        window.fill().await;
        if window.pieces.is_empty() {
            return window.ended();
        }
        let piece = poll_fn(|context| window.poll_first(context)).await;
        match window.take(piece) {
            0 => yield_now().await, // nothing to wait for: others have their turn all the same
            bytes => window.pace(pace, bytes).await,
        }
    }
}

struct Window<'a, W> {
    work: &'a W,
    cut: Cut,
    progress: &'a Progress,
    /// In order.
    pieces: VecDeque<Piece>,
    /// Pieces that may be on their way now.
    width: usize,
    /// What comes next.
    next: u64,
    /// Bytes done that no pause has taken into account.
    unpaced: u64,
    failed: Option<VolumeError>,
}

/// The first piece has ended so.
type Came = Result<(), VolumeError>;

impl<W: Sweep> Window<'_, W> {
    /// Begins what may be begun now.
    async fn fill(&mut self) {
        while self.pieces.len() < self.width && self.failed.is_none() && !self.progress.stop.load(Relaxed) {
            let wanted = if self.next < self.cut.count { self.work.next(self.next) } else { None };
            let Some(first) = wanted else {
                self.next = self.cut.count;
                return;
            };
            let range = first..(first + self.cut.at_once).min(self.cut.count);
            let Some(piece) = self.work.begin(range, self.pieces.is_empty()).await else { return };
            self.next = piece.range.end;
            self.pieces.push_back(piece);
        }
    }

    fn poll_first(&mut self, context: &mut Context<'_>) -> Poll<Came> {
        match self.pieces.front_mut().map(|piece| piece.job.as_mut()) {
            Some(Some(job)) => Pin::new(job).poll(context),
            Some(None) => Poll::Ready(Ok(())),
            None => Poll::Pending,
        }
    }

    /// Takes the first piece, which came to this. After a failure nothing counts as done any more. Returns the member
    /// bytes that were worked on and that no pace knows of yet.
    fn take(&mut self, came: Came) -> u64 {
        let piece = self.pieces.pop_front().expect("a piece that has ended");
        self.unpaced += piece.worked * self.cut.bytes_each;
        match came {
            Ok(()) if self.failed.is_none() => {
                self.work.passed(piece.range.clone());
                self.progress.done_bytes.store(self.cut.bytes(piece.range.end), Relaxed);
            }
            Ok(()) => {}
            Err(error) => self.failed = self.failed.take().or(Some(error)),
        }
        // Only now: a write that comes next finds the cursor beyond its stripe.
        drop(piece.claims);
        self.unpaced
    }

    /// Waits as the pace wants it, and takes meanwhile what comes.
    async fn pace(&mut self, pace: &impl Pace, bytes: u64) {
        self.unpaced -= bytes;
        let mut pause = pin!(pace.after(bytes));
        let mut paused = false;
        while let Some(came) = poll_fn(|context| match pause.as_mut().poll(context) {
            Poll::Ready(()) => Poll::Ready(None),
            Poll::Pending => {
                paused = true;
                self.poll_first(context).map(Some)
            }
        })
        .await
        {
            self.take(came);
        }
        self.width = if paused { 1 } else { (self.width + 1).min(self.cut.pieces_max) };
    }

    fn ended(self) -> Ended {
        match self.failed {
            Some(error) => Ended::Failed(error),
            None if self.next < self.cut.count => Ended::Stopped,
            None => {
                self.progress.done_bytes.store(self.cut.total_bytes, Relaxed);
                Ended::Finished
            }
        }
    }
}
