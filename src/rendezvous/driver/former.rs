//! For how long a server has heard nothing of the one that leads, or led before it.
//!
//! A new leader gives everyone a full lease, as nobody else has heard of the clients of the former one. With the member that the former
//! one belonged to it is another matter: every server that may take over listens to that one all the time, since it has to let itself
//! be heard several times in each second. So its lease does not begin anew: that silence counts. It is
//!
//! * of that member alone: its server is the same process, which when it runs can no more be silent than its member;
//! * what this server has not heard itself, in the time in which this process ran, as with any lease;
//! * over with anything that comes from that server, be it an answer; and it counts for nothing if it has resigned or votes no more.
//!
//! As any lease it makes a member no more than suspect, and who comes back is one no more.

use std::time::Duration;

use tokio::time::Instant;

use crate::rendezvous::machine::SessionId;

/// Times but for the instant of the last sign are those of the machine.
#[derive(Default)]
pub(super) struct Former {
    heard: Option<(SessionId, Instant)>,
    since: Duration,
    looked: Duration,
}

impl Former {
    /// To be told often, as this process may be stopped: whose server leads or did last, and when it was heard last.
    pub(super) fn look(&mut self, now: Duration, heard: Option<(SessionId, Instant)>) {
        if self.heard != heard {
            let ago = heard.map_or(Duration::ZERO, |(_, at)| at.elapsed());
            self.since = now.saturating_sub(ago.min(now.saturating_sub(self.looked)));
        }
        (self.heard, self.looked) = (heard, now);
    }

    /// For how long it has been silent.
    pub(super) fn silent(&self) -> Option<(SessionId, Duration)> {
        self.heard.map(|(session, _)| (session, self.looked.saturating_sub(self.since)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[tokio::test(start_paused = true)]
    async fn silence_is_counted_from_the_last_sign() {
        let (mut former, began) = (Former::default(), Instant::now());
        assert_eq!(former.silent(), None);
        tokio::time::advance(1000 * MS).await;
        former.look(1000 * MS, Some((7, began + 940 * MS)));
        assert_eq!(former.silent(), Some((7, 60 * MS)));
        former.look(1100 * MS, Some((7, began + 940 * MS)));
        assert_eq!(former.silent(), Some((7, 160 * MS)));
        tokio::time::advance(200 * MS).await;
        former.look(1200 * MS, Some((7, began + 1150 * MS)));
        assert_eq!(former.silent(), Some((7, 50 * MS)));
        former.look(1300 * MS, None);
        assert_eq!(former.silent(), None);
    }

    /// What came meanwhile is still to be read.
    #[tokio::test(start_paused = true)]
    async fn time_in_which_this_process_was_stopped_is_no_silence() {
        let (mut former, began) = (Former::default(), Instant::now());
        tokio::time::advance(100 * MS).await;
        former.look(100 * MS, Some((7, began)));
        former.look(200 * MS, Some((7, began + 100 * MS)));
        // The machine's time goes on by 150 ms, that of others by a minute.
        tokio::time::advance(60_000 * MS).await;
        former.look(350 * MS, Some((7, began + 190 * MS)));
        assert_eq!(former.silent(), Some((7, 150 * MS)));
    }
}
