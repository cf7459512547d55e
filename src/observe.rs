//! What an operation reports to the outside: a span with the feature `tracing`, counters and a histogram with
//! `metrics`, as listed in the crate's documentation. Without these features every function here is empty.

mod membership;

#[cfg(feature = "metrics")]
use std::time::Instant;

use crate::error::{Error, Result};
use crate::outcome::Outcome;
#[cfg(feature = "metrics")]
use crate::traffic::Traffic;

pub(crate) use membership::Sight;

#[cfg(feature = "metrics")]
mod name {
    pub(super) const OPERATIONS: &str = "epwire_operations_total";
    pub(super) const SECONDS: &str = "epwire_operation_seconds";
    pub(super) const DEGRADED: &str = "epwire_degraded_total";
    pub(super) const ERRORS: &str = "epwire_errors_total";
    pub(super) const ABANDONED: &str = "epwire_abandoned_total";
    pub(super) const ROWS_SENT: &str = "epwire_rows_sent_total";
    pub(super) const ROWS_RECEIVED: &str = "epwire_rows_received_total";
    pub(super) const ROWS_ANSWERED: &str = "epwire_rows_answered_total";
    pub(super) const BYTES_SENT: &str = "epwire_bytes_sent_total";
    pub(super) const BYTES_RECEIVED: &str = "epwire_bytes_received_total";
    pub(super) const WAITED: &str = "epwire_waited_nanoseconds_total";
}

/// Describes each metric to the recorder. Called at the creation of every buffer, because a recorder may have been
/// installed since the last one.
pub(crate) fn describe() {
    #[cfg(feature = "tracing")]
    crate::log::route_to_tracing();
    #[cfg(feature = "metrics")]
    {
        use metrics::{Unit, describe_counter, describe_histogram};
        describe_counter!(name::OPERATIONS, Unit::Count, "Operations that ended, complete or degraded");
        describe_histogram!(name::SECONDS, Unit::Seconds, "Time of those operations, from call to end");
        describe_counter!(name::DEGRADED, Unit::Count, "Operations that ended without the rows of some peer");
        describe_counter!(name::ERRORS, Unit::Count, "Operations that ended with an error");
        describe_counter!(
            name::ABANDONED,
            Unit::Count,
            "Operations whose future was dropped before they had ended"
        );
        describe_counter!(name::ROWS_SENT, Unit::Count, "Rows that dispatch has sent");
        describe_counter!(name::ROWS_RECEIVED, Unit::Count, "Rows that dispatch has received");
        describe_counter!(name::ROWS_ANSWERED, Unit::Count, "Rows that combine has answered");
        describe_counter!(name::BYTES_SENT, Unit::Bytes, "Bytes of rows sent and of answers");
        describe_counter!(name::BYTES_RECEIVED, Unit::Bytes, "Bytes of rows received");
        describe_counter!(name::WAITED, Unit::Nanoseconds, "Time waited for a peer");
    }
}

/// Counts what a buffer has moved between these two readings.
#[cfg(feature = "metrics")]
pub(crate) fn moved(rank: u32, before: &Traffic, now: &Traffic) {
    let rank = rank.to_string();
    for (name, before, now) in [
        (name::ROWS_SENT, before.rows_sent, now.rows_sent),
        (name::ROWS_RECEIVED, before.rows_received, now.rows_received),
        (name::ROWS_ANSWERED, before.rows_answered, now.rows_answered),
        (name::BYTES_SENT, before.bytes_sent, now.bytes_sent),
        (name::BYTES_RECEIVED, before.bytes_received, now.bytes_received),
    ] {
        if now > before {
            metrics::counter!(name, "rank" => rank.clone()).increment(now - before);
        }
    }
    for (peer, now) in now.waited.iter().enumerate() {
        let more = now.saturating_sub(before.waited.get(peer).copied().unwrap_or_default());
        if !more.is_zero() {
            let labels = [("rank", rank.clone()), ("peer", peer.to_string())];
            metrics::counter!(name::WAITED, &labels).increment(more.as_nanos() as u64);
        }
    }
}

/// One call, from begin to end. Dropping it before `end` means that a future was dropped in flight.
#[derive(Debug)]
pub(crate) struct Observed {
    ended: bool,
    #[cfg(feature = "tracing")]
    span: tracing::Span,
    #[cfg(feature = "metrics")]
    labels: [(&'static str, String); 2],
    #[cfg(feature = "metrics")]
    began: Instant,
}

impl Observed {
    #[allow(unused_variables)]
    pub(crate) fn begin(operation: &'static str, rank: u32) -> Self {
        Self {
            ended: false,
            #[cfg(feature = "tracing")]
            span: tracing::debug_span!("epwire", operation, rank, missing = tracing::field::Empty),
            #[cfg(feature = "metrics")]
            labels: [("operation", operation.to_owned()), ("rank", rank.to_string())],
            #[cfg(feature = "metrics")]
            began: Instant::now(),
        }
    }

    /// Ends the call with this result; `outcome` finds the outcome in it.
    pub(crate) fn end<T>(mut self, result: Result<T>, outcome: impl FnOnce(&T) -> &Outcome) -> Result<T> {
        self.ended = true;
        match &result {
            Ok(value) => self.succeed(outcome(value)),
            Err(error) => self.fail(error),
        }
        result
    }

    #[allow(unused_variables)]
    fn succeed(&self, outcome: &Outcome) {
        #[cfg(feature = "tracing")]
        if !outcome.is_complete() {
            self.span.record("missing", tracing::field::debug(outcome.missing));
            let record = outcome.record.as_ref().map(tracing::field::display);
            self.span.in_scope(|| tracing::warn!(record, "degraded"));
        }
        #[cfg(feature = "metrics")]
        {
            metrics::counter!(name::OPERATIONS, &self.labels).increment(1);
            metrics::histogram!(name::SECONDS, &self.labels).record(self.began.elapsed());
            if !outcome.is_complete() {
                metrics::counter!(name::DEGRADED, &self.labels).increment(1);
            }
        }
    }

    #[allow(unused_variables)]
    fn fail(&self, error: &Error) {
        #[cfg(feature = "tracing")]
        self.span.in_scope(|| tracing::warn!(%error, "refused"));
        #[cfg(feature = "metrics")]
        metrics::counter!(name::ERRORS, &self.labels).increment(1);
    }

    fn abandon(&self) {
        #[cfg(feature = "tracing")]
        self.span.in_scope(|| tracing::debug!("abandoned"));
        #[cfg(feature = "metrics")]
        metrics::counter!(name::ABANDONED, &self.labels).increment(1);
    }
}

impl Drop for Observed {
    fn drop(&mut self) {
        if !self.ended {
            self.abandon();
        }
    }
}
