//! Whom a member reaches, as the group asks while somebody is in doubt.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::follower::Follower;
use crate::mask::Mask;

/// The questions of the group. One that is asked while another is still being looked into, because more has become known, takes its
/// place: the answer to the former one would not count any more, and a buffer probes one path at a time.
#[derive(Debug, Default)]
pub(super) struct Survey {
    /// The newest change that the group has asked about; it numbers them upward.
    newest: AtomicU64,
    /// Held while paths are probed.
    probing: Mutex<()>,
}

impl Survey {
    /// The peers that some follower does not reach; none where the group has asked about a later change meanwhile. Each peer has its
    /// part of the time; one that answers at once leaves the rest of that to those after it.
    pub(super) fn unreached(
        &self,
        change: u64,
        followers: &[Arc<dyn Follower>],
        peers: &Mask,
        patience: Duration,
    ) -> Option<Mask> {
        self.newest.fetch_max(change, Ordering::SeqCst);
        let _one_at_a_time = self.probing.lock().unwrap_or_else(PoisonError::into_inner);
        let probes = (peers.len() * followers.len()) as u32;
        if probes == 0 {
            return Some(*peers); // without a buffer there is no way to a peer but by the group
        }
        let (until, mut left, mut missing) = (Instant::now() + patience, probes, Mask::EMPTY);
        for peer in peers.iter() {
            for follower in followers {
                if self.newest.load(Ordering::SeqCst) != change {
                    return None;
                }
                let part = (until.saturating_duration_since(Instant::now()) / left).max(patience / probes);
                left -= 1;
                if !missing.contains(peer) && !follower.reaches(peer, part) {
                    missing.insert(peer);
                }
            }
        }
        Some(missing)
    }
}

#[cfg(test)]
mod tests {
    use std::ops::Range;

    use super::super::follower::GivenUp;
    use super::*;
    use crate::error::Result;
    use crate::rendezvous::wire::Decision;

    /// Reaches everybody but rank 9, for whom it waits, and does one thing at a time.
    #[derive(Debug, Default)]
    struct Path(Mutex<()>);

    impl Follower for Path {
        fn begin(&self, _: &Decision) -> Result<()> {
            Ok(())
        }
        fn revoke(&self, _: &Mask) -> Result<()> {
            Ok(())
        }
        fn given_up(&self) -> Result<GivenUp> {
            Ok(GivenUp { epoch: 1, peers: Mask::EMPTY, silent: Mask::EMPTY })
        }
        fn experts(&self, _: &Mask) -> Vec<Range<u32>> {
            Vec::new()
        }
        fn is_overtaken(&self, _: u32) -> bool {
            false
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

    #[test]
    fn a_later_question_is_answered_though_one_before_it_still_waits() {
        let survey = Survey::default();
        let followers: [Arc<dyn Follower>; 1] = [Arc::new(Path::default())];
        let patience = Duration::from_millis(200);
        std::thread::scope(|scope| {
            let former = scope.spawn(|| survey.unreached(1, &followers, &mask(&[1, 9, 10]), patience));
            while survey.newest.load(Ordering::SeqCst) != 1 {
                std::thread::yield_now();
            }
            std::thread::sleep(patience / 20);
            let later = survey.unreached(2, &followers, &mask(&[1, 2]), patience);
            assert_eq!((later, former.join().unwrap()), (Some(Mask::EMPTY), None));
        });
        assert_eq!(survey.unreached(3, &followers, &mask(&[1, 9]), patience), Some(mask(&[9])));
        assert_eq!(survey.unreached(4, &[], &mask(&[1, 2]), patience), Some(mask(&[1, 2])));
    }
}
