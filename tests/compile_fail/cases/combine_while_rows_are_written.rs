//! Outputs are complete before they are sent.
use epwire::{Combine, Dispatched, Result};
use half::bf16;

fn step(mut dispatched: Dispatched) -> Result<()> {
    let mut rows = dispatched.combine_rows_mut()?;
    let _ = dispatched.combine_send(Combine::in_place());
    let _ = rows.rank_major::<bf16>(0, 0);
    Ok(())
}

fn main() {}
