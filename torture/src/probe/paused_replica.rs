//! One of two servers on one Postgres is frozen, longer than a lease lasts, and goes on as if nothing had happened.

use rustix::process::Signal;

use super::{Disk, POSTGRES, Probe};
use crate::{
    report::Fault,
    resources::REPLICAS_MAX,
    round::{Round, Setup},
};

const PAUSES: usize = 2;

pub(crate) const PROBE: Probe = Probe {
    name: "paused-replica",
    about: "SIGSTOP of one of two servers, often beyond its leases; then it goes on",
    engines: POSTGRES,
    rounds: 3,
    disk: Disk::Shared,
    fault: Some(Fault::ReplicaPause),
    setup: |_, _| Setup { replicas: REPLICAS_MAX, ..Setup::default() },
    disturb: pause,
};

fn pause(round: &mut Round) -> Result<(), String> {
    for _ in 0..PAUSES {
        round.let_work(30..200);
        let number = round.random.between(0..round.servers.len() as u64) as usize;
        round.server(number)?.signal(Signal::STOP);
        round.count(Fault::ReplicaPause);
        let long = round.random.chance(50);
        round.let_work(if long { 2_000..3_500 } else { 100..1_000 });
        round.server(number)?.signal(Signal::CONT);
        round.wait_for_progress()?;
    }
    Ok(())
}
