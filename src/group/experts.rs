//! Which experts a set of ranks holds: expert e of a buffer lives on rank e / (experts / ranks).

use std::fmt;
use std::ops::Range;

use crate::mask::Mask;

/// What a change of membership means for the experts of one buffer of the group: ranges of ids, ascending.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Experts {
    /// Experts that no active rank holds any more, because their rank has left.
    pub lost: Vec<Range<u32>>,
    /// Experts that an active rank holds again, because their rank has come back.
    pub regained: Vec<Range<u32>>,
    /// All experts that no active rank holds from now on.
    pub unheld: Vec<Range<u32>>,
}

impl Experts {
    /// Whether the change has lost or regained any.
    pub(super) fn is_changed(&self) -> bool {
        !(self.lost.is_empty() && self.regained.is_empty())
    }
}

/// `lost: 4-7; regained: 12; held by nobody: 4-7`, or `all held`.
impl fmt::Display for Experts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { lost, regained, unheld } = self;
        let mut between = "";
        for (ids, what) in [(lost, "lost"), (regained, "regained"), (unheld, "held by nobody")] {
            if !ids.is_empty() {
                write!(f, "{between}{what}: {}", Listed(ids))?;
                between = "; ";
            }
        }
        if between.is_empty() { f.pad("all held") } else { Ok(()) }
    }
}

/// The experts of these ranks, if `experts` are spread evenly over `world` ranks.
pub(crate) fn held_by(ranks: &Mask, world: u32, experts: u32) -> Vec<Range<u32>> {
    let each = experts.checked_div(world).unwrap_or(0);
    let mut held: Vec<Range<u32>> = Vec::new();
    for rank in ranks.iter().take_while(|rank| *rank < world && each > 0) {
        let (start, end) = (rank * each, (rank + 1) * each);
        match held.last_mut() {
            Some(last) if last.end == start => last.end = end,
            _ => held.push(start..end),
        }
    }
    held
}

/// `4-7,12`.
pub(crate) struct Listed<'a>(pub(crate) &'a [Range<u32>]);

impl fmt::Display for Listed<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, Range { start, end }) in self.0.iter().enumerate() {
            let comma = if at > 0 { "," } else { "" };
            match end - start {
                1 => write!(f, "{comma}{start}")?,
                _ => write!(f, "{comma}{start}-{}", end.saturating_sub(1))?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_beside_each_other_give_one_range() {
        let ranks = [1, 2, 5, 9].into_iter().collect();
        assert_eq!(held_by(&ranks, 8, 32), [4..12, 20..24], "rank 9 is none of the 8");
        assert_eq!(held_by(&Mask::EMPTY, 8, 32), []);
        assert_eq!(held_by(&Mask::all(1024), 4, 8), [0..8; 1]);
        assert_eq!(held_by(&ranks, 0, 0), []);
    }
}
