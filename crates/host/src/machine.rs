//! The memory of this machine.

/// Memory of this machine in bytes.
pub fn memory_bytes() -> u64 {
    let info = rustix::system::sysinfo();
    info.totalram.saturating_mul(u64::from(info.mem_unit))
}

/// A request for more than half of this machine's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{} MiB are more than half of this machine's memory, {} MiB", .asked >> 20, .most >> 20)]
pub struct TooMuch {
    /// Bytes that were asked for.
    pub asked: u64,
    /// The most that is allowed, in bytes.
    pub most: u64,
}

/// Refuses an amount of memory for which the system would sooner or later kill the process.
///
/// # Errors
/// It is more than half of the machine's memory.
pub fn check_memory(asked: u64) -> Result<(), TooMuch> {
    let most = memory_bytes() / 2;
    if asked > most { Err(TooMuch { asked, most }) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    #[test]
    fn memory_is_what_the_kernel_says() {
        let text = std::fs::read_to_string("/proc/meminfo").unwrap();
        let kib = text.lines().find_map(|line| line.strip_prefix("MemTotal:")).unwrap();
        let kib: u64 = kib.trim().trim_end_matches(" kB").parse().unwrap();
        assert_eq!(super::memory_bytes(), kib << 10);
    }
}
