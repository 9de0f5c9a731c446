//! `serve --metrics`, asked over HTTP as Prometheus asks.

use std::collections::BTreeSet;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::time::Duration;

use crate::nbd::Client;
use crate::world::World;

/// An address that is free.
fn address() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).expect("a port")
}

/// Status line and body of a page.
fn page(address: SocketAddr, path: &str) -> (String, String) {
    let mut stream = TcpStream::connect(address).expect("an HTTP server");
    stream.set_read_timeout(Some(Duration::from_secs(30))).expect("a socket");
    write!(stream, "GET {path} HTTP/1.1\r\nhost: twill\r\nconnection: close\r\n\r\n").expect("a request");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("{path}: {answer:?}"));
    (head.lines().next().expect("a status").to_owned(), body.to_owned())
}

/// The value of the only sample of a metric, or of the one with this label.
fn value(text: &str, metric: &str, label: &str) -> f64 {
    let samples: Vec<&str> = text
        .lines()
        .filter(|line| {
            line.strip_prefix(metric).is_some_and(|rest| rest.starts_with('{')) && line.contains(label)
        })
        .collect();
    let [sample] = samples[..] else { panic!("{} samples of {metric} {label} in {text}", samples.len()) };
    sample.rsplit(' ').next().and_then(|value| value.parse().ok()).expect("a number")
}

#[test]
fn prometheus_sees_requests_members_and_a_rebuild() {
    let world = World::new();
    let members = world.array(4);
    let address = address();
    let server = world.serve(&["--metrics", &address.to_string()], &members);
    let mut client = Client::connect(&world.path("nbd.sock")).expect("an export");
    for block in 0..16 {
        assert_eq!(client.write(block * 4096, &[7; 4096], 0).expect("a reply"), 0);
    }
    let (status, text) = page(address, "/metrics");
    assert!(status.contains("200"), "{status}");
    assert!(text.ends_with("# EOF\n"), "{text}");
    for label in ["array=\"test\"", "uuid=\"", "level=\"raid5\"", "state=\"in-sync\""] {
        assert!(text.contains(label), "no {label} in {text}");
    }
    assert!((value(&text, "twill_writes_total", "") - 16.0).abs() < 0.5, "{text}");
    assert!((value(&text, "twill_write_bytes_total", "") - 65536.0).abs() < 0.5);
    assert!(value(&text, "twill_request_duration_seconds_count", "") >= 16.0);
    assert!(value(&text, "twill_request_duration_seconds_bucket", "+Inf") >= 16.0);
    assert!(value(&text, "twill_array_degraded", "").abs() < 0.5);
    server.twill(&["fail", "m1"]).succeeds();
    let (_, text) = page(address, "/metrics");
    assert!((value(&text, "twill_array_degraded", "") - 1.0).abs() < 0.5);
    assert!((value(&text, "twill_array_members_working", "") - 3.0).abs() < 0.5);
    assert!((value(&text, "twill_member_state", "state=\"failed\"") - 1.0).abs() < 0.5, "{text}");
    let (status, body) = page(address, "/health");
    assert!(status.contains("200") && body.contains("degraded"), "{status} {body}");
    assert!(page(address, "/nothing").0.contains("404"));
    drop(client);
    server.stop();
}

/// Names of metrics in a text.
fn names(text: &str) -> BTreeSet<&str> {
    text.split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_')
        .filter(|word| word.starts_with("twill_"))
        .collect()
}

/// Every metric that the board for Grafana shows is there, of an array in place or of a zoned one.
#[test]
fn the_board_shows_what_there_is() {
    let board = include_str!("../../../../packaging/grafana/twill.json");
    let world = World::new();
    let members: Vec<String> = (0..4).map(|i| world.member(&format!("z{i}"), 64 << 20)).collect();
    let create = ["create", "--metadata", "zoned", "--zone-size", "1M", "--level", "5", "--name", "test"];
    world.twill(&create, &members).succeeds();
    let mut texts = Vec::new();
    let zoned = address();
    let server = world.serve(&["--metrics", &zoned.to_string()], &members);
    texts.push(page(zoned, "/metrics").1);
    server.stop();
    let world = World::new();
    let members: Vec<String> = (0..4).map(|i| world.member(&format!("m{i}"), 1 << 30)).collect();
    let create = ["create", "--level", "5", "--name", "test", "--chunk", "64K"];
    world.twill(&create, &members).succeeds();
    let in_place = address();
    let server = world.serve(&["--metrics", &in_place.to_string()], &members);
    // A recovery that is not done for a while.
    server.twill(&["set", "--rate", "1M"]).succeeds();
    server.twill(&["fail", "m1"]).succeeds();
    world.member("m9", 1 << 30);
    server.twill(&["add", "m9"]).succeeds();
    server.wait_for("a recovery", |status| !status["rebuild"].is_null());
    texts.push(page(in_place, "/metrics").1);
    server.stop();
    let there = texts.concat();
    let absent: Vec<&str> = names(board).difference(&names(&there)).copied().collect();
    assert_eq!(absent, [] as [&str; 0], "{there}");
}

#[test]
fn an_address_that_is_taken_is_refused_before_anything_is_written() {
    let world = World::new();
    let members = world.array(4);
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = taken.local_addr().expect("an address").to_string();
    world.refused(
        9,
        &["cannot listen at", &address],
        &["serve", "--unix", "nbd.sock", "--metrics", &address],
        &members,
    );
    world.refused(2, &["--metrics"], &["serve", "--unix", "nbd.sock", "--metrics", "nowhere"], &members);
}

#[test]
fn a_zoned_array_has_metrics_of_its_zones() {
    let world = World::new();
    let members: Vec<String> = (0..4).map(|i| world.member(&format!("z{i}"), 64 << 20)).collect();
    let create = ["create", "--metadata", "zoned", "--zone-size", "1M", "--level", "5", "--name", "test"];
    world.twill(&create, &members).succeeds();
    let address = address();
    let server = world.serve(&["--metrics", &address.to_string()], &members);
    let (_, text) = page(address, "/metrics");
    assert!(value(&text, "twill_zones_free", "") > 10.0, "{text}");
    assert!(value(&text, "twill_reclaim_active", "") <= 1.0, "{text}");
    assert_eq!(value(&text, "twill_blocks_moved_total", ""), 0.0, "{text}");
    assert!(value(&text, "twill_write_amplification_ratio", "") >= 1.0, "{text}");
    assert_eq!(value(&text, "twill_map_memory_bytes", ""), 0.0, "nothing was written: {text}");
    assert!(!text.contains("twill_request_duration"), "requests of a zoned array are not measured: {text}");
    server.stop();
}

/// As [`page`], of a server that is called by this name.
fn page_of(address: SocketAddr, host: &str, path: &str) -> String {
    let mut stream = TcpStream::connect(address).expect("an HTTP server");
    stream.set_read_timeout(Some(Duration::from_secs(30))).expect("a socket");
    write!(stream, "GET {path} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n").expect("a request");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    answer
}

#[test]
fn the_page_is_for_browsers_of_this_machine() {
    let world = World::new();
    let members = world.array(4);
    let address = address();
    let server = world.serve(&["--metrics", &address.to_string()], &members);
    for host in ["localhost", "127.0.0.1", &address.to_string(), "[::1]:9420"] {
        for path in ["/", "/page.css", "/page.mjs", "/page.svg", "/overview.json"] {
            let answer = page_of(address, host, path);
            assert!(answer.starts_with("HTTP/1.1 200"), "{host} {path}: {answer}");
            assert!(
                path == "/overview.json" || answer.contains("content-security-policy: default-src 'none'")
            );
        }
    }
    // A web site elsewhere whose name was given this address.
    for host in ["evil.example", "evil.example:9420", "localhost.evil.example", ""] {
        let answer = page_of(address, host, "/overview.json");
        assert!(answer.starts_with("HTTP/1.1 4") && !answer.contains("uuid"), "{host}: {answer}");
    }
    assert!(page_of(address, "prometheus.example", "/metrics").starts_with("HTTP/1.1 200"));
    server.twill(&["fail", "m1"]).succeeds();
    let answer = page_of(address, "localhost", "/overview.json");
    let (_, body) = answer.split_once("\r\n\r\n").expect("a body");
    let body: serde_json::Value = serde_json::from_str(body).expect("JSON");
    let array = &body["arrays"][0];
    assert_eq!(array["status"]["degraded"], true);
    assert_eq!(array["advice"][0]["urgency"], "degraded");
    let command = array["advice"][0]["command"].as_str().expect("a command");
    assert!(command.contains("m1") && command.contains("twill add --array test DEVICE"), "{command}");
    let mut events = array["events"].as_array().expect("events").iter();
    let is_failure =
        |event: &serde_json::Value| event["text"].as_str().expect("words").contains("member 1 failed");
    assert!(events.any(is_failure), "{array:#}");
    server.stop();
}

/// Status line and body of a request for a change.
fn change(address: SocketAddr, more_headers: &str, body: &serde_json::Value) -> (String, String) {
    let mut stream = TcpStream::connect(address).expect("an HTTP server");
    stream.set_read_timeout(Some(Duration::from_secs(30))).expect("a socket");
    let body = body.to_string();
    let headers =
        format!("content-type: application/json\r\ncontent-length: {}\r\n{more_headers}", body.len());
    let request = format!("POST /changes HTTP/1.1\r\nconnection: close\r\n{headers}\r\n\r\n{body}");
    stream.write_all(request.as_bytes()).expect("a request");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("{answer:?}"));
    (head.lines().next().expect("a status").to_owned(), body.to_owned())
}

#[test]
fn the_page_changes_an_array_for_who_has_the_token_only() {
    let world = World::new();
    let members = world.array(4);
    let token = world.path("token");
    std::fs::write(&token, "a-token-that-is-long\n").expect("a file");
    let own = |mode| std::fs::set_permissions(&token, std::fs::Permissions::from_mode(mode));
    own(0o644).expect("a mode");
    let (address, token) = (address(), token.display().to_string());
    let of_page = ["--metrics", &address.to_string(), "--metrics-token", &token];
    let words = ["serve", "--unix", "nbd.sock"].into_iter().chain(of_page).collect::<Vec<_>>();
    world.refused(2, &["others than its owner", "chmod 600"], &words, &members);
    own(0o600).expect("a mode");
    let everywhere = ["serve", "--unix", "nbd.sock", "--metrics", "0.0.0.0:0", "--metrics-token", &token];
    world.refused(2, &["would cross the network"], &everywhere, &members);
    world.refused(2, &["--metrics"], &["serve", "--metrics-token", &token], &members);

    let server = world.serve(&of_page, &members);
    let answer = page_of(address, "localhost", "/overview.json");
    let (_, body) = answer.split_once("\r\n\r\n").expect("a body");
    let overview: serde_json::Value = serde_json::from_str(body).expect("JSON");
    assert_eq!(overview["may_change"], true);
    let uuid = &overview["arrays"][0]["status"]["uuid"];
    let fail = |params| serde_json::json!({ "uuid": uuid, "method": "fail", "params": params });
    let (local, right) = ("host: localhost", "host: localhost\r\nauthorization: Bearer a-token-that-is-long");
    let member = serde_json::json!({ "member": "m1" });
    let wrong = format!("{local}\r\nauthorization: Bearer a-token-that-is-lone");
    for (headers, status) in
        [(local, "401"), (&wrong, "401"), (&right.replace("localhost", "evil.example"), "421")]
    {
        let (answered, body) = change(address, headers, &fail(member.clone()));
        assert!(answered.contains(status), "{headers}: {answered} {body}");
    }
    let other = serde_json::json!({ "uuid": "00000000:00000000:00000000:00000000", "method": "fail", "params": member });
    let forced = fail(serde_json::json!({ "member": "m1", "force": true }));
    let stop = serde_json::json!({ "uuid": uuid, "method": "stop", "params": {} });
    let unknown = fail(serde_json::json!({ "member": "m7" }));
    let broken = fail(serde_json::json!({ "member": "m1", "more": 1 }));
    for (wrong, status, words) in [
        (other, "409", "is served here"),
        (forced, "400", "forces nothing"),
        (stop, "400", "is not one of"),
        (unknown, "409", "m7"),
        (broken, "400", "more"),
    ] {
        let (answered, body) = change(address, right, &wrong);
        assert!(answered.contains(status) && body.contains(words), "{wrong}: {answered} {body}");
    }
    assert_eq!(server.status()["degraded"], false, "nothing was changed");
    let (answered, body) = change(address, right, &fail(member));
    assert!(answered.contains("200") && body == "null", "{answered} {body}");
    assert_eq!(server.status()["degraded"], true);
    server.stop();

    // Without a token the page only reads.
    let server = world.serve(&["--metrics", &address.to_string()], &members);
    let (answered, body) = change(address, right, &serde_json::json!({}));
    assert!(answered.contains("403") && body.contains("--metrics-token"), "{answered} {body}");
    server.stop();
}
