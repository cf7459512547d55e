//! Two places of one area cannot be had at a time: they might be the same.
use epwire::CombineRows;
use half::bf16;

fn swap(rows: &mut CombineRows<'_>) {
    let first = rows.rank_major::<bf16>(0, 0);
    let second = rows.rank_major::<bf16>(0, 0);
    drop((first, second));
}

fn main() {}
