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
/// machine's.
pub(super) fn capability() -> [u8; CAPABILITY_BYTES] {
    static CAPABILITY: OnceLock<[u8; CAPABILITY_BYTES]> = OnceLock::new();
    *CAPABILITY.get_or_init(|| {
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let started = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        let process = format!("{} {:?}", std::process::id(), started.unwrap_or_default());
        let mut bytes = [0; CAPABILITY_BYTES];
        // A machine that does not tell one boot from the next has no boot id.
        if !boot.trim().is_empty() {
            bytes[..MARK.len()].copy_from_slice(MARK);
            bytes[BOOT_ID_AT..MACHINE_AT].copy_from_slice(&quarter(&process));
            bytes[MACHINE_AT..].copy_from_slice(&quarter(boot.trim()));
        }
        bytes
    })
}

fn quarter(text: &str) -> [u8; 4] {
    let digest = HashFunction::Sha256.digest(text.as_bytes());
    digest[..4].try_into().expect("a digest is longer")
}
