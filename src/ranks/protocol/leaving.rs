//! Leaving: members announce that they make no more calls, in a group or at all.
//!
//! A group is removed once all its members have dropped it: it has no holder here, no calls in
//! progress, and no more splits or shrinks can follow. A rank that leaves tells every member that
//! is not lost, also those that left before, since they wait only for that.

use super::message::{Counts, GroupId, Message};
use super::{Action, BEAT_GROUPS, Ended, Fault, FaultKind, Machine};

impl Machine {
    /// The actions since the last call, in order.
    pub fn take(&mut self) -> Vec<Action> {
        while let Some(id) = self.ending.pop() {
            self.end_group(id);
        }
        let actions = std::mem::take(&mut self.actions);
        for action in &actions {
            if let Action::End(_, Ok(Ended::Group(id, _))) = action
                && let Some(group) = self.groups.get_mut(id)
            {
                *group.held.get_or_insert(0) += 1;
            }
        }
        actions
    }

    /// A holder has dropped its group.
    pub fn let_go(&mut self, id: GroupId) {
        let Some(held) = self.groups.get_mut(&id).and_then(|group| group.held.as_mut()) else {
            return;
        };
        *held -= 1;
        self.look_to_free(id);
    }

    /// Something of a group has ended: checks whether the group can be removed.
    pub(super) fn look_to_free(&mut self, id: GroupId) {
        if self.groups.get(&id).is_some_and(|group| group.held == Some(0)) {
            self.ending.push(id);
        }
    }

    /// Announces that this rank makes no more calls in a group without holders and calls in
    /// progress, and removes the group once all members have announced it. The library's part is
    /// freed, unless a member is lost: freeing may then never end.
    fn end_group(&mut self, id: GroupId) {
        let Some(group) = self.groups.get_mut(&id) else { return };
        if group.held != Some(0) || group.is_busy() {
            return;
        }
        if !std::mem::replace(&mut group.let_go, true) {
            for rank in self.members_but_me(id) {
                let calls = self.counts_for(id, rank);
                self.send_to(vec![rank], &Message::LetGo { group: id, calls });
            }
        }
        let members = &self.groups[&id].members;
        if members.iter().all(|&r| r == self.me || self.peers[r].gone || self.makes_no_more(id, r))
        {
            let is_whole = members.iter().all(|&r| !self.peers[r].gone || self.peers[r].has_left);
            self.groups.remove(&id);
            self.actions.extend(is_whole.then_some(Action::Free(id)));
        }
    }

    /// Whether a member has left, or dropped this group.
    pub(super) fn makes_no_more(&self, id: GroupId, rank: usize) -> bool {
        self.peers[rank].has_left || self.groups[&id].others_let_go.contains(&rank)
    }

    /// A member has dropped a group, after this number of calls.
    pub(super) fn lets_go(&mut self, from: usize, id: GroupId, calls: Counts) {
        self.count(from, &[(id, calls)]);
        if let Some(group) = self.groups.get_mut(&id) {
            group.others_let_go.insert(from);
            self.look_for_left(id, from);
            self.shrink_changed(id);
            self.look_to_free(id);
        }
    }

    /// This rank leaves in order; a join in progress is given up.
    pub fn leave(&mut self) {
        if std::mem::replace(&mut self.has_left, true) {
            return;
        }
        let text = "it has given up joining".into();
        self.fail_join(Fault { kind: FaultKind::Lost, rank: Some(self.me), text });
        self.others().for_each(|rank| self.say_bye(rank));
    }

    pub(super) fn say_bye(&mut self, rank: usize) {
        let ids = self.groups_with(rank).into_iter();
        let mut calls: Vec<_> = ids.map(|id| (id, self.counts_for(id, rank))).collect();
        while calls.len() > BEAT_GROUPS {
            let some = calls.split_off(calls.len() - BEAT_GROUPS);
            self.send_to(vec![rank], &Message::Beat { calls: some });
        }
        self.send_to(vec![rank], &Message::Bye { calls });
    }

    /// A member leaves in order, after this number of calls.
    pub(super) fn hears_bye(&mut self, from: usize, calls: &[(GroupId, Counts)]) {
        self.count(from, calls);
        self.peers[from].has_left = true;
        for id in self.groups_with(from) {
            self.look_for_left(id, from);
            self.look_to_free(id);
        }
        self.members_changed(from);
    }

    /// Whether every other member has left or is lost; and whether any is lost.
    pub fn is_alone(&self) -> (bool, bool) {
        let lost = self.others().any(|r| self.peers[r].gone && !self.peers[r].has_left);
        (self.others().all(|r| self.is_out(r)), lost)
    }
}
