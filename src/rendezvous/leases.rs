//! For how long the server has heard nothing from each client. The server that has the connections keeps this; only the
//! consequences are told to the [machine](super::machine), so that signs of life need no record.

use std::collections::BTreeMap;
use std::time::Duration;

use super::call::SessionId;
use super::machine::Event;

/// The clients of a server, and when each was last heard of.
#[derive(Debug)]
pub(crate) struct Leases {
    lease: Duration,
    clients: BTreeMap<SessionId, Client>,
    /// No client is late before this time. It is not updated with each sign of life, because there may be a thousand
    /// clients and each sign puts off only one of them.
    due: Option<Duration>,
}

#[derive(Debug)]
struct Client {
    last_heard: Duration,
    connected: bool,
    told: Told,
}

/// What the machine has been told of a client from which nothing was heard for a lease.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Told {
    Nothing,
    Silent,
    Closed,
}

impl Leases {
    pub(crate) fn new(lease: Duration) -> Self {
        Self { lease, clients: BTreeMap::new(), due: None }
    }

    /// The server that has just taken over has heard of no client yet, so it grants all clients a full lease, except
    /// one.
    ///
    /// The exception is `former`: the member whose server led before, and for how long the new leader has listened to
    /// that server and heard nothing. The lease of this member began with that silence, as it would have under any
    /// leader, but it still gets the time `back` to reconnect. No other lease may be shortened, because only the former
    /// leader has listened to those clients.
    pub(crate) fn expect(
        &mut self,
        now: Duration,
        sessions: impl IntoIterator<Item = SessionId>,
        former: Option<(SessionId, Duration)>,
        back: Duration,
    ) {
        for session in sessions {
            let silent = former.filter(|(of, _)| *of == session).map_or(Duration::ZERO, |(_, silent)| silent);
            let last_heard = now.saturating_sub(silent.min(self.lease.saturating_sub(back)));
            self.clients.entry(session).or_insert(Client {
                last_heard,
                connected: false,
                told: Told::Nothing,
            });
            self.wait(last_heard);
        }
    }

    fn wait(&mut self, since: Duration) {
        let due = since.saturating_add(self.lease);
        self.due = Some(self.due.map_or(due, |earliest| earliest.min(due)));
    }

    /// A sign of life over an open connection. Returns what to tell the machine.
    pub(crate) fn heard(&mut self, now: Duration, session: SessionId) -> Option<Event> {
        let client = Client { last_heard: now, connected: true, told: Told::Nothing };
        let former = self.clients.insert(session, client);
        self.wait(now);
        former.is_some_and(|former| former.told > Told::Nothing).then_some(Event::Heard { session })
    }

    /// Its connection is broken, which says nothing about its process: it has a lease to come back, from the last sign
    /// of life on, or from now on if it was silent for longer.
    pub(crate) fn broken(&mut self, now: Duration, session: SessionId) {
        let Some(client) = self.clients.get_mut(&session) else { return };
        client.connected = false;
        if client.told == Told::Silent {
            client.last_heard = now;
            self.wait(now);
        }
    }

    /// Another server is responsible for the clients now.
    #[cfg(feature = "succession")]
    pub(crate) fn clear(&mut self) {
        self.clients.clear();
        self.due = None;
    }

    pub(crate) fn lease(&self) -> Duration {
        self.lease
    }

    pub(crate) fn forget(&mut self, session: SessionId) {
        self.clients.remove(&session);
    }

    /// Reports clients from which nothing has been heard for a lease.
    pub(crate) fn expire(&mut self, now: Duration) -> Vec<Event> {
        if self.due.is_none_or(|due| due > now) {
            return Vec::new();
        }
        let lease = self.lease;
        let mut events = Vec::new();
        self.due = None;
        for (session, client) in &mut self.clients {
            let (session, late) = (*session, client.last_heard.saturating_add(lease));
            let (news, event) = match client.connected {
                true => (Told::Silent, Event::Silent { session }),
                false => (Told::Closed, Event::Closed { session, by_peer: false }),
            };
            if client.told >= news {
                continue;
            }
            if late <= now {
                client.told = news;
                events.push(event);
            } else {
                self.due = Some(self.due.map_or(late, |due| due.min(late)));
            }
        }
        events
    }

    /// When to check whether a client is late; no client is late before.
    pub(crate) fn next_deadline(&self) -> Option<Duration> {
        self.due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEASE: Duration = Duration::from_secs(5);

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn told(events: Vec<Event>) -> Vec<String> {
        events.iter().map(|event| format!("{event:?}")).collect()
    }

    #[test]
    fn silence_is_told_once_and_so_is_its_end() {
        let mut leases = Leases::new(LEASE);
        assert!(leases.heard(at(0), 7).is_none());
        assert_eq!(leases.next_deadline(), Some(at(5)));
        assert!(leases.expire(at(4)).is_empty());
        assert_eq!(told(leases.expire(at(5))), ["Silent { session: 7 }"]);
        assert!(leases.expire(at(9)).is_empty() && leases.next_deadline().is_none());
        assert!(matches!(leases.heard(at(10), 7), Some(Event::Heard { session: 7 })));
        assert!(leases.heard(at(11), 7).is_none());
    }

    #[test]
    fn whose_connection_is_broken_has_a_lease_to_come_back() {
        let mut leases = Leases::new(LEASE);
        leases.heard(at(0), 7);
        leases.broken(at(1), 7);
        leases.heard(at(3), 7); // over another connection
        assert!(leases.expire(at(7)).is_empty());
        leases.broken(at(7), 7);
        assert_eq!(told(leases.expire(at(8))), ["Closed { session: 7, by_peer: false }"]);
    }

    #[test]
    fn whose_connection_breaks_after_silence_has_a_lease_to_come_back_too() {
        let mut leases = Leases::new(LEASE);
        leases.heard(at(0), 7);
        assert_eq!(told(leases.expire(at(5))), ["Silent { session: 7 }"]);
        leases.broken(at(6), 7);
        assert!(leases.expire(at(10)).is_empty());
        assert_eq!(told(leases.expire(at(11))), ["Closed { session: 7, by_peer: false }"]);
        assert!(leases.next_deadline().is_none());
        assert!(matches!(leases.heard(at(12), 7), Some(Event::Heard { session: 7 })));
    }

    #[test]
    fn who_is_expected_and_does_not_come_is_late_after_a_lease() {
        let mut leases = Leases::new(LEASE);
        leases.expect(at(1), [1, 2], None, at(1));
        leases.heard(at(2), 2);
        assert_eq!(told(leases.expire(at(6))), ["Closed { session: 1, by_peer: false }"]);
    }

    #[test]
    fn a_new_leader_gives_everyone_a_full_lease() {
        let mut leases = Leases::new(LEASE);
        leases.expect(at(10), [1, 2, 3], None, at(1));
        assert_eq!((leases.next_deadline(), leases.expire(at(14)).len()), (Some(at(15)), 0));
        assert_eq!(leases.expire(at(15)).len(), 3);
    }

    #[test]
    fn only_the_former_leader_has_been_silent_before() {
        let mut leases = Leases::new(LEASE);
        leases.expect(at(10), [1, 2, 3], Some((2, at(3))), at(1));
        assert_eq!(leases.next_deadline(), Some(at(12)));
        assert_eq!(told(leases.expire(at(12))), ["Closed { session: 2, by_peer: false }"]);
        leases.heard(at(13), 1);
        assert!(leases.expire(at(14)).is_empty());
        assert_eq!(told(leases.expire(at(15))), ["Closed { session: 3, by_peer: false }"]);
    }

    #[test]
    fn a_former_leader_has_time_to_come_however_long_it_was_silent() {
        let mut leases = Leases::new(LEASE);
        leases.expect(at(100), [1, 2], Some((2, at(60))), at(2));
        assert!(leases.expire(at(101)).is_empty());
        assert_eq!(told(leases.expire(at(102))), ["Closed { session: 2, by_peer: false }"]);
    }
}
