//! Members that are rebuilt while others write, fail and are rebuilt too, at members whose operations end in any order.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::rc::Rc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Poll, Waker};

use layout::geometry::Level;
use layout::units::{MemberOffset, Slot, Stripe};

use super::progress::{Ended, FullSpeed, Pace, Progress};
use super::rebuild::{recover, resync};
use super::rebuild_tests::{disagreeing, drawn};
use crate::buffer::Slice;
use crate::executor::{join_all, yield_now};
use crate::in_place::InPlace;
use crate::members::MemberState::{Failed, InSync, Recovering};
use crate::stripe::fake::{CHUNK, Fake, World};
use crate::stripe::intent::Intent;
use crate::volume::Space;

const LEVELS: [(Level, u32); 5] =
    [(Level::Raid5, 4), (Level::Raid6, 5), (Level::Raid6, 8), (Level::Raid1, 3), (Level::Raid10, 4)];
const STRIPES: u64 = 150;
const NEW: Slot = Slot::new(1);

/// An array that holds a pattern, whose operations take a while.
fn busy(level: Level, members: u32, seed: u64) -> (World, Vec<u8>) {
    let world = World::with_intent(level, members, STRIPES, Intent::new(1, false, false));
    let pattern = world.fill();
    (0..).zip(&world.fakes).for_each(|(slot, fake)| fake.delay(seed * 64 + slot));
    (world, pattern)
}

/// Another member takes the slot of one that fails. It holds something else.
fn replace(world: &World, slot: Slot) {
    let members = &world.set.shared.members;
    members.fail(slot, "worn out");
    assert!(members.remove(slot));
    (0..world.set.shared.geometry.member_bytes()).step_by(4096).for_each(|at| {
        world.fakes[slot.index()].flip(MemberOffset::new(at + 99));
    });
    assert!(members.begin_recovery(slot, 0));
}

/// Clients write all over the array, each place once, and read it before and after.
fn clients(world: &World, pattern: &mut [u8], seed: &mut u64) {
    for at in (0..pattern.len()).step_by(41 * 512) {
        let range = at..(at + (drawn(seed, 16) as usize + 1) * 512).min(pattern.len());
        let old = pattern[range.clone()].to_vec();
        pattern[range.clone()].fill(at as u8 ^ 5);
        let (set, new) = (Rc::clone(&world.set), Slice::from_bytes(&pattern[range]));
        let order = drawn(seed, 400);
        world.set.executor.spawn(async move {
            for _ in 0..order {
                yield_now().await;
            }
            let bytes = async || {
                let gather = set.read(at as u64, old.len() as u64).await.expect("readable");
                let mut read = vec![0; gather.len()];
                gather.copy_to(&mut read);
                read
            };
            assert!(bytes().await == old, "old contents at {at}");
            set.write(at as u64, new.clone().into(), false).await.expect("written");
            assert!(bytes().await == new.bytes(), "new contents at {at}");
        });
    }
}

fn run(world: &World, work: impl AsyncFn(Rc<InPlace<Fake>>) -> Ended + 'static) -> Ended {
    let set = Rc::clone(&world.set);
    world.run(async move { work(set).await })
}

/// Waits for the clients; then parity or copies agree, the array holds `pattern`, and no stripe has an owner.
fn whole(world: &World, pattern: &[u8], what: &str) {
    let members = &world.set.shared.members;
    for _ in 0..10_000 {
        members.metadata_written(members.metadata_version());
        world.run(yield_now());
    }
    assert_eq!(world.set.executor.tasks_alive(), 0, "{what}: a client waits for ever");
    assert_eq!(world.set.shared.table.active(), 0, "{what}");
    assert_eq!(disagreeing(world), None, "{what}: a stripe or region");
    assert!(world.read(0, pattern.len() as u64).expect("readable") == pattern, "{what}");
}

#[test]
fn a_member_is_rebuilt_while_clients_write() {
    for (number, (level, members)) in (0..).zip(LEVELS) {
        for round in 1..=6 {
            let mut seed = 7919 * round + number;
            let (world, mut pattern) = busy(level, members, seed);
            replace(&world, NEW);
            clients(&world, &mut pattern, &mut seed);
            let ended = run(&world, async |set| recover(&set, NEW, &Progress::default(), &FullSpeed).await);
            assert_eq!((ended, world.state(NEW)), (Ended::Finished, InSync));
            whole(&world, &pattern, &format!("{level} of {members}, round {round}"));
        }
    }
}

#[test]
fn parity_is_made_to_agree_while_clients_write() {
    for (number, (level, members)) in (0..).zip(LEVELS).filter(|(_, (level, _))| level.is_striped()) {
        let mut seed = 104_729 + number;
        let (world, mut pattern) = busy(level, members, seed);
        // What a crash leaves: parity of another time.
        for stripe in Stripe::first(STRIPES).step_by(7) {
            let slot = world.set.shared.geometry.p_member(stripe).expect("a level with parity");
            world.fakes[slot.index()].flip(world.set.shared.geometry.member_offset(stripe) + 77);
        }
        clients(&world, &mut pattern, &mut seed);
        let ended = run(&world, async |set| resync(&set, 0, &Progress::default(), &FullSpeed).await);
        assert_eq!(ended, Ended::Finished);
        whole(&world, &pattern, &format!("{level} of {members}"));
    }
}

/// Looks after each piece whether what lies before the cursor is on the member, and stops after some.
struct Looking<'a> {
    world: &'a World,
    should_hold: &'a [u8],
    progress: Rc<Progress>,
    left: RefCell<usize>,
}

impl Looking<'_> {
    fn look(&self) -> u64 {
        let cursor = self.world.set.shared.members.recovered_bytes(NEW);
        let holds = self.world.fakes[NEW.index()].area();
        assert!(holds[..cursor as usize] == self.should_hold[..cursor as usize], "cursor {cursor}");
        assert!(self.progress.done_bytes.load(Relaxed) <= cursor, "cursor {cursor}");
        cursor
    }
}

impl Pace for Looking<'_> {
    async fn after(&self, _: u64) {
        self.look();
        let left = self.left.replace_with(|left| left.saturating_sub(1));
        self.progress.stop.store(left <= 1, Relaxed);
        // Now and then the window narrows.
        if left.is_multiple_of(5) {
            yield_now().await;
            self.look();
        }
    }
}

#[test]
fn the_cursor_is_never_ahead_of_the_data_and_any_is_gone_on_from() {
    for (level, members) in [(Level::Raid5, 4), (Level::Raid6, 6)] {
        for stop_after in 1.. {
            let (world, pattern) = busy(level, members, stop_after as u64);
            let should_hold = world.fakes[NEW.index()].area();
            replace(&world, NEW);
            let world = Rc::new(world);
            let progress = Rc::new(Progress::default());
            let (in_task, hold, told) = (Rc::clone(&world), should_hold.clone(), Rc::clone(&progress));
            let ended = run(&world, async move |set| {
                let left = RefCell::new(stop_after);
                let pace = Looking { world: &in_task, should_hold: &hold, progress: Rc::clone(&told), left };
                recover(&set, NEW, &told, &pace).await
            });
            let members = &world.set.shared.members;
            if ended == Ended::Finished {
                assert!(stop_after > 5, "some pieces");
                break;
            }
            let cursor = members.recovered_bytes(NEW);
            assert_eq!((ended, world.state(NEW)), (Ended::Stopped, Recovering));
            assert_eq!(cursor, progress.done_bytes.load(Relaxed));
            // Whatever the member holds behind the cursor, it is not relied on.
            for at in (cursor..should_hold.len() as u64).step_by(16384) {
                world.fakes[NEW.index()].flip(MemberOffset::new(at));
            }
            members.resume_recovery(NEW, cursor, false);
            let ended = run(&world, async |set| recover(&set, NEW, &Progress::default(), &FullSpeed).await);
            assert_eq!((ended, world.state(NEW)), (Ended::Finished, InSync));
            assert!(world.fakes[NEW.index()].area() == should_hold, "{level} from {cursor}");
            assert!(world.read(0, pattern.len() as u64).expect("readable") == pattern);
        }
    }
}

#[test]
fn two_members_of_raid6_are_rebuilt_at_once() {
    for round in 1..=20 {
        let mut seed = 31 * round;
        let (world, mut pattern) = busy(Level::Raid6, 6, seed);
        let (one, two) = (Slot::new(drawn(&mut seed, 3) as u32), Slot::new(3 + drawn(&mut seed, 3) as u32));
        replace(&world, one);
        replace(&world, two);
        clients(&world, &mut pattern, &mut seed);
        let wait = drawn(&mut seed, 60);
        let ended = run(&world, async move |set| {
            let start = |slot, wait| {
                let set = Rc::clone(&set);
                set.executor.clone().spawn_with_result(async move {
                    for _ in 0..wait {
                        yield_now().await;
                    }
                    recover(&set, slot, &Progress::default(), &FullSpeed).await
                })
            };
            let ended = join_all([start(one, 0), start(two, wait)]).await;
            ended.into_iter().find(|ended| *ended != Ended::Finished).unwrap_or(Ended::Finished)
        });
        assert_eq!((ended, world.state(one), world.state(two)), (Ended::Finished, InSync, InSync));
        whole(&world, &pattern, &format!("members {one} and {two}, round {round}"));
    }
}

#[test]
fn a_member_that_is_read_fails_in_the_middle() {
    for nth in (1..60).step_by(3) {
        let mut seed = nth as u64;
        let (world, mut pattern) = busy(Level::Raid6, 6, seed);
        replace(&world, NEW);
        clients(&world, &mut pattern, &mut seed);
        let set = Rc::clone(&world.set);
        world.fakes[3].at_read(nth, move || {
            set.shared.members.fail(Slot::new(3), "pulled out");
        });
        let ended = run(&world, async |set| recover(&set, NEW, &Progress::default(), &FullSpeed).await);
        assert_eq!((ended, world.state(NEW), world.state(Slot::new(3))), (Ended::Finished, InSync, Failed));
        replace(&world, Slot::new(3));
        let ended =
            run(&world, async |set| recover(&set, Slot::new(3), &Progress::default(), &FullSpeed).await);
        assert_eq!(ended, Ended::Finished);
        whole(&world, &pattern, &format!("at read {nth}"));
    }
}

#[test]
fn the_member_that_is_rebuilt_fails_in_the_middle() {
    for nth in (1..60).step_by(3) {
        let mut seed = nth as u64;
        let (world, mut pattern) = busy(Level::Raid5, 4, seed);
        replace(&world, NEW);
        clients(&world, &mut pattern, &mut seed);
        let set = Rc::clone(&world.set);
        world.fakes[3].at_read(nth, move || {
            set.shared.members.fail(NEW, "pulled out");
        });
        let ended = run(&world, async |set| recover(&set, NEW, &Progress::default(), &FullSpeed).await);
        assert!(matches!(ended, Ended::Failed(_)) && world.state(NEW) == Failed, "{ended:?}");
        replace(&world, NEW);
        let ended = run(&world, async |set| recover(&set, NEW, &Progress::default(), &FullSpeed).await);
        assert_eq!(ended, Ended::Finished);
        whole(&world, &pattern, &format!("at read {nth}"));
    }
}

#[test]
fn what_lies_behind_a_piece_that_failed_does_not_count() {
    for broken in (3..STRIPES).step_by(9) {
        let (world, mut pattern) = busy(Level::Raid5, 4, broken);
        let should_hold = world.fakes[NEW.index()].area();
        replace(&world, NEW);
        // It cannot be made, and no bad-block log has room for it.
        world.fakes[2].break_block(MemberOffset::new(broken * u64::from(CHUNK)), false);
        let ended = run(&world, async |set| recover(&set, NEW, &Progress::default(), &FullSpeed).await);
        let cursor = world.set.shared.members.recovered_bytes(NEW);
        assert!(matches!(ended, Ended::Failed(_)) && world.state(NEW) == Recovering, "{ended:?}");
        assert!(cursor <= broken * u64::from(CHUNK), "{cursor} is behind stripe {broken}");
        assert!(world.fakes[NEW.index()].area()[..cursor as usize] == should_hold[..cursor as usize]);
        let stripe_bytes = pattern.len() / STRIPES as usize;
        let stripe = broken as usize * stripe_bytes..(broken as usize + 1) * stripe_bytes;
        pattern[stripe.clone()].fill(0x3c);
        world.write(stripe.start as u64, &pattern[stripe]).expect("written");
        let ended = run(&world, async |set| recover(&set, NEW, &Progress::default(), &FullSpeed).await);
        assert_eq!(ended, Ended::Finished);
        whole(&world, &pattern, &format!("stripe {broken}"));
    }
}

/// A window that owned a stripe while it waits would make a circle: a drain of the stripe table, and with it the owner of
/// the stripe that the window waits for, waits for the window.
#[test]
fn a_window_that_waits_for_a_stripe_owns_none() {
    for taken in (0..STRIPES).step_by(11) {
        let (world, pattern) = busy(Level::Raid5, 4, taken + 1);
        replace(&world, NEW);
        let (shared, executor) = (&world.set.shared, &world.set.executor);
        let claim = shared.table.claim_if_free(Stripe::new(taken), 0).expect("no stripe has an owner yet");
        let set = Rc::clone(&world.set);
        let ended = executor
            .spawn_with_result(async move { recover(&set, NEW, &Progress::default(), &FullSpeed).await });
        executor.run_ready(usize::MAX);
        assert_eq!(shared.table.owned(), [Stripe::new(taken).into()]);
        assert_eq!(shared.members.recovered_bytes(NEW), taken * u64::from(CHUNK), "all before it is done");
        drop(claim);
        assert_eq!((world.run(ended), world.state(NEW)), (Ended::Finished, InSync));
        whole(&world, &pattern, &format!("stripe {taken} was taken"));
    }
}

/// Holds the work back at one call, until `over` is set and the waker woken.
struct Held {
    left: Cell<usize>,
    over: Rc<Cell<bool>>,
    waker: Rc<RefCell<Option<Waker>>>,
}

impl Pace for Held {
    async fn after(&self, _: u64) {
        self.left.set(self.left.get().wrapping_sub(1));
        if self.left.get() == 0 {
            poll_fn(|context| {
                self.waker.replace(Some(context.waker().clone()));
                if self.over.get() { Poll::Ready(()) } else { Poll::Pending }
            })
            .await;
        }
    }
}

#[test]
fn a_pause_owns_nothing_and_what_was_on_its_way_counts() {
    for held_at in 1..12 {
        let (world, pattern) = busy(Level::Raid6, 5, held_at as u64);
        replace(&world, NEW);
        let (shared, executor) = (&world.set.shared, &world.set.executor);
        let (over, waker) = (Rc::<Cell<bool>>::default(), Rc::<RefCell<Option<Waker>>>::default());
        let pace = Held { left: Cell::new(held_at), over: Rc::clone(&over), waker: Rc::clone(&waker) };
        let (progress, set) = (Rc::new(Progress::default()), Rc::clone(&world.set));
        let told = Rc::clone(&progress);
        let ended = executor.spawn_with_result(async move { recover(&set, NEW, &told, &pace).await });
        executor.run_ready(usize::MAX);
        assert_eq!(shared.table.active(), 0, "held at {held_at}");
        let cursor = shared.members.recovered_bytes(NEW);
        assert!(cursor > 0 && cursor == progress.done_bytes.load(Relaxed), "held at {held_at}: {cursor}");
        over.set(true);
        waker.take().into_iter().for_each(Waker::wake);
        assert_eq!((world.run(ended), world.state(NEW)), (Ended::Finished, InSync));
        whole(&world, &pattern, &format!("held at {held_at}"));
    }
}
