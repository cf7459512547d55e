//! Sums that are normalised, in each of the forms of memory that they may have.

use epwire::comm::{AllReduceNorm, CommConfig, Reduction};
use epwire::{Comm, Error, Fp8Scale};
use half::bf16;

use crate::random::Random;
use crate::{complete, ranks};

const HIDDEN: usize = 256;
/// Sums of one exchange and of two.
const ROWS: [usize; 3] = [0, 3, 90];

fn values(random: &mut Random, len: usize) -> Vec<bf16> {
    (0..len).map(|_| bf16::from_f32(random.below(2000) as f32 / 500.0 - 2.0)).collect()
}

/// This rank's part of the sum; and the residual and the weight, which are the same everywhere.
fn given(comm: &Comm, rows: usize) -> [Vec<bf16>; 3] {
    let common = &mut Random::new(rows as u64);
    let (residual, weight) = (values(common, rows * HIDDEN), values(common, HIDDEN));
    [values(&mut Random::new(100 + u64::from(comm.rank())), rows * HIDDEN), residual, weight]
}

#[test]
fn rows_that_take_the_place_of_their_input_have_the_same_bits() {
    ranks(3, &CommConfig::default(), |comm| {
        for rows in ROWS {
            let [send, before, weight] = given(comm, rows);
            let zeros = || vec![bf16::ZERO; rows * HIDDEN];
            let call = AllReduceNorm::new(send.clone(), zeros(), weight.clone(), zeros(), HIDDEN);
            let (outcome, apart) = comm.begin(call.residual(before.clone()).epsilon(1e-5)).wait();
            complete(outcome);
            let mut sum = zeros();
            complete(comm.all_reduce_blocking(&send, &mut sum, Reduction::Sum));
            assert_eq!(apart.recv, sum);

            let (mut residual, mut rows_only) = (before.clone(), zeros());
            let call = AllReduceNorm::without_sum(&send[..], &weight[..], &mut rows_only[..], HIDDEN);
            complete(comm.run_blocking(call.residual(&mut residual[..]).epsilon(1e-5)));
            assert_eq!((&rows_only, &residual), (&apart.out, &apart.residual));

            let call = AllReduceNorm::in_place(send.clone(), weight.clone(), HIDDEN);
            let (outcome, ended) = comm.begin(call.epsilon(1e-5).residual(before.clone())).wait();
            complete(outcome);
            assert_eq!((&ended.recv, &ended.residual), (&apart.out, &apart.residual));

            let call = AllReduceNorm::in_place(send.clone(), weight.clone(), HIDDEN).epsilon(1e-5);
            let (outcome, ended) = comm.begin(call.residual(before.clone()).out(zeros())).wait();
            complete(outcome);
            assert_eq!((&ended.recv, &ended.out, &ended.residual), (&sum, &apart.out, &apart.residual));

            let (bytes, scales) = (|| vec![0u8; rows * HIDDEN], || vec![0f32; rows * HIDDEN / 128]);
            let call = AllReduceNorm::new(send.clone(), zeros(), weight.clone(), bytes(), HIDDEN);
            let (outcome, apart) = comm.begin(call.fp8(Fp8Scale::F32, scales())).wait();
            complete(outcome);
            let call = AllReduceNorm::in_place(send, weight, HIDDEN).out(bytes());
            let (outcome, ended) = comm.begin(call.fp8(Fp8Scale::F32, scales())).wait();
            complete(outcome);
            assert_eq!((ended.recv, ended.out, ended.scales), (sum, apart.out, apart.scales));
        }
    });
}

#[test]
fn a_buffer_that_is_not_whole_rows_is_refused() {
    ranks(2, &CommConfig::default(), |comm| {
        let (mut buffer, weight) = ([bf16::ONE; 100], [bf16::ONE; 64]);
        let error = comm.run_blocking(AllReduceNorm::in_place(&mut buffer[..], &weight[..], 64)).unwrap_err();
        assert!(matches!(error, Error::Invalid(_)), "{error}");
        assert!(error.to_string().contains("the buffer has 100 elements"), "{error}");
        let error = comm.run_blocking(AllReduceNorm::in_place([0f32; 64], &weight[..], 64)).unwrap_err();
        assert!(error.to_string().contains("the buffer has 64 elements of 4 bytes"), "{error}");
    });
}
