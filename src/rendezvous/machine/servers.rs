//! The servers that members have of their own.

use super::state::{Life, Machine};
use crate::rendezvous::call::SessionId;
use crate::rendezvous::wire::{Identity, Listener};

/// The server of a member that nobody has seen dead.
pub(crate) struct MemberServer<'m> {
    pub(crate) identity: &'m Identity,
    pub(crate) listener: &'m Listener,
    pub(crate) session: Option<SessionId>,
    /// The run has come together, and the member is being heard: its server can take part.
    pub(crate) available: bool,
}

impl Machine {
    /// In order of rank.
    pub(crate) fn servers(&self) -> impl Iterator<Item = MemberServer<'_>> {
        let formed = self.decision.epoch > 0;
        self.members().filter(|member| member.life != Life::Dead).filter_map(move |member| {
            Some(MemberServer {
                identity: &member.identity,
                listener: member.listener.as_ref()?,
                session: member.session,
                available: formed && member.life == Life::Heard,
            })
        })
    }
}
