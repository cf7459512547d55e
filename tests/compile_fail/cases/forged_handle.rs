//! Handles come from dispatch alone.
use epwire::{Dispatched, Outcome};

fn main() {
    let _ = Dispatched { outcome: Outcome::default() };
}
