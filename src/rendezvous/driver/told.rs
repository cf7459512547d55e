//! Who is informed about a client's connection with the server of its run, and about what the server says unasked.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Instant;

use tokio::sync::watch;
use tokio::time::sleep;

use super::attendant::{Attendant, Later};
use super::contact::{Contact, Outage};
use crate::rendezvous::machine::{FIRST_REPORT, NEXT_REPORT};
use crate::rendezvous::wire::{Host, View};
use crate::waking::contain;

/// Informs the client's handles, and the attendant if there is one.
pub(super) struct Told {
    pub(super) view: watch::Sender<View>,
    pub(super) servers: watch::Sender<Vec<String>>,
    pub(super) contact: watch::Sender<Contact>,
    pub(super) attendant: Option<Arc<dyn Attendant>>,
    pub(super) later: Later,
}

impl Told {
    /// Reports again and again that no server has answered at `address` yet.
    pub(super) async fn unanswered(&self, address: &str) -> Infallible {
        sleep(FIRST_REPORT).await;
        loop {
            if let Some(attendant) = &self.attendant {
                attendant.unanswered(address);
            }
            sleep(NEXT_REPORT).await;
        }
    }

    /// A new view of the membership; wakes the tasks that follow it.
    pub(super) fn show(&self, shown: View) {
        if let Some(attendant) = &self.attendant {
            attendant.shown(&shown);
        }
        contain(|| drop(self.view.send_replace(shown)));
    }

    /// The server at `address`, which belongs to the member `host` if that is given, serves this client.
    pub(super) fn reached(&self, host: Option<Host>, address: &str) {
        let former = self.contact.send_replace(Contact { server: host.clone(), outage: None });
        if let Some(attendant) = &self.attendant {
            let member = |host: &Option<Host>| host.as_ref().map(|host| host.member);
            let another = member(&former.server) != member(&host);
            attendant.reached(host.as_ref(), address, another, former.outage.as_ref());
        }
    }

    /// There is no connection with the server at `address`. `is_final`: and there will be none.
    pub(super) fn unreachable(&self, address: &str, detail: &str, is_final: bool) {
        let Contact { server, outage: former } = self.contact.borrow().clone();
        if former.as_ref().is_some_and(|outage| outage.is_final) {
            return;
        }
        let since = former.map_or_else(now, |outage| outage.since);
        let outage = Outage::new(since, detail, is_final);
        self.contact.send_replace(Contact { server, outage: Some(outage.clone()) });
        match &self.attendant {
            Some(attendant) => attendant.lost(address, &outage),
            #[cfg(feature = "tracing")]
            None => tracing::warn!(address, detail, is_final, "lost the rendezvous server"),
            #[cfg(not(feature = "tracing"))]
            None => {}
        }
    }

    /// The member has left.
    pub(super) fn left(&self, detail: &str) {
        let outage = Some(Outage::new(now(), detail, true));
        self.contact.send_modify(|contact| contact.outage = outage);
        if let Some(attendant) = &self.attendant {
            attendant.left();
        }
    }
}

/// From the clock of the runtime, which tests may stop.
fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}
