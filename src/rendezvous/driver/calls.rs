//! The unanswered calls of a client's handles, and the waits for news.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;

use super::attendant::Answer;
use super::connection::too_long;
use crate::rendezvous::error::BootstrapError;
use crate::rendezvous::wire::{Frame, HEADER_BYTES, MAX_BODY_BYTES, Reply, Request, encode};

/// Calls that one client may have waiting.
pub(super) const MAX_PENDING: usize = 512;
/// How much longer than the server a client waits, so that the server's own report of a timeout arrives first.
const GRACE: Duration = Duration::from_millis(500);

/// Calls are numbered from 1, in the order in which they are made.
#[derive(Default)]
pub(super) struct Calls {
    pending: BTreeMap<u64, Pending>,
    waiting: Vec<Waiting>,
    last_id: u64,
}

/// A call.
pub(super) struct Pending {
    op: String,
    /// Kept to be sent again over another connection.
    pub(super) request: Request,
    began: Instant,
    deadline: Duration,
    pub(super) reply: Answer<Reply>,
}

struct Waiting {
    op: String,
    began: Instant,
    deadline: Duration,
    reply: Answer<()>,
}

impl Calls {
    /// The id for a call of the client itself, or for the next one of a handle.
    pub(super) fn next_id(&mut self) -> u64 {
        self.last_id += 1;
        self.last_id
    }

    /// Registers this call and returns the frame to send, unless it is refused.
    pub(super) fn ask(
        &mut self,
        op: String,
        request: Request,
        deadline: Duration,
        reply: Answer<Reply>,
    ) -> Option<Frame> {
        let id = self.next_id();
        let frame = Frame::Call { id, request: request.clone() };
        let checked = BootstrapError::check(&op, "calls waiting", self.pending.len() + 1, MAX_PENDING)
            .and_then(|()| fits(&op, &frame));
        if let Err(error) = checked {
            let _ = reply.send(Err(error));
            return None;
        }
        self.pending.insert(id, Pending { op, request, began: Instant::now(), deadline, reply });
        Some(frame)
    }

    /// Ends a call whose answer has arrived.
    pub(super) fn take(&mut self, id: u64) -> Option<Pending> {
        self.pending.remove(&id)
    }

    /// Ends the call with which the member leaves, if it has no answer yet.
    pub(super) fn take_leave(&mut self) -> Option<Answer<Reply>> {
        let is_leave = |call: &Pending| matches!(call.request, Request::Leave {});
        let id = self.pending.iter().find(|(_, call)| is_leave(call)).map(|(id, _)| *id)?;
        self.take(id).map(|call| call.reply)
    }

    /// All unanswered calls, in their order.
    pub(super) fn unanswered(&self) -> impl Iterator<Item = Frame> {
        self.pending.iter().map(|(id, call)| Frame::Call { id: *id, request: call.request.clone() })
    }

    /// A sign of life that says which calls have been answered.
    pub(super) fn ping(&self) -> Frame {
        Frame::Ping { received: self.last_id, except: self.pending.keys().copied().collect() }
    }

    pub(super) fn wait(&mut self, op: String, began: Instant, deadline: Duration, reply: Answer<()>) {
        self.waiting.push(Waiting { op, began, deadline, reply });
    }

    /// Wakes the waits: there are news.
    pub(super) fn wake(&mut self) {
        self.waiting.drain(..).for_each(|wait| drop(wait.reply.send(Ok(()))));
    }

    /// When the next call or wait times out.
    pub(super) fn due(&self) -> Option<Instant> {
        let answers = self.pending.values().map(|call| call.began + call.deadline + GRACE);
        answers.chain(self.waiting.iter().map(|wait| wait.began + wait.deadline)).min()
    }

    /// Ends what has timed out. `outage`: if the server is lost, the error that says so.
    pub(super) fn expire(&mut self, outage: Option<impl Fn(&str) -> BootstrapError>) {
        let overdue = |op: String, began: Instant, deadline| match &outage {
            Some(lost) => lost(&op),
            None => {
                let (elapsed, missing) = (began.elapsed(), Box::default());
                BootstrapError::Timeout { op, elapsed, deadline, missing }
            }
        };
        let late = |call: &Pending| call.began.elapsed() >= call.deadline + GRACE;
        let ids: Vec<u64> = self.pending.iter().filter(|(_, call)| late(call)).map(|(id, _)| *id).collect();
        for Pending { op, began, deadline, reply, .. } in ids.iter().filter_map(|id| self.pending.remove(id))
        {
            let _ = reply.send(Err(overdue(op, began, deadline)));
        }
        let late = self.waiting.extract_if(.., |wait| wait.began.elapsed() >= wait.deadline);
        for Waiting { op, began, deadline, reply } in late {
            let _ = reply.send(Err(overdue(op, began, deadline)));
        }
    }

    /// Ends all calls and waits: the server is lost for good.
    pub(super) fn refuse_all(&mut self, lost: impl Fn(&str) -> BootstrapError) {
        for call in std::mem::take(&mut self.pending).into_values() {
            let _ = call.reply.send(Err(lost(&call.op)));
        }
        for wait in self.waiting.drain(..) {
            let _ = wait.reply.send(Err(lost(&wait.op)));
        }
    }
}

/// Whether a request fits a frame. Requests of a fixed size are not encoded for this.
fn fits(op: &str, frame: &Frame) -> Result<(), BootstrapError> {
    match frame {
        Frame::Call {
            request:
                Request::Resume { .. }
                | Request::Retire { .. }
                | Request::ReportDeath { .. }
                | Request::Abort { .. }
                | Request::Leave {},
            ..
        } => Ok(()),
        _ => {
            encode(frame).map(|_| ()).map_err(|_| too_long(op, MAX_BODY_BYTES + HEADER_BYTES, MAX_BODY_BYTES))
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot;

    use super::*;

    #[tokio::test]
    async fn each_answer_is_acknowledged_though_an_earlier_call_still_waits() {
        let (mut calls, deadline) = (Calls::default(), Duration::from_secs(60));
        let get = |key: &str| Request::Get { keys: vec![key.to_owned()], deadline };
        for key in ["never", "a", "b"] {
            calls.ask("get".to_owned(), get(key), deadline, oneshot::channel().0);
        }
        drop(calls.take(2));
        assert_eq!(calls.ping(), Frame::Ping { received: 3, except: [1, 3].into() });
        [1, 3].into_iter().for_each(|id| drop(calls.take(id)));
        assert_eq!(calls.ping(), Frame::Ping { received: 3, except: [].into() });
    }
}
