//! `fabric explain`: where the parity of a served array is made, and what keeps it, or a part of it, at this host.

use serde::Serialize;

use super::output::Output;
use super::status;
use crate::arguments::FabricCommand;
use crate::control;
use crate::failure::Failure;
use crate::plain::plain;
use crate::status::{ArrayStatus, MemberHealth, MemberStatus};

/// Where parity is made.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct Explanation {
    /// As `--fabric` has it.
    fabric: String,
    /// Small writes go to the targets now, as far as nothing speaks against it.
    parity_at_targets: bool,
    /// What keeps all of it, or a part, at this host.
    reasons: Vec<Reason>,
}

/// Something that keeps parity at this host.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct Reason {
    /// Which writes.
    writes: &'static str,
    /// The member, if it is because of one.
    #[serde(skip_serializing_if = "Option::is_none")]
    member: Option<String>,
    why: String,
    /// What would change it.
    #[serde(skip_serializing_if = "Option::is_none")]
    help: Option<&'static str>,
}

const ALL: &str = "all writes";

/// With less than this of a target's memory no order of 4 KiB is sent there.
const CREDIT_BYTES_MIN: u64 = 4 * 4096;

/// Explains a served array.
///
/// # Errors
/// No such array.
pub fn run(command: &FabricCommand, output: Output) -> Result<(), Failure> {
    let FabricCommand::Explain(arguments) = command;
    let status = status::ask(&mut control::connect(arguments.served.which())?)?;
    output.print(&explain(&status), |explanation| lines(explanation).join("\n"))
}

fn lines(explanation: &Explanation) -> Vec<String> {
    let place = if explanation.parity_at_targets { "the members' targets" } else { "this host" };
    // What the option wants, and what comes of it.
    let is_all_here =
        explanation.parity_at_targets && explanation.reasons.iter().any(|one| one.writes == ALL);
    let (is, now) = if is_all_here { ("is to be", ", and at this host for now") } else { ("is", "") };
    let mut lines =
        vec![format!("parity of small writes {is} made at {place} (--fabric {}){now}", explanation.fabric)];
    for reason in &explanation.reasons {
        let member = reason.member.as_ref().map_or_else(String::new, |member| format!("{member}: "));
        lines.push(format!("  {}, at this host: {member}{}", reason.writes, reason.why));
        lines.extend(reason.help.map(|help| format!("    {help}")));
    }
    lines
}

fn explain(status: &ArrayStatus) -> Explanation {
    let mut reasons = Vec::new();
    let mut add = |writes, member, why: String, help| reasons.push(Reason { writes, member, why, help });
    let has_parity = matches!(status.level.as_str(), "raid4" | "raid5" | "raid6");
    match status.fabric.as_str() {
        _ if !has_parity => add(ALL, None, format!("{} has no parity", status.level), None),
        "peer" | "auto" => {
            if status.fabric == "auto" && !status.parity_at_targets {
                add(ALL,
                    None,
                    "the last trial found that faster, there was too little load for one, or no targets are attached yet"
                        .to_owned(),
                    Some("serve it with --fabric peer to have it at the targets whatever is faster"),
                );
            }
            for member in status.members.iter().filter(|member| member.slot.is_some()) {
                if let Some((why, help)) = of_member(member) {
                    add("writes that it takes part in", Some(name(member)), why, help);
                }
            }
            let away = |member: &&MemberStatus| {
                matches!(
                    member.state,
                    MemberHealth::Missing | MemberHealth::Failed | MemberHealth::Recovering
                )
            };
            if let Some(member) = status.members.iter().filter(|member| member.slot.is_some()).find(away) {
                let is_rebuilt = member.state == MemberHealth::Recovering;
                let (writes, why) = match status.redo_log.as_str() {
                    "unused" if !is_rebuilt => (
                        "writes of what it held",
                        "it is missing: parity alone has these, and is made of them here",
                    ),
                    "in-force" => (ALL, "it is not in sync: the redo log needs what is written here"),
                    _ => (ALL, "it is not in sync"),
                };
                add(
                    writes,
                    Some(name(member)),
                    why.to_owned(),
                    Some("take it back, or add a device in its place, and wait until that is in sync"),
                );
            }
            if status.stripes_in_doubt > 0 {
                let why =
                    format!("{} are in doubt: their parity is made of all data", status.stripes_in_doubt);
                add("writes of stripes in doubt", None, why, Some("twill status says where they are"));
            }
            add(
                "writes of whole stripes",
                None,
                "all of their data crosses the network once anyway".to_owned(),
                None,
            );
        }
        _ => add(
            ALL,
            None,
            "--fabric host is the default".to_owned(),
            Some("serve it with --fabric peer, or auto"),
        ),
    }
    Explanation { fabric: status.fabric.clone(), parity_at_targets: status.parity_at_targets, reasons }
}

/// What keeps the writes that a member takes part in at this host.
fn of_member(member: &MemberStatus) -> Option<(String, Option<&'static str>)> {
    if member.state == MemberHealth::Missing {
        return None; // said of the array
    }
    let Some(remote) = &member.remote else {
        let help = "every member of a stripe has to be a namespace of twill target";
        return Some(("it is a device of this machine".to_owned(), Some(help)));
    };
    match remote.unreached_targets {
        None => {
            let help = "another vendor's targets take no orders; one of Twill's has to list this host with --allow, not --peer-allow";
            Some(("its target takes no orders, or is not attached yet".to_owned(), Some(help)))
        }
        Some(0) if remote.credit_bytes.is_some_and(|given| given < CREDIT_BYTES_MIN) => {
            let help = "start it with a larger --peer-memory";
            Some(("its target gives too little memory".to_owned(), Some(help)))
        }
        Some(0) => None,
        Some(count) => {
            let help = "its --peer-allow has to name the other targets, theirs this one, and its address has to be reachable from them";
            let others =
                if count == 1 { "another target".to_owned() } else { format!("{count} other targets") };
            Some((format!("its target does not reach {others}"), Some(help)))
        }
    }
}

fn name(member: &MemberStatus) -> String {
    member.path.as_ref().map_or_else(|| "a missing member".to_owned(), |path| plain(path).into_owned())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn member(slot: u32, unreached: Option<u32>) -> MemberStatus {
        let remote = json!({
            "address": "10.0.0.1:4420", "nqn": "nqn.test", "namespace": 1, "state": "connected", "reserved": true,
            "round_trip_us": null, "in_flight": 0, "time_limit_ms": 10_000, "reconnects": 0, "last_error": null,
            "unreached_targets": unreached,
        });
        MemberStatus {
            slot: Some(serde_json::from_value(slot.into()).expect("a slot")),
            path: Some(format!("nvme://{slot}")),
            state: MemberHealth::InSync,
            remote: Some(serde_json::from_value(remote).expect("a connection")),
            ..MemberStatus::default()
        }
    }

    fn status(fabric: &str, members: Vec<MemberStatus>) -> ArrayStatus {
        let (level, fabric) = ("raid5".to_owned(), fabric.to_owned());
        ArrayStatus { level, fabric, parity_at_targets: true, members, ..ArrayStatus::default() }
    }

    #[test]
    fn what_keeps_parity_here_is_named_with_its_member() {
        let local = MemberStatus { remote: None, path: Some("/dev/sda".to_owned()), ..member(3, None) };
        let lost = MemberStatus { state: MemberHealth::Missing, path: None, ..member(4, None) };
        let members = vec![member(0, Some(0)), member(1, None), member(2, Some(2)), local, lost];
        let said = lines(&explain(&status("peer", members))).join("\n");
        for words in [
            "made at the members' targets (--fabric peer)",
            "nvme://1: its target takes no orders",
            "nvme://2: its target does not reach 2 other targets",
            "/dev/sda: it is a device of this machine",
            "a missing member: it is not in sync",
            "writes of whole stripes",
        ] {
            assert!(said.contains(words), "{words}: {said}");
        }
        assert!(!said.contains("nvme://0"), "{said}");
    }

    #[test]
    fn without_a_redo_log_a_missing_member_keeps_its_own_writes_here_alone() {
        let lost = MemberStatus { state: MemberHealth::Missing, path: None, ..member(3, None) };
        let members = vec![member(0, Some(0)), member(1, Some(0)), member(2, Some(0)), lost];
        let unlogged = ArrayStatus { redo_log: "unused".to_owned(), ..status("peer", members.clone()) };
        let said = lines(&explain(&unlogged)).join("\n");
        assert!(said.contains("writes of what it held, at this host: a missing member"), "{said}");
        let logged = ArrayStatus { redo_log: "in-force".to_owned(), ..status("peer", members) };
        assert!(lines(&explain(&logged)).join("\n").contains("the redo log needs"));
    }

    #[test]
    fn a_target_without_memory_is_named() {
        let mut members = vec![member(0, Some(0)), member(1, Some(0))];
        for (member, given) in members.iter_mut().zip([128 << 20, 4096]) {
            member.remote.as_mut().expect("it has one").credit_bytes = Some(given);
        }
        let said = lines(&explain(&status("peer", members))).join("\n");
        assert!(said.contains("nvme://1: its target gives too little memory"), "{said}");
        assert!(said.contains("--peer-memory") && !said.contains("nvme://0"), "{said}");
    }

    #[test]
    fn an_array_whose_targets_do_all_says_what_is_left() {
        let explanation = explain(&status("peer", vec![member(0, Some(0)), member(1, Some(0))]));
        let [only] = &explanation.reasons[..] else { panic!("{explanation:?}") };
        assert_eq!(only.writes, "writes of whole stripes");
    }

    #[test]
    fn the_option_itself_is_a_reason() {
        let mut host = status("host", vec![member(0, None)]);
        host.parity_at_targets = false;
        let said = lines(&explain(&host)).join("\n");
        assert!(
            said.contains("made at this host (--fabric host)") && said.contains("--fabric peer"),
            "{said}"
        );
        host.fabric = "auto".to_owned();
        assert!(lines(&explain(&host)).join("\n").contains("trial"));
        host.level = "raid1".to_owned();
        assert!(lines(&explain(&host)).join("\n").contains("raid1 has no parity"));
    }
}
