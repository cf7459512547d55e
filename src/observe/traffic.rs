//! Counters of what a buffer or communicator moves.

use crate::ffi::Floor;

#[cfg(feature = "metrics")]
pub(super) use counting::describe;

/// What the metrics have told of the traffic of one of them. Without the feature `metrics` it is empty.
#[derive(Debug)]
pub(crate) struct Told {
    #[cfg(feature = "metrics")]
    kind: &'static str,
    #[cfg(feature = "metrics")]
    so_far: std::sync::Mutex<SoFar>,
    #[cfg(feature = "metrics")]
    is_copied: bool,
}

#[cfg(feature = "metrics")]
#[derive(Debug, Default)]
struct SoFar {
    traffic: crate::traffic::Traffic,
    at: Option<std::time::Instant>,
}

/// How often counts are told that have to be copied from a GPU.
#[cfg(feature = "metrics")]
const COPIED_EVERY: std::time::Duration = std::time::Duration::from_millis(100);

impl Told {
    /// `kind` is the value of the label of that name. `is_copied`: what is moved is counted on a GPU.
    #[allow(unused_variables)]
    pub(crate) fn of(kind: &'static str, is_copied: bool) -> Self {
        Self {
            #[cfg(feature = "metrics")]
            kind,
            #[cfg(feature = "metrics")]
            so_far: std::sync::Mutex::default(),
            #[cfg(feature = "metrics")]
            is_copied,
        }
    }

    /// Counts what has been moved since the last call.
    #[allow(unused_variables)]
    pub(crate) fn tell(&self, of: &dyn Floor, rank: u32, ranks: u32) {
        #[cfg(feature = "metrics")]
        {
            let mut before = self.so_far.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            if self.is_copied {
                if before.at.is_some_and(|at| at.elapsed() < COPIED_EVERY) {
                    return;
                }
                before.at = Some(std::time::Instant::now());
            }
            // Read with the lock held, so that no reading is older than what has been told.
            if let Ok(now) = of.traffic(ranks) {
                counting::count(self.kind, rank, of, &before.traffic, &now);
                before.traffic = now;
            }
        }
    }
}

#[cfg(feature = "metrics")]
mod counting {
    use metrics::{Unit, describe_counter};

    use crate::ffi::Floor;
    use crate::sys;
    use crate::traffic::Traffic;

    const ROWS_SENT: &str = "epwire_rows_sent_total";
    const ROWS_RECEIVED: &str = "epwire_rows_received_total";
    const ROWS_ANSWERED: &str = "epwire_rows_answered_total";
    const BYTES_SENT: &str = "epwire_bytes_sent_total";
    const BYTES_RECEIVED: &str = "epwire_bytes_received_total";
    const WAITED: &str = "epwire_waited_nanoseconds_total";

    pub(crate) fn describe() {
        describe_counter!(ROWS_SENT, Unit::Count, "Rows that dispatch has sent");
        describe_counter!(ROWS_RECEIVED, Unit::Count, "Rows that dispatch has received");
        describe_counter!(ROWS_ANSWERED, Unit::Count, "Rows that combine has answered");
        describe_counter!(BYTES_SENT, Unit::Bytes, "Bytes sent: of rows, answers and messages");
        describe_counter!(BYTES_RECEIVED, Unit::Bytes, "Bytes received: of rows, answers and messages");
        describe_counter!(WAITED, Unit::Nanoseconds, "Time waited for a peer");
    }

    /// As in `EPWIRE_PATHS`.
    fn path_name(path: u32) -> &'static str {
        match path {
            sys::EPW_PATH_SELF => "self",
            sys::EPW_PATH_THREAD => "thread",
            sys::EPW_PATH_SHM => "shm",
            sys::EPW_PATH_VMM => "vmm",
            sys::EPW_PATH_IPC => "ipc",
            sys::EPW_PATH_QUEUE => "queue",
            _ => "none",
        }
    }

    pub(super) fn count(kind: &'static str, rank: u32, of: &dyn Floor, before: &Traffic, now: &Traffic) {
        let labels = [("rank", rank.to_string()), ("kind", kind.to_owned())];
        for (name, before, now) in [
            (ROWS_SENT, before.rows_sent, now.rows_sent),
            (ROWS_RECEIVED, before.rows_received, now.rows_received),
            (ROWS_ANSWERED, before.rows_answered, now.rows_answered),
        ] {
            if now > before {
                metrics::counter!(name, &labels).increment(now - before);
            }
        }
        for (peer, now) in now.peers.iter().enumerate() {
            let before = before.peers.get(peer).copied().unwrap_or_default();
            let [own, kind] = labels.clone();
            for (name, before, now) in [
                (BYTES_SENT, before.bytes_sent, now.bytes_sent),
                (BYTES_RECEIVED, before.bytes_received, now.bytes_received),
            ] {
                if now > before {
                    let path = ("path", path_name(of.path(peer as u32)).to_owned());
                    let labels = [own.clone(), kind.clone(), path];
                    metrics::counter!(name, &labels).increment(now - before);
                }
            }
            let more = now.waited.saturating_sub(before.waited);
            if !more.is_zero() {
                let labels = [own, kind, ("peer", peer.to_string())];
                metrics::counter!(WAITED, &labels).increment(more.as_nanos() as u64);
            }
        }
    }
}
