//! One MoE step on GPUs with cudarc's buffers, one rank to a GPU: `--ranks N` starts N of them, or a launcher does.
//! cargo run --release --features cuda,cudarc --example cuda_quickstart -- --ranks 2

use std::{error::Error, process::ExitCode, time::Duration};

use epwire::cuda::{CombineOutput, DispatchOutput, TensorMut, TensorRef};
use epwire::cudarc::driver::CudaContext;
use epwire::launch::{Launch, spawn::Ranks};
use epwire::{Combine, Device, Dispatch, EpBuffer, EpConfig, Group, env::Token, group::GroupOptions};
use half::bf16;

const TOKENS: usize = 128; // per rank
const HIDDEN: usize = 1024;
const LOCAL_EXPERTS: usize = 4;
const TOPK: usize = 2;

fn main() -> ExitCode {
    start().unwrap_or_else(|error| {
        eprintln!("cuda_quickstart: {error}");
        ExitCode::FAILURE
    })
}

fn start() -> Result<ExitCode, Box<dyn Error>> {
    if let Some(launch) = Launch::from_env()? {
        let group = Group::join_blocking(GroupOptions::from_launch(&launch).token(Token::from_env()?))?;
        step(&group, launch.local_rank)?;
        group.leave_blocking()?;
        return Ok(ExitCode::SUCCESS);
    }
    match &std::env::args().skip(1).collect::<Vec<_>>()[..] {
        [] => step(&Group::threads(1)?[0], 0)?,
        [flag, ranks] if flag == "--ranks" => {
            let ended = Ranks::new(ranks.parse()?).spawn()?.wait(None)?;
            return Ok(ExitCode::from(ended.exit_code() as u8));
        }
        _ => return Err("usage: cuda_quickstart [--ranks N]".into()),
    }
    Ok(ExitCode::SUCCESS)
}

fn step(group: &Group, gpu: u32) -> Result<(), Box<dyn Error>> {
    let experts = LOCAL_EXPERTS * group.world() as usize;
    let config = EpConfig {
        device: Device::Cuda(gpu),
        ..EpConfig::new(TOKENS as u32, HIDDEN as u32, experts as u32, TOPK as u32)
    };
    let buffer = EpBuffer::create_blocking(group, config)?; // says so if there is no driver
    let stream = CudaContext::new(gpu as usize)?.new_stream()?;

    let x: Vec<_> = (0..TOKENS * HIDDEN).map(|i| bf16::from_f32((i % 251) as f32)).collect();
    let ids: Vec<_> = (0..TOKENS * TOPK).map(|i| (i * 3 % experts) as i32).collect();
    let x_gpu = stream.clone_htod(&x)?;
    let (ids, weights) = (stream.clone_htod(&ids)?, stream.clone_htod(&[0.5f32; TOKENS * TOPK])?);
    let mut rows = stream.alloc_zeros::<bf16>(LOCAL_EXPERTS * buffer.plan().rows * HIDDEN)?;
    let mut counts = stream.alloc_zeros::<u32>(LOCAL_EXPERTS)?;
    let mut out = stream.alloc_zeros::<bf16>(TOKENS * HIDDEN)?;

    let input = Dispatch::new(
        TensorRef::from_slice(&x_gpu, HIDDEN, &stream),
        TensorRef::from_slice(&ids, TOPK, &stream),
    )
    .weights(TensorRef::from_slice(&weights, TOPK, &stream));
    let output = DispatchOutput {
        rows: Some(TensorMut::from_slice(&mut rows, &stream)),
        counts: Some(TensorMut::from_slice(&mut counts, &stream)),
        ..Default::default()
    };
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
    println!("rank {}: OK", group.rank());
    Ok(())
}
