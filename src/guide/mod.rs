//! Pages that are not about one item.

pub mod adapter;
pub mod developers;
pub mod first_run;
pub mod operators;
