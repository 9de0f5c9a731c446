//! Members on other machines, in words.

use host::device::nvme_tcp::{RemoteState, RemoteStatus};

use crate::counted::counted;
use crate::plain::plain;

/// The connection to a member, as it goes behind what the member is to its array.
pub fn connection(remote: &RemoteStatus) -> String {
    let limit = std::time::Duration::from_millis(remote.time_limit_ms);
    let mut text = match remote.state {
        RemoteState::Connected => {
            let trip = remote.round_trip_us.map_or_else(String::new, |us| format!(", round trip {us} us"));
            let tls = if remote.tls { " over TLS" } else { "" };
            format!("; connected{tls}{trip}, {} in flight", remote.in_flight)
        }
        RemoteState::Away => {
            format!("; connection lost, it fails after {}", humantime::format_duration(limit))
        }
        RemoteState::Fenced => "; another host has taken it over".into(),
        RemoteState::Ended => "; not used any more".into(),
    };
    match remote.unreached_targets {
        None => {}
        Some(0) => text += ", makes parity with others",
        Some(count) => {
            text += &format!(", makes parity with others but for {}", counted(count, "target"));
        }
    }
    if !remote.reserved && remote.state == RemoteState::Connected {
        text += ", not reserved";
    }
    if remote.reconnects > 0 {
        text += &format!(", connected again {}", counted(remote.reconnects, "time"));
    }
    if let Some(error) = &remote.last_error {
        text += &format!(", last error: {}", plain(error));
    }
    text
}
