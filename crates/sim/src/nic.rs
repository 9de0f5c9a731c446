//! Network cards in virtual time: what a message takes from one machine to another, each of which has one card.
//!
//! A message is cut into frames. They leave one after the other at the rate of the sender's card, and are taken one after the
//! other at the receiver's, in the order in which they come; a card sends and receives at once. Between cards is a switch that
//! delays and never drops: what a slow card has not taken yet waits there.

use std::cell::Cell;
use std::rc::Rc;

use crate::timeline::Timeline;

/// Bytes of a frame: short enough that messages share a card, long enough that a large one is few events.
const FRAME_BYTES: u64 = 32 << 10;

/// What a card can do, each way.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NicSpeed {
    pub(crate) bytes_per_s: u64,
    /// Of each message, beside its bytes.
    pub(crate) message_ns: u64,
}

/// A card.
pub(crate) struct Nic {
    time: Rc<Timeline>,
    speed: NicSpeed,
    sends: Way,
    receives: Way,
}

/// One direction of a card.
#[derive(Default)]
struct Way {
    free_at_ns: Cell<u64>,
    bytes: Cell<u64>,
}

impl Way {
    /// When a frame that is here now has passed.
    fn pass(&self, now_ns: u64, bytes: u64, speed: NicSpeed) -> u64 {
        self.bytes.set(self.bytes.get() + bytes);
        let takes_ns = (bytes * 1_000_000_000).div_ceil(speed.bytes_per_s);
        self.free_at_ns.set(self.free_at_ns.get().max(now_ns) + takes_ns);
        self.free_at_ns.get()
    }

    fn work(&self, now_ns: u64, ns: u64) {
        self.free_at_ns.set(self.free_at_ns.get().max(now_ns) + ns);
    }
}

impl Nic {
    pub(crate) fn new(time: &Rc<Timeline>, speed: NicSpeed) -> Rc<Self> {
        Rc::new(Nic { time: Rc::clone(time), speed, sends: Way::default(), receives: Way::default() })
    }

    /// Bytes that it has sent and received.
    pub(crate) fn bytes(&self) -> (u64, u64) {
        (self.sends.bytes.get(), self.receives.bytes.get())
    }

    /// Sends a message, whose first byte takes `way_ns` from card to card.
    pub(crate) fn send(
        self: &Rc<Self>,
        to: &Rc<Nic>,
        bytes: u64,
        way_ns: u64,
        arrived: impl FnOnce() + 'static,
    ) {
        let now_ns = self.time.now_ns();
        self.sends.work(now_ns, self.speed.message_ns);
        let (mut left, mut arrived) = (bytes, Some(arrived));
        while let Some(frame) = Some(left.min(FRAME_BYTES)).filter(|frame| *frame > 0) {
            left -= frame;
            let sent_at_ns = self.sends.pass(now_ns, frame, self.speed);
            let (to, arrived) = (Rc::clone(to), arrived.take_if(|_| left == 0));
            self.time.at(sent_at_ns + way_ns, move || to.take(frame, arrived));
        }
    }

    /// A frame is here; with it, if it is a message's last, what happens then.
    fn take(&self, bytes: u64, arrived: Option<impl FnOnce() + 'static>) {
        let now_ns = self.time.now_ns();
        if arrived.is_some() {
            self.receives.work(now_ns, self.speed.message_ns);
        }
        let taken_at_ns = self.receives.pass(now_ns, bytes, self.speed);
        if let Some(arrived) = arrived {
            self.time.at(taken_at_ns, arrived);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn nic(time: &Rc<Timeline>, bytes_per_s: u64) -> Rc<Nic> {
        Nic::new(time, NicSpeed { bytes_per_s, message_ns: 0 })
    }

    /// Microseconds until all have arrived.
    fn run(time: &Rc<Timeline>) -> u64 {
        while let Some(action) = time.next() {
            action();
        }
        time.now_ns() / 1000
    }

    #[test]
    fn cards_send_and_receive_at_once_each_at_its_rate() {
        let time = Timeline::new();
        let (one, other) = (nic(&time, 1 << 30), nic(&time, 1 << 30));
        for _ in 0..10 {
            one.send(&other, MIB, 0, || {});
            other.send(&one, MIB, 0, || {});
        }
        // 10 MiB at 1 GiB a second, and a frame's time in the other card.
        assert!((9765..9800).contains(&run(&time)));
        assert_eq!((one.bytes(), other.bytes()), ((10 * MIB, 10 * MIB), (10 * MIB, 10 * MIB)));
    }

    #[test]
    fn many_senders_share_one_receiver_and_a_slow_one_holds_nobody_up() {
        let time = Timeline::new();
        let to = nic(&time, 1 << 30);
        let (fast, slow) = (nic(&time, 1 << 30), nic(&time, 1 << 28));
        let done = Rc::new(Cell::new(0));
        let end = |nic: &Rc<Nic>| {
            let (done, time) = (Rc::clone(&done), Rc::clone(&time));
            nic.send(&to, 4 * MIB, 0, move || done.set(done.get().max(time.now_ns() / 1000)));
        };
        end(&slow);
        fast.send(&to, 4 * MIB, 0, || {});
        // The slow one needs 15.6 ms by itself; the fast one's 4 MiB fit in between.
        assert!((15_625..15_700).contains(&run(&time)), "{}", done.get());
        let time = Timeline::new();
        let (to, from) = (nic(&time, 1 << 30), [nic(&time, 1 << 30), nic(&time, 1 << 30)]);
        from.iter().for_each(|from| from.send(&to, 4 * MIB, 0, || {}));
        assert!((7812..7900).contains(&run(&time)));
    }
}
