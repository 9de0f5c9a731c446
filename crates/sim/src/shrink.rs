//! Makes a failing history smaller: fewer requests, clients, rounds and stripes, fewer kinds of faults. A smaller
//! history is kept if the same check still fails. Seed and words of the smallest one replay it.

use std::time::{Duration, Instant};

use crate::campaign::Kind;
use crate::report::{Failure, Options};

/// Orders of events that are tried for each smaller history.
const SALTS: u64 = 6;
const TIME_MAX: Duration = Duration::from_secs(60);

/// The smallest history found that fails as `failure` does. The options say how to replay it.
pub fn shrink(kind: Kind, failure: Box<Failure>, options: &Options) -> (Box<Failure>, Options) {
    let (started, wanted) = (Instant::now(), check_of(&failure.what).to_string());
    let (mut best, mut best_options) = (failure, options.clone());
    'smaller: while started.elapsed() < TIME_MAX {
        let Some(drawn) = &best.drawn else { break };
        for candidate in best_options.reduced.smaller(drawn) {
            for salt in 0..SALTS {
                let mut reduced = candidate.clone();
                reduced.salt = if salt == 0 { reduced.salt } else { salt };
                let options = Options { reduced, ..best_options.clone() };
                match kind.run(best.seed, &options) {
                    Err(failure) if check_of(&failure.what) == wanted => {
                        (best, best_options) = (failure, options);
                        continue 'smaller;
                    }
                    _ if started.elapsed() >= TIME_MAX => break 'smaller,
                    _ => {}
                }
            }
        }
        break;
    }
    (best, best_options)
}

/// Which check failed: what stands before the first colon or number.
fn check_of(what: &str) -> &str {
    let invariant = what.starts_with("invariant");
    let end = what.find(|c: char| c == ':' || (!invariant && c.is_ascii_digit()));
    &what[..end.unwrap_or(what.len())]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The planted bug: members say that a flush is done, and nothing is durable.
    #[test]
    fn a_planted_bug_is_shrunk_to_a_few_requests_and_replays() {
        let options = Options { tail: 10, flushes_lie: true, ..Options::default() };
        let drawn = |failure: &Failure| failure.drawn.clone().expect("a history has a scenario");
        let requests = |failure: &Failure| drawn(failure).load.requests;
        let find = |seed| Kind::Histories.run(seed, &options).err().filter(|f| requests(f) > 10);
        let first = (1..200).find_map(find).expect("lying flushes are found");
        let (small, smaller_options) = shrink(Kind::Histories, first.clone(), &options);
        assert_eq!(check_of(&small.what), check_of(&first.what));
        assert!(requests(&small) <= requests(&first) / 2, "{}", smaller_options.reduced);
        assert_eq!((drawn(&small).load.clients, drawn(&small).rounds), (1, 1), "{}", smaller_options.reduced);
        let words = smaller_options.reduced.to_string();
        let options = Options { reduced: words.parse().expect("its own words"), ..options };
        assert_eq!(options, smaller_options);
        let again = Kind::Histories.run(small.seed, &options).expect_err("it replays");
        assert_eq!(again.what, small.what);
    }
}
