//! The figures of a run: how long the others took when a rank was killed or stopped, and with the one in its place.

use std::time::Duration;

/// From a kill: when a step first lacked the rank, the others had agreed to continue without it, and all of them did.
#[derive(Debug, Clone, Copy)]
pub struct Gone {
    pub detected: Option<Duration>,
    pub agreed: Duration,
    pub skipping: Duration,
}

/// From the start of a process until it had its buffer, and from then until all served exactly with it.
#[derive(Debug, Clone, Copy)]
pub struct Back {
    pub ready: Duration,
    pub exact: Duration,
}

/// A stop, and how long the others took to continue without the rank.
#[derive(Debug, Clone, Copy)]
pub struct Stop {
    /// Whether the run was served by the rank that was stopped.
    pub led: bool,
    pub agreed: Duration,
}

/// A kill and what followed.
#[derive(Debug, Clone, Copy)]
pub struct Loss {
    /// Whether the run was served by the rank that was killed.
    pub led: bool,
    pub gone: Gone,
    pub back: Back,
}

pub fn ms(time: Duration) -> String {
    format!("{:.1}", time.as_secs_f64() * 1e3)
}

/// The longest, or 0.
pub fn longest(times: impl Iterator<Item = Duration>) -> String {
    ms(times.max().unwrap_or_default())
}

/// A column of the table.
type Figure = fn(&Loss) -> Option<Duration>;

/// Median and maximum of each figure, for kills of the rank that served the run and of others.
pub fn table(losses: &[Loss]) -> String {
    let columns: [(&str, Figure); 5] = [
        ("detected", |loss| loss.gone.detected),
        ("agreed", |loss| Some(loss.gone.agreed)),
        ("skipping", |loss| Some(loss.gone.skipping)),
        ("ready", |loss| Some(loss.back.ready)),
        ("exact again", |loss| Some(loss.back.exact)),
    ];
    let mut table = format!("{:<26}{:>6}", "ms, median / maximum", "kills");
    for (name, _) in columns {
        table += &format!("{name:>18}");
    }
    for (name, led) in [("of the rank that served", true), ("of another rank", false)] {
        let of: Vec<_> = losses.iter().filter(|loss| loss.led == led).collect();
        if of.is_empty() {
            continue;
        }
        table += &format!("\n{name:<26}{:>6}", of.len());
        for (_, figure) in columns {
            let mut times: Vec<_> = of.iter().filter_map(|loss| figure(loss)).collect();
            times.sort();
            let cell = match times[..] {
                [] => "-".to_owned(),
                [.., last] => format!("{} / {}", ms(times[times.len() / 2]), ms(last)),
            };
            table += &format!("{cell:>18}");
        }
    }
    table
}
