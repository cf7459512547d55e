//! One MoE step on GPUs with cudarc's buffers, one rank to a GPU: `--ranks N` starts N of them, or a launcher does.
//! cargo run --release --features cuda,cudarc --example cuda_quickstart -- --ranks 2

use std::{error::Error, process::exit, time::Duration};

use epwire::cuda::{CombineOutput, DispatchOutput, TensorMut, TensorRef};
use epwire::cudarc::driver::CudaContext;
use epwire::doctor::gpus;
use epwire::launch::{Launch, spawn::Ended, spawn::Ranks};
use epwire::rendezvous::driver::{Server, ServerOptions};
use epwire::{Combine, Device, Dispatch, EpBuffer, EpConfig, Group, env::Token, group::GroupOptions};
use half::bf16;

#[path = "common/asked.rs"]
mod asked;
#[path = "common/print.rs"]
mod print;

const TOKENS: usize = 128; // per rank
const HIDDEN: usize = 1024;
const LOCAL_EXPERTS: usize = 4;
const TOPK: usize = 2;

fn main() {
    if let Err(error) = start() {
        print::complain("cuda_quickstart", &error);
        exit(1);
    }
}

fn start() -> Result<(), Box<dyn Error>> {
    let ranks: Option<u32> = match &std::env::args().skip(1).collect::<Vec<_>>()[..] {
        [] => None,
        [flag, ranks] if flag == "--ranks" => Some(ranks.parse()?),
        _ => return Err("usage: cuda_quickstart [--ranks N]".into()),
    };
    if let Some(launch) = Launch::from_env()? {
        asked::check(&launch, ranks)?;
        let group = Group::join_blocking(GroupOptions::from_launch(&launch).token(Token::from_env()?))?;
        let gpu = launch.local_rank % gpus()?; // of those that this process sees
        return step(&group, gpu).and_then(|()| Ok(group.leave_blocking()?));
    }
    ranks.map_or_else(|| step(&Group::threads(1)?[0], 0), spawn)
}

fn spawn(ranks: u32) -> Result<(), Box<dyn Error>> {
    let options = ServerOptions::new("quickstart", ranks).token(Some(Token::random()?));
    let server = Server::bind_blocking("127.0.0.1:0", options)?; // the ranks meet there
    match Ranks::new(ranks).server(&server).spawn()?.wait(None)? {
        Ended::Success => Ok(()),
        failed => Err(failed.to_string().into()),
    }
}

fn step(group: &Group, gpu: u32) -> Result<(), Box<dyn Error>> {
    let experts = LOCAL_EXPERTS * group.world() as usize;
    let mut config = EpConfig::new(TOKENS as u32, HIDDEN as u32, experts as u32, TOPK as u32);
    config.device = Device::Cuda(gpu);
    let buffer = EpBuffer::create_blocking(group, config)?; // says so if there is no driver
    let stream = CudaContext::new(gpu as usize)?.new_stream()?;

    let x: Vec<_> = (0..TOKENS * HIDDEN).map(|i| bf16::from_f32((i % 251) as f32)).collect();
    let ids: Vec<_> = (0..TOKENS * TOPK).map(|i| (i * 3 % experts) as i32).collect();
    let x_gpu = stream.clone_htod(&x)?;
    let (ids, weights) = (stream.clone_htod(&ids)?, stream.clone_htod(&[0.5f32; TOKENS * TOPK])?);
    let mut rows = stream.alloc_zeros::<bf16>(LOCAL_EXPERTS * buffer.plan().rows * HIDDEN)?;
    let mut counts = stream.alloc_zeros::<u32>(LOCAL_EXPERTS)?;
    let mut out = stream.alloc_zeros::<bf16>(TOKENS * HIDDEN)?;
    let x_view = TensorRef::from_slice(&x_gpu, HIDDEN, &stream);
    let input = Dispatch::new(x_view, TensorRef::from_slice(&ids, TOPK, &stream))
        .weights(TensorRef::from_slice(&weights, TOPK, &stream));
    let rows_view = TensorMut::from_slice(&mut rows, &stream);
    let output = DispatchOutput::new(rows_view, TensorMut::from_slice(&mut counts, &stream));
    let dispatched = buffer.enqueue_dispatch(input, output, (&stream).into())?;
    // Experts would be enqueued here, on rows and counts; these return their input.
    let expert_out = Combine::new(TensorRef::from_slice(&rows, HIDDEN, &stream));
    let combined = CombineOutput::new(TensorMut::from_slice(&mut out, &stream));
    let completion = dispatched.enqueue_combine(expert_out, combined, (&stream).into())?;
    completion.wait_blocking(Duration::from_secs(60))?;
    let complete = completion.outcome()?.is_some_and(|outcome| outcome.is_complete());
    if !complete || stream.clone_dtoh(&out)? != x {
        return Err("what came back is not what was sent".into()); // both weights are 0.5
    }
    Ok(print::print(&format!("rank {}: OK", group.rank()))?)
}
