//! What is asked of the control socket's reader, whatever a caller sends. Called with mutated bytes; a fuzzer may call the same.

/// A line, and what a server whose array has stopped answers to it.
pub fn control(line: &[u8]) {
    let Some(answer) = twill::answer_stopped(line) else { return };
    let (&end, answer) = answer.split_last().expect("a line");
    assert!(end == b'\n' && !answer.contains(&b'\n'), "one line");
    let answer: serde_json::Value = serde_json::from_slice(answer).expect("JSON");
    assert_eq!(answer["jsonrpc"], "2.0");
    assert!(answer.get("result").is_some() != answer.get("error").is_some(), "{answer}");
    assert_ne!(answer["error"]["data"]["kind"], "internal", "{answer}");
}
