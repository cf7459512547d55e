//! A rank: serves steps of an MoE layer until its standard input ends, and says on its standard output what changes.

use std::{
    io::{Read, Write},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use epwire::{
    Combine, CombineOutput, Dispatch, DispatchBuffers, EpBuffer, EpConfig, Error, Group, HostBuffer, Layout,
    Mask, Payload, TensorMut, TensorRef,
    env::Token,
    group::{GroupOptions, Step},
    launch::Launch,
    rendezvous::BootstrapError,
    rendezvous::driver::Heartbeat,
};
use half::bf16;

use crate::{Result, news::News};

const TOKENS: usize = 8;
const HIDDEN: usize = 1024;

/// Signs of life and leases short enough to watch.
pub fn heartbeat() -> Heartbeat {
    let interval = Duration::from_millis(100);
    Heartbeat { interval, lease: Duration::from_secs(1), handshake: Duration::from_secs(5) }
}

/// The whole life of a rank: the same for those of the beginning and for those that come later.
pub fn run(launch: &Launch) -> Result<()> {
    let config = EpConfig {
        deadline: Duration::from_millis(200),
        threads: 1,
        ..EpConfig::new(TOKENS as u32, HIDDEN as u32, launch.world, launch.world)
    };
    let options = GroupOptions::from_launch(launch).token(Token::from_env()?).heartbeat(heartbeat());
    let group = Group::join_blocking(options)?;
    let buffer = EpBuffer::create_blocking(&group, config)?;
    say(&News::Ready)?;
    let mut layer = MoeLayer::new(&buffer)?;
    let (ends, mut said) = (input_ends(), None);
    while !ends.load(Ordering::Relaxed) {
        let step = match group.step_blocking() {
            Ok(step) => step,
            Err(Error::Bootstrap(error)) if matches!(*error, BootstrapError::Evicted { .. }) => {
                say(&News::Evicted)?;
                group.rejoin_blocking()?;
                continue;
            }
            Err(error) => return Err(error.into()),
        };
        let missing = layer.run(&buffer, &step)?;
        let membership = buffer.membership()?;
        let (epoch, members) = (membership.epoch, membership.active.iter().collect());
        let news = News::Served { epoch, members, missing: missing.iter().collect() };
        if said.as_ref() != Some(&news) {
            say(&news)?;
            said = Some(news);
        }
    }
    Ok(group.leave_blocking()?)
}

fn say(news: &News) -> Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{}", serde_json::to_string(news)?)?;
    Ok(out.flush()?)
}

/// Becomes true when the parent closes this rank's input, or has died.
fn input_ends() -> Arc<AtomicBool> {
    let ends = Arc::new(AtomicBool::new(false));
    let set = Arc::clone(&ends);
    std::thread::spawn(move || {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        set.store(true, Ordering::Relaxed);
    });
    ends
}

/// Every rank has one expert, and every token goes to all of them. Experts give back what they get, so that a token's sum
/// tells how many of them it has seen.
struct MoeLayer {
    ids: Vec<i32>,
    weights: Vec<f32>,
    received: DispatchBuffers,
    out: HostBuffer<bf16>,
    contributions: Vec<[u16; 2]>,
}

impl MoeLayer {
    fn new(buffer: &EpBuffer) -> Result<Self> {
        let ranks = buffer.ranks();
        Ok(Self {
            ids: (0..TOKENS).flat_map(|_| 0..ranks as i32).collect(),
            weights: vec![1.0; TOKENS * ranks as usize],
            received: buffer.dispatch_buffers(Payload::SameAsInput, Layout::RankMajor, 0)?,
            out: HostBuffer::zeroed(TOKENS * HIDDEN),
            contributions: vec![[0; 2]; TOKENS],
        })
    }

    /// The members whose part is missing. Whatever has come must be right.
    fn run(&mut self, buffer: &EpBuffer, step: &Step) -> Result<Mask> {
        // Every sum of at most 64 of them is a bf16.
        let (ranks, value) = (buffer.ranks() as usize, (1 + step.number % 4) as f32);
        let x = vec![bf16::from_f32(value); TOKENS * HIDDEN];
        let input = Dispatch::new(TensorRef::new(&x, HIDDEN), TensorRef::new(&self.ids, ranks))
            .weights(TensorRef::new(&self.weights, ranks))
            .layout(Layout::RankMajor);
        let dispatched = buffer.dispatch_blocking(input, self.received.output())?;
        let output = CombineOutput {
            contributions: Some(&mut self.contributions),
            ..CombineOutput::new(TensorMut::new(&mut self.out))
        };
        let outcome = dispatched.combine_blocking(Combine::in_place(), output)?;
        for (token, [arrived, _]) in self.out.chunks(HIDDEN).zip(&self.contributions) {
            let expected = value * f32::from(*arrived);
            if let Some(wrong) = token.iter().find(|sum| sum.to_f32() != expected) {
                return Err(format!("step {}: a sum is {wrong}, must be {expected}", step.number).into());
            }
        }
        Ok(outcome.missing)
    }
}
