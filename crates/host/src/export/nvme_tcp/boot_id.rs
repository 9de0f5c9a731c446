//! Which boot of which machine, and which process, serves: a host that has lost its association sees whether the machine has
//! restarted, and with it writes that were not flushed are gone (F-I17).

use std::sync::OnceLock;

use nvme_tcp::HashFunction;
use nvme_tcp::vendor::{CAPABILITY_BYTES, Capability, MEMBERS_MAX, VERSION};

use super::connection_limits::OPS_IN_FLIGHT;

/// What a controller says of itself in the vendor's area: the lower half of the boot id is the process's, the upper one the
/// machine's with that of its drives. `drives` differs whenever one of them may have lost its cache alone. `fabric`: it takes
/// orders, and gives those for a member this many bytes of memory.
pub(super) fn capability(drives: &str, fabric: Option<u64>) -> [u8; CAPABILITY_BYTES] {
    static PROCESS: OnceLock<String> = OnceLock::new();
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let process = PROCESS.get_or_init(|| {
        let started = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        format!("{} {:?}", std::process::id(), started.unwrap_or_default())
    });
    let boot_id = boot_id(boot.trim(), drives, process);
    // It has nothing to say.
    if boot_id == 0 && fabric.is_none() {
        return [0; CAPABILITY_BYTES];
    }
    let none = Capability { version: 0, ops_in_flight: 0, retained_mib: 0, peers_max: 0, boot_id };
    let known = |memory: u64| Capability {
        version: VERSION,
        ops_in_flight: OPS_IN_FLIGHT,
        retained_mib: u16::try_from(memory.div_ceil(1 << 20)).unwrap_or(u16::MAX),
        peers_max: MEMBERS_MAX as u16 - 1,
        ..none
    };
    fabric.map_or(none, known).encode()
}

/// A machine that does not tell one boot from the next has none: 0.
fn boot_id(boot: &str, drives: &str, process: &str) -> u64 {
    if boot.is_empty() {
        return 0;
    }
    u64::from(half(&format!("{boot} {drives}"))) << 32 | u64::from(half(process))
}

fn half(text: &str) -> u32 {
    let digest = HashFunction::Sha256.digest(text.as_bytes());
    u32::from_le_bytes(digest[..4].try_into().expect("a digest is longer"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_drive_that_went_and_came_back_is_as_a_machine_that_did() {
        let machine = |boot, drives, process| boot_id(boot, drives, process) >> 32;
        let was = machine("boot", "7", "1");
        assert_eq!(machine("boot", "7", "2"), was, "another process");
        assert_ne!(machine("boot", "8", "1"), was, "the drive came back");
        assert_ne!(machine("boot 2", "7", "1"), was, "the machine came back");
        assert_eq!(boot_id("", "7", "1"), 0);
    }

    #[test]
    fn a_target_that_takes_orders_says_so() {
        let told = |fabric| Capability::parse(&capability("7", fabric));
        let takes = |memory| told(Some(memory)).expect("it says so");
        assert!(takes(128 << 20).knows_commands() && takes(128 << 20).ops_in_flight > 0);
        assert!(told(None).is_none_or(|told| !told.knows_commands() && told.ops_in_flight == 0));
        assert_eq!(takes(0).boot_id, told(None).map_or(0, |told| told.boot_id));
        for (memory, mib) in [(0, 0), (1, 1), (128 << 20, 128), (u64::MAX, u16::MAX)] {
            assert_eq!(takes(memory).retained_mib, mib);
        }
    }
}
