//! How many cases of each kind have run.

use std::collections::BTreeMap;
use std::fmt;

use epwire::{Fp8Scale, Layout, Mask, Payload};

use crate::calls;
use crate::case::{Case, GiveUp, Op, Step};

/// The kinds that a run of all cases must include.
const KINDS: [&str; 40] = [
    "ranks: 1",
    "ranks: 2 to 6",
    "ranks: 16 or 32",
    "lanes: 1",
    "lanes: 2",
    "lane: explicit",
    "lane: in turn",
    "flight: one",
    "flight: two, interleaved",
    "flight: two, joined futures",
    "calls: of one communicator",
    "calls: of several",
    "calls: in the common order",
    "calls: in any order",
    "membership: changed",
    "membership: some inactive",
    "payload: same",
    "payload: fp8 f32",
    "payload: fp8 power of two",
    "payload: fp8 ue8m0",
    "payload: opaque",
    "layout: expert-major",
    "layout: rank-major",
    "layout: mixed",
    "combine: rank-reduced",
    "combine: ordered",
    "combine: ordered, weights then",
    "combine: in place, expert-major",
    "combine: in place, rank-major",
    "routing: Uniform",
    "routing: Zipf",
    "routing: AllToOne",
    "routing: Empty",
    "form: split",
    "form: whole",
    "form: async",
    "form: blocking",
    "given up: by one",
    "given up: by all",
    "x: strided",
];

#[derive(Debug, Default)]
pub(crate) struct Tally {
    counts: BTreeMap<String, usize>,
}

impl Tally {
    /// Each kind counts once per case.
    pub(crate) fn of(case: &Case) -> Self {
        let mut tally = Self::default();
        let ranks = match case.ranks {
            1 => "ranks: 1",
            2..=6 => "ranks: 2 to 6",
            _ => "ranks: 16 or 32",
        };
        tally.is(ranks);
        tally.is(format!("lanes: {}", case.config.lanes));
        tally.when(case.comms.len() == 1, "calls: of one communicator");
        tally.when(case.comms.len() > 1, "calls: of several");
        let memberships = case.steps.iter().filter(|s| matches!(s, Step::Activate { .. })).count();
        tally.when(memberships > 1, "membership: changed");
        for step in &case.steps {
            let Step::Exchange { ops, calls, .. } = step else { continue };
            for call in calls {
                let joined = ops[0].parts.iter().any(|part| part.joined);
                tally.is(if joined { "calls: in any order" } else { "calls: in the common order" });
                tally.is(format!("call: {:?}", call.kind));
            }
            let joined = ops.iter().all(|op| op.parts.iter().any(|part| part.joined));
            tally.is(match ops.len() {
                1 => "flight: one",
                _ if joined => "flight: two, joined futures",
                _ => "flight: two, interleaved",
            });
            ops.iter().for_each(|op| tally.op(case, op));
        }
        tally
    }

    fn op(&mut self, case: &Case, op: &Op) {
        self.when(op.active != Mask::all(case.ranks as u32), "membership: some inactive");
        self.is(if op.lane.is_some() { "lane: explicit" } else { "lane: in turn" });
        self.is(match op.payload {
            Payload::SameAsInput => "payload: same",
            Payload::Fp8 { scale: Fp8Scale::F32 } => "payload: fp8 f32",
            Payload::Fp8 { scale: Fp8Scale::PowerOfTwo } => "payload: fp8 power of two",
            Payload::Fp8 { scale: Fp8Scale::Ue8m0 } => "payload: fp8 ue8m0",
            Payload::Opaque { .. } => "payload: opaque",
            other => unreachable!("no case has {other}"),
        });
        self.is(format!("combine: {}", op.mode));
        self.is(format!("routing: {:?}", op.routing));
        let mixed = op.parts.iter().any(|part| part.layout != op.parts[0].layout);
        self.when(mixed, "layout: mixed");
        let who = op.parts.iter().filter(|part| part.give_up != GiveUp::Never).count();
        self.when(who == 1 && case.ranks > 1, "given up: by one");
        self.when(who > 1, "given up: by all");
        for part in &op.parts {
            let expert_major = part.layout == Layout::ExpertMajor;
            self.is(if expert_major { "layout: expert-major" } else { "layout: rank-major" });
            self.when(part.in_place && expert_major, "combine: in place, expert-major");
            self.when(part.in_place && !expert_major, "combine: in place, rank-major");
            self.when(part.combine_weights.is_some(), "combine: ordered, weights then");
            self.is(if part.split_dispatch || part.split_combine { "form: split" } else { "form: whole" });
            self.is(if part.asynchronous { "form: async" } else { "form: blocking" });
            self.when(part.x_stride > part.x_row, "x: strided");
            self.when(part.give_up != GiveUp::Never, format!("given up at: {:?}", part.give_up));
        }
    }

    pub(crate) fn refused(&mut self, names: Vec<&'static str>) {
        names.into_iter().for_each(|name| self.is(format!("refused: {name}")));
    }

    fn is(&mut self, kind: impl Into<String>) {
        self.counts.insert(kind.into(), 1);
    }

    fn when(&mut self, condition: bool, kind: impl Into<String>) {
        if condition {
            self.is(kind);
        }
    }

    pub(crate) fn add(&mut self, other: Self) {
        other.counts.into_iter().for_each(|(kind, n)| *self.counts.entry(kind).or_default() += n);
    }

    /// The cases are only useful if all kinds occur.
    pub(crate) fn assert_every_kind(&self) {
        let few: Vec<_> =
            KINDS.iter().filter(|kind| self.counts.get(**kind).is_none_or(|n| *n < 10)).collect();
        assert!(few.is_empty(), "fewer than ten cases of {few:?}");
        let of = |group: &str| self.counts.keys().filter(|kind| kind.starts_with(group)).count();
        assert_eq!(of("given up at"), 5, "places to give up");
        assert_eq!(of("call: "), calls::KINDS.len(), "kinds of calls");
        assert_eq!(of("refused"), REFUSALS, "kinds of refused calls");
    }
}

/// The kinds of invalid calls that `refused.rs` makes, and `flight.rs` in receiving halves.
const REFUSALS: usize = 37;

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.counts.iter().try_for_each(|(kind, n)| writeln!(f, "{n:>6}  {kind}"))
    }
}
