//! One step of a worker, dispatch and combine, with every received row and every sum compared with what its source must
//! have sent.

use std::collections::HashMap;
use std::pin::pin;
use std::task::{Context, Waker};

use epwire::{
    Combine, CombineOutput, Dispatch, DispatchBuffers, Dispatched, EpBuffer, HostBuffer, Layout, Outcome,
    Payload, TensorMut, TensorRef,
};
use half::bf16;

use crate::noise::Begun;
use crate::traffic::{LOCAL_EXPERTS, SIDEBAND, Sender, TOPK, Traffic, bytes, same};
use crate::trap;
use crate::wire::{Call, Op, Place, Point, Record, Run, Setup, Trap};

/// A buffer with the memory of its steps.
pub(crate) struct Bench {
    setup: Setup,
    traffic: Traffic,
    pub(crate) buffer: EpBuffer,
    /// The addresses of the peers' windows in this process.
    pub(crate) windows: HashMap<u32, usize>,
    received: DispatchBuffers,
    expert_out: HostBuffer<bf16>,
    combined: HostBuffer<bf16>,
}

/// Why a step did not end.
#[derive(Debug)]
pub(crate) enum Stop {
    Error(epwire::Error),
    Wrong(String),
}

/// The offset of the signal words in a window.
pub(crate) const SIGNAL_WORDS: u64 = 4096;

impl From<epwire::Error> for Stop {
    fn from(error: epwire::Error) -> Self {
        Self::Error(error)
    }
}

impl<H> From<Box<epwire::Refused<H>>> for Stop {
    fn from(refused: Box<epwire::Refused<H>>) -> Self {
        Self::Error(refused.error)
    }
}

/// Tokens in the form that dispatch takes.
pub(crate) struct Tokens {
    pub(crate) x: Vec<bf16>,
    pub(crate) ids: Vec<i32>,
    pub(crate) weights: Vec<f32>,
    pub(crate) sideband: Vec<u8>,
}

impl Tokens {
    pub(crate) fn of(traffic: &Traffic, of: Sender) -> Self {
        let mut tokens = Self { x: Vec::new(), ids: Vec::new(), weights: Vec::new(), sideband: Vec::new() };
        for token in 0..traffic.tokens(of) {
            tokens.x.extend_from_slice(traffic.row(of, token));
            for (expert, weight) in traffic.routing(of, token) {
                tokens.ids.push(expert);
                tokens.weights.push(weight);
            }
            tokens.sideband.extend_from_slice(&Traffic::sideband(of, token));
        }
        tokens
    }
}

impl Bench {
    pub(crate) fn new(setup: Setup, buffer: EpBuffer) -> Result<Self, epwire::Error> {
        let layout = if setup.rank_major { Layout::RankMajor } else { Layout::ExpertMajor };
        let received = buffer.dispatch_buffers(Payload::SameAsInput, layout, SIDEBAND as u32)?;
        let lists = if setup.rank_major { 1 } else { LOCAL_EXPERTS as usize };
        let hidden = setup.hidden as usize;
        let expert_out = HostBuffer::zeroed(lists * buffer.plan().rows * hidden);
        let combined = HostBuffer::zeroed(setup.max_tokens as usize * hidden);
        let traffic = Traffic::new(setup.seed, setup.ranks, setup.max_tokens, setup.hidden);
        Ok(Self { setup, traffic, buffer, windows: HashMap::new(), received, expert_out, combined })
    }

    fn own(&self, run: &Run, step: u32) -> Sender {
        Sender { source: self.setup.rank, epoch: run.epoch, step }
    }

    /// Runs step `step`; `at` is called at each point and may wait there. Appends the calls' reports to `ops`.
    pub(crate) fn step(
        &mut self,
        run: &Run,
        step: u32,
        at: &mut dyn FnMut(Point),
        ops: &mut Vec<Op>,
    ) -> Result<(), Stop> {
        let own = self.own(run, step);
        let tokens = Tokens::of(&self.traffic, own);
        let hidden = self.setup.hidden as usize;
        let halves = run.split || [run.hold, run.release].iter().flatten().any(|(s, _)| *s == step);
        let gives_up = |point| run.release == Some((step, point));
        let mut waited = vec![0u64; self.setup.ranks as usize];

        at(Point::BeforeSend);
        self.set_trap(run, own, &[Place::Rows, Place::DispatchWord]);
        let input = Dispatch::new(TensorRef::new(&tokens.x, hidden), TensorRef::new(&tokens.ids, TOPK))
            .weights(TensorRef::new(&tokens.weights, TOPK))
            .sideband(&tokens.sideband, SIDEBAND as u32)
            .layout(if self.setup.rank_major { Layout::RankMajor } else { Layout::ExpertMajor });
        let mut output = self.received.output();
        output.wait_ns = Some(&mut waited);
        let began = Begun::now();
        let dispatched = if halves {
            let sent = self.buffer.dispatch_send_blocking(input)?;
            at(Point::DispatchSent);
            if gives_up(Point::DispatchSent) {
                if run.drops {
                    poll_and_drop(sent.receive(output));
                }
                return Ok(());
            }
            let began = Begun::now();
            let dispatched = sent.receive_blocking(output)?;
            ops.push(report(step, Call::Dispatch, began, dispatched.outcome(), &waited));
            dispatched
        } else {
            let dispatched = self.buffer.dispatch_blocking(input, output)?;
            ops.push(report(step, Call::Dispatch, began, dispatched.outcome(), &waited));
            dispatched
        };
        self.check_and_compute(&dispatched, own).map_err(Stop::Wrong)?;

        at(Point::Dispatched);
        self.set_trap(run, own, &[Place::Answers, Place::CombineWord]);
        if gives_up(Point::Dispatched) {
            return Ok(());
        }
        self.combined.fill(bf16::NAN);
        waited.fill(0);
        let mut arrived = vec![[u16::MAX; 2]; self.traffic.tokens(own) as usize];
        let output = CombineOutput::new(TensorMut::new(&mut self.combined))
            .contributions(&mut arrived)
            .wait_ns(&mut waited);
        let input = Combine::new(TensorRef::new(&self.expert_out, hidden));
        let began = Begun::now();
        let outcome = if halves {
            let sent = dispatched.combine_send(input)?;
            at(Point::CombineSent);
            if gives_up(Point::CombineSent) {
                if run.drops {
                    poll_and_drop(sent.receive(output));
                }
                return Ok(());
            }
            let began = Begun::now();
            let outcome = sent.receive_blocking(output)?;
            ops.push(report(step, Call::Combine, began, &outcome, &waited));
            outcome
        } else {
            let outcome = dispatched.combine_blocking(input, output)?;
            ops.push(report(step, Call::Combine, began, &outcome, &waited));
            outcome
        };
        self.check_sums(own, &outcome, &arrived).map_err(Stop::Wrong)
    }

    /// Sets the trap of this step if it is in one of these places.
    fn set_trap(&self, run: &Run, own: Sender, places: &[Place]) {
        let due = |trap: &&Trap| trap.step == own.step && places.contains(&trap.place);
        let Some(trap) = run.trap.as_ref().filter(due) else { return };
        let (setup, plan) = (&self.setup, self.buffer.plan());
        // From the first step of an epoch, steps alternate between lanes. See c/ep/layout.h for the areas of a window.
        let lane = u64::from((own.step - 1) % setup.lanes);
        let slot = |rows: usize| u64::from(setup.rank * setup.max_tokens) + rows as u64 / 2;
        let dispatch = plan.control_bytes + lane * plan.dispatch_bytes / u64::from(setup.lanes);
        let combine =
            plan.control_bytes + plan.dispatch_bytes + lane * plan.combine_bytes / u64::from(setup.lanes);
        let sent = self.traffic.sent_to(own, trap.peer).count();
        let answered = self.traffic.sent_to(Sender { source: trap.peer, ..own }, own.source).count();
        let offset = match trap.place {
            Place::Rows if sent > 0 => dispatch + slot(sent) * plan.slot_bytes + plan.slot_bytes / 2,
            Place::Answers if answered > 0 => {
                let row = u64::from(setup.hidden) * 2;
                combine + slot(answered) * row + row / 2
            }
            _ => SIGNAL_WORDS,
        };
        meet_fate(&self.windows, trap, offset);
    }

    /// Checks that exactly the rows of the sources that are not missing have arrived, and runs the experts on them.
    fn check_and_compute(&mut self, dispatched: &Dispatched, own: Sender) -> Result<(), String> {
        let missing = dispatched.outcome().missing;
        let active = self.buffer.membership().map_err(|error| error.to_string())?.active;
        for source in 0..self.setup.ranks {
            let counts = active.contains(source) && !missing.contains(source);
            let of = Sender { source, ..own };
            let rows: Vec<u32> =
                if counts { self.traffic.sent_to(of, own.source).collect() } else { Vec::new() };
            let came = self.received.source_counts[source as usize] as usize;
            if came != rows.len() {
                return Err(format!("{own:?}: {came} rows of rank {source}, which sent {}", rows.len()));
            }
            if self.setup.rank_major {
                self.check_rank_major(dispatched, of, own, &rows)?;
            } else {
                self.check_expert_major(of, own, &rows)?;
            }
        }
        Ok(())
    }

    fn check_rank_major(
        &mut self,
        dispatched: &Dispatched,
        of: Sender,
        own: Sender,
        rows: &[u32],
    ) -> Result<(), String> {
        let view = dispatched.rows().map_err(|error| error.to_string())?;
        let hidden = self.setup.hidden as usize;
        for (i, &token) in rows.iter().enumerate() {
            let row = of.source as usize * self.setup.max_tokens as usize + i;
            self.check_name(row, of, token)?;
            if !view.row(of.source, i).is_some_and(|row| same(row, self.traffic.row(of, token))) {
                return Err(format!("{own:?}: the content of token {token} of {of:?} is wrong"));
            }
            let (factor, experts) = self.traffic.factor(of, token, |rank| rank == own.source);
            let listed = self.received.row_experts[row * TOPK..][..TOPK].iter().filter(|e| **e >= 0).count();
            if listed != usize::from(experts) {
                return Err(format!(
                    "{own:?}: token {token} of {of:?} lists {listed} experts, not {experts}"
                ));
            }
            let out = &mut self.expert_out[row * hidden..][..hidden];
            out.copy_from_slice(self.traffic.scaled(of, token, factor));
        }
        Ok(())
    }

    fn check_expert_major(&mut self, of: Sender, own: Sender, rows: &[u32]) -> Result<(), String> {
        let hidden = self.setup.hidden as usize;
        for local in 0..LOCAL_EXPERTS {
            let expert = (own.source * LOCAL_EXPERTS + local) as i32;
            let routed = |token: &&u32| self.traffic.routing(of, **token).iter().any(|(e, _)| *e == expert);
            let here: Vec<u32> = rows.iter().filter(routed).copied().collect();
            let [first, count] = self.received.ranges[(local * self.setup.ranks + of.source) as usize];
            if count as usize != here.len() {
                return Err(format!(
                    "{own:?}: {count} rows of {of:?} for expert {expert}, not {}",
                    here.len()
                ));
            }
            for (i, &token) in here.iter().enumerate() {
                let row = local as usize * self.buffer.plan().rows + first as usize + i;
                self.check_name(row, of, token)?;
                if self.received.rows[row * 2 * hidden..][..2 * hidden] != *bytes(self.traffic.row(of, token))
                {
                    return Err(format!("{own:?}: the content of token {token} of {of:?} is wrong"));
                }
                let out = &mut self.expert_out[row * hidden..][..hidden];
                out.copy_from_slice(self.traffic.scaled(of, token, Traffic::gain(expert)));
            }
        }
        Ok(())
    }

    /// Whether the row is the one of this token of this operation.
    fn check_name(&self, row: usize, of: Sender, token: u32) -> Result<(), String> {
        let found = &self.received.sideband[row * SIDEBAND..][..SIDEBAND];
        if found == Traffic::sideband(of, token) && self.received.source_token[row] == token {
            return Ok(());
        }
        let words: Vec<u32> =
            found.chunks_exact(4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect();
        Err(format!("a row for token {token} of {of:?} says [source, epoch, step, token] = {words:?}"))
    }

    /// Checks that each token is exactly the sum of the contributions of the ranks that took part.
    fn check_sums(&self, own: Sender, outcome: &Outcome, arrived: &[[u16; 2]]) -> Result<(), String> {
        let active = self.buffer.membership().map_err(|error| error.to_string())?.active;
        let hidden = self.setup.hidden as usize;
        let took_part = |rank| active.contains(rank) && !outcome.missing.contains(rank);
        for (token, counts) in (0..).zip(arrived) {
            let (factor, came) = self.traffic.factor(own, token, took_part);
            let (_, expected) = self.traffic.factor(own, token, |_| true);
            if *counts != [came, expected] {
                return Err(format!("{own:?}: token {token} counts {counts:?}, not {:?}", [came, expected]));
            }
            let sum = &self.combined[token as usize * hidden..][..hidden];
            if !same(sum, self.traffic.scaled(own, token, factor)) {
                return Err(format!("{own:?}: token {token} is not {factor} times its input ({outcome:?})"));
            }
        }
        Ok(())
    }
}

/// Makes this process die or stop at the first write to the page at this offset of the peer's window.
pub(crate) fn meet_fate(windows: &HashMap<u32, usize>, trap: &Trap, offset: u64) {
    let signal = if trap.stop { libc::SIGSTOP } else { libc::SIGKILL };
    match windows.get(&trap.peer) {
        Some(window) => trap::set(window + offset as usize, signal),
        // Over queues nothing is mapped: it dies or stops before it writes anything. SAFETY: a plain system call.
        None => drop(unsafe { libc::raise(signal) }),
    }
}

fn poll_and_drop(future: impl Future) {
    let _ = pin!(future).poll(&mut Context::from_waker(Waker::noop()));
}

pub(crate) fn report(step: u32, call: Call, began: Begun, outcome: &Outcome, waited: &[u64]) -> Op {
    let elapsed_us = began.end().as_micros() as u64;
    let arrivals = (0..).zip(waited).filter(|(rank, _)| !outcome.missing.contains(*rank));
    Op {
        step,
        call,
        elapsed_us,
        missing: outcome.missing.iter().collect(),
        record: outcome.record.as_ref().map(|record| Record {
            peer: record.peer,
            cause: format!("{:?}", record.cause),
            epoch: record.epoch,
            elapsed_us: record.elapsed.as_micros() as u64,
        }),
        last_arrival_us: arrivals.map(|(_, ns)| ns / 1000).max().unwrap_or(0),
    }
}
