//! What a peer writes into the window of a communicator: messages of collectives and of sends with arbitrary contents,
//! and its words. Every operation ends within its deadlines, with any outcome, and accesses only the memory of its
//! buffers; and wrong messages leave nothing behind: the next membership is exact.
#![no_main]

use std::time::{Duration, Instant};

use arbitrary::Arbitrary;
use epwire::comm::{CommConfig, Reduction};
use epwire::{Comm, Error, Mask, Outcome};
use epwire_fuzz::only_window;
use libfuzzer_sys::fuzz_target;

/// A few bytes, so that short inputs have several steps.
#[derive(Arbitrary, Debug)]
struct Step {
    deed: u8,
    call: u8,
    elements: u8,
    carry: u8,
    /// A byte of the header and the bits to flip in it, or an offset in the window.
    change: (u8, u8),
    /// See [`Step::wide`].
    wide: (u8, u8),
}

#[derive(Debug, Clone, Copy)]
enum Deed {
    /// Rank 1 writes its next message, and announces it.
    Message,
    /// Rank 0 calls this collective.
    Call,
    /// A send of one rank, and the receive of the other.
    Meet,
    /// Rank 1 posts a word, of this epoch or another one.
    Word,
    /// Rank 1 writes anything anywhere in its rings or in its greeting.
    Poke,
    /// Both begin the next membership.
    Begin,
}

#[derive(Debug, Clone, Copy)]
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
const SLOTS: u64 = 2;
const HEADER: u64 = 64;
const DEADLINE: Duration = Duration::from_millis(1);
/// The offset of rank 1's words, by `c/peer/words.h`, and of the word that announces messages.
const LINE: u64 = 4096 + 128;
const POSTED: u64 = 32;
const U32: u8 = 3;
const INLINE: u32 = 1;

impl Call {
    fn is_of_points(self) -> bool {
        matches!(self, Self::Send(_) | Self::Recv(_))
    }

    /// Its kind, and the root or the tag, as in `epw_descriptor`.
    fn name(self) -> (u8, u8) {
        match self {
            Self::Barrier => (0, 0),
            Self::Broadcast => (1, 1),
            Self::AllReduce => (2, 0),
            Self::AllGather => (5, 0),
            Self::AllToAll => (6, 0),
            Self::Send(tag) | Self::Recv(tag) => (9, tag % 3),
        }
    }

    /// As in `epw_called`, and its elements.
    fn brief(self) -> ([u8; 8], u32) {
        let (kind, peer) = self.name();
        let (element, count) = if kind == 0 { (0, 0) } else { (U32, COUNT as u32) };
        ([kind, element, 0, 0, peer, 0, 0, 0], count)
    }
}

impl Step {
    fn deed(&self) -> Deed {
        const DEEDS: [Deed; 8] = [
            Deed::Meet,
            Deed::Meet,
            Deed::Meet,
            Deed::Message,
            Deed::Call,
            Deed::Word,
            Deed::Poke,
            Deed::Begin,
        ];
        DEEDS[usize::from(self.deed) % DEEDS.len()]
    }

    fn call(&self) -> Call {
        let tag = self.call / 7;
        let calls = [
            Call::AllReduce,
            Call::AllGather,
            Call::AllToAll,
            Call::Broadcast,
            Call::Barrier,
            Call::Send(tag),
            Call::Recv(tag),
        ];
        calls[usize::from(self.call) % calls.len()]
    }

    /// A small number, one near the greatest, near that of a step, or in the heap.
    fn wide(&self) -> u64 {
        let (kind, n) = (self.wide.0, u64::from(self.wide.1));
        [n, u64::MAX - n, (1 << 41) - 1 - n, 4096 * n][usize::from(kind) % 4]
    }

    /// The header, by `c/coll/layout.h`, of message `number` in call `call`, which follows `before`: valid except for
    /// one change.
    fn header(&self, number: u64, call: u32, before: Option<Call>) -> [u8; HEADER as usize] {
        let (brief, count) = self.call().brief();
        let (brief_before, count_before) = before.map_or(([0; 8], 0), Call::brief);
        let carry = if self.carry < 100 { INLINE } else { u32::from(self.carry % 10) };
        let elements = if self.elements < 100 { COUNT as u64 } else { self.elements.into() };
        let bytes = if count == 0 { 0 } else { elements * 4 };
        let mut all = Vec::new();
        all.extend(number.to_le_bytes());
        all.extend([call, carry].map(u32::to_le_bytes).as_flattened());
        all.extend(brief);
        all.extend(u64::from(count).to_le_bytes());
        all.extend([0, count_before].map(u32::to_le_bytes).as_flattened());
        all.extend([bytes, self.wide()].map(u64::to_le_bytes).as_flattened());
        all.extend(brief_before);
        if self.change.0 >= 128 {
            all[usize::from(self.change.0) % HEADER as usize] ^= self.change.1;
        }
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
    let mut now = 0;
    let begin = |now: &mut u32| {
        *now += 1;
        for comm in [&victim, &peer] {
            comm.set_active(&Mask::all(2), *now, 0).expect("both are connected");
        }
    };
    begin(&mut now);
    // In this epoch: calls of collectives, and messages on each channel.
    let (mut calls, mut written) = (0, [0u64; 2]);
    let mut before = None; // the last of these calls
    let plan = victim.plan();
    let ring = SLOTS * (HEADER + 64);
    let ring_of = |by_sends: bool| plan.control_bytes + (u64::from(by_sends) * 2 + 1) * ring;
    let write = |at: u64, bytes: &[u8]| {
        // SAFETY: inside the victim's window, which lives as long as it. Unlike with a real peer, nobody accesses it
        // meanwhile: both ranks are idle.
        unsafe { window.add(at as usize).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
    };
    let begun = Instant::now();
    for step in steps.iter().take(24) {
        let (deed, call) = (step.deed(), step.call());
        match deed {
            Deed::Word => {
                let of = if step.change.1 < 200 { now } else { u32::from(step.change.1) };
                let value = u64::from(of) << 41 | (step.wide() & ((1 << 41) - 1));
                let (lane, word) = (u64::from(step.change.0 / 8 % 2), u64::from(step.change.0 % 8));
                write(LINE + lane * 64 + word * 8, &value.to_le_bytes());
            }
            Deed::Poke => {
                let at = u64::from(step.change.0) * 8;
                let of_point = step.call % 3 == 1;
                let at = if step.call % 3 == 2 {
                    plan.control_bytes - 128 + at % 128
                } else {
                    ring_of(of_point) + at % ring
                };
                write(at, &step.wide().to_le_bytes());
            }
            Deed::Begin => {
                begin(&mut now);
                (calls, written, before) = (0, [0; 2], None);
            }
            Deed::Message | Deed::Meet | Deed::Call => {}
        }
        if matches!(deed, Deed::Message | Deed::Meet) {
            let points = call.is_of_points();
            let number = written[usize::from(points)] + 1;
            written[usize::from(points)] = number;
            let header = step.header(number, if points { 0 } else { calls + 1 }, before);
            write(ring_of(points) + (number - 1) % SLOTS * (HEADER + 64), &header);
            let value = u64::from(now) << 41 | number;
            write(LINE + u64::from(points) * 64 + POSTED, &value.to_le_bytes());
        }
        if matches!(deed, Deed::Call | Deed::Meet) {
            ended(call_of(&victim, call));
            if !call.is_of_points() {
                calls += 1;
                before = Some(call);
            }
        }
    }
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?} of waits of {DEADLINE:?}", begun.elapsed());

    // Words of later epochs would take effect once these have begun.
    write(LINE, &[0; 128]);
    begin(&mut now);
    let patient = |comm: &Comm| comm.with_deadline(Duration::from_secs(5));
    let work = patient(&peer).all_gather(vec![1u32; COUNT], vec![0u32; 2 * COUNT]);
    let mut all = [9u32; 2 * COUNT];
    let outcome = patient(&victim).all_gather_blocking(&[0u32; COUNT], &mut all).expect("a right call");
    assert!(outcome.is_complete() && all[..COUNT] == [0; COUNT] && all[COUNT..] == [1; COUNT], "{outcome:?}");
    drop(work);
});

fn call_of(comm: &Comm, call: Call) -> epwire::Result<Outcome> {
    let own = [7u32; COUNT];
    // On the heap, so that the sanitizer checks its bounds.
    let (mut one, mut all) = (vec![0u32; COUNT], vec![0u32; 2 * COUNT]);
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

/// Any end is accepted, but an error must have a text.
fn ended(result: epwire::Result<Outcome>) {
    match result {
        Ok(_) => {}
        Err(error @ (Error::Mismatch(_) | Error::Limit(_) | Error::Timeout(_))) => {
            assert!(error.failure().is_some_and(|failure| !failure.text.is_empty()), "{error}");
        }
        Err(error) => panic!("{error}"),
    }
}
