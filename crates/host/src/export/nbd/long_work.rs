//! Zeroes and trims as long as a client likes, bounded by its connection.
//!
//! A request may name 4 GiB, and a client may send hundreds and leave. So long ones are done in pieces: a few of a connection at
//! a time, the others wait; between two pieces, the client that has left and the server that stops end them.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::ops::Range;
use std::task::{Poll, Waker};

use engine::error::VolumeError;

/// Least length of a piece: the longest write, twice. A piece is a whole number of stripes.
const PIECE_BYTES: u64 = 64 << 20;

/// Long requests of a connection that are under way; the others wait.
const LONG_AT_ONCE: usize = 4;

/// The long requests of one connection.
pub(super) struct LongWork {
    turns: Cell<usize>,
    waiting: RefCell<VecDeque<Waker>>,
    ended: Cell<bool>,
}

impl LongWork {
    pub fn new() -> Self {
        LongWork { turns: Cell::new(LONG_AT_ONCE), waiting: RefCell::default(), ended: Cell::new(false) }
    }

    /// The client has left, or has been asked to: what is long ends at its next piece.
    pub fn end(&self) {
        self.ended.set(true);
        self.waiting.take().into_iter().for_each(Waker::wake);
    }

    /// Does `work` piece by piece. Pieces end at multiples of `stripe_bytes`.
    ///
    /// # Errors
    /// What `work` says; [`VolumeError::Stopping`] if the connection ended between two pieces.
    pub async fn in_pieces(
        &self,
        range: Range<u64>,
        stripe_bytes: u64,
        is_stopping: impl Fn() -> bool,
        mut work: impl AsyncFnMut(u64, u64) -> Result<(), VolumeError>,
    ) -> Result<(), VolumeError> {
        let is_over = || self.ended.get() || is_stopping();
        let piece = PIECE_BYTES.next_multiple_of(stripe_bytes.max(1));
        if range.end - range.start <= piece {
            return work(range.start, range.end - range.start).await;
        }
        let _turn = self.turn().await;
        let mut at = range.start;
        while at < range.end {
            if is_over() {
                return Err(VolumeError::Stopping);
            }
            let end = range.end.min((at / piece + 1) * piece);
            work(at, end - at).await?;
            at = end;
        }
        Ok(())
    }

    async fn turn(&self) -> Turn<'_> {
        poll_fn(|context| {
            if self.ended.get() {
                return Poll::Ready(None);
            }
            match self.turns.get().checked_sub(1) {
                Some(left) => {
                    self.turns.set(left);
                    Poll::Ready(Some(()))
                }
                None => {
                    self.waiting.borrow_mut().push_back(context.waker().clone());
                    Poll::Pending
                }
            }
        })
        .await
        .map_or(Turn(None), |()| Turn(Some(self)))
    }
}

/// Goes to the next one that waits.
struct Turn<'a>(Option<&'a LongWork>);

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let Some(work) = self.0 else { return };
        work.turns.set(work.turns.get() + 1);
        let next = work.waiting.borrow_mut().pop_front();
        if let Some(next) = next {
            next.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use engine::executor::{Executor, yield_now};
    use std::rc::Rc;

    const STRIPE: u64 = 192 << 10;
    const PIECE: u64 = (64 << 20) + (128 << 10); // 342 stripes

    fn run(executor: &Executor) {
        while executor.run_ready(1000) > 0 {}
    }

    #[test]
    fn pieces_are_whole_stripes_and_cover_the_range() {
        let executor = Executor::new(Box::new(|| ()));
        let pieces = Rc::new(RefCell::new(Vec::new()));
        let seen = Rc::clone(&pieces);
        executor.spawn(async move {
            let work = async |at, bytes| {
                seen.borrow_mut().push((at, bytes));
                Ok(())
            };
            let done = LongWork::new().in_pieces(4096..3 * PIECE, STRIPE, || false, work).await;
            assert_eq!(done, Ok(()));
        });
        run(&executor);
        assert_eq!(pieces.take(), [(4096, PIECE - 4096), (PIECE, PIECE), (2 * PIECE, PIECE)]);
    }

    /// 512 requests of many pieces each, from a client that leaves after some were begun.
    #[test]
    fn a_client_that_leaves_ends_its_long_work_at_the_next_piece() {
        let executor = Executor::new(Box::new(|| ()));
        let long = Rc::new(LongWork::new());
        let (begun, ended) = (Rc::new(Cell::new(0)), Rc::new(RefCell::new(Vec::new())));
        for _ in 0..512 {
            let (long, begun, ended) = (Rc::clone(&long), Rc::clone(&begun), Rc::clone(&ended));
            executor.spawn(async move {
                let work = async |_, _| {
                    begun.set(begun.get() + 1);
                    yield_now().await;
                    Ok(())
                };
                let done = long.in_pieces(0..64 * PIECE, STRIPE, || false, work).await;
                ended.borrow_mut().push(done);
            });
        }
        executor.run_ready(512);
        assert_eq!(begun.get(), LONG_AT_ONCE, "the others wait");
        long.end();
        run(&executor);
        assert_eq!(begun.get(), LONG_AT_ONCE, "no piece begins after that");
        assert_eq!(ended.take(), vec![Err(VolumeError::Stopping); 512]);
    }

    #[test]
    fn all_get_their_turn() {
        let executor = Executor::new(Box::new(|| ()));
        let (long, done) = (Rc::new(LongWork::new()), Rc::new(Cell::new(0)));
        for _ in 0..50 {
            let (long, done) = (Rc::clone(&long), Rc::clone(&done));
            executor.spawn(async move {
                let work = async |_, _| {
                    yield_now().await;
                    Ok(())
                };
                long.in_pieces(0..3 * PIECE, STRIPE, || false, work).await.expect("no piece fails");
                done.set(done.get() + 1);
            });
        }
        run(&executor);
        assert_eq!((done.get(), long.turns.get()), (50, LONG_AT_ONCE));
    }
}
