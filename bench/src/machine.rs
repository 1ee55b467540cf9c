//! The machine a run is on: what matters for the figures, and nothing that tells which machine it is.

use std::fs;
use std::time::Duration;

/// As the head of a run says it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Machine {
    pub(crate) cores: usize,
    /// `None` where the system does not tell.
    pub(crate) memory_gib: Option<u64>,
    /// Of the last minute, before the run.
    pub(crate) load: Option<f64>,
}

impl Machine {
    pub(crate) fn now() -> Self {
        Self {
            cores: std::thread::available_parallelism().map_or(0, usize::from),
            memory_gib: memory_gib(),
            load: load(),
        }
    }
}

fn memory_gib() -> Option<u64> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let kib = text.lines().next()?.split_whitespace().nth(1)?.parse::<u64>().ok()?;
    Some(kib.div_ceil(1024 * 1024))
}

fn load() -> Option<f64> {
    fs::read_to_string("/proc/loadavg").ok()?.split_whitespace().next()?.parse().ok()
}

/// The memory of this process that is in use, where the system tells.
pub(crate) fn resident_bytes() -> Option<u64> {
    let text = fs::read_to_string("/proc/self/status").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    Some(line.split_whitespace().next()?.parse::<u64>().ok()? * 1024)
}

/// The time that the processors have spent on this process and the system on its behalf, where the system tells.
pub(crate) fn processor_time() -> Option<Duration> {
    /// As every Linux counts, whatever its timer does.
    const TICKS_PER_SECOND: u64 = 100;
    let text = fs::read_to_string("/proc/self/stat").ok()?;
    // The name in the second field may hold anything; fields are counted from behind its closing bracket.
    let mut fields = text.rsplit_once(')')?.1.split_ascii_whitespace().skip(11);
    let mut ticks = || fields.next()?.parse::<u64>().ok();
    Some(Duration::from_millis((ticks()? + ticks()?) * 1000 / TICKS_PER_SECOND))
}
