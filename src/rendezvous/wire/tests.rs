//! Frames encoded and decoded again, and bytes that are not frames.

use proptest::prelude::*;

use super::*;

fn text() -> impl Strategy<Value = String> {
    "\\PC{0,12}"
}

fn blob() -> impl Strategy<Value = Blob> {
    proptest::collection::vec(any::<u8>(), 0..40).prop_map(Blob)
}

fn set() -> impl Strategy<Value = Mask> {
    proptest::collection::vec(0u32..1024, 0..8).prop_map(|ranks| ranks.into_iter().collect())
}

fn time() -> impl Strategy<Value = Duration> {
    any::<u64>().prop_map(Duration::from_nanos)
}

fn fields() -> impl Strategy<Value = Fields> {
    proptest::collection::vec((text(), text()), 0..4)
}

fn identity() -> impl Strategy<Value = Identity> {
    (any::<u32>(), any::<u128>(), text(), any::<u32>(), text()).prop_map(
        |(rank, member, host, pid, process_space)| Identity { rank, member, host, pid, process_space },
    )
}

fn request() -> impl Strategy<Value = Request> {
    let join = (any::<u16>(), text(), any::<u32>(), identity(), time(), fields()).prop_map(
        |(version, run_id, world, identity, deadline, config)| Request::Join {
            join: Join { version, run_id, world, initial: world, identity, deadline, config, listener: None },
        },
    );
    let kind = prop_oneof![
        proptest::collection::vec(blob(), 0..5).prop_map(|blobs| RoundKind::Exchange { blobs }),
        Just(RoundKind::Barrier {}),
        fields().prop_map(|fields| RoundKind::Agree { fields }),
    ];
    let round = (text(), set(), time(), kind).prop_map(|(tag, ranks, deadline, kind)| Request::Round {
        round: Round { tag, ranks, deadline, kind },
    });
    let set = (text(), blob()).prop_map(|(key, value)| Request::Set { key, value });
    let add = (text(), any::<i64>()).prop_map(|(key, amount)| Request::Add { key, amount });
    let get = (proptest::collection::vec(text(), 0..4), time())
        .prop_map(|(keys, deadline)| Request::Get { keys, deadline });
    let delete = text().prop_map(|key| Request::Delete { key });
    let delete_prefix = text().prop_map(|prefix| Request::DeletePrefix { prefix });
    let introduce = (any::<u32>(), proptest::collection::vec(blob(), 0..3), time())
        .prop_map(|(rank, blobs, deadline)| Request::Introduce { rank, blobs, deadline });
    let change = prop_oneof![
        any::<u64>().prop_map(|change| Request::Abort { change }),
        any::<u32>().prop_map(|rank| Request::Retire { rank }),
        (any::<u32>(), any::<u128>()).prop_map(|(rank, member)| Request::ReportDeath { rank, member }),
    ];
    prop_oneof![join, round, introduce, change, Just(Request::Leave {}), set, add, get, delete, delete_prefix]
}

fn view() -> impl Strategy<Value = View> {
    let state = proptest::sample::select(vec![
        RankState::Absent {},
        RankState::Alive {},
        RankState::Suspect {},
        RankState::Dead {},
        RankState::Evicted {},
        RankState::Standby {},
        RankState::Retired {},
        RankState::Ready {},
        RankState::Left {},
    ]);
    (decision(), set(), proptest::collection::vec(state, 0..9)).prop_map(|(decision, taken, states)| {
        let Decision { mask, epoch, step } = decision;
        View { epoch, mask, step, taken, states }
    })
}

fn decision() -> impl Strategy<Value = Decision> {
    (set(), any::<u32>(), any::<u64>()).prop_map(|(mask, epoch, step)| Decision { mask, epoch, step })
}

fn notice() -> impl Strategy<Value = Notice> {
    prop_oneof![
        Just(Notice::Ready {}),
        (any::<u32>(), set()).prop_map(|(epoch, peers)| Notice::Doubt { epoch, peers }),
        (any::<u64>(), set(), set()).prop_map(|(change, missing, diverged)| Notice::Reached {
            change,
            missing,
            diverged: Box::new(diverged)
        }),
        (any::<u64>(), any::<u64>()).prop_map(|(change, step)| Notice::Promise { change, step }),
        set().prop_map(|peers| Notice::Met { peers }),
        (any::<u32>(), any::<u128>()).prop_map(|(rank, member)| Notice::Ended { rank, member }),
        (any::<u64>(), proptest::collection::vec(blob(), 0..3))
            .prop_map(|(ticket, blobs)| Notice::Introduced { ticket, result: Ok(blobs) }),
        (any::<u64>(), error()).prop_map(|(ticket, error)| Notice::Introduced { ticket, result: Err(error) }),
    ]
}

fn ask() -> impl Strategy<Value = Ask> {
    prop_oneof![
        (any::<u64>(), set(), any::<u32>(), any::<u64>())
            .prop_map(|(change, peers, epoch, step)| Ask::Reach { change, peers, epoch, step }),
        (any::<u64>(), any::<bool>()).prop_map(|(change, lossy)| Ask::Promise { change, lossy }),
        set().prop_map(|peers| Ask::Meet { peers }),
        (any::<u64>(), any::<u32>(), proptest::collection::vec(blob(), 0..3))
            .prop_map(|(ticket, rank, blobs)| Ask::Introduce { ticket, rank, blobs }),
    ]
}

fn error() -> impl Strategy<Value = BootstrapError> {
    prop_oneof![
        (text(), text(), any::<u16>(), any::<u16>())
            .prop_map(|(op, peer, ours, theirs)| BootstrapError::WrongVersion { op, peer, ours, theirs }),
        (text(), any::<u32>(), any::<u32>(), set(), time()).prop_map(
            |(op, present, world, missing, deadline)| {
                BootstrapError::MissingRanks { op, present, world, missing: Box::new(missing), deadline }
            }
        ),
        (text(), any::<u64>(), any::<u32>()).prop_map(|(op, change, rank)| BootstrapError::Aborted {
            op,
            change,
            rank
        }),
        (text(), any::<u32>(), text(), any::<u32>())
            .prop_map(|(op, rank, host, pid)| BootstrapError::Fenced { op, rank, host, pid }),
        (text(), text(), any::<u64>(), any::<u64>())
            .prop_map(|(op, field, value, limit)| BootstrapError::Limit { op, field, value, limit }),
    ]
}

fn reply() -> impl Strategy<Value = Reply> {
    prop_oneof![
        (proptest::collection::vec(identity(), 0..4), view())
            .prop_map(|(roster, view)| Reply::Joined { joined: Arc::new(Joined { roster, view }) }),
        proptest::collection::vec(blob(), 0..5).prop_map(|blobs| Reply::Blobs { blobs }),
        Just(Reply::Done {}),
        any::<i64>().prop_map(|sum| Reply::Sum { sum }),
        proptest::collection::vec(blob().prop_map(Arc::new), 0..4)
            .prop_map(|values| Reply::Values { values }),
        any::<u64>().prop_map(|keys| Reply::Deleted { keys }),
    ]
}

fn host() -> impl Strategy<Value = Host> {
    (any::<u32>(), any::<u128>(), text()).prop_map(|(rank, member, address)| Host { rank, member, address })
}

fn frame() -> impl Strategy<Value = Frame> {
    prop_oneof![
        (text(), any::<[u8; 32]>()).prop_map(|(run_id, nonce)| Frame::Hello { run_id, nonce }),
        any::<[u8; 32]>().prop_map(|nonce| Frame::Challenge { nonce }),
        any::<[u8; 32]>().prop_map(|mac| Frame::Proof { mac }),
        error().prop_map(|error| Frame::Refused { error }),
        (any::<u64>(), request()).prop_map(|(id, request)| Frame::Call { id, request }),
        (any::<u64>(), reply()).prop_map(|(id, reply)| Frame::Answer { id, result: Ok(reply) }),
        (any::<u64>(), error()).prop_map(|(id, error)| Frame::Answer { id, result: Err(error) }),
        view().prop_map(|view| Frame::Changed { view: Arc::new(view) }),
        (any::<u64>(), proptest::collection::btree_set(any::<u64>(), 0..4))
            .prop_map(|(received, except)| Frame::Ping { received, except }),
        any::<u64>().prop_map(|session| Frame::Open { session }),
        proptest::option::of(host()).prop_map(|host| Frame::Opened { host }),
        proptest::collection::vec(host(), 0..4).prop_map(|hosts| Frame::Servers { hosts }),
        Just(Frame::Peer {}),
        blob().prop_map(|body| Frame::Question { body }),
        blob().prop_map(|body| Frame::Replied { body }),
        proptest::option::of(text()).prop_map(|leader| Frame::Refer { leader }),
        Just(Frame::Pong {}),
        notice().prop_map(|notice| Frame::Notice { notice }),
        ask().prop_map(|ask| Frame::Ask { ask }),
        proptest::collection::vec(identity(), 0..4)
            .prop_map(|members| Frame::Seated { members: Arc::new(members) }),
        (any::<u64>(), decision()).prop_map(|(change, decision)| Frame::Settled {
            change,
            outcome: Ok(decision),
            retired: decision.mask,
            waiting: Box::new(Standby { ready: decision.mask, preparing: Mask::EMPTY }),
        }),
        (any::<u64>(), error()).prop_map(|(change, error)| Frame::Settled {
            change,
            outcome: Err(error),
            retired: Mask::EMPTY,
            waiting: Box::default(),
        }),
    ]
}

proptest! {
    #[test]
    fn a_frame_comes_back_as_it_was(frame in frame()) {
        let bytes = encode(&frame).unwrap();
        prop_assert_eq!(decode(&bytes), Ok(frame));
    }

    #[test]
    fn a_frame_cut_or_lengthened_anywhere_is_an_error(frame in frame(), cut in any::<prop::sample::Index>()) {
        let mut bytes = encode(&frame).unwrap();
        prop_assert!(decode(&bytes[..cut.index(bytes.len())]).is_err());
        bytes.push(0);
        prop_assert_eq!(decode(&bytes), Err(WireError::Trailing));
    }

    #[test]
    fn no_bytes_bring_the_decoder_down(
        frame in frame(),
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        noise in proptest::collection::vec(any::<u8>(), 0..200),
    ) {
        let mut bytes = encode(&frame).unwrap();
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        // What is accepted must be a frame: encoding it gives the same again.
        if let Ok(accepted) = decode(&bytes) {
            prop_assert_eq!(decode(&encode(&accepted).unwrap()), Ok(accepted));
        }
        prop_assert!(decode(&noise).is_err());
    }
}

#[test]
fn the_header_says_what_is_wrong() {
    let bytes = encode(&Frame::Pong {}).unwrap();
    assert_eq!(bytes, [b'E', b'P', b'W', b'R', 11, 0, 2, 0, 0, 0, 9, 0]);
    let with = |at: usize, byte: u8| {
        let mut changed = bytes.clone();
        changed[at] = byte;
        decode(&changed)
    };
    assert_eq!(with(0, b'X'), Err(WireError::Magic));
    assert_eq!(with(4, 12), Err(WireError::Version { ours: PROTOCOL_VERSION, theirs: 12 }));
    assert_eq!(with(9, 255), Err(WireError::TooLong { bytes: 0xff00_0002, limit: MAX_PEER_BYTES }));
    assert_eq!(with(10, 99), Err(WireError::Invalid { what: "Frame" }));
    assert_eq!(decode(b""), Err(WireError::Truncated));
}

#[test]
fn a_count_that_the_bytes_can_not_hold_allocates_nothing() {
    let mut bytes = encode(&Frame::Answer { id: 1, result: Ok(Reply::Blobs { blobs: Vec::new() }) }).unwrap();
    let at = bytes.len() - 4;
    bytes[at..].copy_from_slice(&u32::MAX.to_le_bytes());
    assert_eq!(decode(&bytes), Err(WireError::Truncated));
}

#[test]
fn a_frame_past_the_limit_is_not_made() {
    let blobs = vec![Blob(vec![0; MAX_BODY_BYTES])];
    let frame = Frame::Answer { id: 1, result: Ok(Reply::Blobs { blobs }) };
    assert!(matches!(encode(&frame), Err(WireError::TooLong { limit: MAX_BODY_BYTES, .. })));
}
