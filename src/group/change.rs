//! What a program learns of steps and of changes of membership.

use crate::mask::Mask;

/// A step of the group, which the caller runs now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Step {
    /// Its number, from 1: the same on all members for the same step.
    pub number: u64,
    /// If the membership is another one from this step on.
    pub change: Option<Change>,
}

/// A change of membership that has come into effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Change {
    /// The epoch that begins.
    pub epoch: u32,
    /// Its members.
    pub members: Mask,
    /// Those of them that are new.
    pub entered: Mask,
    /// Members of the epoch before that are not.
    pub left: Mask,
}
