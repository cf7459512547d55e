//! A server of three ranks on this host, which survives the loss of any one of them.
//!
//! `cargo run --release --example serve`, then `echo 7 | nc 127.0.0.1 8080` in another terminal.
//!
//! A request is a line with a number from 0 to 50, which is a token. Its two experts multiply it, on two ranks, and the
//! answer is their sum. Each expert is there twice, so that every answer is complete while one rank is replaced; an answer
//! that cannot be complete says so. `health` is answered with the state of the group. On SIGTERM the server answers all
//! requests that it has received, then ends; a later request gets `ends`, and a later connection is refused.

use std::collections::VecDeque;
use std::error::Error as StdError;
use std::net::{SocketAddr, TcpListener as Probe};
use std::time::Duration;

use clap::Parser;
use epwire::env::Token;
use epwire::group::{GroupOptions, Recovery};
use epwire::launch::{Launch, spawn::Ranks};
use epwire::rendezvous::{BootstrapError::Fenced, Server, ServerOptions};
use epwire::{
    Combine, CombineOutput, Comm, CommConfig, Dispatch, DispatchBuffers, EpBuffer, EpConfig, Error, Group,
    HostBuffer, Layout, Payload, TensorMut, TensorRef,
};
use half::bf16;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

#[path = "common/print.rs"]
mod print;

const RANKS: u32 = 3;
const MAX_TOKENS: usize = 16;
const HIDDEN: usize = 64;
const TOPK: usize = 2;
/// The longest that a request is held up by a rank that stops.
const DEADLINE: Duration = Duration::from_secs(1);
/// How long a step waits for a request; several times in a deadline, so that nobody takes an idle rank for lost.
const PAUSE: Duration = Duration::from_millis(50);
/// From SIGTERM to SIGKILL: longer than the lease of 5 s after which the others leave without a rank that is stopped,
/// and a deadline.
const GRACE: Duration = Duration::from_secs(15);
/// Steps in which a request may miss an expert before it is answered that it does.
const TRIES: u32 = 3;
/// The most bytes of a request, so that no client fills the memory.
const LINE: usize = 64 << 10;

/// An epwire server in one file, as the guide's page `serving` explains it.
#[derive(Parser)]
#[command(name = "serve", version)]
struct Args {
    /// Where rank 0 takes requests; port 0: a free one, which rank 0 prints once it takes them.
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:8080")]
    listen: SocketAddr,
}

fn main() -> Result<(), Box<dyn StdError>> {
    let args = Args::parse();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    match Launch::from_env()? {
        Some(launch) => Ok(runtime.block_on(rank(&launch, args.listen))?),
        None => launch(&runtime, args.listen),
    }
}

// ---- the process that starts the ranks, and those that replace them ----

fn launch(runtime: &tokio::runtime::Runtime, listen: SocketAddr) -> Result<(), Box<dyn StdError>> {
    let listen = Probe::bind(listen).and_then(|probe| probe.local_addr())?; // the same for each rank 0 to come
    let options = ServerOptions::new("serve", RANKS).token(Some(Token::random()?));
    let server = Server::bind_blocking("127.0.0.1:0", options)?;
    let ranks = Ranks::new(RANKS).server(&server).args(["--listen", &listen.to_string()]);
    let ranks = ranks.restarts(10).restarts_within(Duration::from_secs(600)).grace(GRACE);
    let running = ranks.spawn()?;
    let (stopper, mut signals) = (running.stopper(), runtime.block_on(async { Signals::new() })?);
    let ended = std::thread::scope(|scope| {
        let waiting = scope.spawn(|| running.wait(None));
        runtime.block_on(async {
            while !waiting.is_finished() {
                if timeout(PAUSE, signals.received()).await.is_ok() {
                    stopper.stop(); // SIGTERM to every rank, and SIGKILL to those that still run after GRACE
                }
            }
        });
        waiting.join()
    });
    match ended.map_err(|_| "the thread that waits for the ranks has panicked")?? {
        ended if ended.exit_code() == 0 => Ok(()),
        ended => Err(ended.to_string().into()),
    }
}

/// SIGTERM, and Ctrl-C, which a terminal sends to the ranks as well.
struct Signals(Signal, Signal);

impl Signals {
    fn new() -> std::io::Result<Self> {
        Ok(Self(signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?))
    }

    async fn received(&mut self) {
        tokio::select! {
            _ = self.0.recv() => {}
            _ = self.1.recv() => {}
        }
    }
}

// ---- a rank ----

/// What every rank runs, the first ones as well as those that replace them.
async fn rank(launch: &Launch, listen: SocketAddr) -> Result<(), Box<dyn StdError>> {
    let Launch { world, source, .. } = launch;
    if *world != RANKS {
        return Err(format!("serve has {RANKS} ranks, but {source} has started {world}").into());
    }
    let mut signals = Signals::new()?; // from now on a signal ends nobody by itself
    let options = GroupOptions::from_launch(launch).token(Token::from_env()?);
    let group = loop {
        match Group::join(options.clone()).await {
            // The process that this one replaces is still ending.
            Err(Fenced { .. }) if timeout(PAUSE, signals.received()).await.is_ok() => return Ok(()),
            Err(Fenced { .. }) => {}
            joined => break joined?,
        }
    };
    let config = EpConfig::new(MAX_TOKENS as u32, HIDDEN as u32, EXPERTS, TOPK as u32).deadline(DEADLINE);
    let buffer = EpBuffer::create(&group, config).await?;
    let comm = Comm::create(&group, CommConfig::default().deadline(DEADLINE)).await?;
    let received = buffer.dispatch_buffers(Payload::SameAsInput, Layout::ExpertMajor, 0)?;
    let desk = Desk::open(&group, listen, signals).await?;
    let mut rank = Rank { group, buffer, comm, received, desk };
    loop {
        match rank.group.step().await {
            Ok(_) if rank.step().await? => {}
            Ok(_) => return Ok(end(&rank.group).await?),
            Err(error) => {
                if rank.group.recover(error).await? == Recovery::Leave {
                    return Ok(rank.group.leave().await?);
                }
            }
        }
    }
}

/// Waits for the other ranks and leaves: who leaves first would be missing for the others.
async fn end(group: &Group) -> Result<(), Error> {
    while !matches!(timeout(DEADLINE, group.barrier("stop")).await, Ok(Ok(()))) {
        sleep(PAUSE).await; // a rank is lost, or on its way; the next step may continue without it
        if let Err(error) = group.step().await
            && group.recover(error).await? == Recovery::Leave
        {
            break;
        }
    }
    Ok(group.leave().await?)
}

struct Rank {
    group: Group,
    buffer: EpBuffer,
    comm: Comm,
    received: DispatchBuffers,
    desk: Desk,
}

/// What a step is for.
#[derive(Clone, Copy)]
enum Work {
    Idle,
    /// For so many tokens of rank 0.
    Forward(u32),
    Stop,
}

impl Rank {
    /// Returns whether another step follows.
    async fn step(&mut self) -> Result<bool, Error> {
        let own = if self.group.rank() == 0 { self.desk.next().await } else { Work::Idle };
        match self.agree(own).await? {
            Work::Idle => Ok(true),
            Work::Forward(_) => self.forward().await.map(|()| true),
            Work::Stop => Ok(false),
        }
    }

    /// What rank 0 has said that this step is for.
    async fn agree(&mut self, own: Work) -> Result<Work, Error> {
        if !self.group.active().mask.contains(0) {
            return Ok(self.desk.without_rank_0(PAUSE).await);
        }
        let said = match own {
            Work::Idle => [0, 0],
            Work::Forward(tokens) => [1, tokens],
            Work::Stop => [2, 0],
        };
        let (outcome, heard) = self.comm.broadcast(said, 0).await;
        let outcome = outcome?;
        self.revoke(&outcome)?;
        if outcome.missing.contains(0) {
            return Ok(self.desk.without_rank_0(PAUSE / 5).await); // it is given up, and still a member
        }
        Ok(match heard {
            [1, tokens] => Work::Forward(tokens),
            [2, _] => Work::Stop,
            _ => Work::Idle,
        })
    }

    /// A layer. Rank 0 has the tokens; all ranks compute those that came to their experts.
    async fn forward(&mut self) -> Result<(), Error> {
        let reachable = self.buffer.reachable_experts()?;
        let batch = self.desk.batch(&reachable);
        let tokens = batch.len();
        let x: Vec<bf16> =
            batch.iter().flat_map(|(of, _)| [bf16::from_f32(of.value as f32); HIDDEN]).collect();
        let ids: Vec<i32> = batch.iter().flat_map(|(_, ids)| *ids).collect();
        let weights = vec![1.0f32; tokens * TOPK];
        let input = Dispatch::new(TensorRef::new(&x, HIDDEN), TensorRef::new(&ids, TOPK))
            .weights(TensorRef::new(&weights, TOPK));
        let dispatched = self.buffer.dispatch(input, self.received.output()).await?;
        self.revoke(dispatched.outcome())?;

        let mut expert_out = self.received.rows_as::<bf16>().to_vec();
        let locals = self.buffer.plan().local_experts;
        for local in 0..locals {
            let factor = factor(self.group.rank() * locals + local);
            for at in self.received.places(local as usize, HIDDEN) {
                expert_out[at] = bf16::from_f32(expert_out[at].to_f32() * factor);
            }
        }

        let mut out = HostBuffer::<bf16>::zeroed(tokens * HIDDEN);
        let mut contributions = vec![[0; 2]; tokens];
        let output = CombineOutput::new(TensorMut::new(&mut out)).contributions(&mut contributions);
        let outcome = dispatched.combine(Combine::new(TensorRef::new(&expert_out, HIDDEN)), output).await?;
        self.revoke(&outcome)?;
        for (at, (request, _)) in batch.into_iter().enumerate() {
            let [arrived, expected] = contributions[at];
            self.desk.answer(request, (arrived == expected).then(|| out[at * HIDDEN].to_f32()));
        }
        Ok(())
    }

    /// What one call has found out, no other has to wait for.
    fn revoke(&self, outcome: &epwire::Outcome) -> Result<(), Error> {
        if outcome.news.is_empty() {
            return Ok(());
        }
        let line = format!("rank {}: lost {}: {outcome}\n", self.group.rank(), outcome.news);
        eprint!("{line}"); // in one write, since other ranks write to the same stderr
        self.group.revoke(&outcome.suspects)
    }
}

// ---- experts: as many as ranks, each of them on two ranks ----

const EXPERTS: u32 = 2 * RANKS;

/// The places of an expert of the model: the first of its own rank, and the second of the next one.
fn places(expert: u32) -> [u32; 2] {
    [2 * expert, 2 * ((expert + 1) % RANKS) + 1]
}

/// By what the expert at this place multiplies.
fn factor(place: u32) -> f32 {
    let expert = if place.is_multiple_of(2) { place / 2 } else { (place / 2 + RANKS - 1) % RANKS };
    (expert + 1) as f32
}

/// Where a token goes; `None` if one of its experts cannot be reached anywhere.
fn route(value: u32, reachable: &[bool]) -> Option<[i32; TOPK]> {
    let place = |expert: u32| places(expert).into_iter().find(|place| reachable[*place as usize]);
    Some([place(value % RANKS)? as i32, place((value + 1) % RANKS)? as i32])
}

// ---- requests ----

struct Request {
    value: u32,
    tries: u32,
    answer: oneshot::Sender<String>,
}

/// What rank 0 has been asked and not answered; empty on the others.
struct Desk {
    /// Takes connections, on rank 0 until it has been told to end.
    accepting: Option<JoinHandle<()>>,
    requests: mpsc::Receiver<Request>,
    waiting: VecDeque<Request>,
    signals: Signals,
    /// Whether the launcher has told this rank to end, as it tells all.
    ending: bool,
}

impl Desk {
    async fn open(group: &Group, listen: SocketAddr, signals: Signals) -> std::io::Result<Self> {
        let (sender, requests) = mpsc::channel(1024);
        let accepting = if group.rank() == 0 {
            let listener = TcpListener::bind(listen).await?;
            print::print(&format!("serving at {}", listener.local_addr()?))?;
            Some(tokio::spawn(accept(listener, sender, group.clone())))
        } else {
            None
        };
        Ok(Self { accepting, requests, waiting: VecDeque::new(), signals, ending: false })
    }

    /// What the next step is for. Waits a little if there is nothing to do.
    async fn next(&mut self) -> Work {
        let idle = self.waiting.is_empty() && !self.ending;
        tokio::select! {
            biased;
            () = self.signals.received() => self.ending = true,
            Some(request) = self.requests.recv() => self.waiting.push_back(request),
            () = sleep(if idle { PAUSE } else { Duration::ZERO }) => {}
        }
        if self.ending
            && let Some(accepting) = self.accepting.take()
        {
            accepting.abort();
            let _ = accepting.await; // its socket is closed: who comes now is refused
            self.requests.close(); // what has been asked is still received
        }
        while let Ok(request) = self.requests.try_recv() {
            self.waiting.push_back(request);
        }
        match self.waiting.len().min(MAX_TOKENS) {
            0 if self.ending => Work::Stop,
            0 => Work::Idle,
            tokens => Work::Forward(tokens as u32),
        }
    }

    /// What a step is for while rank 0 is away: nothing until it has been replaced, which it is not any more once the
    /// launcher ends all ranks.
    async fn without_rank_0(&mut self, pause: Duration) -> Work {
        self.ending |= timeout(pause, self.signals.received()).await.is_ok();
        if self.ending { Work::Stop } else { Work::Idle }
    }

    /// The requests of this step, and where each goes. Those that cannot go anywhere are answered.
    fn batch(&mut self, reachable: &[bool]) -> Vec<(Request, [i32; TOPK])> {
        let mut batch = Vec::new();
        for request in self.waiting.drain(..self.waiting.len().min(MAX_TOKENS)) {
            match route(request.value, reachable) {
                Some(ids) => batch.push((request, ids)),
                None => drop(request.answer.send("lacks an expert".to_owned())),
            }
        }
        batch
    }

    /// Answers a request, or keeps it for the next step if its sum is not whole.
    fn answer(&mut self, request: Request, sum: Option<f32>) {
        let text = match sum {
            Some(sum) => sum.to_string(),
            None if request.tries < TRIES => {
                return self.waiting.push_front(Request { tries: request.tries + 1, ..request });
            }
            None => "lacks an expert".to_owned(),
        };
        drop(request.answer.send(text)); // nobody waits for it any more if the client has gone
    }
}

async fn accept(listener: TcpListener, requests: mpsc::Sender<Request>, group: Group) {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => drop(tokio::spawn(converse(stream, requests.clone(), group.clone()))),
            Err(error) => {
                print::complain("cannot accept a connection", &error);
                sleep(PAUSE).await;
            }
        }
    }
}

/// Answers the lines of one client, until it or the connection ends, or a line is too long.
async fn converse(
    mut stream: TcpStream,
    requests: mpsc::Sender<Request>,
    group: Group,
) -> std::io::Result<()> {
    let (reader, mut writer) = stream.split();
    let (mut reader, mut line) = (BufReader::new(reader), Vec::new());
    while (&mut reader).take(LINE as u64 + 1).read_until(b'\n', &mut line).await? > 0 {
        if line.len() > LINE {
            return writer.write_all(format!("expected at most {LINE} bytes in a line\n").as_bytes()).await;
        }
        let asked = String::from_utf8_lossy(&line).into_owned();
        line.clear();
        let text = match (asked.trim(), asked.trim().parse()) {
            ("health", _) => group.health().to_string(),
            (_, Ok(value @ 0..=50)) => {
                let (answer, answered) = oneshot::channel();
                let request = Request { value, tries: 0, answer };
                match requests.send(request).await {
                    Ok(()) => answered.await.unwrap_or_else(|_| "ends".to_owned()),
                    Err(_) => "ends".to_owned(),
                }
            }
            _ => "expected a number from 0 to 50, or health".to_owned(),
        };
        writer.write_all(format!("{text}\n").as_bytes()).await?;
    }
    Ok(())
}
