//! How a member and a newcomer connect their buffers, while operations and everything else continue.
//!
//! A newcomer introduces itself to each member through the server, with what it exports for that member; the member
//! connects, and answers with what it exports itself. Each side retries for a lease: a peer may still be connected with
//! a former member of the rank, or a process may end a little later than its connection.
//!
//! An attempt may outlast the newcomer, whose rank another process then takes. Connecting a peer first disconnects it,
//! so a late attempt with the exports of the former process would undo the connection with the next. Therefore
//! [`Meetings`] makes the connections with each rank one at a time, and drops an attempt once a later introduction has
//! arrived.
//!
//! An attempt may fail for a reason that passes, such as a lease that is still held, or for one that does not, such as a
//! path that is not permitted: nothing tells them apart, so each is made again until the time is over. The newcomer then
//! goes on waiting to be admitted, and what its program gets is at most a timeout. Hence all reasons are logged.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use super::follower::Follower;
use crate::error::Error;
use crate::mask::Mask;
use crate::observe::Sight;
use crate::rendezvous::driver::Later;
use crate::rendezvous::wire::{Reply, Request};
use crate::rendezvous::{Blob, BootstrapError};

type Followers = [Arc<dyn Follower>];
type Result<T> = std::result::Result<T, BootstrapError>;

/// The state of introductions, by rank.
#[derive(Debug)]
pub(super) struct Meetings {
    doors: Mutex<BTreeMap<u32, Arc<Door>>>,
    sight: Arc<Sight>,
}

/// The number of an introduction, and its answer.
type Answered = Option<(u64, Result<Vec<Blob>>)>;

/// The state of introductions of one rank.
#[derive(Debug, Default)]
struct Door {
    /// The number of the newest introduction; the server numbers them in ascending order.
    newest: AtomicU64,
    /// The last introduction that was answered, and the answer. Locked while this member connects with the rank.
    answered: Mutex<Answered>,
    /// Whether this member's last introduction to the rank succeeded. Locked while it introduces itself.
    met: Mutex<bool>,
}

impl Meetings {
    pub(super) fn new(sight: Arc<Sight>) -> Self {
        Self { doors: Mutex::default(), sight }
    }

    fn door(&self, rank: u32) -> Arc<Door> {
        let mut doors = self.doors.lock().unwrap_or_else(PoisonError::into_inner);
        doors.entry(rank).or_default().clone()
    }

    /// Calls `act` while none of these ranks is being connected. A connection attempt begins by disconnecting, even if
    /// a new server merely repeats a request. A rank about to become active must be connected, so no attempt may run
    /// once it is active. Waits for running attempts, at most for `patience`.
    pub(super) fn between<T>(&self, ranks: &Mask, patience: Duration, act: impl FnOnce() -> T) -> T {
        let doors: Vec<Arc<Door>> = {
            let doors = self.doors.lock().unwrap_or_else(PoisonError::into_inner);
            doors.iter().filter(|(rank, _)| ranks.contains(**rank)).map(|(_, door)| door.clone()).collect()
        };
        let until = Instant::now() + patience;
        let _held: Vec<_> = doors.iter().map(|door| door.hold(until)).collect();
        act()
    }

    /// Connects this member, which is on standby, with a peer. A server that took over meanwhile repeats the request; a
    /// running attempt then answers both.
    pub(super) fn meet(
        &self,
        followers: &Followers,
        peer: u32,
        patience: Duration,
        later: &Later,
    ) -> Result<()> {
        let door = self.door(peer);
        let (mut met, was_under_way) = match door.met.try_lock() {
            Ok(met) => (met, false),
            Err(_) => (door.met.lock().unwrap_or_else(PoisonError::into_inner), true),
        };
        if was_under_way && *met {
            return Ok(());
        }
        let tell = |error: &_, last| self.sight.not_connected(peer, error, last);
        let result = again(patience, tell, || {
            if later.is_over() {
                return Err((Retry::No, gone()));
            }
            let newest = door.newest.load(Ordering::SeqCst);
            let blobs = introduce(followers, peer, patience, later).map_err(|error| (Retry::Yes, error))?;
            door.connect(newest, || connect(followers, peer, &blobs, patience))
                .unwrap_or_else(|| Err(overtaken(peer)))
                .map_err(|error| (Retry::Yes, error))
        });
        *met = result.is_ok();
        result
    }

    /// Connects a newcomer, and returns what it needs to connect with this member. A repeated introduction, for
    /// instance from a server that took over meanwhile, gets the same answer as before.
    pub(super) fn welcome(
        &self,
        followers: &Followers,
        newcomer: u32,
        ticket: u64,
        blobs: &[Blob],
        patience: Duration,
        later: &Later,
    ) -> Result<Vec<Blob>> {
        if blobs.len() != followers.len() {
            let reason = format!("it has {} buffers, and this member {}", blobs.len(), followers.len());
            let error = BootstrapError::OutOfOrder { op: OP.to_owned(), reason };
            self.sight.not_connected(newcomer, &error, true);
            return Err(error);
        }
        let tell = |error: &_, last| self.sight.not_connected(newcomer, error, last);
        self.door(newcomer).answer(newcomer, ticket, patience, tell, || {
            if later.is_over() {
                return Err((Retry::No, gone()));
            }
            let welcomed = connect(followers, newcomer, blobs, patience).and_then(|()| {
                let export = |it: &Arc<dyn Follower>| it.export(newcomer).map(Blob).map_err(refusal);
                followers.iter().map(export).collect()
            });
            welcomed.map_err(|error| (Retry::Yes, error))
        })
    }
}

impl Door {
    /// Connects, unless a later introduction has arrived.
    fn connect<T>(&self, newest: u64, connect: impl FnOnce() -> T) -> Option<T> {
        let _one_at_a_time = self.answered.lock().unwrap_or_else(PoisonError::into_inner);
        (self.newest.load(Ordering::SeqCst) == newest).then(connect)
    }

    /// Keeps everybody from connecting with the rank. None: an attempt was still running at `until`.
    fn hold(&self, until: Instant) -> Option<MutexGuard<'_, Answered>> {
        loop {
            match self.answered.try_lock() {
                Ok(held) => return Some(held),
                Err(TryLockError::Poisoned(held)) => return Some(held.into_inner()),
                Err(TryLockError::WouldBlock) if Instant::now() >= until => return None,
                Err(TryLockError::WouldBlock) => std::thread::sleep(Duration::from_millis(1)),
            }
        }
    }

    fn answer(
        &self,
        rank: u32,
        ticket: u64,
        patience: Duration,
        tell: impl Fn(&BootstrapError, bool),
        attempt: impl Fn() -> std::result::Result<Vec<Blob>, (Retry, BootstrapError)>,
    ) -> Result<Vec<Blob>> {
        // An attempt for an earlier introduction then stops and releases the lock.
        self.newest.fetch_max(ticket, Ordering::SeqCst);
        let mut answered = self.answered.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((of, result)) = answered.as_ref()
            && *of == ticket
        {
            return result.clone();
        }
        let result = again(patience, tell, || match self.newest.load(Ordering::SeqCst) == ticket {
            true => attempt(),
            false => Err((Retry::No, overtaken(rank))),
        });
        if self.newest.load(Ordering::SeqCst) == ticket {
            *answered = Some((ticket, result.clone()));
        }
        result
    }
}

/// Whether another attempt makes sense.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Retry {
    Yes,
    No,
}

/// Retries until it succeeds or the time is over. Tells of each error that differs from the one before, and of the last,
/// but not of the one that forbids another attempt.
fn again<T>(
    patience: Duration,
    tell: impl Fn(&BootstrapError, bool),
    attempt: impl Fn() -> std::result::Result<T, (Retry, BootstrapError)>,
) -> Result<T> {
    const PAUSE: Duration = Duration::from_millis(20);
    let (began, mut told) = (Instant::now(), None);
    loop {
        let error = match attempt() {
            Ok(done) => return Ok(done),
            Err((Retry::No, error)) => return Err(error),
            Err((Retry::Yes, error)) => error,
        };
        if began.elapsed() >= patience {
            tell(&error, true);
            return Err(error);
        }
        if told.as_ref() != Some(&error) {
            tell(&error, false);
            told = Some(error);
        }
        std::thread::sleep(PAUSE);
    }
}

/// What a peer exports for this member.
fn introduce(followers: &Followers, peer: u32, patience: Duration, later: &Later) -> Result<Vec<Blob>> {
    let export = |follower: &Arc<dyn Follower>| follower.export(peer).map(Blob).map_err(refusal);
    let blobs = followers.iter().map(export).collect::<Result<_>>()?;
    let request = Request::Introduce { rank: peer, blobs, deadline: patience.saturating_mul(2) };
    match later.call(OP, request, patience.saturating_mul(2))? {
        Reply::Blobs { blobs } => Ok(blobs),
        _ => Err(BootstrapError::unexpected_answer(OP)),
    }
}

fn connect(followers: &Followers, peer: u32, blobs: &[Blob], patience: Duration) -> Result<()> {
    let mut pairs = followers.iter().zip(blobs);
    pairs.try_for_each(|(follower, blob)| follower.connect(peer, &blob.0, patience).map_err(refusal))
}

const OP: &str = "introduce a newcomer";

fn refusal(error: Error) -> BootstrapError {
    BootstrapError::OutOfOrder { op: OP.to_owned(), reason: error.to_string() }
}

fn overtaken(rank: u32) -> BootstrapError {
    let reason = format!("there is a later introduction of rank {rank}");
    BootstrapError::OutOfOrder { op: OP.to_owned(), reason }
}

fn gone() -> BootstrapError {
    BootstrapError::OutOfOrder { op: OP.to_owned(), reason: "this member has left".to_owned() }
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};
    use std::sync::atomic::AtomicBool;

    use super::*;

    const LONG: Duration = Duration::from_secs(20);

    fn silent(_: &BootstrapError, _: bool) {}

    fn blobs(byte: u8) -> Vec<Blob> {
        vec![Blob(vec![byte])]
    }

    #[test]
    fn nothing_is_tried_any_more_for_whom_another_process_has_replaced() {
        let (door, tried) = (Door::default(), AtomicU64::new(0));
        std::thread::scope(|scope| {
            let former = scope.spawn(|| {
                door.answer(4, 1, LONG, silent, || {
                    tried.fetch_add(1, Ordering::SeqCst);
                    Err((Retry::Yes, gone())) // its process has ended
                })
            });
            while tried.load(Ordering::SeqCst) < 2 {
                std::thread::yield_now();
            }
            let before = AtomicU64::new(0);
            let next = door.answer(4, 2, LONG, silent, || {
                before.store(tried.load(Ordering::SeqCst), Ordering::SeqCst);
                Ok(blobs(2))
            });
            assert_eq!(next, Ok(blobs(2)));
            assert_eq!(former.join().unwrap(), Err(overtaken(4)));
            assert_eq!(tried.load(Ordering::SeqCst), before.load(Ordering::SeqCst), "after the next one");
        });
        let late = door.answer(4, 1, LONG, silent, || panic!("it would undo the connection with the next"));
        assert_eq!(late, Err(overtaken(4)));
        let again = door.answer(4, 2, LONG, silent, || panic!("it is connected"));
        assert_eq!(again, Ok(blobs(2)));
        assert_eq!(door.connect(1, || ()), None);
        assert_eq!(door.connect(2, || ()), Some(()));
    }

    #[test]
    fn every_error_is_told_and_only_once_in_a_row() {
        let told = RefCell::new(Vec::new());
        let tell = |error: &BootstrapError, last| told.borrow_mut().push((error.clone(), last));
        let attempts = Cell::new(0);
        let done = again(LONG, tell, || {
            attempts.set(attempts.get() + 1);
            match attempts.get() {
                1 | 2 => Err((Retry::Yes, gone())),
                3 => Err((Retry::Yes, overtaken(4))),
                _ => Ok(()),
            }
        });
        assert_eq!(done, Ok(()));
        assert_eq!(told.take(), [(gone(), false), (overtaken(4), false)]);
        let late = again::<()>(Duration::ZERO, tell, || Err((Retry::Yes, gone())));
        assert_eq!((late, told.take()), (Err(gone()), vec![(gone(), true)]));
        let refused = again::<()>(LONG, tell, || Err((Retry::No, gone())));
        assert_eq!((refused, told.take()), (Err(gone()), vec![]));
    }

    #[test]
    fn a_membership_begins_while_nobody_of_it_is_being_connected() {
        let meetings = Meetings::new(Arc::new(Sight::new(0)));
        let (connected, trying) = (AtomicBool::new(true), AtomicBool::new(false));
        let (goes_on, waits) = std::sync::mpsc::channel::<()>();
        std::thread::scope(|scope| {
            let (meetings, connected, trying) = (&meetings, &connected, &trying);
            scope.spawn(move || {
                meetings.door(4).answer(4, 2, LONG, silent, || {
                    connected.store(false, Ordering::SeqCst);
                    trying.store(true, Ordering::SeqCst);
                    let _ = waits.recv_timeout(LONG);
                    std::thread::sleep(Duration::from_millis(10)); // until the last call below waits
                    connected.store(true, Ordering::SeqCst);
                    Ok(blobs(1))
                })
            });
            while !trying.load(Ordering::SeqCst) {
                std::thread::yield_now();
            }
            let is_connected = || connected.load(Ordering::SeqCst);
            let mask = |rank: u32| [rank].into_iter().collect::<Mask>();
            assert!(!meetings.between(&mask(5), LONG, is_connected), "others are no concern of it");
            assert!(!meetings.between(&mask(4), Duration::from_millis(1), is_connected), "it has a bound");
            drop(goes_on);
            assert!(meetings.between(&mask(4), LONG, is_connected));
        });
    }

    #[test]
    fn an_introduction_that_is_repeated_is_answered_as_it_was() {
        let door = Door::default();
        assert_eq!(door.answer(4, 1, LONG, silent, || Ok(blobs(1))), Ok(blobs(1)));
        assert_eq!(door.answer(4, 1, LONG, silent, || panic!("it is connected")), Ok(blobs(1)));
        assert_eq!(door.answer(4, 2, LONG, silent, || Err((Retry::No, gone()))), Err(gone()));
        assert_eq!(door.answer(4, 3, LONG, silent, || Ok(blobs(3))), Ok(blobs(3)));
    }
}
