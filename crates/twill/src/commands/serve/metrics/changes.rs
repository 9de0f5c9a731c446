//! Changes that are asked for on the page: a check, members that come and go. A request for one carries the token of
//! `--metrics-token`. Nothing is forced or stopped from here: commands do that.

use std::fs::File;
use std::io::{self, Read as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, get};
use serde::Deserialize;
use serde_json::Value;
use subtle::ConstantTimeEq as _;
use tokio::sync::Semaphore;

use super::super::Controlled;
use crate::control::{CallError, Handler as _};
use crate::exit::ExitKind;
use crate::failure::Failure;

/// Methods of the control socket that the page may call.
const METHODS: [&str; 7] = ["scrub", "scrub-wish", "fail", "remove", "add", "re-add", "replace"];

/// A change that takes longer is answered as still under way.
const TIME_LIMIT: Duration = Duration::from_secs(30);
/// The answer to a wrong token is delayed by this: guessing takes long.
const WRONG_TOKEN: Duration = Duration::from_secs(1);
/// Fewest characters of a token.
const TOKEN_MIN: usize = 16;
/// Most bytes of its file.
const FILE_MAX: u64 = 4096;

/// The secret that allows changes.
#[derive(Clone)]
pub struct Token(Arc<str>);

impl Token {
    /// The token in a file that only its owner may read, without the white space around it.
    ///
    /// # Errors
    /// [`ExitKind::Usage`], or that the file cannot be read.
    pub fn read(path: &Path) -> Result<Self, Failure> {
        let wrong = |kind: ExitKind, what: String| {
            let path = path.display();
            Failure::new(kind, format!("--metrics-token {path}: {what}"))
                .help(format!("(umask 077; openssl rand -hex 16 > {path}) makes one"))
        };
        let unreadable = |error: io::Error| wrong(ExitKind::from(error.kind()), error.to_string());
        let file = File::open(path).map_err(unreadable)?;
        let metadata = file.metadata().map_err(unreadable)?;
        if !metadata.is_file() {
            return Err(wrong(ExitKind::Usage, "it is no file".to_owned()));
        }
        if metadata.mode() & 0o077 != 0 {
            let help = format!("chmod 600 {}", path.display());
            return Err(wrong(ExitKind::Usage, "others than its owner may use it".to_owned()).help(help));
        }
        let mut text = String::new();
        file.take(FILE_MAX).read_to_string(&mut text).map_err(unreadable)?;
        let token = text.trim();
        if token.len() < TOKEN_MIN || !token.bytes().all(|byte| byte.is_ascii_graphic()) {
            let what = format!("a token has at least {TOKEN_MIN} printable ASCII characters, and no space");
            return Err(wrong(ExitKind::Usage, what));
        }
        Ok(Token(token.into()))
    }

    fn is_shown(&self, headers: &HeaderMap) -> bool {
        let shown =
            headers.get(header::AUTHORIZATION).and_then(|value| value.as_bytes().strip_prefix(b"Bearer "));
        shown.is_some_and(|shown| shown.ct_eq(self.0.as_bytes()).into())
    }
}

/// The array that may be changed, and the token that allows it.
struct Changes {
    array: Arc<Controlled>,
    token: Option<Token>,
    /// One change at a time.
    at_once: Arc<Semaphore>,
}

/// Answers requests with the token. If there is none, every request is refused.
pub fn route<S: Clone>(array: Arc<Controlled>, token: Option<Token>) -> MethodRouter<S> {
    let changes = Arc::new(Changes { array, token, at_once: Arc::new(Semaphore::new(1)) });
    let only = from_fn_with_state(Arc::clone(&changes), only_with_token);
    get(methods).post(change).layer(only).with_state(changes)
}

/// Refuses requests without the token before their bodies are read.
async fn only_with_token(State(changes): State<Arc<Changes>>, request: Request, next: Next) -> Response {
    match &changes.token {
        None => {
            let words = "this page only reads: serve with --metrics-token FILE lets it change things\n";
            (StatusCode::FORBIDDEN, words).into_response()
        }
        Some(token) if token.is_shown(request.headers()) => next.run(request).await,
        Some(_) => {
            tokio::time::sleep(WRONG_TOKEN).await;
            let headers = [(header::WWW_AUTHENTICATE, "Bearer")];
            (StatusCode::UNAUTHORIZED, headers, "that is not the token\n").into_response()
        }
    }
}

/// What may be asked for, for a caller that wants to know whether its token is right.
async fn methods() -> Json<[&'static str; 7]> {
    Json(METHODS)
}

/// A change of one array.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Change {
    /// The array, which may have been stopped and another be served at this address.
    uuid: String,
    method: String,
    params: Value,
}

impl Change {
    /// Why it is not for a page.
    fn check(&self, array: &Controlled) -> Result<(), (StatusCode, String)> {
        if !METHODS.contains(&self.method.as_str()) {
            let words = format!("{:?} is not one of {}\n", self.method, METHODS.join(", "));
            return Err((StatusCode::BAD_REQUEST, words));
        }
        if self.params.get("force").is_some() {
            let words = "a page forces nothing: type the command with --force\n";
            return Err((StatusCode::BAD_REQUEST, words.to_owned()));
        }
        let uuid = array.identity().uuid;
        if self.uuid != uuid {
            let words = format!("the array {uuid} is served here, and not {:?}\n", self.uuid);
            return Err((StatusCode::CONFLICT, words));
        }
        Ok(())
    }
}

/// Makes a change, and says what came of it.
async fn change(State(changes): State<Arc<Changes>>, Json(change): Json<Change>) -> Response {
    let array = Arc::clone(&changes.array);
    if let Err(refused) = change.check(&array) {
        return refused.into_response();
    }
    let Ok(permit) = Arc::clone(&changes.at_once).try_acquire_owned() else {
        return (StatusCode::SERVICE_UNAVAILABLE, "an earlier change is still under way\n").into_response();
    };
    let changing = tokio::task::spawn_blocking(move || {
        tracing::info!(method = change.method, params = %change.params, "asked for on the page");
        let changed = array.call(&change.method, &change.params);
        drop(permit); // not before, however long it takes
        changed
    });
    match tokio::time::timeout(TIME_LIMIT, changing).await {
        Err(_) => (StatusCode::ACCEPTED, "it is still under way: a member may hang\n").into_response(),
        Ok(Err(error)) => (StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")).into_response(),
        Ok(Ok(Ok(result))) => Json(result).into_response(),
        Ok(Ok(Err(error))) => refusal(error).into_response(),
    }
}

fn refusal(error: CallError) -> (StatusCode, String) {
    match error {
        CallError::NoSuchMethod => (StatusCode::NOT_FOUND, "this array has no such thing\n".to_owned()),
        CallError::Params(words) => (StatusCode::BAD_REQUEST, words + "\n"),
        CallError::Failed(failure) => {
            let problems =
                failure.problems.iter().map(|problem| format!("; {}: {}", problem.member, problem.what));
            let words = problems.fold(failure.message, |words, more| words + &more);
            let help = failure.help.map(|help| format!(". {help}")).unwrap_or_default();
            (StatusCode::CONFLICT, format!("{words}{help}\n"))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn a_token_is_long_and_its_owners_alone() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("token");
        let read = |text: &str, mode: u32| {
            fs::write(&path, text).expect("a file");
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("its owner's");
            Token::read(&path).map(|token| token.0.to_string()).map_err(|failure| failure.message)
        };
        assert_eq!(read("  0123456789abcdef\n", 0o600).as_deref(), Ok("0123456789abcdef"));
        assert_eq!(read("0123456789abcdef", 0o400).as_deref(), Ok("0123456789abcdef"));
        assert!(read("0123456789abcdef", 0o640).is_err_and(|words| words.contains("others")));
        for wrong in
            ["", "short", "0123456789abcde", "0123456789 abcdef", "0123456789\nabcdef", "0123456789abcdé"]
        {
            assert!(read(wrong, 0o600).is_err_and(|words| words.contains("at least 16")), "{wrong:?}");
        }
        assert!(Token::read(folder.path()).is_err_and(|failure| failure.message.contains("no file")));
        assert!(
            Token::read(&folder.path().join("none")).is_err_and(|failure| failure.kind == ExitKind::NotFound)
        );
    }

    #[test]
    fn only_the_whole_token_counts() {
        let token = Token("0123456789abcdef".into());
        let shown = |value: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::AUTHORIZATION, value.parse().expect("a header"));
            token.is_shown(&headers)
        };
        assert!(shown("Bearer 0123456789abcdef"));
        for wrong in
            ["Bearer 0123456789abcde", "Bearer 0123456789abcdef0", "Bearer ", "Basic 0123456789abcdef"]
        {
            assert!(!shown(wrong), "{wrong}");
        }
        assert!(!token.is_shown(&HeaderMap::new()));
    }
}
