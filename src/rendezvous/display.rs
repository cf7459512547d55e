//! How logs show what programs learn of a run.

use std::fmt;

use super::wire::{Decision, Identity, RankState, Standby, View};
use crate::names::names;

names!(RankState, "a state of a rank: absent, alive, suspect, dead, evicted, standby, retired, ready or left" {
    Absent = "absent", Alive = "alive", Suspect = "suspect", Dead = "dead", Evicted = "evicted", Standby = "standby",
    Retired = "retired", Ready = "ready", Left = "left",
});

/// `rank 2, process 4711 on n01`.
impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rank, pid, host, .. } = self;
        write!(f, "rank {rank}, process {pid} on {host}")
    }
}

/// `epoch 2 of ranks 0-3 from step 90`.
impl fmt::Display for Decision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { mask, epoch, step } = self;
        write!(f, "epoch {epoch} of {} from step {step}", mask.named())
    }
}

/// `epoch 2 of ranks 0-2 from step 90; dead: 3`, with the ranks of each state other than alive and absent.
impl fmt::Display for View {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { epoch, mask, step, states, .. } = self;
        if *epoch == 0 {
            return f.pad("no epoch yet");
        }
        write!(f, "{}", Decision { mask: *mask, epoch: *epoch, step: *step })?;
        others(states, f)
    }
}

/// `; dead: 3` and the like for each state but alive and absent.
pub(crate) fn others(states: &[RankState], f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let named = [
        RankState::Suspect {},
        RankState::Dead {},
        RankState::Evicted {},
        RankState::Retired {},
        RankState::Left {},
        RankState::Ready {},
        RankState::Standby {},
    ];
    for state in named {
        let ranks = state.ranks(states);
        if !ranks.is_empty() {
            write!(f, "; {state}: {ranks}")?;
        }
    }
    Ok(())
}

/// `ready: 3, not ready yet: 4-5`, or `nobody`.
impl fmt::Display for Standby {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { ready, preparing } = self;
        match (ready.is_empty(), preparing.is_empty()) {
            (true, true) => f.pad("nobody"),
            (false, true) => write!(f, "ready: {ready}"),
            (true, false) => write!(f, "not ready yet: {preparing}"),
            (false, false) => write!(f, "ready: {ready}, not ready yet: {preparing}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mask::Mask;

    #[test]
    fn a_view_names_the_ranks_that_are_not_as_usual() {
        let states = vec![
            RankState::Alive {},
            RankState::Dead {},
            RankState::Absent {},
            RankState::Suspect {},
            RankState::Dead {},
        ];
        let view = View { epoch: 2, mask: Mask::all(1), step: 90, taken: Mask::all(2), states };
        assert_eq!(view.to_string(), "epoch 2 of rank 0 from step 90; suspect: 3; dead: 1,4");
        assert_eq!(View::before().to_string(), "no epoch yet");
        for state in [RankState::Alive {}, RankState::Left {}] {
            assert_eq!(state.to_string().parse(), Ok(state));
        }
    }

    #[test]
    fn a_member_and_those_who_wait_take_one_line() {
        let identity = Identity::new(2, 77, "n01", 4711);
        assert_eq!(identity.to_string(), "rank 2, process 4711 on n01");
        let standby = Standby { ready: Mask::all(1), preparing: "4-5".parse().unwrap() };
        assert_eq!(standby.to_string(), "ready: 0, not ready yet: 4-5");
        assert_eq!(Standby::default().to_string(), "nobody");
    }
}
