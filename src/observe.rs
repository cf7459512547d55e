//! What an operation reports to the outside: a span with the feature `tracing`, counters and a histogram with
//! `metrics`, as listed in the crate's documentation. Without these features every function here is empty.

mod membership;
mod traffic;

#[cfg(feature = "metrics")]
use std::time::Instant;

use crate::error::{Error, Result};
use crate::outcome::Outcome;

pub(crate) use membership::Sight;
pub(crate) use traffic::Told;

#[cfg(feature = "metrics")]
mod name {
    pub(super) const OPERATIONS: &str = "epwire_operations_total";
    pub(super) const SECONDS: &str = "epwire_operation_seconds";
    pub(super) const DEGRADED: &str = "epwire_degraded_total";
    pub(super) const ERRORS: &str = "epwire_errors_total";
    pub(super) const ABANDONED: &str = "epwire_abandoned_total";
}

/// Describes each metric to the recorder, and routes the core's log to `tracing`. Called before the creation of every
/// buffer and communicator, because recorder and subscriber may have been installed since the last one.
pub(crate) fn describe() {
    #[cfg(feature = "tracing")]
    crate::log::route_to_tracing();
    #[cfg(feature = "metrics")]
    {
        use metrics::{Unit, describe_counter, describe_histogram};
        describe_counter!(name::OPERATIONS, Unit::Count, "Operations that ended, complete or degraded");
        describe_histogram!(
            name::SECONDS,
            Unit::Seconds,
            "Time of an operation that ended, from call to end"
        );
        describe_counter!(name::DEGRADED, Unit::Count, "Operations that ended without the rows of some peer");
        describe_counter!(name::ERRORS, Unit::Count, "Operations that ended with an error");
        describe_counter!(
            name::ABANDONED,
            Unit::Count,
            "Operations whose future was dropped before they had ended"
        );
        traffic::describe();
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

    /// Ends the call, which was refused before it began.
    pub(crate) fn refuse(mut self, error: &Error) {
        self.ended = true;
        self.fail(error);
    }

    #[allow(unused_variables)]
    fn succeed(&self, outcome: &Outcome) {
        #[cfg(feature = "tracing")]
        if !outcome.is_complete() {
            self.span.record("missing", tracing::field::debug(outcome.missing));
            let record = outcome.record.as_ref().map(tracing::field::display);
            // A loss is a warning once, not in every operation until the next membership.
            let told = outcome.news.is_empty() && !outcome.suspects.is_empty();
            self.span.in_scope(|| match told {
                true => tracing::debug!(record, "degraded"),
                false => tracing::warn!(record, "degraded"),
            });
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
