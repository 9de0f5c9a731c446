//! The page of `serve --metrics`: what `twill status` says, for a browser. Its files are part of the program.

use axum::Json;
use axum::extract::Request;
use axum::http::{StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use serde::Serialize;

use crate::overview::Overview;

const FILES: [(&str, &str, &str); 4] = [
    ("/", "text/html; charset=utf-8", include_str!("page/index.html")),
    ("/page.css", "text/css; charset=utf-8", include_str!("page/page.css")),
    ("/page.mjs", "text/javascript; charset=utf-8", include_str!("page/page.mjs")),
    ("/page.svg", "image/svg+xml", include_str!("page/page.svg")),
];

/// Nothing from elsewhere, and no script but the page's own: names of arrays and paths are text, whatever they are.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; \
    form-action 'none'; frame-ancestors 'none'";

/// Places of the page's files.
pub fn paths() -> impl Iterator<Item = &'static str> {
    FILES.iter().map(|(path, ..)| *path)
}

/// One of the page's files.
pub async fn file(request: Request) -> Response {
    let wanted = request.uri().path();
    let Some((_, kind, text)) = FILES.iter().find(|(path, ..)| *path == wanted) else {
        return StatusCode::NOT_FOUND.into_response();
    };
    let headers = [
        (header::CONTENT_TYPE, *kind),
        (header::CACHE_CONTROL, "no-cache"),
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
    ];
    (headers, *text).into_response()
}

#[derive(Serialize)]
struct Answer {
    version: &'static str,
    /// With the token they may be changed.
    may_change: bool,
    arrays: Vec<Overview>,
}

/// What the page shows.
pub fn answer(arrays: Vec<Overview>, may_change: bool) -> Response {
    let headers = [(header::CACHE_CONTROL, "no-store"), (header::X_CONTENT_TYPE_OPTIONS, "nosniff")];
    (headers, Json(Answer { version: env!("CARGO_PKG_VERSION"), may_change, arrays })).into_response()
}

/// Refuses names of other places: a web site elsewhere could give its name this machine's address, and have a browser here read the
/// page for it. Numbers are no names.
pub async fn only_local_names(request: Request, next: Next) -> Response {
    let host = request.headers().get(header::HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
    let name =
        host.rsplit_once(':').filter(|(_, port)| port.parse::<u16>().is_ok()).map_or(host, |(name, _)| name);
    let number = name.trim_start_matches('[').trim_end_matches(']');
    if name == "localhost" || number.parse::<std::net::IpAddr>().is_ok() {
        return next.run(request).await;
    }
    let words =
        format!("this page is for names of this machine, not for {name:?}: ask for localhost or 127.0.0.1\n");
    (StatusCode::MISDIRECTED_REQUEST, words).into_response()
}
