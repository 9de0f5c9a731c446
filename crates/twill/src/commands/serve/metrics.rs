//! `serve --metrics`: the state of an array for Prometheus, whether it serves, and a page for a browser, over HTTP.
//!
//! One thread answers. What it says is gathered at each request, as for `status`, and never waited for longer than callers wait.

use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;
use std::{io, thread};

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::middleware::from_fn;
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, get};
use tokio::sync::Semaphore;

use self::bounded_listener::BoundedListener;
pub use self::changes::Token;
use self::scrape::text;
use super::{Controlled, page};
use crate::failure::Failure;

mod bounded_listener;
mod changes;
mod scrape;

/// How long one answer may take: Prometheus waits ten seconds.
const TIME_LIMIT: Duration = Duration::from_secs(3);
/// Answers that are gathered at once. Where a member hangs, so does each of them.
const AT_ONCE: usize = 4;

/// How often to look whether the array was stopped: another start of it may want the address.
const LOOK: Duration = Duration::from_millis(100);

const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

struct Metrics {
    array: Arc<Controlled>,
    permits: Arc<Semaphore>,
    /// With the token the page may change the array.
    may_change: bool,
}

/// Answers at an address until the array is stopped. Requests with the token may change the array.
///
/// # Errors
/// The address is taken, or there are no threads left.
pub fn answer(address: SocketAddr, token: Option<Token>, array: Arc<Controlled>) -> io::Result<()> {
    array.show_latencies();
    let listener = TcpListener::bind(address)?;
    listener.set_nonblocking(true)?;
    tracing::info!("a page for a browser is at http://{}/", listener.local_addr()?);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (permits, may_change) = (Arc::new(Semaphore::new(AT_ONCE)), token.is_some());
    let metrics = Arc::new(Metrics { array, permits, may_change });
    let array = Arc::clone(&metrics.array);
    let stopped = async move {
        while !array.is_over() {
            tokio::time::sleep(LOOK).await;
        }
    };
    let routes = routes(address.ip().is_loopback(), changes::route(Arc::clone(&metrics.array), token));
    thread::Builder::new().name("metrics".into()).spawn(move || {
        let served = runtime.block_on(async {
            let listener = BoundedListener::new(tokio::net::TcpListener::from_std(listener)?);
            axum::serve(listener, routes.with_state(metrics)).with_graceful_shutdown(stopped).await
        });
        if let Err(error) = served {
            tracing::warn!(%address, %error, "there are no metrics any more");
        }
    })?;
    Ok(())
}

fn routes(is_local: bool, changes: MethodRouter<Arc<Metrics>>) -> Router<Arc<Metrics>> {
    let page = page::paths().fold(Router::new(), |page, path| page.route(path, get(page::file)));
    let page = page.route("/overview.json", get(overview)).route("/changes", changes);
    let page = if is_local { page.route_layer(from_fn(page::only_local_names)) } else { page };
    page.route("/metrics", get(metrics_page)).route("/health", get(health_page))
}

async fn overview(State(metrics): State<Arc<Metrics>>) -> Response {
    match metrics.gathered(Controlled::overview).await {
        Ok(overview) => page::answer(vec![overview], metrics.may_change),
        Err(words) => (StatusCode::SERVICE_UNAVAILABLE, words).into_response(),
    }
}

async fn metrics_page(State(metrics): State<Arc<Metrics>>) -> Response {
    let gather = |array: &Controlled| array.status().map(|status| (status, array.latencies()));
    match metrics.gathered(gather).await {
        Ok((status, latencies)) => {
            ([(header::CONTENT_TYPE, OPEN_METRICS)], text(status, latencies)).into_response()
        }
        Err(words) => (StatusCode::SERVICE_UNAVAILABLE, words).into_response(),
    }
}

/// Whether clients are served, for a load balancer or a container: 200 also where members are missing.
async fn health_page(State(metrics): State<Arc<Metrics>>) -> Response {
    match metrics.gathered(Controlled::status).await {
        Ok(status) if status.failed => (StatusCode::SERVICE_UNAVAILABLE, status.state + "\n").into_response(),
        Ok(status) => (status.state + "\n").into_response(),
        Err(words) => (StatusCode::SERVICE_UNAVAILABLE, words).into_response(),
    }
}

impl Metrics {
    async fn gathered<T: Send + 'static>(
        &self,
        gather: impl FnOnce(&Controlled) -> Result<T, Failure> + Send + 'static,
    ) -> Result<T, String> {
        let Ok(permit) = Arc::clone(&self.permits).try_acquire_owned() else {
            return Err("earlier requests are not answered yet: a member may hang\n".to_owned());
        };
        let array = Arc::clone(&self.array);
        let gather = tokio::task::spawn_blocking(move || {
            let gathered = gather(&array);
            drop(permit); // not before, however long it takes
            gathered
        });
        match tokio::time::timeout(TIME_LIMIT, gather).await {
            Err(_) => Err(format!(
                "the array does not answer within {} s: a member may hang\n",
                TIME_LIMIT.as_secs()
            )),
            Ok(Err(error)) => Err(format!("{error}\n")),
            Ok(Ok(gathered)) => gathered.map_err(|failure| failure.message + "\n"),
        }
    }
}
