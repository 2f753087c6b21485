//! What sessions cost that are open and in which nothing happens: each had a turn that has ended.

use std::time::Duration;

use tokio::time::sleep;

use crate::engine::{Bench, Engine};
use crate::machine::rss_mib;
use crate::outcome::Outcome;
use crate::report::Report;
use crate::run::Load;

const SESSIONS: usize = 10_000;
/// Runs before the first look at the memory: what the server keeps for any load is not the sessions' cost.
const WARM_UP_SESSIONS: usize = 800;
const SETTLE: Duration = Duration::from_secs(2);

pub(crate) async fn measure(bench: &Bench, report: &mut Report) -> Outcome<()> {
    let mut worst = 0.0_f64;
    for engine in Engine::BOTH {
        let place = bench.place(engine)?;
        let server = bench.serve(&place)?;
        let mut load = Load::open(&[&server]).await?;
        load.run(WARM_UP_SESSIONS).await?;
        sleep(SETTLE).await;
        let before = rss_mib(server.pid())?;
        load.run(SESSIONS).await?;
        sleep(SETTLE).await;
        let added = rss_mib(server.pid())? - before;
        drop(load);
        server.stop()?;
        eprintln!("    idle.{}: {SESSIONS} sessions add {added:.1} MiB to {before:.1}", engine.name());
        report.figure(format!("idle.{}.sessions_10k_mib", engine.name()), added);
        worst = worst.max(added);
    }
    report.figure("idle.sessions_10k_mib", worst);
    Ok(())
}
