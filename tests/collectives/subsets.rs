//! Communicators of some of the ranks.

use std::thread::sleep;
use std::time::Duration;

use epwire::comm::{CommConfig, Reduction};
use epwire::{Comm, Error, Mask};

use crate::ranks;

fn mask(ranks: &[u32]) -> Mask {
    ranks.iter().copied().collect()
}

fn sum(comm: &Comm, own: u32) -> u32 {
    let mut buffer = [own];
    assert!(comm.all_reduce_in_place_blocking(&mut buffer, Reduction::Sum).unwrap().is_complete());
    buffer[0]
}

#[test]
fn a_subset_has_ranks_of_its_own_and_subsets_again() {
    ranks(5, &CommConfig::default(), |comm| {
        let me = comm.rank();
        let half = if me % 2 == 0 { mask(&[0, 2, 4]) } else { mask(&[1, 3]) };
        let own = comm.subset_blocking(&half).unwrap().expect("this rank is in the mask");
        assert_eq!((own.rank(), own.ranks()), (me / 2, half.len() as u32));
        assert_eq!(sum(&own, me), if me % 2 == 0 { 6 } else { 4 });
        // A mask without this rank gives no communicator.
        let pair = comm.subset_blocking(&mask(&[1, 4])).unwrap();
        assert_eq!(pair.is_some(), [1, 4].contains(&me));
        if let Some(pair) = &pair {
            assert_eq!(sum(pair, me), 5);
        }
        // A subset of a subset.
        if me % 2 == 0 {
            let last = own.subset_blocking(&mask(&[1, 2])).unwrap();
            assert_eq!(last.is_some(), me != 0);
            last.iter().for_each(|last| assert_eq!(sum(last, me), 6));
        }
        assert_eq!(sum(comm, me), 10);
    });
}

#[test]
fn a_subset_follows_the_membership_of_its_parent() {
    ranks(4, &CommConfig::default(), |comm| {
        let me = comm.rank();
        let subset = comm.subset_blocking(&mask(&[0, 2, 3])).unwrap();
        // Rank 2 leaves.
        if me == 2 {
            return;
        }
        comm.set_active(&mask(&[0, 1, 3]), 9, 4).unwrap();
        assert_eq!(sum(comm, me), 4);
        if let Some(subset) = subset {
            let now = subset.membership().unwrap();
            assert_eq!((now.active, now.epoch, now.step), (mask(&[0, 2]), 9, 4));
            assert_eq!(sum(&subset, me), 3);
        }
    });
}

#[test]
fn masks_that_cannot_be_are_refused_and_nobody_hangs() {
    ranks(3, &CommConfig::default(), |comm| {
        let error = comm.subset_blocking(&mask(&[0, 3])).unwrap_err();
        assert!(matches!(error, Error::Invalid(_)), "{error}");
        // Ranks 0 and 1 claim to be together, and so do ranks 1 and 2.
        let overlapping = [mask(&[0, 1]), mask(&[0, 1]), mask(&[1, 2])];
        let result = comm.subset_blocking(&overlapping[comm.rank() as usize]);
        let error = result.unwrap_err();
        assert!(matches!(error, Error::Mismatch(_)), "{error}");
        assert_eq!(sum(comm, 1), 3);
    });
}

#[test]
fn a_subset_is_waited_for_as_long_as_the_deadline_says() {
    let config = CommConfig::default().deadline(Duration::from_secs(1));
    ranks(3, &config, |comm| {
        if comm.rank() == 2 {
            sleep(Duration::from_secs(2));
        }
        let patient = comm.with_deadline(Duration::from_secs(30));
        let all = patient.subset_with_blocking(&mask(&[0, 1, 2]), CommConfig::default()).unwrap();
        assert_eq!(sum(&all.expect("this rank is in the mask"), 1), 3);
    });
}
