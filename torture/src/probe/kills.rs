//! SIGKILL of servers and of runner processes.

use ostler_testkit::process::{arguments_of, children_of, is_running, send};
use rustix::process::{Pid, Signal};

use super::{BOTH, Disk, Probe};
use crate::{
    report::Fault,
    resources::{Engine, REPLICAS_MAX},
    round::{Round, Setup},
};

const SERVER_KILLS: u64 = 5;
const RUNNER_KILLS: u64 = 3;
const RUNNER_LOOKS_MAX: usize = 200;

pub(crate) const SERVER: Probe = Probe {
    name: "kill-server",
    about: "kill -9 of the server under load, of one of two servers on Postgres now and then",
    engines: BOTH,
    rounds: 6,
    disk: Disk::Shared,
    fault: Some(Fault::ServerKill),
    setup: |random, engine| {
        let replicas = if engine == Engine::Postgres && random.chance(40) { REPLICAS_MAX } else { 1 };
        Setup { replicas, ..Setup::default() }
    },
    disturb: kill_servers,
};

pub(crate) const RUNNER: Probe = Probe {
    name: "kill-runner",
    about: "kill -9 of runners that are child processes; now and then of their server too",
    engines: BOTH,
    rounds: 2,
    disk: Disk::Shared,
    fault: Some(Fault::RunnerKill),
    setup: |_, _| Setup {
        environment: vec![("OSTLER_RUNNER__LAUNCHER", "process".into()), ("OSTLER_RUNNER__SLOTS", "4".into())],
        ..Setup::default()
    },
    disturb: kill_runners,
};

fn kill_servers(round: &mut Round) -> Result<(), String> {
    for _ in 0..SERVER_KILLS {
        round.let_work(30..250);
        let number = round.random.between(0..round.servers.len() as u64) as usize;
        round.kill_server(number);
        round.count(Fault::ServerKill);
        if round.servers.len() > 1 {
            // The other server keeps running.
            round.wait_for_progress()?;
        }
        round.start_server(number)?;
        round.wait_for_progress()?;
    }
    Ok(())
}

fn kill_runners(round: &mut Round) -> Result<(), String> {
    for _ in 0..RUNNER_KILLS {
        round.let_work(10..60);
        if kill_a_runner(round)? {
            round.count(Fault::RunnerKill);
        }
    }
    if round.random.chance(30) {
        round.kill_server(0);
        round.count(Fault::ServerKill);
        round.start_server(0)?;
    }
    round.wait_for_progress()
}

/// `false` if none was started in time.
fn kill_a_runner(round: &mut Round) -> Result<bool, String> {
    for _ in 0..RUNNER_LOOKS_MAX {
        let runners = children_of(round.server(0)?.id());
        // The server has other children too, and a runner has the server's own arguments until its program is started.
        let is_runner = |pid: &Pid| is_running(*pid) && arguments_of(*pid).get(1).is_some_and(|word| word == "runner");
        let runners: Vec<_> = runners.into_iter().filter(is_runner).collect();
        if !runners.is_empty() {
            send(*round.random.pick(&runners), Signal::KILL);
            return Ok(true);
        }
        round.let_work(2..6);
    }
    Ok(false)
}
