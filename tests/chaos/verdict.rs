//! What must hold of the reports of ranks that nothing was done to.

use std::time::Duration;

use crate::noise::{self, deadline};
use crate::wire::{Call, Op, Ran, Record};

/// What a call may take beyond its deadlines on an idle machine. The noise of the run that is judged is added to it, see
/// noise.rs; nothing is measured twice or retried.
const MARGIN: Duration = Duration::from_millis(50);

pub(crate) type Reports = [(u32, Ran)];

fn micros(us: u64) -> Duration {
    Duration::from_micros(us)
}

/// The worst delay that the machine caused any of these ranks: they wait for each other.
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

/// Rank `lost` fell silent for good: the others lost it and nobody else, each after one deadline of silence, within the
/// bounds, and everything after that cost no further deadline.
pub(crate) fn lost(reports: &Reports, lost: u32, epoch: u32) {
    lost_beside_release(reports, lost, epoch, None);
}

/// The same in a group, which sees the end of the process: nobody need wait for a deadline.
pub(crate) fn lost_in_group(reports: &Reports, lost: u32, epoch: u32) {
    lost_somehow(reports, lost, epoch, |_, record| record.cause == "Superseded");
}

/// The same of collectives: one may also have been told by a survivor that it lacks that rank.
pub(crate) fn lost_in_collectives(reports: &Reports, lost: u32, epoch: u32) {
    lost_somehow(reports, lost, epoch, |_, record| record.cause == "Partial");
}

/// The same where `releaser` gave up a handle: what it owes for that is paid in the background, which may find out first.
pub(crate) fn lost_beside_release(reports: &Reports, lost: u32, epoch: u32, releaser: Option<u32>) {
    let in_background = |rank: u32, record: &Record| Some(rank) == releaser && record.cause == "Suspected";
    lost_somehow(reports, lost, epoch, in_background);
}

/// A rank behind a queue was killed, perhaps: connections tell of that.
fn link_broke(record: &Record) -> bool {
    crate::is_by_queue() && record.cause == "Link"
}

/// Whoever was told early need not have waited.
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
            // Who waits for none but the lost one returns after one deadline; who waits for others that wait, after two.
            let bound = deadline().max(micros(op.last_arrival_us)).min(2 * deadline()) + MARGIN + noise;
            assert!(
                micros(op.elapsed_us) <= bound,
                "rank {rank} took longer than {bound:?}: {op:?} (noise {noise:?})"
            );
        }
        // Later operations wait for no suspect, only for survivors that may still be in their own first wait.
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
        // Of a process that is killed a connection may lose what it had still to bring.
        let before = match call {
            Call::Dispatch => (step - 1, Call::Combine),
            Call::Combine => (step, Call::Dispatch),
            Call::Collective | Call::Exchange | Call::Total => unreachable!("not of a buffer"),
        };
        let early = crate::is_by_queue() && first == Some(before);
        assert!(early || first == Some((step, call)), "rank {rank} lost elsewhere: {ran:?}");
    }
}

/// A whole run of operations after a loss took well under a deadline.
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

/// What a rank must see that the others went on without: in the end all of them missing, and each loss because it was
/// told so, not because its own clock ran while it was stopped.
pub(crate) fn evicted(rank: u32, ran: &Ran, others: &[u32]) {
    evicted_by(rank, ran, others, &["Superseded", "Dropped", "Suspected"]);
}

/// The same of collectives: what it was to read of a peer's memory may have been taken back.
pub(crate) fn evicted_from_collectives(rank: u32, ran: &Ran, others: &[u32]) {
    evicted_by(rank, ran, others, &["Superseded", "Dropped", "Suspected", "Partial"]);
}

fn evicted_by(rank: u32, ran: &Ran, others: &[u32], causes: &[&str]) {
    let last = ran.ops.last().expect("it ran steps");
    assert_eq!(last.missing, others, "rank {rank} still works with those who went on: {last:?}");
    for record in ran.ops.iter().filter_map(|op| op.record.as_ref()) {
        assert!(others.contains(&record.peer), "rank {rank}: {record:?}");
        assert!(causes.contains(&record.cause.as_str()), "rank {rank}: {record:?}");
    }
    // The first of them may be the one that it was stopped in. Its bystander was stopped as well, so that it knows no noise:
    // the test's is taken.
    let after = ran.ops.iter().filter(|op| !op.missing.is_empty()).skip(1);
    let bound = deadline() + noise::worst() * after.clone().count() as u32;
    let waits: Duration = after.map(|op| micros(op.elapsed_us)).sum();
    assert!(waits < bound, "rank {rank} waited for {waits:?} for those who went on, more than {bound:?}");
}

/// Rank `lost` may have fallen silent for somewhat more than a deadline: whoever gave it up gave nobody else up, and in time.
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
