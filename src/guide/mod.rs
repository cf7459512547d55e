//! Pages that are not about one item.

pub mod developers;
