//! The exports by name: what a client may choose, added and removed while clients are connected.

use super::connection::Totals;
use super::negotiate::ExportInfo;
use super::protocol::STRING_BYTES_MAX;
use super::tls::TlsWire;
use super::transmission::{Link, ReceiveError, serve_volume};
use crate::shard::ShardContext;
use crate::wire::PlainWire;
use engine::volume::{Volume, VolumeInfo};
use parking_lot::{Mutex, RwLock};
use serde::Serialize;
use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The least preferred size that clients learn: the block of the parity arithmetic.
const PREFERRED_BYTES_MIN: u32 = 4096;

/// The largest preferred size that clients learn. They allocate buffers of it, so a chunk of 64 MiB is too much.
const PREFERRED_BYTES_MAX: u32 = 1 << 20;

/// How an export differs from its volume.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ExportOptions {
    /// A line for a person, shown in lists. At most 4096 bytes.
    pub description: String,
    /// No writes, even if the volume takes them.
    pub read_only: bool,
    /// The volume zeroes faster than it writes. Otherwise `FAST_ZERO` is answered with `ENOTSUP`, as the protocol text wants.
    pub fast_zero: bool,
}

/// Why an export was not added.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AddError {
    /// There is one of that name.
    #[error("there is an export named \"{0}\"")]
    Exists(String),
    /// Name or description is longer than the protocol allows.
    #[error("an export's name and description have at most {STRING_BYTES_MAX} bytes each")]
    TooLong,
}

/// A connection over one of the wires there are. What follows is compiled for each of them.
pub(super) enum AnyLink {
    Plain(Link<PlainWire>),
    Tls(Link<TlsWire>),
}

impl From<Link<PlainWire>> for AnyLink {
    fn from(link: Link<PlainWire>) -> Self {
        AnyLink::Plain(link)
    }
}

impl From<Link<TlsWire>> for AnyLink {
    fn from(link: Link<TlsWire>) -> Self {
        AnyLink::Tls(link)
    }
}

/// A client's transmission phase with a volume.
pub(super) type Transmission = Pin<Box<dyn Future<Output = Result<(), ReceiveError>>>>;

/// A volume of any type, from any shard.
trait Source: Send + Sync {
    fn info(&self, shard: &ShardContext) -> VolumeInfo;
    fn serve(&self, link: AnyLink) -> Transmission;
}

impl<V: Volume, F: Fn(&ShardContext) -> Rc<V> + Send + Sync> Source for F {
    fn info(&self, shard: &ShardContext) -> VolumeInfo {
        self(shard).info()
    }

    fn serve(&self, link: AnyLink) -> Transmission {
        match link {
            AnyLink::Plain(link) => Box::pin(serve_volume(self(&link.shard), link)),
            AnyLink::Tls(link) => Box::pin(serve_volume(self(&link.shard), link)),
        }
    }
}

/// One export.
pub struct Export {
    name: String,
    options: ExportOptions,
    source: Box<dyn Source>,
    removed: AtomicBool,
    /// Sums over connections that have ended.
    pub(super) ended: Mutex<Ended>,
}

/// Sums over connections that have ended.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Ended {
    pub connections: u64,
    pub totals: Totals,
}

impl Export {
    /// The canonical name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// How it differs from its volume.
    pub fn options(&self) -> &ExportOptions {
        &self.options
    }

    /// Whether it was removed while connections still use it.
    pub(super) fn is_removed(&self) -> bool {
        self.removed.load(Ordering::Acquire)
    }

    /// What a client on that shard learns of it.
    pub(super) fn info(&self, shard: &ShardContext) -> ExportInfo {
        let volume = self.source.info(shard);
        ExportInfo {
            name: self.name.clone(),
            description: self.options.description.clone(),
            size_bytes: volume.size_bytes,
            block_bytes: volume.logical_block_bytes,
            preferred_bytes: preferred_bytes(&volume),
            read_only: self.options.read_only || volume.read_only,
            fast_zero: self.options.fast_zero,
        }
    }

    /// Serves a client until it leaves.
    pub(super) fn serve(&self, link: impl Into<AnyLink>) -> Transmission {
        self.source.serve(link.into())
    }
}

/// The chunk where it is a power of two that clients take, as the protocol wants.
fn preferred_bytes(volume: &VolumeInfo) -> u32 {
    let chunk = volume.io_min_bytes.max(1);
    let power = if chunk.is_power_of_two() { chunk } else { 1 << chunk.trailing_zeros() };
    power.clamp(PREFERRED_BYTES_MIN.max(volume.logical_block_bytes), PREFERRED_BYTES_MAX)
}

/// The exports of a server.
#[derive(Default)]
pub struct Exports {
    table: RwLock<Table>,
}

#[derive(Default)]
struct Table {
    exports: BTreeMap<String, Arc<Export>>,
    default: Option<String>,
}

impl Exports {
    /// Adds an export. `open` gives the shard it is called on its handle of the volume; it is called once for each
    /// client that asks about the export and once for each that chooses it.
    pub fn add<V: Volume>(
        &self,
        name: &str,
        options: ExportOptions,
        open: impl Fn(&ShardContext) -> Rc<V> + Send + Sync + 'static,
    ) -> Result<(), AddError> {
        if name.len() > STRING_BYTES_MAX || options.description.len() > STRING_BYTES_MAX {
            return Err(AddError::TooLong);
        }
        let mut table = self.table.write();
        if table.exports.contains_key(name) {
            return Err(AddError::Exists(name.to_owned()));
        }
        let export = Export {
            name: name.to_owned(),
            options,
            source: Box::new(open),
            removed: AtomicBool::new(false),
            ended: Mutex::default(),
        };
        table.exports.insert(name.to_owned(), Arc::new(export));
        Ok(())
    }

    /// Chooses the export for clients that name none. Without a choice it is the only export, if there is only one.
    pub fn set_default(&self, name: Option<&str>) {
        self.table.write().default = name.map(str::to_owned);
    }

    /// The export of that name; of the empty one, the default export.
    pub fn find(&self, name: &str) -> Option<Arc<Export>> {
        let table = self.table.read();
        let found = table.exports.get(name);
        if found.is_some() || !name.is_empty() {
            return found.cloned();
        }
        match &table.default {
            Some(default) => table.exports.get(default).cloned(),
            None if table.exports.len() == 1 => table.exports.values().next().cloned(),
            None => None,
        }
    }

    /// Every export, by name.
    pub fn list(&self) -> Vec<Arc<Export>> {
        self.table.read().exports.values().cloned().collect()
    }

    /// Takes an export out, so that no new client finds it.
    pub(super) fn remove(&self, name: &str) -> Option<Arc<Export>> {
        let export = self.table.write().exports.remove(name)?;
        export.removed.store(true, Ordering::Release);
        Some(export)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn preferred_size_is_a_power_of_two_that_clients_take() {
        let preferred = |chunk: u32, block: u32| {
            preferred_bytes(&VolumeInfo {
                size_bytes: 1 << 30,
                logical_block_bytes: block,
                physical_block_bytes: 4096,
                io_min_bytes: chunk,
                io_opt_bytes: 0,
                read_only: false,
            })
        };
        assert_eq!(preferred(512 << 10, 512), 512 << 10);
        assert_eq!(preferred(64 << 20, 4096), 1 << 20);
        assert_eq!(preferred(512, 512), 4096);
        assert_eq!(preferred(0, 512), 4096);
        assert_eq!(preferred(96 << 10, 512), 32 << 10);
    }
}
