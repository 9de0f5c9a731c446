//! Operations in flight: dropped, drained, in masses, over sockets.

use super::file::RingFile;
use super::op::Op;

use super::{Ring, RingBackend, RingOptions, core::Core};
use crate::testing::{Bench, backends, pattern};
use engine::buffer::{Buffer, Gather, Slice};
use engine::device::DeviceErrorKind;
use engine::executor::yield_now;
use std::cell::Cell;
use std::io::{ErrorKind, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

fn pair() -> (Rc<OwnedFd>, Rc<OwnedFd>) {
    let (left, right) = UnixStream::pair().expect("a socket pair");
    (Rc::new(left.into()), Rc::new(right.into()))
}

#[test]
fn large_sends_arrive_whole_and_in_order() {
    for backend in backends() {
        let bench = Bench::new(backend);
        let (left, right) = pair();
        // More slices than one call takes, none adjacent, 12 MiB: far above any socket buffer.
        let source = Slice::from_bytes(&pattern(1, 4096 * 4));
        let data: Gather = (0..3000).map(|i| source.part((i % 3) * 4100, 4000 + i % 90)).collect();
        let mut expected = vec![0; data.len()];
        data.copy_to(&mut expected);
        assert!(data.slices().len() > 1024);
        let (sender, receiver) = (bench.ring.clone(), bench.ring.clone());
        bench.executor.spawn(async move { sender.send_all(&left, data).await.expect("sent") });
        let bytes = expected.len();
        let received = bench.run(async move {
            let (buffer, count) = receiver.recv_exact(&right, Buffer::new(bytes + 10), 5..bytes + 5).await;
            assert_eq!(count.expect("received"), bytes);
            let (buffer, count) = receiver.recv(&right, buffer, 0..5).await;
            assert_eq!(count.expect("the end of the stream"), 0);
            buffer
        });
        assert!(received.bytes()[5..bytes + 5] == expected[..], "the bytes as sent ({backend:?})");
    }
}

#[test]
fn a_stream_that_ends_early_is_an_unexpected_end() {
    for backend in backends() {
        let bench = Bench::new(backend);
        let (left, right) = UnixStream::pair().expect("a socket pair");
        let (ring, right) = (bench.ring.clone(), Rc::new(OwnedFd::from(right)));
        (&left).write_all(b"half").expect("written");
        drop(left);
        let (buffer, result) = bench.run(async move { ring.recv_exact(&right, Buffer::new(8), 0..8).await });
        assert_eq!(result.expect_err("too short").kind(), ErrorKind::UnexpectedEof);
        assert_eq!(buffer.bytes()[..4], *b"half");
    }
}

#[test]
fn sending_to_a_closed_peer_is_an_error_not_a_signal() {
    for backend in backends() {
        let bench = Bench::new(backend);
        let (left, right) = pair();
        drop(right);
        let ring = bench.ring.clone();
        let sent = bench.run(async move { ring.send_all(&left, Slice::from_bytes(b"anyone?").into()).await });
        assert_eq!(sent.expect_err("the peer is gone").kind(), ErrorKind::BrokenPipe);
    }
}

#[test]
fn connections_are_accepted() {
    for backend in backends() {
        let bench = Bench::new(backend);
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("socket");
        let listener = Rc::new(OwnedFd::from(UnixListener::bind(&path).expect("bound")));
        let client = std::thread::spawn(move || {
            let mut stream = UnixStream::connect(path).expect("connected");
            let mut answer = [0; 2];
            stream.write_all(b"hi").expect("sent");
            stream.read_exact(&mut answer).expect("answered");
            answer
        });
        let ring = bench.ring.clone();
        bench.run(async move {
            let connection = Rc::new(ring.accept(&listener).await.expect("accepted"));
            let (buffer, count) = ring.recv_exact(&connection, Buffer::new(2), 0..2).await;
            assert_eq!(count.expect("received"), 2);
            ring.send_all(&connection, buffer.freeze().into()).await.expect("sent");
        });
        assert_eq!(client.join().expect("the client ends"), *b"hi");
    }
}

#[test]
fn a_dropped_receive_is_cancelled_and_its_slot_comes_back() {
    for backend in backends() {
        let bench = Bench::new(backend);
        let (left, right) = pair();
        let ring = bench.ring.clone();
        bench.run(async move {
            for _ in 0..2000 {
                drop(ring.recv(&right, Buffer::new(64), 0..64));
                let mut late = ring.recv(&right, Buffer::new(64), 0..64);
                std::future::poll_fn(|context| {
                    assert!(Pin::new(&mut late).poll(context).is_pending());
                    std::task::Poll::Ready(())
                })
                .await;
                drop(late);
            }
            while ring.operations() > 1 {
                ring.sleep(Duration::from_millis(1)).await;
                if ring.operations() == 0 {
                    break;
                }
            }
            // The stream works on: nothing is left that would take its bytes.
            let mut text = Box::pin(ring.recv(&right, Buffer::new(64), 0..64));
            ring.send_all(&left, Slice::from_bytes(b"still here").into()).await.expect("sent");
            let (buffer, count) = text.as_mut().await;
            assert_eq!(buffer.bytes()[..count.expect("received")], *b"still here");
        });
    }
}

#[test]
fn sockets_that_do_not_block_are_waited_for() {
    for backend in backends() {
        let bench = Bench::new(backend);
        let (left, right) = UnixStream::pair().expect("a pair");
        right.set_nonblocking(true).expect("set");
        let (ring, right) = (bench.ring.clone(), Rc::new(OwnedFd::from(right)));
        let writer = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(30));
            (&left).write_all(b"late").expect("sent");
        });
        let (buffer, count) = bench.run(async move { ring.recv_exact(&right, Buffer::new(4), 0..4).await });
        assert_eq!((count.expect("received"), buffer.bytes()), (4, &b"late"[..]));
        writer.join().expect("the writer ends");
    }
}

#[test]
fn an_accept_that_nobody_waits_for_leaves_no_connection() {
    for (backend, is_reaped) in backends().into_iter().flat_map(|backend| [(backend, false), (backend, true)])
    {
        let bench = Bench::new(backend);
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("socket");
        let listener = Rc::new(OwnedFd::from(UnixListener::bind(&path).expect("bound")));
        let accept = bench.ring.accept(&listener);
        bench.ring.submit();
        let mut client = UnixStream::connect(&path).expect("connected");
        bench.ring.wait(Some(Duration::from_millis(50))); // the connection is accepted by the system
        if is_reaped {
            bench.ring.reap();
        }
        drop(accept);
        while bench.ring.operations() > 0 {
            bench.ring.reap();
            bench.ring.wait(Some(Duration::from_millis(10)));
        }
        drop((listener, bench));
        client.set_read_timeout(Some(Duration::from_secs(20))).expect("set");
        let closed = client.read(&mut [0; 1]);
        let is_closed =
            closed.as_ref().map_or_else(|e| e.kind() == ErrorKind::ConnectionReset, |count| *count == 0);
        assert!(is_closed, "the connection was closed: {closed:?}");
    }
}

#[test]
fn dropping_the_ring_ends_everything_in_flight() {
    for backend in backends() {
        let bench = Bench::new(backend);
        let (left, right) = pair();
        let file = tempfile::tempfile().expect("a file");
        let target = bench.ring.open_file(&Arc::new(file.into()), false, &Arc::default());
        for i in 0..500u64 {
            drop(bench.ring.recv(&right, Buffer::new(4096), 0..4096));
            let data = Slice::from_bytes(&pattern(i, 4096)).into();
            let op = Op::Write {
                file: Rc::clone(&target),
                data,
                offset: i * 4096,
                done: 0,
                fixed: None,
                fua: false,
            };
            drop(bench.ring.start(op));
            if i % 100 == 7 {
                bench.ring.submit();
            }
        }
        let operations = bench.ring.operations();
        assert!(operations >= 500, "{operations} operations in flight");
        let fd = Arc::clone(&target.fd);
        drop((target, bench));
        // Writes that were sent were not cut off: the memory was there to the end.
        let mut byte = [0; 4096];
        for i in 0..500u64 {
            assert_eq!(rustix::io::pread(&*fd, &mut byte, i * 4096), Ok(4096));
            assert!(byte[..] == pattern(i, 4096)[..], "write {i} is whole ({backend:?})");
        }
        drop(left);
    }
}

#[test]
fn more_operations_than_any_queue_holds() {
    for backend in backends() {
        let options = RingOptions { entries: 8, files: 2, backend, ..RingOptions::default() };
        let bench = Bench::with(&options);
        let file = tempfile::tempfile().expect("a file");
        file.set_len(4096 * 4096).expect("a length");
        let target = bench.ring.open_file(&Arc::new(file.into()), false, &Arc::default());
        let (count, ring) = (Rc::new(Cell::new(0)), bench.ring.clone());
        for task in 0..256u64 {
            let (ring, target, count) = (bench.ring.clone(), Rc::clone(&target), Rc::clone(&count));
            bench.executor.spawn(async move {
                let mut random = task;
                for round in 0..16 {
                    random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    let offset = (task * 16 + round) * 4096;
                    let data = Slice::from_bytes(&pattern(random, 4096)).into();
                    let file = Rc::clone(&target);
                    let op = Op::Write { file, data, offset, done: 0, fixed: None, fua: false };
                    super::DeviceDone(ring.start(op)).await.expect("written");
                    let (file, buffer) = (Rc::clone(&target), Buffer::new(4096));
                    let op = Op::Read { file, buffer, offset, done: 0, fixed: None };
                    let (buffer, result) = super::DeviceRead(ring.start(op)).await;
                    result.expect("read");
                    assert!(buffer.bytes() == &pattern(random, 4096)[..]);
                    count.set(count.get() + 1);
                }
            });
        }
        let waiting = Rc::clone(&count);
        bench.run(async move {
            while waiting.get() < 256 * 16 {
                ring.sleep(Duration::from_millis(2)).await;
            }
        });
        drop(target);
        assert_eq!((bench.ring.operations(), count.get()), (0, 4096));
    }
}

/// Waits until nothing is in flight.
fn wait_until_idle(ring: &Ring) {
    while ring.operations() > 0 {
        ring.wait(Some(Duration::from_millis(10)));
        ring.reap();
    }
}

fn unregistered(fd: OwnedFd) -> Rc<RingFile> {
    let (fd, late) = (Arc::new(fd), Arc::default());
    RingFile::new(fd, None, false, late)
}

#[test]
fn an_operation_without_an_answer_times_out_and_keeps_its_memory() {
    for backend in backends() {
        let bench = Bench::new(backend);
        // A pipe without a writer stands for a device that hangs.
        let (reader, writer) = std::io::pipe().expect("a pipe");
        if backend == RingBackend::Threads {
            continue; // helpers use pread, which pipes do not have
        }
        let file = unregistered(reader.into());
        let ring = bench.ring.clone();
        let (buffer, result) = bench.run(async move {
            let buffer = Buffer::from_bytes(&pattern(3, 4096));
            let op = Op::Read { file, buffer, offset: u64::MAX, done: 0, fixed: None };
            super::DeviceRead(ring.start_timed(op, Duration::from_millis(40))).await
        });
        let error = result.expect_err("no answer");
        assert_eq!((error.kind, error.operation, error.bytes), (DeviceErrorKind::Timeout, "read", 4096));
        assert!(buffer.bytes().iter().all(|byte| *byte == 0), "other memory, zeroed");
        assert_eq!(bench.ring.operations(), 1);
        // The answer comes after all: into memory that the ring kept for it.
        (&writer).write_all(&pattern(4, 4096)).expect("written");
        wait_until_idle(&bench.ring);
    }
}

/// An acknowledged write was overwritten by an older one that had failed for its time limit.
#[test]
fn nothing_is_sent_to_a_device_that_may_still_make_a_write_beyond_its_limit() {
    for backend in backends() {
        if backend == RingBackend::Threads {
            continue; // helpers use pwrite, which pipes do not have
        }
        let bench = Bench::new(backend);
        // A pipe whose other end does not read stands for a device that hangs.
        let (mut reader, mut writer) = std::io::pipe().expect("a pipe");
        let room = rustix::pipe::fcntl_getpipe_size(&writer).expect("a size");
        writer.write_all(&vec![0; room]).expect("written");
        let (fd, late): (Arc<OwnedFd>, _) = (Arc::new(writer.into()), Arc::default());
        let file = bench.ring.open_file(&fd, false, &late);
        let write = |seed: u8| {
            let data = Gather::from(Slice::from_bytes(&[seed; 4096]));
            Op::Write { file: Rc::clone(&file), data, offset: u64::MAX, done: 0, fixed: None, fua: false }
        };
        let timed = |op: Op, limit_ms| {
            let ring = bench.ring.clone();
            async move { super::DeviceDone(ring.start_timed(op, Duration::from_millis(limit_ms))).await }
        };
        for seed in [1, 2] {
            let error = bench.run(timed(write(seed), 30)).expect_err("no answer");
            assert_eq!((error.kind, late.any()), (DeviceErrorKind::Timeout, true));
        }
        assert_eq!(bench.ring.operations(), 1, "the second one was never sent");
        // The device answers after all, while a third one waits.
        let mut drained = vec![0; room];
        let third = bench.executor.spawn_with_result(timed(write(3), 60_000));
        bench.executor.run_ready(usize::MAX);
        reader.read_exact(&mut drained).expect("read");
        bench.run(third).expect("sent");
        assert!(!late.any() && bench.ring.operations() == 0);
        let mut written = [0; 2 * 4096];
        reader.read_exact(&mut written).expect("read");
        assert!(written == [[1; 4096], [3; 4096]].concat()[..], "in order, without the one that failed");
    }
}

/// With as many operations at a device that hangs as the ring had room for, those of the others waited behind them until
/// they, too, were beyond their time limit, and healthy members failed.
#[test]
fn a_device_that_hangs_does_not_hold_up_the_others() {
    for backend in backends() {
        if backend == RingBackend::Threads {
            continue; // helpers use pread, which pipes do not have
        }
        let bench = Bench::new(backend);
        let (reader, writer) = std::io::pipe().expect("a pipe");
        let hung = unregistered(reader.into());
        let healthy = tempfile::tempfile().expect("a file");
        healthy.set_len(1 << 20).expect("a length");
        let healthy = bench.ring.open_file(&Arc::new(healthy.into()), false, &Arc::default());
        let read = |file: &Rc<RingFile>, offset| {
            let op =
                Op::Read { file: Rc::clone(file), buffer: Buffer::new(512), offset, done: 0, fixed: None };
            super::DeviceRead(bench.ring.start_timed(op, Duration::from_millis(400)))
        };
        let waiting: Vec<_> = (0..3000).map(|_| read(&hung, u64::MAX)).collect();
        let sockets: Vec<_> = (0..600).map(|_| pair()).collect();
        let idle: Vec<_> =
            sockets.iter().map(|(left, _)| bench.ring.recv(left, Buffer::new(8), 0..8)).collect();
        for _ in 0..50 {
            let (_, result) = bench.run(read(&healthy, 4096));
            result.expect("its device answers");
        }
        for read in waiting {
            let error = bench.run(read).1.expect_err("no answer");
            assert_eq!(error.kind, DeviceErrorKind::Timeout);
        }
        let sent = bench.ring.operations() - idle.len();
        assert_eq!(sent, super::lane::WIDTH, "the others were not sent, and hold no memory");
        // It answers after all; no future waits for that any more.
        (&writer).write_all(&[7; super::lane::WIDTH * 512]).expect("written");
        drop(idle);
        wait_until_idle(&bench.ring);
    }
}

/// What a program that flushes often costs its device: not one flush for each.
#[test]
fn flushes_at_the_same_time_share_one() {
    for backend in backends() {
        let bench = Bench::new(backend);
        let file = tempfile::tempfile().expect("a file");
        let target = bench.ring.open_file(&Arc::new(file.into()), false, &Arc::default());
        let flush = || super::DeviceDone(bench.ring.start(Op::Flush { file: Rc::clone(&target) }));
        let (first, mut others): (_, Vec<_>) = (flush(), (0..100).map(|_| flush()).collect());
        others.drain(..10); // dropped: the one that leads, too
        let sent_before = bench.ring.system_operations();
        assert_eq!(sent_before, 1, "the others came after it began");
        bench.run(first).expect("flushed");
        assert!(bench.ring.system_operations() <= 1, "those share one");
        for flush in others {
            bench.run(flush).expect("flushed");
        }
        assert_eq!(bench.ring.operations(), 0);
    }
}

#[test]
fn a_device_that_hangs_does_not_hold_up_the_end() {
    let options = RingOptions {
        drain_limit: Duration::from_millis(200),
        backend: RingBackend::IoUring,
        ..Default::default()
    };
    let Ok(ring) = Ring::new(&options) else { return eprintln!("skipped: no io_uring here") };
    let (reader, mut writer) = std::io::pipe().expect("a pipe");
    let file = unregistered(reader.into());
    let buffer = Buffer::from_bytes(&pattern(3, 4096));
    let kept: *const u8 = buffer.bytes().as_ptr();
    let op = Op::Read { file, buffer, offset: u64::MAX, done: 0, fixed: None };
    drop(super::DeviceRead(ring.start_timed(op, Duration::from_millis(40))));
    ring.submit();
    let start = Instant::now();
    drop(ring);
    let took = start.elapsed();
    assert!(took >= Duration::from_millis(200) && took < Duration::from_secs(5), "{took:?}");
    // The answer comes after all: into memory that no other operation has got meanwhile.
    writer.write_all(&pattern(4, 4096)).expect("written");
    let others: Vec<Buffer> = (0..64).map(|_| Buffer::from_bytes(&pattern(5, 4096))).collect();
    assert!(others.iter().all(|other| other.bytes().as_ptr() != kept));
    assert!(others.iter().all(|other| other.bytes() == &pattern(5, 4096)[..]));
}

#[test]
fn sleeps_end_in_order_and_dropped_ones_leave_nothing() {
    for backend in backends() {
        let bench = Bench::new(backend);
        let (ring, executor) = (bench.ring.clone(), bench.executor.clone());
        let order = bench.run(async move {
            for _ in 0..1000 {
                drop(ring.sleep(Duration::from_secs(1000)));
            }
            assert_eq!(ring.operations(), 0);
            let start = Instant::now();
            let order = Rc::new(std::cell::RefCell::new(Vec::new()));
            for ms in [30u64, 10, 20] {
                let (ring, order) = (ring.clone(), Rc::clone(&order));
                // Tasks run in the order in which they were woken, also when a slow machine sees several ends at once.
                executor.spawn(async move {
                    ring.sleep(Duration::from_millis(ms)).await;
                    order.borrow_mut().push(ms);
                });
            }
            while order.borrow().len() < 3 {
                ring.sleep(Duration::from_millis(1)).await;
            }
            assert!(start.elapsed() >= Duration::from_millis(30));
            order.take()
        });
        assert_eq!(order, [10, 20, 30]);
    }
}

#[test]
fn a_task_that_never_waits_does_not_starve_the_system() {
    let bench = Bench::new(RingBackend::Auto);
    let (left, right) = pair();
    let (ring, received) = (bench.ring.clone(), Rc::new(Cell::new(false)));
    let done = Rc::clone(&received);
    let receiver = bench.ring.clone();
    bench.executor.spawn(async move {
        receiver.recv_exact(&right, Buffer::new(4), 0..4).await.1.expect("received");
        done.set(true);
    });
    bench.run(async move {
        ring.send_all(&left, Slice::from_bytes(b"busy").into()).await.expect("sent");
        while !received.get() {
            ring.reap_for_test();
            yield_now().await;
        }
    });
}

impl Ring {
    /// Operations that the system has and has not answered.
    fn system_operations(&self) -> u32 {
        self.inner.core.borrow().backend.in_flight()
    }

    /// Stands for the turns of a shard that always has something to run.
    fn reap_for_test(&self) {
        self.submit();
        self.reap();
    }
}

#[test]
fn slots_and_cores_have_the_expected_size() {
    // A slot is copied when its operation starts and when it ends: keep it within three cache lines.
    let bytes = size_of::<super::slots::Slot>();
    assert!(bytes <= 192, "a slot has {bytes} bytes");
    assert!(size_of::<Core>() < 1024);
}

#[test]
fn a_command_of_nvme_is_sent_once_whatever_its_result() {
    use super::op::Step;
    use engine::zone_device::ZoneChange;
    let null = std::fs::File::open("/dev/null").expect("there is one");
    let file = RingFile::nvme(Arc::new(null.into()), Arc::default());
    let io = super::nvme::NvmeIo::Change(ZoneChange::Reset);
    let mut op = Op::Nvme { file, command: super::nvme::NvmeCommand::new(io, 1, (0, 0), (0, 0)) };
    for errno in [libc::EINTR, libc::EAGAIN, libc::EIO] {
        // An aborted append may have been made: a second one would be another.
        assert_eq!(op.advance(-errno), Step::Done(-errno));
    }
    assert_eq!(op.advance(0), Step::Done(0));
}
