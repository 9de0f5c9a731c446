//! What an order did, in the first word of its completion.

/// What a target did of an order, and how busy it is. An order that failed says this, too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// The old contents were read.
    pub read: bool,
    /// The drive has answered that the new contents are written.
    pub written: bool,
    /// The contribution was taken by the first destination, and by the second.
    pub forwarded: [bool; 2],
    /// The sum is on the drive, or on its way to the host.
    pub applied: bool,
    /// The sum is what the drive has.
    pub equal: bool,
    /// The delta or the sum is still in memory.
    pub retained: bool,
    /// A write was handed to the drive.
    pub write_begun: bool,
    /// How much of what the target can send is in use, of 255.
    pub egress: u8,
    /// How much of what the target can receive is in use, of 255.
    pub ingress: u8,
    /// Credits given back: none, since a host knows what it has retired.
    pub credits: u8,
}

impl Outcome {
    /// The first word of the completion.
    #[must_use]
    pub fn encode(&self) -> u32 {
        let flags = [
            self.read,
            self.written,
            self.forwarded[0],
            self.forwarded[1],
            self.applied,
            self.equal,
            self.retained,
            self.write_begun,
        ];
        let flags = flags.iter().rev().fold(0, |bits, flag| bits << 1 | u8::from(*flag));
        u32::from_le_bytes([flags, self.egress, self.ingress, self.credits])
    }

    /// Reads the first word of a completion: every word is one.
    #[must_use]
    pub fn decode(word: u32) -> Outcome {
        let [flags, egress, ingress, credits] = word.to_le_bytes();
        let flag = |bit: u32| flags >> bit & 1 != 0;
        Outcome {
            read: flag(0),
            written: flag(1),
            forwarded: [flag(2), flag(3)],
            applied: flag(4),
            equal: flag(5),
            retained: flag(6),
            write_begun: flag(7),
            egress,
            ingress,
            credits,
        }
    }
}
