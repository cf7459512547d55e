//! The positions of the ranks' blocks in a buffer that has one block for each rank.

use std::{fmt, ptr};

use crate::error::{Error, Failure, Result};
use crate::sys;

/// The blocks of all ranks in one buffer, in elements: uneven ones, with gaps between them, or beside each other in a
/// matrix.
///
/// Blocks whose counts are all equal match a call without blocks: one rank may use either form (in C, `count`). On GPUs
/// they are as fast. The exception is an all-to-all: there the two forms do not match.
///
/// ```
/// use epwire::comm::Blocks;
///
/// // 3 elements of rank 0, none of rank 1, 5 of rank 2, one behind the other.
/// let uneven = Blocks::new([3, 0, 5]);
/// // The same with room for 8 elements of each.
/// let spread = Blocks::new([3, 0, 5]).at([0, 8, 16]);
/// // A matrix of 16 rows, whose 12 columns are 4 of each of 3 ranks.
/// let columns = Blocks::new([4; 3]).rows(16);
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Blocks {
    counts: Vec<usize>,
    offsets: Option<Vec<usize>>,
    rows: usize,
    pitch: Option<usize>,
    own_pitch: Option<usize>,
}

/// `[3, 0, 5] elements at [0, 8, 16], 16 rows`, with the pitches that were set.
impl fmt::Display for Blocks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { counts, offsets, rows, pitch, own_pitch } = self;
        write!(f, "{counts:?} elements")?;
        if let Some(offsets) = offsets {
            write!(f, " at {offsets:?}")?;
        }
        if *rows != 1 {
            write!(f, ", {rows} rows")?;
        }
        for (pitch, name) in [(pitch, "pitch"), (own_pitch, "own pitch")] {
            if let Some(elements) = pitch {
                write!(f, ", {name} {elements}")?;
            }
        }
        Ok(())
    }
}

impl Blocks {
    /// `counts[r]` elements of rank r, one block after the other.
    pub fn new(counts: impl Into<Vec<usize>>) -> Self {
        Self { counts: counts.into(), offsets: None, rows: 1, pitch: None, own_pitch: None }
    }

    /// The block of rank r begins at element `offsets[r]`.
    pub fn at(self, offsets: impl Into<Vec<usize>>) -> Self {
        Self { offsets: Some(offsets.into()), ..self }
    }

    /// Makes blocks of `rows` rows; `counts` are the elements of one row: matrices side by side in a larger one. For
    /// all_gather and reduce_scatter.
    pub fn rows(self, rows: usize) -> Self {
        Self { rows, ..self }
    }

    /// Elements from row to row of the buffer with all blocks. By default, and if it is 0, the sum of `counts`.
    /// At least that where blocks lie side by side; otherwise at least the largest of `counts`.
    pub fn pitch(self, elements: usize) -> Self {
        Self { pitch: Some(elements), ..self }
    }

    /// Elements from row to row of the buffer with only this rank's block. By default, and if it is 0, the elements of a row.
    /// In place it does not apply.
    pub fn own_pitch(self, elements: usize) -> Self {
        Self { own_pitch: Some(elements), ..self }
    }

    /// The form that C takes, checked.
    pub(super) fn lay_out(&self, operation: &'static str, rank: u32, ranks: u32) -> Result<Laid> {
        let invalid = |text: String| Error::Invalid(Failure::new(operation, rank, text));
        let beyond = |text: String| {
            let text = format!("{text}: the blocks must be within {} elements", usize::MAX);
            Error::Limit(Failure::new(operation, rank, text))
        };
        let Self { counts, offsets, rows, pitch, own_pitch } = self;
        for (name, list) in [("counts", Some(counts)), ("offsets", offsets.as_ref())] {
            if let Some(list) = list
                && list.len() != ranks as usize
            {
                let have = list.len();
                return Err(invalid(format!("{name} has {have} entries for {ranks} ranks")));
            }
        }
        let mut behind: Vec<usize> = Vec::with_capacity(counts.len());
        let mut sum = 0usize;
        for (r, count) in counts.iter().enumerate() {
            behind.push(sum);
            let with = sum.checked_add(*count);
            sum = with.ok_or_else(|| beyond(format!("counts[{r}] is {count} behind {sum} others")))?;
        }
        let offsets = offsets.as_ref().unwrap_or(&behind);
        let rows = (*rows).max(1);
        let own = counts[rank as usize];
        // C takes 0 for the default too.
        let or = |pitch: &Option<usize>, default| pitch.filter(|elements| *elements > 0).unwrap_or(default);
        let (pitch, own_pitch) = (or(pitch, sum), or(own_pitch, own));
        // The end of a block with this many elements in each row.
        let end = |count: usize, pitch: usize| match count {
            0 => Some(0),
            _ => pitch.checked_mul(rows - 1)?.checked_add(count),
        };
        let mut extent = 0usize;
        for (r, (count, offset)) in counts.iter().zip(offsets).enumerate() {
            let end = end(*count, pitch).and_then(|end| end.checked_add(*offset)).ok_or_else(|| {
                beyond(format!("rows is {rows}, pitch {pitch}, counts[{r}] {count}, offsets[{r}] {offset}"))
            })?;
            extent = extent.max(if *count == 0 { 0 } else { end });
        }
        let own_extent = end(own, own_pitch)
            .ok_or_else(|| beyond(format!("rows is {rows}, own_pitch {own_pitch}, counts[{rank}] {own}")))?;
        let count = counts.iter().all(|count| *count == own).then_some(own as u64);
        let is_packed = *offsets == behind;
        let c = |list: &[usize]| list.iter().map(|value| *value as u64).collect();
        let (pitch, own_pitch) = (pitch as u64, own_pitch as u64);

        Ok(Laid {
            counts: c(counts),
            offsets: c(offsets),
            count,
            is_packed,
            rows: rows as u64,
            pitch,
            own_pitch,
            extent,
            own_extent,
        })
    }
}

/// Blocks with all defaults filled in.
#[derive(Debug)]
pub(super) struct Laid {
    /// `[ranks]`
    pub(super) counts: Vec<u64>,
    /// `[ranks]`
    pub(super) offsets: Vec<u64>,
    /// That of every block, if they are equal.
    pub(super) count: Option<u64>,
    /// One block is behind the other, where C has them by default.
    pub(super) is_packed: bool,
    pub(super) rows: u64,
    pub(super) pitch: u64,
    pub(super) own_pitch: u64,
    /// The least size of the buffer with all blocks, in elements.
    pub(super) extent: usize,
    /// The same for the buffer with only the own block.
    pub(super) own_extent: usize,
}

impl Laid {
    /// Describes the call's `recv`, or else its `send`, as the buffer with all blocks. The call then points to this.
    pub(super) fn describe(&self, call: &mut sys::epw_coll, in_recv: bool) {
        let counts = match self.count {
            // In an all-to-all other ranks may have uneven ones.
            Some(count) if call.kind != sys::EPW_ALL_TO_ALL => {
                call.count = count;
                ptr::null()
            }
            _ => self.counts.as_ptr(),
        };
        let offsets = if counts.is_null() && self.is_packed { ptr::null() } else { self.offsets.as_ptr() };
        let (mut all, mut own) = (0, 0);
        if self.rows > 1 {
            (call.rows, all, own) = (self.rows, self.pitch, self.own_pitch);
        }
        if in_recv {
            (call.recv_counts, call.recv_offsets) = (counts, offsets);
            (call.send_pitch, call.recv_pitch) = (own, all);
        } else {
            (call.send_counts, call.send_offsets) = (counts, offsets);
            (call.send_pitch, call.recv_pitch) = (all, own);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_end_where_their_last_row_does() {
        let laid = |blocks: Blocks| blocks.lay_out("all_gather", 2, 3).unwrap();
        let plain = laid(Blocks::new([3, 0, 5]));
        assert_eq!((plain.offsets, plain.extent, plain.own_extent), (vec![0, 3, 3], 8, 5));
        let spread = laid(Blocks::new([3, 0, 5]).at([20, 99, 2]));
        assert_eq!((spread.extent, spread.own_extent), (23, 5));
        let columns = laid(Blocks::new([4; 3]).rows(16).pitch(20).own_pitch(6));
        assert_eq!((columns.extent, columns.own_extent), (15 * 20 + 12, 15 * 6 + 4));
        let dense = laid(Blocks::new([4; 3]).rows(16).pitch(0).own_pitch(0));
        assert_eq!((dense.extent, dense.own_extent), (16 * 12, 16 * 4));
    }

    #[test]
    fn blocks_that_cannot_be_are_refused() {
        for (blocks, text) in [
            (Blocks::new([3, 0]), "counts has 2 entries for 3 ranks"),
            (Blocks::new([3, 0, 1]).at([0; 4]), "offsets has 4 entries for 3 ranks"),
        ] {
            let error = blocks.lay_out("all_gather", 0, 3).unwrap_err();
            assert!(error.to_string().contains(text), "{error}");
        }
        let most = usize::MAX;
        for (blocks, text) in [
            (Blocks::new([most, 1, 1]), format!("counts[1] is 1 behind {most} others")),
            (
                Blocks::new([1, 1, 1]).at([0, most, 0]),
                format!("rows is 1, pitch 3, counts[1] 1, offsets[1] {most}"),
            ),
            (
                Blocks::new([1, 1, 1]).rows(most),
                format!("rows is {most}, pitch 3, counts[0] 1, offsets[0] 0"),
            ),
            (
                Blocks::new([2, 0, 0]).rows(2).own_pitch(most),
                format!("rows is 2, own_pitch {most}, counts[0] 2"),
            ),
        ] {
            let error = blocks.lay_out("all_gather", 0, 3).unwrap_err();
            let text = format!("all_gather: rank 0: {text}: the blocks must be within {most} elements");
            assert_eq!((error.to_string(), matches!(error, Error::Limit(_))), (text, true));
        }
    }
}
