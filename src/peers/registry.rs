//! What the tasks of a process await, of all its buffers and communicators. Pure: times and what was found come from outside.

use std::task::Waker;
use std::time::{Duration, Instant};

/// Entries of several owners, whose operations are those of a `W`.
#[derive(Debug)]
pub(super) struct Registry<W> {
    entries: Vec<Entry<W>>,
    entered: u64,
}

impl<W> Default for Registry<W> {
    fn default() -> Self {
        Self { entries: Vec::new(), entered: 0 }
    }
}

/// An operation, and who is to do something about it.
#[derive(Debug)]
pub(super) struct Entry<W> {
    number: u64,
    of: Operation<W>,
    since: Instant,
    purpose: Purpose,
}

/// An operation that is under way, or has been.
#[derive(Debug, Clone)]
pub(super) struct Operation<W> {
    /// Who leaves with all that is its own.
    pub(super) owner: u64,
    pub(super) what: W,
    pub(super) handle: u64,
    /// Longest time between two looks.
    pub(super) slice: Duration,
}

#[derive(Debug)]
enum Purpose {
    /// A task is polled when the operation may go on, or it is time for a look.
    Wake(Waker),
    /// The thread itself goes on with the operation's wait, until then at most, however busy the task's executor is: this is what
    /// shows the peers that the rank waits too.
    Tend(Option<Instant>),
}

/// An entry in a round of the thread.
#[derive(Debug)]
pub(super) struct Turn<W> {
    pub(super) number: u64,
    pub(super) of: Operation<W>,
    /// Since it was entered, or looked at.
    pub(super) age: Duration,
    pub(super) is_tended: bool,
}

impl<W> Turn<W> {
    pub(super) fn is_due(&self, later: Duration) -> bool {
        self.age + later >= self.of.slice
    }
}

/// What a round has found of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Found {
    /// Nothing new.
    Nothing,
    /// To be polled; of one that is tended: it has been looked at, and goes on.
    News,
    /// It is tended no more.
    End,
}

impl<W: Clone> Registry<W> {
    fn enter(&mut self, of: Operation<W>, purpose: Purpose, now: Instant) {
        self.entered += 1;
        self.entries.push(Entry { number: self.entered, of, since: now, purpose });
    }

    fn find(&mut self, of: &Operation<W>, same: impl Fn(&Purpose) -> bool) -> Option<&mut Entry<W>> {
        let of = (of.owner, of.handle);
        self.entries.iter_mut().find(|entry| (entry.of.owner, entry.of.handle) == of && same(&entry.purpose))
    }

    /// Several tasks may await one operation. Gives the waker back where it has been entered before.
    pub(super) fn wake_later(&mut self, of: Operation<W>, waker: Waker, now: Instant) -> Option<Waker> {
        let same = |purpose: &Purpose| matches!(purpose, Purpose::Wake(task) if task.will_wake(&waker));
        match self.find(&of, same) {
            Some(entry) => {
                entry.since = now;
                Some(waker)
            }
            None => {
                self.enter(of, Purpose::Wake(waker), now);
                None
            }
        }
    }

    pub(super) fn tend(&mut self, of: Operation<W>, until: Option<Instant>, now: Instant) {
        match self.find(&of, |purpose| matches!(purpose, Purpose::Tend(_))) {
            Some(entry) => entry.purpose = Purpose::Tend(until),
            None => self.enter(of, Purpose::Tend(until), now),
        }
    }

    /// What a round is to look at.
    pub(super) fn round(&self, now: Instant) -> Vec<Turn<W>> {
        let turn = |entry: &Entry<W>| Turn {
            number: entry.number,
            of: entry.of.clone(),
            age: now.saturating_duration_since(entry.since),
            is_tended: matches!(entry.purpose, Purpose::Tend(_)),
        };
        self.entries.iter().map(turn).collect()
    }

    /// How long the round may take: until the first is due. Of an empty one, for ever.
    pub(super) fn time(&self, now: Instant) -> Duration {
        let left =
            |entry: &Entry<W>| entry.of.slice.saturating_sub(now.saturating_duration_since(entry.since));
        self.entries.iter().map(left).min().unwrap_or(Duration::MAX)
    }

    /// What a round has found, by ascending number: the tasks to be woken. Entries that came or went meanwhile are left alone.
    pub(super) fn end_round(&mut self, found: &[(u64, Found)], now: Instant) -> Vec<Waker> {
        let mut woken = Vec::new();
        let found = |number: u64| {
            found
                .binary_search_by_key(&number, |(number, _)| *number)
                .map_or(Found::Nothing, |at| found[at].1)
        };
        let (entries, mut kept) = (std::mem::take(&mut self.entries), Vec::new());
        for mut entry in entries {
            let found = found(entry.number);
            match entry.purpose {
                Purpose::Wake(task) if found != Found::Nothing => woken.push(task),
                Purpose::Tend(until) if found == Found::End || until.is_some_and(|until| now >= until) => {}
                purpose => {
                    if found != Found::Nothing {
                        entry.since = now;
                    }
                    entry.purpose = purpose;
                    kept.push(entry);
                }
            }
        }
        self.entries = kept;
        woken
    }

    /// Takes the owner's entries out. To be dropped where nothing is locked: wakers are code of executors.
    pub(super) fn leave(&mut self, owner: u64) -> Vec<Entry<W>> {
        let (left, kept) =
            std::mem::take(&mut self.entries).into_iter().partition(|entry| entry.of.owner == owner);
        self.entries = kept;
        left
    }
}

#[cfg(test)]
mod tests {
    #![allow(
        clippy::expect_used,
        clippy::panic,
        clippy::unwrap_used,
        reason = "a test panics where it fails"
    )]

    use std::collections::BTreeSet;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::task::Wake;

    use proptest::prelude::*;

    use super::*;

    const SLICE: Duration = Duration::from_millis(10);

    #[derive(Default)]
    struct Counted(AtomicU32);

    impl Wake for Counted {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[derive(Debug, Clone)]
    enum Act {
        Await {
            owner: u64,
            handle: u64,
            task: usize,
        },
        Tend {
            owner: u64,
            handle: u64,
        },
        Leave {
            owner: u64,
        },
        /// A round begins; what the other fields name happens while it lasts; then it ends, having found these handles.
        Round {
            meanwhile: Vec<Act>,
            ready: BTreeSet<u64>,
            ended: BTreeSet<u64>,
            ms: u64,
        },
    }

    const TASKS: usize = 3;

    fn act() -> impl Strategy<Value = Act> {
        let (owner, handle) = (0..3_u64, 0..3_u64);
        let simple = prop_oneof![
            4 => (owner.clone(), handle.clone(), 0..TASKS)
                .prop_map(|(owner, handle, task)| Act::Await { owner, handle, task }),
            1 => (owner.clone(), handle.clone()).prop_map(|(owner, handle)| Act::Tend { owner, handle }),
            1 => owner.prop_map(|owner| Act::Leave { owner }),
        ];
        let handles = || prop::collection::btree_set(0..3_u64, 0..3);
        let round = (prop::collection::vec(simple.clone(), 0..4), handles(), handles(), 0..15_u64)
            .prop_map(|(meanwhile, ready, ended, ms)| Act::Round { meanwhile, ready, ended, ms });
        prop_oneof![2 => simple, 1 => round]
    }

    /// The plain reference: who awaits what, since when.
    #[derive(Default)]
    struct Model {
        awaits: Vec<(u64, u64, usize, Instant, u64)>,
        tended: Vec<(u64, u64, Instant, u64)>,
        made: u64,
        wakes: [u32; TASKS],
    }

    struct World {
        registry: Registry<()>,
        model: Model,
        tasks: [Arc<Counted>; TASKS],
        now: Instant,
    }

    impl World {
        fn simple(&mut self, act: &Act) {
            let (registry, model, now) = (&mut self.registry, &mut self.model, self.now);
            let of = |owner, handle| Operation { owner, what: (), handle, slice: SLICE };
            match *act {
                Act::Await { owner, handle, task } => {
                    let waker = Waker::from(self.tasks[task].clone());
                    let again = registry.wake_later(of(owner, handle), waker, now).is_some();
                    let known = model.awaits.iter_mut().find(|a| (a.0, a.1, a.2) == (owner, handle, task));
                    assert_eq!(again, known.is_some());
                    match known {
                        Some(known) => known.3 = now,
                        None => {
                            model.made += 1;
                            model.awaits.push((owner, handle, task, now, model.made));
                        }
                    }
                }
                Act::Tend { owner, handle } => {
                    registry.tend(of(owner, handle), None, now);
                    if !model.tended.iter().any(|t| (t.0, t.1) == (owner, handle)) {
                        model.made += 1;
                        model.tended.push((owner, handle, now, model.made));
                    }
                }
                Act::Leave { owner } => {
                    let left = registry.leave(owner).len();
                    let before = model.awaits.len() + model.tended.len();
                    model.awaits.retain(|a| a.0 != owner);
                    model.tended.retain(|t| t.0 != owner);
                    assert_eq!(left, before - model.awaits.len() - model.tended.len());
                }
                Act::Round { .. } => unreachable!("rounds do not nest"),
            }
        }

        fn act(&mut self, act: &Act) {
            let Act::Round { meanwhile, ready, ended, ms } = act else { return self.simple(act) };
            let turns = self.registry.round(self.now);
            let made = self.model.made;
            let later = Duration::from_millis(*ms);
            self.now += later;
            meanwhile.iter().for_each(|act| self.simple(act));
            let found: Vec<_> = turns
                .iter()
                .map(|turn| {
                    let found = match turn.of.handle {
                        handle if turn.is_tended && ended.contains(&handle) => Found::End,
                        handle if ready.contains(&handle) || turn.is_due(later) => Found::News,
                        _ => Found::Nothing,
                    };
                    (turn.number, found)
                })
                .collect();
            self.registry.end_round(&found, self.now).into_iter().for_each(Waker::wake);
            // Only what the round has looked at. What was polled meanwhile is woken all the same: it may have missed this.
            let at_start: Vec<_> = turns.iter().map(|turn| (turn.number, turn.is_due(later))).collect();
            let was_due = |number: u64| at_start.iter().any(|(of, due)| *of == number && *due);
            let (wakes, now) = (&mut self.model.wakes, self.now);
            self.model.awaits.retain(|(_, handle, task, _, number)| {
                let woken = *number <= made && (ready.contains(handle) || was_due(*number));
                wakes[*task] += u32::from(woken);
                !woken
            });
            self.model.tended.retain(|(_, handle, _, number)| *number > made || !ended.contains(handle));
            for (_, handle, since, number) in &mut self.model.tended {
                if *number <= made && (ready.contains(handle) || was_due(*number)) {
                    *since = now;
                }
            }
        }

        fn check(&self) {
            for (task, counted) in self.tasks.iter().enumerate() {
                assert_eq!(counted.0.load(Ordering::Relaxed), self.model.wakes[task], "task {task}");
            }
            let turns = self.registry.round(self.now);
            assert_eq!(turns.len(), self.model.awaits.len() + self.model.tended.len());
            let since = self.model.awaits.iter().map(|a| a.3).chain(self.model.tended.iter().map(|t| t.2));
            let first = since.map(|since| SLICE.saturating_sub(self.now - since)).min();
            assert_eq!(self.registry.time(self.now), first.unwrap_or(Duration::MAX));
        }
    }

    proptest! {
        #[test]
        fn every_task_is_woken_once_for_each_time_it_awaits_something(acts in prop::collection::vec(act(), 0..40)) {
            let mut world = World {
                registry: Registry::default(),
                model: Model::default(),
                tasks: Default::default(),
                now: Instant::now(),
            };
            for act in &acts {
                world.act(act);
                world.check();
            }
            // Nobody is forgotten: when all is due all are woken, and what is left is what is tended.
            world.act(&Act::Round { meanwhile: vec![], ready: [].into(), ended: [0, 1, 2].into(), ms: 20 });
            world.check();
            prop_assert!(world.registry.round(world.now).is_empty());
        }
    }

    #[test]
    fn what_is_tended_ends_with_its_time() {
        let (mut registry, now) = (Registry::default(), Instant::now());
        let of = Operation { owner: 1, what: (), handle: 7, slice: SLICE };
        registry.tend(of.clone(), Some(now + 2 * SLICE), now);
        registry.tend(of, Some(now + SLICE), now);
        let number = registry.round(now)[0].number;
        assert!(registry.end_round(&[(number, Found::News)], now + SLICE / 2).is_empty());
        assert_eq!(registry.time(now + SLICE / 2), SLICE, "it has been looked at");
        assert!(registry.end_round(&[], now + SLICE).is_empty());
        assert!(registry.round(now).is_empty());
    }
}
