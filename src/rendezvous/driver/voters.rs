//! Which servers vote.

use std::collections::BTreeSet;

use crate::rendezvous::log::{MAX_VOTERS, Voter};
use crate::rendezvous::wire::{Identity, Listener};

/// Those who should: an odd number, as an even one survives no more losses; who votes already and is there; on different hosts
/// where there are. `own`: the leader, unless it leaves. `members`: those that are heard of, with their servers.
pub(super) fn choose(voters: &[Voter], own: Option<&Voter>, members: &[(Identity, Listener)]) -> Vec<Voter> {
    let is_own = |listener: &Listener| own.is_some_and(|own| own.id == listener.id);
    let votes = |listener: &Listener| voters.iter().any(|voter| voter.id == listener.id);
    let (there, rest): (Vec<_>, Vec<_>) =
        members.iter().filter(|(_, listener)| !is_own(listener)).partition(|(_, listener)| votes(listener));
    let available = usize::from(own.is_some()) + there.len() + rest.len();
    let most = available.min(MAX_VOTERS);
    let size = if most % 2 == 0 { most.saturating_sub(1) } else { most };
    let own_host = members.iter().find(|(_, listener)| is_own(listener)).map(|(identity, _)| &identity.host);
    let mut hosts: BTreeSet<&String> = own_host.into_iter().collect();
    let mut chosen: Vec<Voter> = own.cloned().into_iter().collect();
    let voter = |listener: &Listener| Voter { id: listener.id, address: listener.address.clone() };
    for (identity, listener) in there.into_iter().take(size.saturating_sub(chosen.len())) {
        hosts.insert(&identity.host);
        chosen.push(voter(listener));
    }
    let mut rest = rest;
    while chosen.len() < size && !rest.is_empty() {
        let elsewhere = rest.iter().position(|(identity, _)| !hosts.contains(&identity.host));
        let (identity, listener) = rest.remove(elsewhere.unwrap_or(0));
        hosts.insert(&identity.host);
        chosen.push(voter(listener));
    }
    chosen
}

#[cfg(test)]
mod tests {
    use super::*;

    fn voter(id: u128) -> Voter {
        Voter { id, address: format!("a{id}") }
    }

    /// Members with the servers 0, 1, ..., each on the host given.
    fn members(hosts: &[&str]) -> Vec<(Identity, Listener)> {
        let member = |(rank, host): (u32, &&str)| {
            let id = u128::from(rank);
            let identity = Identity {
                rank,
                member: id,
                host: (*host).to_owned(),
                pid: rank,
                process_space: String::new(),
            };
            (identity, Listener { id, address: format!("a{id}") })
        };
        (0..).zip(hosts).map(member).collect()
    }

    fn chosen(voters: &[u128], own: Option<u128>, members: &[(Identity, Listener)]) -> Vec<u128> {
        let voters: Vec<Voter> = voters.iter().map(|id| voter(*id)).collect();
        choose(&voters, own.map(voter).as_ref(), members).into_iter().map(|voter| voter.id).collect()
    }

    #[test]
    fn an_odd_number_up_to_five_votes() {
        let sizes = [(1, 1), (2, 1), (3, 3), (4, 3), (5, 5), (9, 5)];
        for (count, size) in sizes {
            assert_eq!(chosen(&[0], Some(0), &members(&vec!["h"; count])).len(), size, "of {count}");
        }
    }

    #[test]
    fn other_hosts_come_first() {
        assert_eq!(chosen(&[0], Some(0), &members(&["a", "a", "a", "b", "b", "c"])), [0, 3, 5, 1, 2]);
    }

    #[test]
    fn who_votes_goes_on_and_who_is_gone_is_replaced() {
        let all = members(&["h"; 4]);
        assert_eq!(chosen(&[0, 2, 3], Some(0), &all), [0, 2, 3]);
        let without_two: Vec<_> = all.iter().filter(|(identity, _)| identity.rank != 2).cloned().collect();
        assert_eq!(chosen(&[0, 2, 3], Some(0), &without_two), [0, 3, 1]);
    }

    #[test]
    fn a_leader_that_leaves_is_no_voter_any_more() {
        assert_eq!(chosen(&[0, 1, 2], None, &members(&["h"; 4])[1..]), [1, 2, 3]);
        assert_eq!(chosen(&[0], None, &members(&["h"; 2])[1..]), [1]);
        assert!(chosen(&[0], None, &[]).is_empty());
    }
}
