//! What a peer writes into the window of a communicator: messages of collectives and of sends, anything in them, and its
//! words. Every operation ends within its deadlines, with whatever outcome, and touches no memory but that of its buffers;
//! and what was wrong leaves nothing behind: the next membership is exact.
#![no_main]

use std::time::{Duration, Instant};

use arbitrary::Arbitrary;
use epwire::comm::{CommConfig, Reduction};
use epwire::{Comm, Error, Mask, Outcome};
use epwire_fuzz::only_window;
use libfuzzer_sys::fuzz_target;

#[derive(Arbitrary, Debug)]
enum Step {
    /// Rank 1 writes what looks like a message.
    Message { by_sends: bool, slot: u8, message: Message },
    /// Rank 1 posts a word, of this epoch or another one.
    Word { by_sends: bool, word: u8, other_epoch: u8, count: u64 },
    /// Rank 1 writes anything anywhere in its rings or in what it says of itself.
    Poke { at: u16, bytes: [u8; 8] },
    /// Rank 0 calls this.
    Call(Call),
    /// Both begin the next membership.
    Begin,
}

/// As `c/coll/layout.h` has it.
#[derive(Arbitrary, Debug)]
struct Message {
    number: u8,
    call: u8,
    carry: u8,
    kind: u8,
    reduces: u8,
    root: u8,
    count: u8,
    voids: u8,
    bytes: u8,
    /// Instead of those above that are wide.
    far: Option<(u64, u64, u64)>,
    address: u64,
    before: u64,
}

#[derive(Arbitrary, Debug)]
enum Call {
    AllReduce,
    AllGather,
    AllToAll,
    Broadcast,
    Barrier,
    Send(u8),
    Recv(u8),
}

const COUNT: usize = 8;
const U32: u8 = 3;
const SLOTS: u64 = 2;
const HEADER: u64 = 64;
const DEADLINE: Duration = Duration::from_millis(1);
/// Where the words of rank 1 are, by `c/peer/words.h`.
const LINE: u64 = 4096 + 128;

impl Message {
    fn bytes(&self) -> [u8; HEADER as usize] {
        let (count, bytes, number) =
            self.far.unwrap_or((self.count.into(), u64::from(self.bytes) * 4, self.number.into()));
        let mut all = Vec::new();
        all.extend(number.to_le_bytes());
        all.extend([u32::from(self.call), u32::from(self.carry % 10)].map(u32::to_le_bytes).as_flattened());
        all.extend([self.kind % 12, U32, self.reduces % 6, self.reduces / 200]);
        all.extend(u32::from(self.root % 3).to_le_bytes());
        all.extend(count.to_le_bytes());
        all.extend([u32::from(self.voids), 0].map(u32::to_le_bytes).as_flattened());
        all.extend([bytes, self.address, self.before].map(u64::to_le_bytes).as_flattened());
        all.try_into().expect("the size of a header")
    }
}

fuzz_target!(|steps: Vec<Step>| {
    let config = CommConfig::default().slots(SLOTS as u32).slot_bytes(64).heap_bytes(4096).deadline(DEADLINE);
    let create = |rank| Comm::unconnected(rank, 2, config.clone()).expect("a small communicator");
    let victim = create(0);
    let window = only_window();
    let peer = create(1);
    victim.connect_blocking(1, &peer.export(0).expect("a blob")).expect("a right blob");
    peer.connect_blocking(0, &victim.export(1).expect("a blob")).expect("a right blob");
    let mut epoch = 0;
    let mut begin = || {
        epoch += 1;
        for comm in [&victim, &peer] {
            comm.set_active(&Mask::all(2), epoch, 0).expect("both are connected");
        }
        epoch
    };
    let mut now = begin();
    let plan = victim.plan();
    let ring = SLOTS * (HEADER + 64);
    let ring_of = |by_sends: bool| plan.control_bytes + (u64::from(by_sends) * 2 + 1) * ring;
    let write = |at: u64, bytes: &[u8]| {
        // SAFETY: inside the victim's window, which lives as long as it. Like a peer's, the write is seen by nobody
        // meanwhile: both ranks rest.
        unsafe { window.add(at as usize).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
    };
    let begun = Instant::now();
    for step in steps.iter().take(24) {
        match step {
            Step::Message { by_sends, slot, message } => {
                write(ring_of(*by_sends) + u64::from(*slot) % SLOTS * (HEADER + 64), &message.bytes());
            }
            Step::Word { by_sends, word, other_epoch, count } => {
                let of = if *other_epoch < 200 { now } else { u32::from(*other_epoch) };
                let value = u64::from(of) << 41 | (count & ((1 << 41) - 1));
                write(LINE + u64::from(*by_sends) * 64 + u64::from(word % 8) * 8, &value.to_le_bytes());
            }
            Step::Poke { at, bytes } => {
                let own = u64::from(*at) % (2 * ring - 7);
                let at = match own.checked_sub(ring) {
                    None => ring_of(false) + own.min(ring - 8),
                    Some(own) if own < ring / 2 => plan.control_bytes - 128 + own.min(120),
                    Some(own) => ring_of(true) + own.min(ring - 8),
                };
                write(at, bytes);
            }
            Step::Call(call) => ended(call_of(&victim, call)),
            Step::Begin => now = begin(),
        }
    }
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?} of waits of {DEADLINE:?}", begun.elapsed());

    // Words of epochs to come would be heeded when these have begun.
    write(LINE, &[0; 128]);
    begin();
    let patient = |comm: &Comm| comm.with_deadline(Duration::from_secs(5));
    let work = patient(&peer).all_gather(vec![1u32; COUNT], vec![0u32; 2 * COUNT]);
    let mut all = [9u32; 2 * COUNT];
    let outcome = patient(&victim).all_gather_blocking(&[0u32; COUNT], &mut all).expect("a right call");
    assert!(outcome.is_complete() && all[..COUNT] == [0; COUNT] && all[COUNT..] == [1; COUNT], "{outcome:?}");
    drop(work);
});

fn call_of(comm: &Comm, call: &Call) -> epwire::Result<Outcome> {
    let own = [7u32; COUNT];
    let (mut one, mut all) = ([0u32; COUNT], [0u32; 2 * COUNT]);
    match call {
        Call::AllReduce => comm.all_reduce_blocking(&own, &mut one, Reduction::Sum),
        Call::AllGather => comm.all_gather_blocking(&own, &mut all),
        Call::AllToAll => comm.all_to_all_blocking(&[7u32; 2 * COUNT], &mut all),
        Call::Broadcast => comm.broadcast_blocking(&mut one, 1),
        Call::Barrier => comm.barrier_blocking(),
        Call::Send(tag) => comm.send_blocking(&own, 1, u32::from(tag % 3)),
        Call::Recv(tag) => comm.recv_blocking(&mut one, 1, u32::from(tag % 3)),
    }
}

/// However it ended: an error says something.
fn ended(result: epwire::Result<Outcome>) {
    match result {
        Ok(_) => {}
        Err(error @ (Error::Mismatch(_) | Error::Limit(_) | Error::Timeout(_))) => {
            assert!(error.failure().is_some_and(|failure| !failure.text.is_empty()), "{error}");
        }
        Err(error) => panic!("{error}"),
    }
}
