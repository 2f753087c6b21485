//! The wall clock of a server jumps, forwards and backwards, by up to a day. Nothing may expire because of it. The offset
//! is injected, by the feature `fault-injection`.

use super::{BOTH, Disk, Probe};
use crate::{
    load::SETTLE_WITHIN,
    report::Fault,
    round::{Round, Setup},
    stage::{Engine, REPLICAS_MAX},
};

const JUMPS: usize = 4;
const JUMPS_MS: [i64; 8] = [3_600_000, -3_600_000, 86_400_000, -86_400_000, 61_000, -61_000, 7_000, -7_000];

pub const PROBE: Probe = Probe {
    name: "clock-jumps",
    about: "the wall clock of a server jumps by seconds to a day, in both directions; no lease expires and no budget is used up",
    engines: BOTH,
    rounds: 2,
    disk: Disk::Shared,
    fault: Some(Fault::ClockJump),
    setup: |_, engine| Setup {
        replicas: if engine == Engine::Postgres { REPLICAS_MAX } else { 1 },
        ..Setup::default()
    },
    disturb: jump,
};

fn jump(round: &mut Round) -> Result<(), String> {
    for _ in 0..JUMPS {
        round.let_work(100..400);
        let number = round.random.between(0..round.servers.len() as u64) as usize;
        let offset_ms = *round.random.pick(&JUMPS_MS);
        set(round, number, offset_ms)?;
        round.count(Fault::ClockJump);
        round.wait_for_progress()?;
        round.let_work(100..700);
        if round.random.chance(50) {
            set(round, number, 0)?;
            round.count(Fault::ClockJump);
            round.wait_for_progress()?;
        }
    }
    // Certificates are valid by the calendar: they are judged by the machine's clock, so it has to be right again.
    for number in 0..round.servers.len() {
        set(round, number, 0)?;
    }
    let run_id = round.load.as_ref().and_then(|load| load.followed.clone()).ok_or("nothing to look at")?;
    let events = round.stage.runtime.block_on(round.api.events(&run_id, SETTLE_WITHIN))?;
    let expired = events.iter().find(|event| event["type"] == "lease" && event["payload"]["state"] == "expired");
    match expired {
        None => Ok(()),
        Some(event) => Err(format!("a lease of a minute expired when the clock jumped: {event}")),
    }
}

fn set(round: &Round, number: usize, offset_ms: i64) -> Result<(), String> {
    let file = round.home.clock_file(number);
    let new = file.with_extension("new");
    let written = std::fs::write(&new, offset_ms.to_string()).and_then(|()| std::fs::rename(&new, &file));
    written.map_err(|error| format!("cannot set the clock: {error}"))
}
