//! Ways in which a processor can move bytes; the floor takes the fastest.

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

/// How bytes are copied and written. Reading alone has one way: loads as wide as the processor has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Way {
    /// The C library's copy
    Memcpy,
    /// The processor's own copy
    RepMovsb,
    /// Stores of 32 bytes past the caches
    Avx2Stream,
    /// Stores of 64 bytes past the caches
    Avx512Stream,
}

/// Bytes are moved in whole blocks of this many.
pub const BLOCK: usize = 4096;

impl Way {
    /// Those that this processor has.
    pub fn here() -> Vec<Self> {
        let mut ways = vec![Self::Memcpy];
        #[cfg(target_arch = "x86_64")]
        {
            ways.push(Self::RepMovsb);
            ways.extend(is_x86_feature_detected!("avx2").then_some(Self::Avx2Stream));
            ways.extend(is_x86_feature_detected!("avx512f").then_some(Self::Avx512Stream));
        }
        ways
    }

    /// Copies a block.
    pub fn copy(self, to: &mut Block, from: &Block) {
        match self {
            Self::Memcpy => to.0.copy_from_slice(&from.0),
            #[cfg(target_arch = "x86_64")]
            _ => x86::copy(self, to, from),
            #[cfg(not(target_arch = "x86_64"))]
            _ => unreachable!("here() has not listed it"),
        }
    }

    /// Writes a block.
    pub fn fill(self, to: &mut Block) {
        match self {
            Self::Memcpy => to.0.fill(1),
            #[cfg(target_arch = "x86_64")]
            _ => x86::fill(self, to),
            #[cfg(not(target_arch = "x86_64"))]
            _ => unreachable!("here() has not listed it"),
        }
    }

    /// Lets stores past the caches reach memory: a copy ends when others could see it.
    pub fn finish(self) {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: every x86-64 processor has this instruction.
        unsafe {
            std::arch::x86_64::_mm_sfence();
        }
    }
}

/// The unit in which memory is moved, aligned for streaming stores.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub struct Block([u8; BLOCK]);

/// Filled with written bytes: memory that is only zeroed has no pages of its own.
pub fn blocks(bytes: usize) -> Vec<Block> {
    let count = bytes.div_ceil(BLOCK).max(1);
    let mut blocks = Vec::with_capacity(count);
    prefer_huge_pages(blocks.as_ptr() as usize, count * BLOCK);
    blocks.resize(count, Block([2; BLOCK]));
    blocks
}

/// As windows and the library's host buffers do: with small pages the floor would be slower than they are.
fn prefer_huge_pages(address: usize, bytes: usize) {
    const HUGE: usize = 2 << 20;
    let (first, end) = (address.next_multiple_of(HUGE), (address + bytes) / HUGE * HUGE);
    if first < end {
        // SAFETY: whole pages inside an allocation that nobody uses yet; the advice changes no byte.
        unsafe { libc::madvise(first as *mut libc::c_void, end - first, libc::MADV_HUGEPAGE) };
    }
}

/// Reads a block and does nothing with it.
pub fn read(from: &Block) {
    #[cfg(target_arch = "x86_64")]
    x86::read(from);
    #[cfg(not(target_arch = "x86_64"))]
    std::hint::black_box(from.0.chunks_exact(8).fold(0u8, |all, bytes| all | bytes[0]));
}

/// In assembly, because intrinsics of AVX-512 need a newer compiler than the crate does, and a loop that only reads would be
/// optimised away.
#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::asm;
    use std::sync::LazyLock;

    use super::{BLOCK, Block, Way};

    static WIDEST: LazyLock<Way> = LazyLock::new(|| Way::here().pop().unwrap_or(Way::Memcpy));

    /// Four registers a turn: loads, stores, bytes of a turn.
    macro_rules! copy_loop {
        ($to:ident, $from:ident, $load:literal, $store:literal, $register:literal, $width:literal) => {
            asm!(
                "2:",
                concat!($load, " ", $register, "0, [{from}]"),
                concat!($load, " ", $register, "1, [{from} + ", $width, "]"),
                concat!($load, " ", $register, "2, [{from} + 2 * ", $width, "]"),
                concat!($load, " ", $register, "3, [{from} + 3 * ", $width, "]"),
                concat!($store, " [{to}], ", $register, "0"),
                concat!($store, " [{to} + ", $width, "], ", $register, "1"),
                concat!($store, " [{to} + 2 * ", $width, "], ", $register, "2"),
                concat!($store, " [{to} + 3 * ", $width, "], ", $register, "3"),
                concat!("add {from}, 4 * ", $width),
                concat!("add {to}, 4 * ", $width),
                concat!("sub {left}, 4 * ", $width),
                "jnz 2b",
                "vzeroupper",
                from = inout(reg) $from.0.as_ptr() => _,
                to = inout(reg) $to.0.as_mut_ptr() => _,
                left = inout(reg) BLOCK => _,
                out("xmm0") _, out("xmm1") _, out("xmm2") _, out("xmm3") _,
                options(nostack),
            )
        };
    }

    macro_rules! fill_loop {
        ($to:ident, $store:literal, $register:literal, $width:literal) => {
            asm!(
                "vpxor xmm0, xmm0, xmm0",
                "2:",
                concat!($store, " [{to}], ", $register, "0"),
                concat!($store, " [{to} + ", $width, "], ", $register, "0"),
                concat!("add {to}, 2 * ", $width),
                concat!("sub {left}, 2 * ", $width),
                "jnz 2b",
                "vzeroupper",
                to = inout(reg) $to.0.as_mut_ptr() => _,
                left = inout(reg) BLOCK => _,
                out("xmm0") _,
                options(nostack),
            )
        };
    }

    macro_rules! read_loop {
        ($from:ident, $load:literal, $register:literal, $width:literal $(, $after:literal)?) => {
            asm!(
                "2:",
                concat!($load, " ", $register, "0, [{from}]"),
                concat!($load, " ", $register, "1, [{from} + ", $width, "]"),
                concat!("add {from}, 2 * ", $width),
                concat!("sub {left}, 2 * ", $width),
                "jnz 2b",
                $($after,)?
                from = inout(reg) $from.0.as_ptr() => _,
                left = inout(reg) BLOCK => _,
                out("xmm0") _, out("xmm1") _,
                options(nostack, readonly),
            )
        };
    }

    pub(super) fn copy(way: Way, to: &mut Block, from: &Block) {
        // SAFETY: each moves the BLOCK bytes of two blocks that are borrowed, aligned to 64 bytes, by instructions that
        // `Way::here` has found on this processor.
        unsafe {
            match way {
                Way::Avx512Stream => copy_loop!(to, from, "vmovdqu64", "vmovntdq", "zmm", "64"),
                Way::Avx2Stream => copy_loop!(to, from, "vmovdqu", "vmovntdq", "ymm", "32"),
                Way::Memcpy | Way::RepMovsb => asm!(
                    "rep movsb",
                    inout("rsi") from.0.as_ptr() => _,
                    inout("rdi") to.0.as_mut_ptr() => _,
                    inout("rcx") BLOCK => _,
                    options(nostack, preserves_flags),
                ),
            }
        }
    }

    pub(super) fn fill(way: Way, to: &mut Block) {
        // SAFETY: as in `copy`.
        unsafe {
            match way {
                Way::Avx512Stream => fill_loop!(to, "vmovntdq", "zmm", "64"),
                Way::Avx2Stream => fill_loop!(to, "vmovntdq", "ymm", "32"),
                Way::Memcpy | Way::RepMovsb => asm!(
                    "rep stosb",
                    in("al") 1u8,
                    inout("rdi") to.0.as_mut_ptr() => _,
                    inout("rcx") BLOCK => _,
                    options(nostack, preserves_flags),
                ),
            }
        }
    }

    pub(super) fn read(from: &Block) {
        // SAFETY: as in `copy`, of one block.
        unsafe {
            match *WIDEST {
                Way::Avx512Stream => read_loop!(from, "vmovdqu64", "zmm", "64", "vzeroupper"),
                Way::Avx2Stream => read_loop!(from, "vmovdqu", "ymm", "32", "vzeroupper"),
                Way::Memcpy | Way::RepMovsb => read_loop!(from, "movdqu", "xmm", "16"),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_way_moves_every_byte() {
        let from = Block(std::array::from_fn(|i| (i % 251) as u8));
        for way in Way::here() {
            let mut to = Block([0xaa; BLOCK]);
            way.copy(&mut to, &from);
            way.finish();
            assert!(to.0 == from.0, "{way:?}");
            to = Block([0xaa; BLOCK]);
            way.fill(&mut to);
            way.finish();
            assert!(to.0.iter().all(|&byte| byte == to.0[0] && byte != 0xaa), "{way:?}");
            read(&from);
        }
    }
}
