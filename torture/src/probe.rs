//! The probes: what breaks in a round. One file per kind.

mod clock_jumps;
mod disk_full;
mod flat_memory;
mod followers_return;
mod hostile_agents;
mod io_errors;
mod kills;
mod kind;
mod paused_replica;
mod postgres_faults;
mod power_cuts;
mod proxy_faults;
mod replay_storm;

pub(crate) use io_errors::check_seams;
use kind::{BOTH, POSTGRES, SQLITE};
pub(crate) use kind::{Disk, Probe};

pub(crate) const PROBES: &[Probe] = &[
    kills::SERVER,
    kills::RUNNER,
    postgres_faults::KILL,
    postgres_faults::PAUSE,
    postgres_faults::RESTART,
    proxy_faults::CUT,
    proxy_faults::TRUNCATE,
    proxy_faults::ONE_WAY,
    proxy_faults::LOSS,
    io_errors::PROBE,
    disk_full::PROBE,
    disk_full::POSTGRES_PROBE,
    power_cuts::PROBE,
    clock_jumps::PROBE,
    paused_replica::PROBE,
    followers_return::PROBE,
    replay_storm::PROBE,
    hostile_agents::PROBE,
    flat_memory::PROBE,
];

/// Played once per campaign, at its beginning: it takes a sixth of an hour.
pub(crate) const ONCE: &str = flat_memory::PROBE.name;

pub(crate) fn find(name: &str) -> Option<&'static Probe> {
    PROBES.iter().find(|probe| probe.name == name)
}
