//! Verdicts of steps whose operations are called, replayed, or given up.

use std::thread::sleep;
use std::time::{Duration, Instant};

use epwire::cuda::Completion;
use epwire::{Checkpoint, Error, Mask, Verdict};

use crate::recovery::{EVERYWHERE, Rank, connect_all, set_active};
use crate::world::PATIENT;

pub(crate) fn all_ranks_learn_whether_a_step_was_complete(gpus: u32) {
    let count = gpus.max(2);
    let (last, all) = (count as usize - 1, Mask::all(count));
    let mut ranks: Vec<_> = (0..count).map(|rank| Rank::new(rank, count, gpus)).collect();
    connect_all(&ranks);
    set_active(&ranks, &all, 1);
    let graphs: Vec<_> = ranks.iter_mut().map(Rank::capture).collect();
    let replay = || graphs.iter().for_each(|graph| graph.launch().unwrap());

    replay();
    replay();
    let first = end_step(&ranks, 1);
    assert_all(&first, Verdict::Clean);

    // One rank gives a dispatch up: no rank's step is complete, whatever it has received.
    let held = ranks[last].hold();
    let whole: Vec<_> = ranks[..last].iter_mut().map(|rank| rank.enqueue(EVERYWHERE)).collect();
    drop(held);
    whole.iter().for_each(wait);
    let second = end_step(&ranks, 2);
    assert_all(&second, Verdict::Faulted);

    // A replay out of turn moves nothing, and no outcome reports that.
    let held = ranks[last].hold();
    let whole: Vec<_> = ranks[..last].iter_mut().map(|rank| rank.enqueue(EVERYWHERE)).collect();
    graphs[last].launch().unwrap();
    ranks[last].synchronize();
    drop(held);
    whole.iter().for_each(wait);
    let third = end_step(&ranks, 3);
    assert_all(&third, Verdict::Faulted);

    replay();
    let fourth = end_step(&ranks, 4);
    assert_all(&fourth, Verdict::Clean);
    assert_all(&second, Verdict::Faulted);

    // The last rank is lost before it has ended the step: the others complete it among themselves.
    replay();
    ranks.iter().for_each(Rank::synchronize);
    drop(graphs);
    drop(ranks.pop());
    let fifth = end_step(&ranks, 5);
    assert!(fifth.iter().all(|end| end.verdict().unwrap() == Verdict::Pending));
    set_active(&ranks, &Mask::all(count).without(count - 1), 2);
    assert_all(&fifth, Verdict::Clean);
    assert_all(&end_step(&ranks, 6), Verdict::Clean);
}

pub(crate) fn a_checkpoint_is_refused_under_capture(gpus: u32) {
    let rank = Rank::new(0, 2, gpus);
    let alone: Mask = [0].into_iter().collect();
    set_active(std::slice::from_ref(&rank), &alone, 1);
    let error = rank.while_capturing(|rank| rank.checkpoint(1).unwrap_err());
    assert!(matches!(&error, Error::State(f) if f.text.contains("behind the graph")), "{error}");
    assert!(matches!(rank.host_checkpoint(1), Err(Error::State(_))));
    assert_all(&[rank.checkpoint(1).unwrap()], Verdict::Clean);
}

fn end_step(ranks: &[Rank], step: u64) -> Vec<Checkpoint> {
    ranks.iter().map(|rank| rank.checkpoint(step).unwrap()).collect()
}

fn wait(completion: &Completion) {
    completion.wait_blocking(PATIENT).unwrap();
}

fn assert_all(ends: &[Checkpoint], verdict: Verdict) {
    let began = Instant::now();
    for (rank, end) in ends.iter().enumerate() {
        while end.verdict().unwrap() == Verdict::Pending && began.elapsed() < PATIENT {
            sleep(Duration::from_micros(100));
        }
        assert_eq!(end.verdict().unwrap(), verdict, "step {} at rank {rank}", end.step());
    }
}
