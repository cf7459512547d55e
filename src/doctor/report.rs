//! What the doctor reports: checks, grouped by the path that they are prerequisites of, and the matrix of ranks.

use std::fmt;

use super::matrix::Matrix;
use crate::json::{array, quoted};
use crate::names::names;

/// The result of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Verdict {
    /// As it should be.
    Ok,
    /// It could not be examined, or this version does not examine it; the reason says which.
    Unknown,
    /// The path works, but slower or for fewer ranks than it could.
    Warning,
    /// Without it the path does not work.
    Missing,
}

names!(Verdict, "a verdict: ok, unknown, warning or missing" {
    Ok = "ok", Unknown = "unknown", Warning = "warning", Missing = "missing",
});

/// One prerequisite.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Check {
    /// What was examined, for example `locked memory`, or `mlx5_0 port 1`.
    pub name: String,
    /// The result.
    pub verdict: Verdict,
    /// What was found.
    pub reason: String,
    /// What to do about it; empty if nothing.
    pub remedy: String,
}

impl Check {
    pub(crate) fn new(name: impl Into<String>, verdict: Verdict, reason: impl Into<String>) -> Self {
        Self { name: line(name.into()), verdict, reason: line(reason.into()), remedy: String::new() }
    }

    pub(crate) fn ok(name: impl Into<String>, reason: impl Into<String>) -> Self {
        Self::new(name, Verdict::Ok, reason)
    }

    pub(crate) fn unknown(name: impl Into<String>, reason: impl Into<String>) -> Self {
        Self::new(name, Verdict::Unknown, reason)
    }

    pub(crate) fn warning(name: impl Into<String>, reason: impl Into<String>) -> Self {
        Self::new(name, Verdict::Warning, reason)
    }

    pub(crate) fn missing(name: impl Into<String>, reason: impl Into<String>) -> Self {
        Self::new(name, Verdict::Missing, reason)
    }

    pub(crate) fn remedy(self, remedy: impl Into<String>) -> Self {
        Self { remedy: line(remedy.into()), ..self }
    }

    fn to_json(&self) -> String {
        let Self { name, verdict, reason, remedy } = self;
        let (name, reason, remedy) = (quoted(name), quoted(reason), quoted(remedy));
        format!(r#"{{"name":{name},"verdict":"{verdict}","reason":{reason},"remedy":{remedy}}}"#)
    }
}

/// One line: `locked memory: warning, 64 KiB; raise it`, the remedy last if there is one.
impl fmt::Display for Check {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, verdict, reason, remedy } = self;
        write!(f, "{name}: {verdict}, {reason}")?;
        if remedy.is_empty() { Ok(()) } else { write!(f, "; {remedy}") }
    }
}

/// Text from files is shown as one line, without anything that would affect a terminal.
fn line(text: String) -> String {
    const LONGEST: usize = 500;
    text.chars().take(LONGEST).map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// The prerequisites of one kind of path.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Section {
    /// The paths, by their names in `EPWIRE_PATHS`, and what they lead to.
    pub path: String,
    /// In the order in which they should be fixed.
    pub checks: Vec<Check>,
}

impl Section {
    /// The worst result of all its checks.
    pub fn verdict(&self) -> Verdict {
        self.checks.iter().map(|check| check.verdict).max().unwrap_or(Verdict::Ok)
    }

    fn to_json(&self) -> String {
        let (path, verdict) = (quoted(&self.path), self.verdict());
        let checks = array(self.checks.iter().map(Check::to_json));
        format!(r#"{{"path":{path},"verdict":"{verdict}","checks":{checks}}}"#)
    }
}

/// The path and its verdict: `thread, shm: ranks of one host: ok`.
impl fmt::Display for Section {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path, self.verdict())
    }
}

/// All that was found. [`Display`](fmt::Display) prints a table for people.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Report {
    /// By path.
    pub sections: Vec<Section>,
    /// The measurements between ranks, if a launcher has started several.
    pub matrix: Option<Matrix>,
}

impl Report {
    /// A JSON object: `sections` is an array of objects with `path`, `verdict` (`ok`, `unknown`, `warning` or
    /// `missing`) and `checks`, each of which has `name`, `verdict`, `reason` and `remedy`; `matrix` is null, or as
    /// [`Matrix::to_json`].
    pub fn to_json(&self) -> String {
        let sections = array(self.sections.iter().map(Section::to_json));
        let matrix = self.matrix.as_ref().map_or("null".to_owned(), Matrix::to_json);
        format!(r#"{{"sections":{sections},"matrix":{matrix}}}"#)
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = self.sections.iter().flat_map(|section| &section.checks).map(|check| check.name.len());
        let width = names.max().unwrap_or(0);
        for (at, section) in self.sections.iter().enumerate() {
            let between = if at > 0 { "\n" } else { "" };
            writeln!(f, "{between}{section}")?;
            for Check { name, verdict, reason, remedy } in &section.checks {
                writeln!(f, "  {verdict:7}  {name:width$}  {reason}")?;
                if !remedy.is_empty() {
                    writeln!(f, "  {:7}  {:width$}  -> {remedy}", "", "")?;
                }
            }
        }
        match &self.matrix {
            Some(matrix) => write!(f, "\n{matrix}"),
            None => Ok(()),
        }
    }
}
