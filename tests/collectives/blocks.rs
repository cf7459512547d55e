//! Blocks of equal counts: the same operations as those without blocks.

use epwire::Comm;
use epwire::comm::{Blocks, CommConfig, Reduction};

use crate::{complete, ranks};

const RANKS: usize = 3;

/// Runs this by ranks of which some give blocks, and others, as C with a `count`, give none.
fn mixed(run: impl Fn(&Comm, Option<Blocks>) + Sync) {
    for without in 0..RANKS {
        ranks(RANKS as u32, &CommConfig::default(), |comm| {
            let blocks = (comm.rank() as usize != without).then(|| Blocks::new([4; RANKS]));
            run(comm, blocks);
        });
    }
}

#[test]
fn equal_blocks_are_the_call_of_a_rank_that_gives_none() {
    mixed(|comm, blocks| {
        let me = comm.rank();
        let (own, all) = ([me; 4], [[0; 4], [1; 4], [2; 4]].concat());
        // Apart, and in another order: only this rank's memory.
        let apart = blocks.clone().map(|blocks| blocks.at([20, 0, 10]));
        let mut recv = [9; 24];
        match &blocks {
            Some(blocks) => complete(comm.all_gather_blocks_blocking(&own, &mut recv, blocks.clone())),
            None => complete(comm.all_gather_blocking(&own, &mut recv[..12])),
        }
        assert_eq!((&recv[..12], &recv[12..]), (&all[..], &[9; 12][..]));
        let mut recv = [9; 24];
        match apart {
            Some(apart) => {
                complete(comm.gather_blocks_blocking(&own, &mut recv, apart, 1));
                let filled = [[1; 4], [9; 4]].concat();
                let filled = [&filled[..], &[9, 9, 2, 2, 2, 2, 9, 9, 9, 9, 9, 9, 0, 0, 0, 0]].concat();
                assert_eq!(recv[..], if me == 1 { filled } else { vec![9; 24] });
            }
            None => {
                complete(comm.gather_blocking(&own, &mut recv[..12], 1));
                assert_eq!(recv[..12], if me == 1 { all.clone() } else { vec![9; 12] });
            }
        }
        let mut recv = [9; 4];
        match &blocks {
            Some(blocks) => complete(comm.scatter_blocks_blocking(&all, &mut recv, blocks.clone(), 2)),
            None => complete(comm.scatter_blocking(&all, &mut recv, 2)),
        }
        assert_eq!(recv, own);
        let mut recv = [9; 4];
        match &blocks {
            Some(blocks) => {
                complete(comm.reduce_scatter_blocks_blocking(
                    &all,
                    &mut recv,
                    blocks.clone(),
                    Reduction::Sum,
                ));
            }
            None => complete(comm.reduce_scatter_blocking(&all, &mut recv, Reduction::Sum)),
        }
        assert_eq!(recv, [3 * me; 4]);
    });
}

#[test]
fn columns_of_equal_widths_are_the_call_of_a_rank_whose_block_is_dense() {
    const ROWS: usize = 5;
    mixed(|comm, blocks| {
        let own = [comm.rank(); ROWS * 4];
        let mut recv = [9; ROWS * 12];
        let row = |_| [0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2];
        match blocks {
            Some(blocks) => {
                complete(comm.all_gather_blocks_blocking(&own, &mut recv, blocks.rows(ROWS)));
                assert_eq!(recv[..], (0..ROWS).flat_map(row).collect::<Vec<_>>());
            }
            None => {
                complete(comm.all_gather_blocking(&own, &mut recv));
                assert_eq!(recv[..], [[0; ROWS * 4], [1; ROWS * 4], [2; ROWS * 4]].concat());
            }
        }
    });
}
