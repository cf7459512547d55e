//! Blocks of equal counts, which are those of the operations without blocks, and blocks in place.

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

/// Element i of a rank's block.
fn value(rank: usize, i: usize) -> u32 {
    (rank * 1000 + i) as u32
}

/// A buffer with these elements of blocks, and `gap` everywhere else.
fn holding(len: usize, gap: u32, elements: impl IntoIterator<Item = (usize, u32)>) -> Vec<u32> {
    let mut buffer = vec![gap; len];
    elements.into_iter().for_each(|(at, value)| buffer[at] = value);
    buffer
}

#[test]
fn uneven_blocks_in_place_lie_among_the_others() {
    const COUNTS: [usize; RANKS] = [5, 0, 3000];
    // The empty block may begin anywhere.
    const STARTS: [usize; RANKS] = [3002, 1 << 40, 1];
    const LEN: usize = 3009;
    let block = |rank: usize| (0..COUNTS[rank]).map(move |i| (STARTS[rank] + i, value(rank, i)));
    let all = || (0..RANKS).flat_map(block);
    for root in 0..RANKS {
        ranks(RANKS as u32, &CommConfig::default(), |comm| {
            let (me, at) = (comm.rank() as usize, root as u32);
            let blocks = || Blocks::new(COUNTS).at(STARTS);
            let alone = |_| (0..COUNTS[me]).map(|i| value(me, i)).collect::<Vec<_>>();
            let whole = |elements: &mut dyn Iterator<Item = (usize, u32)>| holding(LEN, 9, elements);

            let mut buffer = whole(&mut block(me));
            complete(comm.all_gather_blocks_in_place_blocking(&mut buffer, blocks()));
            assert_eq!(buffer, whole(&mut all()));

            let mut buffer = if me == root { whole(&mut block(me)) } else { alone(()) };
            complete(comm.gather_blocks_in_place_blocking(&mut buffer, blocks(), at));
            assert_eq!(buffer, if me == root { whole(&mut all()) } else { alone(()) });

            let mut buffer = if me == root { whole(&mut all()) } else { vec![9; COUNTS[me]] };
            complete(comm.scatter_blocks_in_place_blocking(&mut buffer, blocks(), at));
            assert_eq!(buffer, if me == root { whole(&mut all()) } else { alone(()) });

            let (outcome, buffer) =
                comm.reduce_scatter_blocks_in_place(whole(&mut all()), blocks(), Reduction::Sum).wait();
            complete(outcome);
            assert!(block(me).all(|(at, value)| buffer[at] == RANKS as u32 * value), "rank {me}");
            // Gaps stay as they were.
            let ends = [0, 3001, 3007, 3008];
            assert_eq!(ends.map(|at| buffer[at]), [9; 4]);
        });
    }
}

#[test]
fn columns_in_place_have_the_pitch_of_the_matrix() {
    const ROWS: usize = 7;
    const PITCH: usize = 11;
    for columns in [[2, 1, 5], [3; RANKS]] {
        let starts = [0, columns[0], columns[0] + columns[1]];
        let block = |rank: usize| {
            let columns = move |row| (0..columns[rank]).map(move |column| (row, column));
            (0..ROWS).flat_map(columns).map(move |(row, column)| {
                (row * PITCH + starts[rank] + column, value(rank, row * 8 + column))
            })
        };
        let all = || (0..RANKS).flat_map(block);
        ranks(RANKS as u32, &CommConfig::default(), |comm| {
            let me = comm.rank() as usize;
            // The last row ends with its last block.
            let len = ROWS * PITCH - (PITCH - columns.iter().sum::<usize>());
            let blocks = || Blocks::new(columns).rows(ROWS).pitch(PITCH).own_pitch(1);
            let mut buffer = holding(len, 9, block(me));
            complete(comm.all_gather_blocks_in_place_blocking(&mut buffer, blocks()));
            assert_eq!(buffer, holding(len, 9, all()));
            let mut buffer = holding(len, 9, all());
            complete(comm.reduce_scatter_blocks_in_place_blocking(&mut buffer, blocks(), Reduction::Sum));
            assert!(block(me).all(|(at, value)| buffer[at] == RANKS as u32 * value), "rank {me}");
        });
    }
}
