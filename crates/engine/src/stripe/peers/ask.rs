//! What is asked of the targets of a step, and the wait for their answers.

use std::future::poll_fn;
use std::task::Poll;

use smallvec::SmallVec;

use super::place::{Kept, Participant, Prepared};
use crate::buffer::Gather;
use crate::device::{Answered, Answering, Device, DeviceError, DeviceErrorKind, NoAnswer};
use crate::error::VolumeError;
use crate::fabric::host::Final;
use crate::fabric::order::{Answer, Ending, How, Order, PeerIndex, Role, Settle, Stamp};
use crate::members::port::MemberError;
use crate::stripe::engine::Owned;
use layout::units::{DeviceOffset, Slot};

/// Something that is asked of a participant.
pub(super) struct Request {
    /// Which participant.
    pub(super) at: usize,
    pub(super) asked: Asked,
    /// Of the attach that it was sent to.
    pub(super) key: u64,
    pub(super) waiting: Waiting,
}

/// What was asked of a participant.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Asked {
    /// Its order: the answer is what it came to.
    Order,
    /// To send what it keeps to this reducer again.
    Resend(PeerIndex),
}

pub(super) type Requests = SmallVec<[Request; 4]>;

pub(super) fn first_round<D: Device>(step: &Prepared<D>, stamp: Stamp, fua: bool) -> Requests {
    let all = step.participants.iter().enumerate();
    all.map(|(at, one)| ordered(at, one, one.role.clone(), stamp, fua)).collect()
}

pub(super) fn ordered<D: Device>(
    at: usize,
    one: &Participant<D>,
    role: Role,
    stamp: Stamp,
    fua: bool,
) -> Request {
    let (order, key) = (Order { stamp, role, fua }, one.place.key);
    let waiting = Waiting::Order(one.peer().order(key, order, one.data.clone()));
    Request { at, asked: Asked::Order, key, waiting }
}

/// Waits for the answers of a round, and enters what the participants came to. What came for the host.
pub(super) async fn carry_out<D: Device>(
    owned: Owned<'_, D>,
    step: &mut Prepared<D>,
    mut requests: Requests,
    stamp: Stamp,
) -> Result<Gather, VolumeError> {
    let missing_before = owned.missing();
    let data = wait(owned, step, &mut requests, stamp).await;
    for Request { at, asked, key, waiting } in requests {
        let one = match waiting {
            Waiting::Final(one) => one,
            Waiting::Needed(error) => return Err(error),
            Waiting::Order(_) | Waiting::Question(_) => unreachable!("all were waited for"),
        };
        let participant = &mut step.participants[at];
        match one {
            // The target has tried twice, or its drive has no space.
            Final::Answered(Answer { ending: ending @ (Ending::WriteFailed | Ending::NoSpace), .. }) => {
                let is_full = ending == Ending::NoSpace;
                let error = DeviceError {
                    kind: if is_full { DeviceErrorKind::NoSpace } else { DeviceErrorKind::Io },
                    operation: "write",
                    offset: DeviceOffset::new(start_of(&participant.role)),
                    bytes: step.rows.bytes() as u64,
                    errno: 0,
                };
                participant.last = match owned.port().give_up(participant.place.slot, &error) {
                    MemberError::Request(error) => return Err(error),
                    MemberError::Gone | MemberError::Unreadable => Final::Failed,
                };
            }
            Final::Answered(answer) if asked == Asked::Order => {
                participant.last = one;
                if answer.outcome.retained {
                    participant.keeps = Some(Kept { stamp, key });
                }
            }
            Final::Answered(_) => {}
            Final::Failed | Final::Forgot => participant.last = one,
        }
    }
    // A member that failed meanwhile: its target may have answered all the same, after it was paused, and the array no longer uses
    // what it did or did not. One that was missing before is being rebuilt by this step.
    let failed = owned.missing().without(missing_before);
    for one in step.participants.iter_mut().filter(|one| failed.contains(one.place.chunk)) {
        one.last = Final::Failed;
    }
    Ok(data)
}

fn start_of(role: &Role) -> u64 {
    match role {
        Role::Contribute { rows, .. } | Role::Reduce { rows, .. } => rows.start,
    }
}

/// What is known of a request.
pub(super) enum Waiting {
    Order(Answering),
    Question(Answering),
    Final(Final),
    /// Its member cannot be asked, and the array cannot do without it.
    Needed(VolumeError),
}

impl Waiting {
    /// Nothing of it says that anything went wrong.
    fn is_good(&self) -> bool {
        match self {
            Waiting::Order(_) | Waiting::Question(_) => true,
            Waiting::Final(Final::Answered(answer)) => answer.ending == Ending::Done,
            Waiting::Final(_) | Waiting::Needed(_) => false,
        }
    }
}

/// Whose orders will not be carried out.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
struct Trouble {
    everyone: bool,
    /// As a set of indices.
    reducers: u32,
}

impl Trouble {
    fn concerns<D>(self, one: &Participant<D>) -> bool {
        self.everyone || self.reducers >> one.place.index & 1 == 1
    }

    /// A contribution that did not reach one reducer is no trouble to the other: what is kept of it may be sent again.
    fn add<D: Device>(&mut self, asked: Asked, one: &Participant<D>, end: &Waiting) {
        match (asked, &one.role, end) {
            (Asked::Resend(to), ..) => self.reducers |= 1 << to,
            (
                Asked::Order,
                Role::Contribute { how: How::Delta, to, .. },
                Waiting::Final(Final::Answered(answer)),
            ) if answer.ending == Ending::PeerUnreachable && answer.outcome.written => {
                let reached = answer.outcome.forwarded;
                let unreached = to.iter().zip(reached).filter(|(_, reached)| !reached);
                self.reducers |= unreached.fold(0, |set, (to, _)| set | 1 << to.peer);
            }
            _ => self.everyone = true,
        }
    }
}

/// Waits for all answers. At the first sign of trouble the participants whose orders have no answer and will not be carried out are
/// settled (F-I4): a reducer whose contributor failed would wait for its time limit.
async fn wait<D: Device>(
    owned: Owned<'_, D>,
    step: &Prepared<D>,
    requests: &mut [Request],
    stamp: Stamp,
) -> Gather {
    let (mut trouble, mut data) = (Trouble::default(), Gather::new());
    poll_fn(|context| {
        loop {
            let (mut is_pending, mut any_new, before) = (false, false, trouble);
            for request in requests.iter_mut() {
                let participant = &step.participants[request.at];
                let (answering, is_question) = match &mut request.waiting {
                    Waiting::Order(answering) => (answering, false),
                    Waiting::Question(answering) => (answering, true),
                    Waiting::Final(_) | Waiting::Needed(_) => continue,
                };
                let next = match answering.as_mut().poll(context) {
                    Poll::Ready(mut answered) => {
                        if let Ok(answered) = &mut answered
                            && !answered.data.is_empty()
                        {
                            data = std::mem::take(&mut answered.data);
                        }
                        let heard = heard(owned, participant.place.slot, answered, is_question);
                        trouble.everyone |= heard.is_none();
                        heard
                    }
                    // The answer to the question is the order's, too.
                    Poll::Pending if trouble.concerns(participant) && !is_question => None,
                    Poll::Pending => {
                        is_pending = true;
                        continue;
                    }
                };
                any_new |= next.is_none();
                request.waiting = next.unwrap_or_else(|| {
                    Waiting::Question(participant.peer().settle(request.key, stamp, Settle::Abort))
                });
                if !request.waiting.is_good() {
                    trouble.add(request.asked, participant, &request.waiting);
                }
            }
            // A new question has to be polled, and trouble has questions for those that were polled before it.
            if any_new || trouble != before {
                continue;
            }
            return if is_pending { Poll::Pending } else { Poll::Ready(()) };
        }
    })
    .await;
    data
}

/// What a participant's answer says. None: its order was under way when the connection was lost, and it is to be asked.
fn heard<D: Device>(
    owned: Owned<'_, D>,
    slot: Slot,
    answered: Result<Answered, NoAnswer>,
    is_question: bool,
) -> Option<Waiting> {
    let one = match answered {
        Ok(answered) => Final::Answered(answered.answer),
        Err(NoAnswer::Away) => return None,
        Err(NoAnswer::Forgot) if is_question => Final::Forgot,
        // It refused the order.
        Err(NoAnswer::Forgot) => Final::Answered(Answer::nothing(Ending::Aborted)),
        Err(NoAnswer::Device(error)) => match owned.port().give_up(slot, &error) {
            MemberError::Request(error) => return Some(Waiting::Needed(error)),
            MemberError::Gone | MemberError::Unreadable => Final::Failed,
        },
    };
    Some(Waiting::Final(one))
}
