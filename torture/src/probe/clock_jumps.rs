//! The wall clock of a server jumps, forwards and backwards, by up to a day; on Postgres also the database's clock, which all
//! servers follow there. Nothing may expire because of it. The offsets are injected, by the feature `fault-injection`.
//! A jump is held until the server's own count of jumps shows that it was noticed.

use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use super::{BOTH, Disk, Probe};
use crate::{
    clock::{now, since},
    load::SETTLE_WITHIN,
    report::Fault,
    resources::{Engine, REPLICAS_MAX},
    round::{Round, Setup},
};

const JUMPS: usize = 4;
/// Servers look at their clocks every two seconds.
const NOTICED_WITHIN: Duration = Duration::from_secs(20);
const NOTICE_POLL: Duration = Duration::from_millis(25);
const MACHINE_JUMPS: &str = "ostler_clock_jumps_total{clock=\"machine\"}";
const DATABASE_JUMPS: &str = "ostler_clock_jumps_total{clock=\"database\"}";
const JUMPS_MS: [i64; 8] = [3_600_000, -3_600_000, 86_400_000, -86_400_000, 61_000, -61_000, 7_000, -7_000];

pub(crate) const PROBE: Probe = Probe {
    name: "clock-jumps",
    about: "the clock of a server, or of its database, jumps by seconds to a day in both directions; no lease expires and no budget is used up",
    engines: BOTH,
    rounds: 1,
    disk: Disk::Shared,
    fault: Some(Fault::ClockJump),
    setup: |_, engine| Setup {
        replicas: if engine == Engine::Postgres { REPLICAS_MAX } else { 1 },
        ..Setup::default()
    },
    disturb: jump,
};

/// A clock that can be set.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Target {
    Machine(usize),
    Database,
}

impl Target {
    fn file(self, round: &Round) -> PathBuf {
        match self {
            Self::Machine(number) => round.host.clock_file(number),
            Self::Database => round.host.database_clock_file(),
        }
    }

    fn offset_ms(self, round: &Round) -> i64 {
        std::fs::read_to_string(self.file(round)).ok().and_then(|text| text.parse().ok()).unwrap_or(0)
    }

    /// Replaces the file at once, so that the server never reads half of it.
    fn set(self, round: &Round, offset_ms: i64) -> Result<(), String> {
        let file = self.file(round);
        let new = file.with_extension("new");
        let written = std::fs::write(&new, offset_ms.to_string()).and_then(|()| std::fs::rename(&new, &file));
        written.map_err(|error| format!("cannot set the clock: {error}"))
    }

    /// How many of its jumps the servers have noticed. A jump of the database's clock is counted by one of them.
    fn noticed(self, round: &Round) -> Option<f64> {
        let (servers, metric) = match self {
            Self::Machine(number) => (number..number + 1, MACHINE_JUMPS),
            Self::Database => (0..round.servers.len(), DATABASE_JUMPS),
        };
        let counts = servers.filter(|number| round.servers[*number].is_some());
        let counts = counts.map(|number| round.resources.runtime.block_on(round.server_apis[number].metric(metric)));
        counts.sum()
    }
}

fn jump(round: &mut Round) -> Result<(), String> {
    for _ in 0..JUMPS {
        round.let_work(100..400);
        let number = round.random.between(0..round.servers.len() as u64) as usize;
        let has_database = round.resources.engine == Engine::Postgres;
        let target = if has_database && round.random.chance(50) { Target::Database } else { Target::Machine(number) };
        let current_ms = target.offset_ms(round);
        let offset_ms = *round.random.pick(&JUMPS_MS);
        let offset_ms = if offset_ms == current_ms { -offset_ms } else { offset_ms };
        if target == Target::Database && round.random.chance(50) {
            jump_at_start(round, number, offset_ms)?;
        } else {
            jump_to(round, target, offset_ms)?;
        }
        if round.random.chance(50) {
            jump_to(round, target, 0)?;
        }
    }
    // Certificates are valid by the calendar: they are judged by the machine's clock, so it has to be right again.
    for number in 0..round.servers.len() {
        Target::Machine(number).set(round, 0)?;
    }
    let run_id = round.load.as_ref().and_then(|load| load.followed.clone()).ok_or("nothing to look at")?;
    let events = round.resources.runtime.block_on(round.api.events(&run_id, SETTLE_WITHIN))?;
    let expired = events.iter().find(|event| event["type"] == "lease" && event["payload"]["state"] == "expired");
    match expired {
        None => Ok(()),
        Some(event) => Err(format!("a lease of a minute expired when the clock jumped: {event}")),
    }
}

/// Sets a clock and waits until the servers have noticed it.
fn jump_to(round: &mut Round, target: Target, offset_ms: i64) -> Result<(), String> {
    let before = wait_for_count(round, target, |_| true)?;
    target.set(round, offset_ms)?;
    wait_for_count(round, target, |count| count > before)?;
    round.count(Fault::ClockJump);
    round.wait_for_progress()
}

/// The database's clock jumps while one of two servers starts. It must not take the time as it is: the other server is
/// about to correct it.
fn jump_at_start(round: &mut Round, number: usize, offset_ms: i64) -> Result<(), String> {
    round.kill_server(number);
    round.count(Fault::ServerKill);
    let before = wait_for_count(round, Target::Database, |_| true)?;
    Target::Database.set(round, offset_ms)?;
    round.start_server(number)?;
    wait_for_count(round, Target::Database, |count| count > before)?;
    round.count(Fault::ClockJump);
    round.wait_for_progress()
}

fn wait_for_count(round: &Round, target: Target, is_enough: impl Fn(f64) -> bool) -> Result<f64, String> {
    let started = now();
    while since(started) <= NOTICED_WITHIN && !crate::interrupt::is_interrupted() {
        match target.noticed(round) {
            Some(count) if is_enough(count) => return Ok(count),
            _ => thread::sleep(NOTICE_POLL),
        }
    }
    Err(format!("no server counted the jump of a clock within {NOTICED_WITHIN:?}"))
}
