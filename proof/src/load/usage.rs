//! What this process takes of the machine.

use std::fs;
use std::time::Duration;

use rustix::process::{Resource, getrlimit, setrlimit};
use rustix::time::{ClockId, clock_gettime};

/// The resident set, in bytes; zero if the system does not say.
pub(super) fn resident_bytes() -> u64 {
    let statm = fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = statm.split(' ').nth(1).and_then(|pages| pages.parse().ok());
    let page_size = u64::try_from(rustix::param::page_size()).unwrap_or_default();
    pages.unwrap_or(0_u64).saturating_mul(page_size)
}

/// How many descriptors are open.
pub(super) fn descriptor_count() -> usize {
    // That of the directory itself is one of them.
    fs::read_dir("/proc/self/fd").map_or(0, |entries| entries.count().saturating_sub(1))
}

/// The CPU time of all threads so far.
pub(super) fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::try_from(time).unwrap_or_default()
}

/// Lets this process open as many descriptors as it may. Returns how many these are.
pub(super) fn raise_descriptor_limit() -> usize {
    /// What every system allows, if nothing is known.
    const USUAL: u64 = 256;

    let mut limit = getrlimit(Resource::Nofile);
    let before = limit.current;
    limit.current = limit.maximum;
    let now = match setrlimit(Resource::Nofile, limit) {
        Ok(()) => limit.maximum,
        Err(_) => before,
    };
    usize::try_from(now.unwrap_or(USUAL)).unwrap_or(usize::MAX)
}
