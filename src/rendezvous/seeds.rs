//! Histories generated from seeds. `EPWIRE_SEED` and `EPWIRE_CASES` override the default; a failure names its seed.

use std::collections::BTreeMap;
use std::panic::{RefUnwindSafe, catch_unwind, resume_unwind};

/// How often each kind of event was seen in a history.
pub(super) type Seen = BTreeMap<&'static str, u32>;

/// Runs the history of each seed, from 1 to `cases` unless the environment says otherwise. In all those together, each
/// of `common` must be seen more than `times` times.
pub(super) fn play(
    cases: u64,
    (common, times): (&[&str], u32),
    history: impl Fn(u64) -> Seen + RefUnwindSafe,
) {
    let number =
        |name, default| std::env::var(name).map_or(default, |text: String| text.parse().expect("a number"));
    let first = number("EPWIRE_SEED", 1);
    let seeds = first..first + number("EPWIRE_CASES", cases);
    let mut seen = Seen::new();
    for seed in seeds.clone() {
        let history = catch_unwind(|| history(seed)).unwrap_or_else(|panic| {
            eprintln!("EPWIRE_SEED={seed} EPWIRE_CASES=1 runs this history alone");
            resume_unwind(panic)
        });
        history.into_iter().for_each(|(what, count)| *seen.entry(what).or_default() += count);
    }
    eprintln!("{seen:?}");
    let rare: Vec<_> =
        common.iter().filter(|what| seen.get(*what).is_none_or(|count| *count <= times)).collect();
    assert!(seeds.start > 1 || seeds.end <= cases || rare.is_empty(), "seen too rarely: {rare:?}");
}
