//! A row in place is borrowed from the handle, not from the view.
use epwire::{Dispatched, Result};

fn row(dispatched: Dispatched) -> Result<Option<&'static [u8]>> {
    Ok(dispatched.rows()?.row(0, 0))
}

fn main() {}
