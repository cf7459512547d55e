//! For how long a server has heard nothing from the server that leads, or that led before it.
//!
//! A new leader grants every client a full lease, because nobody else has heard the clients of the former leader. The
//! member of the former leader is an exception: every server that may take over has been listening to that leader all
//! the time, since a leader must be heard several times per second. So the lease of that member does not start anew:
//! the silence so far counts. This silence
//!
//! * concerns that member alone: its server runs in the same process, so it cannot be silent while its member is
//!   running;
//! * is what this server itself has observed, counting only the time in which this process ran, as with any lease;
//! * ends with anything that arrives from that server, even an answer;
//! * does not count if that server has resigned or no longer votes.
//!
//! As with any lease, its end only makes a member suspect, and a member that comes back no longer is.

use std::time::Duration;

use tokio::time::Instant;

use crate::rendezvous::machine::SessionId;

/// All times are the machine's, except the instant of the last sign of life.
#[derive(Default)]
pub(super) struct Former {
    heard: Option<(SessionId, Instant)>,
    since: Duration,
    looked: Duration,
}

impl Former {
    /// To be called often, because this process may be stopped: whose server leads or led last, and when it was heard
    /// last.
    pub(super) fn look(&mut self, now: Duration, heard: Option<(SessionId, Instant)>) {
        if self.heard != heard {
            let ago = heard.map_or(Duration::ZERO, |(_, at)| at.elapsed());
            self.since = now.saturating_sub(ago.min(now.saturating_sub(self.looked)));
        }
        (self.heard, self.looked) = (heard, now);
    }

    /// Whose server has been silent, and for how long.
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

    /// What arrived meanwhile has not been read yet.
    #[tokio::test(start_paused = true)]
    async fn time_in_which_this_process_was_stopped_is_no_silence() {
        let (mut former, began) = (Former::default(), Instant::now());
        tokio::time::advance(100 * MS).await;
        former.look(100 * MS, Some((7, began)));
        former.look(200 * MS, Some((7, began + 100 * MS)));
        // The machine's time advances by 150 ms, that of others by a minute.
        tokio::time::advance(60_000 * MS).await;
        former.look(350 * MS, Some((7, began + 190 * MS)));
        assert_eq!(former.silent(), Some((7, 150 * MS)));
    }
}
