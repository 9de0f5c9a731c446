//! Clocks. Time of the processor comes from the thread's own clock, so that other work on the machine does not count.

use rustix::time::{ClockId, clock_gettime};

/// Nanoseconds for which this thread ran.
pub(crate) fn thread_cpu_ns() -> u64 {
    nanoseconds(ClockId::ThreadCPUTime)
}

/// Nanoseconds since some moment; about 20 ns a call.
pub(crate) fn now_ns() -> u64 {
    nanoseconds(ClockId::Monotonic)
}

/// Nanoseconds for which all threads of this process ran.
pub(crate) fn process_cpu_ns() -> u64 {
    nanoseconds(ClockId::ProcessCPUTime)
}

/// Nanoseconds of clock ticks as /proc counts them: 100 a second on Linux, independent of the kernel's own rate.
pub(crate) fn ticks_ns(ticks: u64) -> u64 {
    ticks * 10_000_000
}

fn nanoseconds(clock: ClockId) -> u64 {
    let time = clock_gettime(clock);
    time.tv_sec.unsigned_abs() * 1_000_000_000 + time.tv_nsec.unsigned_abs()
}
