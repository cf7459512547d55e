//! Processes that share a log, the network between them, and the invariants.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};

use super::super::*;
use crate::rendezvous::codec::{Reader, Wire, WireError};
use crate::rendezvous::random::Random;

pub(super) const MS: Duration = Duration::from_millis(1);
/// Most bytes of a message.
const FRAME: usize = 8 << 20;

/// What has been observed of all copies together.
#[derive(Default)]
pub(super) struct Seen {
    /// The records in order, as far as any copy has applied them.
    pub(super) order: Vec<u64>,
    /// The acknowledged records, with the terms in which they were appended.
    pub(super) acknowledged: BTreeMap<u64, u64>,
    /// The records reported to be in no copy, ever.
    pub(super) refused: BTreeSet<u64>,
    /// The leader of each term.
    leaders: BTreeMap<u64, u128>,
    /// The leader before the last one, and since when the last one considered it silent.
    pub(super) former: Option<(u128, Instant)>,
    /// The first violation. It is kept here because copies run in tasks, where a panic would go unnoticed.
    wrong: Option<String>,
    pub(super) counts: BTreeMap<&'static str, u32>,
}

impl Seen {
    pub(super) fn is_wrong(&mut self, what: String) {
        self.wrong.get_or_insert(what);
    }
}

pub(super) type Shared = Arc<Mutex<Seen>>;

/// The state machine of these tests: the sequence of the numbers in the records.
pub(super) struct Tape {
    numbers: Mutex<Vec<u64>>,
    seen: Shared,
}

impl Tape {
    pub(super) fn numbers(&self) -> Vec<u64> {
        self.numbers.lock().unwrap().clone()
    }
}

impl StateMachine for Tape {
    fn apply(&self, record: &[u8]) {
        let number = u64::from_le_bytes(record[..8].try_into().unwrap());
        let mut numbers = self.numbers.lock().unwrap();
        let mut seen = self.seen.lock().unwrap();
        let at = numbers.len();
        numbers.push(number);
        match seen.order.get(at) {
            Some(known) if *known == number => {}
            Some(known) => {
                let what = format!("record {at} is {number} in one copy and {known} in another");
                seen.is_wrong(what);
            }
            None if seen.order.contains(&number) => seen.is_wrong(format!("{number} is there twice")),
            None => seen.order.push(number),
        }
    }

    fn snapshot(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.numbers().put(&mut bytes);
        bytes
    }

    fn restore(&self, snapshot: &[u8]) -> Result<(), WireError> {
        let mut seen = self.seen.lock().unwrap();
        let Ok(numbers) = <Vec<u64>>::get(&mut Reader::new(snapshot)) else {
            seen.is_wrong("a snapshot of no tape".to_owned());
            return Ok(()); // an error would end the copy
        };
        if !seen.order.starts_with(&numbers) {
            seen.is_wrong("a snapshot of another order".to_owned());
        }
        *seen.counts.entry("restored").or_default() += 1;
        *self.numbers.lock().unwrap() = numbers;
        Ok(())
    }
}

/// One copy of the log, and its process.
#[derive(Clone)]
pub(super) struct Process {
    pub(super) slot: u64,
    pub(super) voter: Voter,
    pub(super) log: Log,
    pub(super) tape: Arc<Tape>,
}

/// Links, and the processes at their ends.
pub(super) struct Net {
    random: Random,
    pub(super) living: BTreeMap<u128, Log>,
    pub(super) blocked: BTreeSet<(u64, u64)>,
    /// Percentages of messages that are lost, duplicated, late.
    pub(super) odds: [u64; 3],
    /// Longest delay of a message in milliseconds.
    pub(super) slow: u64,
    /// Longest question.
    pub(super) longest: usize,
    /// When something last arrived from the process with the first id at the process with the second.
    pub(super) arrived: BTreeMap<(u128, u128), Instant>,
    /// Whom each process may still ask.
    pub(super) known: BTreeMap<u128, BTreeSet<u128>>,
}

/// A process's end of all its links.
struct End {
    slot: u64,
    id: u128,
    net: Weak<Mutex<Net>>,
}

/// The delay of a message between two processes, `None` if it is lost.
fn way(net: &Weak<Mutex<Net>>, from: u64, to: u64) -> Option<Duration> {
    let net = net.upgrade()?;
    let mut net = net.lock().unwrap();
    let [lost, _, late] = net.odds;
    if net.blocked.contains(&(from, to)) || net.random.below(100) < lost {
        return None;
    }
    let most = if net.random.below(100) < late { 1_500 } else { net.slow };
    Some(MS * (1 + net.random.below(most)) as u32)
}

impl Carrier for End {
    fn ask(&self, to: &Voter, question: Question, _deadline: Duration) -> Asked {
        let (from, own, net, to) = (self.slot, self.id, self.net.clone(), to.clone());
        let mut bytes = Vec::new();
        question.put(&mut bytes);
        let slot: u64 = to.address.parse().unwrap();
        let Some(shared) = net.upgrade() else { return Box::pin(async { Err("no network".to_owned()) }) };
        let copies = {
            let mut net = shared.lock().unwrap();
            net.longest = net.longest.max(bytes.len());
            assert!(bytes.len() <= FRAME);
            if !net.living.contains_key(&own) {
                return Box::pin(async { Err("dead".to_owned()) });
            }
            let doubled = net.odds[1];
            1 + u64::from(net.random.below(100) < doubled)
        };
        let (say, hear) = tokio::sync::oneshot::channel();
        let mut say = Some(say);
        // Messages on their way arrive whether or not anybody still waits.
        for _ in 0..copies {
            let (bytes, net, say) = (bytes.clone(), net.clone(), say.take());
            tokio::spawn(async move {
                let Some(takes) = way(&net, from, slot) else { return };
                sleep(takes).await;
                // The process that currently answers at this address: after a restart it has another copy.
                let log = net.upgrade().and_then(|net| {
                    let net = net.lock().unwrap();
                    net.living.values().find(|log| log.slot() == slot).cloned()
                });
                let Some(log) = log else { return };
                let question = Question::get(&mut Reader::new(&bytes)).unwrap();
                let arrived = |from, to| {
                    if let Some(net) = net.upgrade() {
                        net.lock().unwrap().arrived.insert((from, to), Instant::now());
                    }
                };
                if question.to == log.id() {
                    arrived(own, log.id());
                }
                let answer = log.answer(question).await;
                let Some(takes) = way(&net, slot, from) else { return };
                sleep(takes).await;
                let mut bytes = Vec::new();
                answer.put(&mut bytes);
                if let Some(say) = say
                    && say.send(Answer::get(&mut Reader::new(&bytes)).unwrap()).is_ok()
                {
                    arrived(log.id(), own);
                }
            });
        }
        Box::pin(async { hear.await.map_err(|_| "lost".to_owned()) })
    }

    fn keep(&self, known: &BTreeSet<u128>) {
        if let Some(net) = self.net.upgrade() {
            net.lock().unwrap().known.insert(self.id, known.clone());
        }
    }
}

/// Processes find each other by their slot, which is in the low bits of the ids that the tests choose.
trait Slot {
    fn slot(&self) -> u64;
}

impl Slot for Log {
    fn slot(&self) -> u64 {
        slot_of(self.id())
    }
}

fn slot_of(id: u128) -> u64 {
    id as u64 % 100
}

pub(super) struct World {
    pub(super) random: Random,
    pub(super) net: Arc<Mutex<Net>>,
    pub(super) seen: Shared,
    pub(super) processes: Vec<Process>,
    timing: Timing,
    copies: u64,
    pub(super) numbers: u64,
}

impl World {
    /// A log, founded by the process in slot 0.
    pub(super) async fn new(seed: u64, timing: Timing) -> Self {
        let net = Net {
            random: Random(seed ^ 0xface),
            living: BTreeMap::new(),
            blocked: BTreeSet::new(),
            odds: [0; 3],
            slow: 5,
            longest: 0,
            arrived: BTreeMap::new(),
            known: BTreeMap::new(),
        };
        let mut world = Self {
            random: Random(seed),
            net: Arc::new(Mutex::new(net)),
            seen: Shared::default(),
            processes: Vec::new(),
            timing,
            copies: 0,
            numbers: 0,
        };
        world.start(0, true).await;
        world
    }

    pub(super) fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap()
    }

    pub(super) fn net(&self) -> MutexGuard<'_, Net> {
        self.net.lock().unwrap()
    }

    /// A new id for an empty copy.
    fn id(&mut self, slot: u64) -> u128 {
        self.copies += 1;
        u128::from(self.random.below(1 << 40)) << 64 | u128::from(self.copies * 100 + slot)
    }

    /// Starts a process with an empty copy, or the one that begins the log.
    pub(super) async fn start(&mut self, slot: u64, founds: bool) -> Process {
        let id = self.id(slot);
        let voter = Voter { id, address: slot.to_string() };
        let tape = Arc::new(Tape { numbers: Mutex::default(), seen: self.seen.clone() });
        let end = Arc::new(End { slot, id, net: Arc::downgrade(&self.net) });
        let log = Log::empty(voter.clone(), tape.clone(), end, self.timing).await.unwrap();
        if founds {
            log.found().await.unwrap();
        }
        self.net().living.insert(id, log.clone());
        let (mut leadership, seen, copy) = (log.leadership(), self.seen.clone(), tape.clone());
        let net = Arc::downgrade(&self.net);
        tokio::spawn(async move {
            loop {
                let now = leadership.borrow_and_update().clone();
                if now.leads {
                    let numbers = copy.numbers();
                    let mut seen = seen.lock().unwrap();
                    let former = seen.acknowledged.iter().filter(|(_, term)| **term < now.term);
                    if let Some((number, _)) =
                        former.into_iter().find(|(number, _)| !numbers.contains(number))
                    {
                        let what = format!("{number} is not known to the leader of term {}", now.term);
                        seen.is_wrong(what);
                    }
                    let led = seen.leaders.len();
                    let known = *seen.leaders.entry(now.term).or_insert(id);
                    if known != id {
                        seen.is_wrong(format!("two leaders of term {}", now.term));
                    }
                    if seen.leaders.len() > led {
                        *seen.counts.entry("terms led").or_default() += 1;
                    }
                    // A server that leads asks once, and again only after another one has led.
                    let net = net.upgrade();
                    let net = net.as_ref().map(|net| net.lock().unwrap());
                    if let Some((net, log)) = net.as_ref().and_then(|net| Some((net, net.living.get(&id)?))) {
                        seen.former = log.former_leader();
                        if let Some((former, since)) = seen.former {
                            *seen.counts.entry("former leaders").or_default() += 1;
                            if net.arrived.get(&(former, id)).is_some_and(|at| *at > since) {
                                seen.is_wrong("a former leader counts as silent that was heard".to_owned());
                            }
                        }
                        log.lead();
                    }
                }
                if leadership.changed().await.is_err() {
                    return;
                }
            }
        });
        let process = Process { slot, voter, log, tape };
        self.processes.push(process.clone());
        process
    }

    pub(super) async fn kill(&mut self, id: u128) {
        self.processes.retain(|process| process.voter.id != id);
        let log = self.net().living.remove(&id);
        log.unwrap().stop().await;
    }

    pub(super) fn leader(&self) -> Option<Process> {
        let leads = |process: &&Process| process.log.leadership().borrow().leads;
        // The leader of the latest term, in case another does not know yet that it has been deposed.
        let leaders = self.processes.iter().filter(leads);
        leaders.max_by_key(|process| process.log.leadership().borrow().term).cloned()
    }

    pub(super) async fn await_leader(&self, within: Duration) -> Process {
        let found = timeout(within, async {
            loop {
                if let Some(leader) = self.leader() {
                    return leader;
                }
                sleep(10 * MS).await;
            }
        });
        found.await.unwrap_or_else(|_| {
            let all: Vec<_> = self.processes.iter().map(|it| (it.slot, &it.log)).collect();
            panic!("no leader among {all:#?}")
        })
    }

    /// The next number, as a record of this length, or of 8 bytes if that is more.
    pub(super) fn record(&mut self, length: usize) -> Vec<u8> {
        self.numbers += 1;
        let mut record = self.numbers.to_le_bytes().to_vec();
        record.resize(length.max(8), 0);
        record
    }

    /// Appends a record and waits for it.
    pub(super) async fn append(&mut self, at: &Process, length: usize) -> Result<(), AppendError> {
        let record = self.record(length);
        let (number, term) = (self.numbers, at.log.leadership().borrow().term);
        let done = at.log.append(record).await;
        if done.is_ok() {
            self.seen().acknowledged.insert(number, term);
        }
        done
    }

    /// Waits until all living processes have applied everything that was acknowledged, and none knows more than
    /// another.
    pub(super) async fn await_even(&self, within: Duration) {
        let until = Instant::now() + within;
        loop {
            let order = self.seen().order.clone();
            let behind: Vec<u64> =
                self.processes.iter().filter(|it| it.tape.numbers() != order).map(|it| it.slot).collect();
            if behind.is_empty() {
                return;
            }
            assert!(Instant::now() < until, "processes {behind:?} are behind");
            sleep(10 * MS).await;
        }
    }

    /// The invariants.
    pub(super) fn check(&self) {
        let seen = self.seen();
        if let Some(wrong) = &seen.wrong {
            panic!("{wrong}");
        }
        for number in seen.acknowledged.keys() {
            assert!(seen.order.contains(number), "{number} was acknowledged, and is in no copy");
        }
        let back = seen.order.iter().find(|number| seen.refused.contains(number));
        assert_eq!(back, None, "a record that was refused is in a copy");
        for process in &self.processes {
            assert!(process.log.leadership().has_changed().is_ok(), "the copy of {} has ended", process.slot);
        }
    }
}
