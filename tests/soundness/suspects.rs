//! A reason for a change of membership: a peer that was given up, whichever rank is named first.

use std::sync::Barrier;
use std::thread;
use std::time::Duration;

use epwire::{
    Cause, Combine, CombineOutput, Dispatch, EpBuffer, EpConfig, Error, Group, HostBuffer, Layout, Mask,
    Outcome, Payload, TensorMut, TensorRef,
};
use half::bf16;

use crate::{HIDDEN, Token};

const DEADLINE: Duration = Duration::from_secs(2);
const IDS: [i32; 3] = [0, 1, 2];
const WEIGHTS: [f32; 3] = [0.25; 3];

/// What happens to a rank's operation after its dispatch.
#[derive(Clone, Copy, PartialEq)]
enum Fate {
    /// It is combined.
    Ends,
    /// It is dropped, like one whose request was cancelled.
    Dropped,
    /// Its handle is held until the others have ended.
    Held,
}

/// What rank 0 of three sees, with a token for each rank, of operations that end like this.
fn seen(fates: [Fate; 3]) -> Outcome {
    let ended = Barrier::new(3);
    let groups = Group::threads(3).unwrap();
    let rank = |group: &Group, fate: Fate| {
        let config = EpConfig::new(4, HIDDEN as u32, 3, 3).deadline(DEADLINE).threads(1).lanes(1);
        let buffer = EpBuffer::create_blocking(group, config).unwrap();
        let x = vec![bf16::ONE; HIDDEN];
        let mut received = buffer.dispatch_buffers(Payload::SameAsInput, Layout::ExpertMajor, 0).unwrap();
        let input = Dispatch::new(TensorRef::new(&x, HIDDEN), TensorRef::new(&IDS, 3));
        let input = input.weights(TensorRef::new(&WEIGHTS, 3));
        let dispatched = buffer.dispatch_blocking(input, received.output()).unwrap();
        assert!(dispatched.outcome().is_complete(), "{:?}", dispatched.outcome());
        let expert_out: Vec<bf16> =
            received.rows.chunks(2).map(|b| bf16::from_le_bytes([b[0], b[1]])).collect();
        let mut out = HostBuffer::<bf16>::zeroed(HIDDEN);
        let (mut held, mut outcome) = (None, Outcome::default());
        match fate {
            Fate::Ends => {
                let combine = Combine::new(TensorRef::new(&expert_out, HIDDEN));
                let output = CombineOutput::new(TensorMut::new(&mut out));
                outcome = dispatched.combine_blocking(combine, output).unwrap();
            }
            Fate::Dropped => drop(dispatched),
            Fate::Held => held = Some(dispatched),
        }
        ended.wait();
        drop(held);
        outcome
    };
    thread::scope(|scope| {
        let rank = &rank;
        let threads: Vec<_> =
            groups.iter().zip(fates).map(|(group, fate)| scope.spawn(move || rank(group, fate))).collect();
        let outcomes: Vec<_> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
        outcomes[0].clone()
    })
}

#[test]
fn a_peer_that_drops_its_operation_is_no_reason_for_a_change() {
    let outcome = seen([Fate::Ends, Fate::Dropped, Fate::Ends]);
    assert_eq!(outcome.record.as_ref().map(|record| record.cause), Some(Cause::Partial), "{outcome:?}");
    assert_eq!((outcome.missing, outcome.suspects), ([1].into_iter().collect(), Mask::EMPTY));
    assert!(!outcome.needs_recovery());
}

#[test]
fn a_silent_peer_is_one_though_the_record_names_another_that_is_not() {
    let outcome = seen([Fate::Ends, Fate::Dropped, Fate::Held]);
    assert_eq!(outcome.record.as_ref().map(|record| record.cause), Some(Cause::Partial), "{outcome:?}");
    assert_eq!(
        (outcome.missing, outcome.suspects),
        ([1, 2].into_iter().collect(), [2].into_iter().collect())
    );
    assert!(outcome.needs_recovery());
}

#[test]
fn a_loss_that_a_sending_half_notices_is_news_in_the_outcome_of_the_receiving_half() {
    let [a, b] = crate::pair(DEADLINE);
    let lost: Mask = [1].into_iter().collect();
    let (dispatched, expert_out) = thread::scope(|scope| {
        scope.spawn(move || {
            let mut token = Token::new(&b, 1.0);
            let (input, output) = token.dispatch(0);
            let dispatched = b.dispatch_blocking(input, output).unwrap();
            assert!(dispatched.outcome().is_complete(), "{}", dispatched.outcome());
            drop(b);
        });
        let mut token = Token::new(&a, 1.0);
        let (input, output) = token.dispatch(0);
        let dispatched = a.dispatch_blocking(input, output).unwrap();
        assert!(dispatched.outcome().is_complete(), "{}", dispatched.outcome());
        (dispatched, token.expert_out())
    });
    // What an operation that was given up owes the peer finds out, without an outcome.
    let mut other = Token::new(&a, 2.0);
    let (input, _) = other.dispatch(1);
    drop(a.dispatch_send_blocking(input).unwrap());
    while a.membership().unwrap().suspects.is_empty() {
        thread::sleep(Duration::from_millis(1));
    }
    let combining = dispatched.combine_send(Combine::new(TensorRef::new(&expert_out, HIDDEN))).unwrap();
    let mut out = HostBuffer::<bf16>::zeroed(HIDDEN);
    let outcome = combining.receive_blocking(CombineOutput::new(TensorMut::new(&mut out))).unwrap();
    assert_eq!((outcome.missing, outcome.suspects, outcome.news), (lost, lost, lost), "{outcome}");
}

#[test]
fn a_revocation_that_is_refused_tells_the_program_of_nobody() {
    let [a, b] = crate::pair(DEADLINE);
    let error = a.revoke(&Mask::all(2)).unwrap_err();
    assert!(matches!(error, Error::Invalid(_)), "{error}");
    drop(b);
    let mut token = Token::new(&a, 1.0);
    let (input, output) = token.dispatch(0);
    let dispatched = a.dispatch_blocking(input, output).unwrap();
    let lost: Mask = [1].into_iter().collect();
    let outcome = dispatched.outcome();
    assert_eq!((outcome.suspects, outcome.news), (lost, lost), "{outcome}");
}
