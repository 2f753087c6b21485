//! Faults of the Postgres server itself: killed, frozen, restarted.

use super::{Disk, POSTGRES, Probe};
use crate::{
    report::Fault,
    resources::Postgres,
    round::{Round, Setup},
};

const KILLS: usize = 2;
const PAUSES: usize = 2;
const RESTARTS: usize = 2;

pub(crate) const KILL: Probe = Probe {
    name: "kill-postgres",
    about: "kill -9 of every process of Postgres, and its recovery",
    engines: POSTGRES,
    rounds: 3,
    disk: Disk::Shared,
    fault: Some(Fault::PostgresKill),
    setup: |_, _| Setup::default(),
    disturb: kill,
};

pub(crate) const PAUSE: Probe = Probe {
    name: "pause-postgres",
    about: "SIGSTOP of every process of Postgres, for up to three seconds",
    engines: POSTGRES,
    rounds: 2,
    disk: Disk::Shared,
    fault: Some(Fault::PostgresOutage),
    setup: |_, _| Setup::default(),
    disturb: pause,
};

pub(crate) const RESTART: Probe = Probe {
    name: "restart-postgres",
    about: "an ordinary restart of Postgres under load",
    engines: POSTGRES,
    rounds: 3,
    disk: Disk::Shared,
    fault: Some(Fault::PostgresOutage),
    setup: |_, _| Setup::default(),
    disturb: restart,
};

fn postgres<'a>(round: &'a mut Round) -> Result<&'a mut Postgres, String> {
    round.resources.postgres.as_mut().ok_or_else(|| "there is no Postgres".into())
}

fn kill(round: &mut Round) -> Result<(), String> {
    for _ in 0..KILLS {
        round.let_work(30..250);
        postgres(round)?.cluster.kill()?;
        round.count(Fault::PostgresKill);
        round.let_work(0..200);
        postgres(round)?.cluster.start_again()?;
        round.wait_for_progress()?;
    }
    Ok(())
}

fn pause(round: &mut Round) -> Result<(), String> {
    for _ in 0..PAUSES {
        round.let_work(30..200);
        postgres(round)?.cluster.pause()?;
        round.count(Fault::PostgresOutage);
        let long = round.random.chance(30);
        round.let_work(if long { 1_500..3_000 } else { 50..800 });
        postgres(round)?.cluster.resume();
        round.wait_for_progress()?;
    }
    Ok(())
}

fn restart(round: &mut Round) -> Result<(), String> {
    for _ in 0..RESTARTS {
        round.let_work(30..250);
        postgres(round)?.cluster.restart()?;
        round.count(Fault::PostgresOutage);
        round.wait_for_progress()?;
    }
    Ok(())
}
