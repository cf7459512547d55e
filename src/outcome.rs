//! How an operation ended.

use std::time::Duration;

use crate::cause::Cause;
use crate::error::Result;
use crate::ffi::{Floor, Known};
use crate::mask::Mask;
use crate::names::names;
use crate::sys;

/// Who gets an outcome.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reader {
    /// The program: it is told of the suspects that it names.
    Program,
    /// Spans and metrics alone, because a sending half returns no outcome: the program has still to be told.
    Observer,
}

/// How an operation ended: complete, or without the part of some peers.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
#[must_use = "a degraded operation lacks the part of the missing ranks"]
pub struct Outcome {
    /// Active peers whose part of the operation is absent. Empty: complete. A peer that was given up is among them in
    /// every operation until the next membership, even if no token was for its experts.
    /// [`CombineOutput::contributions`](crate::GenericCombineOutput::contributions) reports what a token's sum lacks.
    pub missing: Mask,
    /// The first peer given up, with all details of that wait.
    pub record: Option<ErrorRecord>,
    /// In a degraded operation, the active peers that this rank had given up in this epoch when it looked at the
    /// outcome, [`Membership::suspects`](crate::Membership::suspects). Those in `missing` but not here take part in the
    /// next operation again. On a GPU this rank itself may be among them: its kernels were kept off the GPU for a
    /// deadline, and it continues without its own experts.
    pub suspects: Mask,
    /// Those of `suspects` that the program is told of for the first time: no earlier outcome of this buffer or
    /// communicator has named them in this epoch, and the program has not [revoked](crate::Group::revoke) them. A
    /// server that logs these ranks logs each loss once. Later outcomes do not repeat what one has named: look at the
    /// outcome of every operation, also of dispatch ([`Dispatched::outcome`](crate::Dispatched::outcome)).
    #[cfg_attr(feature = "serde", serde(default))]
    pub news: Mask,
}

impl Outcome {
    /// Whether every active peer took part and, for prefill, all received rows had a place ([`Cause::Overflow`]) and
    /// no id was left out ([`Cause::Routing`]).
    pub fn is_complete(&self) -> bool {
        let cause = self.record.as_ref().map(|record| record.cause);
        self.missing.is_empty() && !matches!(cause, Some(Cause::Overflow | Cause::Routing))
    }

    /// Whether a member was given up: then the group should find out who is still there, which
    /// [`Group::step`](crate::Group::step) does by itself. Rows that are missing without a suspect, because a peer
    /// abandoned an operation or sent rows of another kind, are no reason for a change of membership: the next
    /// operation has all peers again.
    pub fn needs_recovery(&self) -> bool {
        !self.is_complete() && !self.suspects.is_empty()
    }

    /// The outcome of an operation that has ended on this buffer or communicator.
    pub(crate) fn of(floor: &impl Floor, outcome: &sys::epw_outcome, reader: Reader) -> Result<Self> {
        let missing = Mask::from_words(outcome.missing.bits);
        let record = ErrorRecord::from_c(&outcome.record, floor.known());
        let (mut suspects, mut news) = (Mask::EMPTY, Mask::EMPTY);
        if !missing.is_empty() {
            let now = floor.membership()?;
            // A membership that has begun since then has cleared them.
            if record.as_ref().is_none_or(|record| record.epoch == now.epoch) {
                suspects = Mask::from_words(now.suspects.bits);
                if reader == Reader::Program {
                    news = floor.known().add(now.epoch, &suspects);
                }
                if let Some(found) = record.as_ref().filter(|record| record.is_finding(&suspects)) {
                    floor.known().found(now.epoch, found.peer, found.cause);
                }
            }
        }
        Ok(Self { missing, record, suspects, news })
    }
}

/// `complete`, or `without ranks 2,5; suspects: 2; rank 0 gave up on peer 2 ...`.
impl std::fmt::Display for Outcome {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.is_complete() {
            return f.pad("complete");
        }
        if self.missing.is_empty() {
            return self.record.as_ref().map_or(Ok(()), |record| record.fmt(f));
        }
        write!(f, "without {}; suspects: {}", self.missing.named(), self.suspects)?;
        self.record.as_ref().map_or(Ok(()), |record| write!(f, "; {record}"))
    }
}

/// The phase of an operation in which a wait ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "kebab-case"))]
#[non_exhaustive]
pub enum Phase {
    /// Waiting for permission to write the peer's dispatch slots.
    DispatchSend,
    /// Waiting for the peer's rows.
    DispatchReceive,
    /// Answering the peer's rows.
    CombineSend,
    /// Waiting for the peer's answer.
    CombineReceive,
    /// Waiting for the peer's part of a collective.
    Collective,
    /// Waiting for the peer in a send or receive.
    Point,
}

names!(Phase, "a phase of an operation" {
    DispatchSend = "dispatch-send",
    DispatchReceive = "dispatch-receive",
    CombineSend = "combine-send",
    CombineReceive = "combine-receive",
    Collective = "collective",
    Point = "send-or-receive",
});

/// The first peer that an operation gave up, or what a kernel found wrong.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct ErrorRecord {
    /// The phase of the wait.
    pub phase: Phase,
    /// Why it ended.
    pub cause: Cause,
    /// This rank.
    pub rank: u32,
    /// The peer given up.
    pub peer: u32,
    /// Lane of the operation; for communicators 0 for collectives, 1 for sends and receives.
    pub lane: u32,
    /// Membership epoch.
    pub epoch: u32,
    /// Operation number in the lane, from 1 in each epoch; for sends and receives that of the last collective.
    pub op: u32,
    /// How many peers were still awaited.
    pub waiting: u32,
    /// The signal word awaited, with its value bits zero unless it is an epoch word.
    pub expected: u64,
    /// The word read.
    pub seen: u64,
    /// Time since the wait began.
    pub elapsed: Duration,
    /// The deadline of the wait.
    pub deadline: Duration,
}

impl ErrorRecord {
    /// For a record with [`Cause::Routing`]: token, column of its top-k, and the id found there.
    pub fn routing(&self) -> Option<(u32, u32, i64)> {
        let place = self.expected;
        (self.cause == Cause::Routing).then_some(((place >> 32) as u32, place as u32, self.seen as i64))
    }

    /// For a record with [`Cause::Overflow`]: rows received, and how many of them have a place.
    pub fn overflow(&self) -> Option<(u64, u64)> {
        (self.cause == Cause::Overflow).then_some((self.expected, self.seen))
    }

    /// Whether this wait has found out why one of these peers was given up.
    fn is_finding(&self, suspects: &Mask) -> bool {
        let own = matches!(self.cause, Cause::Timeout | Cause::Dropped | Cause::Step | Cause::Link);
        own && suspects.contains(self.peer)
    }

    /// `known`: the C core does not know why a peer was revoked.
    pub(crate) fn from_c(r: &sys::epw_error_record, known: &Known) -> Option<Self> {
        let cause = match r.cause {
            sys::EPW_CAUSE_TIMEOUT => Cause::Timeout,
            sys::EPW_CAUSE_DROPPED => Cause::Dropped,
            sys::EPW_CAUSE_SUSPECTED => Cause::Suspected,
            sys::EPW_CAUSE_FORMAT => Cause::Format,
            sys::EPW_CAUSE_PARTIAL => Cause::Partial,
            sys::EPW_CAUSE_ROUTING => Cause::Routing,
            sys::EPW_CAUSE_HELD => Cause::Held,
            sys::EPW_CAUSE_SUPERSEDED => known.why(r.epoch, r.peer).unwrap_or(Cause::Superseded),
            sys::EPW_CAUSE_STEP => Cause::Step,
            sys::EPW_CAUSE_LINK => Cause::Link,
            sys::EPW_CAUSE_OVERFLOW => Cause::Overflow,
            _ => return None,
        };
        let phase = match r.phase {
            sys::EPW_PHASE_DISPATCH_SEND => Phase::DispatchSend,
            sys::EPW_PHASE_DISPATCH_RECEIVE => Phase::DispatchReceive,
            sys::EPW_PHASE_COMBINE_SEND => Phase::CombineSend,
            sys::EPW_PHASE_COLLECTIVE => Phase::Collective,
            sys::EPW_PHASE_POINT => Phase::Point,
            _ => Phase::CombineReceive,
        };
        Some(Self {
            phase,
            cause,
            rank: r.rank,
            peer: r.peer,
            lane: r.lane,
            epoch: r.epoch,
            op: r.op,
            waiting: r.waiting,
            expected: r.expected,
            seen: r.seen,
            elapsed: Duration::from_nanos(r.elapsed_ns),
            deadline: Duration::from_nanos(r.deadline_ns),
        })
    }
}

impl std::fmt::Display for ErrorRecord {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { rank, lane, epoch, op, .. } = self;
        if let Some((token, column, id)) = self.routing() {
            return write!(
                f,
                "rank {rank} did not route token {token}, column {column} in lane {lane}, epoch {epoch}, op {op}: id {id} is out of range or repeated"
            );
        }
        if self.cause == Cause::Held {
            return write!(
                f,
                "rank {rank} did nothing in lane {lane}, epoch {epoch}, op {op} ({}): the lane was not in the state that its replay needs; replay dispatch and combine in turns",
                self.phase
            );
        }
        if let Some((came, fit)) = self.overflow() {
            return write!(
                f,
                "rank {rank} received {came} rows in lane {lane}, epoch {epoch}, op {op}, of which {fit} fit its output: raise the capacity"
            );
        }
        let place = match self.phase {
            Phase::Collective | Phase::Point => String::new(),
            _ => format!("lane {lane}, "),
        };
        write!(
            f,
            "rank {rank} gave up on peer {} ({}, {}) in {place}epoch {epoch}, op {op}: {}",
            self.peer,
            self.phase,
            self.cause,
            self.cause.text()
        )?;
        // A peer that was not waited for has nothing else to report.
        if self.elapsed.is_zero() && self.expected == 0 {
            return Ok(());
        }
        write!(f, "; after {:?} of {:?}", self.elapsed, self.deadline)?;
        if self.cause == Cause::Timeout {
            write!(f, ", awaited word {:#x}, saw {:#x}", self.expected, self.seen)?;
        }
        write!(f, "; {} {} still awaited", self.waiting, if self.waiting == 1 { "peer" } else { "peers" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn timed_out() -> ErrorRecord {
        ErrorRecord {
            phase: Phase::CombineReceive,
            cause: Cause::Timeout,
            rank: 0,
            peer: 2,
            lane: 1,
            epoch: 3,
            op: 7,
            waiting: 1,
            expected: 0x20,
            seen: 0x10,
            elapsed: Duration::from_secs(3),
            deadline: Duration::from_secs(3),
        }
    }

    #[test]
    fn a_record_says_why_and_how_long_it_waited_if_it_did() {
        let timed_out = timed_out();
        assert_eq!(
            timed_out.to_string(),
            "rank 0 gave up on peer 2 (combine-receive, timeout) in lane 1, epoch 3, op 7: it was silent for a deadline; after 3s of 3s, \
             awaited word 0x20, saw 0x10; 1 peer still awaited"
        );
        let [elapsed, nothing] = [Duration::ZERO, Duration::ZERO];
        let suspected =
            ErrorRecord { cause: Cause::Suspected, expected: 0, elapsed, deadline: nothing, ..timed_out };
        assert!(suspected.to_string().ends_with("op 7: an earlier operation gave it up"), "{suspected}");
    }

    #[test]
    fn only_a_degraded_outcome_with_a_suspect_is_a_reason_for_a_change() {
        let [nobody, one, two] = [Mask::EMPTY, Mask::all(1), Mask::all(2)];
        let outcome = |missing, suspects| Outcome { missing, record: None, suspects, news: Mask::EMPTY };
        assert!(outcome(two, one).needs_recovery());
        assert!(!outcome(two, nobody).needs_recovery());
        assert!(!outcome(nobody, one).needs_recovery(), "of another lane");
        assert!(!Outcome::default().needs_recovery());
    }

    #[test]
    fn rows_without_a_place_and_ids_left_out_make_an_outcome_incomplete() {
        for cause in [Cause::Overflow, Cause::Routing] {
            let record = ErrorRecord { cause, ..timed_out() };
            let outcome = Outcome { record: Some(record.clone()), ..Outcome::default() };
            assert!(!outcome.is_complete() && !outcome.needs_recovery(), "{outcome}");
            assert_eq!(outcome.to_string(), record.to_string());
        }
        assert!(Outcome::default().is_complete());
    }
}
