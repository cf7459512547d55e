//! Which servers vote.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tokio::time::Instant;

use crate::rendezvous::log::{MAX_VOTERS, Voter};
use crate::rendezvous::wire::{Identity, Listener};

/// The servers that should vote: an odd number, since an even one survives no more losses; spread evenly over the
/// hosts, so that the loss of one host costs as few voters as possible; and otherwise those that already vote and are
/// reachable. `own`: the leader, unless it is leaving. `members`: the members that are being heard, with their servers.
pub(super) fn choose(voters: &[Voter], own: Option<&Voter>, members: &[(Identity, Listener)]) -> Vec<Voter> {
    let is_own = |listener: &Listener| own.is_some_and(|own| own.id == listener.id);
    let votes = |listener: &Listener| voters.iter().any(|voter| voter.id == listener.id);
    let own_host = members.iter().find(|(_, listener)| is_own(listener)).map(|(identity, _)| &*identity.host);
    let (mut chosen, mut rest): (Vec<_>, Vec<_>) = members
        .iter()
        .filter(|(_, listener)| !is_own(listener))
        .map(|(identity, listener)| Candidate { host: &identity.host, listener })
        .partition(|candidate| votes(candidate.listener));
    let leading = usize::from(own.is_some());
    let most = (leading + chosen.len() + rest.len()).min(MAX_VOTERS);
    let size = if most % 2 == 0 { most.saturating_sub(1) } else { most };
    let size = size.saturating_sub(leading); // besides the leader
    rest.splice(0..0, chosen.drain(chosen.len().min(size)..));
    while chosen.len() < size
        && let Some(at) = on_the_emptiest_host(&rest, &Spread::of(own_host, &chosen))
    {
        chosen.push(rest.remove(at));
    }
    // A voter is replaced only if that spreads the voters more evenly over hosts: each exchange does, so the loop ends.
    loop {
        let spread = Spread::of(own_host, &chosen);
        let Some(enters) = on_the_emptiest_host(&rest, &spread) else { break };
        let fullest = (0..chosen.len()).max_by_key(|at| spread.on(chosen[*at].host));
        let Some(goes) = fullest.filter(|at| spread.on(chosen[*at].host) >= spread.on(rest[enters].host) + 2)
        else {
            break;
        };
        std::mem::swap(&mut chosen[goes], &mut rest[enters]);
    }
    let voter = |it: &Candidate<'_>| Voter { id: it.listener.id, address: it.listener.address.clone() };
    own.cloned().into_iter().chain(chosen.iter().map(voter)).collect()
}

/// Servers that did not get the log in time to become voters: each is left out of the choice for a while, so that others
/// can vote.
#[derive(Default)]
pub(super) struct LeftOut(BTreeMap<u128, Pause>);

struct Pause {
    until: Instant,
    length: Duration,
}

/// How long a server is left out at first; each time in a row it is twice as long, up to [`LONGEST_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_secs(5);
const LONGEST_PAUSE: Duration = Duration::from_secs(300);

impl LeftOut {
    /// Returns for how long this one is left out.
    pub(super) fn add(&mut self, id: u128) -> Duration {
        let length = self.0.get(&id).map_or(FIRST_PAUSE, |pause| LONGEST_PAUSE.min(2 * pause.length));
        self.0.insert(id, Pause { until: Instant::now() + length, length });
        length
    }

    pub(super) fn contains(&self, id: u128) -> bool {
        self.0.get(&id).is_some_and(|pause| pause.until > Instant::now())
    }

    /// These have become voters.
    pub(super) fn forget(&mut self, voters: &BTreeSet<u128>) {
        self.0.retain(|id, _| !voters.contains(id));
    }
}

/// A server that can vote, and its host.
struct Candidate<'a> {
    host: &'a str,
    listener: &'a Listener,
}

/// The number of voters on each host.
struct Spread<'a>(BTreeMap<&'a str, usize>);

impl<'a> Spread<'a> {
    fn of(own: Option<&'a str>, chosen: &[Candidate<'a>]) -> Self {
        let mut counts = BTreeMap::new();
        for host in own.into_iter().chain(chosen.iter().map(|candidate| candidate.host)) {
            *counts.entry(host).or_default() += 1;
        }
        Self(counts)
    }

    fn on(&self, host: &str) -> usize {
        self.0.get(host).copied().unwrap_or(0)
    }
}

/// The first of those whose hosts have the fewest voters.
fn on_the_emptiest_host(rest: &[Candidate<'_>], spread: &Spread<'_>) -> Option<usize> {
    (0..rest.len()).min_by_key(|at| spread.on(rest[*at].host))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn voter(id: u128) -> Voter {
        Voter { id, address: format!("a{id}") }
    }

    /// Members with the servers 0, 1, ..., each on the given host.
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

    #[tokio::test(start_paused = true)]
    async fn who_did_not_get_the_log_is_left_out_for_longer_each_time() {
        let mut left_out = LeftOut::default();
        let lengths: Vec<u64> = (0..8).map(|_| left_out.add(7).as_secs()).collect();
        assert_eq!(lengths, [5, 10, 20, 40, 80, 160, 300, 300]);
        tokio::time::advance(LONGEST_PAUSE - FIRST_PAUSE).await;
        assert!(left_out.contains(7) && !left_out.contains(8));
        tokio::time::advance(FIRST_PAUSE).await;
        assert!(!left_out.contains(7));
        left_out.forget(&BTreeSet::from([7]));
        assert_eq!(left_out.add(7), FIRST_PAUSE);
    }

    #[test]
    fn an_odd_number_up_to_five_votes() {
        let sizes = [(1, 1), (2, 1), (3, 3), (4, 3), (5, 5), (9, 5)];
        for (count, size) in sizes {
            assert_eq!(chosen(&[0], Some(0), &members(&vec!["h"; count])).len(), size, "of {count}");
        }
    }

    /// The number of voters on each host, in the order of hosts.
    fn spread(chosen: &[u128], members: &[(Identity, Listener)]) -> Vec<usize> {
        let mut counts = BTreeMap::<&str, usize>::new();
        for (identity, listener) in members {
            *counts.entry(&identity.host).or_default() += usize::from(chosen.contains(&listener.id));
        }
        counts.into_values().collect()
    }

    fn sorted(mut ids: Vec<u128>) -> Vec<u128> {
        ids.sort_unstable();
        ids
    }

    #[test]
    fn other_hosts_come_first_and_none_has_more_than_it_must() {
        let cases: [(&[&str], &[u128]); 4] = [
            (&["a", "a", "a", "b", "b", "c"], &[0, 3, 5, 1, 4]),
            (&["a", "a", "a", "a", "b", "b"], &[0, 4, 1, 5, 2]),
            (&["a", "a", "a", "a", "a", "b"], &[0, 5, 1, 2, 3]),
            (&["a", "a", "b", "c"], &[0, 2, 3]),
        ];
        for (hosts, expected) in cases {
            assert_eq!(chosen(&[0], Some(0), &members(hosts)), expected, "{hosts:?}");
        }
    }

    #[test]
    fn the_loss_of_one_of_three_hosts_leaves_a_majority_whoever_voted_before() {
        let all = members(&["a", "a", "a", "a", "a", "b", "b", "c"]);
        for leader in 0..8 {
            for second in 0..8 {
                let now = sorted(chosen(&[leader, second, 1, 2, 3], Some(leader), &all));
                let mut counts = spread(&now, &all);
                counts.sort_unstable();
                assert_eq!(counts, [1, 2, 2], "{now:?}");
                assert_eq!(sorted(chosen(&now, Some(leader), &all)), now, "it stays so");
            }
        }
    }

    #[test]
    fn who_votes_and_does_not_lead_gives_way_to_a_host_that_has_none() {
        let one_host = members(&["a", "a", "a", "a"]);
        assert_eq!(chosen(&[0, 1, 2], Some(2), &one_host), [2, 0, 1]);
        // A member on another host joins: it gets one of the three votes of the first host.
        let two_hosts = members(&["a", "a", "a", "a", "b"]);
        assert_eq!(spread(&chosen(&[0, 1, 2], Some(2), &two_hosts[..3]), &two_hosts), [3, 0]);
        let there: Vec<_> = two_hosts.iter().filter(|(identity, _)| identity.rank != 3).cloned().collect();
        let now = chosen(&[0, 1, 2], Some(2), &there);
        assert_eq!((now[0], spread(&now, &there)), (2, vec![2, 1]));
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
