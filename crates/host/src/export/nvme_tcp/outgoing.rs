//! The sending side of a connection: what is ready leaves with one call, data from where it lies.

use engine::buffer::{Gather, Pool};
use nvme_tcp::command::Cqe;
use nvme_tcp::pdu::{Side, flag};
use nvme_tcp::session::{DataPart, STAGED_BYTES_MAX};
use nvme_tcp::target::queue::{Queue, Wish};
use std::io;
use std::rc::Rc;
use std::sync::Arc;

use super::link::{Item, Link};
use crate::shard::ShardContext;
use crate::tls::either::EitherWire;
use crate::wire::Wire as _;

/// Bytes after which no further answer joins a send, so that memory comes back while a slow host reads.
const SEND_BYTES: usize = 256 << 10;
/// PDUs in one send: their pieces stay below the system's limit.
const SEND_ITEMS_MAX: usize = 128;
/// The headers of one answer: data, its digest, and a completion.
const HEADS_BYTES_MAX: usize = 2 * STAGED_BYTES_MAX;

/// The task that sends.
pub(super) async fn send(link: Rc<Link>, shard: ShardContext, wire: EitherWire) {
    match send_items(&link, &shard, &wire).await {
        Ok(()) => wire.finish().await,
        Err(error) => tracing::debug!(%error, "answers cannot be sent"),
    }
    // Ends the receive that the reading task waits in, and tells the host.
    wire.shut_down();
    link.give_up();
}

async fn send_items(link: &Rc<Link>, shard: &ShardContext, wire: &EitherWire) -> io::Result<()> {
    let mut batch = Vec::new();
    while link.wait_for_items().await {
        link.take_batch(&mut batch, SEND_ITEMS_MAX, SEND_BYTES);
        let is_last = batch.iter().any(|item| matches!(item, Item::Last(_)));
        let (data, held) = link.with_queue(|queue| gather(queue, &mut batch, &shard.pool));
        let sent = wire.send_all(data).await;
        link.sent(held);
        sent?;
        if is_last {
            return Ok(());
        }
    }
    Ok(())
}

/// All headers in one buffer, the data where it lies; and what the answers among them held.
fn gather(queue: &mut Queue, batch: &mut Vec<Item>, pool: &Arc<Pool>) -> (Gather, usize) {
    let longest = |item: &Item| if let Item::Last(bytes) = item { bytes.len() } else { HEADS_BYTES_MAX };
    let mut heads = pool.take(batch.iter().map(longest).sum());
    let (mut at, mut held) = (0, 0);
    // Where headers end and data stands between them.
    let mut cuts = Vec::with_capacity(batch.len());
    for item in batch.drain(..) {
        let out = &mut heads.bytes_mut()[at..];
        let agreed = *queue.session().agreement();
        match item {
            Item::Begin => at += queue.session().encode_ic_resp(out),
            Item::Wish(Wish { cid, tag, offset, bytes }) => {
                at += agreed.encode_r2t(cid, tag, offset, bytes, out);
            }
            Item::Answer { slot, status, value, data, held_bytes } => {
                // A completion of another kind than plain success is never saved.
                let is_plain = !data.is_empty() && status.is_success() && value == 0;
                let is_saved = is_plain && queue.data_may_complete();
                if !data.is_empty() {
                    let flags = if is_saved { flag::LAST | flag::SUCCESS } else { flag::LAST };
                    let part = DataPart { cid: queue.cid(slot), tag: 0, offset: 0, bytes: data.len() as u32 };
                    at += agreed.encode_data(Side::Controller, &part, flags, out);
                    let pieces = data.slices().iter().map(engine::buffer::Slice::bytes);
                    let end = agreed.encode_data_end(pieces, &mut heads.bytes_mut()[at..]);
                    cuts.push((at, data));
                    at += end;
                }
                let cqe: Cqe = queue.complete(slot, status, value);
                if !is_saved {
                    at += agreed.encode_response(&cqe, &mut heads.bytes_mut()[at..]);
                }
                held += held_bytes;
            }
            Item::Last(bytes) => {
                out[..bytes.len()].copy_from_slice(&bytes);
                at += bytes.len();
            }
        }
    }
    let (heads, mut all, mut from) = (heads.freeze(), Gather::new(), 0);
    for (cut, data) in cuts {
        all.push(heads.part(from, cut - from));
        data.slices().iter().for_each(|slice| all.push(slice.clone()));
        from = cut;
    }
    all.push(heads.part(from, at - from));
    (all, held)
}
