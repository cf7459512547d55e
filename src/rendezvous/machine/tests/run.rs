//! A machine with its own clock, for cases that are lists of events.

use super::*;

/// A machine, its clock, and its answers.
pub(super) struct Run {
    pub(super) machine: Machine,
    pub(super) leases: Leases,
    pub(super) now: Duration,
    pub(super) answers: BTreeMap<(SessionId, u64), Result<Reply, BootstrapError>>,
    pub(super) closed: Vec<SessionId>,
    pub(super) asks: Vec<(SessionId, Ask)>,
    /// The last outcome that each session was told.
    pub(super) settled: BTreeMap<SessionId, Result<Decision, BootstrapError>>,
    /// Who was on standby then, and still is.
    pub(super) waiting: Standby,
    /// The members that each session has been told of since it joined.
    pub(super) rosters: BTreeMap<SessionId, BTreeMap<u32, u128>>,
    /// The epoch of the last view shown to each session.
    pub(super) shown: BTreeMap<SessionId, u32>,
    pub(super) next_id: u64,
}

impl Run {
    pub(super) fn new(world: u32) -> Self {
        let settings = Settings {
            run_id: "run".to_owned(),
            world,
            initial: world,
            join_deadline: 30 * SECOND,
            lease: 5 * SECOND,
            arbiter: false,
        };
        let machine = Machine::new(settings).unwrap();
        Self {
            machine,
            leases: Leases::new(5 * SECOND),
            now: Duration::ZERO,
            answers: BTreeMap::new(),
            closed: Vec::new(),
            asks: Vec::new(),
            settled: BTreeMap::new(),
            waiting: Standby::default(),
            rosters: BTreeMap::new(),
            shown: BTreeMap::new(),
            next_id: 0,
        }
    }

    /// A run that has come together; rank r has session r, with member id r.
    pub(super) fn formed(world: u32) -> Self {
        let mut run = Self::new(world);
        for rank in 0..world {
            run.join(u64::from(rank), rank, u128::from(rank));
        }
        assert_eq!(run.machine.view().epoch, 1);
        run
    }

    pub(super) fn event(&mut self, event: Event) {
        match event {
            Event::Request { call: Call { session, .. }, .. } | Event::Noticed { session, .. } => {
                self.hear(session)
            }
            Event::Closed { session, by_peer: true } => self.leases.forget(session),
            _ => {}
        }
        for action in self.machine.handle(self.now, event) {
            match action {
                Action::Answer { call, result } => {
                    let former = self.answers.insert((call.session, call.id), result);
                    assert!(former.is_none(), "{call:?} was answered twice");
                }
                Action::Close { session } => self.closed.push(session),
                Action::Ask { session, ask } => self.asks.push((session, ask)),
                Action::Settle { session, outcome, waiting, .. } => {
                    if let Ok(decision) = &outcome {
                        let shown = self.shown.get(&session).copied();
                        assert!(
                            shown >= Some(decision.epoch),
                            "{session} was shown {shown:?} before {decision:?}"
                        );
                    }
                    self.settled.insert(session, outcome);
                    self.waiting = *waiting;
                }
                Action::Seat { session, members } => {
                    let roster = self.rosters.entry(session).or_default();
                    roster.extend(members.iter().map(|identity| (identity.rank, identity.member)));
                }
                Action::Show { session, view } => drop(self.shown.insert(session, view.epoch)),
            }
        }
    }

    /// A sign of life.
    pub(super) fn hear(&mut self, session: SessionId) {
        if let Some(event) = self.leases.heard(self.now, session) {
            self.event(event);
        }
    }

    pub(super) fn ask(&mut self, session: SessionId, request: Request) -> (SessionId, u64) {
        self.next_id += 1;
        self.ask_as((session, self.next_id), request);
        (session, self.next_id)
    }

    pub(super) fn ask_as(&mut self, (session, id): (SessionId, u64), request: Request) {
        self.event(Event::Request { call: Call { session, id }, request: Box::new(request) });
    }

    pub(super) fn join(&mut self, session: SessionId, rank: u32, member: u128) -> (SessionId, u64) {
        let join = join(rank, member, self.machine.settings.world);
        self.ask(session, Request::Join { join })
    }

    pub(super) fn notice(&mut self, session: SessionId, notice: Notice) {
        self.event(Event::Noticed { session, notice });
    }

    pub(super) fn doubt(&mut self, session: SessionId, peers: &[u32]) {
        let epoch = self.machine.decision.epoch;
        self.notice(session, Notice::Doubt { epoch, peers: peers.iter().copied().collect() });
    }

    /// Answers the questions in these sessions until there are no more: the member of session s promises step 10 * s,
    /// and does not reach the peers that `missing` lists for it.
    pub(super) fn reply(&mut self, sessions: &[SessionId], missing: &[(SessionId, &[u32])]) {
        self.reply_seeing(sessions, missing, &[]);
    }

    /// The same; in addition, members have seen those that `diverged` lists for them begin the membership at another
    /// step.
    pub(super) fn reply_seeing(
        &mut self,
        sessions: &[SessionId],
        missing: &[(SessionId, &[u32])],
        diverged: &[(SessionId, &[u32])],
    ) {
        while let Some(at) = self.asks.iter().position(|(session, _)| sessions.contains(session)) {
            let (session, ask) = self.asks.remove(at);
            let notice = match ask {
                Ask::Promise { change, .. } => Notice::Promise { change, step: 10 * session },
                Ask::Reach { change, peers, epoch, step } => {
                    let now = self.machine.decision;
                    assert_eq!((epoch, step), (now.epoch, now.step));
                    let of = |listed: &[(SessionId, &[u32])]| -> Mask {
                        let mine = listed.iter().filter(|(of, _)| *of == session);
                        mine.flat_map(|(_, ranks)| ranks.iter().copied()).collect()
                    };
                    let own: Mask = self.machine.sessions.get(&session).copied().into_iter().collect();
                    let missing = of(missing).and(&peers.or(&own));
                    Notice::Reached { change, missing, diverged: Box::new(of(diverged)) }
                }
                Ask::Meet { peers } => Notice::Met { peers },
                Ask::Introduce { ticket, .. } => Notice::Introduced { ticket, result: Ok(Vec::new()) },
            };
            self.notice(session, notice);
        }
    }

    /// Answers the questions in these sessions: their members promise this step.
    pub(super) fn promise(&mut self, sessions: &[SessionId], step: u64) {
        while let Some(at) = self.asks.iter().position(|(session, _)| sessions.contains(session)) {
            let (session, ask) = self.asks.remove(at);
            let Ask::Promise { change, .. } = ask else { panic!("{ask:?}") };
            self.notice(session, Notice::Promise { change, step });
        }
    }

    /// The membership, its epoch and its first step.
    pub(super) fn decided(&self) -> (String, u32, u64) {
        let Decision { mask, epoch, step } = self.machine.decision;
        (mask.to_string(), epoch, step)
    }

    pub(super) fn round(
        &mut self,
        session: SessionId,
        tag: &str,
        ranks: Mask,
        kind: RoundKind,
    ) -> (SessionId, u64) {
        self.ask(
            session,
            Request::Round { round: Round { tag: tag.to_owned(), ranks, deadline: 10 * SECOND, kind } },
        )
    }

    pub(super) fn close(&mut self, session: SessionId) {
        self.asks.retain(|(of, _)| *of != session);
        self.event(Event::Closed { session, by_peer: true });
    }

    /// Lets time pass while the clients of these sessions give signs of life.
    pub(super) fn pass(&mut self, time: Duration, alive: &[SessionId]) {
        let end = self.now + time;
        while self.now < end {
            self.now = (self.now + SECOND).min(end);
            alive.iter().for_each(|session| self.hear(*session));
            self.leases.expire(self.now).into_iter().for_each(|event| self.event(event));
            self.event(Event::Tick);
            let next =
                [self.machine.next_deadline(), self.leases.next_deadline()].into_iter().flatten().min();
            assert!(next.is_none_or(|next| next > self.now), "still due at {:?}: {next:?}", self.now);
        }
    }

    pub(super) fn answer(&self, call: (SessionId, u64)) -> Option<&Result<Reply, BootstrapError>> {
        self.answers.get(&call)
    }

    pub(super) fn error(&self, call: (SessionId, u64)) -> &BootstrapError {
        self.answer(call).expect("no answer").as_ref().expect_err("no error")
    }

    pub(super) fn state(&self, rank: u32) -> RankState {
        self.machine.view().states[rank as usize]
    }
}

pub(super) fn join(rank: u32, member: u128, world: u32) -> Join {
    Join {
        version: PROTOCOL_VERSION,
        run_id: "run".to_owned(),
        world,
        initial: world,
        identity: Identity {
            rank,
            member,
            host: format!("host{rank}"),
            pid: 100 + rank,
            process_space: String::new(),
        },
        deadline: 20 * SECOND,
        config: vec![("hidden".to_owned(), "7168".to_owned())],
        listener: None,
    }
}
