//! A record: the writes to members that one stripe write is about to make, with their contents. Each slot holds one.

use zerocopy::{FromBytes, FromZeros, IntoBytes};

use super::VERSION;
use super::area::SlotPlan;
use super::raw::{PIECES_MAX, RawPiece, RawRecord};
use crate::Checksum;
use crate::headroom::{BLOCK_BYTES, Place, RecordError, RecordKind, sealed};
use crate::units::{MemberOffset, Slot, Stripe};

const KIND: RecordKind = RecordKind { magic: *b"TwRedoR\0", name: "redo log", versions: 1..=VERSION };

/// What a piece writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PieceKind {
    /// The bytes that follow in the payload.
    Data = 0,
    /// Zeroes, which are not in the payload.
    Zeroes = 1,
    /// New contents of a data chunk whose member is missing; they are in the payload. Replay computes parity from them
    /// and from the other data chunks as they are on the members.
    Missing = 2,
    /// A write that is not in the payload, beside a missing chunk that is, or that a piece of kind [`PieceKind::Partial`] tells. After a crash the member may have old or new contents
    /// there; older records of this place are obsolete.
    Unlogged = 3,
    /// What parity of these rows says of a missing data chunk without what is written: the XOR of that chunk and of all data chunks
    /// that no piece of kind [`PieceKind::Unlogged`] of this record has in these rows. It is in the payload, and `member` is the
    /// missing one. Replay computes the missing chunk from it and from those chunks as the members hold them.
    Partial = 4,
}

impl PieceKind {
    const ALL: [PieceKind; 5] =
        [PieceKind::Data, PieceKind::Zeroes, PieceKind::Missing, PieceKind::Unlogged, PieceKind::Partial];

    /// Its number on disk.
    fn code(self) -> u8 {
        self as u8
    }
}

/// One write to a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RedoPiece {
    /// The stripe it belongs to, the first of several for zeroes.
    pub stripe: Stripe,
    /// The member's slot in the array.
    pub member: Slot,
    /// Where in the member's data area.
    pub offset: MemberOffset,
    /// How many bytes.
    pub bytes: u64,
    /// What is written.
    pub kind: PieceKind,
}

impl RedoPiece {
    /// Bytes of the payload that belong to this piece.
    #[must_use]
    pub fn payload_bytes(&self) -> u64 {
        match self.kind {
            PieceKind::Data | PieceKind::Missing | PieceKind::Partial => self.bytes,
            PieceKind::Zeroes | PieceKind::Unlogged => 0,
        }
    }
}

/// A record's checked header. Its payload may still be torn.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RedoRecord {
    /// [`super::RedoHeader::epoch`] when it was written.
    pub epoch: u64,
    /// Counts up with every record of an epoch. Replay goes in this order.
    pub sequence: u64,
    /// How many members the record was written to.
    pub copies: u32,
    /// CRC-32C of the payload.
    pub payload_checksum: u32,
    /// The writes. Their contents follow each other in the payload, in the same order.
    pub pieces: Vec<RedoPiece>,
}

/// A record whose header and payload were checked: replay may apply it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WholeRecord {
    record: RedoRecord,
    payload: Vec<u8>,
}

impl RedoRecord {
    /// Checks `bytes`, the first [`BLOCK_BYTES`] of the slot at `place`.
    ///
    /// # Errors
    /// [`RecordError`] names the first thing that is wrong.
    pub fn parse(bytes: &[u8], place: Place, plan: SlotPlan) -> Result<RedoRecord, RecordError> {
        let block = KIND.check(bytes, BLOCK_BYTES, place)?;
        let (raw, rest) = RawRecord::read_from_prefix(block).expect("a block");
        let wrong = |field, found: u64, expected| Err(RecordError::Field { field, found, expected });
        let count = raw.pieces.get() as usize;
        if count > PIECES_MAX {
            return wrong("pieces", count as u64, "as many as the record holds");
        }
        let raws = <[RawPiece]>::ref_from_prefix_with_elems(rest, count).expect("pieces that fit").0;
        let mut pieces = Vec::with_capacity(count);
        let mut payload_bytes = 0u64;
        for raw in raws {
            let Some(kind) = PieceKind::ALL.into_iter().find(|kind| kind.code() == raw.kind) else {
                return wrong("kind", raw.kind.into(), "0 to 4");
            };
            let (offset_bytes, bytes) = (raw.offset.get(), raw.bytes.get());
            if bytes == 0 || offset_bytes.checked_add(bytes).is_none() {
                return wrong("bytes", bytes, "a place on a member");
            }
            let (stripe, member) = (Stripe::new(raw.stripe.get()), Slot::new(raw.member.get().into()));
            let offset = MemberOffset::new(offset_bytes);
            let piece = RedoPiece { stripe, member, offset, bytes, kind };
            payload_bytes = payload_bytes.saturating_add(piece.payload_bytes());
            pieces.push(piece);
        }
        if payload_bytes > plan.payload_bytes() as u64 || payload_bytes != u64::from(raw.payload_bytes.get())
        {
            return wrong(
                "payload_bytes",
                raw.payload_bytes.get().into(),
                "the sum of the pieces, in a slot",
            );
        }
        Ok(RedoRecord {
            epoch: raw.epoch.get(),
            sequence: raw.sequence.get(),
            copies: raw.copies.get(),
            payload_checksum: raw.payload_checksum.get(),
            pieces,
        })
    }

    /// The block to write before the payload, at `place`.
    ///
    /// # Panics
    /// If there are more than [`PIECES_MAX`] pieces, or more than 4 GiB of contents.
    #[must_use]
    pub fn encode(&self, place: Place) -> Vec<u8> {
        assert!(self.pieces.len() <= PIECES_MAX, "{} pieces", self.pieces.len());
        let mut raw = RawRecord::new_zeroed();
        raw.start = KIND.start(place);
        raw.epoch.set(self.epoch);
        raw.sequence.set(self.sequence);
        raw.payload_bytes.set(u32::try_from(self.payload_bytes()).expect("a payload fits in a slot"));
        raw.payload_checksum.set(self.payload_checksum);
        raw.pieces.set(self.pieces.len() as u32);
        raw.copies.set(self.copies);
        let mut block = raw.as_bytes().to_vec();
        for piece in &self.pieces {
            let mut raw = RawPiece::new_zeroed();
            raw.stripe.set(piece.stripe.get());
            raw.offset.set(piece.offset.get());
            raw.bytes.set(piece.bytes);
            raw.member.set(u16::try_from(piece.member.get()).expect("a slot is below 1920"));
            raw.kind = piece.kind.code();
            block.extend_from_slice(raw.as_bytes());
        }
        sealed(block)
    }

    /// Length of the payload.
    #[must_use]
    pub fn payload_bytes(&self) -> usize {
        let bytes: u64 = self.pieces.iter().map(RedoPiece::payload_bytes).sum();
        usize::try_from(bytes).expect("a payload fits in memory")
    }

    /// Checks the payload that was read after the header.
    ///
    /// # Errors
    /// [`RecordError::Truncated`], or [`RecordError::Checksum`] if the record is torn.
    pub fn complete(self, payload: Vec<u8>) -> Result<WholeRecord, RecordError> {
        let needed = self.payload_bytes();
        if payload.len() != needed {
            return Err(RecordError::Truncated { found: payload.len(), needed });
        }
        let expected = Checksum::of(&payload);
        if expected != self.payload_checksum {
            return Err(RecordError::Checksum { found: self.payload_checksum, expected });
        }
        Ok(WholeRecord { record: self, payload })
    }
}

impl WholeRecord {
    /// Its header.
    #[must_use]
    pub fn record(&self) -> &RedoRecord {
        &self.record
    }

    /// The writes in order, each with its contents, if the record has them.
    pub fn writes(&self) -> impl Iterator<Item = (RedoPiece, &[u8])> {
        let mut at = 0;
        self.record.pieces.iter().map(move |piece| {
            let end = at + piece.payload_bytes() as usize;
            let contents = &self.payload[at..end];
            at = end;
            (*piece, contents)
        })
    }
}
