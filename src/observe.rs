//! What an operation tells the outside: a span behind the feature `tracing`, counters and a histogram behind `metrics`, as the
//! crate's documentation lists them. Without the features every function here is empty.

#[cfg(feature = "metrics")]
use std::time::Instant;

use crate::error::{Error, Result};
use crate::outcome::Outcome;

/// One call, from its beginning to its end. Dropped before `end`: a future that was dropped in flight.
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

    /// The call has ended like this; `outcome` finds its outcome.
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
            metrics::counter!("epwire_operations_total", &self.labels).increment(1);
            metrics::histogram!("epwire_operation_seconds", &self.labels).record(self.began.elapsed());
            if !outcome.is_complete() {
                metrics::counter!("epwire_degraded_total", &self.labels).increment(1);
            }
        }
    }

    #[allow(unused_variables)]
    fn fail(&self, error: &Error) {
        #[cfg(feature = "tracing")]
        self.span.in_scope(|| tracing::warn!(%error, "refused"));
        #[cfg(feature = "metrics")]
        metrics::counter!("epwire_errors_total", &self.labels).increment(1);
    }

    fn abandon(&self) {
        #[cfg(feature = "tracing")]
        self.span.in_scope(|| tracing::debug!("abandoned"));
        #[cfg(feature = "metrics")]
        metrics::counter!("epwire_abandoned_total", &self.labels).increment(1);
    }
}

impl Drop for Observed {
    fn drop(&mut self) {
        if !self.ended {
            self.abandon();
        }
    }
}
