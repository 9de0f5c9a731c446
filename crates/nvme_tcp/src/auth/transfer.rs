//! Authentication Send and Receive: the commands that carry the messages.

use super::message::MESSAGE_BYTES_MAX;
use crate::command::{Sqe, fabrics};
use crate::status::Status;

/// The protocol that the commands name: NVMe (E9h), and its own part 0101h for DH-HMAC-CHAP.
const PROTOCOL: u32 = 0xe901_0100;
/// Hosts hand in buffers of one length for all messages, which is that of a page.
pub const TRANSFER_BYTES_MAX: u32 = 4096;
const _: () = assert!(MESSAGE_BYTES_MAX <= TRANSFER_BYTES_MAX as usize);

/// In the completion of Connect, beside the controller's number: the host has to authenticate on this queue.
pub const CONNECT_REQUIRES_AUTHENTICATION: u32 = 1 << 17;

/// How many bytes an Authentication Send or Receive carries.
///
/// # Errors
/// Invalid Field: another protocol, no bytes, or more than any message has.
pub fn transfer_bytes(sqe: &Sqe) -> Result<u32, Status> {
    let bytes = sqe.cdw11.get();
    let is_known = sqe.cdw10.get() & 0xffff_ff00 == PROTOCOL;
    if is_known && (1..=TRANSFER_BYTES_MAX).contains(&bytes) { Ok(bytes) } else { Err(Status::INVALID_FIELD) }
}

/// A command that carries a message of so many bytes to the controller, or fetches one.
#[must_use]
pub fn transfer(sends: bool, bytes: u32) -> Sqe {
    let kind = if sends { fabrics::AUTHENTICATION_SEND } else { fabrics::AUTHENTICATION_RECEIVE };
    let mut sqe = Sqe::fabrics(kind);
    sqe.cdw10.set(PROTOCOL);
    sqe.cdw11.set(bytes);
    sqe
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_protocols_and_lengths_are_refused() {
        let good = transfer(true, 72);
        // As the kernel's host has them: SPSP0, SPSP1 and SECP in bytes 41 to 43.
        assert_eq!(zerocopy::IntoBytes::as_bytes(&good)[40..48], [0, 1, 1, 0xe9, 72, 0, 0, 0]);
        assert_eq!(transfer_bytes(&good), Ok(72));
        for (dword10, dword11) in
            [(0xe901_0000, 72), (0xe900_0100, 72), (0xe801_0100, 72), (PROTOCOL, 0), (PROTOCOL, 4097)]
        {
            let mut bad = good;
            bad.cdw10.set(dword10);
            bad.cdw11.set(dword11);
            assert_eq!(transfer_bytes(&bad), Err(Status::INVALID_FIELD));
        }
    }
}
