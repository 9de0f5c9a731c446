//! The memory that this process may have: the machine's, or less where a control group or a resource limit sets less.

mod cgroup;

use std::fmt;

use rustix::process::{Resource, getrlimit};

/// What bounds the memory of this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LimitedBy {
    /// The machine has no more.
    Machine,
    /// `memory.max` or `memory.high` of its control group or of one above (version 1: `memory.limit_in_bytes`).
    ControlGroup,
    /// RLIMIT_AS (`ulimit -v`).
    AddressSpace,
    /// RLIMIT_DATA (`ulimit -d`).
    DataSize,
}

impl fmt::Display for LimitedBy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            LimitedBy::Machine => "this machine's memory",
            LimitedBy::ControlGroup => "the memory that the control group allows",
            LimitedBy::AddressSpace => "the address space that ulimit -v allows",
            LimitedBy::DataSize => "the data that ulimit -d allows",
        })
    }
}

/// The most memory that this process may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryLimit {
    /// In bytes.
    pub bytes: u64,
    /// The least of the limits.
    pub by: LimitedBy,
}

impl MemoryLimit {
    /// The least of all limits of this process, as they are now.
    pub fn of_this_process() -> Self {
        let resource = |resource| getrlimit(resource).current.unwrap_or(u64::MAX);
        Self::least([
            (memory_bytes(), LimitedBy::Machine),
            (cgroup::limit_bytes().unwrap_or(u64::MAX), LimitedBy::ControlGroup),
            (resource(Resource::As), LimitedBy::AddressSpace),
            (resource(Resource::Data), LimitedBy::DataSize),
        ])
    }

    fn least(limits: [(u64, LimitedBy); 4]) -> Self {
        let (bytes, by) = limits.into_iter().min_by_key(|(bytes, _)| *bytes).expect("four limits");
        MemoryLimit { bytes, by }
    }

    /// Whether an allocation can fail before memory is used: by a resource limit. Elsewhere the system grants every allocation
    /// and kills a process of its choice when memory runs out.
    pub fn refuses_allocations(&self) -> bool {
        matches!(self.by, LimitedBy::AddressSpace | LimitedBy::DataSize)
    }
}

/// Memory of this machine in bytes.
pub fn memory_bytes() -> u64 {
    let info = rustix::system::sysinfo();
    info.totalram.saturating_mul(u64::from(info.mem_unit))
}

/// A request for more than half of the memory that this process may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{} MiB are more than half of {}, {} MiB", .asked >> 20, .limit.by, .limit.bytes >> 20)]
pub struct TooMuch {
    /// Bytes that were asked for.
    pub asked: u64,
    /// What the process may have.
    pub limit: MemoryLimit,
}

/// Refuses an amount of memory for which the system would sooner or later kill the process.
///
/// # Errors
/// It is more than half of what the process may have.
pub fn check_memory(asked: u64) -> Result<(), TooMuch> {
    let limit = MemoryLimit::of_this_process();
    if asked > limit.bytes / 2 { Err(TooMuch { asked, limit }) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_what_the_kernel_says() {
        let text = std::fs::read_to_string("/proc/meminfo").unwrap();
        let kib = text.lines().find_map(|line| line.strip_prefix("MemTotal:")).unwrap();
        let kib: u64 = kib.trim().trim_end_matches(" kB").parse().unwrap();
        assert_eq!(memory_bytes(), kib << 10);
        assert!(MemoryLimit::of_this_process().bytes <= memory_bytes());
    }

    #[test]
    fn the_least_limit_counts_and_names_itself() {
        let limits = |machine, group, space, data| {
            MemoryLimit::least([
                (machine, LimitedBy::Machine),
                (group, LimitedBy::ControlGroup),
                (space, LimitedBy::AddressSpace),
                (data, LimitedBy::DataSize),
            ])
        };
        let none = u64::MAX;
        for (limit, bytes, by, refuses) in [
            (limits(8, none, none, none), 8, LimitedBy::Machine, false),
            (limits(8, 3, none, none), 3, LimitedBy::ControlGroup, false),
            (limits(8, 3, 2, none), 2, LimitedBy::AddressSpace, true),
            (limits(8, 3, 2, 1), 1, LimitedBy::DataSize, true),
            (limits(8, 9, 9, 9), 8, LimitedBy::Machine, false), // a limit above the machine's memory is none
        ] {
            assert_eq!((limit.bytes, limit.by, limit.refuses_allocations()), (bytes, by, refuses));
        }
        let limit = MemoryLimit { bytes: 64 << 20, by: LimitedBy::ControlGroup };
        let words = TooMuch { asked: 40 << 20, limit }.to_string();
        assert_eq!(words, "40 MiB are more than half of the memory that the control group allows, 64 MiB");
    }
}
