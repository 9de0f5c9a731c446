//! DH-HMAC-CHAP: both ends drive each other; what they say is held against an independent computation.

use nvme_tcp::HashFunction;
use nvme_tcp::auth::{
    ControllerExchange, ControllerSettings, DhGroup, Failure, HostExchange, HostSettings, Message, Names,
    Randomness, Secret,
};
use proptest::prelude::*;
use zeroize::Zeroizing;

const TRANSACTION: u16 = 0x1234;

fn names() -> Names {
    let host = "nqn.2014-08.org.nvmexpress:uuid:11111111-2222-3333-4444-555555555555".to_owned();
    Names { host, subsystem: "nqn.2026-11.test:twill".to_owned() }
}

fn secret(function: HashFunction, first: u8) -> Secret {
    let key: Vec<u8> = (first..).take(function.digest_bytes()).collect();
    Secret::new(Some(function), &key).expect("a secret")
}

fn host_secret(function: HashFunction) -> Secret {
    secret(function, 1)
}

fn subsystem_secret(function: HashFunction) -> Secret {
    secret(function, 101)
}

struct Case {
    function: HashFunction,
    group: DhGroup,
    host: HostSettings,
    controller: ControllerSettings,
}

fn case(function: HashFunction, group: DhGroup) -> Case {
    let (functions, groups) = (vec![function], vec![group]);
    Case {
        function,
        group,
        host: HostSettings {
            names: names(),
            secret: host_secret(function),
            subsystem_secret: Some(subsystem_secret(function)),
            functions: functions.clone(),
            groups: groups.clone(),
        },
        controller: ControllerSettings {
            names: names(),
            host_secret: Some(host_secret(function)),
            secret: Some(subsystem_secret(function)),
            functions,
            groups,
        },
    }
}

fn quick_case() -> Case {
    case(HashFunction::Sha256, DhGroup::Null)
}

struct Ran {
    host: Result<(), Failure>,
    controller: Result<(), Failure>,
    messages: Vec<Vec<u8>>,
}

/// Lets both ends talk; `on_the_way` may change the message of a number.
fn run(case: Case, on_the_way: &dyn Fn(usize, &mut Vec<u8>)) -> Ran {
    let randomness = |challenge, private, sequence| Randomness {
        challenge: [challenge; 64],
        private: Zeroizing::new([private; 64]),
        sequence,
    };
    let mut controller = ControllerExchange::new(case.controller, randomness(0x11, 0x33, 7));
    let (mut host, first) = HostExchange::begin(case.host, randomness(0x22, 0x44, 9), TRANSACTION);
    let mut messages = vec![first];
    let mut host_end = None;
    loop {
        let number = messages.len() - 1;
        on_the_way(number, messages.last_mut().expect("a message"));
        controller.receive(messages.last().expect("a message"));
        if let Some(host_end) = host_end {
            let controller = controller.outcome().expect("the controller ends, too");
            return Ran { host: host_end, controller, messages };
        }
        let Some(mut answer) = controller.answer() else { panic!("no answer to message {number}") };
        on_the_way(messages.len(), &mut answer);
        let step = host.receive(&answer);
        messages.push(answer);
        host_end = step.end;
        match (step.send, step.end) {
            (Some(send), _) => messages.push(send),
            (None, Some(host)) => {
                let controller = controller.outcome().expect("the controller ends, too");
                return Ran { host, controller, messages };
            }
            (None, None) => panic!("the host neither sends nor ends"),
        }
    }
}

fn ends(case: Case) -> (Result<(), Failure>, Result<(), Failure>) {
    let ran = run(case, &|_, _| ());
    (ran.host, ran.controller)
}

/// Group, hash function, and the first bytes of the host's and the controller's response, computed with Python's hmac, hashlib
/// and pow. Private values are bytes of 33h and 44h, challenges of 11h and 22h, sequence numbers 7 and 9.
const COMPUTED: &[(u8, u8, &str, &str)] = &[
    (0, 1, "17b6dead727a64c5", "8fb15ce75f021e0e"),
    (0, 2, "8e5e70322cfdf3c5", "05ec112cb1fa71b8"),
    (0, 3, "e35f56a37cc9641e", "6becc93c43941913"),
    (1, 1, "6fa48c0505190f68", "cfbc75c91f78da01"),
    (1, 2, "dd90821b73a2e3f9", "48022797d2a10e99"),
    (1, 3, "618c1cc7b41508ae", "d1400f5cac1c7499"),
    (2, 1, "d92ad176db27454f", "dc1f7fed2645fb63"),
    (2, 2, "e8e771232fa48fb2", "a351afe3ed97f539"),
    (2, 3, "e4075686a30e03fb", "a23e9813089ba7de"),
    (3, 1, "46d5410736f984c5", "032319abdef853bb"),
    (3, 2, "5b8c05df5abfd282", "32e87ef804df82ec"),
    (3, 3, "f658ee3138bfbdea", "80b76ea19d177bfe"),
    (4, 1, "83fad5649e498641", "a0ba3e872ac1c28b"),
    (4, 2, "19a75b5503c4f490", "4f91e5d5b635d467"),
    (4, 3, "9a1d6ff320eef0c8", "d421eff25d269a8f"),
    (5, 1, "10edaf869e69cb15", "f2e489d05ae18b6c"),
    (5, 2, "d0c121731a345c07", "229994a2651fd3f3"),
    (5, 3, "df9e1824bd4a55d0", "43ed315663432165"),
];

#[test]
fn responses_are_those_of_an_independent_computation() {
    for (group, function, host, controller) in COMPUTED {
        let (group, function) = (DhGroup::from_id(*group), HashFunction::from_id(*function));
        let case = case(function.expect("a function"), group.expect("a group"));
        let (function, group) = (case.function, case.group);
        let ran = run(case, &|_, _| ());
        assert_eq!((ran.host, ran.controller), (Ok(()), Ok(())), "{group:?} {function:?}");
        let [_, _, reply, success1, success2] = &ran.messages[..] else {
            panic!("{} messages", ran.messages.len())
        };
        let Ok((TRANSACTION, Message::Reply(reply))) = Message::parse(reply) else { panic!("a reply") };
        let Ok((_, Message::Success1 { response: Some(response), .. })) = Message::parse(success1) else {
            panic!("a success")
        };
        assert_eq!(Message::parse(success2), Ok((TRANSACTION, Message::Success2)));
        assert_eq!(
            (hex(&reply.response[..8]), hex(&response[..8])),
            ((*host).to_owned(), (*controller).to_owned())
        );
        assert_eq!(reply.public.len(), group.value_bytes());
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn a_host_may_do_without_the_controllers_proof() {
    let mut case = quick_case();
    case.host.subsystem_secret = None;
    case.controller.secret = None;
    let ran = run(case, &|_, _| ());
    assert_eq!((ran.host, ran.controller, ran.messages.len()), (Ok(()), Ok(()), 4));
}

#[test]
fn wrong_and_missing_secrets_fail_alike() {
    let refused = (Err(Failure::NotAuthentic), Err(Failure::NotAuthentic));
    let mut wrong = quick_case();
    wrong.host.secret = secret(HashFunction::Sha256, 2);
    let wrong = run(wrong, &|_, _| ());
    assert_eq!((wrong.host, wrong.controller), refused);

    let mut missing = quick_case();
    missing.controller.host_secret = None;
    let missing = run(missing, &|_, _| ());
    assert_eq!((missing.host, missing.controller), refused);
    assert_eq!(wrong.messages.len(), missing.messages.len());
    assert_eq!(wrong.messages.last(), missing.messages.last());

    // The same secret, another host's name.
    let mut other_name = quick_case();
    other_name.host.names.host.push('x');
    assert_eq!(ends(other_name), refused);
    // The controller has nothing to prove with.
    let mut mute = quick_case();
    mute.controller.secret = None;
    assert_eq!(ends(mute), refused);
    // The controller proves with something else: the host ends it.
    let mut impostor = quick_case();
    impostor.controller.secret = Some(secret(HashFunction::Sha256, 7));
    assert_eq!(ends(impostor), refused);
}

#[test]
fn what_is_not_in_common_is_named() {
    let mut functions = quick_case();
    functions.controller.functions = vec![HashFunction::Sha512];
    assert_eq!(ends(functions).0, Err(Failure::HashFunctionUnusable));
    let mut groups = quick_case();
    groups.controller.groups = vec![DhGroup::Ffdhe2048];
    assert_eq!(ends(groups).0, Err(Failure::GroupUnusable));
    // A controller that picks what was not offered.
    let picked = |at: usize, value: u8| {
        move |number: usize, bytes: &mut Vec<u8>| {
            if number == 1 {
                bytes[at] = value;
            }
        }
    };
    assert!(run(quick_case(), &picked(8, 2)).host.is_err());
    assert!(run(quick_case(), &picked(9, 1)).host.is_err());
    // TLS by a generated key is not done.
    let concatenation = |number: usize, bytes: &mut Vec<u8>| {
        if number == 0 {
            bytes[6] = 1;
        }
    };
    assert_eq!(run(quick_case(), &concatenation).controller, Err(Failure::ConcatenationMismatch));
}

#[test]
fn the_best_common_choice_is_taken() {
    let mut case = quick_case();
    let all = |case: &mut Case| {
        case.host.functions = HashFunction::ALL.to_vec();
        case.host.groups = vec![DhGroup::Null, DhGroup::Ffdhe2048, DhGroup::Ffdhe3072];
        case.controller.functions = HashFunction::ALL.to_vec();
        case.controller.groups = DhGroup::BY_PREFERENCE.to_vec();
    };
    all(&mut case);
    let ran = run(case, &|_, _| ());
    assert_eq!((ran.host, ran.controller), (Ok(()), Ok(())));
    let Ok((_, Message::Challenge(challenge))) = Message::parse(&ran.messages[1]) else {
        panic!("a challenge")
    };
    assert_eq!((challenge.function, challenge.group), (HashFunction::Sha512, DhGroup::Ffdhe3072));
}

#[test]
fn a_message_out_of_order_ends_it_and_nothing_helps_afterwards() {
    let good = run(quick_case(), &|_, _| ()).messages;
    // (what the host sends first, whether it is answered)
    for first in [&good[2], &good[4], &good[1]] {
        let randomness =
            Randomness { challenge: [0x11; 64], private: Zeroizing::new([0x33; 64]), sequence: 7 };
        let mut controller = ControllerExchange::new(quick_case().controller, randomness);
        assert_eq!(controller.answer(), None);
        controller.receive(first);
        assert_eq!(controller.outcome(), Some(Err(Failure::IncorrectMessage)));
        assert!(controller.answer().is_some());
        for message in &good {
            controller.receive(message);
            assert_eq!(controller.answer(), None);
        }
        assert_eq!(controller.outcome(), Some(Err(Failure::IncorrectMessage)));
    }
    // A reply before the challenge was fetched; success before the answer was fetched.
    let randomness =
        || Randomness { challenge: [0x11; 64], private: Zeroizing::new([0x33; 64]), sequence: 7 };
    let mut controller = ControllerExchange::new(quick_case().controller, randomness());
    controller.receive(&good[0]);
    controller.receive(&good[2]);
    assert_eq!(controller.outcome(), Some(Err(Failure::IncorrectMessage)));
    let mut controller = ControllerExchange::new(quick_case().controller, randomness());
    controller.receive(&good[0]);
    assert!(controller.answer().is_some());
    controller.receive(&good[2]);
    assert_eq!(controller.outcome(), None, "authentic only when the host is content");
    controller.receive(&good[4]);
    assert_eq!(controller.outcome(), Some(Err(Failure::IncorrectMessage)));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]

    /// A changed byte of what is signed or compared never authenticates, and nothing panics.
    #[test]
    fn no_changed_message_authenticates(number in 1usize..4, at in 0usize..200, value in 1u8..) {
        let changed = std::cell::Cell::new(None);
        let ran = run(quick_case(), &|message, bytes| {
            if message == number {
                let at = at % bytes.len();
                bytes[at] ^= value;
                changed.set(Some(at));
            }
        });
        // Reserved bytes mean nothing, nor the hash length of a message that has it elsewhere.
        let reserved: &[usize] = match number {
            1 => &[2, 3, 7],
            2 => &[2, 3, 7, 9],
            _ => &[2, 3, 7, 9, 10, 11, 12, 13, 14, 15],
        };
        let at = changed.get().expect("it came this far");
        let authentic = ran.host.is_ok() && ran.controller.is_ok();
        prop_assert_eq!(authentic, reserved.contains(&at), "message {} byte {}", number, at);
    }

    #[test]
    fn arbitrary_bytes_authenticate_nobody(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        let randomness = Randomness { challenge: [1; 64], private: Zeroizing::new([2; 64]), sequence: 0 };
        let mut controller = ControllerExchange::new(quick_case().controller, randomness);
        controller.receive(&bytes);
        prop_assert!(controller.outcome() != Some(Ok(())));
        let randomness = Randomness { challenge: [1; 64], private: Zeroizing::new([2; 64]), sequence: 0 };
        let (mut host, _) = HostExchange::begin(quick_case().host, randomness, 1);
        prop_assert!(host.receive(&bytes).end != Some(Ok(())));
    }
}
