//! Appends without a pause: the server's memory must not grow with what was written.

use std::thread;
use std::time::Duration;

use super::{BOTH, Disk, Probe};
use crate::{
    clock::{now, since},
    load::Mix,
    round::{Round, Setup},
};

const WRITERS: usize = 4;
const SAMPLES: u32 = 40;
/// Caches and pools may still fill up a little; a leak of a tenth of what is written would be more in ten minutes.
const GROWTH_KIB_MAX: u64 = 48 * 1024;
const GROWTH_PERCENT_MAX: u64 = 25;

pub(crate) const PROBE: Probe = Probe {
    name: "flat-memory",
    about: "appends without a pause for ten minutes (8 s in short campaigns); the memory of the server stays flat",
    engines: BOTH,
    rounds: 1,
    disk: Disk::Shared,
    fault: None,
    setup: |_, _| Setup { mix: Mix { writers: WRITERS, ..Mix::NONE }, ..Setup::default() },
    disturb: append,
};

/// Compares the highest of the last third of the samples with the highest of the second third: the first is warming up.
fn append(round: &mut Round) -> Result<(), String> {
    let (started, duration) = (now(), round.resources.scale.memory_for);
    let mut samples = vec![];
    while since(started) < duration {
        thread::sleep(duration / SAMPLES);
        samples.push(round.server(0)?.rss_kib()?);
    }
    round.wait_for_progress()?;
    check(&samples, duration)
}

fn check(samples: &[u64], duration: Duration) -> Result<(), String> {
    let third = samples.len() / 3;
    let highest = |samples: &[u64]| samples.iter().copied().max().unwrap_or(0);
    let (before, after) = (highest(&samples[third..2 * third]), highest(&samples[2 * third..]));
    let allowed = before + GROWTH_KIB_MAX.max(before * GROWTH_PERCENT_MAX / 100);
    if after <= allowed {
        return Ok(());
    }
    Err(format!(
        "{duration:?} of appends: the server grew from {before} to {after} KiB, {allowed} were allowed: {samples:?}"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn growth_is_seen_and_warming_up_is_not() {
        let minutes = Duration::from_secs(600);
        let warm: Vec<u64> = (0..30).map(|n| if n < 10 { n * 20_000 } else { 200_000 }).collect();
        assert!(check(&warm, minutes).is_ok());
        let leak: Vec<u64> = (0..30).map(|n| 200_000 + n * 20_000).collect();
        assert!(check(&leak, minutes).is_err());
    }
}
