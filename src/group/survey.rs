//! Which peers a member reaches, and what it sees of itself and others; the group asks this while somebody is in doubt.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::follower::Follower;
use crate::mask::Mask;
use crate::rendezvous::removal::Findings;

/// The questions of the group. A new question, asked because more has become known, replaces one that is still being
/// examined: the answer to the older one would no longer count, and a buffer on a GPU probes one path at a time.
#[derive(Debug, Default)]
pub(super) struct Survey {
    /// The newest change that the group has asked about; they are numbered in ascending order.
    newest: AtomicU64,
    /// Held while paths are probed.
    probing: Mutex<()>,
}

/// A question of the group.
#[derive(Clone, Copy, Debug)]
pub(super) struct Question {
    pub(super) change: u64,
    /// Which of these peers can it not reach?
    pub(super) peers: Mask,
    /// Which ranks have begun this epoch at a step other than `step`?
    pub(super) epoch: u32,
    pub(super) step: u64,
}

impl Survey {
    /// What the followers of `rank` find; None if the group has asked about a later change meanwhile. This rank's own
    /// device is probed first, then each peer, each with its share of the time; one that answers early leaves the rest
    /// of its share to the others. If this rank's own device does not answer, nothing else is probed.
    pub(super) fn look(
        &self,
        rank: u32,
        question: &Question,
        followers: &[Arc<dyn Follower>],
        patience: Duration,
    ) -> Option<Findings> {
        let Question { change, peers, epoch, step } = *question;
        self.newest.fetch_max(change, Ordering::SeqCst);
        let _one_at_a_time = self.probing.lock().unwrap_or_else(PoisonError::into_inner);
        let diverged = followers
            .iter()
            .fold(Mask::EMPTY, |diverged, follower| diverged.or(&follower.diverged(epoch, step)));
        if followers.is_empty() {
            return Some(Findings { unreachable: peers, diverged }); // without followers the group's connection is the only path to peers
        }
        let probes = ((1 + peers.len()) * followers.len()) as u32;
        let (until, mut left, mut unreachable) = (Instant::now() + patience, probes, Mask::EMPTY);
        for peer in std::iter::once(rank).chain(peers.iter()) {
            for follower in followers {
                if self.newest.load(Ordering::SeqCst) != change {
                    return None;
                }
                let part = (until.saturating_duration_since(Instant::now()) / left).max(patience / probes);
                left -= 1;
                if !unreachable.contains(peer) && !follower.reaches(peer, part) {
                    unreachable.insert(peer);
                }
            }
            if unreachable.contains(rank) {
                break;
            }
        }
        Some(Findings { unreachable, diverged })
    }
}

#[cfg(test)]
mod tests {
    use std::ops::Range;

    use super::super::follower::GivenUp;
    use super::*;
    use crate::cause::Cause;
    use crate::error::Result;
    use crate::rendezvous::wire::Decision;

    /// Reaches everybody but rank 9, which it waits for, one probe at a time. Rank 8 is out of step.
    #[derive(Debug, Default)]
    struct Path(Mutex<()>);

    const ME: u32 = 0;

    impl Follower for Path {
        fn begin(&self, _: &Decision) -> Result<()> {
            Ok(())
        }
        fn revoke(&self, _: &Mask, _: Cause) -> Result<()> {
            Ok(())
        }
        fn given_up(&self) -> Result<GivenUp> {
            Ok(GivenUp { epoch: 1, peers: Mask::EMPTY, silent: Mask::EMPTY })
        }
        fn experts(&self, _: &Mask) -> Option<Vec<Range<u32>>> {
            None
        }
        fn is_overtaken(&self, _: u32) -> bool {
            false
        }
        fn diverged(&self, _: u32, _: u64) -> Mask {
            mask(&[8])
        }
        fn reaches(&self, peer: u32, timeout: Duration) -> bool {
            let _probing = self.0.try_lock().expect("one probe at a time");
            if peer == 9 {
                std::thread::sleep(timeout);
            }
            peer != 9
        }
        fn export(&self, _: u32) -> Result<Vec<u8>> {
            Ok(Vec::new())
        }
        fn connect(&self, _: u32, _: &[u8], _: Duration) -> Result<()> {
            Ok(())
        }
    }

    fn mask(ranks: &[u32]) -> Mask {
        ranks.iter().copied().collect()
    }

    fn question(change: u64, peers: &[u32]) -> Question {
        Question { change, peers: mask(peers), epoch: 1, step: 1 }
    }

    #[test]
    fn a_later_question_is_answered_though_one_before_it_still_waits() {
        let survey = Survey::default();
        let followers: [Arc<dyn Follower>; 1] = [Arc::new(Path::default())];
        let patience = Duration::from_secs(1);
        let look = |change, peers: &[u32]| survey.look(ME, &question(change, peers), &followers, patience);
        std::thread::scope(|scope| {
            let former = scope.spawn(|| look(1, &[1, 9, 10]));
            while survey.newest.load(Ordering::SeqCst) != 1 {
                std::thread::yield_now();
            }
            std::thread::sleep(patience / 20);
            let later = look(2, &[1, 2]).map(|found| found.unreachable);
            assert_eq!((later, former.join().unwrap()), (Some(Mask::EMPTY), None));
        });
        let found = |unreachable| Some(Findings { unreachable, diverged: mask(&[8]) });
        assert_eq!(look(3, &[1, 9]), found(mask(&[9])));
        let without = survey.look(ME, &question(4, &[1, 2]), &[], patience);
        assert_eq!(without, Some(Findings { unreachable: mask(&[1, 2]), diverged: Mask::EMPTY }));
    }

    #[test]
    fn who_has_no_device_says_nothing_about_others() {
        let followers: [Arc<dyn Follower>; 2] = [Arc::new(Path::default()), Arc::new(Path::default())];
        let patience = Duration::from_millis(100);
        let found = Survey::default().look(9, &question(1, &[1, 2]), &followers, patience);
        assert_eq!(found, Some(Findings { unreachable: mask(&[9]), diverged: mask(&[8]) }));
    }
}
