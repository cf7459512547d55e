//! The machine by itself: each case is a list of events, which also controls the time.

mod admission;
mod gathering;
mod histories;
mod removal;
mod restored;
mod retirement;
mod rounds;
mod run;
mod sessions;
mod thousand;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use self::run::{Run, join};
use super::*;
use crate::mask::MAX_WORLD;
use crate::rendezvous::Blob;
use crate::rendezvous::leases::Leases;
use crate::rendezvous::pace::{Next, Pace};
use crate::rendezvous::wire::{Ask, Notice, RankState, RoundKind, Standby};

const SECOND: Duration = Duration::from_secs(1);
