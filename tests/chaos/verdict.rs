//! What must hold for the reports of ranks to which nothing was done.

use std::time::Duration;

use crate::noise::{self, deadline};
use crate::wire::{Call, Op, Ran, Record};

/// By how much a call may exceed its deadlines on an idle machine. The noise of the judged run is added, see noise.rs;
/// nothing is measured twice or retried.
const MARGIN: Duration = Duration::from_millis(50);

pub(crate) type Reports = [(u32, Ran)];

fn micros(us: u64) -> Duration {
    Duration::from_micros(us)
}

/// The worst delay that the machine has caused for any of these ranks, because they wait for each other.
pub(crate) fn noise(reports: &Reports) -> Duration {
    micros(reports.iter().map(|(_, ran)| ran.noise_us).max().unwrap_or(0))
}

/// Every operation of all these ranks was complete.
pub(crate) fn complete(reports: &Reports, steps: u32) {
    for (rank, ran) in reports {
        let degraded = ran.ops.iter().find(|op| !op.missing.is_empty() || op.record.is_some());
        assert!(degraded.is_none(), "rank {rank} lost somebody: {degraded:?} (noise {:?})", noise(reports));
        assert_eq!(ran.ops.len() as u32, 2 * steps, "rank {rank} ran other steps");
    }
}

/// Rank `lost` was silent for good: the others lost it and nobody else, each after one deadline of silence, within the
/// limits, and nothing after that waited for another deadline.
pub(crate) fn lost(reports: &Reports, lost: u32, epoch: u32) {
    lost_beside_release(reports, lost, epoch, None);
}

/// The same in a group, which notices the end of the process: nobody need wait for a deadline.
pub(crate) fn lost_in_group(reports: &Reports, lost: u32, epoch: u32) {
    lost_somehow(reports, lost, epoch, |_, record| record.cause == "Ended");
}

/// The same for collectives: a survivor may also have told a rank that it lacks the lost one, or its memory, which a rank
/// was reading, is gone.
pub(crate) fn lost_in_collectives(reports: &Reports, lost: u32, epoch: u32) {
    lost_somehow(reports, lost, epoch, |_, record| record.cause == "Partial");
}

/// The same if `releaser` gave up a handle: what it owes for that is paid in the background, which may notice the loss
/// first.
pub(crate) fn lost_beside_release(reports: &Reports, lost: u32, epoch: u32, releaser: Option<u32>) {
    let in_background = |rank: u32, record: &Record| Some(rank) == releaser && record.cause == "Suspected";
    lost_somehow(reports, lost, epoch, in_background);
}

/// A rank behind a queue may have been killed: then its connections end.
fn link_broke(record: &Record) -> bool {
    crate::is_by_queue() && record.cause == "Link"
}

/// A rank that was told early need not have waited.
fn lost_somehow(reports: &Reports, lost: u32, epoch: u32, was_told: impl Fn(u32, &Record) -> bool) {
    let noise = noise(reports);
    for (rank, ran) in reports {
        let only_lost = |op: &Op| op.missing.iter().all(|peer| *peer == lost);
        let named =
            ran.ops.iter().find(|op| !only_lost(op) || op.record.as_ref().is_some_and(|r| r.peer != lost));
        assert!(named.is_none(), "rank {rank} names others than rank {lost}: {named:?}");

        let first = ran.ops.iter().position(|op| !op.missing.is_empty());
        let first = first.unwrap_or_else(|| panic!("rank {rank} never missed rank {lost}"));
        for (i, op) in ran.ops.iter().enumerate() {
            if i > first && op.call == Call::Exchange && op.missing.is_empty() {
                continue; // it had nothing to do with that rank
            }
            assert_eq!(op.missing.is_empty(), i < first, "rank {rank} had rank {lost} back: {op:?}");
            assert_eq!(op.record.is_none(), i < first, "rank {rank} has a record without a loss: {op:?}");
        }
        let record = ran.ops[first].record.as_ref().expect("checked above");
        let was_told = was_told(*rank, record) || link_broke(record);
        assert!(was_told || record.cause == "Timeout", "rank {rank}: {record:?}");
        assert!(was_told || micros(record.elapsed_us) >= deadline(), "rank {rank} was impatient: {record:?}");
        assert_eq!(record.epoch, epoch, "rank {rank}: {record:?}");

        for op in &ran.ops {
            // A rank that waits only for the lost one returns after one deadline; one that waits for other waiting
            // ranks, after two.
            let bound = deadline().max(micros(op.last_arrival_us)).min(2 * deadline()) + MARGIN + noise;
            assert!(
                micros(op.elapsed_us) <= bound,
                "rank {rank} took longer than {bound:?}: {op:?} (noise {noise:?})"
            );
        }
        // Later operations do not wait for suspects, only for survivors that may still be in their own first wait.
        let later: Duration = ran.ops[first + 1..].iter().map(|op| micros(op.elapsed_us)).sum();
        let bound = deadline() + MARGIN + noise * (ran.ops.len() - first) as u32;
        assert!(later <= bound, "rank {rank} took {later:?} after the loss, more than {bound:?}");
    }
}

/// The first loss of each rank was where `expected` says: in this call of this step.
pub(crate) fn first_loss(reports: &Reports, expected: impl Fn(u32) -> (u32, Call)) {
    for (rank, ran) in reports {
        let first = ran.ops.iter().find(|op| !op.missing.is_empty()).map(|op| (op.step, op.call));
        let (step, call) = expected(*rank);
        // The connection of a killed process may lose what it had yet to deliver.
        let before = match call {
            Call::Dispatch => (step - 1, Call::Combine),
            Call::Combine => (step, Call::Dispatch),
            Call::Collective | Call::Exchange | Call::Total => unreachable!("not of a buffer"),
        };
        let early = crate::is_by_queue() && first == Some(before);
        assert!(early || first == Some((step, call)), "rank {rank} lost elsewhere: {ran:?}");
    }
}

/// All operations after a loss took well under a deadline.
pub(crate) fn swift(reports: &Reports, steps: u32, lost: u32) {
    for (rank, ran) in reports {
        assert_eq!(ran.ops.len() as u32, 2 * steps, "rank {rank} ran other steps");
        assert!(ran.ops.iter().all(|op| op.missing == [lost]), "rank {rank} misses others than rank {lost}");
        let total: Duration = ran.ops.iter().map(|op| micros(op.elapsed_us)).sum();
        let bound = deadline() / 2 + noise(reports) * steps;
        assert!(
            total <= bound,
            "rank {rank} took {total:?} for {steps} steps without rank {lost}, more than {bound:?}"
        );
    }
}

/// A rank that the others have continued without: in the end all of them are missing, and it lost each because it was
/// told so, not because its own clock ran while it was stopped.
pub(crate) fn evicted(rank: u32, ran: &Ran, others: &[u32]) {
    evicted_by(rank, ran, others, &["Superseded", "Evicted", "Dropped", "Suspected"]);
}

/// The same for collectives: a peer may also have ended the loan of memory that the rank was to read.
pub(crate) fn evicted_from_collectives(rank: u32, ran: &Ran, others: &[u32]) {
    evicted_by(rank, ran, others, &["Superseded", "Evicted", "Dropped", "Suspected", "Partial"]);
}

/// The same for prefill. Over queues its own clock may be the first to say so: what has come by a queue while the process was
/// stopped may be taken in only after the wait has looked at the time.
pub(crate) fn evicted_from_prefill(rank: u32, ran: &Ran, others: &[u32]) {
    let told = ["Superseded", "Evicted", "Dropped", "Suspected"];
    let or_late = [told.as_slice(), &["Timeout"]].concat();
    evicted_by(rank, ran, others, if crate::is_by_queue() { &or_late } else { &told });
}

fn evicted_by(rank: u32, ran: &Ran, others: &[u32], causes: &[&str]) {
    let last = ran.ops.last().expect("it ran steps");
    assert_eq!(last.missing, others, "rank {rank} still works with those who continued: {last:?}");
    for record in ran.ops.iter().filter_map(|op| op.record.as_ref()) {
        assert!(others.contains(&record.peer), "rank {rank}: {record:?}");
        assert!(causes.contains(&record.cause.as_str()), "rank {rank}: {record:?}");
    }
    // The first of these operations may be the one in which it was stopped. Its bystander was stopped as well and knows
    // no noise, so the test's noise is used.
    let after = ran.ops.iter().filter(|op| !op.missing.is_empty()).skip(1);
    let bound = deadline() + noise::worst() * after.clone().count() as u32;
    let waits: Duration = after.map(|op| micros(op.elapsed_us)).sum();
    assert!(waits < bound, "rank {rank} waited for {waits:?} for those who continued, more than {bound:?}");
}

/// Rank `lost` may have been silent for somewhat more than a deadline: a rank that gave it up gave up nobody else, and
/// in time.
pub(crate) fn at_most_lost(reports: &Reports, lost: u32) {
    let noise = noise(reports);
    for (rank, ran) in reports {
        for op in &ran.ops {
            assert!(
                op.missing.iter().all(|peer| *peer == lost),
                "rank {rank} misses others than rank {lost}: {op:?}"
            );
            assert!(op.record.as_ref().is_none_or(|r| r.peer == lost), "rank {rank} names others: {op:?}");
            let bound = 2 * deadline() + MARGIN + noise;
            assert!(micros(op.elapsed_us) <= bound, "rank {rank} took longer than {bound:?}: {op:?}");
        }
    }
}
