//! Starting and idling on the embedded store: what a first trial costs.

use std::thread;
use std::time::Duration;

use crate::engine::{Bench, Engine};
use crate::machine::{anonymous_mib, rss_mib};
use crate::outcome::Outcome;
use crate::report::Report;

/// Long enough for everything that starts with the server to have settled.
const SETTLE: Duration = Duration::from_secs(1);
/// Starts after which the memory is read. The others only show how long a start takes.
const MEMORY_STARTS: usize = 3;

pub(crate) fn measure(bench: &Bench, report: &mut Report) -> Outcome<()> {
    let (mut fresh, mut again, mut resident, mut anonymous) = (vec![], vec![], vec![], vec![]);
    for _ in 0..bench.sizes.starts {
        let place = bench.directory(Engine::Sqlite);
        let server = bench.serve(&place)?;
        fresh.push(server.ready_after.as_secs_f64() * 1e3);
        server.stop()?;
        let server = bench.serve(&place)?;
        again.push(server.ready_after.as_secs_f64() * 1e3);
        if resident.len() < MEMORY_STARTS {
            thread::sleep(SETTLE);
            resident.push(rss_mib(server.pid())?);
            anonymous.push(anonymous_mib(server.pid())?);
        }
        server.stop()?;
    }
    report.rounds("start.ready_ms", fresh);
    report.rounds("start.restart_ms", again);
    report.rounds("idle.rss_mib", resident);
    report.rounds("idle.anonymous_mib", anonymous);
    Ok(())
}
