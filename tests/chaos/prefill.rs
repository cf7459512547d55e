//! One step of a worker with a prefill buffer: a dispatch, in one of the layouts, and a combine, whole, counted first or in
//! halves, through rings that hold an operation or only a few of its rows. Every place that may be used is compared with
//! what its source must have sent, and every sum with the answers that it does not lack.

use std::collections::HashMap;

use epwire::prefill::{
    PrefillBuffer, PrefillCombine, PrefillCombineOutput, PrefillConfig, PrefillLayout, PrefillOutput, Routing,
};
use epwire::{CombineMode, Dispatch, HostBuffer, Mask, Outcome, TensorMut, TensorRef};
use half::bf16;

use crate::noise::Begun;
use crate::step::{SIGNAL_WORDS, Stop, Tokens, meet_fate, report};
use crate::traffic::{LOCAL_EXPERTS, SIDEBAND, Sender, TOPK, Traffic, mix, same};
use crate::wire::{Call, Op, Place, Point, Run, Setup, Trap};
use crate::worker::config;

const LOCAL: usize = LOCAL_EXPERTS as usize;
/// What lists hold before a dispatch.
const UNTOUCHED: i32 = 99;

/// A prefill buffer with the memory of its steps.
pub(crate) struct Prefill {
    setup: Setup,
    traffic: Traffic,
    pub(crate) buffer: PrefillBuffer,
    /// The addresses of the peers' windows in this process.
    pub(crate) windows: HashMap<u32, usize>,
    received: Received,
    expert_out: HostBuffer<bf16>,
    combined: HostBuffer<bf16>,
}

/// What a dispatch fills in, with room for all rows in every layout.
struct Received {
    rows: HostBuffer<bf16>,
    sideband: Vec<u8>,
    counts: Vec<u32>,
    offsets: Vec<u32>,
    source_counts: Vec<u32>,
    source_offsets: Vec<u32>,
    row_expert: Vec<i32>,
    row_source: Vec<i32>,
    row_token: Vec<i32>,
    row_position: Vec<i32>,
    row_weight: Vec<f32>,
    row_experts: Vec<i32>,
    row_weights: Vec<f32>,
}

/// The choices of a step. Ranks differ in layouts, not in modes.
#[derive(Debug, Clone, Copy)]
struct Kind {
    layout: PrefillLayout,
    capacity: usize,
    mode: CombineMode,
    counts_first: bool,
}

impl Kind {
    fn is_by_expert(&self) -> bool {
        matches!(self.layout, PrefillLayout::Packed { .. } | PrefillLayout::ExpertMajor)
    }

    /// The number of places.
    fn places(&self) -> usize {
        self.capacity * if self.layout == PrefillLayout::ExpertMajor { LOCAL } else { 1 }
    }
}

pub(crate) fn prefill_config(setup: &Setup) -> PrefillConfig {
    PrefillConfig::new(config(setup)).ring_tokens(setup.ring_tokens)
}

/// Other than that of a buffer beside it.
pub(crate) fn traffic(setup: &Setup) -> Traffic {
    Traffic::new(setup.seed + 1, setup.ranks, setup.max_tokens, setup.hidden)
}

impl Received {
    fn new(places: usize, ranks: usize, hidden: usize) -> Self {
        Self {
            rows: HostBuffer::zeroed(places * hidden),
            sideband: vec![0; places * SIDEBAND],
            counts: vec![0; LOCAL],
            offsets: vec![0; LOCAL],
            source_counts: vec![0; ranks],
            source_offsets: vec![0; ranks],
            row_expert: vec![0; places],
            row_source: vec![0; places],
            row_token: vec![0; places],
            row_position: vec![0; places],
            row_weight: vec![0.0; places],
            row_experts: vec![0; places * TOPK],
            row_weights: vec![0.0; places * TOPK],
        }
    }

    fn output(&mut self, kind: &Kind) -> PrefillOutput<'_> {
        for list in [&mut self.row_expert, &mut self.row_source, &mut self.row_token, &mut self.row_position]
        {
            list.fill(UNTOUCHED);
        }
        self.row_experts.fill(UNTOUCHED);
        self.sideband.fill(0xee);
        let output = PrefillOutput::new(kind.layout, kind.capacity)
            .rows(TensorMut::new(&mut self.rows))
            .sideband(&mut self.sideband)
            .counts(&mut self.counts)
            .source_counts(&mut self.source_counts)
            .row_source(&mut self.row_source)
            .row_token(&mut self.row_token);
        if kind.is_by_expert() {
            output
                .offsets(&mut self.offsets)
                .row_expert(&mut self.row_expert)
                .row_position(&mut self.row_position)
                .row_weight(&mut self.row_weight)
        } else {
            output
                .source_offsets(&mut self.source_offsets)
                .row_experts(&mut self.row_experts)
                .row_weights(&mut self.row_weights)
        }
    }
}

impl Prefill {
    pub(crate) fn new(setup: Setup, buffer: PrefillBuffer) -> Self {
        let (ranks, hidden) = (setup.ranks as usize, setup.hidden as usize);
        // Two experts of a rank for every token, and the padding between them.
        let places = (ranks * setup.max_tokens as usize + 8) * LOCAL;
        let traffic = traffic(&setup);
        Self {
            traffic,
            buffer,
            windows: HashMap::new(),
            received: Received::new(places, ranks, hidden),
            expert_out: HostBuffer::zeroed(places * hidden),
            combined: HostBuffer::zeroed(setup.max_tokens as usize * hidden),
            setup,
        }
    }

    /// Whether the rings hold all messages of an operation: then it can be split into halves.
    fn holds_all(&self) -> bool {
        self.setup.ring_tokens > self.setup.max_tokens
    }

    fn kind(&self, run: &Run, step: u32) -> Kind {
        let of_all = mix(&[self.setup.seed, run.epoch.into(), step.into()]);
        let own = mix(&[of_all, self.setup.rank.into()]);
        let rows = (self.setup.ranks * self.setup.max_tokens) as usize;
        let packed = || PrefillLayout::Packed { alignment: [1, 4, 8][(own >> 8) as usize % 3] };
        // A slot for each of a token's experts on a rank.
        let ordered =
            self.setup.ring_tokens >= LOCAL_EXPERTS && !self.holds_all() && of_all.is_multiple_of(3);
        let layout = match own % if ordered { 3 } else { 6 } {
            0 | 1 => packed(),
            2 => PrefillLayout::ExpertMajor,
            3 | 4 => PrefillLayout::Dense,
            _ => PrefillLayout::RankMajor,
        };
        Kind {
            layout,
            capacity: if matches!(layout, PrefillLayout::Packed { .. }) { (rows + 8) * LOCAL } else { rows },
            mode: if ordered { CombineMode::Ordered } else { CombineMode::RankReduced },
            counts_first: match run.hold {
                Some((of, point)) if of == step => point == Point::Counted,
                _ => (own >> 16).is_multiple_of(3),
            },
        }
    }

    /// Runs step `step`; `at` is called at each point and may wait there. Appends the calls' reports to `ops`.
    pub(crate) fn step(
        &mut self,
        run: &Run,
        step: u32,
        at: &mut dyn FnMut(Point),
        ops: &mut Vec<Op>,
    ) -> Result<(), Stop> {
        let own = Sender { source: self.setup.rank, epoch: run.epoch, step };
        let active = self.buffer.membership()?.active;
        let kind = self.kind(run, step);
        at(Point::BeforeSend);
        self.set_trap(run, own, &[Place::Rows, Place::DispatchWord]);
        let (mut routing, outcome) = self.dispatch(run, own, &kind, at, ops)?;
        let names = |text: String| Stop::Wrong(format!("{own:?}, {kind:?}: {text} ({outcome:?})"));
        if kind.is_by_expert() {
            self.check_by_expert(own, &kind, &active, &outcome).map_err(names)?;
        } else {
            self.check_by_source(own, &kind, &active, &outcome).map_err(names)?;
        }
        at(Point::Dispatched);
        self.set_trap(run, own, &[Place::Answers, Place::CombineWord]);
        self.combine(run, own, &kind, &mut routing, &active, at, ops)
    }

    fn halves(&self, run: &Run, step: u32, point: Point) -> bool {
        self.holds_all() && (run.split || run.hold == Some((step, point)))
    }

    fn dispatch(
        &mut self,
        run: &Run,
        own: Sender,
        kind: &Kind,
        at: &mut dyn FnMut(Point),
        ops: &mut Vec<Op>,
    ) -> Result<(Routing, Outcome), Stop> {
        let tokens = Tokens::of(&self.traffic, own);
        let halves = self.halves(run, own.step, Point::DispatchSent);
        let hidden = self.setup.hidden as usize;
        let input = Dispatch::new(TensorRef::new(&tokens.x, hidden), TensorRef::new(&tokens.ids, TOPK))
            .weights(TensorRef::new(&tokens.weights, TOPK))
            .sideband(&tokens.sideband, SIDEBAND as u32)
            .lane(own.step % self.setup.lanes);
        let output = self.received.output(kind);
        let began = Begun::now();
        let (before, began, (routing, outcome)) = if kind.counts_first {
            let counted = self.buffer.dispatch_count_blocking(input)?;
            let before = began.end();
            at(Point::Counted);
            let began = Begun::now();
            (before, began, counted.receive_blocking(output)?)
        } else if halves {
            let sent = self.buffer.dispatch_send_blocking(input)?;
            let before = began.end();
            at(Point::DispatchSent);
            let began = Begun::now();
            (before, began, sent.receive_blocking(output)?)
        } else {
            (std::time::Duration::ZERO, began, self.buffer.dispatch_blocking(input, output)?)
        };
        ops.push(ended(own.step, Call::Dispatch, before, began, &outcome));
        Ok((routing, outcome))
    }

    #[allow(clippy::too_many_arguments, reason = "all of a step")]
    fn combine(
        &mut self,
        run: &Run,
        own: Sender,
        kind: &Kind,
        routing: &mut Routing,
        active: &Mask,
        at: &mut dyn FnMut(Point),
        ops: &mut Vec<Op>,
    ) -> Result<(), Stop> {
        let tokens = self.traffic.tokens(own) as usize;
        let halves = self.halves(run, own.step, Point::CombineSent);
        let hidden = self.setup.hidden as usize;
        self.combined.fill(bf16::NAN);
        let (mut arrived, mut lacks) = (vec![[u16::MAX; 2]; tokens], vec![u32::MAX; tokens]);
        let input = PrefillCombine::new(TensorRef::new(&self.expert_out, hidden)).mode(kind.mode);
        let output = PrefillCombineOutput::new(TensorMut::new(&mut self.combined))
            .contributions(&mut arrived)
            .lacks(&mut lacks);
        let began = Begun::now();
        let (before, began, outcome) = if halves {
            let sent = self.buffer.combine_send_blocking(routing, input)?;
            let before = began.end();
            at(Point::CombineSent);
            let began = Begun::now();
            (before, began, sent.receive_blocking(output)?)
        } else {
            (std::time::Duration::ZERO, began, self.buffer.combine_blocking(routing, input, output)?)
        };
        ops.push(ended(own.step, Call::Combine, before, began, &outcome));
        self.check_sums(own, kind, active, &outcome, &arrived, &lacks).map_err(Stop::Wrong)
    }

    /// The entries of rows by expert: for each local expert, the rows of each source one after the other. Rows of a lost
    /// source have places if it was counted before, which nobody has.
    fn check_by_expert(
        &mut self,
        own: Sender,
        kind: &Kind,
        active: &Mask,
        outcome: &Outcome,
    ) -> Result<(), String> {
        let (mut next, mut found) = (0, 0);
        for local in 0..LOCAL {
            let expert = (own.source as usize * LOCAL + local) as i32;
            let first = match kind.layout {
                PrefillLayout::Packed { alignment } => usize::next_multiple_of(next, alignment as usize),
                _ => local * kind.capacity,
            };
            let (offset, count) = (self.received.offsets[local], self.received.counts[local] as usize);
            wrong_if(offset as usize != first, || {
                format!("expert {expert} begins at {offset}, not {first}")
            })?;
            next = first;
            let mut lost = Lost::default();
            for of in self.sources(own) {
                let here: Vec<(u32, usize)> = self.routed_to(of, expert).collect();
                if !came(of.source, active, outcome) {
                    lost.add(here.len(), active.contains(of.source));
                    continue;
                }
                if !here.is_empty() {
                    next = lost.pass(&self.received.row_source, next, first + count)?;
                }
                for (token, position) in here {
                    self.check_row(next, of, token)?;
                    let (_, weight) = self.traffic.routing(of, token)[position];
                    let r = &self.received;
                    let says = (r.row_expert[next], r.row_position[next], r.row_weight[next]);
                    wrong_if(says != (local as i32, position as i32, weight), || {
                        format!("place {next}, of token {token} of {of:?}, says {says:?}")
                    })?;
                    self.answer(next, of, token, Traffic::gain(expert));
                    next += 1;
                    found += 1;
                }
            }
            next = lost.pass(&self.received.row_source, next, first + count)?;
            wrong_if(next != first + count, || format!("expert {expert} has {count} places"))?;
        }
        self.check_source_counts(own, active, outcome)?;
        self.check_free_places(kind, found)
    }

    /// The rows of each source one after the other; one for each token.
    fn check_by_source(
        &mut self,
        own: Sender,
        kind: &Kind,
        active: &Mask,
        outcome: &Outcome,
    ) -> Result<(), String> {
        let (mut next, mut found) = (0, 0);
        let mut lost = Lost::default();
        for of in self.sources(own) {
            let here: Vec<u32> = self.traffic.sent_to(of, own.source).collect();
            if !came(of.source, active, outcome) {
                lost.add(here.len(), active.contains(of.source));
                continue;
            }
            let offset = self.received.source_offsets[of.source as usize] as usize;
            if kind.layout == PrefillLayout::RankMajor {
                next = of.source as usize * self.setup.max_tokens as usize;
            } else {
                next = lost.pass(&self.received.row_source, next, offset)?;
            }
            wrong_if(offset != next, || format!("the rows of {of:?} begin at {offset}, not {next}"))?;
            for token in here {
                self.check_row(next, of, token)?;
                for (j, (expert, weight)) in self.traffic.routing(of, token).into_iter().enumerate() {
                    let is_here = expert >= 0 && Traffic::owner(expert) == own.source;
                    let wanted = if is_here { (expert % LOCAL as i32, weight) } else { (-1, 0.0) };
                    let at = next * TOPK + j;
                    let says = (self.received.row_experts[at], self.received.row_weights[at]);
                    wrong_if(says != wanted, || {
                        format!("token {token} of {of:?} lists {says:?} as its expert {j}, not {wanted:?}")
                    })?;
                }
                let (factor, _) = self.traffic.factor(of, token, |rank| rank == own.source);
                self.answer(next, of, token, factor);
                next += 1;
                found += 1;
            }
        }
        self.check_source_counts(own, active, outcome)?;
        self.check_free_places(kind, found)
    }

    fn sources(&self, own: Sender) -> impl Iterator<Item = Sender> + use<> {
        (0..self.setup.ranks).map(move |source| Sender { source, ..own })
    }

    /// The tokens of an operation that go to this expert, and which of their experts it is.
    fn routed_to(&self, of: Sender, expert: i32) -> impl Iterator<Item = (u32, usize)> + '_ {
        let position =
            move |token: u32| self.traffic.routing(of, token).iter().position(|(e, _)| *e == expert);
        (0..self.traffic.tokens(of)).filter_map(move |token| Some((token, position(token)?)))
    }

    /// Whether the place has this token of this operation.
    fn check_row(&self, place: usize, of: Sender, token: u32) -> Result<(), String> {
        let (r, hidden) = (&self.received, self.setup.hidden as usize);
        let says = (r.row_source[place], r.row_token[place]);
        wrong_if(says != (of.source as i32, token as i32), || {
            format!("place {place} has token {says:?} (source, token), not {token} of {of:?}")
        })?;
        let named = r.sideband[place * SIDEBAND..][..SIDEBAND] == Traffic::sideband(of, token);
        let is_its = named && same(&r.rows[place * hidden..][..hidden], self.traffic.row(of, token));
        wrong_if(!is_its, || format!("the content of token {token} of {of:?}, at place {place}, is wrong"))
    }

    /// What the experts make of it.
    fn answer(&mut self, place: usize, of: Sender, token: u32, factor: f32) {
        let hidden = self.setup.hidden as usize;
        self.expert_out[place * hidden..][..hidden].copy_from_slice(self.traffic.scaled(of, token, factor));
    }

    fn check_source_counts(&self, own: Sender, active: &Mask, outcome: &Outcome) -> Result<(), String> {
        for of in self.sources(own) {
            let sent = self.traffic.sent_to(of, own.source).count();
            let wanted = if came(of.source, active, outcome) { sent } else { 0 };
            let count = self.received.source_counts[of.source as usize] as usize;
            wrong_if(count != wanted, || format!("{count} rows of {of:?}, not {wanted}"))?;
        }
        Ok(())
    }

    /// All places but these `found` are nobody's, those of lost sources too.
    fn check_free_places(&self, kind: &Kind, found: usize) -> Result<(), String> {
        let (r, by_expert) = (&self.received, kind.is_by_expert());
        let free = |place: &usize| {
            let says = [r.row_source[*place], r.row_token[*place]];
            let experts = if by_expert {
                &r.row_expert[*place..][..1]
            } else {
                &r.row_experts[*place * TOPK..][..TOPK]
            };
            says.iter().chain(experts).all(|index| *index == -1)
        };
        let all = kind.places();
        let count = (0..all).filter(free).count();
        wrong_if(count != all - found, || format!("{count} of {all} places are free, beside {found} rows"))
    }

    /// Checks that each token is exactly the sum of the answers that it does not lack, and lacks none but those of lost ranks.
    fn check_sums(
        &self,
        own: Sender,
        kind: &Kind,
        active: &Mask,
        outcome: &Outcome,
        arrived: &[[u16; 2]],
        lacks: &[u32],
    ) -> Result<(), String> {
        let hidden = self.setup.hidden as usize;
        for (token, (counts, lacks)) in (0..).zip(arrived.iter().zip(lacks)) {
            let uses = |rank: u32| self.traffic.factor(own, token, |r| r == rank).1 > 0;
            let has = |rank: u32| lacks >> rank & 1 == 0;
            let wrong = (0..self.setup.ranks).find(|rank| {
                let (may_lack, must_lack) =
                    (!came(*rank, active, outcome) && uses(*rank), !active.contains(*rank) && uses(*rank));
                (!has(*rank) && !may_lack) || (has(*rank) && must_lack)
            });
            let (factor, came) = self.traffic.factor(own, token, has);
            let (_, expected) = self.traffic.factor(own, token, |_| true);
            let sum = &self.combined[token as usize * hidden..][..hidden];
            let is = |factor: f32, came: u16| {
                *counts == [came, expected] && same(sum, self.traffic.scaled(own, token, factor))
            };
            // In order, each expert has an answer of its own: of a rank that the sum lacks, some may have come.
            let lacking: Vec<f32> = self
                .traffic
                .routing(own, token)
                .iter()
                .filter(|(e, _)| *e >= 0 && !has(Traffic::owner(*e)))
                .map(|(expert, weight)| weight * Traffic::gain(*expert))
                .collect();
            let some = if kind.mode == CombineMode::Ordered { 1 << lacking.len() } else { 1u32 };
            let exact = (0..some).any(|some| {
                let these =
                    lacking.iter().enumerate().filter(|(i, _)| some >> i & 1 == 1).map(|(_, factor)| factor);
                is(factor + these.sum::<f32>(), came + some.count_ones() as u16)
            });
            wrong_if(wrong.is_some() || !exact, || {
                format!(
                    "{own:?}, {kind:?}: token {token} lacks {lacks:#b}, of which rank {wrong:?} is wrong, counts {counts:?}, \
                     not {:?}, or is not {factor} times its input ({outcome:?})",
                    [came, expected]
                )
            })?;
        }
        Ok(())
    }

    /// Sets the trap of this step if it is in one of these places. See c/prefill/layout.h for the areas of a window.
    fn set_trap(&self, run: &Run, own: Sender, places: &[Place]) {
        let due = |trap: &&Trap| trap.step == own.step && places.contains(&trap.place);
        let Some(trap) = run.trap.as_ref().filter(due) else { return };
        let (setup, plan) = (&self.setup, self.buffer.plan());
        // From the first step of an epoch, steps alternate between lanes.
        let ring =
            u64::from((own.step - 1) % setup.lanes * setup.ranks + setup.rank) * u64::from(plan.ring_tokens);
        // Its first slot, in which a message soon comes, if the ring is short.
        let offset = match trap.place {
            Place::Rows => plan.control_bytes + ring * plan.slot_bytes + plan.slot_bytes / 2,
            Place::Answers => {
                plan.control_bytes + plan.dispatch_bytes + ring * plan.answer_bytes + plan.answer_bytes / 2
            }
            _ => SIGNAL_WORDS,
        };
        meet_fate(&self.windows, trap, offset);
    }
}

/// Sources one after the other that were lost, each with the places that it has if it was counted.
#[derive(Default)]
struct Lost(Vec<usize>);

impl Lost {
    fn add(&mut self, places: usize, member: bool) {
        if member {
            self.0.push(places);
        }
    }

    /// Passes the places of these sources, which are nobody's and end before `end`. Returns the place behind them.
    fn pass(&mut self, row_source: &[i32], from: usize, end: usize) -> Result<usize, String> {
        let nobodys = row_source[from..end.max(from)].iter().take_while(|source| **source == -1).count();
        let mut sums = vec![0];
        for places in self.0.drain(..) {
            sums.extend(sums.clone().into_iter().map(|sum| sum + places));
        }
        wrong_if(!sums.contains(&nobodys), || {
            format!("{nobodys} places from {from} on are nobody's, of lost sources would be one of {sums:?}")
        })?;
        Ok(from + nobodys)
    }
}

fn came(source: u32, active: &Mask, outcome: &Outcome) -> bool {
    active.contains(source) && !outcome.missing.contains(source)
}

fn wrong_if(wrong: bool, text: impl FnOnce() -> String) -> Result<(), String> {
    if wrong { Err(text()) } else { Ok(()) }
}

/// Of an operation in one call, or of two of which the first took `before`. Nobody waits longer than two deadlines: for the
/// lost rank, and for others that wait for it.
fn ended(step: u32, call: Call, before: std::time::Duration, began: Begun, outcome: &Outcome) -> Op {
    let mut op = report(step, call, began, outcome, &[]);
    op.elapsed_us += before.as_micros() as u64;
    op.last_arrival_us = op.elapsed_us;
    op
}
