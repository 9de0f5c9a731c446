//! What happened in a history: a hash of all of it, which two runs of a seed must share, and the last part in words.

use std::collections::VecDeque;
use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};

use engine::device::DeviceErrorKind;

/// One thing that happened.
#[derive(Clone, Debug, Hash)]
pub(crate) enum Note {
    /// A member was sent an operation.
    Sent { disk: u32, operation: &'static str, offset: u64, bytes: u64, fua: bool },
    /// It is done.
    Done { disk: u32, operation: &'static str, offset: u64, bytes: u64, error: Option<DeviceErrorKind> },
    /// A client's request starts.
    Begin { request: u32, kind: &'static str, shard: usize, offset: u64, bytes: u64, fua: bool },
    /// It was answered.
    End { request: u32, ok: bool },
    /// Anything rare.
    Words(String),
}

pub(crate) struct Trace {
    hasher: DefaultHasher,
    tail: VecDeque<(u64, Note)>,
    tail_max: usize,
}

impl Trace {
    pub(crate) fn new(tail_max: usize) -> Self {
        Trace { hasher: DefaultHasher::new(), tail: VecDeque::new(), tail_max }
    }

    pub(crate) fn note(&mut self, now: u64, note: Note) {
        (now, &note).hash(&mut self.hasher);
        if self.tail.len() == self.tail_max {
            self.tail.pop_front();
        }
        self.tail.push_back((now, note));
    }

    pub(crate) fn hash(&self) -> u64 {
        self.hasher.finish()
    }

    pub(crate) fn tail(&self) -> Vec<String> {
        self.tail.iter().map(|(now, note)| format!("{now:>8}  {}", words(note))).collect()
    }
}

fn words(note: &Note) -> String {
    let mark = |fua: &bool| if *fua { " fua" } else { "" };
    match note {
        Note::Sent { disk, operation, offset, bytes, fua } => {
            format!("    member device {disk}: {operation} {bytes} at {offset}{}", mark(fua))
        }
        Note::Done { disk, operation, offset, bytes, error } => {
            let result = error.map_or_else(|| "done".to_string(), |kind| format!("{kind:?}"));
            format!("    member device {disk}: {operation} {bytes} at {offset} -> {result}")
        }
        Note::Begin { request, kind, shard, offset, bytes, fua } => {
            format!("request {request} on shard {shard}: {kind} {bytes} at {offset}{}", mark(fua))
        }
        Note::End { request, ok } => format!("request {request}: {}", if *ok { "ok" } else { "error" }),
        Note::Words(words) => words.clone(),
    }
}
