//! What every rank sends in every step, as a function of (seed, source, epoch, step, token): a receiver knows what must
//! arrive, and recognises late, torn or foreign rows.
//!
//! Numbers are chosen so that every sum is exact in bf16: channels are 0 to 7, weights 1/4, 1/2 or 1, experts multiply
//! by 1 or 2, and a sum has at most three terms.

use half::bf16;
use half::slice::HalfFloatSliceExt as _;

pub(crate) const TOPK: usize = 3;
pub(crate) const LOCAL_EXPERTS: u32 = 2;
pub(crate) const SIDEBAND: usize = 16;
/// Offsets at which rows begin in a table.
const TABLE: usize = 1 << 13;
/// Factors of rows are multiples of a quarter, up to three experts of weight 1 that double.
const FACTORS: usize = 24;

/// SplitMix64's finaliser over a running state: a hash of small tuples, and the seeded choices of the tests.
pub(crate) fn mix(parts: &[u64]) -> u64 {
    let mut state = 0u64;
    for part in parts {
        state = (state ^ part).wrapping_add(0x9e37_79b9_7f4a_7c15);
        state = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        state = (state ^ (state >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        state ^= state >> 31;
    }
    state
}

/// One operation of one source.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sender {
    pub(crate) source: u32,
    pub(crate) epoch: u32,
    pub(crate) step: u32,
}

pub(crate) struct Traffic {
    seed: u64,
    ranks: u32,
    max_tokens: u32,
    hidden: usize,
    /// Channel values times each quarter; a row is a slice of one.
    tables: Vec<Vec<bf16>>,
}

impl Traffic {
    pub(crate) fn new(seed: u64, ranks: u32, max_tokens: u32, hidden: u32) -> Self {
        let hidden = hidden as usize;
        let digits: Vec<usize> = (0..(TABLE + hidden) as u64).map(|i| mix(&[seed, i]) as usize & 7).collect();
        let table = |quarters: usize| {
            let times: [bf16; 8] =
                std::array::from_fn(|digit| bf16::from_f32((digit * quarters) as f32 / 4.0));
            digits.iter().map(|digit| times[*digit]).collect()
        };
        Self { seed, ranks, max_tokens, hidden, tables: (0..=FACTORS).map(table).collect() }
    }

    fn hash(&self, of: Sender, token: u32, what: u64) -> u64 {
        mix(&[
            self.seed,
            u64::from(of.source),
            u64::from(of.epoch),
            u64::from(of.step),
            u64::from(token),
            what,
        ])
    }

    /// The number of tokens of an operation, sometimes 0.
    pub(crate) fn tokens(&self, of: Sender) -> u32 {
        let hash = self.hash(of, 0, 1);
        if hash.is_multiple_of(8) { 0 } else { 1 + (hash >> 8) as u32 % self.max_tokens }
    }

    /// Distinct experts with their weights; sometimes -1.
    pub(crate) fn routing(&self, of: Sender, token: u32) -> [(i32, f32); TOPK] {
        let hash = self.hash(of, token, 2);
        let experts = u64::from(self.ranks * LOCAL_EXPERTS);
        let (first, stride) = (hash % experts, 1 + (hash >> 8) % 2);
        std::array::from_fn(|j| {
            let bits = hash >> (16 + 8 * j);
            let expert = ((first + j as u64 * stride) % experts) as i32;
            (if bits & 7 == 0 { -1 } else { expert }, [0.25, 0.5, 1.0][(bits >> 3) as usize % 3])
        })
    }

    fn offset(&self, of: Sender, token: u32) -> usize {
        self.hash(of, token, 3) as usize % TABLE
    }

    pub(crate) fn row(&self, of: Sender, token: u32) -> &[bf16] {
        self.scaled(of, token, 1.0)
    }

    /// The row times a factor, which is what experts and combine make of it.
    pub(crate) fn scaled(&self, of: Sender, token: u32, factor: f32) -> &[bf16] {
        &self.tables[(factor * 4.0) as usize][self.offset(of, token)..][..self.hidden]
    }

    /// Identifies the row's token and operation.
    pub(crate) fn sideband(of: Sender, token: u32) -> [u8; SIDEBAND] {
        let mut bytes = [0; SIDEBAND];
        for (place, value) in bytes.chunks_exact_mut(4).zip([of.source, of.epoch, of.step, token]) {
            place.copy_from_slice(&value.to_le_bytes());
        }
        bytes
    }

    pub(crate) fn owner(expert: i32) -> u32 {
        expert as u32 / LOCAL_EXPERTS
    }

    /// The factor by which expert `expert` multiplies.
    pub(crate) fn gain(expert: i32) -> f32 {
        [1.0, 2.0][expert as usize % 2]
    }

    /// The tokens of an operation that go to `rank`, ascending.
    pub(crate) fn sent_to(&self, of: Sender, rank: u32) -> impl Iterator<Item = u32> + '_ {
        let goes_there = move |token: &u32| {
            self.routing(of, *token).iter().any(|(expert, _)| *expert >= 0 && Self::owner(*expert) == rank)
        };
        (0..self.tokens(of)).filter(goes_there)
    }

    /// The sum of weight times gain over the token's experts on ranks for which `counts` is true, and the number of
    /// those.
    pub(crate) fn factor(&self, of: Sender, token: u32, counts: impl Fn(u32) -> bool) -> (f32, u16) {
        let routing = self.routing(of, token);
        let counted = routing.iter().filter(|(expert, _)| *expert >= 0 && counts(Self::owner(*expert)));
        counted.fold((0.0, 0), |(sum, n), (expert, weight)| (sum + weight * Self::gain(*expert), n + 1))
    }
}

/// Bit for bit, as fast as memory can be compared.
pub(crate) fn same(a: &[bf16], b: &[bf16]) -> bool {
    a.reinterpret_cast() == b.reinterpret_cast()
}

pub(crate) fn bytes(row: &[bf16]) -> &[u8] {
    // SAFETY: bf16 is two bytes without padding, and bytes need no alignment.
    unsafe { std::slice::from_raw_parts(row.as_ptr().cast(), size_of_val(row)) }
}
