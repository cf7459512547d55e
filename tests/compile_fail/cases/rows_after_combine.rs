//! Rows in place are given back to their sources by combine.
use epwire::{Combine, CombineOutput, Dispatched};

fn step(dispatched: Dispatched, output: CombineOutput<'_>) -> epwire::Result<usize> {
    let rows = dispatched.rows()?;
    let _ = dispatched.combine_blocking(Combine::in_place(), output);
    Ok(rows.count(0))
}

fn main() {}
