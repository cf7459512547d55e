//! The handshake of a link. Without the key, nobody is accepted by either end, whatever it sends. Two ends with the key
//! agree unless something differs between them, or is changed, swapped or cut on the way.
#![no_main]

use arbitrary::Arbitrary;
use epwire_fuzz::links::{Auth, DIALER_BYTES, End, HELLO_BYTES, LISTENER_BYTES, State, Wanted};
use libfuzzer_sys::fuzz_target;

#[derive(Arbitrary, Debug)]
enum Input<'a> {
    /// Bytes from a stranger, with or without a valid hello before them, in parts.
    Stranger { listens: bool, hello: bool, parts: [&'a [u8]; 3] },
    /// Two ends with the key, `chunk` bytes at a time.
    Conversation { chunk: u8, changes: Vec<Change>, cut: Option<(bool, u8)>, differs: Differs },
}

/// Flipped bits of a byte that one of the two sends.
#[derive(Arbitrary, Debug)]
struct Change {
    of_listener: bool,
    at: u8,
    bits: u8,
}

#[derive(Arbitrary, Debug, PartialEq)]
enum Differs {
    Nothing,
    Key { at: u8, bits: u8 },
    Rank(u32),
    Fabric { at: u8, bits: u8 },
}

fuzz_target!(|input: Input| {
    match input {
        Input::Stranger { listens, hello, parts } => stranger(listens, hello, parts),
        Input::Conversation { chunk, changes, cut, differs } => {
            conversation(usize::from(chunk).max(1), &changes, cut, &differs);
        }
    }
});

fn end(rank: u32) -> End {
    let byte = rank as u8;
    End { key: [0x4b; 32], rank, fabric: [0x10 + byte; 16], challenge: [0x80 + byte; 32] }
}

fn pair(dialer: &End, listener: &End) -> [Auth; 2] {
    let wanted = Wanted { rank: 5, fabric: end(5).fabric, link: 7 };
    [Auth::dial(dialer, &wanted), Auth::listen(listener)]
}

fn stranger(listens: bool, hello: bool, parts: [&[u8]; 3]) {
    let [mut dialer, mut listener] = pair(&end(3), &end(5));
    let said = dialer.output(usize::MAX);
    let mut right = said.clone();
    if !listens {
        listener.take(&said);
        right = listener.output(usize::MAX);
        assert_eq!(right.len(), HELLO_BYTES);
        listener = pair(&end(3), &end(5)).into_iter().next_back().expect("two ends");
    }
    let asked = if listens { &mut listener } else { &mut dialer };
    if hello {
        assert_eq!(asked.take(&right), HELLO_BYTES);
    }
    let mut said = asked.output(usize::MAX).len();
    for part in parts {
        asked.take(part);
        said += asked.output(usize::MAX).len();
    }
    assert_ne!(asked.state(), State::Done);
    assert!(!listens || said <= HELLO_BYTES, "more than a challenge for a stranger");
    asked.end();
}

fn conversation(chunk: usize, changes: &[Change], cut: Option<(bool, u8)>, differs: &Differs) {
    let (dialer, mut listener) = (end(3), end(5));
    let mut agree = true;
    match differs {
        Differs::Nothing => (),
        Differs::Key { at, bits } => {
            listener.key[usize::from(*at) % 32] ^= bits;
            agree = *bits == 0;
        }
        Differs::Rank(rank) => {
            listener.rank = *rank;
            agree = *rank == 5;
        }
        Differs::Fabric { at, bits } => {
            listener.fabric[usize::from(*at) % 16] ^= bits;
            agree = *bits == 0;
        }
    }
    let lengths = [DIALER_BYTES, LISTENER_BYTES];
    let mut flips = [[0u8; LISTENER_BYTES]; 2];
    for change in changes {
        let of = usize::from(change.of_listener);
        flips[of][usize::from(change.at) % lengths[of]] ^= change.bits;
    }
    let mut limits = lengths;
    if let Some((of_listener, at)) = cut {
        let of = usize::from(of_listener);
        limits[of] = usize::from(at).min(lengths[of]);
    }
    let whole = limits == lengths && flips.iter().flatten().all(|bits| *bits == 0);

    let mut ends = pair(&dialer, &listener);
    let mut said = [0; 2];
    loop {
        let mut silent = true;
        for from in 0..2 {
            let mut bytes = ends[from].output(chunk);
            silent &= bytes.is_empty();
            for (i, byte) in bytes.iter_mut().enumerate() {
                *byte ^= flips[from][said[from] + i];
            }
            let left = limits[from].saturating_sub(said[from]);
            said[from] += bytes.len();
            bytes.truncate(left);
            ends[1 - from].take(&bytes);
        }
        if silent {
            break;
        }
    }
    let done = ends.iter().all(|end| end.state() == State::Done);
    assert_eq!(done, agree && whole);
    for end in &mut ends {
        end.end();
    }
}
