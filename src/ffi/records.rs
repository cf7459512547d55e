//! Error records, as functions of the C core give them out.

use super::status::check;
use crate::error::Result;
use crate::sys;

/// Calls `take` with places for `capacity` records, the size of each, and places for their number and for how many were
/// lost. Returns the records and the latter.
pub(super) fn take(
    capacity: u32,
    take: impl FnOnce(*mut sys::epw_error_record, usize, *mut u32, *mut u64) -> sys::epw_status,
) -> Result<(Vec<sys::epw_error_record>, u64)> {
    let mut records = vec![sys::epw_error_record::default(); capacity as usize];
    let (mut count, mut lost) = (0, 0);
    check(take(records.as_mut_ptr(), size_of::<sys::epw_error_record>(), &mut count, &mut lost))?;
    records.truncate(count as usize);
    Ok((records, lost))
}
