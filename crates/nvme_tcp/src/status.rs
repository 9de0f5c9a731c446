//! Status of a completed command: type, code, and whether a retry can help.

use std::fmt;

/// The status field of a completion, without its phase bit.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Status(u16);

/// What a status code belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StatusType {
    /// Any command may end so.
    Generic,
    /// The code means something else for each command, or command set.
    CommandSpecific,
    /// The medium, or the contents.
    Media,
    /// The way to the namespace.
    Path,
    /// Reserved by the specification.
    Reserved(u8),
    /// Each vendor's own.
    Vendor,
}

const CODE: u16 = 0x00ff;
const TYPE_SHIFT: u16 = 8;
const TYPE: u16 = 0x0007;
const RETRY_DELAY_SHIFT: u16 = 11;
const RETRY_DELAY: u16 = 0x0003;
const MORE: u16 = 1 << 13;
const DO_NOT_RETRY: u16 = 1 << 14;
const VALID: u16 = 0x7fff;

const GENERIC: u8 = 0;
const SPECIFIC: u8 = 1;
const MEDIA: u8 = 2;
const PATH: u8 = 3;
const VENDOR: u8 = 7;

macro_rules! statuses {
    ($( $name:ident = $kind:ident $code:literal, $retry:ident, $words:literal; )*) => {
        impl Status {
            $( #[doc = concat!("The command ended with: ", $words, ".")]
               pub const $name: Status = Status(($kind as u16) << TYPE_SHIFT | $code | $retry); )*
        }

        /// Every status with a name here, and its words.
        const WORDS: &[(Status, &str)] = &[ $( (Status::$name, $words), )* ];
    };
}

const RETRY: u16 = 0;
const FINAL: u16 = DO_NOT_RETRY;

statuses! {
    SUCCESS = GENERIC 0x00, RETRY, "success";
    INVALID_OPCODE = GENERIC 0x01, FINAL, "the opcode is not known";
    INVALID_FIELD = GENERIC 0x02, FINAL, "a field of the command has a value that it may not have";
    COMMAND_ID_CONFLICT = GENERIC 0x03, FINAL, "the command id is in use";
    DATA_TRANSFER_ERROR = GENERIC 0x04, RETRY, "the data was not transferred";
    ABORTED_POWER_LOSS = GENERIC 0x05, RETRY, "aborted by a loss of power that was announced";
    INTERNAL_ERROR = GENERIC 0x06, RETRY, "an error inside the target";
    ABORT_REQUESTED = GENERIC 0x07, RETRY, "aborted by the host";
    ABORTED_QUEUE_DELETION = GENERIC 0x08, RETRY, "aborted because its queue was deleted";
    INVALID_NAMESPACE = GENERIC 0x0b, FINAL, "there is no such namespace, or its format does not fit";
    COMMAND_SEQUENCE_ERROR = GENERIC 0x0c, FINAL, "the command does not come now";
    INVALID_SGL_SEGMENT = GENERIC 0x0d, FINAL, "an SGL segment that may not be here";
    INVALID_SGL_COUNT = GENERIC 0x0e, FINAL, "too many or too few SGL descriptors";
    INVALID_SGL_LENGTH = GENERIC 0x0f, FINAL, "the SGL is longer or shorter than the data";
    INVALID_SGL_TYPE = GENERIC 0x11, FINAL, "an SGL descriptor of a type that may not be here";
    OPERATION_DENIED = GENERIC 0x15, FINAL, "denied: the host may not do this";
    INVALID_SGL_OFFSET = GENERIC 0x16, FINAL, "the offset of the SGL is outside of the capsule";
    HOST_ID_INCONSISTENT = GENERIC 0x18, FINAL, "host identifiers have 128 bits here";
    KEEP_ALIVE_EXPIRED = GENERIC 0x19, RETRY, "no keep-alive came in time";
    KEEP_ALIVE_INVALID = GENERIC 0x1a, FINAL, "the keep-alive time is not possible";
    ABORTED_PREEMPTED = GENERIC 0x1b, FINAL, "aborted: another host preempted this one";
    NAMESPACE_WRITE_PROTECTED = GENERIC 0x20, FINAL, "the namespace is write protected";
    INTERRUPTED = GENERIC 0x21, RETRY, "interrupted, try again";
    TRANSIENT_TRANSPORT_ERROR = GENERIC 0x22, RETRY, "an error on the way, try again";
    LBA_OUT_OF_RANGE = GENERIC 0x80, FINAL, "blocks beyond the end of the namespace";
    CAPACITY_EXCEEDED = GENERIC 0x81, FINAL, "the namespace has no more room";
    NAMESPACE_NOT_READY = GENERIC 0x82, RETRY, "the namespace is not ready";
    RESERVATION_CONFLICT = GENERIC 0x83, FINAL, "reservation conflict: another host holds the namespace";

    INVALID_QUEUE_ID = SPECIFIC 0x01, FINAL, "there is no such queue";
    INVALID_QUEUE_SIZE = SPECIFIC 0x02, FINAL, "a queue may not have this size";
    ABORT_LIMIT = SPECIFIC 0x03, RETRY, "too many aborts at a time";
    ASYNC_EVENT_LIMIT = SPECIFIC 0x05, FINAL, "too many asynchronous event requests at a time";
    INVALID_LOG_PAGE = SPECIFIC 0x09, FINAL, "there is no such log page";
    FEATURE_NOT_SAVEABLE = SPECIFIC 0x0d, FINAL, "the feature cannot be saved";
    FEATURE_NOT_CHANGEABLE = SPECIFIC 0x0e, FINAL, "the feature cannot be changed";
    FEATURE_NOT_OF_NAMESPACES = SPECIFIC 0x0f, FINAL, "the feature is not one of a namespace";
    INVALID_CONTROLLER_ID = SPECIFIC 0x1f, FINAL, "there is no such controller";
    CONNECT_FORMAT = SPECIFIC 0x80, FINAL, "connect: the format is not known";
    CONNECT_BUSY = SPECIFIC 0x81, RETRY, "connect: the controller is in use, or there are no more";
    CONNECT_INVALID_PARAMETERS = SPECIFIC 0x82, FINAL, "connect: a parameter is wrong";
    CONNECT_RESTART_DISCOVERY = SPECIFIC 0x83, FINAL, "connect: discover again";
    CONNECT_INVALID_HOST = SPECIFIC 0x84, FINAL, "connect: the host is not allowed";
    DISCOVERY_RESTART = SPECIFIC 0x90, RETRY, "the discovery log page changed while it was read";
    AUTHENTICATION_REQUIRED = SPECIFIC 0x91, FINAL, "the host has to authenticate";

    WRITE_FAULT = MEDIA 0x80, RETRY, "the data could not be written";
    UNRECOVERED_READ = MEDIA 0x81, RETRY, "the data could not be read";
    COMPARE_FAILED = MEDIA 0x85, FINAL, "the data is not what was compared with";
    ACCESS_DENIED = MEDIA 0x86, FINAL, "access denied";
    DEALLOCATED = MEDIA 0x87, FINAL, "the block was deallocated or never written";

    PATH_INTERNAL = PATH 0x00, RETRY, "an error on the way to the namespace";
    ANA_PERSISTENT_LOSS = PATH 0x01, FINAL, "the namespace is lost by this way for good";
    ANA_INACCESSIBLE = PATH 0x02, RETRY, "the namespace is not accessible by this way now";
    ANA_TRANSITION = PATH 0x03, RETRY, "access by this way is changing";
    PATH_CONTROLLER = PATH 0x60, RETRY, "the controller found an error on the way";
    PATH_HOST = PATH 0x70, RETRY, "the host found an error on the way";
    HOST_ABORTED = PATH 0x71, RETRY, "the host gave up the command";

    OP_RETIRED = VENDOR 0x01, FINAL, "Twill: the op is retired";
    OP_ABORTED = VENDOR 0x02, FINAL, "Twill: the op is aborted";
    PEER_UNREACHABLE = VENDOR 0x03, RETRY, "Twill: a peer of the op cannot be reached";
    NO_ATTACH = VENDOR 0x04, FINAL, "Twill: there is no such attach";
    CONTRIBUTION_REFUSED = VENDOR 0x05, FINAL, "Twill: a contribution came twice, or is out of range";
    TIME_OVER = VENDOR 0x06, FINAL, "Twill: the op's time is over";
    NO_CREDIT = VENDOR 0x07, FINAL, "Twill: the host sends more than its credit covers";
    DELTA_GONE = VENDOR 0x08, FINAL, "Twill: the delta is gone";
    DIGEST_WRONG = VENDOR 0x09, FINAL, "Twill: a contribution's digest is wrong";
    NEVER_SEEN = VENDOR 0x0a, FINAL, "Twill: the op was never seen";
}

impl Status {
    /// A vendor's own status.
    #[must_use]
    pub const fn vendor(code: u8) -> Status {
        Status((VENDOR as u16) << TYPE_SHIFT | code as u16)
    }

    /// From a completion's status field, whose lowest bit is the phase.
    #[must_use]
    pub const fn from_completion(field: u16) -> Status {
        Status(field >> 1)
    }

    /// As a completion's status field, with phase 0.
    #[must_use]
    pub const fn to_completion(self) -> u16 {
        self.0 << 1
    }

    /// What the code belongs to.
    #[must_use]
    pub const fn status_type(self) -> StatusType {
        match (self.0 >> TYPE_SHIFT & TYPE) as u8 {
            GENERIC => StatusType::Generic,
            SPECIFIC => StatusType::CommandSpecific,
            MEDIA => StatusType::Media,
            PATH => StatusType::Path,
            VENDOR => StatusType::Vendor,
            other => StatusType::Reserved(other),
        }
    }

    /// The code.
    #[must_use]
    pub const fn code(self) -> u8 {
        (self.0 & CODE) as u8
    }

    /// If the command did what it was to do.
    #[must_use]
    pub const fn is_success(self) -> bool {
        self.0 & (TYPE << TYPE_SHIFT | CODE) == 0
    }

    /// If the same command may succeed when it is sent again.
    #[must_use]
    pub const fn may_retry(self) -> bool {
        self.0 & DO_NOT_RETRY == 0
    }

    /// Which of the controller's three retry delays to wait before a retry; 0: none.
    #[must_use]
    pub const fn retry_delay(self) -> u8 {
        (self.0 >> RETRY_DELAY_SHIFT & RETRY_DELAY) as u8
    }

    /// If the error log page says more.
    #[must_use]
    pub const fn has_more(self) -> bool {
        self.0 & MORE != 0
    }

    /// The same with a hint that the same command will fail again.
    #[must_use]
    pub const fn without_retry(self) -> Status {
        Status(self.0 | DO_NOT_RETRY)
    }

    /// If type and code are the same, whatever the hints say.
    #[must_use]
    pub const fn is(self, other: Status) -> bool {
        let kind = TYPE << TYPE_SHIFT | CODE;
        self.0 & kind == other.0 & kind
    }

    /// What it means, if that is known here. Command-specific codes of 80h and above are those of Connect, and vendor-specific
    /// ones those of Twill targets.
    #[must_use]
    pub fn words(self) -> Option<&'static str> {
        WORDS.iter().find(|(status, _)| status.is(self)).map(|(_, words)| *words)
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (kind, code) = (self.0 >> TYPE_SHIFT & TYPE, self.code());
        match self.words() {
            Some(words) => write!(f, "{words} (status {kind:x}h/{code:02x}h)"),
            None => write!(f, "status {kind:x}h/{code:02x}h"),
        }
    }
}

impl fmt::Debug for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}{}", if self.may_retry() { "" } else { ", final" })
    }
}

const _: () = assert!(Status::INVALID_NAMESPACE.0 & !VALID == 0);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_goes_through_a_completion() {
        for (status, words) in WORDS {
            assert_eq!(Status::from_completion(status.to_completion()), *status, "{words}");
            assert_eq!(status.words(), Some(*words));
            assert_eq!(status.is_success(), *status == Status::SUCCESS);
        }
        // Reservation Conflict with the bit for no retry, as it stands in a completion.
        assert_eq!(Status::RESERVATION_CONFLICT.to_completion(), 0x8106);
        assert_eq!(Status::CONNECT_INVALID_HOST.to_completion(), 0x8308);
        assert_eq!(Status::ANA_INACCESSIBLE.to_completion(), 0x0604);
    }

    #[test]
    fn no_two_words_stand_for_one_status() {
        for (at, (status, words)) in WORDS.iter().enumerate() {
            let twin = WORDS[at + 1..].iter().find(|(other, _)| other.is(*status));
            assert_eq!(twin, None, "{words}");
        }
    }

    #[test]
    fn every_field_is_said() {
        for field in 0..=u16::MAX {
            let status = Status::from_completion(field);
            let text = status.to_string();
            assert!(text.contains("status"), "{text}");
            assert_eq!(status.is(Status::SUCCESS), status.is_success());
            assert_eq!(status.to_completion(), field & !1);
        }
        assert_eq!(Status::vendor(5).status_type(), StatusType::Vendor);
        assert_eq!(Status::from_completion(0b0010_1000_0000_0000).retry_delay(), 2);
        assert_eq!(Status::from_completion(4 << 9).status_type(), StatusType::Reserved(4));
    }
}
