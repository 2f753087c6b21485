//! Starting and idling on the embedded store: what a first trial costs.

use std::thread;
use std::time::Duration;

use crate::engine::{Bench, Engine};
use crate::machine::{anonymous_mib, rss_mib};
use crate::outcome::Outcome;
use crate::report::{Report, median};

/// Long enough for everything that starts with the server to have settled.
const SETTLE: Duration = Duration::from_secs(1);

pub fn measure(bench: &Bench, report: &mut Report) -> Outcome<()> {
    let (mut fresh, mut again, mut memory) = (vec![], vec![], vec![]);
    for _ in 0..bench.sizes.starts {
        let place = bench.directory(Engine::Sqlite);
        let server = bench.serve(&place)?;
        fresh.push(server.ready_after.as_secs_f64() * 1e3);
        server.stop()?;
        let server = bench.serve(&place)?;
        again.push(server.ready_after.as_secs_f64() * 1e3);
        if memory.is_empty() {
            thread::sleep(SETTLE);
            memory.push(rss_mib(server.pid())?);
            report.figure("idle.anonymous_mib", anonymous_mib(server.pid())?);
        }
        server.stop()?;
    }
    report.figure("start.ready_ms", median(fresh));
    report.figure("start.restart_ms", median(again));
    report.figure("idle.rss_mib", median(memory));
    Ok(())
}
