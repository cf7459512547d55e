//! What a buffer and a communicator have in common above the C core: which paths they take, how they connect, how they
//! follow the membership of a group, and the thread that waits in place of tasks.

mod connect;
mod fabric;
mod follow;
mod meet;
mod membership;
mod progress;
mod setting;

pub(crate) use connect::{connect_all, exported, left, present};
pub(crate) use follow::{begin, diverged, given_up, is_overtaken, reaches};
pub(crate) use meet::{End, meet, meet_blocking};
pub use membership::Membership;
pub(crate) use progress::{Awaiting, Waits, longest_look};
pub(crate) use setting::Setting;
