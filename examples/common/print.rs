//! Prints to standard output, and tolerates a reader that has left.

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
