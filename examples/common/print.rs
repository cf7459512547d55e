//! Prints to standard output, and tolerates a reader that has left; and errors in whole lines.

use std::fmt::Display;
use std::io::{self, ErrorKind, Write};

/// Prints the text and a line end, to the last byte. A reader that has left, as `head` does, has seen what it wanted: that
/// is no error. A disk that is full is one.
pub(crate) fn print(text: &impl Display) -> io::Result<()> {
    let mut out = io::stdout().lock();
    match writeln!(out, "{text}").and_then(|()| out.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            Err(io::Error::new(error.kind(), format!("cannot write to standard output: {error}")))
        }
        _ => Ok(()),
    }
}

/// Prints `WHAT: ERROR` to standard error by one write: several ranks may fail at once, and share it.
pub(crate) fn complain(what: &str, error: &impl Display) {
    let line = format!("{what}: {error}\n");
    let _ = io::stderr().write_all(line.as_bytes()); // there is nobody else to tell
}
