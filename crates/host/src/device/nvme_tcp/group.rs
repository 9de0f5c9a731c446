//! The members that this process has attached, by name: a name stands for one member.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

/// A member, as the others see it.
pub(super) trait Fellow {
    /// It can still be used.
    fn is_usable(&self) -> bool;
    /// Its target says that it is still this host's.
    fn is_held(&self) -> bool;
}

/// Attached members by name.
pub(super) struct Group<M> {
    members: Mutex<HashMap<String, Weak<M>>>,
}

impl<M> Default for Group<M> {
    fn default() -> Self {
        Group { members: Mutex::default() }
    }
}

impl<M: Fellow> Group<M> {
    /// The member of this name, if it is attached and usable.
    pub fn find(&self, name: &str) -> Option<Arc<M>> {
        let found = self.members.lock().get(name)?.upgrade();
        found.filter(|member| member.is_usable())
    }

    /// The member of this name that is attached and cannot be used any more.
    pub fn find_ended(&self, name: &str) -> Option<Arc<M>> {
        let found = self.members.lock().get(name)?.upgrade();
        found.filter(|member| !member.is_usable())
    }

    /// Enters a member.
    pub fn enter(&self, name: &str, member: &Arc<M>) {
        let mut members = self.members.lock();
        members.retain(|_, member| member.strong_count() > 0);
        members.insert(name.to_owned(), Arc::downgrade(member));
    }

    /// Whether more than half of the other members are still this host's: only then may it take back what a target has
    /// forgotten.
    pub fn others_hold(&self, name: &str) -> bool {
        let others: Vec<Arc<M>> = {
            let members = self.members.lock();
            let others = members.iter().filter(|(other, _)| *other != name);
            others.filter_map(|(_, other)| other.upgrade()).collect()
        };
        let holding = others.iter().filter(|member| member.is_held()).count();
        2 * holding > others.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Member(bool);

    impl Fellow for Member {
        fn is_usable(&self) -> bool {
            true
        }

        fn is_held(&self) -> bool {
            self.0
        }
    }

    #[test]
    fn more_than_half_of_the_others_must_know_this_host() {
        for (others, hold) in [
            (&[][..], false),
            (&[true], true),
            (&[true, false], false),
            (&[true, true, false], true),
            (&[false], false),
        ] {
            let group = Group::default();
            let members: Vec<_> = others.iter().map(|held| Arc::new(Member(*held))).collect();
            members.iter().enumerate().for_each(|(at, member)| group.enter(&at.to_string(), member));
            let me = Arc::new(Member(true));
            group.enter("me", &me);
            assert_eq!(group.others_hold("me"), hold, "{others:?}");
        }
    }
}
