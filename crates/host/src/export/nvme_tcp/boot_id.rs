//! Which boot of which machine, and which process, serves: a host that has lost its association sees whether the machine has
//! restarted, and with it writes that were not flushed are gone (F-I17).

use std::sync::OnceLock;

use nvme_tcp::HashFunction;
use nvme_tcp::identify::CAPABILITY_BYTES;

/// What the capability begins with: no command of Twill's own is known yet, so no more is told.
const MARK: &[u8] = b"TwFab\0\0\0";
const BOOT_ID_AT: usize = 16;
const MACHINE_AT: usize = 20;

/// What a controller says of itself in the vendor's area: the lower half of the boot id is the process's, the upper one the
/// machine's with that of its drives. `drives` differs whenever one of them may have lost its cache alone.
pub(super) fn capability(drives: &str) -> [u8; CAPABILITY_BYTES] {
    static PROCESS: OnceLock<String> = OnceLock::new();
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let process = PROCESS.get_or_init(|| {
        let started = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        format!("{} {:?}", std::process::id(), started.unwrap_or_default())
    });
    boot_id(boot.trim(), drives, process)
}

fn boot_id(boot: &str, drives: &str, process: &str) -> [u8; CAPABILITY_BYTES] {
    let mut bytes = [0; CAPABILITY_BYTES];
    // A machine that does not tell one boot from the next has no boot id.
    if !boot.is_empty() {
        bytes[..MARK.len()].copy_from_slice(MARK);
        bytes[BOOT_ID_AT..MACHINE_AT].copy_from_slice(&quarter(process));
        bytes[MACHINE_AT..].copy_from_slice(&quarter(&format!("{boot} {drives}")));
    }
    bytes
}

fn quarter(text: &str) -> [u8; 4] {
    let digest = HashFunction::Sha256.digest(text.as_bytes());
    digest[..4].try_into().expect("a digest is longer")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_drive_that_went_and_came_back_is_as_a_machine_that_did() {
        let machine = |boot, drives, process| boot_id(boot, drives, process)[MACHINE_AT..].to_vec();
        let was = machine("boot", "7", "1");
        assert_eq!(machine("boot", "7", "2"), was, "another process");
        assert_ne!(machine("boot", "8", "1"), was, "the drive came back");
        assert_ne!(machine("boot 2", "7", "1"), was, "the machine came back");
        assert_eq!(boot_id("", "7", "1"), [0; CAPABILITY_BYTES]);
    }
}
