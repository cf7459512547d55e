//! The inputs of a collective, and its expected results.

use epwire::comm::Number;
use half::{bf16, f16};

use super::{Collective, Type};

/// A number made from a small integer: ranks send these, so that sums are exact in every type. An i8 wraps.
pub trait Small: Number + PartialEq {
    fn small(value: u32) -> Self;
}

macro_rules! small {
    ($($type:ty => $from:expr),*) => {$(
        impl Small for $type {
            fn small(value: u32) -> Self {
                ($from)(value)
            }
        }
    )*};
}
small!(
    i8 => |v| v as i8, u8 => |v| v as u8, i32 => |v| v as i32, u32 => u32::from, i64 => i64::from, u64 => u64::from, f32 => |v| v as f32, f64 => f64::from,
    f16 => |v| f16::from_f32(v as f32), bf16 => |v| bf16::from_f32(v as f32)
);

/// The most that ranks together may add to an element: a bf16 represents integers up to 256 exactly.
const SUM_MAX: u32 = 252;

/// A collective of a size, on one rank.
#[derive(Debug, Clone, Copy)]
pub struct Case {
    pub collective: Collective,
    pub in_place: bool,
    pub rank: u32,
    pub ranks: u32,
    /// Elements of the whole, if each rank has all of it; else of a rank's block.
    count: usize,
    block: usize,
}

impl Case {
    pub fn new<T>(collective: Collective, in_place: bool, [rank, ranks]: [u32; 2], bytes: u64) -> Self {
        Self::of_elements(collective, in_place, [rank, ranks], bytes as usize / size_of::<T>())
    }

    fn of_elements(collective: Collective, in_place: bool, [rank, ranks]: [u32; 2], count: usize) -> Self {
        Self { collective, in_place, rank, ranks, count, block: count / ranks as usize }
    }

    /// Of the larger buffer, as the call uses it: blocks are of whole elements, and a barrier has no buffer.
    pub fn bytes<T>(&self) -> u64 {
        (self.longer() * size_of::<T>()) as u64
    }

    /// The same, if the larger buffer has this many bytes.
    pub fn bytes_of(collective: Collective, r#type: Type, ranks: u32, bytes: u64) -> u64 {
        let element = r#type.bytes();
        let case = Self::of_elements(collective, false, [0, ranks], bytes as usize / element);
        (case.longer() * element) as u64
    }

    /// Elements of the larger buffer.
    fn longer(&self) -> usize {
        let (send, recv) = self.lengths();
        send.max(recv)
    }

    /// Elements of both buffers.
    pub fn lengths(&self) -> (usize, usize) {
        let blocks = self.block * self.ranks as usize;
        match self.collective {
            Collective::Barrier => (0, 0),
            Collective::AllReduce | Collective::Reduce | Collective::Broadcast | Collective::SendRecv => {
                (self.count, self.count)
            }
            Collective::AllToAll => (blocks, blocks),
            Collective::AllGather | Collective::Gather => (self.block, blocks),
            Collective::ReduceScatter | Collective::Scatter => (blocks, self.block),
        }
    }

    /// Element `at` of what `rank` sends: 0, 1 or 2. Without a period in `at`, so that a block is unlike those at other
    /// places. Three ranks in a row add 3; in a group of more than [`SUM_MAX`] some send 0, others at other places.
    fn element(&self, rank: u32, at: usize) -> u32 {
        let mixed = (at as u32).wrapping_mul(0x85eb_ca6b) >> 16;
        let turn = (rank + mixed) % (3 * self.ranks.div_ceil(SUM_MAX));
        if turn < 3 { turn } else { 0 }
    }

    /// Of the sum over all ranks, at most [`SUM_MAX`].
    fn summed(&self, at: usize) -> u32 {
        (0..self.ranks).map(|rank| self.element(rank, at)).sum()
    }

    fn is_root(&self) -> bool {
        self.rank == 0
    }

    /// Of sends and receives: the ranks that this one sends to and receives from.
    pub fn neighbours(&self) -> [u32; 2] {
        [self.rank + 1, self.rank + self.ranks - 1].map(|rank| rank % self.ranks)
    }

    /// In place: the buffer that is both input and output.
    pub fn one<B>(&self, send: B, recv: B) -> B {
        match self.collective {
            Collective::ReduceScatter => send,
            Collective::Gather if !self.is_root() => send,
            Collective::Scatter if self.is_root() => send,
            _ => recv,
        }
    }

    pub fn fill<T: Small>(&self, send: &mut [T], recv: &mut [T]) {
        let Self { rank, block, .. } = *self;
        recv.fill(T::small(100));
        let input = match (self.collective, self.in_place) {
            (Collective::AllGather, true) => &mut recv[rank as usize * block..][..block],
            (Collective::Gather, true) if self.is_root() => &mut recv[..block],
            (Collective::Broadcast | Collective::Scatter, _) if !self.is_root() => return,
            (_, true) => self.one(send, recv),
            (_, false) => send,
        };
        input.iter_mut().enumerate().for_each(|(at, x)| *x = T::small(self.element(rank, at)));
    }

    /// The number of wrong elements in this rank's result.
    pub fn wrong<T: Small>(&self, send: &[T], recv: &[T]) -> u64 {
        let Self { rank, block, .. } = *self;
        let own = rank as usize * block;
        let root = self.is_root();
        let wrong = |got: &[T], want: &dyn Fn(usize) -> u32| {
            got.iter().enumerate().filter(|&(at, x)| *x != T::small(want(at))).count() as u64
        };
        match self.collective {
            Collective::Barrier => 0,
            Collective::AllReduce => wrong(recv, &|at| self.summed(at)),
            Collective::Reduce if root => wrong(recv, &|at| self.summed(at)),
            Collective::ReduceScatter => {
                let got = if self.in_place { &send[own..][..block] } else { recv };
                wrong(got, &|at| self.summed(own + at))
            }
            Collective::AllGather => wrong(recv, &|at| self.element((at / block) as u32, at % block)),
            Collective::Gather if root => wrong(recv, &|at| self.element((at / block) as u32, at % block)),
            Collective::AllToAll => wrong(recv, &|at| self.element((at / block) as u32, own + at % block)),
            Collective::Broadcast => wrong(recv, &|at| self.element(0, at)),
            Collective::SendRecv => {
                let [_, from] = self.neighbours();
                wrong(recv, &|at| self.element(from, at))
            }
            Collective::Scatter if self.in_place && root => wrong(send, &|at| self.element(0, at)),
            Collective::Scatter => wrong(recv, &|at| self.element(0, own + at)),
            Collective::Reduce | Collective::Gather => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::ValueEnum;

    use super::*;

    #[test]
    fn before_a_call_some_rank_has_a_wrong_result_in_place_too() {
        let wrong = |collective, in_place, rank, bytes| {
            let case = Case::new::<f32>(collective, in_place, [rank, 4], bytes);
            let (sends, receives) = case.lengths();
            let (mut send, mut recv) = (vec![0.0f32; sends], vec![0.0; receives]);
            case.fill(&mut send, &mut recv);
            case.wrong(&send, &recv)
        };
        for &collective in Collective::value_variants() {
            for in_place in [false, true] {
                if collective == Collective::Barrier || in_place && !collective.has_in_place() {
                    continue;
                }
                for bytes in [256, 384, 400, 416] {
                    let all: u64 = (0..4).map(|rank| wrong(collective, in_place, rank, bytes)).sum();
                    assert!(all > 0, "{collective:?} of {bytes} bytes, in place: {in_place}");
                }
            }
        }
    }

    #[test]
    fn the_bytes_are_those_of_whole_blocks() {
        let bytes = |collective, bytes| Case::new::<f32>(collective, false, [0, 4], bytes).bytes::<f32>();
        assert_eq!([8, 40, 64].map(|size| bytes(Collective::AllGather, size)), [0, 32, 64]);
        assert_eq!([8, 42].map(|size| bytes(Collective::AllReduce, size)), [8, 40]);
        assert_eq!(bytes(Collective::Barrier, 64), 0);
        for (r#type, want) in [(Type::U8, 40), (Type::Bf16, 40), (Type::F32, 32), (Type::F64, 32)] {
            assert_eq!(Case::bytes_of(Collective::AllGather, r#type, 4, 40), want, "{type:?}");
        }
    }

    #[test]
    fn sums_are_those_of_the_elements() {
        let case = Case::new::<f32>(Collective::AllReduce, false, [0, 4], 8);
        assert_eq!([0, 1, 2, 3].map(|rank| case.element(rank, 1)), [2, 0, 1, 2]);
        assert_eq!(case.summed(1), 5);
    }

    /// Whether ranks that add one after the other get what is expected, in each of some places.
    fn is_exact<T: Small + std::iter::Sum>(ranks: u32) -> bool {
        let case = Case::new::<T>(Collective::AllReduce, false, [0, ranks], 8);
        let added = |at| (0..ranks).map(|rank| T::small(case.element(rank, at))).sum::<T>();
        (0..50).all(|at| added(at) == T::small(case.summed(at)))
    }

    #[test]
    fn sums_of_many_ranks_are_exact() {
        for ranks in [63, 128, 252, 253, 300, 504, 505, 1024] {
            assert!(is_exact::<i32>(ranks) && is_exact::<u64>(ranks) && is_exact::<f32>(ranks), "{ranks}");
            assert!(is_exact::<f16>(ranks) && is_exact::<bf16>(ranks), "{ranks}");
            let case = Case::new::<u8>(Collective::AllReduce, false, [0, ranks], 8);
            assert!((0..50).all(|at| (1..=SUM_MAX).contains(&case.summed(at))), "{ranks}");
            // Each rank adds something at some place.
            assert!((0..ranks).all(|rank| (0..50).any(|at| case.element(rank, at) > 0)), "{ranks}");
        }
        assert_eq!((i8::small(257), u8::small(257), f32::small(257)), (1, 1, 257.0));
    }
}
