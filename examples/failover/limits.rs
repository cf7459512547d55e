//! The limits of a run, by name, and the figures that are compared with them.

use std::{fmt, str::FromStr, time::Duration};

use crate::{figures::ms, print::print};

/// Times in milliseconds, growth of memory in MiB.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    pub kill: u32,
    pub leader: u32,
    pub stop: u32,
    pub stopped_leader: u32,
    pub memory: u32,
    pub gpu_memory: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self { kill: 100, leader: 1000, stop: 200, stopped_leader: 1500, memory: 8, gpu_memory: 4 }
    }
}

impl Limits {
    fn named(&mut self) -> [(&'static str, &mut u32); 6] {
        let Self { kill, leader, stop, stopped_leader, memory, gpu_memory } = self;
        [
            ("kill", kill),
            ("leader", leader),
            ("stop", stop),
            ("stopped-leader", stopped_leader),
            ("memory", memory),
            ("gpu-memory", gpu_memory),
        ]
    }
}

impl fmt::Display for Limits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut own = *self;
        let all = own.named().map(|(name, limit)| format!("{name}={limit}"));
        f.write_str(&all.join(","))
    }
}

/// Those that are not named keep their defaults.
impl FromStr for Limits {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut limits = Self::default();
        for part in text.split(',') {
            let (name, number) = part.split_once('=').ok_or(format!("\"{part}\" is not NAME=NUMBER"))?;
            let mut known = limits.named();
            let names = known.each_ref().map(|(name, _)| *name).join(", ");
            let limit = known.iter_mut().find(|(of, _)| *of == name);
            let (_, limit) = limit.ok_or(format!("no limit is called \"{name}\"; there are {names}"))?;
            **limit = number.parse().map_err(|_| format!("{name}: \"{number}\" is not a whole number"))?;
        }
        Ok(limits)
    }
}

/// The figures of a run, each beside its limit.
#[derive(Default)]
pub struct Judgement {
    beyond: Vec<String>,
}

impl Judgement {
    /// Checks the longest of these times, if there are any; and, if there are three or more, the time that half of them
    /// do not exceed. Limits in milliseconds.
    pub fn times(
        &mut self,
        what: &str,
        times: impl Iterator<Item = Duration>,
        limit: u32,
        half_limit: u32,
    ) -> crate::Result<()> {
        let mut times: Vec<_> = times.collect();
        times.sort();
        let Some(longest) = times.last() else { return Ok(()) };
        self.time(&format!("{what}, at most"), *longest, limit)?;
        if times.len() < 3 {
            return Ok(());
        }
        self.time(&format!("{what}, half of the times"), times[(times.len() - 1) / 2], half_limit)
    }

    fn time(&mut self, what: &str, time: Duration, limit: u32) -> crate::Result<()> {
        let beyond = time > Duration::from_millis(limit.into());
        self.figure(what, beyond, &format!("{} ms", ms(time)), &format!("{limit} ms"))
    }

    /// By how much the memory in use has grown; it may have shrunk.
    pub fn growth(&mut self, what: &str, bytes: i64, limit_mib: u32) -> crate::Result<()> {
        let (kib, limit_kib) = (bytes / 1024, i64::from(limit_mib) * 1024);
        self.figure(what, kib > limit_kib, &format!("{kib} KiB"), &format!("{limit_kib} KiB"))
    }

    fn figure(&mut self, what: &str, beyond: bool, figure: &str, limit: &str) -> crate::Result<()> {
        print(&format!("{what:<74}{figure:>12}, limit {limit}"))?;
        if beyond {
            self.beyond.push(format!("{what}: {figure}, limit {limit}"));
        }
        Ok(())
    }

    /// Fails if a figure was beyond its limit.
    pub fn end(self) -> crate::Result<()> {
        if self.beyond.is_empty() {
            return Ok(());
        }
        Err(format!("beyond what --within and --half-within permit: {}", self.beyond.join("; ")).into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(times: &[u64]) -> Vec<String> {
        let mut judgement = Judgement::default();
        let times = times.iter().map(|ms| Duration::from_millis(*ms));
        judgement.times("agreed", times, 400, 100).expect("it can print");
        judgement.beyond
    }

    #[test]
    fn the_longest_time_and_half_of_three_have_limits_of_their_own() {
        assert!(judged(&[]).is_empty());
        assert!(judged(&[5, 300, 90]).is_empty());
        assert!(judged(&[300, 350]).is_empty(), "too few to speak of half of them");
        assert_eq!(judged(&[300, 5, 110]), ["agreed, half of the times: 110.0 ms, limit 100 ms"]);
        assert_eq!(judged(&[5, 401, 5]), ["agreed, at most: 401.0 ms, limit 400 ms"]);
    }
}
